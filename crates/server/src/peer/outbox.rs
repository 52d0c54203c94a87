//! What the replica has for its peers: filled by whoever has the turn, and written to the peers' connections by the same
//! thread, as far as they take it. The peers' thread sees to the rest.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;
use tenure_api::tenure::peer::v1::MessagesRequest;
use tenure_machine::{Member, MemberId};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, mpsc, watch};

use super::counters::PeerCounters;
use super::frame;
use crate::limits;

/// An order to send the saved snapshot `index` to a peer.
#[derive(Debug)]
pub(crate) struct SnapshotOrder {
    pub(crate) to: MemberId,
    pub(crate) index: u64,
    pub(crate) message: Bytes,
}

/// A cheap handle; never waits.
#[derive(Clone)]
pub(crate) struct Outbox(Arc<Shared>);

struct Shared {
    own: MemberId,
    /// The longest message that another member takes.
    message_bytes: usize,
    queues: Mutex<HashMap<MemberId, Arc<Queue>>>,
    members: watch::Sender<Arc<[Member]>>,
    snapshots: mpsc::UnboundedSender<SnapshotOrder>,
    counters: Arc<PeerCounters>,
}

impl Outbox {
    /// With the end at which orders for snapshots come out.
    pub(crate) fn new(own: MemberId, message_bytes: usize) -> (Outbox, mpsc::UnboundedReceiver<SnapshotOrder>) {
        let (snapshots, orders) = mpsc::unbounded_channel();
        let members = watch::Sender::new(Arc::from(Vec::new()));
        let (queues, counters) = Default::default();
        (Outbox(Arc::new(Shared { own, message_bytes, queues, members, snapshots, counters })), orders)
    }

    /// Puts messages into their peers' queues and sends them on their way.
    pub(crate) fn send(&self, messages: impl IntoIterator<Item = (MemberId, Bytes)>) {
        self.put(messages).flush();
    }

    /// Puts messages into their peers' queues, in order. Those to unknown members are dropped. Whoever does this must
    /// flush what it touched; that may wait until others can go on.
    pub(crate) fn put(&self, messages: impl IntoIterator<Item = (MemberId, Bytes)>) -> Touched {
        let mut messages = messages.into_iter().peekable();
        let mut touched = Touched::default();
        if messages.peek().is_none() {
            return touched;
        }
        let queues = lock(&self.0.queues);
        for (to, message) in messages {
            if message.len() > self.0.message_bytes {
                tracing::error!(to = format!("{to:x}"), bytes = message.len(), "a message is too long for any peer");
                continue;
            }
            let Some(queue) = queues.get(&to) else { continue };
            self.note_dropped(queue.push(message));
            touched.add(queue);
        }
        touched
    }

    pub(crate) fn send_snapshot(&self, order: SnapshotOrder) {
        // If nobody takes orders any more, the member is going down.
        let _ = self.0.snapshots.send(order);
    }

    /// From now on these belong to the cluster: the queues of others are gone with what was in them. A member that
    /// has just joined knows of nobody yet, and keeps to those it was told of when it did.
    pub(crate) fn set_members(&self, members: Vec<Member>) {
        if members.is_empty() {
            return;
        }
        let mut queues = lock(&self.0.queues);
        queues.retain(|id, _| members.iter().any(|member| member.id == *id));
        for member in members.iter().filter(|member| member.id != self.0.own) {
            queues.entry(member.id).or_insert_with(|| Arc::new(Queue::new(self.0.counters.clone())));
        }
        drop(queues);
        self.0.members.send_replace(members.into());
    }

    pub(crate) fn members(&self) -> Arc<[Member]> {
        self.0.members.borrow().clone()
    }

    pub(crate) fn watch_members(&self) -> watch::Receiver<Arc<[Member]>> {
        self.0.members.subscribe()
    }

    pub(crate) fn counters(&self) -> &Arc<PeerCounters> {
        &self.0.counters
    }

    /// Drops what waits for a peer: whoever is not there will not need it when it comes.
    pub(crate) fn clear(&self, queue: &Queue) {
        self.note_dropped(queue.clear());
    }

    fn note_dropped(&self, messages: u64) {
        if messages > 0 {
            self.0.counters.messages_dropped.fetch_add(messages, Ordering::Relaxed);
        }
    }

    pub(crate) fn queue(&self, to: MemberId) -> Option<Arc<Queue>> {
        lock(&self.0.queues).get(&to).cloned()
    }
}

/// The queues that something was put into.
#[derive(Default)]
pub(crate) struct Touched(SmallVec<[Arc<Queue>; 2]>);

impl Touched {
    fn add(&mut self, queue: &Arc<Queue>) {
        if !self.0.iter().any(|known| Arc::ptr_eq(known, queue)) {
            self.0.push(queue.clone());
        }
    }

    /// Writes what waits to the connections, as far as they take it; never waits for one.
    pub(crate) fn flush(self) {
        for queue in self.0 {
            if queue.flush() == Flushed::InPart {
                queue.is_stalled.notify_one();
            }
        }
    }
}

/// Messages that wait for one peer. Bounded: when it is full the oldest go, because newer ones say what they said.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    wire: Mutex<Option<Wire>>,
    /// The connection does not take all that there is: the peers' thread is to wait until it does.
    is_stalled: Notify,
    counters: Arc<PeerCounters>,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

/// A connection that takes frames.
struct Wire {
    socket: Arc<OwnedWriteHalf>,
    /// Frames, from the first byte on that it has not taken.
    outgoing: BytesMut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    Wholly,
    /// The connection takes no more for now.
    InPart,
}

impl Queue {
    fn new(counters: Arc<PeerCounters>) -> Queue {
        Queue { waiting: Mutex::default(), wire: Mutex::default(), is_stalled: Notify::new(), counters }
    }

    /// What waits goes to this connection from now on, for as long as the guard is kept.
    pub(crate) fn attach(&self, socket: Arc<OwnedWriteHalf>) -> Attached<'_> {
        *lock(&self.wire) = Some(Wire { socket: socket.clone(), outgoing: BytesMut::new() });
        Attached { queue: self, socket }
    }

    /// Resolves when something waits that the connection did not take.
    pub(crate) async fn stalled(&self) {
        self.is_stalled.notified().await;
    }

    /// Writes what waits. One thread at a time, so that messages leave in the order in which they were put.
    pub(crate) fn flush(&self) -> Flushed {
        let mut attached = lock(&self.wire);
        let Some(wire) = &mut *attached else { return Flushed::Wholly };
        loop {
            if wire.outgoing.is_empty() {
                let messages = self.take_batch();
                if messages.is_empty() {
                    return Flushed::Wholly;
                }
                self.count(&messages);
                frame::put(&MessagesRequest { hello: None, messages }, &mut wire.outgoing);
            }
            match wire.socket.try_write(&wire.outgoing) {
                Ok(written) => wire.outgoing.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Flushed::InPart,
                Err(_) => {
                    // Whoever reads from it hears why.
                    *attached = None;
                    return Flushed::Wholly;
                }
            }
        }
    }

    fn count(&self, messages: &[Bytes]) {
        self.counters.messages_sent.fetch_add(messages.len() as u64, Ordering::Relaxed);
        let bytes = messages.iter().map(|message| message.len() as u64).sum();
        self.counters.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives how many had to go for it.
    fn push(&self, message: Bytes) -> u64 {
        let mut dropped = 0;
        let mut waiting = lock(&self.waiting);
        waiting.bytes += message.len();
        waiting.messages.push_back(message);
        while waiting.messages.len() > 1
            && (waiting.messages.len() > limits::PEER_QUEUE_MESSAGES || waiting.bytes > limits::PEER_QUEUE_BYTES)
        {
            let Some(oldest) = waiting.messages.pop_front() else { break };
            waiting.bytes -= oldest.len();
            dropped += 1;
        }
        dropped
    }

    /// The next batch: as many messages as fit, and at least one if there is any.
    pub(crate) fn take_batch(&self) -> Vec<Bytes> {
        let mut waiting = lock(&self.waiting);
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(next) = waiting.messages.front() {
            bytes += next.len();
            if !batch.is_empty() && bytes > limits::PEER_BATCH_BYTES {
                break;
            }
            let Some(message) = waiting.messages.pop_front() else { break };
            waiting.bytes -= message.len();
            batch.push(message);
        }
        batch
    }

    fn clear(&self) -> u64 {
        let mut waiting = lock(&self.waiting);
        let dropped = waiting.messages.len() as u64;
        waiting.messages.clear();
        waiting.bytes = 0;
        dropped
    }
}

/// A connection that is in use.
pub(crate) struct Attached<'a> {
    queue: &'a Queue,
    socket: Arc<OwnedWriteHalf>,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        // A newer one may have taken its place.
        lock(&self.queue.wire).take_if(|wire| Arc::ptr_eq(&wire.socket, &self.socket));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: MemberId) -> Member {
        Member { id, name: String::new(), peer_urls: Vec::new(), client_urls: Vec::new(), learner: false }
    }

    fn outbox() -> Outbox {
        let (outbox, _) = Outbox::new(1, 64 << 20);
        outbox.set_members(vec![member(1), member(2), member(3)]);
        outbox
    }

    #[test]
    fn messages_go_to_their_peers_in_order_and_to_nobody_else() {
        let outbox = outbox();
        let message = |text: &'static str| Bytes::from_static(text.as_bytes());
        outbox.send([(2, message("a")), (3, message("b")), (2, message("c")), (9, message("d")), (1, message("e"))]);
        assert_eq!(outbox.queue(2).unwrap().take_batch(), ["a", "c"]);
        assert_eq!(outbox.queue(3).unwrap().take_batch(), ["b"]);
        assert!(outbox.queue(1).is_none() && outbox.queue(9).is_none());
        outbox.set_members(vec![member(1), member(3)]);
        assert!(outbox.queue(2).is_none());
        outbox.set_members(Vec::new());
        assert_eq!(outbox.members().len(), 2, "there is no cluster of none");
    }

    #[test]
    fn a_queue_that_nobody_empties_keeps_the_newest_and_stays_small() {
        let outbox = outbox();
        let large = Bytes::from(vec![0; limits::PEER_QUEUE_BYTES / 4]);
        outbox.send((0..9).map(|_| (2, large.clone())));
        outbox.send([(2, Bytes::from_static(b"newest"))]);
        let queue = outbox.queue(2).unwrap();
        assert!(lock(&queue.waiting).bytes <= limits::PEER_QUEUE_BYTES);
        assert_eq!(lock(&queue.waiting).messages.back().unwrap(), "newest");
        let dropped = || outbox.counters().messages_dropped.load(Ordering::Relaxed);
        assert_eq!(dropped(), 6);
        outbox.send((0..2 * limits::PEER_QUEUE_MESSAGES).map(|_| (2, Bytes::from_static(b"x"))));
        assert_eq!(lock(&queue.waiting).messages.len(), limits::PEER_QUEUE_MESSAGES);
        let before = dropped();
        outbox.clear(&queue);
        assert!(queue.take_batch().is_empty());
        assert_eq!(dropped() - before, limits::PEER_QUEUE_MESSAGES as u64);
    }

    #[test]
    fn a_batch_is_bounded_but_never_empty() {
        let outbox = outbox();
        let large = Bytes::from(vec![0; limits::PEER_BATCH_BYTES + 1]);
        let small = Bytes::from(vec![0; limits::PEER_BATCH_BYTES / 4]);
        outbox.send([
            (2, large),
            (2, small.clone()),
            (2, small.clone()),
            (2, small.clone()),
            (2, small.clone()),
            (2, small),
        ]);
        let queue = outbox.queue(2).unwrap();
        let counts: Vec<_> = std::iter::from_fn(|| Some(queue.take_batch().len()).filter(|count| *count > 0)).collect();
        assert_eq!(counts, [1, 4, 1]);
    }

    #[test]
    fn what_no_peer_would_take_is_not_sent() {
        let (outbox, _) = Outbox::new(1, 10);
        outbox.set_members(vec![member(2)]);
        outbox.send([(2, Bytes::from_static(b"eleven byte")), (2, Bytes::from_static(b"ten bytes."))]);
        assert_eq!(outbox.queue(2).unwrap().take_batch(), ["ten bytes."]);
    }
}
