//! What etcd says when it says no.
//!
//! Go clients recognise an error by its text and retry by its code, so both are etcd's
//! (`rpctypes/error.go`) to the letter. What etcd has no word for is ours and starts with `tenure:`.

use tenure_machine::Refusal;
use tenure_replica::Failure;
use tonic::{Code, Status};

/// A code with its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error(pub Code, pub &'static str);

pub const EMPTY_KEY: Error = Error(Code::InvalidArgument, "etcdserver: key is not provided");
pub const KEY_NOT_FOUND: Error = Error(Code::InvalidArgument, "etcdserver: key not found");
pub const VALUE_PROVIDED: Error = Error(Code::InvalidArgument, "etcdserver: value is provided");
pub const LEASE_PROVIDED: Error = Error(Code::InvalidArgument, "etcdserver: lease is provided");
pub const TOO_MANY_OPERATIONS: Error = Error(Code::InvalidArgument, "etcdserver: too many operations in txn request");
pub const DUPLICATE_KEY: Error = Error(Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
pub const INVALID_SORT: Error = Error(Code::InvalidArgument, "etcdserver: invalid sort option");
pub const TOO_LARGE: Error = Error(Code::InvalidArgument, "etcdserver: request is too large");
pub const COMPACTED: Error = Error(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
pub const FUTURE_REVISION: Error = Error(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
pub const NO_SPACE: Error = Error(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
pub const TOO_MANY_REQUESTS: Error = Error(Code::ResourceExhausted, "etcdserver: too many requests");
pub const LEASE_NOT_FOUND: Error = Error(Code::NotFound, "etcdserver: requested lease not found");
pub const LEASE_EXISTS: Error = Error(Code::FailedPrecondition, "etcdserver: lease already exists");
pub const LEASE_TTL_TOO_LARGE: Error = Error(Code::OutOfRange, "etcdserver: too large lease TTL");
pub const NO_LEADER: Error = Error(Code::Unavailable, "etcdserver: no leader");
pub const LEADER_CHANGED: Error = Error(Code::Unavailable, "etcdserver: leader changed");
const OUTCOME_UNKNOWN: Error =
    Error(Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure");
pub const TIMED_OUT: Error = Error(Code::Unavailable, "etcdserver: request timed out");
pub const STOPPED: Error = Error(Code::Unavailable, "etcdserver: server stopped");
pub const CORRUPT: Error = Error(Code::DataLoss, "etcdserver: corrupt cluster");
pub const NOT_LEADER: Error = Error(Code::FailedPrecondition, "etcdserver: not leader");
pub const BAD_LEADER_TRANSFEREE: Error = Error(Code::FailedPrecondition, "etcdserver: bad leader transferee");
const MEMBER_EXISTS: Error = Error(Code::FailedPrecondition, "etcdserver: member ID already exist");
pub const PEER_URL_EXISTS: Error = Error(Code::FailedPrecondition, "etcdserver: Peer URLs already exists");
const NOT_ENOUGH_STARTED: Error =
    Error(Code::FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members");
pub const MEMBER_BAD_URLS: Error = Error(Code::InvalidArgument, "etcdserver: given member URLs are invalid");
pub const MEMBER_NOT_FOUND: Error = Error(Code::NotFound, "etcdserver: member not found");
pub const MEMBER_NOT_LEARNER: Error = Error(Code::FailedPrecondition, "etcdserver: can only promote a learner member");
const LEARNER_NOT_READY: Error =
    Error(Code::FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader");
pub const AUTH_NOT_ENABLED: Error = Error(Code::FailedPrecondition, "etcdserver: authentication is not enabled");
pub const ROOT_USER_NOT_EXIST: Error = Error(Code::FailedPrecondition, "etcdserver: root user does not exist");
pub const USER_NOT_FOUND: Error = Error(Code::FailedPrecondition, "etcdserver: user name not found");
pub const USER_EMPTY: Error = Error(Code::InvalidArgument, "etcdserver: user name is empty");
pub const ROLE_NOT_FOUND: Error = Error(Code::FailedPrecondition, "etcdserver: role name not found");
pub const ROLE_EMPTY: Error = Error(Code::InvalidArgument, "etcdserver: role name is empty");

// The lock and election services of etcd are clients of their own server, and such an error loses
// its code on the way out.
pub const ELECTION_NO_LEADER: Error = Error(Code::Unknown, "election: no leader");
pub const ELECTION_NOT_LEADER: Error = Error(Code::Unknown, "election: not leader");
pub const LEADER_FIELD_MISSING: Error = Error(Code::Unknown, "\"leader\" field must be provided");
pub const SESSION_EXPIRED: Error = Error(Code::Unknown, "mutex: session is expired");

pub const INVALID_COMPARE: Error = Error(Code::InvalidArgument, "tenure: invalid compare option");
const NESTED_TOO_DEEP: Error = Error(Code::InvalidArgument, "tenure: transactions nested too deep in txn request");
const CHANGE_UNDER_WAY: Error = Error(Code::Unavailable, "tenure: another change of members is under way");
const LEADING: Error = Error(Code::FailedPrecondition, "tenure: this member leads; transfer the leadership first");
const LEVEL_TOO_LOW: Error = Error(
    Code::FailedPrecondition,
    "tenure: the cluster's feature level is too low for this request; upgrade all members first",
);
const TOO_MANY_WAITERS: Error = Error(Code::ResourceExhausted, "tenure: too many waiters for this lock");
const NAME_TOO_LONG: Error = Error(Code::InvalidArgument, "tenure: lock name too long");
const NOT_AN_ENTRY: Error = Error(Code::FailedPrecondition, "tenure: key exists and is not a lock entry");

// Only Tenure's own lock service can say these.
const TOO_MANY_NAMES: Error = Error(Code::InvalidArgument, "too many names in one lock request");
const IMPOSSIBLE_BARRIER: Error =
    Error(Code::InvalidArgument, "a barrier has one name, and parties from 1 to the limit");
const HELD_ALREADY: Error = Error(Code::FailedPrecondition, "lock is held already by the same lease");
pub const NOT_THE_HOLDER: Error = Error(Code::FailedPrecondition, "not the holder");
const NOT_HELD: Error = Error(Code::FailedPrecondition, "not held");
const IN_USE: Error = Error(Code::FailedPrecondition, "lock is held or waited for");
const DEADLOCK: Error = Error(Code::FailedPrecondition, "deadlock");
const DEADLOCK_UNKNOWN: Error =
    Error(Code::ResourceExhausted, "too many owners hold or wait to find out whether this request would deadlock");
pub const NOBODY_LEADS: Error = Error(Code::NotFound, "election: no leader");
pub const DOES_NOT_LEAD: Error = Error(Code::FailedPrecondition, "election: not leader");
pub const SESSION_RESUMED: Error = Error(Code::Aborted, "session was resumed elsewhere");
const OTHER_MODE: Error = Error(Code::FailedPrecondition, "this lease has the lock in another mode");
const LEVEL_PINNED: Error = Error(Code::FailedPrecondition, "the feature level is pinned");
const LEVEL_REACHED: Error = Error(Code::FailedPrecondition, "the feature level is never lowered");

// A watch that cannot be opened is told so within its stream, by text alone.
pub const WATCH_RANGE_EMPTY: &str = "mvcc: watcher range is empty";
pub const WATCH_DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

impl From<Error> for Status {
    fn from(Error(code, text): Error) -> Status {
        Status::new(code, text)
    }
}

pub fn of_refusal(refusal: &Refusal) -> Error {
    match refusal {
        Refusal::EmptyKey => EMPTY_KEY,
        Refusal::KeyNotFound => KEY_NOT_FOUND,
        Refusal::ValueProvided => VALUE_PROVIDED,
        Refusal::LeaseProvided => LEASE_PROVIDED,
        Refusal::DuplicateKey => DUPLICATE_KEY,
        Refusal::TooManyOperations => TOO_MANY_OPERATIONS,
        Refusal::NestedTooDeep => NESTED_TOO_DEEP,
        Refusal::LeaseNotFound => LEASE_NOT_FOUND,
        Refusal::LeaseExists => LEASE_EXISTS,
        Refusal::LeaseTtlTooLarge => LEASE_TTL_TOO_LARGE,
        Refusal::Compacted { .. } => COMPACTED,
        Refusal::FutureRevision { .. } => FUTURE_REVISION,
        Refusal::NoSpace => NO_SPACE,
        Refusal::Corrupt => CORRUPT,
        Refusal::TooManyWaiters => TOO_MANY_WAITERS,
        Refusal::NameTooLong => NAME_TOO_LONG,
        Refusal::NotAnEntry => NOT_AN_ENTRY,
        Refusal::TooManyNames => TOO_MANY_NAMES,
        Refusal::HeldAlready => HELD_ALREADY,
        Refusal::ImpossibleBarrier => IMPOSSIBLE_BARRIER,
        Refusal::NotTheHolder => NOT_THE_HOLDER,
        Refusal::NotHeld => NOT_HELD,
        Refusal::InUse => IN_USE,
        Refusal::Deadlock { .. } => DEADLOCK,
        Refusal::DeadlockUnknown => DEADLOCK_UNKNOWN,
        Refusal::SessionResumed => SESSION_RESUMED,
        Refusal::MemberNotFound => MEMBER_NOT_FOUND,
        Refusal::MemberExists => MEMBER_EXISTS,
        Refusal::PeerUrlExists => PEER_URL_EXISTS,
        Refusal::NotALearner => MEMBER_NOT_LEARNER,
        Refusal::OtherMode { .. } => OTHER_MODE,
        Refusal::LevelPinned { .. } => LEVEL_PINNED,
        Refusal::LevelReached { .. } => LEVEL_REACHED,
    }
}

pub fn of_failure(failure: &Failure) -> Error {
    match failure {
        Failure::Refused(refusal) => of_refusal(refusal),
        Failure::NoLeader => NO_LEADER,
        Failure::TimedOut => TIMED_OUT,
        Failure::LeaderChanged => LEADER_CHANGED,
        Failure::OutcomeUnknown => OUTCOME_UNKNOWN,
        Failure::Overloaded => TOO_MANY_REQUESTS,
        Failure::TooLarge => TOO_LARGE,
        Failure::EntryEnded(_) => SESSION_EXPIRED,
        Failure::Stopping => STOPPED,
        Failure::LearnerNotReady => LEARNER_NOT_READY,
        Failure::NotEnoughMembers => NOT_ENOUGH_STARTED,
        Failure::ChangeUnderWay => CHANGE_UNDER_WAY,
        Failure::BadTransferee => BAD_LEADER_TRANSFEREE,
        Failure::Corrupt => CORRUPT,
        Failure::Leading => LEADING,
        Failure::LevelTooLow { .. } => LEVEL_TOO_LOW,
    }
}

/// Whether a leader has refused a change of members because it knows too few that are up.
pub fn is_not_enough_members(text: &str) -> bool {
    text == NOT_ENOUGH_STARTED.1
}

pub fn refused(refusal: Refusal) -> Status {
    of_refusal(&refusal).into()
}

pub fn failed(failure: Failure) -> Status {
    of_failure(&failure).into()
}

/// As [`failed`], for the lock and election services: a refusal has etcd's text but no code. What may
/// be retried keeps its code, because clients go by it.
pub fn failed_within(failure: Failure) -> Status {
    within(of_failure(&failure))
}

pub fn within(error: Error) -> Status {
    let Error(code, text) = error;
    match code {
        Code::Unavailable | Code::ResourceExhausted | Code::DataLoss => Status::new(code, text),
        _ => Status::new(Code::Unknown, text),
    }
}

/// A message that was too long to be read, in the words of the grpc library that etcd is built with.
pub fn unread(status: &Status) -> Option<Status> {
    if status.code() != Code::OutOfRange {
        return None;
    }
    let rest = status.message().strip_prefix("Error, decoded message length too large: found ")?;
    let (found, rest) = rest.split_once(" bytes, the limit is: ")?;
    let limit = rest.strip_suffix(" bytes")?;
    let text = format!("grpc: received message larger than max ({found} vs. {limit})");
    Some(Status::resource_exhausted(text))
}

/// A message that is too long to be sent.
pub fn unsendable(length: usize) -> Status {
    let text = format!("grpc: trying to send message larger than max ({length} vs. {})", i32::MAX);
    Status::resource_exhausted(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_machine::LockEnd;

    /// One line for each refusal and each failure, so that a changed text shows up in review.
    #[test]
    fn every_error_has_etcds_code_and_text() {
        use Code::*;
        let compacted = Refusal::Compacted { asked: 1, compacted: 2 };
        let future = Refusal::FutureRevision { asked: 9, current: 2 };
        let refusals = [
            (Refusal::EmptyKey, InvalidArgument, "etcdserver: key is not provided"),
            (Refusal::KeyNotFound, InvalidArgument, "etcdserver: key not found"),
            (Refusal::ValueProvided, InvalidArgument, "etcdserver: value is provided"),
            (Refusal::LeaseProvided, InvalidArgument, "etcdserver: lease is provided"),
            (Refusal::DuplicateKey, InvalidArgument, "etcdserver: duplicate key given in txn request"),
            (Refusal::TooManyOperations, InvalidArgument, "etcdserver: too many operations in txn request"),
            (Refusal::NestedTooDeep, InvalidArgument, "tenure: transactions nested too deep in txn request"),
            (Refusal::LeaseNotFound, NotFound, "etcdserver: requested lease not found"),
            (Refusal::LeaseExists, FailedPrecondition, "etcdserver: lease already exists"),
            (Refusal::LeaseTtlTooLarge, OutOfRange, "etcdserver: too large lease TTL"),
            (compacted, OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            (future, OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
            (Refusal::NoSpace, ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (Refusal::Corrupt, DataLoss, "etcdserver: corrupt cluster"),
            (Refusal::TooManyWaiters, ResourceExhausted, "tenure: too many waiters for this lock"),
            (Refusal::NameTooLong, InvalidArgument, "tenure: lock name too long"),
            (Refusal::NotAnEntry, FailedPrecondition, "tenure: key exists and is not a lock entry"),
            (Refusal::TooManyNames, InvalidArgument, "too many names in one lock request"),
            (Refusal::HeldAlready, FailedPrecondition, "lock is held already by the same lease"),
            (Refusal::ImpossibleBarrier, InvalidArgument, "a barrier has one name, and parties from 1 to the limit"),
            (Refusal::NotTheHolder, FailedPrecondition, "not the holder"),
            (Refusal::NotHeld, FailedPrecondition, "not held"),
            (Refusal::InUse, FailedPrecondition, "lock is held or waited for"),
            (Refusal::Deadlock { cycle: "a circle".to_owned() }, FailedPrecondition, "deadlock"),
            (Refusal::SessionResumed, Aborted, "session was resumed elsewhere"),
            (Refusal::MemberNotFound, NotFound, "etcdserver: member not found"),
            (Refusal::MemberExists, FailedPrecondition, "etcdserver: member ID already exist"),
            (Refusal::PeerUrlExists, FailedPrecondition, "etcdserver: Peer URLs already exists"),
            (Refusal::NotALearner, FailedPrecondition, "etcdserver: can only promote a learner member"),
        ];
        let not_ready = "etcdserver: can only promote a learner member which is in sync with leader";
        let not_enough = "etcdserver: re-configuration failed due to not enough started members";
        let outcome_unknown = "etcdserver: request timed out, possibly due to previous leader failure";
        let failures = [
            (Failure::NoLeader, Unavailable, "etcdserver: no leader"),
            (Failure::TimedOut, Unavailable, "etcdserver: request timed out"),
            (Failure::LeaderChanged, Unavailable, "etcdserver: leader changed"),
            (Failure::OutcomeUnknown, Unavailable, outcome_unknown),
            (Failure::Overloaded, ResourceExhausted, "etcdserver: too many requests"),
            (Failure::TooLarge, InvalidArgument, "etcdserver: request is too large"),
            (Failure::EntryEnded(LockEnd::LeaseExpired), Unknown, "mutex: session is expired"),
            (Failure::Stopping, Unavailable, "etcdserver: server stopped"),
            (Failure::LearnerNotReady, FailedPrecondition, not_ready),
            (Failure::NotEnoughMembers, FailedPrecondition, not_enough),
            (Failure::ChangeUnderWay, Unavailable, "tenure: another change of members is under way"),
            (Failure::BadTransferee, FailedPrecondition, "etcdserver: bad leader transferee"),
        ];
        let refused = refusals.into_iter().map(|(refusal, code, text)| (Failure::Refused(refusal), code, text));
        for (failure, code, text) in refused.chain(failures) {
            let status = failed(failure);
            assert_eq!((status.code(), status.message()), (code, text));
        }
    }

    #[test]
    fn lock_and_election_keep_the_text_and_lose_the_code() {
        let status = failed_within(Failure::Refused(Refusal::LeaseNotFound));
        assert_eq!((status.code(), status.message()), (Code::Unknown, "etcdserver: requested lease not found"));
        assert_eq!(failed_within(Failure::NoLeader).code(), Code::Unavailable);
    }

    #[test]
    fn a_message_too_long_to_read_is_told_as_grpc_go_tells_it() {
        let text = "Error, decoded message length too large: found 2500010 bytes, the limit is: 2097152 bytes";
        let status = unread(&Status::out_of_range(text)).expect("recognised");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "grpc: received message larger than max (2500010 vs. 2097152)");
        assert!(unread(&COMPACTED.into()).is_none());
    }
}
