//! The pace of raft's clock, which slows down while a quorum answers too late for it.
//!
//! Raft elects a leader only if a quorum votes for it within an election timeout, and keeps it only if a quorum answers
//! within each further one. If every quorum needs a member that takes longer than that, for example because another
//! member is dead, then nobody ever leads, and the dead member cannot be replaced either. So a member that is answered
//! after it has stopped waiting slows its own raft clock to half the pace. Its next election and its next term as a
//! leader have twice as long. A leader whose quorum has answered in time for a while doubles its pace again, and so does
//! a member that has followed a leader for a while.
//!
//! There is a bound: a quorum that takes longer than [`SLOWEST`] election timeouts to answer elects nobody.
//!
//! A member that is not answered at all keeps its pace, so an election after a partition takes no longer than before.
//! The pace decides nothing but when raft gives up. Neither leases nor reads depend on it.

use raft::eraftpb::{Message, MessageType};
use raft::{INVALID_ID, StateRole};
use tenure_machine::MemberId;

use crate::Replica;
use crate::role::election_ticks;

/// The slowest pace: election timeouts are this many times as long.
const SLOWEST: u64 = 8;

#[derive(Debug)]
pub(crate) struct Pace {
    /// The number of this member's ticks for which raft's clock advances by one.
    slowness: u64,
    ticks: u64,
    /// The last term in which an answer came too late.
    late_term: u64,
    /// The last term in which this member led.
    led_term: u64,
    /// The number of ticks for which nothing has been too late for twice the pace.
    timely_ticks: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { slowness: 1, ticks: 0, late_term: 0, led_term: 0, timely_ticks: 0 }
    }
}

impl Pace {
    pub(crate) fn slowness(&self) -> u64 {
        self.slowness
    }

    /// Counts a tick of this member. Returns whether it is a tick of raft's clock, too.
    fn tick(&mut self) -> bool {
        self.ticks += 1;
        self.ticks.is_multiple_of(self.slowness)
    }

    /// Notes an answer that came too late in `term`. Further ones in the same term tell nothing new.
    fn note_late(&mut self, term: u64) {
        if self.late_term < term {
            self.late_term = term;
            self.slowness = (2 * self.slowness).min(SLOWEST);
            self.timely_ticks = 0;
        }
    }

    /// Notes in every tick whether all is early enough for twice the pace. The pace is doubled when it has been so for a
    /// whole election timeout.
    fn note_timely(&mut self, is_timely: bool, election_ticks: u64) {
        self.timely_ticks = if is_timely { self.timely_ticks + 1 } else { 0 };
        if self.timely_ticks >= self.slowness * election_ticks {
            self.slowness /= 2;
            self.timely_ticks = 0;
        }
    }
}

impl Replica {
    pub(crate) fn tick_raft(&mut self) {
        let heartbeat_ticks = (self.config.heartbeat_ms / self.config.tick_ms).max(1);
        if self.pace.tick() {
            self.node.tick();
            self.note_role();
        }
        if self.is_leader() {
            self.pace.led_term = self.node.raft.term;
        }
        if self.pace.slowness > 1 {
            if self.is_leader() && self.pace.ticks.is_multiple_of(heartbeat_ticks) {
                // The clocks of the followers are not slow: they expect heartbeats as often as before.
                self.node.ping();
            }
            let is_timely = if self.is_leader() { self.is_quorum_timely() } else { self.other_leader().is_some() };
            let (_, election_max_ticks) = election_ticks(&self.config);
            self.pace.note_timely(is_timely, election_max_ticks as u64);
        }
    }

    /// Whether a quorum was heard of within three quarters of the time in which it has to answer at twice the pace.
    fn is_quorum_timely(&self) -> bool {
        let now_ms = self.running_ms();
        let within_ms = self.pace.slowness / 2 * self.config.election_min_ms * 3 / 4;
        let is_heard = |member: &MemberId| {
            let heard_ms = self.heard_ms.get(member);
            *member == self.config.member || heard_ms.is_some_and(|heard_ms| now_ms - heard_ms <= within_ms)
        };
        let configuration = self.node.store().configuration();
        let voters = configuration.voters.iter().chain(&configuration.voters_outgoing);
        self.node.raft.prs().has_quorum(&voters.copied().filter(is_heard).collect())
    }

    /// Notes a vote for this member, or an answer to the leader that it was in this term, if it comes after this member
    /// has given up.
    pub(crate) fn note_late_answer(&mut self, message: &Message) {
        let raft = &self.node.raft;
        let is_late = match message.msg_type() {
            // A very late one comes when the next election has begun.
            MessageType::MsgRequestVoteResponse => {
                let is_expected = raft.state == StateRole::Candidate && message.term == raft.term;
                !message.reject && message.term <= raft.term && !is_expected
            }
            // Not the word of a later leader's term, which deposes this one.
            MessageType::MsgHeartbeatResponse | MessageType::MsgAppendResponse => {
                message.term == raft.term && message.term == self.pace.led_term
            }
            _ => false,
        };
        if is_late && raft.leader_id == INVALID_ID {
            self.pace.note_late(message.term);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raft_ticks(pace: &mut Pace, ticks: u64) -> usize {
        (0..ticks).filter(|_| pace.tick()).count()
    }

    #[test]
    fn each_term_with_late_answers_halves_the_pace_up_to_a_bound() {
        let mut pace = Pace::default();
        assert_eq!(raft_ticks(&mut pace, 16), 16);
        pace.note_late(5);
        pace.note_late(5);
        assert_eq!(raft_ticks(&mut pace, 16), 8);
        (6..20).for_each(|term| pace.note_late(term));
        assert_eq!(raft_ticks(&mut pace, 16), 2);
    }

    #[test]
    fn the_pace_doubles_when_answers_were_early_for_an_election_timeout() {
        let mut pace = Pace::default();
        (5..7).for_each(|term| pace.note_late(term));
        (0..39).for_each(|_| pace.note_timely(true, 10));
        pace.note_timely(false, 10);
        (0..39).for_each(|_| pace.note_timely(true, 10));
        assert_eq!(pace.slowness(), 4, "not while one of them is late");
        pace.note_timely(true, 10);
        assert_eq!(pace.slowness(), 2);
        (0..20).for_each(|_| pace.note_timely(true, 10));
        assert_eq!(pace.slowness(), 1);
    }
}
