//! The feature level: which meanings of commands a cluster has agreed on.
//!
//! Members of different releases run in one cluster during an upgrade, and all of them must do the
//! same with every entry of the log. So the state carries a *level*, and what a command does depends
//! on it. Within a level the meaning of a command never changes. A command, a field or a meaning of a
//! later level is never proposed below it ([`Command::level_needed`]). A release supports every level
//! from [`LOWEST`] up to its own [`HIGHEST`].
//!
//! The leader raises the level by [`Command::RaiseLevel`] when every member supports the next one.
//! The level never falls: the state may already hold what an older release cannot read. An operator
//! can pin it ([`Command::PinLevel`]) while an upgrade may still have to be rolled back. The pin is
//! part of the state, so every leader honours it.
//!
//! A member that meets a level beyond its own [`HIGHEST`] must not take part. The machine cannot stop
//! it: whoever appends entries to the log and restores snapshots has to. An unknown command decodes
//! to an error that says so ([`crate::codec::DecodeError`]), and so does a snapshot of a later level
//! ([`crate::snapshot::SnapshotError`]).
//!
//! | level | what it brings |
//! |---|---|
//! | 0 | everything up to the first release with levels |
//! | 1 | the commands and rules in the list below |
//!
//! Level 1:
//! - The snapshot says the level, in a format that earlier releases refuse.
//! - [`Command::PinLevel`].
//! - [`Command::CompareStates`]. The alarm CORRUPT stops the member that it names, not the whole cluster.
//! - A lease that asks again for a lock with another mode is refused ([`Refusal::OtherMode`]).
//! - One command deletes a bounded number of a lease's keys and grants a bounded number of locks. [`Command::Continue`]
//!   does the rest. If it only grants, it has a revision of its own without an event.
//! - The search for deadlocks misses nothing that it searches, goes through semaphores with one slot, and refuses what
//!   it cannot decide ([`Refusal::DeadlockUnknown`]).
//! - A place whose lease has ended is never granted: it ends when its turn comes.
//! - Of several locks that are unlocked together those are released that the token still holds. Unlocking is refused only
//!   if the token holds none of them.
//! - A request for several locks that finds only some of its lease's places for these names leaves them. Its reply is
//!   [`Reply::Left`].
//! - A lock request that names no holder is held in the name of the lease's client.
//! - A lease that asks again for a lock that it has is renewed ([`crate::LeaseChange::Renewed`]).

use crate::{Command, Refusal, Reply, View};

/// A feature level of the cluster.
pub type Level = u32;

/// The level of a cluster that was never raised: what releases without levels understand.
pub const LOWEST: Level = 0;
/// The highest level that this release supports.
pub const HIGHEST: Level = 1;

/// From this level on members compare their states, and the alarm CORRUPT stops only the member that it names.
pub const COMPARE: Level = 1;

const _: () = assert!(LOWEST < COMPARE && COMPARE <= HIGHEST);

/// The first release that supports a level, as far as this release knows.
pub fn release(level: Level) -> Option<&'static str> {
    ["0.1.0", "0.2.0"].get(level as usize).copied()
}

impl Command {
    /// The lowest level at which the command may be proposed.
    ///
    /// [`Command::RaiseLevel`] comes before the level that it is about, so it needs none. The leader proposes it only
    /// when every member has said that it supports that level.
    pub fn level_needed(&self) -> Level {
        match self {
            Command::Put(_)
            | Command::Delete(_)
            | Command::Txn(_)
            | Command::Compact { .. }
            | Command::LeaseGrant(_)
            | Command::LeaseRevoke { .. }
            | Command::LeaseExpire { .. }
            | Command::Lock(_)
            | Command::Leave(_)
            | Command::Alarm(_)
            | Command::Publish(_)
            | Command::Unlock(_)
            | Command::ForceRelease { .. }
            | Command::ForgetLock { .. }
            | Command::ResumeSession { .. }
            | Command::LeaseCheckpoint { .. }
            | Command::ChangeMembers(_)
            | Command::RaiseLevel { .. } => LOWEST,
            Command::PinLevel { .. } | Command::Continue => 1,
            Command::CompareStates => COMPARE,
        }
    }
}

impl View {
    /// The feature level of the cluster.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The highest level that a leader may raise the cluster to; `None` if no operator has pinned it.
    pub fn level_pin(&self) -> Option<Level> {
        self.level_pin
    }

    /// Raises the level. A level that is already reached is left as it is, so the command may come twice.
    pub(crate) fn raise_level(&mut self, level: Level) -> Result<Reply, Refusal> {
        self.check_sound()?;
        if let Some(pin) = self.level_pin.filter(|pin| level > *pin) {
            return Err(Refusal::LevelPinned { level, pin });
        }
        self.level = self.level.max(level);
        Ok(self.level_reply())
    }

    /// Sets or clears the pin.
    pub(crate) fn pin_level(&mut self, pin: Option<Level>) -> Result<Reply, Refusal> {
        if let Some(pin) = pin.filter(|pin| *pin < self.level) {
            return Err(Refusal::LevelReached { level: self.level, pin });
        }
        self.level_pin = pin;
        Ok(self.level_reply())
    }

    fn level_reply(&self) -> Reply {
        Reply::Level { level: self.level, pin: self.level_pin }
    }

    /// Whether the state holds anything that releases without levels cannot read.
    pub(crate) fn is_beyond_lowest(&self) -> bool {
        self.level > LOWEST || self.level_pin.is_some()
    }
}
