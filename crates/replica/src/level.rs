//! The cluster's feature level: how a leader learns what every member supports, and when it raises the level.
//!
//! What a level is, and what each one brings, is in [`tenure_machine::level`]. The level is part of the replicated
//! state, so all members change what a command means at the same index. Three rules keep a member from meeting
//! something that it does not know:
//!
//! - A leader raises the level only when every member, learners included, has said lately that it supports the next
//!   one. A release that has never heard of levels does not answer, so it holds the level where it is.
//! - A member proposes no command that needs a later level than the one in its state.
//! - A member that is about to append an entry, or to install a snapshot, of a level beyond its own stops first. It
//!   refuses to start for the same reason. What it holds on disk is then still readable by its own release.
//!
//! The level never falls. An operator can hold it with a pin ([`tenure_machine::Command::PinLevel`]), or by starting
//! a member with a lower [`crate::Config::highest_level`].

use std::collections::BTreeMap;

use raft::eraftpb::Message;
use tenure_machine::level::{self, Level};
use tenure_machine::{Command, MemberId, codec};

use crate::propose::Waits;
use crate::{Config, Failure, LogEntry, Output, Replica, message};

/// What a leader knows of the levels that the others support. It begins anew with each term.
#[derive(Default)]
pub(crate) struct Levels {
    /// What each member said last, and when.
    told: BTreeMap<MemberId, (Level, u64)>,
    asked_ms: Option<u64>,
    /// A command that raises the level is in the log and not applied yet.
    is_raising: bool,
}

impl Levels {
    /// The command is applied.
    pub(crate) fn raised(&mut self) {
        self.is_raising = false;
    }

    pub(crate) fn supported_by(&self, member: MemberId) -> Option<Level> {
        self.told.get(&member).map(|(level, _)| *level)
    }

    /// The highest level that all of these support, if each has said so since `since_ms`.
    fn supported_by_all(&self, members: &[MemberId], since_ms: u64) -> Option<Level> {
        let told = |member: &MemberId| self.told.get(member).filter(|(_, at_ms)| *at_ms >= since_ms);
        members.iter().map(|member| told(member).map(|(level, _)| *level)).min().unwrap_or(Some(Level::MAX))
    }
}

impl Replica {
    /// Raises the level if every member supports a later one; asks those that have not answered lately.
    pub(crate) fn raise_level(&mut self) {
        let state = self.machine.state();
        let goal = self.config.highest_level.min(state.level_pin().unwrap_or(Level::MAX));
        let level = state.level();
        if !self.leading || goal <= level || self.levels.is_raising {
            return;
        }
        let now_ms = self.running_ms();
        let others = self.other_members();
        let since_ms = now_ms.saturating_sub(2 * self.config.election_max_ms);
        let supported = self.levels.supported_by_all(&others, since_ms).unwrap_or(level);
        if goal.min(supported) > level {
            self.levels.is_raising = true;
            return self.propose(Command::RaiseLevel { level: goal.min(supported) }, Waits::Nobody);
        }
        let is_due = self.levels.asked_ms.is_none_or(|asked_ms| asked_ms + self.config.election_min_ms <= now_ms);
        if is_due {
            self.levels.asked_ms = Some(now_ms);
            let question = message::ask_level(self.node.raft.term);
            for to in others {
                self.outputs.push(Output::Send { to, message: question.clone() });
            }
        }
    }

    /// The leader of `term` asks what this member supports.
    pub(crate) fn take_level_question(&mut self, from: MemberId, term: u64) {
        let message = message::tell_level(term, self.config.highest_level);
        self.outputs.push(Output::Send { to: from, message });
    }

    pub(crate) fn take_supported_level(&mut self, from: MemberId, term: u64, highest: Level) {
        if self.leading && term == self.node.raft.term {
            self.levels.told.insert(from, (highest, self.running_ms()));
            self.raise_level();
        }
    }

    /// Stops this member if a message would have it append an entry of a level that it does not support.
    pub(crate) fn stop_before_later_level(&mut self, message: &Message) -> bool {
        let level = message.entries.iter().filter_map(|entry| codec::raised_level(&entry.data)).max();
        match level.filter(|level| *level > self.config.highest_level) {
            Some(level) => {
                self.give_up_over(unsupported(level, self.config.highest_level));
                true
            }
            None => false,
        }
    }

    /// Refuses a command that needs a later level than the state has.
    pub(crate) fn check_level_of(&self, command: &Command) -> Result<(), Failure> {
        let needed = command.level_needed();
        if needed > self.machine.state().level() { Err(Failure::LevelTooLow { needed }) } else { Ok(()) }
    }

    fn other_members(&self) -> Vec<MemberId> {
        self.members().into_iter().map(|member| member.id).filter(|id| *id != self.config.member).collect()
    }
}

/// The highest level that a state and the log behind it reach.
pub(crate) fn level_of(state: Level, entries: &[LogEntry]) -> Level {
    entries.iter().filter_map(|entry| codec::raised_level(&entry.data)).fold(state, Level::max)
}

/// Refuses to start from a level that this member does not support.
pub(crate) fn check_level(config: &Config, level: Level) -> Result<(), String> {
    if level > config.highest_level { Err(unsupported(level, config.highest_level)) } else { Ok(()) }
}

pub(crate) fn unsupported(level: Level, highest: Level) -> String {
    let release = match level::release(level) {
        Some(release) => format!("Tenure {release} or later"),
        None => format!("a release of Tenure that supports feature level {level}"),
    };
    format!("the cluster is at feature level {level}, and this member supports no level above {highest}: run {release}")
}
