//! One member of the cluster, without its body: raft, the machine, and what waits on them.
//!
//! [`Replica::step`] takes what has happened ([`Input`]) and the time, and gives back what is to be
//! done ([`Output`]). It never waits, reads no clock, draws randomness only from the seed it was
//! given, and touches no file and no socket, so a whole cluster runs in one thread of a simulation.
#![forbid(unsafe_code)]

mod checkpoint;
mod commit;
mod compare;
pub mod config;
mod deadlines;
mod forward;
pub mod input;
mod install;
mod level;
mod load;
mod lock_watch;
mod log;
mod members;
mod message;
mod outbox;
pub mod output;
mod pace;
mod probe;
mod propose;
mod question;
mod read;
mod ready;
pub mod replica;
mod role;
mod roll_call;
mod spans;
pub mod status;
mod transfer;
mod vouch;
mod watch;

pub use config::{Boot, Config, FIRST_INDEX, FIRST_TERM, first_configuration};
pub use input::{CallId, Consistency, Input, Now, Read, StreamId, WatchId, WatchRequest};
pub use load::Load;
pub use lock_watch::{LockEvent, LockNotice, LockWatchRequest};
pub use output::{
    Answer, Answered, Failure, HardState, InstalledSnapshot, LeaseStatus, LogEntry, Notice, Output, Persist,
    SaveSnapshot, SessionNotice,
};
pub use replica::{BootError, Replica};
pub use status::{PeerStatus, Status};
pub use tenure_machine::{Member, MemberChange};
