//! Leadership that is given away.

use tenure_machine::MemberId;

use crate::message;
use crate::pace::Pace;
use crate::roll_call::Attendance;
use crate::{Answered, CallId, Failure, Output, Replica};

/// A call that waits for another leader.
pub(crate) struct Transfer {
    call: CallId,
    since_ms: u64,
    /// Who led when it began, and in which term.
    before: (MemberId, u64),
}

impl Replica {
    /// `to: None` = the voter that has most of the log of those that are there.
    pub(crate) fn transfer(&mut self, call: CallId, to: Option<MemberId>) {
        let (leader, term) = (self.node.raft.leader_id, self.node.raft.term);
        if leader == raft::INVALID_ID {
            return self.fail(call, Failure::NoLeader);
        }
        if to == Some(leader) {
            return self.answer(call, Ok(Answered::Leader(leader)));
        }
        if !self.is_leader() {
            self.outputs.push(Output::Send { to: leader, message: message::transfer(term, to) });
        } else if !self.hand_over(to) {
            return self.fail(call, Failure::BadTransferee);
        }
        self.transfers.push(Transfer { call, since_ms: self.running_ms(), before: (leader, term) });
    }

    pub(crate) fn take_transfer(&mut self, from: MemberId, term: u64, to: Option<MemberId>) {
        if self.is_leader() && term == self.node.raft.term && self.is_member(from) {
            self.hand_over(to);
        }
    }

    /// False = there is no voter to give it to.
    fn hand_over(&mut self, to: Option<MemberId>) -> bool {
        let voters = &self.node.store().configuration().voters;
        match to {
            Some(member) => self.begin_transfer(voters.contains(&member).then_some(member)),
            None => {
                self.seeks_successor = voters.iter().any(|voter| *voter != self.config.member);
                self.seeks_successor
            }
        }
    }

    /// Gives leadership to the voter that has most of the log of those that answer. A moment after it has asked it
    /// waits no longer for those that have not.
    pub(crate) fn seek_successor(&mut self) {
        if !self.seeks_successor || !self.is_leader() {
            return;
        }
        let (own, heartbeat_ms) = (self.config.member, self.config.heartbeat_ms);
        let voters = self.node.store().configuration().voters.clone();
        let attendance = self.call_roll(|present, waited_ms| {
            let others = || voters.iter().filter(|voter| **voter != own);
            let is_there = |voter: &MemberId| present.contains(voter);
            others().all(is_there) || (waited_ms >= heartbeat_ms && others().any(is_there))
        });
        match attendance {
            Attendance::Enough(present) => {
                self.seeks_successor = false;
                self.begin_transfer(self.best_successor(|member| present.contains(&member)));
            }
            Attendance::Unknown => {}
            Attendance::TooFew => {
                self.seeks_successor = false;
                for Transfer { call, .. } in std::mem::take(&mut self.transfers) {
                    self.fail(call, Failure::BadTransferee);
                }
            }
        }
    }

    /// The voter that has most of the log, of those that may lead.
    pub(crate) fn best_successor(&self, may_lead: impl Fn(MemberId) -> bool) -> Option<MemberId> {
        let voters = self.node.store().configuration().voters.iter().copied();
        let others = voters.filter(|voter| *voter != self.config.member && may_lead(*voter));
        let matched = |member: &MemberId| self.node.raft.prs().get(*member).map_or(0, |progress| progress.matched);
        // Of equals the first, whatever order raft keeps them in.
        others.max_by_key(|member| (matched(member), std::cmp::Reverse(*member)))
    }

    /// False = there is nobody to give it to.
    pub(crate) fn begin_transfer(&mut self, to: Option<MemberId>) -> bool {
        if let Some(to) = to {
            // Raft takes no proposals while it gives its place away.
            self.hand_to_raft();
            // It also gives up the transfer by its own clock, which must not be slow.
            self.pace = Pace::default();
            self.node.transfer_leader(to);
        }
        to.is_some()
    }

    /// Somebody leads, perhaps another than before.
    pub(crate) fn tell_transfers(&mut self) {
        let now = (self.node.raft.leader_id, self.node.raft.term);
        if now.0 == raft::INVALID_ID {
            return;
        }
        let done: Vec<_> = self.transfers.extract_if(.., |transfer| transfer.before != now).collect();
        for Transfer { call, .. } in done {
            self.answer(call, Ok(Answered::Leader(now.0)));
        }
    }

    /// Raft gives it up after an election timeout, without a word.
    pub(crate) fn time_out_transfers(&mut self, before_ms: Option<u64>) {
        let is_given_up = self.is_leader() && self.node.raft.lead_transferee.is_none() && !self.seeks_successor;
        let is_late =
            |transfer: &Transfer| is_given_up || before_ms.is_some_and(|before_ms| transfer.since_ms < before_ms);
        let late: Vec<_> = self.transfers.extract_if(.., |transfer| is_late(transfer)).collect();
        for Transfer { call, .. } in late {
            self.fail(call, Failure::TimedOut);
        }
    }

    pub(crate) fn cancel_transfers(&mut self, is_cancelled: impl Fn(CallId) -> bool) -> Vec<CallId> {
        self.transfers.extract_if(.., |transfer| is_cancelled(transfer.call)).map(|transfer| transfer.call).collect()
    }
}
