//! A lock service that does as it is told: it falls silent, loses answers and ends leases on demand,
//! which no real server does at a moment that a test can choose. Exclusive locks only.
#![allow(dead_code)]

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tenure_api::tenure::v1::lock_service_server::{LockService, LockServiceServer};
use tenure_api::tenure::v1::*;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
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
    pub deadlock: bool,
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

    fn answer(&self, name: &str, lease: i64, renewed: bool) -> Option<LockResponse> {
        let state = self.state();
        let queue = state.queues.get(name)?;
        let first = queue.front()?;
        let holds = first.lease == lease;
        let holder = Holder { holder_id: first.holder.clone(), granted_unix_ms: 1_000, ..Holder::default() };
        Some(LockResponse {
            header: Some(Header { revision: state.token, ..Header::default() }),
            key: format!("{name}/{lease:x}"),
            fencing_token: if holds { first.token } else { 0 },
            acquired: holds,
            renewed,
            holder: (!holds).then_some(holder),
            waiting: queue.len() as u64 - 1,
            ..LockResponse::default()
        })
    }
}

impl State {
    fn end_lease(&mut self, id: i64) {
        self.leases.remove(&id);
        self.queues.values_mut().for_each(|queue| queue.retain(|entry| entry.lease != id));
    }

    pub fn holder(&self, name: &str) -> Option<i64> {
        self.queues.get(name)?.front().map(|entry| entry.lease)
    }

    pub fn waiting(&self, name: &str) -> usize {
        self.queues.get(name).map_or(0, |queue| queue.len().saturating_sub(1))
    }
}

/// Leaves the queue when the call is cancelled.
struct Leaving<'a> {
    fake: &'a Fake,
    name: String,
    lease: i64,
    armed: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.fake.change(|state| {
                if let Some(queue) = state.queues.get_mut(&self.name) {
                    queue.retain(|entry| entry.lease != self.lease);
                }
            });
        }
    }
}

type Replies<Reply> = Pin<Box<dyn Stream<Item = Result<Reply, Status>> + Send>>;
type Answer<Reply> = Result<Response<Reply>, Status>;

#[tonic::async_trait]
impl LockService for Fake {
    async fn lock(&self, request: Request<LockRequest>) -> Answer<LockResponse> {
        let request = request.into_inner();
        if self.state().deadlock {
            return Err(Status::failed_precondition("deadlock: a waits for b, b waits for a"));
        }
        if !self.state().leases.contains_key(&request.lease_id) {
            return Err(Status::not_found("etcdserver: requested lease not found"));
        }
        let renewed = self.change(|state| {
            state.lock_calls += 1;
            state.token += 1;
            let token = state.token;
            let queue = state.queues.entry(request.name.clone()).or_default();
            let known = queue.iter().any(|entry| entry.lease == request.lease_id);
            if !known {
                let holder = request.holder_id.clone();
                queue.push_back(Entry { lease: request.lease_id, token, holder });
            }
            known
        });
        let lost = self.change(|state| {
            let lost = state.lost_lock_answers > 0;
            state.lost_lock_answers -= u32::from(lost);
            lost
        });
        if lost {
            return Err(Status::unavailable("the answer is lost"));
        }
        let mut changed = self.changed.subscribe();
        let mut leaving = Leaving { fake: self, name: request.name.clone(), lease: request.lease_id, armed: true };
        let waiting = async {
            loop {
                match self.answer(&request.name, request.lease_id, renewed) {
                    Some(answer) if answer.acquired => return answer,
                    _ => changed.changed().await.unwrap(),
                }
            }
        };
        let answer = match request.timeout_ms {
            None => waiting.await,
            Some(ms) => {
                let time = std::time::Duration::from_millis(ms.max(0) as u64);
                match tokio::time::timeout(time, waiting).await {
                    Ok(answer) => answer,
                    Err(_) => {
                        let answer = self.answer(&request.name, request.lease_id, renewed);
                        return Ok(Response::new(answer.unwrap_or_default()));
                    }
                }
            }
        };
        leaving.armed = false;
        Ok(Response::new(answer))
    }

    async fn try_lock(&self, request: Request<LockRequest>) -> Answer<LockResponse> {
        let mut request = request.into_inner();
        request.timeout_ms = Some(0);
        self.lock(Request::new(request)).await
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Answer<UnlockResponse> {
        let request = request.into_inner();
        let released = self.change(|state| {
            state.unlocks.push(request.fencing_token);
            let Some(queue) = state.queues.get_mut(&request.name) else { return Ok(false) };
            match queue.front() {
                None => Ok(false),
                Some(first) if first.token != request.fencing_token => Err(()),
                Some(_) => {
                    queue.pop_front();
                    Ok(true)
                }
            }
        });
        match released {
            Ok(released) => Ok(Response::new(UnlockResponse { released, ..UnlockResponse::default() })),
            Err(()) => Err(Status::failed_precondition("not the holder")),
        }
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

    type LeaseKeepAliveStream = Replies<LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        let (fake, mut requests) = (self.clone(), request.into_inner());
        let (replies, outgoing) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Some(Ok(LeaseKeepAliveRequest { id })) = requests.next().await {
                let (ttl_ms, silent) = fake.change(|state| {
                    state.renewals += 1;
                    (state.leases.get(&id).copied(), state.silent)
                });
                if silent {
                    continue;
                }
                let reply = match ttl_ms {
                    Some(ttl_ms) => Ok(LeaseKeepAliveResponse { id, ttl_ms, header: None }),
                    None => Err(Status::not_found("etcdserver: requested lease not found")),
                };
                if replies.send(reply).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
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

    async fn describe(&self, _: Request<DescribeRequest>) -> Answer<DescribeResponse> {
        Err(Status::unimplemented("fake"))
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
    async fn session(&self, _: Request<Streaming<SessionRequest>>) -> Answer<Self::SessionStream> {
        Err(Status::unimplemented("fake"))
    }
}
