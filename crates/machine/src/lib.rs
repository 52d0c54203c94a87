//! The replicated state: what a command does.
//!
//! A [`Machine`] is a value. [`Machine::apply`] takes the next committed command and answers with
//! what the caller is told ([`Reply`] or [`Refusal`]), what watchers see ([`Commit`]), and what
//! changed for those who wait on leases and locks. It never waits, never fails, never looks at a
//! clock: two members that apply the same commands hold the same state, bit for bit.
//!
//! [`View`] is the whole state at one applied index, cloned in constant time, so that long reads,
//! snapshots and watch catch-up run elsewhere while the machine goes on.
#![forbid(unsafe_code)]

pub mod apply;
mod change;
mod check;
pub mod codec;
pub mod command;
pub mod encoding;
mod hash;
mod hash_keys;
mod lease;
pub mod level;
pub mod limits;
pub mod lock;
mod members;
mod mvcc;
mod origin;
#[cfg(feature = "planted")]
pub mod planted;
mod rebirth;
pub mod reply;
pub mod snapshot;
mod txn;
pub mod view;

pub use apply::Machine;
pub use level::Level;
pub use lock::{LockEntry, RecentHolder};
pub use view::{LeaseView, View};

pub use command::{
    Alarm, AlarmChange, AlarmKind, Command, Compare, CompareResult, CompareTarget, Delete, Envelope, Keys, LeaseGrant,
    Leave, Lock, Member, MemberChange, Mode, Op, Origin, Put, RangeQuery, SortOrder, SortTarget, Txn, Unlock,
};
pub use reply::{
    Applied, BusyReply, Commit, Event, EventKind, KeyValue, LeaseChange, LockChange, LockChanges, LockEnd, LockReply,
    OpReply, RangeReply, Refusal, Reply, TxnReply,
};

/// A key or a value as it is kept: shared between the current state, history and replies.
pub type SharedBytes = std::sync::Arc<[u8]>;
/// The store's logical clock: 1 when empty, one more with every command that writes.
pub type Revision = i64;
pub type LeaseId = i64;
pub type MemberId = u64;
