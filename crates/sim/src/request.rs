//! What a client asks of a member, and what is remembered of a call until it is answered.

use tenure_machine::{Command, LeaseId, Lock, MemberChange, MemberId, RangeQuery, Revision};
use tenure_replica::{CallId, Consistency, Input, Read};

#[derive(Debug, Clone)]
pub enum Request {
    Propose(Command),
    Lock(Lock),
    Range(RangeQuery, Consistency),
    /// The whole state.
    View,
    KeepAlive {
        lease: LeaseId,
        epoch: u64,
    },
    TimeToLive(LeaseId),
    LeaseTimes(Vec<LeaseId>),
    ChangeMembers(MemberChange),
    TransferLeader(Option<MemberId>),
    /// Take the leader's state in the place of one's own.
    Reseed,
}

/// A call as its client sees it.
#[derive(Debug)]
pub struct Call {
    pub client: usize,
    /// Whom it was made to.
    pub member: MemberId,
    pub request: Request,
    pub issued_us: u64,
    /// Everything up to this entry of the log had taken effect somewhere when the call began.
    pub floor_index: u64,
    /// And this was the newest revision.
    pub floor: Revision,
    /// The client has given up waiting.
    pub cancelled: bool,
    /// The step of its member in which that was told so; from then on it must not answer.
    pub cancel_taken: Option<u64>,
}

impl Request {
    pub fn input(&self, call: CallId) -> Input {
        match self {
            Request::Propose(command) => Input::Propose { call, command: command.clone() },
            Request::Lock(lock) => Input::Lock { call, lock: Box::new(lock.clone()) },
            Request::Range(query, consistency) => {
                Input::Read { call, read: Read::Range(query.clone()), consistency: *consistency }
            }
            Request::View => Input::Read { call, read: Read::View, consistency: Consistency::Linearizable },
            Request::KeepAlive { lease, epoch } => Input::KeepAlive { call, lease: *lease, epoch: *epoch },
            Request::TimeToLive(lease) => {
                let read = Read::LeaseTimeToLive(*lease);
                Input::Read { call, read, consistency: Consistency::Linearizable }
            }
            Request::LeaseTimes(leases) => {
                let read = Read::LeaseTimes(leases.clone());
                Input::Read { call, read, consistency: Consistency::Linearizable }
            }
            Request::ChangeMembers(change) => Input::ChangeMembers { call, change: change.clone() },
            Request::Reseed => Input::Reseed { call },
            Request::TransferLeader(to) => Input::TransferLeader { call, to: *to },
        }
    }

    /// The command that stands in the log for it, if one does.
    pub fn command(&self) -> Option<Command> {
        match self {
            Request::Propose(command) => Some(command.clone()),
            Request::Lock(lock) => Some(Command::Lock(Box::new(lock.clone()))),
            Request::ChangeMembers(change) => Some(Command::ChangeMembers(change.clone())),
            _ => None,
        }
    }
}
