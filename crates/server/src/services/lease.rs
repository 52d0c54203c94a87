//! Leases: grant, revoke, keep alive, and what is left of one.
//!
//! etcd's API counts in whole seconds, the machine in milliseconds. A keepalive stream is pipelined:
//! a client with a thousand leases sends a thousand requests at once, all of them are put to the
//! leader without waiting for each other, and answered in the order in which they came.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tenure_api::etcdserverpb::lease_server::Lease;
use tenure_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use tenure_machine::{Command, LeaseGrant, LeaseId, Reply, View, limits};
use tenure_replica::Consistency;
use tonic::{Request, Response, Status, Streaming};

use super::errors::{self, Error};
use super::kv::unexpected;
use super::leader::LeaderLoss;
use super::produced::{Emitter, Produced, produced};
use super::{Shared, answer, authorize};
use crate::member::At;

/// Renewals of one stream that are on their way at once; beyond it no more requests are read.
const RENEWALS_IN_FLIGHT: usize = 1024;

pub struct LeaseService(pub Arc<Shared>);

#[tonic::async_trait]
impl Lease for LeaseService {
    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        authorize("LeaseGrant", request.metadata())?;
        let LeaseGrantRequest { ttl, id } = request.into_inner();
        let ttl_ms = ttl_ms(ttl, self.0.config.lease_ttl_min_seconds())?;
        let lease = if id == 0 { self.0.member.draw_lease_id() } else { id };
        let at = grant(&self.0, lease, ttl_ms).await?;
        let ttl = whole_seconds(at.value);
        Ok(Response::new(LeaseGrantResponse { header: self.0.header(&at), id: lease, ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        authorize("LeaseRevoke", request.metadata())?;
        let lease = request.into_inner().id;
        let at = self.0.member.submit(Command::LeaseRevoke { lease }).await.map_err(errors::failed)?;
        Ok(Response::new(LeaseRevokeResponse { header: self.0.header(&at) }))
    }

    type LeaseKeepAliveStream = Produced<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        authorize("LeaseKeepAlive", request.metadata())?;
        let shared = self.0.clone();
        let leader_loss = shared.leader_monitor.follow(request.metadata());
        let requests = request.into_inner();
        Ok(Response::new(produced(|emitter| keep_alive(shared, requests, leader_loss, emitter))))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        authorize("LeaseTimeToLive", request.metadata())?;
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let at = self.0.member.lease_time_to_live(id).await.map_err(errors::failed)?;
        let gone = |header| LeaseTimeToLiveResponse { header, id, ttl: -1, ..LeaseTimeToLiveResponse::default() };
        let Some(status) = at.value else { return Ok(Response::new(gone(self.0.header(&at)))) };
        let mut response = LeaseTimeToLiveResponse {
            header: self.0.header(&at),
            id,
            ttl: (status.remaining_ms / 1000) as i64,
            granted_ttl: whole_seconds(status.ttl_ms),
            keys: Vec::new(),
        };
        if keys {
            let at = self.0.member.view(Consistency::Linearizable).await.map_err(errors::failed)?;
            match at.value.lease(id) {
                Some(lease) => response.keys = lease.keys.iter().map(answer::bytes).collect(),
                // It has ended meanwhile.
                None => response = gone(self.0.header(&at)),
            }
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        authorize("LeaseLeases", request.metadata())?;
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(errors::failed)?;
        let header = self.0.header(&at);
        let view = at.value;
        // There may be a hundred thousand.
        let leases = tokio::task::spawn_blocking(move || listed(&view)).await;
        let leases = leases.map_err(|_| Status::from(errors::STOPPED))?;
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}

/// Grants a lease and gives its TTL.
pub async fn grant(shared: &Shared, lease: LeaseId, ttl_ms: u64) -> Result<At<u64>, Status> {
    let grant = LeaseGrant { lease, ttl_ms, client: Bytes::new() };
    let at = shared.member.submit(Command::LeaseGrant(grant)).await.map_err(errors::failed)?;
    match at.value {
        Reply::LeaseGranted { ttl_ms, .. } => Ok(At { value: ttl_ms, revision: at.revision, term: at.term }),
        other => Err(unexpected(&other)),
    }
}

/// Raised to the shortest one that survives an election.
fn ttl_ms(seconds: i64, least_seconds: i64) -> Result<u64, Error> {
    let ttl_ms = seconds.max(least_seconds) as u64;
    let ttl_ms = ttl_ms.checked_mul(1000).filter(|ttl_ms| *ttl_ms <= limits::LEASE_TTL_MS);
    ttl_ms.ok_or(errors::LEASE_TTL_TOO_LARGE)
}

/// Rounded up: 0 would mean that there is no such lease.
fn whole_seconds(ttl_ms: u64) -> i64 {
    ttl_ms.div_ceil(1000) as i64
}

/// Those that end soonest first, as far as this member can tell: renewals are known to the leader alone.
fn listed(view: &View) -> Vec<LeaseStatus> {
    let mut leases: Vec<_> = view.leases().map(|lease| (lease.granted_wall_ms + lease.ttl_ms, lease.lease)).collect();
    leases.sort_unstable();
    leases.into_iter().map(|(_, id)| LeaseStatus { id }).collect()
}

async fn keep_alive(
    shared: Arc<Shared>,
    mut requests: Streaming<LeaseKeepAliveRequest>,
    mut leader_loss: LeaderLoss,
    mut emitter: Emitter<Result<LeaseKeepAliveResponse, Status>>,
) {
    let mut renewals = InOrder::default();
    let mut open = true;
    while open || !renewals.is_empty() {
        tokio::select! {
            request = requests.message(), if open && renewals.len() < RENEWALS_IN_FLIGHT => match request {
                Ok(Some(request)) => {
                    let shared = shared.clone();
                    renewals.push(Box::pin(async move { renew(&shared, request.id).await })).await;
                }
                Ok(None) => open = false,
                Err(status) => return emitter.emit(Err(errors::unread(&status).unwrap_or(status))).await,
            },
            renewed = renewals.next(), if !renewals.is_empty() => {
                let failed = renewed.is_err();
                emitter.emit(renewed).await;
                if failed {
                    return;
                }
            }
            () = leader_loss.happened() => return emitter.emit(Err(errors::NO_LEADER.into())).await,
        }
    }
}

async fn renew(shared: &Shared, lease: LeaseId) -> Result<LeaseKeepAliveResponse, Status> {
    let at = shared.member.keep_alive(lease).await.map_err(errors::failed)?;
    // An unknown lease is no error: its TTL is 0.
    let ttl = at.value.map_or(0, whole_seconds);
    Ok(LeaseKeepAliveResponse { header: shared.header(&at), id: lease, ttl })
}

type Renewal = Pin<Box<dyn Future<Output = Result<LeaseKeepAliveResponse, Status>> + Send>>;

/// Futures that run at the same time and are answered in order.
#[derive(Default)]
struct InOrder {
    renewals: VecDeque<Slot>,
}

enum Slot {
    Running(Renewal),
    Done(Result<LeaseKeepAliveResponse, Status>),
}

impl InOrder {
    fn len(&self) -> usize {
        self.renewals.len()
    }

    fn is_empty(&self) -> bool {
        self.renewals.is_empty()
    }

    /// Starts it at once: a future does nothing before it is first polled.
    async fn push(&mut self, renewal: Renewal) {
        let mut slot = Slot::Running(renewal);
        poll_fn(|context| {
            slot.poll(context);
            Poll::Ready(())
        })
        .await;
        self.renewals.push_back(slot);
    }

    /// The answer to the first. Dropping this future loses nothing.
    async fn next(&mut self) -> Result<LeaseKeepAliveResponse, Status> {
        poll_fn(|context| {
            // Only the first is polled: the others keep their answers until it is their turn.
            let Some(mut first) = self.renewals.pop_front() else { return Poll::Pending };
            first.poll(context);
            match first {
                Slot::Done(answer) => Poll::Ready(answer),
                running => {
                    self.renewals.push_front(running);
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Slot {
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Slot::Running(renewal) = self
            && let Poll::Ready(answer) = renewal.as_mut().poll(context)
        {
            *self = Slot::Done(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn the_ttl_is_raised_to_the_least_and_capped() {
        assert_eq!(ttl_ms(60, 2), Ok(60_000));
        assert_eq!(ttl_ms(0, 2), Ok(2_000));
        assert_eq!(ttl_ms(-5, 2), Ok(2_000));
        assert_eq!(ttl_ms(9_000_000_000, 2), Ok(9_000_000_000_000));
        assert_eq!(ttl_ms(9_000_000_001, 2), Err(errors::LEASE_TTL_TOO_LARGE));
        assert_eq!(ttl_ms(i64::MAX, 2), Err(errors::LEASE_TTL_TOO_LARGE));
    }

    #[test]
    fn a_lease_of_less_than_a_second_is_not_told_as_gone() {
        assert_eq!(whole_seconds(500), 1);
        assert_eq!(whole_seconds(2_000), 2);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn answers_come_in_order_whatever_order_they_are_ready_in() {
        let mut in_order = InOrder::default();
        let mut senders = Vec::new();
        for _ in 0..3 {
            let (sender, receiver) = oneshot::channel::<i64>();
            senders.push(sender);
            let answer = async move {
                let id = receiver.await.expect("sent");
                Ok(LeaseKeepAliveResponse { id, ..Default::default() })
            };
            in_order.push(Box::pin(answer)).await;
        }
        let reading = tokio::spawn(async move {
            let mut ids = Vec::new();
            while !in_order.is_empty() {
                ids.push(in_order.next().await.expect("answered").id);
            }
            ids
        });
        for (id, sender) in senders.into_iter().enumerate().rev() {
            tokio::task::yield_now().await;
            sender.send(id as i64).expect("waited for");
        }
        assert_eq!(reading.await.expect("read"), [0, 1, 2]);
    }
}
