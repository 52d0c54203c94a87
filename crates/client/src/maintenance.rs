//! Looking after a member: status, alarms, hashes, snapshots, hand-over of leadership.

use std::sync::Arc;

use bytes::Bytes;
use tenure_api::etcdserverpb as proto;
use tenure_api::etcdserverpb::alarm_request::AlarmAction;
use tenure_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::time::Instant;
use tonic::Streaming;

use crate::call::Kind;
use crate::connection::Connection;
use crate::{Cause, Client, Error, Header, Revision};

/// How a member sees itself and the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberStatus {
    pub header: Header,
    pub version: String,
    pub size_bytes: i64,
    pub size_in_use_bytes: i64,
    /// 0 = it knows none.
    pub leader: u64,
    pub raft_index: u64,
    pub raft_applied_index: u64,
    pub is_learner: bool,
    pub errors: Vec<String>,
}

impl MemberStatus {
    pub fn is_leader(&self) -> bool {
        self.leader != 0 && self.leader == self.header.member
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmKind {
    NoSpace,
    Corrupt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    pub member: u64,
    pub kind: AlarmKind,
}

/// Equal on all members at equal revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash {
    pub hash: u32,
    pub revision: Revision,
    pub compacted: Revision,
}

impl Client {
    pub async fn status(&self) -> Result<MemberStatus, Error> {
        let call = |channel| async move { MaintenanceClient::new(channel).status(proto::StatusRequest {}).await };
        let status = self.connections.call(Kind::read("status"), call).await?;
        Ok(MemberStatus {
            header: status.header.into(),
            version: status.version,
            size_bytes: status.db_size,
            size_in_use_bytes: status.db_size_in_use,
            leader: status.leader,
            raft_index: status.raft_index,
            raft_applied_index: status.raft_applied_index,
            is_learner: status.is_learner,
            errors: status.errors,
        })
    }

    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let request = proto::AlarmRequest { action: AlarmAction::Get as i32, ..proto::AlarmRequest::default() };
        self.alarm(Kind::read("alarm list"), request).await
    }

    /// Ends an alarm, once its cause is gone.
    pub async fn disarm(&self, alarm: Alarm) -> Result<Vec<Alarm>, Error> {
        let kind = match alarm.kind {
            AlarmKind::NoSpace => proto::AlarmType::Nospace,
            AlarmKind::Corrupt => proto::AlarmType::Corrupt,
        };
        let action = AlarmAction::Deactivate as i32;
        let request = proto::AlarmRequest { action, member_id: alarm.member, alarm: kind as i32 };
        self.alarm(Kind::write("alarm disarm"), request).await
    }

    async fn alarm(&self, kind: Kind, request: proto::AlarmRequest) -> Result<Vec<Alarm>, Error> {
        let call = |channel| async move { MaintenanceClient::new(channel).alarm(request).await };
        let known = |alarm: proto::AlarmMember| {
            let kind = match alarm.alarm() {
                proto::AlarmType::None => return None,
                proto::AlarmType::Nospace => AlarmKind::NoSpace,
                proto::AlarmType::Corrupt => AlarmKind::Corrupt,
            };
            Some(Alarm { member: alarm.member_id, kind })
        };
        Ok(self.connections.call(kind, call).await?.alarms.into_iter().filter_map(known).collect())
    }

    /// The hash of all keys as of a revision; 0 = now.
    pub async fn hash(&self, revision: Revision) -> Result<Hash, Error> {
        let request = proto::HashKvRequest { revision };
        let call = |channel| async move { MaintenanceClient::new(channel).hash_kv(request).await };
        let reply = self.connections.call(Kind::read("hash"), call).await?;
        let revision = match (reply.hash_revision, revision) {
            (0, 0) => reply.header.map_or(0, |header| header.revision),
            (0, asked) => asked,
            (told, _) => told,
        };
        Ok(Hash { hash: reply.hash, revision, compacted: reply.compact_revision })
    }

    pub async fn defragment(&self) -> Result<(), Error> {
        let call =
            |channel| async move { MaintenanceClient::new(channel).defragment(proto::DefragmentRequest {}).await };
        let kind = Kind { unlimited: true, ..Kind::read("defragment") };
        self.connections.call(kind, call).await.map(drop)
    }

    pub async fn move_leader(&self, target: u64) -> Result<(), Error> {
        let request = proto::MoveLeaderRequest { target_id: target };
        let call = |channel| async move { MaintenanceClient::new(channel).move_leader(request).await };
        self.connections.call(Kind::write("move leader"), call).await.map(drop)
    }

    /// The whole state of the member that answers, as bytes.
    pub async fn snapshot(&self) -> Result<SnapshotStream, Error> {
        let call = |channel| async move {
            MaintenanceClient::new(channel)
                .max_decoding_message_size(usize::MAX)
                .snapshot(proto::SnapshotRequest {})
                .await
        };
        let (connection, stream) = self.connections.call_somewhere(KIND, call).await?;
        Ok(SnapshotStream { client: self.clone(), connection, stream, remaining: None })
    }
}

const KIND: Kind = Kind { name: "snapshot", idempotent: true, unlimited: false };

/// The pieces of a snapshot, in order. The last 32 bytes are the SHA-256 of all before them.
pub struct SnapshotStream {
    client: Client,
    connection: Arc<Connection>,
    stream: Streaming<proto::SnapshotResponse>,
    remaining: Option<u64>,
}

impl SnapshotStream {
    /// The next piece; None at the end. A break in between is an error: a snapshot starts over.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let waiting = Instant::now();
        let Some(piece) = self.connection.listen(self.stream.message()).await else {
            return Err(self.client.connections.judge_silence(&self.connection, KIND, waiting.elapsed()));
        };
        match piece {
            Ok(Some(piece)) => {
                self.remaining = Some(piece.remaining_bytes);
                Ok(Some(piece.blob))
            }
            Ok(None) if self.remaining.unwrap_or(0) > 0 => Err(Error::Lost {
                endpoint: self.connection.address.text.clone(),
                call: KIND.name,
                cause: Cause::Closed,
                unknown: false,
            }),
            Ok(None) => Ok(None),
            Err(status) => Err(self.client.connections.judge_stream(&self.connection, KIND, &status)?),
        }
    }

    /// How many bytes the server said are still to come.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    pub fn endpoint(&self) -> &str {
        &self.connection.address.text
    }
}
