//! Which kinds of inputs and commands a run has used, which circles of owners it has come to, and what was left to
//! `Continue`. A kind that no seed ever sends is a kind that no seed can test.
//!
//! The matches are exhaustive: a new variant does not compile before it is named here, and `tests/coverage.rs` fails
//! until some seed sends it.

use std::collections::BTreeMap;

use tenure_client::requests;
use tenure_machine::{AlarmChange, Command, MemberChange, Refusal, Reply};
use tenure_replica::{Consistency, Input, LockWatchRequest, Read, WatchRequest};

/// How often each kind was seen.
pub type Counts = BTreeMap<&'static str, u64>;

macro_rules! kinds {
    ($(#[$doc:meta])* $list:ident, $name:ident, $type:ty, $($pattern:pat => $kind:literal,)*) => {
        $(#[$doc])*
        pub const $list: &[&str] = &[$($kind),*];

        pub fn $name(of: &$type) -> &'static str {
            match of {
                $($pattern => $kind,)*
            }
        }
    };
}

kinds! {
    /// Everything that a member can be given.
    INPUTS, input, Input,
    Input::Propose { .. } => "Propose",
    Input::Lock { .. } => "Lock",
    Input::Read { read: Read::Range(_), consistency: Consistency::Linearizable, .. } => "Read Range",
    Input::Read { read: Read::Range(_), consistency: Consistency::Serializable, .. } => "Read Range serializable",
    Input::Read { read: Read::View, .. } => "Read View",
    Input::Read { read: Read::LeaseTimeToLive(_), .. } => "Read LeaseTimeToLive",
    Input::Read { read: Read::LeaseTimes(_), .. } => "Read LeaseTimes",
    Input::KeepAlive { .. } => "KeepAlive",
    Input::ChangeMembers { .. } => "ChangeMembers",
    Input::TransferLeader { .. } => "TransferLeader",
    Input::Hurry { .. } => "Hurry",
    Input::Cancel { .. } => "Cancel",
    Input::CancelLock { .. } => "CancelLock",
    Input::Watch { request: WatchRequest::Create { .. }, .. } => "Watch Create",
    Input::Watch { request: WatchRequest::Cancel { .. }, .. } => "Watch Cancel",
    Input::Watch { request: WatchRequest::Resume { .. }, .. } => "Watch Resume",
    Input::Watch { request: WatchRequest::Drained { .. }, .. } => "Watch Drained",
    Input::Watch { request: WatchRequest::Progress, .. } => "Watch Progress",
    Input::Watch { request: WatchRequest::Close, .. } => "Watch Close",
    Input::LockWatch { request: LockWatchRequest::Create { .. }, .. } => "LockWatch Create",
    Input::LockWatch { request: LockWatchRequest::Cancel { .. }, .. } => "LockWatch Cancel",
    Input::LockWatch { request: LockWatchRequest::Drained { .. }, .. } => "LockWatch Drained",
    Input::LockWatch { request: LockWatchRequest::Close, .. } => "LockWatch Close",
    Input::SessionOpened { .. } => "SessionOpened",
    Input::SessionClosed { .. } => "SessionClosed",
    Input::Message { .. } => "Message",
    Input::RefusedAsRemoved { .. } => "RefusedAsRemoved",
    Input::PeerLost { .. } => "PeerLost",
    Input::Persisted { .. } => "Persisted",
    Input::SnapshotSaved { .. } => "SnapshotSaved",
    Input::SnapshotFailed { .. } => "SnapshotFailed",
    Input::StateHashed { .. } => "StateHashed",
    Input::Reseed { .. } => "Reseed",
    Input::SnapshotSent { .. } => "SnapshotSent",
    Input::SnapshotReceived { .. } => "SnapshotReceived",
}

kinds! {
    /// Everything that can stand in the log.
    COMMANDS, command, Command,
    Command::Put(_) => "command Put",
    Command::Delete(_) => "command Delete",
    Command::Txn(_) => "command Txn",
    Command::Compact { .. } => "command Compact",
    Command::LeaseGrant(_) => "command LeaseGrant",
    Command::LeaseRevoke { .. } => "command LeaseRevoke",
    Command::LeaseExpire { .. } => "command LeaseExpire",
    Command::Lock(_) => "command Lock",
    Command::Leave(_) => "command Leave",
    Command::Alarm(AlarmChange::Raise(_)) => "command Alarm Raise",
    Command::Alarm(AlarmChange::Clear(_)) => "command Alarm Clear",
    Command::Publish(_) => "command Publish",
    Command::Unlock(_) => "command Unlock",
    Command::ForceRelease { .. } => "command ForceRelease",
    Command::ForgetLock { .. } => "command ForgetLock",
    Command::ResumeSession { .. } => "command ResumeSession",
    Command::LeaseCheckpoint { .. } => "command LeaseCheckpoint",
    Command::ChangeMembers(MemberChange::Add { .. }) => "command Add",
    Command::ChangeMembers(MemberChange::Promote { .. }) => "command Promote",
    Command::ChangeMembers(MemberChange::Remove { .. }) => "command Remove",
    Command::ChangeMembers(MemberChange::Update { .. }) => "command Update",
    Command::ChangeMembers(MemberChange::Together(_)) => "command Together",
    Command::RaiseLevel { .. } => "command RaiseLevel",
    Command::CompareStates => "command CompareStates",
    Command::PinLevel { .. } => "command PinLevel",
    Command::Continue => "command Continue",
}

/// Circles of owners that a request would have closed, by the steps that the refusal tells.
pub const CIRCLES: [&str; 3] = ["circle of one", "circle of two", "circle of three or more"];

/// The kind of the circle that a refusal tells.
pub fn circle(cycle: &str) -> &'static str {
    CIRCLES[cycle.split(", ").count().clamp(1, CIRCLES.len()) - 1]
}

/// What a `Continue` has done: an earlier command has left it to this one.
pub const CONTINUED: [&str; 2] = ["Continue that deletes keys", "Continue that grants locks"];

/// The kinds of work that a reply tells.
pub fn continued(reply: &Result<Reply, Refusal>) -> impl Iterator<Item = &'static str> {
    let (deleted, granted) = match reply {
        Ok(Reply::Continued { deleted, granted }) => (*deleted, *granted),
        _ => (0, 0),
    };
    CONTINUED.into_iter().zip([deleted, granted]).filter(|(_, count)| *count > 0).map(|(kind, _)| kind)
}

kinds! {
    /// Everything that a client's requests of one session can be given.
    REQUESTS, request, requests::Input,
    requests::Input::Lock { .. } => "session Lock",
    requests::Input::Abandon { .. } => "session Abandon",
    requests::Input::Unlock { .. } => "session Unlock",
    requests::Input::Renew { .. } => "session Renew",
    requests::Input::Opening => "session Opening",
    requests::Input::Opened { .. } => "session Opened",
    requests::Input::Broken => "session Broken",
    requests::Input::Granted { .. } => "session Granted",
    requests::Input::Refused { refusal: requests::Refusal::Final, .. } => "session Refused",
    requests::Input::Refused { refusal: requests::Refusal::Overloaded, .. } => "session Refused by overload",
    requests::Input::Refused { refusal: requests::Refusal::Passing, .. } => "session Refused for now",
    requests::Input::Unlocked { .. } => "session Unlocked",
    requests::Input::Renewed { .. } => "session Renewed",
    requests::Input::Lost { .. } => "session Lost",
    requests::Input::Ended => "session Ended",
}

/// The kinds that these counts lack.
pub fn missing(counts: &Counts) -> Vec<&'static str> {
    let kinds = INPUTS.iter().chain(COMMANDS).chain(REQUESTS).chain(&CIRCLES).chain(&CONTINUED).copied();
    kinds.filter(|kind| !counts.contains_key(kind)).collect()
}
