//! The members of the cluster: who they are, who comes and who goes.

use std::sync::Arc;

use tenure_api::etcdserverpb::cluster_server::Cluster;
use tenure_api::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
    ResponseHeader,
};
use tenure_machine::{self as machine, MemberId};
use tenure_replica::{Consistency, Failure, MemberChange};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::errors::{self, Error};
use super::{Shared, authorize};
use crate::config::is_host_and_port;
use crate::member::random_u64;

/// etcd's removal has no word for it: a removal that leaves too few who can be reached is meant all the same.
const FORCE_HEADER: &str = "tenure-force";

pub struct ClusterService(pub Arc<Shared>);

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(&self, request: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        authorize("MemberAdd", request.metadata())?;
        let MemberAddRequest { peer_ur_ls, is_learner } = request.into_inner();
        let peer_urls = peer_urls(peer_ur_ls)?;
        check_free(&self.members().await?, &peer_urls, None)?;
        let id = random_u64().max(1);
        // What it is called and where clients find it, it will say itself.
        let added =
            machine::Member { id, name: String::new(), peer_urls, client_urls: Vec::new(), learner: is_learner };
        let (header, members) = self.change(MemberChange::Add { member: added.clone() }).await?;
        Ok(Response::new(MemberAddResponse { header, member: Some(member_message(added)), members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        authorize("MemberRemove", request.metadata())?;
        let force = is_forced(request.metadata());
        let id = request.into_inner().id;
        find(&self.members().await?, id)?;
        if id == self.0.identity().member && !force {
            let members = self.0.process_wide.departure.leave(&self.0.member).await?;
            let header = self.0.header_at(0, self.0.member.status().term);
            let members = members.into_iter().map(member_message).collect();
            return Ok(Response::new(MemberRemoveResponse { header, members }));
        }
        let (header, members) = self.change(MemberChange::Remove { id, force }).await?;
        Ok(Response::new(MemberRemoveResponse { header, members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        authorize("MemberUpdate", request.metadata())?;
        let MemberUpdateRequest { id, peer_ur_ls } = request.into_inner();
        let peer_urls = peer_urls(peer_ur_ls)?;
        let members = self.members().await?;
        let known = find(&members, id)?;
        check_free(&members, &peer_urls, Some(id))?;
        let member = machine::Member { peer_urls, ..known.clone() };
        let (header, members) = self.change(MemberChange::Update { member }).await?;
        Ok(Response::new(MemberUpdateResponse { header, members }))
    }

    /// Linearizable whenever that is possible. Older clients have no way to ask for it and expect an
    /// answer when there is no quorum too, so what this member knows is better than nothing for them.
    async fn member_list(&self, request: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        authorize("MemberList", request.metadata())?;
        let insists = request.into_inner().linearizable;
        let member = &self.0.member;
        // Whoever does not insist is not kept waiting for a leader that nobody knows.
        let consistency = match !insists && member.status().leader == 0 {
            true => Consistency::Serializable,
            false => Consistency::Linearizable,
        };
        let at = match member.view(consistency).await {
            // A member whose state differs still lists the others: an operator who repairs it asks for them.
            Err(Failure::NoLeader | Failure::TimedOut | Failure::LeaderChanged | Failure::Corrupt) if !insists => {
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
        let id = request.into_inner().id;
        if !find(&self.members().await?, id)?.learner {
            return Err(errors::MEMBER_NOT_LEARNER.into());
        }
        let (header, members) = self.change(MemberChange::Promote { id }).await?;
        Ok(Response::new(MemberPromoteResponse { header, members }))
    }
}

impl ClusterService {
    /// As they are now: what is refused is refused for a reason that holds.
    async fn members(&self) -> Result<Vec<machine::Member>, Status> {
        let at = self.0.member.view(Consistency::Linearizable).await.map_err(errors::failed)?;
        Ok(at.value.members())
    }

    async fn change(&self, change: MemberChange) -> Result<(Option<ResponseHeader>, Vec<Member>), Status> {
        let at = self.0.member.change_members(change).await.map_err(errors::failed)?;
        Ok((self.0.header_at(0, at.term), at.value.into_iter().map(member_message).collect()))
    }
}

fn find(members: &[machine::Member], id: MemberId) -> Result<&machine::Member, Error> {
    members.iter().find(|member| member.id == id).ok_or(errors::MEMBER_NOT_FOUND)
}

/// Nobody but the member itself may be at these addresses.
fn check_free(members: &[machine::Member], urls: &[String], own: Option<MemberId>) -> Result<(), Error> {
    let others = members.iter().filter(|member| Some(member.id) != own);
    match others.flat_map(|member| &member.peer_urls).any(|url| urls.contains(url)) {
        true => Err(errors::PEER_URL_EXISTS),
        false => Ok(()),
    }
}

/// As etcd takes them: at least one, each with a scheme and a port and without a path; in order.
fn peer_urls(urls: Vec<String>) -> Result<Vec<String>, Error> {
    let is_sound = |url: &String| {
        let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        address.is_some_and(is_host_and_port)
    };
    let mut urls: Vec<String> = urls.into_iter().map(|url| url.trim().to_owned()).collect();
    urls.sort_unstable();
    match !urls.is_empty() && urls.iter().all(is_sound) {
        true => Ok(urls),
        false => Err(errors::MEMBER_BAD_URLS),
    }
}

fn is_forced(metadata: &MetadataMap) -> bool {
    metadata.get(FORCE_HEADER).is_some_and(|value| value == "true")
}

fn member_message(member: machine::Member) -> Member {
    let machine::Member { id, name, peer_urls, client_urls, learner } = member;
    Member { id, name, peer_ur_ls: peer_urls, client_ur_ls: client_urls, is_learner: learner }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(urls: &[&str]) -> Result<Vec<String>, Error> {
        peer_urls(urls.iter().map(|url| url.to_string()).collect())
    }

    #[test]
    fn peer_urls_are_checked_as_etcd_checks_them() {
        assert_eq!(urls(&[" http://b:2", "http://a:1"]).unwrap(), ["http://a:1", "http://b:2"]);
        for bad in [&[][..], &["a:1"], &["http://a"], &["http://a:1/"], &["ftp://a:1"], &["http://a:1", ""]] {
            assert_eq!(urls(bad), Err(errors::MEMBER_BAD_URLS), "{bad:?}");
        }
    }
}
