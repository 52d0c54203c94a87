//! The leader's word that a grant stands, on messages that go anyway.
//!
//! Nobody is told of a grant that had ended before this member even heard of the entry that made it: a member that was cut
//! off and catches up must not announce what is long over. So between that entry's arrival and the announcement somebody
//! has to confirm that the leader still leads. To ask for it when the entry is applied ([`crate::read`]) costs a
//! round trip, and for every hand-over of a lock somebody waits for it. But there is a round trip already:
//!
//! - A *follower* acknowledges entries, and hears then how far they are committed. Its acknowledgement bears a number: that is
//!   the question, asked after the entries came. The message that tells the commit bears the number back: that is the
//!   answer. Where the follower and the leader are a majority, as of three members they are, the question itself is
//!   the vote that the leader needs (see `is_confirmed_by`); elsewhere members ask in the usual way.
//! - A *leader* that commits an entry of its own term has heard of a majority since it made the entry.
//!
//! The word is of the state as far as the leader has committed then: a member that lags tells the grant only when it has
//! applied all of that, and the grant still stands.
//!
//! A word counts only for a member that has been awake all the time and has not lost its leader: what lay in its buffers
//! meanwhile may be old. After a pause, and with another leader, everything is asked for in the usual way.

use std::collections::{BTreeMap, VecDeque};

use raft::eraftpb::{Message, MessageType};
use tenure_machine::MemberId;

use crate::read::Confirmed;
use crate::{Output, Replica, message};

/// Questions that a follower remembers. A leader that answers none of so many is gone.
const MOST_QUESTIONS: usize = 64;

#[derive(Default)]
pub(crate) struct Vouches {
    last_number: u64,
    /// Asked and not answered: number, and the last entry that had come by then. Oldest first.
    asked: VecDeque<(u64, u64)>,
    /// The leader has vouched for all entries up to the first, when it had committed the second.
    vouched_upto: u64,
    vouched_at: u64,
    /// What was in the log up to here may have come before a pause.
    doubtful_upto: u64,
    /// As a leader: the question that was heard last of each follower, and how far its log went.
    owed: BTreeMap<MemberId, (Vec<u8>, u64)>,
}

impl Vouches {
    /// Another leader, or none.
    pub(crate) fn begin_again(&mut self) {
        self.asked.clear();
        self.owed.clear();
        self.vouched_upto = 0;
    }
}

impl Replica {
    /// A grant that was just applied: told at once if the leader's word is there, when it comes if it is under way, and
    /// otherwise after a question of its own.
    pub(crate) fn tell_grant(&mut self, grant: Confirmed) {
        let (index, now_ms) = (self.machine.applied_index(), self.running_ms());
        if self.is_vouched(index) {
            let committed = if self.is_leader() { self.node.raft.raft_log.committed } else { self.vouches.vouched_at };
            self.reads.gather_confirmed(grant, committed.max(index), now_ms);
        } else if self.vouches.asked.back().is_some_and(|(_, upto)| index <= *upto) {
            self.reads.gather_vouched(grant, index, now_ms);
        } else {
            self.reads.gather(grant, now_ms);
        }
    }

    fn is_vouched(&self, index: u64) -> bool {
        let Vouches { vouched_upto, doubtful_upto, .. } = self.vouches;
        index > doubtful_upto
            && match self.is_leader() {
                true => self.machine.applied_term() == self.node.raft.term,
                false => index <= vouched_upto,
            }
    }

    /// This member has slept: what it asked for before, and what it hears of that, may be old by now.
    pub(crate) fn doubt_what_came_before(&mut self) {
        self.vouches.asked.clear();
        self.vouches.vouched_upto = 0;
        self.vouches.doubtful_upto = self.node.raft.raft_log.last_index();
        self.reads.begin_again();
    }

    /// Puts a question into an acknowledgement, if anybody here waits for a grant.
    pub(crate) fn ask_along(&mut self, acknowledgement: &mut Message) {
        let both = [self.config.member, acknowledgement.to].into_iter().collect();
        let is_wanted = self.queued.len() > 0 || self.forwards.has_locks();
        if !is_wanted || acknowledgement.reject || !self.node.raft.prs().has_quorum(&both) {
            return;
        }
        let vouches = &mut self.vouches;
        vouches.last_number += 1;
        vouches.asked.push_back((vouches.last_number, acknowledgement.index));
        if vouches.asked.len() > MOST_QUESTIONS {
            vouches.asked.pop_front();
        }
        acknowledgement.context = self.context(self.vouches.last_number);
    }

    /// As a leader: a follower has asked, by a message of this term.
    pub(crate) fn take_question(&mut self, from: MemberId, term: u64, upto: u64, question: Vec<u8>) {
        if self.is_confirmed_by(from, term) {
            self.vouches.owed.insert(from, (question, upto));
        }
    }

    /// Puts the answer into a message that tells a follower all that is committed.
    pub(crate) fn vouch_along(&mut self, message: &mut Message) {
        if message.msg_type() == MessageType::MsgAppend
            && message.commit == self.node.raft.raft_log.committed
            && let Some((question, _)) = self.vouches.owed.remove(&message.to)
        {
            message.context = question;
        }
    }

    /// Answers those who have been told before that what they have is committed: nothing else goes to them.
    pub(crate) fn send_vouches(&mut self) {
        let committed = self.node.raft.raft_log.committed;
        if self.vouches.owed.is_empty() || self.unapplied_change(committed).is_some() {
            return;
        }
        let term = self.node.raft.term;
        let outputs = &mut self.outputs;
        self.vouches.owed.retain(|to, (question, upto)| {
            let is_due = *upto <= committed;
            if is_due {
                outputs.push(Output::Send { to: *to, message: message::vouch(term, committed, question) });
            }
            !is_due
        });
    }

    /// The leader has answered, when it had committed so much.
    pub(crate) fn take_vouch(&mut self, from: MemberId, term: u64, committed: u64, question: &[u8]) {
        let raft = &self.node.raft;
        if raft.leader_id != from || raft.term != term {
            return;
        }
        let Some(number) = self.own_context(question) else { return };
        while let Some((_, upto)) = self.vouches.asked.front().filter(|(asked, _)| *asked <= number) {
            (self.vouches.vouched_upto, self.vouches.vouched_at) = (*upto, committed);
            self.vouches.asked.pop_front();
        }
        self.reads.confirm_vouched(self.vouches.vouched_upto, self.vouches.vouched_at);
    }
}
