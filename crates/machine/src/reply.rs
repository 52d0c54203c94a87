//! What applying a command gives: the answer for the caller, and what it means for those who wait.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::lock::{LockEntry, name_of};
use crate::mvcc::keys::is_tombstone;
use crate::{Alarm, LeaseId, Level, Mode, Revision, SharedBytes};

/// Everything that one applied command did.
#[derive(Debug)]
pub struct Applied {
    /// The store's revision after it.
    pub revision: Revision,
    pub reply: Result<Reply, Refusal>,
    /// What it wrote, if it wrote anything: all of it at one revision.
    pub commit: Option<Commit>,
    pub lock_changes: LockChanges,
    pub lease_changes: Vec<LeaseChange>,
    /// How much there was to do: keys written, keys walked in ranges and comparisons, places that changed, steps of the
    /// search for deadlocks. The same on every member, so that a bound on it can be checked.
    pub work: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Put {
        prev: Option<Arc<KeyValue>>,
    },
    Delete {
        deleted: i64,
        prev: Vec<Arc<KeyValue>>,
    },
    Txn(TxnReply),
    Compacted,
    LeaseGranted {
        lease: LeaseId,
        ttl_ms: u64,
    },
    LeaseRevoked,
    LeasesExpired {
        expired: usize,
    },
    Lock(LockReply),
    /// Also to a Lock that has left the rest of an earlier request for the same names.
    Left {
        left: bool,
    },
    Alarms(Vec<Alarm>),
    Published,
    /// Somebody is in the way of a Lock that would not wait.
    Busy(BusyReply),
    Unlocked {
        /// False = it was free already.
        released: bool,
    },
    ForceReleased(Arc<LockEntry>),
    LockForgotten {
        holders: usize,
    },
    SessionResumed {
        epoch: u64,
        ttl_ms: u64,
    },
    MembersChanged,
    LeasesCheckpointed,
    /// More keys of leases that have ended are deleted, and more locks that were due are granted.
    Continued {
        deleted: usize,
        granted: usize,
    },
    /// The feature level, and its pin, after a command about them.
    Level {
        level: Level,
        pin: Option<Level>,
    },
    StatesCompared,
    /// A forwarded command that had been applied before.
    Duplicate,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TxnReply {
    pub succeeded: bool,
    pub responses: Vec<OpReply>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OpReply {
    Range(RangeReply),
    Put { prev: Option<Arc<KeyValue>> },
    Delete { deleted: i64, prev: Vec<Arc<KeyValue>> },
    Txn(TxnReply),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct RangeReply {
    pub kvs: Vec<Arc<KeyValue>>,
    /// More keys matched than the limit let through.
    pub more: bool,
    /// All that lie in the range, whatever limit and filters say.
    pub count: i64,
    pub keys_only: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LockReply {
    pub key: SharedBytes,
    /// Of the other names, in the order given.
    pub more_keys: Vec<SharedBytes>,
    /// The entries' create revision: the fencing token, to be disclosed only once granted.
    pub token: Revision,
    /// The mode of the entries: what a grant of them allows, whatever the request asked for.
    pub mode: Mode,
    /// All of them are.
    pub granted: bool,
    /// Of a semaphore, once granted: which of its slots, from 0 on; of a barrier, the place in its round.
    pub slot: u32,
    /// The entry was there before (the same lease asked again).
    pub renewed: bool,
    /// How many entries stand before this one, unless it is granted.
    pub ahead: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyReply {
    pub name: Bytes,
    /// The first one. None = free, but for those who wait for something else, too, or for others at a barrier.
    pub holder: Option<Arc<LockEntry>>,
    pub waiting: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: SharedBytes,
    /// Shared with the whole version, not by itself: that would be a counter more for each value.
    pub value: Box<[u8]>,
    pub create_revision: Revision,
    pub mod_revision: Revision,
    pub version: i64,
    /// 0 = none.
    pub lease: LeaseId,
}

/// All that one revision changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    pub revision: Revision,
    /// In the order in which the command's operations made them.
    pub events: Arc<[Event]>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Of a delete: only key and mod_revision are set.
    pub kv: Arc<KeyValue>,
    /// The version before, if there was one.
    pub prev: Option<Arc<KeyValue>>,
}

impl Event {
    pub fn kind(&self) -> EventKind {
        if is_tombstone(&self.kv) { EventKind::Delete } else { EventKind::Put }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

/// Most commands change one place at most.
pub type LockChanges = SmallVec<[LockChange; 1]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockChange {
    /// The entry became a holder: at once when it was created, or because those before it ended.
    Granted(Arc<LockEntry>),
    /// The entry is gone, holder or waiter, and if it `frees` the lock, nobody held it then.
    Ended { entry: Arc<LockEntry>, cause: LockEnd, frees: bool },
}

impl LockChange {
    /// Of the lock.
    pub fn name(&self) -> &[u8] {
        name_of(&self.entry().key)
    }

    pub fn entry(&self) -> &Arc<LockEntry> {
        match self {
            LockChange::Granted(entry) | LockChange::Ended { entry, .. } => entry,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockEnd {
    /// Its key was deleted by somebody.
    Released,
    /// It gave up its place while waiting.
    Left,
    LeaseExpired,
    LeaseRevoked,
    /// By an operator.
    Forced,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseChange {
    Granted {
        lease: LeaseId,
        ttl_ms: u64,
    },
    Ended {
        lease: LeaseId,
    },
    /// A lease asked again for a lock that it has, which renews it as a keepalive does.
    Renewed {
        lease: LeaseId,
        ttl_ms: u64,
    },
}

/// Why a command was not done. Deterministic: every member refuses it alike.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("key is not provided")]
    EmptyKey,
    #[error("key not found")]
    KeyNotFound,
    #[error("value is provided")]
    ValueProvided,
    #[error("lease is provided")]
    LeaseProvided,
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    #[error("too many operations in txn request")]
    TooManyOperations,
    #[error("transactions nested too deep")]
    NestedTooDeep,
    #[error("requested lease not found")]
    LeaseNotFound,
    #[error("lease already exists")]
    LeaseExists,
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    #[error("required revision {asked} has been compacted (compacted at {compacted})")]
    Compacted { asked: Revision, compacted: Revision },
    #[error("required revision {asked} is a future revision (current is {current})")]
    FutureRevision { asked: Revision, current: Revision },
    #[error("database space exceeded")]
    NoSpace,
    #[error("corrupt cluster")]
    Corrupt,
    #[error("too many waiters for this lock")]
    TooManyWaiters,
    #[error("lock name too long")]
    NameTooLong,
    /// The entry's key exists but was not made as a place in this queue.
    #[error("key exists and is not a lock entry")]
    NotAnEntry,
    #[error("too many names in one lock request")]
    TooManyNames,
    /// Asked for together with others, or twice in one request.
    #[error("lock is held already by the same lease")]
    HeldAlready,
    #[error("a barrier has one name, and 1 to {} parties", crate::limits::BARRIER_PARTIES)]
    ImpossibleBarrier,
    #[error("not the holder")]
    NotTheHolder,
    #[error("not held")]
    NotHeld,
    #[error("lock is held or waited for")]
    InUse,
    #[error("deadlock: {cycle}")]
    Deadlock { cycle: String },
    /// Whether the request would close a circle could not be found out within [`crate::limits::DEADLOCK_SEARCH`] steps.
    #[error(
        "too many owners hold or wait: whether this request would deadlock was not found out in {} steps",
        crate::limits::DEADLOCK_SEARCH
    )]
    DeadlockUnknown,
    /// Another stream goes on with the session.
    #[error("session was resumed elsewhere")]
    SessionResumed,
    #[error("member not found")]
    MemberNotFound,
    #[error("member ID already exist")]
    MemberExists,
    #[error("peer URLs already exist")]
    PeerUrlExists,
    #[error("can only promote a learner member")]
    NotALearner,
    /// The same lease has a place in this queue with another mode. `token` is set if that place is granted.
    #[error("{}", other_mode(*mode, *token))]
    OtherMode { mode: Mode, token: Option<Revision> },
    #[error("feature level {level} is beyond the pin: the level is pinned at {pin}")]
    LevelPinned { level: Level, pin: Level },
    #[error("cannot pin the feature level at {pin}: the cluster is at level {level}, and a level is never lowered")]
    LevelReached { level: Level, pin: Level },
}

fn other_mode(mode: Mode, token: Option<Revision>) -> String {
    match token {
        Some(token) => format!("this lease already holds the lock, {mode}, with token {token}: release it first"),
        None => format!("this lease already waits for the lock, {mode}: give up that place first"),
    }
}
