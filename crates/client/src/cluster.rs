//! The members of the cluster.

use tenure_api::etcdserverpb as proto;
use tenure_api::etcdserverpb::cluster_client::ClusterClient;
use tonic::Request;
use tonic::metadata::AsciiMetadataValue;

use crate::call::Kind;
use crate::{Client, Error, Header};

const FORCE_HEADER: &str = "tenure-force";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Empty until it has started.
    pub name: String,
    pub peer_addresses: Vec<String>,
    pub client_addresses: Vec<String>,
    pub is_learner: bool,
}

impl From<proto::Member> for Member {
    fn from(member: proto::Member) -> Member {
        Member {
            id: member.id,
            name: member.name,
            peer_addresses: member.peer_ur_ls,
            client_addresses: member.client_ur_ls,
            is_learner: member.is_learner,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    pub header: Header,
    pub members: Vec<Member>,
}

fn members(header: Option<proto::ResponseHeader>, members: Vec<proto::Member>) -> Members {
    Members { header: header.into(), members: members.into_iter().map(Member::from).collect() }
}

impl Client {
    pub async fn members(&self) -> Result<Members, Error> {
        self.list_members(true).await
    }

    /// As the member that answers knows them: it may be behind, but needs no leader.
    pub async fn known_members(&self) -> Result<Members, Error> {
        self.list_members(false).await
    }

    async fn list_members(&self, linearizable: bool) -> Result<Members, Error> {
        let request = proto::MemberListRequest { linearizable };
        let call = |channel| async move { ClusterClient::new(channel).member_list(request).await };
        let listed = self.connections.call(Kind::read("member list"), call).await?;
        Ok(members(listed.header, listed.members))
    }

    pub async fn add_member(&self, peer_addresses: Vec<String>, is_learner: bool) -> Result<Members, Error> {
        let request = proto::MemberAddRequest { peer_ur_ls: peer_addresses, is_learner };
        let call = |channel| {
            let request = request.clone();
            async move { ClusterClient::new(channel).member_add(request).await }
        };
        let added = self.connections.call(Kind::write("member add"), call).await?;
        Ok(members(added.header, added.members))
    }

    /// `force`: even if those who would be left and can be reached are too few to go on. Only Tenure knows it.
    pub async fn remove_member(&self, id: u64, force: bool) -> Result<Members, Error> {
        let call = |channel| async move {
            let mut request = Request::new(proto::MemberRemoveRequest { id });
            if force {
                request.metadata_mut().insert(FORCE_HEADER, AsciiMetadataValue::from_static("true"));
            }
            ClusterClient::new(channel).member_remove(request).await
        };
        let removed = self.connections.call(Kind::write("member remove"), call).await?;
        Ok(members(removed.header, removed.members))
    }

    /// Where the other members find it from now on.
    pub async fn update_member(&self, id: u64, peer_addresses: Vec<String>) -> Result<Members, Error> {
        let request = proto::MemberUpdateRequest { id, peer_ur_ls: peer_addresses };
        let call = |channel| {
            let request = request.clone();
            async move { ClusterClient::new(channel).member_update(request).await }
        };
        let updated = self.connections.call(Kind::write("member update"), call).await?;
        Ok(members(updated.header, updated.members))
    }

    /// Makes a learner a voter.
    pub async fn promote_member(&self, id: u64) -> Result<Members, Error> {
        let request = proto::MemberPromoteRequest { id };
        let call = |channel| async move { ClusterClient::new(channel).member_promote(request).await };
        let promoted = self.connections.call(Kind::write("member promote"), call).await?;
        Ok(members(promoted.header, promoted.members))
    }
}
