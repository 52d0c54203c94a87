//! etcd's election service: Campaign, Proclaim, Leader, Observe, Resign.
//!
//! An election is a lock whose entries carry a value: who holds it leads, and the value is what it
//! proclaims. The leader of an election is therefore the holder of the lock of the same name, and a
//! key beneath the name that is no entry never leads.

use std::sync::Arc;

use bytes::Bytes;
use tenure_api::v3electionpb::election_server::Election;
use tenure_api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ProclaimResponse,
    ResignRequest, ResignResponse,
};
use tenure_machine::{
    Command, Compare, CompareResult, CompareTarget, Delete, KeyValue, Keys, LeaseId, LockEntry, LockReply, Op, Put,
    Reply, Revision, Txn, TxnReply, View,
};
use tenure_replica::{Consistency, Failure};
use tonic::{Request, Response, Status};

use super::errors::{self, within};
use super::kv::unexpected;
use super::lock::{Place, session, take_place};
use super::observe_election::{Leading, Words, observe};
use super::produced::{Produced, produced};
use super::{Shared, answer, authorize};
use crate::member::At;

pub struct ElectionService(pub Arc<Shared>);

#[tonic::async_trait]
impl Election for ElectionService {
    /// Returns when the caller leads. A call that is cancelled drops this future, and with it its
    /// candidacy.
    async fn campaign(&self, request: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        authorize("Campaign", request.metadata())?;
        let CampaignRequest { name, lease, value } = request.into_inner();
        let lease = session(&self.0, lease).await?;
        let at = take_place(&self.0, Place { name: name.clone(), lease, value, overwrite: true }).await?;
        let header = self.0.header_at(self.entered(&at).await?, at.term);
        let leader = LeaderKey { name, key: answer::bytes(&at.value.key), rev: at.value.token, lease };
        Ok(Response::new(CampaignResponse { header, leader: Some(leader) }))
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Result<Response<ProclaimResponse>, Status> {
        authorize("Proclaim", request.metadata())?;
        let ProclaimRequest { leader, value } = request.into_inner();
        let LeaderKey { key, rev, lease, .. } = named(leader)?;
        let lease = session(&self.0, lease).await?;
        let at = if_entry(&self.0, key.clone(), rev, put(key, value, lease), errors::failed_within).await?;
        match at.value.succeeded {
            true => Ok(Response::new(ProclaimResponse { header: self.0.header(&at) })),
            false => Err(errors::ELECTION_NOT_LEADER.into()),
        }
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        authorize("Leader", request.metadata())?;
        let name = request.into_inner().name;
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(errors::failed_within)?;
        match leader(&at.value, &name) {
            Some((_, kv)) => {
                let kv = Some(answer::key_value(kv, false));
                Ok(Response::new(LeaderResponse { header: self.0.header(&at), kv }))
            }
            None => Err(errors::ELECTION_NO_LEADER.into()),
        }
    }

    type ObserveStream = Produced<Result<LeaderResponse, Status>>;

    async fn observe(&self, request: Request<LeaderRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        authorize("Observe", request.metadata())?;
        let shared = self.0.clone();
        let leader_loss = shared.leader_monitor.follow(request.metadata());
        let name = request.into_inner().name;
        let words = Words { leading: observed, failed: errors::failed_within };
        Ok(Response::new(produced(|emitter| observe(shared, name, words, leader_loss, emitter))))
    }

    /// Whoever does not lead any more has nothing to give up, and is told that all is well.
    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        authorize("Resign", request.metadata())?;
        let LeaderKey { key, rev, .. } = named(request.into_inner().leader)?;
        let delete = Delete { keys: Keys::One(key.clone()), prev_kv: false };
        let at = if_entry(&self.0, key, rev, Op::Delete(delete), errors::failed_within).await?;
        Ok(Response::new(ResignResponse { header: self.0.header(&at) }))
    }
}

impl ElectionService {
    /// The revision that etcd's header of a campaign names: that of taking the place, not of winning;
    /// and where the place was taken already, the one before the new value was written.
    async fn entered(&self, at: &At<LockReply>) -> Result<Revision, Status> {
        if !at.value.renewed {
            return Ok(at.value.token);
        }
        let now = self.0.member.view(Consistency::Serializable).await.map_err(errors::failed_within)?;
        let entry = now.value.get(&at.value.key);
        let overwritten = entry.is_some_and(|kv| kv.mod_revision == at.revision && kv.version > 1);
        Ok(if overwritten { at.revision - 1 } else { at.revision })
    }
}

/// The entry that leads the election `name`, and its key.
pub fn leader<'a>(view: &'a View, name: &[u8]) -> Option<(&'a Arc<LockEntry>, &'a Arc<KeyValue>)> {
    let first = view.lock_queue(name).next().filter(|first| first.granted_wall_ms.is_some())?;
    Some((first, view.get(&first.key)?))
}

/// What a leader proclaims.
pub fn put(key: Bytes, value: Bytes, lease: LeaseId) -> Op {
    Op::Put(Put { key, value, lease, prev_kv: false, ignore_value: false, ignore_lease: false })
}

/// Does `op` if `key` is still the entry that was created at `revision`.
pub async fn if_entry(
    shared: &Shared,
    key: Bytes,
    revision: Revision,
    op: Op,
    failed: fn(Failure) -> Status,
) -> Result<At<TxnReply>, Status> {
    let compare =
        Compare { keys: Keys::One(key), result: CompareResult::Equal, target: CompareTarget::CreateRevision(revision) };
    let txn = Txn { compare: vec![compare], success: vec![op], failure: Vec::new() };
    let At { value, revision, term } = shared.member.submit(Command::Txn(txn)).await.map_err(failed)?;
    match value {
        Reply::Txn(value) => Ok(At { value, revision, term }),
        other => Err(unexpected(&other)),
    }
}

fn observed(shared: &Shared, leading: &Leading) -> LeaderResponse {
    let header = shared.header_at(leading.revision, leading.term);
    LeaderResponse { header, kv: Some(leading.kv.clone()) }
}

fn named(leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    let leader = leader.ok_or(errors::LEADER_FIELD_MISSING)?;
    match leader.key.is_empty() {
        true => Err(within(errors::EMPTY_KEY)),
        false => Ok(leader),
    }
}
