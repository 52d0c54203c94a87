//! Who calls whom, and whether the two belong together.

use bytes::Bytes;
use tenure_api::tenure::peer::v1::refusal::Reason;
use tenure_api::tenure::peer::v1::{Hello, Refusal, Welcome};
use tenure_machine::{Level, MemberId};
use tenure_replica::Input;
use tenure_storage::{Fault, Identity, Meeting, OsDisk, Peers};

use super::Host;
use super::outbox::Outbox;
use crate::config::TENURE_VERSION;

/// What a member needs to introduce itself and to know others again.
#[derive(Clone)]
pub(crate) struct Greeter<H> {
    pub(crate) identity: Identity,
    pub(crate) host: H,
    pub(crate) known: Peers<OsDisk>,
    pub(crate) outbox: Outbox,
}

/// Why two members do not talk to each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unwelcome {
    /// By the one that was called.
    #[error("it refuses this member: {text}")]
    Refused { reason: Reason, text: String },
    /// By the caller.
    #[error("{0}")]
    Stranger(String),
    /// By the caller: it must not append what it does not understand.
    #[error("{0}")]
    Level(String),
    #[error("it answered out of turn")]
    Malformed,
    #[error("its identity could not be written down: {0}")]
    Unwritten(String),
}

impl<H: Host> Greeter<H> {
    pub(crate) fn hello(&self, to: MemberId) -> Hello {
        let status = self.host.status();
        Hello {
            cluster_id: self.identity.cluster_id,
            from: self.identity.member_id,
            to,
            directory_id: directory_bytes(self.identity.directory_id),
            applied_index: status.applied_index,
            level: status.level,
            highest_level: status.highest_level,
            release: TENURE_VERSION.to_owned(),
        }
    }

    /// Judges a caller.
    pub(crate) async fn receive(&self, hello: &Hello) -> Result<Welcome, Refusal> {
        let Identity { cluster_id, member_id, directory_id } = self.identity;
        if hello.cluster_id != cluster_id {
            let text = format!("this is a member of cluster {cluster_id:x}, not of {:x}", hello.cluster_id);
            return Err(refusal(Reason::OtherCluster, text));
        }
        if hello.to != member_id {
            return Err(refusal(Reason::OtherMember, format!("this is member {member_id:x}, not {:x}", hello.to)));
        }
        if hello.from == member_id {
            let text = format!("this is member {member_id:x} itself: one of the members' addresses is wrong");
            return Err(refusal(Reason::OtherMember, text));
        }
        // Before the members: whoever joined or left up to here is in the list that is looked at then.
        let applied_index = self.host.status().applied_index;
        if !self.outbox.members().iter().any(|member| member.id == hello.from) {
            return Err(match hello.applied_index {
                1.. if hello.applied_index <= applied_index => {
                    let text = format!("member {:x} was removed from the cluster", hello.from);
                    refusal(Reason::Removed, text)
                }
                _ => refusal(Reason::NotAMember, format!("member {:x} is not known here, or not yet", hello.from)),
            });
        }
        let status = self.host.status();
        if let Some(text) = outdated(status.level, hello.highest_level, &hello.release) {
            return Err(refusal(Reason::Level, text));
        }
        let Some(directory) = directory_of(&hello.directory_id) else {
            return Err(refusal(Reason::Unknown, "the id of a data directory has 16 bytes".to_owned()));
        };
        match self.meet(hello.from, directory).await {
            Ok(Meeting::First | Meeting::Again) => Ok(Welcome {
                directory_id: directory_bytes(directory_id),
                level: status.level,
                highest_level: status.highest_level,
                release: TENURE_VERSION.to_owned(),
            }),
            Ok(Meeting::Stranger { .. }) => {
                Err(refusal(Reason::OtherDirectory, format!("{}; {ADVICE}", self.stranger(hello.from))))
            }
            Err(fault) => {
                tracing::error!(%fault, "the identity of a peer could not be written down");
                Err(refusal(Reason::Unknown, "the caller's identity could not be written down".to_owned()))
            }
        }
    }

    /// Judges the one that was called, by its answer.
    pub(crate) async fn accept(&self, to: MemberId, welcome: &Welcome) -> Result<(), Unwelcome> {
        let directory = directory_of(&welcome.directory_id).ok_or(Unwelcome::Malformed)?;
        let highest = self.host.status().highest_level;
        if welcome.level > highest {
            let (level, release) = (welcome.level, &welcome.release);
            return Err(Unwelcome::Level(format!(
                "it is at feature level {level}, and this member supports no level above {highest}: \
                 run Tenure {release} or a later release"
            )));
        }
        match self.meet(to, directory).await {
            Ok(Meeting::First | Meeting::Again) => Ok(()),
            Ok(Meeting::Stranger { .. }) => Err(Unwelcome::Stranger(format!("{}; {ADVICE}", self.stranger(to)))),
            Err(fault) => Err(Unwelcome::Unwritten(fault.to_string())),
        }
    }

    /// What a refusal means for this member. Some end it.
    pub(crate) fn refused(&self, by: MemberId, refusal: Refusal) -> Unwelcome {
        let reason = refusal.reason();
        match reason {
            Reason::Removed => self.host.deliver(Input::RefusedAsRemoved { by }),
            // Somebody has seen this member alive in another directory: what it voted for there is lost, and
            // those who have not met it yet must not count its votes either.
            Reason::OtherDirectory => self.host.stop_as_stranger(refusal.text.clone()),
            _ => {}
        }
        Unwelcome::Refused { reason, text: refusal.text }
    }

    /// The file is written at first contact only, but never on this thread.
    async fn meet(&self, member: MemberId, directory: u128) -> Result<Meeting, Fault> {
        match self.known.directory_of(member) {
            Some(known) if known == directory => return Ok(Meeting::Again),
            Some(known) => return Ok(Meeting::Stranger { known }),
            None => {}
        }
        let known = self.known.clone();
        let met = tokio::task::spawn_blocking(move || known.meet(member, directory)).await;
        met.unwrap_or_else(|_| Err(Fault::Poisoned { cause: "the member is stopping".to_owned() }))
    }

    fn stranger(&self, member: MemberId) -> String {
        let members = self.outbox.members();
        let name = members.iter().find(|known| known.id == member).map_or("", |known| known.name.as_str());
        format!("member {member:x} ({name}) came back with another data directory than it had")
    }
}

const ADVICE: &str = "if its disk was lost, remove it from the cluster and let it join as a new member";

/// Why a caller cannot take part in a cluster at this feature level.
pub(crate) fn outdated(level: Level, highest: Level, release: &str) -> Option<String> {
    let runs = match release {
        "" => "an earlier release".to_owned(),
        release => format!("Tenure {release}"),
    };
    (highest < level).then(|| {
        format!(
            "the cluster is at feature level {level}; the caller runs {runs}, which supports no level above {highest}: \
             run Tenure {TENURE_VERSION} or a later release"
        )
    })
}

pub(crate) fn refusal(reason: Reason, text: String) -> Refusal {
    Refusal { reason: reason.into(), text }
}

pub(crate) fn directory_bytes(directory_id: u128) -> Bytes {
    Bytes::copy_from_slice(&directory_id.to_be_bytes())
}

pub(crate) fn directory_of(bytes: &[u8]) -> Option<u128> {
    bytes.try_into().ok().map(u128::from_be_bytes)
}
