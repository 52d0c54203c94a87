//! What this member is in the cluster: leader or not, alone or not, and what follows when that changes.

use raft::StateRole;
use raft::eraftpb::ConfState;
use rand_chacha::rand_core::RngCore;
use tenure_machine::MemberId;

use crate::forward::Greeted;
use crate::level::Levels;
use crate::question::Asker;
use crate::{CallId, Config, Failure, Output, Replica, SessionNotice};

impl Replica {
    pub(crate) fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    pub(crate) fn is_only_voter(&self) -> bool {
        is_only_voter(self.config.member, self.node.store().configuration())
    }

    /// Whether another member was heard of lately and its connection is not known to be lost. It may be dead all the
    /// same: what depends on it calls the roll.
    pub(crate) fn is_active(&self, member: MemberId) -> bool {
        let heard_ms = self.heard_ms.get(&member);
        heard_ms.is_some_and(|heard_ms| self.running_ms() - heard_ms <= 2 * self.config.election_max_ms)
    }

    /// Nobody else is there, not even a learner.
    pub(crate) fn is_alone(&self) -> bool {
        let configuration = self.node.store().configuration();
        self.is_only_voter() && configuration.learners.is_empty() && configuration.learners_next.is_empty()
    }

    /// Raft takes it for granted that all it has is durable and counted as applied when it begins an election. That
    /// is not so while a snapshot is being installed, nor for a member that can win without asking anybody.
    pub(crate) fn may_campaign(&self) -> bool {
        let is_durable = self.persist_done == self.persist_asked;
        if self.is_corrupt() && !self.is_only_voter() {
            return self.is_leader();
        }
        self.is_leader() || (self.installing.is_none() && (is_durable || !self.is_only_voter()))
    }

    /// Rule 14: a leader that cannot write its log must not keep others from leading.
    pub(crate) fn step_down_if_log_hangs(&mut self) {
        let hangs = self
            .unpersisted_since_ms
            .is_some_and(|since_ms| self.running_ms().saturating_sub(since_ms) > self.config.election_max_ms);
        if hangs && self.is_leader() && !self.is_only_voter() {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.note_role();
        }
    }

    pub(crate) fn note_role(&mut self) {
        let leader = (self.node.raft.leader_id, self.node.raft.term);
        if leader != self.leader {
            self.leader = leader;
            self.tell_sessions_of_leader();
            self.tell_transfers();
            self.reads.begin_again();
            self.vouches.begin_again();
        }
        self.note_own_role();
    }

    /// Rule 16: the election timeout is drawn when role or term changes, and only then.
    fn note_own_role(&mut self) {
        let role = (self.node.raft.state, self.node.raft.term);
        if role == self.role {
            return;
        }
        self.role = role;
        let (low, high) = election_ticks(&self.config);
        let ticks = low + (self.random.next_u64() % (high - low) as u64) as usize;
        self.node.raft.set_randomized_election_timeout(ticks);
        (self.alarm_asked, self.compact_asked, self.continue_asked) = (false, false, false);
        self.granting.clear();
        self.locking.clear();
        self.levels = Levels::default();
        self.compares.begin_again();
        self.greeted = Greeted::default();
        self.delivered.clear();
        (self.seeks_successor, self.roll_call) = (false, None);
        if self.leading {
            self.leading = false;
            self.history_samples.clear();
            let askers = self.deadlines.clear().into_iter().chain(self.checkpoints.clear());
            let mut calls: Vec<CallId> = askers.filter_map(Asker::call).collect();
            calls.extend(self.reads.take_questions());
            for call in calls {
                self.fail(call, Failure::LeaderChanged);
            }
        }
    }

    fn tell_sessions_of_leader(&mut self) {
        let notice = SessionNotice::LeaderChanged { leader: self.node.raft.leader_id, term: self.node.raft.term };
        for stream in self.sessions.values() {
            self.outputs.push(Output::Session { stream: *stream, notice: notice.clone() });
        }
    }
}

pub(crate) fn is_only_voter(member: MemberId, configuration: &ConfState) -> bool {
    configuration.voters == [member] && configuration.voters_outgoing.is_empty()
}

/// The election timeout lies in this range of ticks, its end excluded: raft insists on it.
pub(crate) fn election_ticks(config: &Config) -> (usize, usize) {
    let low = (config.election_min_ms / config.tick_ms).max(2) as usize;
    (low, ((config.election_max_ms / config.tick_ms) as usize).max(low + 1))
}
