//! Everything a member wants done, as one closed list. The driver performs, it never decides.

use bytes::Bytes;
use tenure_machine::level::Level;
use tenure_machine::{
    Commit, LeaseId, LockEnd, LockReply, Member, MemberId, RangeReply, Refusal, Reply, Revision, View,
};

use crate::{CallId, LockNotice, StreamId, WatchId};

#[derive(Debug)]
pub enum Output {
    /// Append to the log, in the order given, then report [`crate::Input::Persisted`].
    Persist(Persist),
    /// Hand to a peer; may be lost.
    Send {
        to: MemberId,
        message: Bytes,
    },
    Answer {
        call: CallId,
        answer: Answer,
    },
    /// A Lock call has its place, and waits. Its answer comes later.
    Queued {
        call: CallId,
        ahead: usize,
    },
    Notice {
        stream: StreamId,
        notice: Notice,
    },
    Session {
        stream: StreamId,
        notice: SessionNotice,
    },
    LockNotice {
        stream: StreamId,
        notice: LockNotice,
    },
    /// Write this view as a snapshot in the background, then report [`crate::Input::SnapshotSaved`].
    SaveSnapshot(Box<SaveSnapshot>),
    /// Stream the saved snapshot `index` to a peer, with `message` along, then report
    /// [`crate::Input::SnapshotSent`].
    SendSnapshot {
        to: MemberId,
        index: u64,
        message: Bytes,
    },
    /// Hash this view in the background, then report [`crate::Input::StateHashed`].
    HashState {
        index: u64,
        view: Box<View>,
    },
    /// A snapshot that was received is not wanted (any more): its file may go.
    SnapshotRefused {
        index: u64,
    },
    /// Everybody who belongs to the cluster now, this member included: whom to talk to, and where.
    Members(Vec<Member>),
    /// This member belongs to the cluster no more. What came out before is still to be done.
    Removed,
    /// The state can no longer be trusted (a committed entry that this version cannot decode): stop the process.
    Fatal(String),
}

/// What must be durable, all of it, before it is reported.
#[derive(Debug)]
pub struct Persist {
    pub number: u64,
    /// The log begins anew behind this snapshot, which was received: all entries that were appended before are gone.
    pub snapshot: Option<InstalledSnapshot>,
    pub hard_state: Option<HardState>,
    /// May overwrite a suffix of what was appended before.
    pub entries: Vec<LogEntry>,
    /// False = may stay in the page cache.
    pub sync: bool,
    /// To be sent only once this and all earlier ones are durable, and only after
    /// [`crate::Input::Persisted`] was put before the replica: an answer to them must not overtake it.
    pub messages: Vec<(MemberId, Bytes)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstalledSnapshot {
    pub index: u64,
    pub term: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    pub index: u64,
    pub term: u64,
    pub kind: u8,
    pub data: Bytes,
    pub context: Bytes,
}

pub struct SaveSnapshot {
    pub index: u64,
    pub term: u64,
    /// Who votes and who learns, at that index, encoded.
    pub configuration: Bytes,
    pub view: View,
}

/// The answer to a call, with what its header says.
#[derive(Debug)]
pub struct Answer {
    pub revision: Revision,
    pub term: u64,
    pub result: Result<Answered, Failure>,
}

#[derive(Debug)]
pub enum Answered {
    Reply(Reply),
    Lock(LockReply),
    Range(RangeReply),
    View(Box<View>),
    /// None = there is no such lease.
    KeptAlive {
        ttl_ms: Option<u64>,
    },
    LeaseTimeToLive(Option<LeaseStatus>),
    LeaseTimes(Vec<Option<LeaseStatus>>),
    /// All of them, after a change.
    Members(Vec<Member>),
    /// Who leads now.
    Leader(MemberId),
    /// This member has the leader's state, as of this index.
    Reseeded {
        index: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseStatus {
    pub lease: LeaseId,
    pub ttl_ms: u64,
    pub remaining_ms: u64,
    /// False = it was granted and never renewed since.
    pub renewed: bool,
}

/// Why a call got no answer from the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing was proposed: the call may be made again, elsewhere or later.
    #[error("no leader")]
    NoLeader,
    /// The outcome is unknown: the command may still be applied.
    #[error("timed out")]
    TimedOut,
    /// The command has no effect, now or later: an entry of another leader is committed in its place.
    #[error("leader changed")]
    LeaderChanged,
    /// The command may have been applied: this member skipped the entries that would tell.
    #[error("the outcome is unknown, possibly due to a change of leaders")]
    OutcomeUnknown,
    #[error("too many requests")]
    Overloaded,
    #[error("request is too large")]
    TooLarge,
    /// The entry ended while the call waited for its turn.
    #[error("the place in the queue is gone")]
    EntryEnded(LockEnd),
    #[error("the member is stopping")]
    Stopping,
    /// A learner is promoted when it has nearly all of the log.
    #[error("can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    /// Those who would be left and can be reached would be too few to go on.
    #[error("re-configuration failed due to not enough started members")]
    NotEnoughMembers,
    #[error("another change of members is under way")]
    ChangeUnderWay,
    /// This member's state differs from that of the others, so it answers nothing from it.
    #[error("this member's state differs from that of the other members")]
    Corrupt,
    /// A leader takes its state from nobody else.
    #[error("this member leads the cluster")]
    Leading,
    /// Nothing was proposed: some member may not know what the command means.
    #[error("the cluster's feature level is too low: this needs level {needed}")]
    LevelTooLow { needed: Level },
    /// No voter, or nobody that can be reached.
    #[error("bad leader transferee")]
    BadTransferee,
}

/// What a session's stream is told without having asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionNotice {
    /// Something that was granted to it is held no more.
    Lost {
        name: Bytes,
        token: Revision,
        cause: LockEnd,
    },
    LeaderChanged {
        leader: MemberId,
        term: u64,
    },
}

/// What a stream of watches is told. In order; a stream's notices are never reordered.
#[derive(Debug)]
pub enum Notice {
    /// The watch stands; it will see every change from `revision + 1` on, or is told that it is behind.
    Created { watch: WatchId, revision: Revision, term: u64 },
    /// Changes that concern the watch (a commit may hold events of other keys too). Charged as `bytes`
    /// to the stream until [`crate::WatchRequest::Drained`] gives them back.
    Commits { watch: WatchId, commits: Vec<Commit>, bytes: usize, revision: Revision, term: u64 },
    /// Read the commits from `from` up to the view's revision out of the view, deliver them at the
    /// stream's own pace, then ask to resume at the view's revision + 1.
    Behind { watch: WatchId, from: Revision, view: Box<View>, term: u64 },
    /// What the watch would have to see is gone; the watch is removed.
    Compacted { watch: WatchId, compacted: Revision, revision: Revision, term: u64 },
    /// Every watch of the stream has been told all up to `revision`. Withheld while one is behind.
    Progress { revision: Revision, term: u64 },
}

impl std::fmt::Debug for SaveSnapshot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SaveSnapshot").field("index", &self.index).field("term", &self.term).finish()
    }
}
