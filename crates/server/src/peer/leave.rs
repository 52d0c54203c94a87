//! Going for good: a member that takes itself out of the cluster.
//!
//! It does not ask its own replica, which ends with the very entry that would be the answer. The leader
//! answers, who stays; a leader that leaves hands over first.

use std::time::Duration;

use tenure_api::tenure::peer::v1::leave_response::Answer;
use tenure_api::tenure::peer::v1::peer_client::PeerClient;
use tenure_api::tenure::peer::v1::refusal::Reason;
use tenure_api::tenure::peer::v1::{Hello, LeaveRequest};
use tenure_machine as machine;
use tenure_replica::{Failure, MemberChange};
use tenure_storage::Identity;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::connect;
use super::greeting::directory_bytes;
use super::listing::{from_proto, peer_address, url_of};
use super::outbox::Outbox;
use crate::config::TENURE_VERSION;
use crate::member::Member;
use crate::services::errors;

const PAUSE: Duration = Duration::from_millis(50);

/// What a member needs to take leave.
#[derive(Clone)]
pub struct Departure {
    pub(crate) identity: Identity,
    pub(crate) outbox: Outbox,
    pub(crate) patience: Duration,
    /// How long a leader may take to hear of all members: one that was elected just now knows too few.
    pub(crate) settling: Duration,
}

impl Departure {
    /// Gives the members that are left.
    pub(crate) async fn leave(&self, member: &Member) -> Result<Vec<machine::Member>, Status> {
        let own = self.identity.member_id;
        let began = Instant::now();
        loop {
            let status = member.status();
            let members = self.outbox.members();
            let address = peer_address(&members, status.leader);
            let asked = match status.leader {
                0 => Err(Unanswered::ForNow(errors::NO_LEADER.into())),
                leader if leader == own && members.iter().any(|other| other.id != own && !other.learner) => {
                    hand_over(member).await
                }
                leader if leader == own => {
                    let change = MemberChange::Remove { id: own, force: false };
                    return Ok(member.change_members(change).await.map_err(errors::failed)?.value);
                }
                leader => self.ask(leader, &address, status.applied_index).await,
            };
            match asked {
                Ok(Some(members)) => return Ok(members),
                Err(Unanswered::ForGood(status)) => return Err(status),
                Err(Unanswered::ForNow(status)) if began.elapsed() >= self.patience => return Err(status),
                Err(Unanswered::Unsettled(status)) if began.elapsed() >= self.settling => return Err(status),
                Ok(None) if began.elapsed() >= self.patience => return Err(errors::failed(Failure::LeaderChanged)),
                // Another leader may be on its way.
                Ok(None) | Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// None = somebody else leads by now.
    async fn ask(
        &self,
        leader: u64,
        address: &str,
        applied_index: u64,
    ) -> Result<Option<Vec<machine::Member>>, Unanswered> {
        let hello = Hello {
            cluster_id: self.identity.cluster_id,
            from: self.identity.member_id,
            to: leader,
            directory_id: directory_bytes(self.identity.directory_id),
            applied_index,
            highest_level: machine::level::HIGHEST,
            release: TENURE_VERSION.to_owned(),
            ..Hello::default()
        };
        let channel = connect(&url_of(address)).await;
        let channel = channel.map_err(|reason| Unanswered::ForNow(Status::unavailable(reason)))?;
        let asked = PeerClient::new(channel).leave(LeaveRequest { hello: Some(hello) }).await;
        match asked.map_err(Unanswered::judge)?.into_inner().answer {
            Some(Answer::Left(left)) => Ok(Some(left.members.into_iter().map(from_proto).collect())),
            Some(Answer::Elsewhere(_)) => Ok(None),
            // An earlier try had its effect, and its answer was lost.
            Some(Answer::Refusal(refusal)) if refusal.reason() == Reason::Removed => {
                let others = self
                    .outbox
                    .members()
                    .iter()
                    .filter(|member| member.id != self.identity.member_id)
                    .cloned()
                    .collect();
                Ok(Some(others))
            }
            // A leader that was elected just now may not have applied yet that this is a member.
            Some(Answer::Refusal(refusal)) => Err(Unanswered::ForNow(Status::failed_precondition(refusal.text))),
            None => Ok(None),
        }
    }
}

/// Has another member lead, which can then let this one go.
async fn hand_over(member: &Member) -> Result<Option<Vec<machine::Member>>, Unanswered> {
    match member.transfer_leader(None).await {
        Ok(()) => Ok(None),
        // The others may have been busy for a moment.
        Err(failure @ (Failure::BadTransferee | Failure::TimedOut)) => {
            Err(Unanswered::Unsettled(errors::failed(failure)))
        }
        Err(failure) => Err(Unanswered::ForNow(errors::failed(failure))),
    }
}

/// Why a member is not gone yet.
#[derive(Debug)]
enum Unanswered {
    ForNow(Status),
    /// Too few members seem to be there, which may only mean that the leader has not heard of them yet.
    Unsettled(Status),
    /// The leader will not have it, as when those who stay would be too few.
    ForGood(Status),
}

impl Unanswered {
    fn judge(status: Status) -> Unanswered {
        match status.code() {
            Code::FailedPrecondition if errors::is_not_enough_members(status.message()) => {
                Unanswered::Unsettled(status)
            }
            Code::FailedPrecondition | Code::NotFound | Code::InvalidArgument | Code::Unimplemented => {
                Unanswered::ForGood(status)
            }
            _ => Unanswered::ForNow(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_knows_too_few_is_asked_again() {
        let unsettled = errors::failed(Failure::NotEnoughMembers);
        assert!(matches!(Unanswered::judge(unsettled), Unanswered::Unsettled(_)));
        let refused = Status::failed_precondition("another reason");
        assert!(matches!(Unanswered::judge(refused), Unanswered::ForGood(_)));
        assert!(matches!(Unanswered::judge(errors::NO_LEADER.into()), Unanswered::ForNow(_)));
    }
}
