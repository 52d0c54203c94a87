//! The members of the cluster. Only asking for them is possible yet.

use std::sync::Arc;

use tenure_api::etcdserverpb::cluster_server::Cluster;
use tenure_api::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
};
use tenure_machine as machine;
use tenure_replica::{Consistency, Failure};
use tonic::{Request, Response, Status};

use super::{Shared, authorize, errors};

pub struct ClusterService(pub Arc<Shared>);

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(&self, request: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        authorize("MemberAdd", request.metadata())?;
        Err(fixed())
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        authorize("MemberRemove", request.metadata())?;
        Err(fixed())
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        authorize("MemberUpdate", request.metadata())?;
        Err(fixed())
    }

    /// Linearizable whenever that is possible. Older clients have no way to ask for it and expect an
    /// answer when there is no quorum too, so what this member knows is better than nothing for them.
    async fn member_list(&self, request: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        authorize("MemberList", request.metadata())?;
        let insists = request.into_inner().linearizable;
        let member = &self.0.member;
        let at = match member.view(Consistency::Linearizable).await {
            Err(Failure::NoLeader | Failure::TimedOut | Failure::LeaderChanged) if !insists => {
                member.view(Consistency::Serializable).await
            }
            read => read,
        };
        let at = at.map_err(errors::failed)?;
        let members = at.value.members().into_iter().map(member_message).collect();
        // etcd's cluster service names no revision.
        Ok(Response::new(MemberListResponse { header: self.0.header_at(0, at.term), members }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        authorize("MemberPromote", request.metadata())?;
        Err(fixed())
    }
}

fn member_message(member: machine::Member) -> Member {
    let machine::Member { id, name, peer_urls, client_urls, learner } = member;
    Member { id, name, peer_ur_ls: peer_urls, client_ur_ls: client_urls, is_learner: learner }
}

fn fixed() -> Status {
    Status::unimplemented("tenure: the members of a running cluster cannot be changed yet")
}
