//! Who comes and who goes: what a leader does for members that join and leave, and where others send them.

use tenure_api::tenure::peer::v1::join_response::Answer as JoinAnswer;
use tenure_api::tenure::peer::v1::leave_response::Answer as LeaveAnswer;
use tenure_api::tenure::peer::v1::{
    FetchPeersResponse, JoinRequest, JoinResponse, Joined, LeaderHint, LeaveRequest, LeaveResponse, Left,
};
use tenure_machine::{Member, MemberId};
use tenure_replica::{Failure, MemberChange};
use tonic::Status;

use super::Host;
use super::greeting::{Greeter, directory_of, outdated};
use super::listing::{peer_address, to_proto, url_of};
use crate::config::{is_host_and_port, is_member_name};
use crate::member::random_u64;
use crate::services::errors;

#[derive(Clone)]
pub(crate) struct Admission<H> {
    greeter: Greeter<H>,
}

impl<H: Host> Admission<H> {
    pub(crate) fn new(greeter: Greeter<H>) -> Admission<H> {
        Admission { greeter }
    }

    /// What this member knows; it need not be the latest.
    pub(crate) fn peers(&self) -> FetchPeersResponse {
        FetchPeersResponse {
            cluster_id: self.greeter.identity.cluster_id,
            member_id: self.greeter.identity.member_id,
            term: self.greeter.host.status().term,
            leader: Some(self.hint()),
            members: self.greeter.outbox.members().iter().cloned().map(to_proto).collect(),
        }
    }

    pub(crate) async fn join(&self, request: JoinRequest) -> Result<JoinResponse, Status> {
        let is_sound = is_member_name(&request.name)
            && is_host_and_port(&request.peer_address)
            && is_host_and_port(&request.client_address)
            && directory_of(&request.directory_id).is_some();
        if !is_sound {
            return Err(Status::invalid_argument("who joins says its name and its two addresses as host:port"));
        }
        let level = self.greeter.host.status().level;
        if let Some(text) = outdated(level, request.highest_level, &request.release) {
            return Err(Status::failed_precondition(text));
        }
        let answer = match self.admit(&request).await {
            Ok((id, members)) => {
                tracing::info!(name = request.name, id = format!("{id:x}"), "a member joins");
                JoinAnswer::Joined(Joined {
                    cluster_id: self.greeter.identity.cluster_id,
                    member_id: id,
                    leader_id: self.greeter.identity.member_id,
                    members: members.into_iter().map(to_proto).collect(),
                })
            }
            Err(Denied::Elsewhere) => JoinAnswer::Elsewhere(self.hint()),
            Err(Denied::Refused(status)) => return Err(status),
        };
        Ok(JoinResponse { term: self.greeter.host.status().term, answer: Some(answer) })
    }

    async fn admit(&self, request: &JoinRequest) -> Result<(MemberId, Vec<Member>), Denied> {
        if let Some(admitted) = self.missing_voter(request) {
            return Ok(admitted);
        }
        self.check_leading()?;
        let members = self.greeter.host.members().await?;
        let url = url_of(&request.peer_address);
        let client_urls = vec![url_of(&request.client_address)];
        let Some(listed) = members.iter().find(|member| member.peer_urls.contains(&url)) else {
            if members.iter().any(|member| member.name == request.name) {
                return Err(Denied::Refused(Status::already_exists(format!(
                    "a member named {} exists already, at another address: choose another --name, or remove that one first",
                    request.name
                ))));
            }
            let id = random_u64().max(1);
            let name = request.name.clone();
            let member = Member { id, name, peer_urls: vec![url], client_urls, learner: true };
            return Ok((id, self.greeter.host.change_members(MemberChange::Add { member }).await?));
        };
        // Added beforehand by an operator, or by an earlier try whose answer was lost: it has never been seen.
        if self.greeter.known.directory_of(listed.id).is_none() && listed.id != self.greeter.identity.member_id {
            return Ok((listed.id, members));
        }
        Err(Denied::Refused(Status::already_exists(format!(
            "{} is the address of member {:x} ({}): if its disk was lost, remove it first",
            request.peer_address, listed.id, listed.name
        ))))
    }

    /// The member that asks, if the cluster cannot go on without it: a voter that was added to a cluster of one and
    /// has never been seen. No leader can be asked then, because its vote is needed to elect one.
    ///
    /// What this member knows is enough. It is the only other voter, so nothing was committed with the newcomer's
    /// help that this member has not seen: a member that comes back without its disk is not taken for a new one.
    fn missing_voter(&self, request: &JoinRequest) -> Option<(MemberId, Vec<Member>)> {
        let own = self.greeter.identity.member_id;
        let members = self.greeter.outbox.members();
        let mut voters = members.iter().filter(|member| !member.learner);
        let (first, second) = (voters.next()?, voters.next()?);
        let is_pair = voters.next().is_none();
        let newcomer = match own {
            own if own == first.id => second,
            own if own == second.id => first,
            _ => return None,
        };
        let is_meant = newcomer.peer_urls.contains(&url_of(&request.peer_address));
        let is_unseen = self.greeter.known.directory_of(newcomer.id).is_none();
        (is_pair && is_meant && is_unseen).then(|| (newcomer.id, members.to_vec()))
    }

    pub(crate) async fn leave(&self, request: LeaveRequest) -> Result<LeaveResponse, Status> {
        let hello = request.hello.ok_or_else(|| Status::invalid_argument("who leaves says who it is"))?;
        let answer = match self.greeter.receive(&hello).await {
            Err(refusal) => LeaveAnswer::Refusal(refusal),
            Ok(_) => match self.dismiss(hello.from).await {
                Ok(members) => LeaveAnswer::Left(Left { members: members.into_iter().map(to_proto).collect() }),
                Err(Denied::Elsewhere) => LeaveAnswer::Elsewhere(self.hint()),
                Err(Denied::Refused(status)) => return Err(status),
            },
        };
        Ok(LeaveResponse { answer: Some(answer) })
    }

    async fn dismiss(&self, id: MemberId) -> Result<Vec<Member>, Denied> {
        self.check_leading()?;
        tracing::info!(id = format!("{id:x}"), "a member leaves");
        Ok(self.greeter.host.change_members(MemberChange::Remove { id, force: false }).await?)
    }

    fn check_leading(&self) -> Result<(), Denied> {
        let status = self.greeter.host.status();
        if status.leader == status.member { Ok(()) } else { Err(Denied::Elsewhere) }
    }

    fn hint(&self) -> LeaderHint {
        let leader_id = self.greeter.host.status().leader;
        LeaderHint { leader_id, peer_address: peer_address(&self.greeter.outbox.members(), leader_id) }
    }
}

/// Why somebody is not let in, or not let go.
enum Denied {
    /// This member does not lead, or not any more.
    Elsewhere,
    Refused(Status),
}

impl From<Failure> for Denied {
    fn from(failure: Failure) -> Denied {
        match failure {
            Failure::NoLeader | Failure::LeaderChanged => Denied::Elsewhere,
            failure => Denied::Refused(errors::failed(failure)),
        }
    }
}
