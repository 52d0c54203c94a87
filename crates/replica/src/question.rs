//! What only the leader can answer: renewals of leases, and how much time is left of them.
//!
//! A member that does not lead passes such questions on, all that gathered in a step at once, and
//! again when it hears nothing or when another leads. The leader answers them like those of its own
//! clients: only after it has confirmed, later than they came, that it still leads. So an answer is
//! true however late it comes: whatever a client is told of its lease counts from when it *asked*.
//! Each answer names the question it belongs to.

use std::collections::BTreeMap;

use tenure_machine::{LeaseId, MemberId, Refusal};

use crate::message;
use crate::outbox::Outbox;
use crate::read::Confirmed;
use crate::{Answered, CallId, Failure, LeaseStatus, Output, Replica};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    KeepAlive { lease: LeaseId, epoch: u64 },
    TimeToLive(LeaseId),
    Times(Vec<LeaseId>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaderAnswer {
    KeptAlive { ttl_ms: Option<u64> },
    SessionResumed,
    TimeToLive(Option<LeaseStatus>),
    Times(Vec<Option<LeaseStatus>>),
}

/// Who is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Call(CallId),
    Peer { member: MemberId, boot: u64, number: u64 },
}

impl Asker {
    pub(crate) fn call(self) -> Option<CallId> {
        match self {
            Asker::Call(call) => Some(call),
            Asker::Peer { .. } => None,
        }
    }
}

impl Replica {
    pub(crate) fn ask(&mut self, call: CallId, question: Question) {
        let since_ms = self.running_ms();
        #[cfg(feature = "planted")]
        if tenure_machine::planted::is(tenure_machine::planted::Bug::RenewUnconfirmed) && self.leading {
            return self.answer_question(Asker::Call(call), question);
        }
        match self.is_leader() {
            true => self.reads.gather(Confirmed::Question { asker: Asker::Call(call), question }, since_ms),
            false => drop(self.questions.pending.add(Asked { call, question, since_ms })),
        }
    }

    pub(crate) fn send_questions(&mut self) {
        if self.is_leader() {
            // It is for this member to answer now.
            for (_, Asked { call, question, since_ms }) in self.questions.pending.take_where(|_, _, _| true) {
                self.reads.gather(Confirmed::Question { asker: Asker::Call(call), question }, since_ms);
            }
            return;
        }
        let (term, now_ms, patience_ms) = (self.node.raft.term, self.running_ms(), self.patience_ms());
        let Some(leader) = self.other_leader() else { return };
        if self.questions.sent_in_term != term {
            self.questions.sent_in_term = term;
            self.questions.pending.send_all_again();
        }
        let due = self.questions.pending.take_due(now_ms, patience_ms);
        if !due.is_empty() {
            let questions = due.into_iter().map(|(number, asked)| (number, &asked.question));
            let message = message::questions(term, self.config.boot, questions);
            self.outputs.push(Output::Send { to: leader, message });
        }
    }

    pub(crate) fn take_questions(&mut self, from: MemberId, term: u64, boot: u64, questions: Vec<(u64, Question)>) {
        if !self.is_leader() || term != self.node.raft.term || !self.is_member(from) {
            return;
        }
        let now_ms = self.running_ms();
        let is_confirmed =
            self.is_confirmed_by(from, term) && self.node.raft.raft_log.committed <= self.machine.applied_index();
        for (number, question) in questions {
            let asker = Asker::Peer { member: from, boot, number };
            match is_confirmed {
                true => self.answer_question(asker, question),
                false => self.reads.gather(Confirmed::Question { asker, question }, now_ms),
            }
        }
        self.propose_clearing();
    }

    /// Leadership was confirmed since it was asked.
    pub(crate) fn answer_question(&mut self, asker: Asker, question: Question) {
        if !self.leading {
            return asker.call().into_iter().for_each(|call| self.fail(call, Failure::LeaderChanged));
        }
        let answer = match question {
            Question::KeepAlive { lease, epoch } => match self.keep_alive(asker, lease, epoch) {
                Some(answer) => answer,
                None => return,
            },
            Question::TimeToLive(lease) => LeaderAnswer::TimeToLive(self.lease_status(lease)),
            Question::Times(leases) => {
                LeaderAnswer::Times(leases.into_iter().map(|lease| self.lease_status(lease)).collect())
            }
        };
        self.tell_asker(asker, answer);
    }

    /// None = the answer waits: for the outcome of its end, which is in flight, or until the next leader would give
    /// it all of its time, too.
    fn keep_alive(&mut self, asker: Asker, lease: LeaseId, epoch: u64) -> Option<LeaderAnswer> {
        let state = self.machine.state();
        if epoch != 0 && state.session_epoch(lease).is_some_and(|current| current != epoch) {
            return Some(LeaderAnswer::SessionResumed);
        }
        if self.deadlines.wait_for_expiry(lease, asker) {
            return None;
        }
        let ttl_ms = state.lease_ttl_ms(lease);
        if let Some(ttl_ms) = ttl_ms {
            self.give_time(lease, ttl_ms, ttl_ms);
            self.deadlines.note_renewed(lease);
            if self.waits_for_clearing(lease, asker) {
                return None;
            }
        }
        Some(LeaderAnswer::KeptAlive { ttl_ms })
    }

    fn lease_status(&self, lease: LeaseId) -> Option<LeaseStatus> {
        let state = self.machine.state();
        let ttl_ms = state.lease_ttl_ms(lease)?;
        let remaining_ms = self.deadline_of(lease)?.saturating_sub(self.running_ms());
        // Members of releases without levels do not know this state of a lease.
        let renewed = state.level() < 1 || self.deadlines.is_renewed(lease);
        Some(LeaseStatus { lease, ttl_ms, remaining_ms, renewed })
    }

    /// When a lease ends, as this leader knows it: also of one that it has not looked at yet.
    pub(crate) fn deadline_of(&self, lease: LeaseId) -> Option<u64> {
        let unread_deadline = || {
            let since_ms = self.deadlines.unread()?.since_ms;
            Some(since_ms + self.machine.state().lease_left_ms(lease)? + self.new_leader_margin_ms())
        };
        self.deadlines.deadline(lease).or_else(unread_deadline)
    }

    pub(crate) fn tell_asker(&mut self, asker: Asker, answer: LeaderAnswer) {
        match asker {
            Asker::Call(call) => self.tell_answer(call, answer),
            Asker::Peer { member, boot, number } => {
                self.peer_answers.entry((member, boot)).or_default().push((number, answer));
            }
        }
    }

    fn tell_answer(&mut self, call: CallId, answer: LeaderAnswer) {
        let result = match answer {
            LeaderAnswer::KeptAlive { ttl_ms } => Ok(Answered::KeptAlive { ttl_ms }),
            LeaderAnswer::SessionResumed => Err(Failure::Refused(Refusal::SessionResumed)),
            LeaderAnswer::TimeToLive(status) => Ok(Answered::LeaseTimeToLive(status)),
            LeaderAnswer::Times(times) => Ok(Answered::LeaseTimes(times)),
        };
        self.answer(call, result);
    }

    pub(crate) fn send_answers(&mut self) {
        for ((to, boot), answers) in std::mem::take(&mut self.peer_answers) {
            self.outputs.push(Output::Send { to, message: message::answers(boot, &answers) });
        }
    }

    pub(crate) fn take_answers(&mut self, boot: u64, answers: Vec<(u64, LeaderAnswer)>) {
        if boot != self.config.boot {
            return;
        }
        for (number, answer) in answers {
            if let Some(asked) = self.questions.pending.settle(number) {
                self.tell_answer(asked.call, answer);
            }
        }
    }
}

/// Questions that were passed on to the leader, or wait until there is one.
#[derive(Default)]
pub(crate) struct Questions {
    pending: Outbox<Asked>,
    sent_in_term: u64,
}

struct Asked {
    call: CallId,
    question: Question,
    since_ms: u64,
}

impl Questions {
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn take_older_than(&mut self, since_ms: u64) -> Vec<CallId> {
        let late = self.pending.take_where(|_, _, asked| asked.since_ms < since_ms);
        late.into_iter().map(|(_, asked)| asked.call).collect()
    }

    pub(crate) fn take_calls(&mut self, is_taken: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let taken = self.pending.take_where(|_, _, asked| is_taken(asked.call));
        taken.into_iter().map(|(_, asked)| asked.call).collect()
    }
}

/// Answers for members that passed their clients' questions on, by member and boot.
pub(crate) type PeerAnswers = BTreeMap<(MemberId, u64), Vec<(u64, LeaderAnswer)>>;
