//! Keeps one stream to each peer, as many as the cluster has members, and carries out orders for snapshots.

use std::collections::HashMap;
use std::sync::Arc;

use tenure_machine::{Member, MemberId};
use tenure_replica::Input;
use tenure_storage::{OsDisk, Snapshots};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::Host;
use super::greeting::Greeter;
use super::outbox::SnapshotOrder;
use super::send_snapshot::SnapshotSender;
use super::service::Incoming;
use super::stream::{Addresses, MessageStream};

pub(crate) struct Transport<H> {
    greeter: Greeter<H>,
    snapshots: Snapshots<OsDisk>,
    orders: mpsc::UnboundedReceiver<SnapshotOrder>,
    incoming: Arc<Incoming>,
    streams: HashMap<MemberId, Stream>,
    /// Snapshots under way, with their index: at most one to each peer.
    sending: HashMap<MemberId, (u64, AbortHandle)>,
    /// All of the above. Dropping it ends them.
    tasks: JoinSet<()>,
}

struct Stream {
    addresses: Arc<Addresses>,
    task: AbortHandle,
}

impl<H: Host> Transport<H> {
    pub(crate) fn new(
        greeter: Greeter<H>,
        snapshots: Snapshots<OsDisk>,
        orders: mpsc::UnboundedReceiver<SnapshotOrder>,
        incoming: Arc<Incoming>,
    ) -> Transport<H> {
        let (streams, sending, tasks) = Default::default();
        Transport { greeter, snapshots, orders, incoming, streams, sending, tasks }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut members = self.greeter.outbox.watch_members();
        loop {
            let now = members.borrow_and_update().clone();
            self.reconcile(&now);
            let order = tokio::select! {
                // An order is for a member as it is now.
                biased;
                changed = members.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                order = self.orders.recv() => order,
                Some(_) = self.tasks.join_next() => continue,
            };
            match order {
                Some(order) => self.send_snapshot(&now, order),
                None => return,
            }
        }
    }

    /// Makes the streams those of the present members. Repeating it changes nothing.
    fn reconcile(&mut self, members: &[Member]) {
        let own = self.greeter.identity.member_id;
        let urls_of = |id: MemberId| members.iter().find(|member| member.id == id).map(|member| &member.peer_urls);
        self.streams.retain(|id, stream| match urls_of(*id).filter(|urls| !urls.is_empty()) {
            Some(urls) => {
                stream.addresses.list(urls);
                true
            }
            None => {
                stream.task.abort();
                false
            }
        });
        self.sending.retain(|to, (index, task)| {
            let is_member = urls_of(*to).is_some();
            if !is_member && !task.is_finished() {
                task.abort();
                self.greeter.host.deliver(Input::SnapshotSent { to: *to, index: *index, delivered: false });
            }
            is_member && !task.is_finished()
        });
        for member in members.iter().filter(|member| member.id != own && !member.peer_urls.is_empty()) {
            let Some(queue) = self.greeter.outbox.queue(member.id) else { continue };
            self.streams.entry(member.id).or_insert_with(|| {
                let addresses = Arc::new(Addresses::new(&member.peer_urls));
                let stream = MessageStream {
                    to: member.id,
                    name: member.name.clone(),
                    addresses: addresses.clone(),
                    queue,
                    greeter: self.greeter.clone(),
                };
                Stream { addresses, task: self.tasks.spawn(stream.run()) }
            });
        }
        // Who is not listed itself does not know the members yet.
        if members.iter().any(|member| member.id == own) {
            self.forget_others(members);
        }
    }

    fn forget_others(&mut self, members: &[Member]) {
        let ids: Vec<MemberId> = members.iter().map(|member| member.id).collect();
        self.incoming.keep(|id| ids.contains(&id));
        let known = self.greeter.known.clone();
        if known.knows_others_than(&ids) {
            self.tasks.spawn_blocking(move || {
                if let Err(fault) = known.keep(&ids) {
                    tracing::warn!(%fault, "the list of peers could not be shortened");
                }
            });
        }
    }

    fn send_snapshot(&mut self, members: &[Member], order: SnapshotOrder) {
        let is_member = members.iter().any(|member| member.id == order.to);
        let stream = self.streams.get(&order.to).filter(|_| is_member);
        let urls = stream.map(|stream| stream.addresses.urls());
        let is_busy = self.sending.get(&order.to).is_some_and(|(_, task)| !task.is_finished());
        let Some(urls) = urls.filter(|urls| !urls.is_empty() && !is_busy) else {
            let SnapshotOrder { to, index, .. } = order;
            return self.greeter.host.deliver(Input::SnapshotSent { to, index, delivered: false });
        };
        let (to, index) = (order.to, order.index);
        let (greeter, snapshots) = (self.greeter.clone(), self.snapshots.clone());
        let task = self.tasks.spawn(SnapshotSender { order, urls, greeter, snapshots }.run());
        self.sending.insert(to, (index, task));
    }
}
