//! A lock service that does as it is told: it falls silent, loses answers and ends leases on demand,
//! which no real server does at a moment that a test can choose. Exclusive locks only.
#![allow(dead_code)]

mod session;

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tenure_api::tenure::v1::lock_service_server::{LockService, LockServiceServer};
use tenure_api::tenure::v1::*;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub struct Fake {
    pub address: String,
    state: Arc<Mutex<State>>,
    /// Grows with every change, for those who wait.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub struct State {
    pub ttl_ms: Option<i64>,
    pub leases: BTreeMap<i64, i64>,
    pub queues: BTreeMap<String, VecDeque<Entry>>,
    pub token: i64,
    /// Renewals are received and not answered.
    pub silent: bool,
    pub renewals: u64,
    /// So many answers to Lock are lost after the call was carried out.
    pub lost_lock_answers: u32,
    pub lock_calls: u32,
    pub unlocks: Vec<i64>,
    /// So many answers to Unlock are lost after the call was carried out.
    pub lost_unlock_answers: u32,
    /// The next Unlock of a session is refused so, and not carried out.
    pub refused_unlock: Option<(tonic::Code, &'static str)>,
    /// How often a session's stream was opened.
    pub opened: u32,
    pub deadlock: bool,
    /// Who gives up is told so before its place is seen to be gone.
    pub leaves_late: bool,
}

#[derive(Clone)]
pub struct Entry {
    pub lease: i64,
    pub token: i64,
    pub holder: String,
}

impl Fake {
    pub async fn start() -> Fake {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let fake = Fake { address, state: Arc::default(), changed: watch::Sender::new(0) };
        let service = LockServiceServer::new(fake.clone());
        let serving = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        fake
    }

    pub fn read<Output>(&self, read: impl FnOnce(&State) -> Output) -> Output {
        read(&self.state())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn change<Output>(&self, change: impl FnOnce(&mut State) -> Output) -> Output {
        let output = change(&mut self.state());
        self.changed.send_modify(|count| *count += 1);
        output
    }

    /// Waits for a condition that the test is about.
    pub async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !condition(&self.state()) {
                changed.changed().await.unwrap();
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("{what}"));
    }

    pub fn end_lease(&self, id: i64) {
        self.change(|state| state.end_lease(id));
    }
}

impl State {
    fn end_lease(&mut self, id: i64) {
        self.leases.remove(&id);
        self.queues.values_mut().for_each(|queue| queue.retain(|entry| entry.lease != id));
    }

    fn unlock(&mut self, name: &str, token: i64) -> Result<bool, Status> {
        self.unlocks.push(token);
        let Some(queue) = self.queues.get_mut(name) else { return Ok(false) };
        match queue.front() {
            None => Ok(false),
            Some(first) if first.token != token => Err(Status::failed_precondition("not the holder")),
            Some(_) => Ok(queue.pop_front().is_some()),
        }
    }

    /// Takes a place, or finds the one that the lease has.
    fn join(&mut self, name: &str, lease: i64, holder: &str) {
        self.lock_calls += 1;
        self.token += 1;
        let token = self.token;
        let queue = self.queues.entry(name.to_owned()).or_default();
        if queue.iter().all(|entry| entry.lease != lease) {
            queue.push_back(Entry { lease, token, holder: holder.to_owned() });
        }
    }

    fn leave(&mut self, name: &str, lease: i64) {
        self.queues.get_mut(name).into_iter().for_each(|queue| queue.retain(|entry| entry.lease != lease));
    }

    /// The token, if it is the lease's turn.
    fn granted(&self, name: &str, lease: i64) -> Option<i64> {
        self.queues.get(name)?.front().filter(|first| first.lease == lease).map(|first| first.token)
    }

    pub fn holder(&self, name: &str) -> Option<i64> {
        self.queues.get(name)?.front().map(|entry| entry.lease)
    }

    pub fn waiting(&self, name: &str) -> usize {
        self.queues.get(name).map_or(0, |queue| queue.len().saturating_sub(1))
    }
}

type Replies<Reply> = Pin<Box<dyn Stream<Item = Result<Reply, Status>> + Send>>;
type Answer<Reply> = Result<Response<Reply>, Status>;

#[tonic::async_trait]
impl LockService for Fake {
    async fn lock(&self, _: Request<LockRequest>) -> Answer<LockResponse> {
        Err(Status::unimplemented("fake"))
    }

    async fn try_lock(&self, _: Request<LockRequest>) -> Answer<LockResponse> {
        Err(Status::unimplemented("fake"))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Answer<UnlockResponse> {
        let UnlockRequest { name, fencing_token, .. } = request.into_inner();
        let released = self.change(|state| state.unlock(&name, fencing_token))?;
        Ok(Response::new(UnlockResponse { released, ..UnlockResponse::default() }))
    }

    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Answer<LeaseGrantResponse> {
        let request = request.into_inner();
        let (id, ttl_ms) = self.change(|state| {
            let ttl_ms = state.ttl_ms.unwrap_or(request.ttl_ms);
            let id = state.leases.keys().max().unwrap_or(&100) + 1;
            state.leases.insert(id, ttl_ms);
            (id, ttl_ms)
        });
        Ok(Response::new(LeaseGrantResponse { id, ttl_ms, ..LeaseGrantResponse::default() }))
    }

    async fn lease_revoke(&self, request: Request<LeaseRevokeRequest>) -> Answer<LeaseRevokeResponse> {
        self.end_lease(request.into_inner().id);
        Ok(Response::new(LeaseRevokeResponse::default()))
    }

    async fn sign(&self, _: Request<SignRequest>) -> Answer<SignResponse> {
        Err(Status::unimplemented("fake"))
    }

    type LeaseKeepAliveStream = Replies<LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        _: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        Err(Status::unimplemented("fake"))
    }

    async fn campaign(&self, _: Request<CampaignRequest>) -> Answer<LockResponse> {
        Err(Status::unimplemented("fake"))
    }

    async fn proclaim(&self, _: Request<ProclaimRequest>) -> Answer<ProclaimResponse> {
        Err(Status::unimplemented("fake"))
    }

    async fn leader(&self, _: Request<LeaderRequest>) -> Answer<LeaderResponse> {
        Err(Status::unimplemented("fake"))
    }

    type ObserveStream = Replies<LeaderResponse>;
    async fn observe(&self, _: Request<ObserveRequest>) -> Answer<Self::ObserveStream> {
        Err(Status::unimplemented("fake"))
    }

    async fn resign(&self, _: Request<ResignRequest>) -> Answer<ResignResponse> {
        Err(Status::unimplemented("fake"))
    }

    async fn barrier(&self, _: Request<BarrierRequest>) -> Answer<LockResponse> {
        Err(Status::unimplemented("fake"))
    }

    type WatchStream = Replies<WatchResponse>;
    async fn watch(&self, _: Request<Streaming<WatchRequest>>) -> Answer<Self::WatchStream> {
        Err(Status::unimplemented("fake"))
    }

    async fn describe(&self, request: Request<DescribeRequest>) -> Answer<DescribeResponse> {
        let name = request.into_inner().name;
        let holder = |entry: &Entry| {
            let lease = Some(Lease { id: entry.lease, ..Lease::default() });
            Holder { holder_id: entry.holder.clone(), lease, ..Holder::default() }
        };
        let queue = self.state().queues.get(&name).cloned().unwrap_or_default();
        let waiters = queue.iter().skip(1).map(|entry| Waiter { entry: Some(holder(entry)), ..Waiter::default() });
        let (holders, waiters) = (queue.front().map(holder).into_iter().collect(), waiters.collect());
        Ok(Response::new(DescribeResponse { name, holders, waiters, ..DescribeResponse::default() }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<ListResponse> {
        // Two pages, to be put together.
        let page = request.into_inner().page_token;
        let (name, next) = if page.is_empty() { ("a", "more") } else { ("b", "") };
        let locks = vec![LockSummary { name: name.to_owned(), ..LockSummary::default() }];
        Ok(Response::new(ListResponse { locks, next_page_token: next.to_owned(), ..ListResponse::default() }))
    }

    async fn list_sessions(&self, _: Request<ListSessionsRequest>) -> Answer<ListSessionsResponse> {
        Err(Status::unimplemented("fake"))
    }

    async fn force_release(&self, _: Request<ForceReleaseRequest>) -> Answer<ForceReleaseResponse> {
        Err(Status::unimplemented("fake"))
    }

    async fn delete(&self, _: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        Err(Status::unimplemented("fake"))
    }

    type SessionStream = Replies<SessionResponse>;
    async fn session(&self, request: Request<Streaming<SessionRequest>>) -> Answer<Self::SessionStream> {
        let (replies, outgoing) = mpsc::unbounded_channel();
        tokio::spawn(session::serve(self.clone(), request.into_inner(), replies));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(outgoing))))
    }
}
