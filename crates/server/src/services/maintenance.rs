//! What operators ask: status, alarms, hashes, a backup, another leader.

use std::sync::Arc;

use tenure_api::etcdserverpb::alarm_request::AlarmAction;
use tenure_api::etcdserverpb::maintenance_server::Maintenance;
use tenure_api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeRequest,
    DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
use tenure_machine::{Alarm, AlarmChange, AlarmKind, Command, Reply};
use tenure_replica::Consistency;
use tonic::{Request, Response, Status};

use super::kv::unexpected;
use super::produced::{Produced, produced};
use super::{Shared, authorize, errors, snapshot};
use crate::config::ETCD_VERSION;

pub struct MaintenanceService(pub Arc<Shared>);

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        authorize("Alarm", request.metadata())?;
        let AlarmRequest { action, member_id, alarm } = request.into_inner();
        let kind = match AlarmType::try_from(alarm) {
            Ok(AlarmType::None) => None,
            Ok(AlarmType::Nospace) => Some(AlarmKind::NoSpace),
            Ok(AlarmType::Corrupt) => Some(AlarmKind::Corrupt),
            Err(_) => return Err(Status::invalid_argument("tenure: unknown alarm")),
        };
        let change = match (AlarmAction::try_from(action), kind) {
            (Ok(AlarmAction::Get), _) => return self.alarms(kind).await,
            (Ok(AlarmAction::Activate), Some(kind)) => AlarmChange::Raise(Alarm { member: member_id, kind }),
            (Ok(AlarmAction::Deactivate), Some(kind)) => AlarmChange::Clear(Alarm { member: member_id, kind }),
            // No alarm is none to change.
            (Ok(_), None) => {
                return Ok(Response::new(AlarmResponse { header: self.0.header_now(), alarms: Vec::new() }));
            }
            (Err(_), _) => return Err(Status::invalid_argument("tenure: unknown alarm action")),
        };
        let at = self.0.member.submit(Command::Alarm(change)).await.map_err(errors::failed)?;
        let header = self.0.header(&at);
        match at.value {
            Reply::Alarms(alarms) => {
                let alarms = alarms.into_iter().map(alarm_message).collect();
                Ok(Response::new(AlarmResponse { header, alarms }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        authorize("Status", request.metadata())?;
        let at = self.0.member.view(Consistency::Serializable).await.map_err(errors::failed)?;
        let status = self.0.member.status();
        let no_leader = (status.leader == 0).then(|| errors::NO_LEADER.1.to_owned());
        let alarms = at.value.alarms().into_iter().map(alarm_text);
        Ok(Response::new(StatusResponse {
            header: self.0.header_at(at.revision, status.term),
            version: ETCD_VERSION.to_owned(),
            db_size: status.bytes as i64,
            leader: status.leader,
            raft_index: status.commit_index,
            raft_term: status.term,
            raft_applied_index: status.applied_index,
            errors: no_leader.into_iter().chain(alarms).collect(),
            db_size_in_use: status.bytes_live as i64,
            is_learner: status.learner,
            storage_version: String::new(),
            db_size_quota: self.0.config.quota as i64,
            downgrade_info: None,
        }))
    }

    /// There are no holes to close: what is deleted is freed. etcd's answer has no header.
    async fn defragment(&self, request: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        authorize("Defragment", request.metadata())?;
        Ok(Response::new(DefragmentResponse::default()))
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        authorize("Hash", request.metadata())?;
        let at = self.0.member.view(Consistency::Serializable).await.map_err(errors::failed)?;
        let header = self.0.header(&at);
        let view = at.value;
        let hash = elsewhere(move || view.hash()).await?;
        Ok(Response::new(HashResponse { header, hash: (hash ^ (hash >> 32)) as u32 }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        authorize("HashKV", request.metadata())?;
        let revision = request.into_inner().revision;
        // What this member has, not what the cluster agreed on: the difference is what one looks for.
        let at = self.0.member.view(Consistency::Serializable).await.map_err(errors::failed)?;
        let header = self.0.header(&at);
        let hash_revision = if revision > 0 { revision } else { at.revision };
        let view = at.value;
        let hashed = elsewhere(move || view.hash_keys(revision)).await?;
        let (hash, compact_revision) = hashed.map_err(errors::refused)?;
        Ok(Response::new(HashKvResponse { header, hash, compact_revision, hash_revision }))
    }

    type SnapshotStream = Produced<Result<SnapshotResponse, Status>>;

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        authorize("Snapshot", request.metadata())?;
        let at = self.0.member.view(Consistency::Serializable).await.map_err(errors::failed)?;
        Ok(Response::new(produced(|emitter| snapshot::send(at.value, emitter))))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        authorize("MoveLeader", request.metadata())?;
        let target = request.into_inner().target_id;
        let status = self.0.member.status();
        if status.leader != status.member {
            return Err(errors::NOT_LEADER.into());
        }
        if target == status.leader {
            return Ok(Response::new(MoveLeaderResponse::default()));
        }
        let at = self.0.member.view(Consistency::Serializable).await.map_err(errors::failed)?;
        let can_lead = at.value.members().iter().any(|member| member.id == target && !member.learner);
        if !can_lead {
            return Err(errors::BAD_LEADER_TRANSFEREE.into());
        }
        self.0.member.transfer_leader(Some(target)).await.map_err(errors::failed)?;
        Ok(Response::new(MoveLeaderResponse::default()))
    }

    /// As a server answers that has never heard of it.
    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        authorize("Downgrade", request.metadata())?;
        Err(Status::unimplemented("unknown method Downgrade for service etcdserverpb.Maintenance"))
    }
}

impl MaintenanceService {
    /// Those of one kind, or all.
    async fn alarms(&self, kind: Option<AlarmKind>) -> Result<Response<AlarmResponse>, Status> {
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(errors::failed)?;
        let alarms = at.value.alarms().into_iter().filter(|alarm| kind.is_none_or(|kind| alarm.kind == kind));
        Ok(Response::new(AlarmResponse { header: self.0.header(&at), alarms: alarms.map(alarm_message).collect() }))
    }
}

/// Walks the whole state: not on a network thread.
async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    // Fails only while the runtime is going down.
    tokio::task::spawn_blocking(work).await.map_err(|_| errors::STOPPED.into())
}

fn alarm_type(kind: AlarmKind) -> AlarmType {
    match kind {
        AlarmKind::NoSpace => AlarmType::Nospace,
        AlarmKind::Corrupt => AlarmType::Corrupt,
    }
}

fn alarm_message(alarm: Alarm) -> AlarmMember {
    AlarmMember { member_id: alarm.member, alarm: alarm_type(alarm.kind).into() }
}

/// As etcd prints an alarm among the errors of a status, with the space at its end.
fn alarm_text(alarm: Alarm) -> String {
    format!("memberID:{} alarm:{} ", alarm.member, alarm_type(alarm.kind).as_str_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_read_as_etcd_prints_them() {
        assert_eq!(alarm_text(Alarm { member: 7, kind: AlarmKind::NoSpace }), "memberID:7 alarm:NOSPACE ");
        assert_eq!(alarm_text(Alarm { member: 8, kind: AlarmKind::Corrupt }), "memberID:8 alarm:CORRUPT ");
    }
}
