//! Whether all members have the same state: the leader compares hashes of it, and names a member that differs.
//!
//! A comparison is a command ([`Command::CompareStates`]). It changes nothing, but every member takes a view of its
//! state when it applies it, so all views are of the same index. The driver hashes the view on a thread of its own
//! ([`Output::HashState`]) and reports the hash. The leader asks the others for theirs until all have answered, or a
//! while has passed.
//!
//! The state that a majority of the voters has is the right one. A member with another one is named by the alarm
//! CORRUPT: it answers nothing that depends on its state, does not lead, and takes a new state from the leader when an
//! operator asks for it ([`crate::Input::Reseed`]). Its log is sound, so it still votes and acknowledges. The alarm is
//! cleared by the first comparison in which the member agrees again. Where no majority agrees, the alarm names no
//! member, and all writes are refused.
//!
//! What this does not notice: a difference that all members share, and one that comes and goes between two
//! comparisons.

use std::collections::BTreeMap;

use raft::eraftpb::Message;
use tenure_machine::{Alarm, AlarmChange, AlarmKind, Command, MemberId, level};

use crate::propose::Waits;
use crate::read::Confirmed;
use crate::{Answered, CallId, Failure, Input, Output, Replica, message};

/// The part of the time that a member may spend on hashing: one in so many.
const SHARE: u64 = 200;
/// While a member is known to differ, comparisons come sooner: somebody may have repaired it.
const INTERVAL_WITH_ALARM_MS: u64 = 5_000;
/// How long a leader waits for hashes of the others, in election timeouts.
const PATIENCE: u64 = 60;

/// What a member knows of the last comparison, and a leader of the one that is open.
#[derive(Default)]
pub(crate) struct Comparison {
    /// This member's own: the index, and the hash of the state there.
    own: Option<(u64, u64)>,
    /// How long the last hash took.
    took_ms: u64,
    /// As a leader: when the next one begins.
    due_ms: Option<u64>,
    /// As a leader: proposed, and not closed yet.
    open: Option<Open>,
    reseed: Option<Reseed>,
}

struct Open {
    since_ms: u64,
    asked_ms: u64,
    /// Set when the command is applied here.
    index: Option<u64>,
    hashes: BTreeMap<MemberId, u64>,
}

/// An operator wants this member to take the leader's state.
struct Reseed {
    call: Option<CallId>,
    since_ms: u64,
}

/// What a comparison came to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// These members differ from what most voters have, and these agree with it.
    Majority { differ: Vec<MemberId>, agree: Vec<MemberId> },
    /// All voters have answered, and no state is that of a majority.
    NoMajority,
    /// Too few have answered to tell.
    Open,
}

impl Comparison {
    /// A new term begins.
    pub(crate) fn begin_again(&mut self) {
        (self.due_ms, self.open) = (None, None);
    }

    /// The command did not get into the log.
    pub(crate) fn give_up(&mut self) {
        self.open = None;
    }

    pub(crate) fn take_calls(&mut self, is_taken: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let reseed = self.reseed.as_mut();
        reseed.and_then(|reseed| reseed.call.take_if(|call| is_taken(*call))).into_iter().collect()
    }
}

impl Replica {
    /// Begins a comparison when one is due, and goes on with the one that is open.
    pub(crate) fn compare_states(&mut self) {
        if !self.leading || self.is_alone() || self.machine.state().level() < level::COMPARE {
            return;
        }
        let now_ms = self.running_ms();
        if self.compares.open.is_some() {
            return self.continue_comparison(now_ms);
        }
        let interval_ms = match self.corrupt_members().is_empty() {
            true => self.config.compare_interval_ms,
            false => self.config.compare_interval_ms.min(INTERVAL_WITH_ALARM_MS),
        };
        if self.config.compare_interval_ms == 0 {
            return;
        }
        let earliest_ms = now_ms + interval_ms.max(SHARE * self.compares.took_ms);
        // An alarm brings the next comparison forward, never back.
        let due_ms = *self.compares.due_ms.insert(self.compares.due_ms.map_or(earliest_ms, |due| due.min(earliest_ms)));
        if now_ms >= due_ms {
            self.compares.due_ms = None;
            self.compares.open =
                Some(Open { since_ms: now_ms, asked_ms: now_ms, index: None, hashes: BTreeMap::new() });
            self.propose(Command::CompareStates, Waits::Nobody);
        }
    }

    /// The command is applied: this is the state to be hashed.
    pub(crate) fn take_view_to_compare(&mut self) {
        let index = self.machine.applied_index();
        if let Some(open) = &mut self.compares.open {
            // Hashes of the first index may be here already, and say nothing of another one.
            open.index.get_or_insert(index);
        }
        self.outputs.push(Output::HashState { index, view: Box::new(self.machine.view()) });
    }

    /// The driver has hashed the view.
    pub(crate) fn state_hashed(&mut self, index: u64, hash: u64, took_ms: u64) {
        self.compares.own = Some((index, hash));
        self.compares.took_ms = took_ms;
        let own = self.config.member;
        if let Some(open) = self.compares.open.as_mut().filter(|open| open.index == Some(index)) {
            open.hashes.insert(own, hash);
            self.ask_for_hashes(index);
        }
    }

    fn ask_for_hashes(&mut self, index: u64) {
        let question = message::ask_hash(self.node.raft.term, index);
        let members: Vec<_> = self.members().into_iter().map(|member| member.id).collect();
        for to in members.into_iter().filter(|to| *to != self.config.member) {
            self.outputs.push(Output::Send { to, message: question.clone() });
        }
    }

    /// The leader of `term` asks for the hash at an index. A member that does not have it yet is asked again.
    pub(crate) fn take_hash_question(&mut self, from: MemberId, term: u64, index: u64) {
        if let Some((own, hash)) = self.compares.own.filter(|(own, _)| *own == index) {
            self.outputs.push(Output::Send { to: from, message: message::tell_hash(term, own, hash) });
        }
    }

    pub(crate) fn take_hash(&mut self, from: MemberId, term: u64, index: u64, hash: u64) {
        if term == self.node.raft.term
            && let Some(open) = self.compares.open.as_mut().filter(|open| open.index == Some(index))
        {
            open.hashes.insert(from, hash);
            self.continue_comparison(self.running_ms());
        }
    }

    fn continue_comparison(&mut self, now_ms: u64) {
        let patience_ms = self.config.election_max_ms;
        let members: Vec<_> = self.members();
        let Some(open) = &mut self.compares.open else { return };
        let is_late = open.since_ms + PATIENCE * patience_ms <= now_ms;
        let have_all = members.iter().all(|member| open.hashes.contains_key(&member.id));
        if !have_all && !is_late {
            if open.asked_ms + patience_ms <= now_ms && open.hashes.contains_key(&self.config.member) {
                open.asked_ms = now_ms;
                let index = open.index.unwrap_or_default();
                self.ask_for_hashes(index);
            }
            return;
        }
        let hashes = std::mem::take(&mut open.hashes);
        self.compares.open = None;
        let voters: Vec<_> = members.iter().filter(|member| !member.learner).map(|member| member.id).collect();
        match verdict(&voters, &hashes) {
            Verdict::Majority { differ, agree } => {
                let alarmed = self.corrupt_members();
                let no_majority = alarmed.contains(&0);
                let is_news = |member: &&MemberId| !alarmed.contains(member);
                for member in differ.iter().filter(is_news) {
                    self.change_corrupt_alarm(*member, true);
                }
                for member in agree.iter().filter(|member| alarmed.contains(member)) {
                    self.change_corrupt_alarm(*member, false);
                }
                if no_majority && differ.is_empty() {
                    self.change_corrupt_alarm(0, false);
                }
            }
            Verdict::NoMajority => self.change_corrupt_alarm(0, true),
            Verdict::Open => {}
        }
    }

    fn change_corrupt_alarm(&mut self, member: MemberId, is_raised: bool) {
        let alarm = Alarm { member, kind: AlarmKind::Corrupt };
        if is_raised && self.machine.state().alarms().contains(&alarm) {
            return;
        }
        let change = if is_raised { AlarmChange::Raise(alarm) } else { AlarmChange::Clear(alarm) };
        self.propose(Command::Alarm(change), Waits::Nobody);
    }

    /// The members that the alarm CORRUPT names; 0 where no majority agreed.
    fn corrupt_members(&self) -> Vec<MemberId> {
        let alarms = self.machine.state().alarms();
        alarms.iter().filter(|alarm| alarm.kind == AlarmKind::Corrupt).map(|alarm| alarm.member).collect()
    }

    /// Whether this member's own state is known to be wrong.
    pub(crate) fn is_corrupt(&self) -> bool {
        let state = self.machine.state();
        state.level() >= level::COMPARE && state.is_corrupt(self.config.member)
    }

    /// An alarm was changed. A member that is named gives up what it serves.
    pub(crate) fn follow_alarms(&mut self) {
        if !self.is_corrupt() {
            return;
        }
        for queued in self.queued.take_all() {
            self.fail(queued.call, Failure::Corrupt);
        }
        let mut unknown = self.proposals.abandon_calls(|_| true);
        unknown.extend(self.forwards.abandon_calls(|_| true, |_| false));
        for call in unknown {
            self.fail(call, Failure::TimedOut);
        }
        for waiting in self.reads.take_calls(|_| true) {
            if let Confirmed::Read { call, .. } | Confirmed::Grant { call, .. } = waiting.what {
                self.fail(call, Failure::Corrupt);
            }
        }
        if self.is_leader()
            && !self.is_only_voter()
            && !self.begin_transfer(self.best_successor(|member| self.is_active(member)))
        {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.note_role();
        }
    }

    /// The call of an input that a member with a wrong state must not answer.
    pub(crate) fn refused_as_corrupt(&self, input: &Input) -> Option<CallId> {
        let call = match input {
            Input::Propose { command: Command::Alarm(_), .. } => return None,
            Input::Propose { call, .. } | Input::Lock { call, .. } | Input::KeepAlive { call, .. } => *call,
            Input::Read { call, read, consistency } => match (read, consistency) {
                // To see what is wrong with it.
                (crate::Read::View, crate::Consistency::Serializable) => return None,
                _ => *call,
            },
            _ => return None,
        };
        self.is_corrupt().then_some(call)
    }

    /// Takes the leader's state in the place of this member's own, by a snapshot of an index that it already has.
    pub(crate) fn reseed(&mut self, call: CallId) {
        if self.is_leader() {
            return self.fail(call, Failure::Leading);
        }
        let replaced = self.compares.reseed.replace(Reseed { call: Some(call), since_ms: self.running_ms() });
        if let Some(earlier) = replaced.and_then(|reseed| reseed.call) {
            self.fail(earlier, Failure::TimedOut);
        }
        self.ask_for_state();
    }

    /// Raft drops the request where there is no leader, or no entry of its term yet: so it is made again.
    pub(crate) fn ask_for_state(&mut self) {
        if self.compares.reseed.is_none() {
            return;
        }
        if self.is_leader() {
            self.end_reseed(Err(Failure::Leading));
        } else if self.installing.is_none() && self.is_log_committed() {
            let _ = self.node.request_snapshot();
        }
    }

    /// Whether this member knows that its whole log is committed. Raft asks for a snapshot that goes up to the end of the
    /// log, because what was acknowledged must not be lost, and answers no append until it has come. The leader can
    /// write such a snapshot only when all of that is committed, and it might need this member's answers to get there.
    fn is_log_committed(&self) -> bool {
        let log = &self.node.raft.raft_log;
        log.committed == log.last_index()
    }

    /// Whether an append is dropped, as if it were lost, so that the log of a member that wants a new state can become
    /// committed to its end while others write. It is for two election timeouts in every four: the leader may have
    /// missed an acknowledgement that only a repeated append brings.
    pub(crate) fn holds_log_still(&self, message: &Message) -> bool {
        let Some(reseed) = self.compares.reseed.as_ref().filter(|_| !self.wants_state()) else { return false };
        let turn_ms = 2 * self.config.election_max_ms;
        let is_still = ((self.running_ms() - reseed.since_ms) / turn_ms).is_multiple_of(2);
        let last = self.node.raft.raft_log.last_index();
        is_still && message.entries.last().is_some_and(|entry| entry.index > last)
    }

    /// Whether raft has asked the leader for a snapshot of a state that this member has passed already.
    pub(crate) fn wants_state(&self) -> bool {
        self.node.raft.pending_request_snapshot != raft::INVALID_INDEX
    }

    /// A snapshot is installed.
    pub(crate) fn reseeded(&mut self) {
        let index = self.machine.applied_index();
        self.end_reseed(Ok(Answered::Reseeded { index }));
    }

    fn end_reseed(&mut self, result: Result<Answered, Failure>) {
        if let Some(call) = self.compares.reseed.take().and_then(|reseed| reseed.call) {
            self.answer(call, result);
        }
    }

    /// The caller gives up; the member goes on until it has its new state.
    pub(crate) fn time_out_reseed(&mut self, since_ms: u64) {
        let late = self.compares.reseed.as_mut().filter(|reseed| reseed.since_ms < since_ms);
        if let Some(call) = late.and_then(|reseed| reseed.call.take()) {
            self.fail(call, Failure::TimedOut);
        }
    }
}

fn verdict(voters: &[MemberId], hashes: &BTreeMap<MemberId, u64>) -> Verdict {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for hash in voters.iter().filter_map(|voter| hashes.get(voter)) {
        *counts.entry(*hash).or_default() += 1;
    }
    match counts.iter().find(|(_, count)| **count > voters.len() / 2) {
        Some((right, _)) => {
            let (agree, differ): (Vec<_>, Vec<_>) = hashes.iter().partition(|(_, hash)| *hash == right);
            let ids = |members: Vec<(&MemberId, &u64)>| members.into_iter().map(|(member, _)| *member).collect();
            Verdict::Majority { differ: ids(differ), agree: ids(agree) }
        }
        None if voters.iter().all(|voter| hashes.contains_key(voter)) => Verdict::NoMajority,
        None => Verdict::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(voters: &[MemberId], hashes: &[(MemberId, u64)]) -> Verdict {
        verdict(voters, &hashes.iter().copied().collect())
    }

    #[test]
    fn the_state_of_most_voters_is_right() {
        let majority = |differ: &[MemberId], agree: &[MemberId]| Verdict::Majority {
            differ: differ.to_vec(),
            agree: agree.to_vec(),
        };
        assert_eq!(compare(&[1, 2, 3], &[(1, 7), (2, 7), (3, 7)]), majority(&[], &[1, 2, 3]));
        assert_eq!(compare(&[1, 2, 3], &[(1, 9), (2, 7), (3, 7)]), majority(&[1], &[2, 3]), "a leader may be wrong");
        assert_eq!(compare(&[1, 2, 3], &[(1, 7), (3, 7)]), majority(&[], &[1, 3]), "without one that is away");
        assert_eq!(compare(&[1, 2, 3], &[(1, 7), (3, 8)]), Verdict::Open);
        assert_eq!(compare(&[1, 2], &[(1, 7), (2, 8)]), Verdict::NoMajority);
        assert_eq!(compare(&[1, 2, 3], &[(1, 7), (2, 8), (3, 9)]), Verdict::NoMajority);
        // A learner has no say in what is right.
        assert_eq!(compare(&[1], &[(1, 7), (2, 8), (3, 8)]), majority(&[2, 3], &[1]));
    }
}
