//! Everything that can happen to a member, as one closed list.

use bytes::Bytes;
use tenure_machine::{Command, Keys, LeaseId, Leave, Lock, Machine, MemberChange, MemberId, RangeQuery, Revision};

use crate::LockWatchRequest;

/// Names a call that waits for its answer; chosen by the driver, free again after the step that answered or
/// cancelled it.
pub type CallId = u64;
/// One client's stream of watches.
pub type StreamId = u64;
/// A watch within its stream.
pub type WatchId = u64;

/// The time as the driver saw it when it began a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Never goes back; only differences mean anything.
    pub monotonic_ms: u64,
    /// For people to read.
    pub wall_ms: u64,
}

#[derive(Debug)]
pub enum Input {
    /// Replicate a command; answered once it is applied here.
    Propose {
        call: CallId,
        command: Command,
    },
    /// Take a place in a lock's queue; answered when it is granted, or when its entry ends.
    Lock {
        call: CallId,
        lock: Box<Lock>,
    },
    Read {
        call: CallId,
        read: Read,
        consistency: Consistency,
    },
    /// Renew a lease; answered once the leader knows that it still leads.
    KeepAlive {
        call: CallId,
        lease: LeaseId,
        /// Of the session's stream that asks; 0 = none.
        epoch: u64,
    },
    /// Answered with [`crate::Answered::Members`] when it is done.
    ChangeMembers {
        call: CallId,
        change: MemberChange,
    },
    /// Have another member lead: this one, or (None) the one that has most of the log. Answered with
    /// [`crate::Answered::Leader`], whoever it came to be.
    TransferLeader {
        call: CallId,
        to: Option<MemberId>,
    },
    /// The caller's time is almost up: if it waits for nothing but a leader, it is told that there is none.
    Hurry {
        call: CallId,
    },
    /// Nobody waits for this call's answer any more. A queued lock leaves its queue.
    Cancel {
        call: CallId,
    },
    /// The same for a Lock call, whose answer may be on its way: a grant that nobody took is left too, by these
    /// ([`Lock::leaves`]).
    CancelLock {
        call: CallId,
        leaves: Vec<Leave>,
    },
    Watch {
        stream: StreamId,
        request: WatchRequest,
    },
    LockWatch {
        stream: StreamId,
        request: LockWatchRequest,
    },
    /// This stream carries the session of a lease from now on, and is told what becomes of it.
    SessionOpened {
        stream: StreamId,
        lease: LeaseId,
    },
    SessionClosed {
        stream: StreamId,
        lease: LeaseId,
    },
    /// What a peer gave out as [`crate::Output::Send`] for this member.
    Message {
        from: MemberId,
        message: Bytes,
    },
    /// A peer takes nothing from this member, because it knows that it was removed.
    RefusedAsRemoved {
        by: MemberId,
    },
    /// The connection to a peer is lost: it counts as not there until something is heard of it.
    PeerLost {
        member: MemberId,
    },
    /// All up to the Persist output of this number is durable.
    Persisted {
        number: u64,
    },
    /// The snapshot that was asked for last is durable (or could not be written: it is asked for again later).
    SnapshotSaved {
        index: u64,
        bytes: u64,
    },
    SnapshotFailed {
        index: u64,
    },
    /// The view that came with [`crate::Output::HashState`] has this hash; it took so long.
    StateHashed {
        index: u64,
        hash: u64,
        took_ms: u64,
    },
    /// Replace this member's state with the leader's. Answered with [`crate::Answered::Reseeded`].
    Reseed {
        call: CallId,
    },
    /// What became of a [`crate::Output::SendSnapshot`]: delivered = the peer has it whole and durable.
    SnapshotSent {
        to: MemberId,
        index: u64,
        delivered: bool,
    },
    /// A peer's snapshot is here, checked, durable under its own name, and read into a machine. It is no part of
    /// what this member starts from before a [`crate::Persist`] says so.
    SnapshotReceived {
        from: MemberId,
        /// As it came out of the peer's [`crate::Output::SendSnapshot`].
        message: Bytes,
        machine: Box<Machine>,
        /// As the file has it.
        configuration: Bytes,
        bytes: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Sees everything acknowledged before the read began.
    Linearizable,
    /// What this member has applied, right now.
    Serializable,
}

#[derive(Debug)]
pub enum Read {
    /// Answered with the keys, or with a view if the range is long.
    Range(RangeQuery),
    /// The whole state.
    View,
    /// What is left of a lease. Only the leader knows.
    LeaseTimeToLive(LeaseId),
    /// The same of several.
    LeaseTimes(Vec<LeaseId>),
}

#[derive(Debug)]
pub enum WatchRequest {
    /// `start: None` = from the next change on.
    Create {
        watch: WatchId,
        keys: Keys,
        start: Option<Revision>,
    },
    Cancel {
        watch: WatchId,
    },
    /// The reader of a [`crate::Notice::Behind`] has delivered everything before `from`.
    Resume {
        watch: WatchId,
        from: Revision,
    },
    /// The stream's reader has passed on this many bytes of what was fed to it.
    Drained {
        bytes: usize,
    },
    /// Answered by [`crate::Notice::Progress`].
    Progress,
    /// The stream is gone with all its watches.
    Close,
}
