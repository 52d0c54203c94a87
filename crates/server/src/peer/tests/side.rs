//! One end of a connection between members, and a wire that can be cut.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tempfile::TempDir;
use tenure_machine::snapshot::chunks;
use tenure_machine::{Machine, Member, MemberId};
use tenure_replica::{Failure, Input, MemberChange, Status};
use tenure_storage::{Identity, Opened, Options, OsDisk, SnapshotMeta, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::peer::outbox::Outbox;
use crate::peer::{Host, PeerPort, PeerPortSettings};

/// Nothing here takes so long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const CLUSTER: u64 = 0xc1;

/// Stands in for the member.
#[derive(Clone)]
pub struct Notebook(Arc<Pages>);

pub struct Pages {
    pub status: Mutex<Status>,
    inputs: mpsc::UnboundedSender<Input>,
    pub stopped: watch::Sender<Option<String>>,
    pub members: Mutex<Vec<Member>>,
    pub changes: Mutex<Vec<MemberChange>>,
}

impl Host for Notebook {
    fn deliver(&self, input: Input) {
        let _ = self.0.inputs.send(input);
    }

    fn deliver_all(&self, inputs: &mut Vec<Input>) {
        inputs.drain(..).for_each(|input| self.deliver(input));
    }

    fn status(&self) -> Status {
        self.0.status.lock().unwrap().clone()
    }

    async fn members(&self) -> Result<Vec<Member>, Failure> {
        Ok(self.0.members.lock().unwrap().clone())
    }

    async fn change_members(&self, change: MemberChange) -> Result<Vec<Member>, Failure> {
        let mut members = self.0.members.lock().unwrap();
        match &change {
            MemberChange::Add { member } => members.push(member.clone()),
            MemberChange::Remove { id, .. } => members.retain(|member| member.id != *id),
            _ => {}
        }
        self.0.changes.lock().unwrap().push(change);
        Ok(members.clone())
    }

    fn stop_as_stranger(&self, text: String) {
        self.0.stopped.send_replace(Some(text));
    }
}

pub struct Side {
    pub identity: Identity,
    pub outbox: Outbox,
    pub address: SocketAddr,
    pub pages: Arc<Pages>,
    inputs: mpsc::UnboundedReceiver<Input>,
    accepting: Accepting,
    pub store: Store<OsDisk>,
    pub directory: TempDir,
}

pub struct Setup {
    pub cluster: u64,
    pub directory_id: u128,
    pub message_bytes: usize,
    pub machine: Machine,
    pub snapshot: (u64, u64),
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { cluster: CLUSTER, directory_id: 0, message_bytes: 64 << 20, machine: Machine::new(), snapshot: (1, 1) }
    }
}

impl Side {
    pub async fn new(id: MemberId) -> Side {
        Side::with(id, Setup::default()).await
    }

    pub async fn with(id: MemberId, setup: Setup) -> Side {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let directory_id = if setup.directory_id == 0 { u128::from(id) << 64 | 1 } else { setup.directory_id };
        let identity = Identity { cluster_id: setup.cluster, member_id: id, directory_id };
        let store = match Store::open(OsDisk::default(), &data, Options::default()).unwrap() {
            Opened::Empty(blank) => {
                let (index, term) = setup.snapshot;
                let meta = SnapshotMeta { index, term, configuration: Bytes::from_static(b"who votes") };
                blank.initialise(identity, meta, chunks(setup.machine.view(), 1 << 20)).unwrap().0
            }
            Opened::Existing(..) => panic!("a new directory is empty"),
        };
        Side::on(identity, directory, store, setup.message_bytes).await
    }

    async fn on(identity: Identity, directory: TempDir, store: Store<OsDisk>, message_bytes: usize) -> Side {
        let (outbox, orders) = Outbox::new(identity.member_id, 64 << 20);
        let (inputs, received) = mpsc::unbounded_channel();
        let status = Status { member: identity.member_id, applied_index: 1, ..Status::default() };
        let pages = Arc::new(Pages {
            status: Mutex::new(status),
            inputs,
            stopped: watch::Sender::new(None),
            members: Mutex::default(),
            changes: Mutex::default(),
        });
        let settings = PeerPortSettings {
            identity,
            snapshots: store.snapshots(),
            known: store.peers(),
            outbox: outbox.clone(),
            message_bytes,
        };
        let port = PeerPort::open(settings, Notebook(pages.clone()), orders);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = Accepting(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = port.connection(None);
                connections.spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        }));
        Side { identity, outbox, address, pages, inputs: received, accepting, store, directory }
    }

    /// The process ends and starts again on the same directory, at another port.
    pub async fn restart(self) -> Side {
        let Side { directory, store, accepting, inputs, .. } = self;
        drop((accepting, store, inputs));
        let data = directory.path().join("data");
        loop {
            match Store::open(OsDisk::default(), &data, Options::default()) {
                Ok(Opened::Existing(store, recovered)) => {
                    return Side::on(recovered.identity, directory, store, 64 << 20).await;
                }
                // The tasks of the old port are still ending.
                Err(tenure_storage::OpenError::InUse { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
                Ok(Opened::Empty(_)) => panic!("the directory is empty"),
            }
        }
    }

    /// Ends; gives the address at which nobody answers now.
    pub async fn end(self) -> SocketAddr {
        let address = self.address;
        drop(self);
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        address
    }

    pub fn id(&self) -> MemberId {
        self.identity.member_id
    }

    /// As others list it, at this address.
    pub fn listed_at(&self, address: SocketAddr) -> Member {
        listed(self.id(), address)
    }

    pub fn listed(&self) -> Member {
        self.listed_at(self.address)
    }

    pub fn set_applied(&self, applied_index: u64) {
        self.pages.status.lock().unwrap().applied_index = applied_index;
    }

    pub fn send(&self, to: MemberId, message: &'static str) {
        self.outbox.send([(to, Bytes::from_static(message.as_bytes()))]);
    }

    pub async fn next(&mut self) -> Input {
        tokio::time::timeout(PATIENCE, self.inputs.recv()).await.expect("something comes").expect("it lives")
    }

    pub async fn next_message(&mut self) -> (MemberId, Bytes) {
        match self.next().await {
            Input::Message { from, message } => (from, message),
            other => panic!("{other:?}"),
        }
    }

    /// Has not received anything so far.
    pub fn heard_nothing(&mut self) -> bool {
        self.inputs.try_recv().is_err()
    }

    /// As a stranger, in these words.
    pub async fn stopped(&self) -> String {
        let mut stopped = self.pages.stopped.subscribe();
        let reason = tokio::time::timeout(PATIENCE, stopped.wait_for(Option::is_some)).await.expect("it stops");
        reason.unwrap().clone().unwrap()
    }
}

/// Takes connections until it is dropped.
struct Accepting(JoinHandle<()>);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub fn listed(id: MemberId, address: SocketAddr) -> Member {
    let peer_urls = vec![format!("http://{address}")];
    Member { id, name: format!("n{id}"), peer_urls, client_urls: Vec::new(), learner: false }
}

/// Both know each other.
pub fn acquaint(one: &Side, other: &Side) {
    for side in [one, other] {
        side.outbox.set_members(vec![one.listed(), other.listed()]);
    }
}

/// Repeats a message, as raft does, until the other side has it: what is sent while there is no connection is lost.
pub async fn send_until_heard(from: &Side, to: &mut Side, message: &'static str) {
    let (peer, wanted) = (to.id(), Bytes::from_static(message.as_bytes()));
    let repeat = async {
        loop {
            from.send(peer, message);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = repeat => {}
        () = async { while to.next_message().await.1 != wanted {} } => {}
    }
}

/// A wire between two members that can be cut.
pub struct Wire {
    pub address: SocketAddr,
    cut: watch::Sender<u64>,
    /// What went from the one who connects to the other.
    pub passed: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Wire {
    /// The first connections break when so many bytes went through each of them.
    pub async fn to(target: SocketAddr, breaks_after: Vec<usize>) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, passed) = (watch::Sender::new(0), Arc::<AtomicUsize>::default());
        let (cutting, counting) = (cut.clone(), passed.clone());
        let accepting = tokio::spawn(async move {
            let mut breaks = breaks_after.into_iter();
            while let Ok((stream, _)) = listener.accept().await {
                let (mut cuts, counter) = (cutting.subscribe(), counting.clone());
                let most = breaks.next().unwrap_or(usize::MAX);
                tokio::spawn(async move {
                    tokio::select! {
                        _ = pass(stream, target, most, counter) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Wire { address, cut, passed, accepting }
    }

    /// Breaks all connections. New ones can be made.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    pub fn passed(&self) -> usize {
        self.passed.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(stream: TcpStream, target: SocketAddr, most: usize, passed: Arc<AtomicUsize>) -> std::io::Result<()> {
    let (mut near_read, mut near_write) = stream.into_split();
    let (mut far_read, mut far_write) = TcpStream::connect(target).await?.into_split();
    let there = async {
        let (mut buffer, mut count) = (vec![0; 16 << 10], 0);
        loop {
            let read = near_read.read(&mut buffer).await?;
            count += read;
            if read == 0 || count > most {
                return std::io::Result::Ok(());
            }
            passed.fetch_add(read, Ordering::Relaxed);
            far_write.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = tokio::io::copy(&mut far_read, &mut near_write) => ended.map(drop),
    }
}
