//! What a client asks of a member, and what is remembered of a call until it is answered.

use tenure_machine::{Command, LeaseId, Lock, RangeQuery, Revision};
use tenure_replica::{CallId, Consistency, Input, Read};

#[derive(Debug, Clone)]
pub enum Request {
    Propose(Command),
    Lock(Lock),
    Range(RangeQuery, Consistency),
    /// The whole state.
    View,
    KeepAlive(LeaseId),
    TimeToLive(LeaseId),
}

/// A call as its client sees it.
#[derive(Debug)]
pub struct Call {
    pub client: usize,
    pub request: Request,
    pub issued_us: u64,
    /// The newest revision that anybody had been told of when the call began.
    pub floor: Revision,
    /// Where its command stands in the log, once it does.
    pub index: Option<u64>,
    /// The client has given up waiting.
    pub cancelled: bool,
    /// The step in which the member was told so; from then on it must not answer.
    pub cancel_taken: Option<u64>,
}

impl Request {
    pub fn input(&self, call: CallId) -> Input {
        match self {
            Request::Propose(command) => Input::Propose { call, command: command.clone() },
            Request::Lock(lock) => Input::Lock { call, lock: lock.clone() },
            Request::Range(query, consistency) => {
                Input::Read { call, read: Read::Range(query.clone()), consistency: *consistency }
            }
            Request::View => Input::Read { call, read: Read::View, consistency: Consistency::Linearizable },
            Request::KeepAlive(lease) => Input::KeepAlive { call, lease: *lease, epoch: 0 },
            Request::TimeToLive(lease) => {
                let read = Read::LeaseTimeToLive(*lease);
                Input::Read { call, read, consistency: Consistency::Linearizable }
            }
        }
    }

    /// The command that stands in the log for it, if one does.
    pub fn command(&self) -> Option<Command> {
        match self {
            Request::Propose(command) => Some(command.clone()),
            Request::Lock(lock) => Some(Command::Lock(lock.clone())),
            _ => None,
        }
    }
}
