//! What can be asked of the machine. A command is data: it is encoded into the log, and decoded
//! and applied by every member, so nothing in it depends on where it is applied.

use bytes::Bytes;

use crate::lock::entry_key;
use crate::{LeaseId, Level, MemberId, Revision};

/// A command with what the leader stamped on it when it was proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The leader's wall clock, for people to read (since when a lock is held). Never decides anything.
    pub wall_ms: u64,
    /// Set on commands that were forwarded between members; such a command applies at most once.
    pub origin: Option<Origin>,
    pub command: Command,
}

/// Names one forwarded command, so that forwarding it twice applies it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub member: MemberId,
    /// Drawn anew each time the member starts.
    pub boot: u64,
    pub sequence: u64,
    /// Every sequence below this one is settled at its origin and will not be sent again.
    pub settled_below: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Put(Put),
    Delete(Delete),
    Txn(Txn),
    /// Forget history before `revision`; what is live at it stays readable.
    Compact {
        revision: Revision,
    },
    LeaseGrant(LeaseGrant),
    LeaseRevoke {
        lease: LeaseId,
    },
    /// Proposed by the leader of `term` for leases past their deadline; a no-op in any other term.
    LeaseExpire {
        term: u64,
        leases: Vec<LeaseId>,
    },
    /// Take a place in the queue of a lock (or an election). Boxed: it is by far the largest, and commands are moved
    /// several times on their way.
    Lock(Box<Lock>),
    /// Give up the places taken by a Lock call that ended before it was answered.
    Leave(Leave),
    Alarm(AlarmChange),
    /// A member's name and addresses, as it publishes them when it starts.
    Publish(Member),
    /// Give back what was granted with a token.
    Unlock(Unlock),
    /// End the tenure of the holder with this token, whoever it is.
    ForceRelease {
        name: Bytes,
        token: Revision,
    },
    /// Forget the recent holders of a lock that nobody holds.
    ForgetLock {
        name: Bytes,
    },
    /// Another stream goes on with the session of this lease.
    ResumeSession {
        lease: LeaseId,
    },
    /// Proposed by the leader of `term`: what is left of these leases, and for how long the next leader is to give
    /// them time. As much as the TTL or more: they were renewed. A no-op in any other term.
    LeaseCheckpoint {
        term: u64,
        left_ms: Vec<(LeaseId, u64)>,
    },
    /// What the state notes of a change of members. It travels with the change of raft's configuration, in one
    /// entry, but for an update, which changes no configuration.
    ChangeMembers(MemberChange),
    /// Raises the cluster's feature level. Proposed by the leader when every member supports it.
    RaiseLevel {
        level: Level,
    },
    /// Changes nothing. Each member hashes its state as it is when it applies this, for the leader to compare.
    CompareStates,
    /// Keeps leaders from raising the level beyond this; `None` removes the pin.
    PinLevel {
        level: Option<Level>,
    },
    /// Does more of the work that earlier commands have left: deletes keys of leases that have ended, at most
    /// [`crate::limits::LEASE_KEYS_AT_ONCE`], and grants locks that are due, at most
    /// [`crate::limits::LOCK_GRANTS_AT_ONCE`]. Proposed by the leader while any work is left; it may come from any term, and
    /// too often.
    Continue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    pub key: Bytes,
    pub value: Bytes,
    /// 0 = no lease.
    pub lease: LeaseId,
    pub prev_kv: bool,
    /// Keep the current value; the key must exist.
    pub ignore_value: bool,
    /// Keep the current lease; the key must exist.
    pub ignore_lease: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    pub keys: Keys,
    pub prev_kv: bool,
}

/// One key, or every key from `from` up to, not including, `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    One(Bytes),
    /// `to: None` = no upper bound. `to <= from` is an empty span, which matches nothing.
    Span {
        from: Bytes,
        to: Option<Bytes>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeQuery {
    pub keys: Keys,
    /// 0 or less = the current revision.
    pub revision: Revision,
    /// 0 or less = no limit.
    pub limit: i64,
    pub sort_order: SortOrder,
    pub sort_target: SortTarget,
    /// Presentation: the reply carries it on, values are left out when it is encoded for the wire.
    pub keys_only: bool,
    pub count_only: bool,
    /// 0 = no bound, for each of the four.
    pub min_mod_revision: Revision,
    pub max_mod_revision: Revision,
    pub min_create_revision: Revision,
    pub max_create_revision: Revision,
}

impl Keys {
    /// Every key there is.
    pub fn all() -> Keys {
        Keys::Span { from: Bytes::from_static(b"\0"), to: None }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: Bytes) -> Keys {
        let kept = prefix.iter().rposition(|byte| *byte != 0xff).map_or(0, |last| last + 1);
        let to = (kept > 0).then(|| {
            let mut to = prefix[..kept].to_vec();
            to[kept - 1] += 1;
            Bytes::from(to)
        });
        Keys::Span { from: prefix, to }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Span { from, to } => key >= &from[..] && to.as_ref().is_none_or(|to| key < &to[..]),
        }
    }
}

impl RangeQuery {
    /// All of `keys` as they are now, in key order.
    pub fn new(keys: Keys) -> RangeQuery {
        RangeQuery {
            keys,
            revision: 0,
            limit: 0,
            sort_order: SortOrder::None,
            sort_target: SortTarget::Key,
            keys_only: false,
            count_only: false,
            min_mod_revision: 0,
            max_mod_revision: 0,
            min_create_revision: 0,
            max_create_revision: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortOrder {
    #[default]
    None,
    Ascend,
    Descend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortTarget {
    #[default]
    Key,
    Version,
    CreateRevision,
    ModRevision,
    Value,
}

/// If every compare holds, `success` runs, else `failure`; all of it at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Txn {
    pub compare: Vec<Compare>,
    pub success: Vec<Op>,
    pub failure: Vec<Op>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    pub keys: Keys,
    pub result: CompareResult,
    pub target: CompareTarget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareResult {
    Equal,
    Greater,
    Less,
    NotEqual,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompareTarget {
    Version(i64),
    CreateRevision(Revision),
    ModRevision(Revision),
    Value(Bytes),
    Lease(LeaseId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Range(RangeQuery),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Chosen before it is proposed, positive.
    pub lease: LeaseId,
    pub ttl_ms: u64,
    /// Who asked for it, for people to read; may be empty.
    pub client: Bytes,
}

/// How entries of one queue share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Exclusive,
    Shared,
    /// At most this many holders at once.
    Slots(u32),
    /// Nobody until this many stand at the head of the queue, then all of them at once.
    Barrier(u32),
}

impl Mode {
    /// Whether a token tells a holder's writes from those of others. Where all hold side by side it cannot.
    pub fn fences(self) -> bool {
        matches!(self, Mode::Exclusive | Mode::Slots(_))
    }

    /// The mode that an entry is made with. A semaphore without slots would block its queue forever, so it has one.
    /// (A barrier without parties is refused.)
    pub fn sane(self) -> Mode {
        match self {
            Mode::Slots(slots) => Mode::Slots(slots.max(1)),
            mode => mode,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mode::Exclusive => write!(formatter, "exclusive"),
            Mode::Shared => write!(formatter, "shared"),
            Mode::Slots(slots) => write!(formatter, "one of {slots} slots"),
            Mode::Barrier(parties) => write!(formatter, "at a barrier of {parties}"),
        }
    }
}

/// Takes a place in the queue `name`: creates the entry key `<name>/<lease in hex>` unless it is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lock {
    pub name: Bytes,
    pub lease: LeaseId,
    /// Names this call; kept on the entry as its last joiner, see [`Leave`].
    pub call: u128,
    pub mode: Mode,
    /// The value of the entry key (an election's proclaimed value; empty for locks).
    pub value: Bytes,
    /// On an entry that exists already: overwrite its value if it differs (an election's campaign does).
    pub overwrite: bool,
    /// One sequential flow of work, for deadlock detection; may be empty.
    pub owner: Bytes,
    /// Shown to people; empty = the client that the lease was granted to.
    pub holder: Bytes,
    pub metadata: Bytes,
    /// Queues to take a place in at the same time: granted when all of them are.
    pub more_names: Vec<Bytes>,
    /// Take no place unless it is granted at once.
    pub try_once: bool,
    /// Of the session's stream that asks; 0 = none.
    pub epoch: u64,
}

impl Lock {
    /// All queues that it takes a place in.
    pub fn names(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.name).chain(&self.more_names)
    }

    /// Gives up the places that it may have taken. Each of them has a leave of its own: one that a later call has taken
    /// over, or that is gone, does not stand for the others.
    pub fn leaves(&self) -> Vec<Leave> {
        self.names().map(|name| Leave { key: entry_key(name, self.lease).into(), call: self.call }).collect()
    }
}

/// Ends what was granted with `token` in these queues. A queue in which nobody is, is passed over; one
/// with another holder refuses it all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlock {
    pub names: Vec<Bytes>,
    pub token: Revision,
    /// As of a [`Lock`].
    pub epoch: u64,
}

/// Ends the entry `key`, and those taken together with it, if `call` is still the last joiner: a late
/// clean-up must not free what a retry holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    pub key: Bytes,
    pub call: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmKind {
    /// The store is over its quota: what grows it is refused.
    NoSpace,
    /// Members disagree about the state.
    Corrupt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    pub member: MemberId,
    pub kind: AlarmKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmChange {
    Raise(Alarm),
    /// `member: 0` = at every member.
    Clear(Alarm),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub id: MemberId,
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
    pub learner: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// As a learner or as a voter, as the member says.
    Add { member: Member },
    /// From learner to voter.
    Promote { id: MemberId },
    /// `force`: also if those who are left and can be reached are too few to go on.
    Remove { id: MemberId, force: bool },
    /// Another name, other addresses.
    Update { member: Member },
    /// All of these or none, by way of a configuration in which both majorities count.
    Together(Vec<MemberChange>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_byte_is_one_more() {
        let prefix = |bytes: &'static [u8]| match Keys::prefix(Bytes::from_static(bytes)) {
            Keys::Span { to, .. } => to,
            Keys::One(_) => panic!("a prefix is a span"),
        };
        assert_eq!(prefix(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(prefix(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(prefix(b"\xff\xff"), None);
        assert_eq!(prefix(b""), None);
    }
}
