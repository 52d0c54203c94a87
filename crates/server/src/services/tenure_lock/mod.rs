//! Tenure's own lock service, `tenure.v1.LockService`.
//!
//! The same queues as behind etcd's lock service, asked for more: modes, several names at once,
//! waiting for a while or not at all, tokens, owners, and everything there is to know of a lock.
//! A barrier is one of the modes, and an election a lock whose holder proclaims a value ([`election`]).
//! What is asked is checked and converted in [`request`], what is told is put together in
//! [`describe`], and [`session`] carries the traffic of one client on one stream.

pub(super) mod describe;
mod election;
pub(crate) mod request;
mod session;
pub(super) mod sign;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_api::tenure::v1::lock_service_server::LockService;
use tenure_api::tenure::v1::{
    BarrierRequest, CampaignRequest, DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse,
    ForceReleaseRequest, ForceReleaseResponse, Header, Holder, LeaderRequest, LeaderResponse, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    ListRequest, ListResponse, ListSessionsRequest, ListSessionsResponse, LockRequest, LockResponse, ObserveRequest,
    ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse, SessionRequest, SessionResponse, SignRequest,
    SignResponse, UnlockRequest, UnlockResponse, WatchRequest, WatchResponse,
};
use tenure_machine::lock::entry_key;
use tenure_machine::{
    BusyReply, Command, LeaseGrant, LeaseId, Lock, LockEntry, LockReply, Mode, Refusal, Reply, Revision, Unlock, View,
};
use tenure_replica::{Consistency, Failure};
use tonic::transport::server::TcpConnectInfo;
use tonic::{Request, Response, Status, Streaming};

use super::errors;
use super::framed::{self, Messages};
use super::kv::unexpected;
use super::observe_election::{Words, observe};
use super::produced::{Emitter, Produced, produced};
use super::{Shared, authorize};
use crate::member::{At, Locked};
use crate::metrics::Concluded;
pub(super) use session::Connected;
pub use session::Sessions;
pub(crate) use session::asked;

/// Its messages are read and written by [`session`] itself, see [`framed`].
pub const SESSION_PATH: &str = "/tenure.v1.LockService/Session";

pub struct TenureLockService(pub Arc<Shared>);

/// What an answer needs to know of its request.
struct Asked {
    name: Bytes,
    lease: LeaseId,
    mode: Mode,
}

#[tonic::async_trait]
impl LockService for TenureLockService {
    /// A call that is cancelled drops this future, and with it its places in the queues.
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        authorize("Lock", request.metadata())?;
        self.acquire_lock(request.into_inner()).await
    }

    async fn try_lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        authorize("TryLock", request.metadata())?;
        self.acquire_lock(LockRequest { timeout_ms: Some(0), ..request.into_inner() }).await
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        authorize("Unlock", request.metadata())?;
        let UnlockRequest { name, more_names, fencing_token, lease_id } = request.into_inner();
        let unlock = request::unlock(name, more_names, fencing_token, 0)?;
        if let Some(lease) = lease_id {
            self.check_holder(&unlock, lease).await?;
        }
        let at = self.0.member.submit(Command::Unlock(unlock)).await.map_err(failed)?;
        match at.value {
            Reply::Unlocked { released } => {
                Ok(Response::new(UnlockResponse { header: header(&self.0, &at), released }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn sign(&self, request: Request<SignRequest>) -> Result<Response<SignResponse>, Status> {
        authorize("Sign", request.metadata())?;
        sign::sign_again(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn campaign(&self, request: Request<CampaignRequest>) -> Result<Response<LockResponse>, Status> {
        authorize("Campaign", request.metadata())?;
        let request = request.into_inner();
        let timeout_ms = request.timeout_ms;
        self.acquire(request::campaign(request, self.0.member.draw_call())?, timeout_ms).await
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Result<Response<ProclaimResponse>, Status> {
        authorize("Proclaim", request.metadata())?;
        election::proclaim(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        authorize("Leader", request.metadata())?;
        election::leader(&self.0, request.into_inner()).await.map(Response::new)
    }

    type ObserveStream = Produced<Result<LeaderResponse, Status>>;

    async fn observe(&self, request: Request<ObserveRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        authorize("Observe", request.metadata())?;
        let shared = self.0.clone();
        let leader_loss = shared.leader_monitor.follow(request.metadata());
        let name = request::name(request.into_inner().name)?;
        let words = Words { leading: election::observed, failed };
        Ok(Response::new(produced(|emitter| observe(shared, name, words, leader_loss, emitter))))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        authorize("Resign", request.metadata())?;
        election::resign(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn barrier(&self, request: Request<BarrierRequest>) -> Result<Response<LockResponse>, Status> {
        authorize("Barrier", request.metadata())?;
        let request = request.into_inner();
        let timeout_ms = request.timeout_ms;
        self.acquire(request::barrier(request, self.0.member.draw_call())?, timeout_ms).await
    }

    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        authorize("LeaseGrant", request.metadata())?;
        let LeaseGrantRequest { ttl_ms, id, client_id } = request.into_inner();
        let ttl_ms = request::ttl_ms(ttl_ms)?;
        let lease = match id {
            0 => self.0.member.draw_lease_id(),
            1.. => id,
            _ => return Err(Status::invalid_argument("a lease id must be positive")),
        };
        let grant = LeaseGrant { lease, ttl_ms, client: request::words("client_id", client_id)? };
        let at = self.0.member.submit(Command::LeaseGrant(grant)).await.map_err(failed)?;
        Ok(Response::new(LeaseGrantResponse {
            header: header(&self.0, &at),
            id: lease,
            ttl_ms: ttl_ms as i64,
            failover_safe: ttl_ms >= self.0.config.lease_ttl_min_seconds() as u64 * 1000,
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        authorize("LeaseRevoke", request.metadata())?;
        let lease = request.into_inner().id;
        let at = self.0.member.submit(Command::LeaseRevoke { lease }).await.map_err(failed)?;
        Ok(Response::new(LeaseRevokeResponse { header: header(&self.0, &at) }))
    }

    type LeaseKeepAliveStream = Produced<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        authorize("LeaseKeepAlive", request.metadata())?;
        let shared = self.0.clone();
        let requests = request.into_inner();
        Ok(Response::new(produced(|emitter| keep_alive(shared, requests, emitter))))
    }

    type WatchStream = Produced<Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        authorize("Watch", request.metadata())?;
        let address = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let shared = self.0.clone();
        let requests = request.into_inner();
        Ok(Response::new(produced(|emitter| watch::serve(shared, requests, address, emitter))))
    }

    async fn describe(&self, request: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        authorize("Describe", request.metadata())?;
        let name = request::name(request.into_inner().name)?;
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(failed)?;
        let leases = at.value.lock_queue(&name).take(describe::WAITERS).map(|entry| entry.lease).collect();
        let times = self.0.member.lease_times(leases).await.map_err(failed)?.value;
        let header = header(&self.0, &at);
        Ok(Response::new(DescribeResponse { header, ..describe::lock(&at.value, &name, &times) }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        authorize("List", request.metadata())?;
        let ListRequest { prefix, limit, page_token } = request.into_inner();
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(failed)?;
        let header = header(&self.0, &at);
        let page = describe::Page { prefix: prefix.into(), after: page_token.into(), limit: describe::limit(limit) };
        let (names, next_page_token) = describe::page(&at.value, &page);
        let leases =
            names.iter().filter_map(|name| at.value.lock_queue(name).next()).map(|first| first.lease).collect();
        let times = self.0.member.lease_times(leases).await.map_err(failed)?.value;
        let locks = describe::summaries(&at.value, &names, &times);
        Ok(Response::new(ListResponse { header, locks, next_page_token, now_unix_ms: describe::now_unix_ms() }))
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        authorize("ListSessions", request.metadata())?;
        let ListSessionsRequest { limit, page_token } = request.into_inner();
        let after = match page_token.as_str() {
            "" => 0,
            token => i64::from_str_radix(token, 16).map_err(|_| Status::invalid_argument("not a page token"))?,
        };
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(failed)?;
        let header = header(&self.0, &at);
        let limit = describe::limit(limit);
        let view = at.value;
        let listed = tokio::task::spawn_blocking(move || describe::sessions(&view, after, limit)).await;
        let (mut sessions, next_page_token) = listed.map_err(|_| Status::from(errors::STOPPED))?;
        let leases = sessions.iter().filter_map(|session| session.lease.as_ref()).map(|lease| lease.id).collect();
        let times = self.0.member.lease_times(leases).await.map_err(failed)?.value;
        for (session, time) in sessions.iter_mut().zip(&times) {
            describe::fill_lease_time(session.lease.as_mut(), time.as_ref());
            self.0.process_wide.sessions.describe(session);
            session.watches = self.0.process_wide.watching.count(&session.address);
        }
        Ok(Response::new(ListSessionsResponse {
            header,
            sessions,
            next_page_token,
            now_unix_ms: describe::now_unix_ms(),
        }))
    }

    async fn force_release(
        &self,
        request: Request<ForceReleaseRequest>,
    ) -> Result<Response<ForceReleaseResponse>, Status> {
        authorize("ForceRelease", request.metadata())?;
        let ForceReleaseRequest { name, fencing_token } = request.into_inner();
        let name = request::name(name)?;
        let command = Command::ForceRelease { name: name.clone(), token: fencing_token };
        let at = self.0.member.submit(command).await.map_err(failed)?;
        let header = header(&self.0, &at);
        match at.value {
            Reply::ForceReleased(entry) => {
                let name = String::from_utf8_lossy(&name).into_owned();
                tracing::warn!(name, token = fencing_token, "an operator has taken a lock from its holder");
                // The lock is released already: a lease that cannot be asked about is left out.
                let released = self.describe_holder(&entry).await.unwrap_or_else(|_| describe::entry(&entry));
                Ok(Response::new(ForceReleaseResponse { header, released: Some(released) }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        authorize("Delete", request.metadata())?;
        let name = request::name(request.into_inner().name)?;
        let at = self.0.member.submit(Command::ForgetLock { name }).await.map_err(failed)?;
        match at.value {
            Reply::LockForgotten { holders } => {
                Ok(Response::new(DeleteResponse { header: header(&self.0, &at), forgotten: holders as u64 }))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Of what tonic would encode, which is nothing.
    type SessionStream = tokio_stream::Empty<Result<SessionResponse, Status>>;

    async fn session(
        &self,
        mut request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        authorize("Session", request.metadata())?;
        let address = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let shared = self.0.clone();
        let requests = Messages::of(&mut request, shared.config.limits.message_bytes());
        let concluded = Concluded::default();
        let end = concluded.clone();
        let pieces = produced(|emitter| session::serve(shared, requests, address, end, emitter));
        Ok(framed::respond(pieces, tokio_stream::empty(), concluded))
    }
}

impl TenureLockService {
    async fn acquire_lock(&self, asked: LockRequest) -> Result<Response<LockResponse>, Status> {
        let timeout_ms = asked.timeout_ms;
        self.acquire(request::lock(asked, self.0.member.draw_call())?, timeout_ms).await
    }

    async fn acquire(&self, lock: Box<Lock>, timeout_ms: Option<i64>) -> Result<Response<LockResponse>, Status> {
        let name = lock.name.clone();
        let asked = Asked { name: name.clone(), lease: lock.lease, mode: lock.mode };
        match timeout_ms {
            None | Some(0) => self.answer(asked, self.0.member.lock(lock).await).await,
            Some(timeout_ms) => {
                let timeout = Duration::from_millis(timeout_ms as u64);
                match tokio::time::timeout(timeout, self.0.member.lock(lock)).await {
                    Ok(locked) => self.answer(asked, locked).await,
                    // Dropping the call has given up its places.
                    Err(_) => {
                        let at = self.0.member.view(Consistency::Linearizable).await.map_err(failed)?;
                        let busy = without(asked.lease, at.value.busy(&name), &at.value);
                        self.busy(&at, busy).await
                    }
                }
            }
        }
    }

    async fn answer(
        &self,
        asked: Asked,
        locked: Result<At<Locked>, Failure>,
    ) -> Result<Response<LockResponse>, Status> {
        let at = locked.map_err(failed)?;
        let header = header(&self.0, &at);
        let reply = match at.value {
            Locked::Busy(ref busy) => {
                let busy = busy.clone();
                return self.busy(&at, busy).await;
            }
            Locked::Held(reply) => reply,
        };
        let signature = self.signature(&asked, &reply).await?;
        Ok(Response::new(LockResponse {
            header,
            signature,
            key: describe::text(&reply.key),
            fencing_token: reply.token,
            acquired: true,
            renewed: reply.renewed,
            holder: None,
            waiting: 0,
            slot: reply.slot,
        }))
    }

    /// Empty unless this cluster signs, for a mode that fences no writes, and if one of the names is lost again.
    async fn signature(&self, asked: &Asked, reply: &LockReply) -> Result<String, Status> {
        if self.0.process_wide.keyring.is_none() || !asked.mode.fences() {
            return Ok(String::new());
        }
        let LockReply { token, more_keys, .. } = reply;
        let signed = sign::sign_standing(&self.0, &asked.name, asked.lease, *token, more_keys).await?;
        Ok(signed.map_or(String::new(), |(_, signature)| signature))
    }

    /// Refuses an unlock of somebody else's grant. A token belongs to one lease for good, so what is seen here holds
    /// when the unlock is applied.
    async fn check_holder(&self, unlock: &Unlock, lease: LeaseId) -> Result<(), Status> {
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(failed)?;
        let is_free = |name: &Bytes| at.value.lock_counts(name).1 == 0;
        let is_own = |name: &Bytes| at.value.lock_grant(&entry_key(name, lease), unlock.token).is_some();
        match unlock.names.iter().all(|name| is_free(name) || is_own(name)) {
            true => Ok(()),
            false => Err(errors::NOT_THE_HOLDER.into()),
        }
    }

    /// An entry as it is now, with the time that is left of its lease.
    async fn describe_holder(&self, entry: &LockEntry) -> Result<Holder, Status> {
        let member = &self.0.member;
        let view = member.view(Consistency::Linearizable);
        let (at, times) = tokio::try_join!(view, member.lease_times(vec![entry.lease])).map_err(failed)?;
        Ok(describe::entry_in(&at.value, entry, times.value.first().and_then(Option::as_ref)))
    }

    async fn busy<T>(&self, at: &At<T>, busy: BusyReply) -> Result<Response<LockResponse>, Status> {
        let holder = match &busy.holder {
            Some(entry) => Some(self.describe_holder(entry).await?),
            None => None,
        };
        Ok(Response::new(LockResponse {
            header: header(&self.0, at),
            holder,
            waiting: busy.waiting as u64,
            ..LockResponse::default()
        }))
    }
}

/// What has just been given up may still be there, on its way out: it is in nobody's way.
fn without(lease: LeaseId, mut busy: BusyReply, view: &View) -> BusyReply {
    if let Some((_, own)) = view.lock_entry(&entry_key(&busy.name, lease)) {
        match own.granted_wall_ms {
            Some(_) => drop(busy.holder.take_if(|holder| holder.key == own.key)),
            None => busy.waiting -= 1,
        }
    }
    busy
}

/// One at a time, in the order in which they come; an unknown lease ends the stream.
async fn keep_alive(
    shared: Arc<Shared>,
    mut requests: Streaming<LeaseKeepAliveRequest>,
    mut emitter: Emitter<Result<LeaseKeepAliveResponse, Status>>,
) {
    while let Ok(Some(LeaseKeepAliveRequest { id })) = requests.message().await {
        let renewed = match shared.member.keep_alive(id).await.map_err(failed) {
            Ok(at) => match at.value {
                Some(ttl_ms) => Ok(LeaseKeepAliveResponse { header: header(&shared, &at), id, ttl_ms: ttl_ms as i64 }),
                None => Err(errors::LEASE_NOT_FOUND.into()),
            },
            Err(status) => Err(status),
        };
        let failed = renewed.is_err();
        emitter.emit(renewed).await;
        if failed {
            return;
        }
    }
}

fn header<T>(shared: &Shared, at: &At<T>) -> Option<Header> {
    header_at(shared, at.revision, at.term)
}

fn header_at(shared: &Shared, revision: Revision, raft_term: u64) -> Option<Header> {
    let identity = shared.identity();
    Some(Header { cluster_id: identity.cluster, member_id: identity.member, revision, raft_term })
}

/// In the words of this service: a refusal says what to do about it.
fn failed(failure: Failure) -> Status {
    match failure {
        // Refusals whose words say what is held.
        Failure::Refused(
            refusal @ (Refusal::Deadlock { .. } | Refusal::DeadlockUnknown | Refusal::OtherMode { .. }),
        ) => Status::failed_precondition(refusal.to_string()),
        Failure::EntryEnded(cause) => {
            Status::failed_precondition(format!("the place in the queue is gone: {}", describe::end_in_words(cause)))
        }
        failure => errors::failed(failure),
    }
}
