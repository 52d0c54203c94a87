//! Reads that must see everything acknowledged before them, and all else that needs the leader to
//! know that it still leads: questions about leases, and grants of locks before they are told.
//!
//! Whatever comes in one step shares one confirmation; the next step begins another without waiting
//! for it, so that nobody waits for more than one round trip.

use std::collections::{BTreeSet, VecDeque};

use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use tenure_machine::{LockEnd, LockReply, MemberId, Revision, SharedBytes, lock};

use crate::propose::keys_of;
use crate::question::{Asker, Question};
use crate::{Answered, CallId, Failure, Read, Replica};

/// Beyond so many it is simpler to look at all.
const MOST_DOUBTS: usize = 1024;

impl Replica {
    pub(crate) fn issue_reads(&mut self) {
        if self.can_confirm()
            && let Some(context) = self.reads.issue(self.running_ms())
        {
            self.ask_raft(context);
        }
    }

    /// Raft drops a question without a word, and so may the network.
    pub(crate) fn retry_reads(&mut self) {
        let (now_ms, patience_ms) = (self.running_ms(), self.patience_ms());
        self.reads.ask_for_vouched(now_ms, self.config.tick_ms);
        if self.can_confirm()
            && let Some(context) = self.reads.retry(now_ms, patience_ms)
        {
            self.ask_raft(context);
        }
    }

    /// Before it has committed in its term a leader confirms nothing.
    fn can_confirm(&self) -> bool {
        let raft = &self.node.raft;
        match raft.state {
            StateRole::Leader => raft.commit_to_current_term(),
            _ => raft.leader_id != raft::INVALID_ID,
        }
    }

    fn ask_raft(&mut self, context: u64) {
        self.node.read_index(self.context(context));
    }

    /// A number as it is told to others, and known again by the process that has told it.
    pub(crate) fn context(&self, number: u64) -> Vec<u8> {
        let mut bytes = self.config.boot.to_be_bytes().to_vec();
        bytes.extend(number.to_be_bytes());
        bytes
    }

    /// Whether a voter that asks something in this term confirms by that very question that this member leads: when
    /// the two of them are a majority. Had the asker elected anybody else before, it would ask in a later term.
    pub(crate) fn is_confirmed_by(&self, asker: MemberId, term: u64) -> bool {
        let raft = &self.node.raft;
        let both = [self.config.member, asker].into_iter().collect();
        self.is_leader() && term == raft.term && raft.commit_to_current_term() && raft.prs().has_quorum(&both)
    }

    /// As raft would after a round of heartbeats.
    pub(crate) fn answer_read_index(&mut self, question: Message) {
        let mut answer = Message { to: question.from, from: self.config.member, ..Message::default() };
        answer.set_msg_type(MessageType::MsgReadIndexResp);
        answer.term = self.node.raft.term;
        answer.index = self.node.raft.raft_log.committed;
        answer.entries = question.entries;
        self.send_read_index(answer);
    }

    pub(crate) fn own_context(&self, bytes: &[u8]) -> Option<u64> {
        let (boot, context) = bytes.split_first_chunk::<8>()?;
        let context: [u8; 8] = context.try_into().ok()?;
        (u64::from_be_bytes(*boot) == self.config.boot).then(|| u64::from_be_bytes(context))
    }

    /// Answers what is confirmed and applied. Calls that were given up earlier in this step are not answered: their
    /// callers are gone and would not give a grant back.
    pub(crate) fn do_confirmed(&mut self) {
        self.cancel_rest();
        while let Some(confirmed) = self.reads.take_ready(self.machine.applied_index()) {
            for waiting in confirmed {
                match waiting.what {
                    Confirmed::Read { call, read } => self.read(call, read),
                    Confirmed::Question { asker, question } => self.answer_question(asker, question),
                    Confirmed::Grant { call, reply, joiner } => match self.why_ended(&reply) {
                        None => self.answer(call, Ok(Answered::Lock(reply))),
                        Some(cause) => {
                            // A place may be there still, under a key that somebody took the lease from.
                            self.leave(&reply, joiner);
                            self.fail(call, Failure::EntryEnded(cause));
                        }
                    },
                }
            }
        }
        self.reads.forget_doubts();
        self.propose_clearing();
    }

    /// Why the caller is not told of its grant: its lease or one of its places has ended. None if the grant stands.
    fn why_ended(&self, reply: &LockReply) -> Option<LockEnd> {
        let state = self.machine.state();
        // A place outlives its lease if a put took the lease from its key, and then it may still be granted. So the
        // lease is looked up for every grant, however long ago it ended.
        let lease = lock::split_key(&reply.key).map(|(_, lease)| lease);
        let is_alive = lease.is_some_and(|lease| state.lease_ttl_ms(lease).is_some());
        #[cfg(feature = "planted")]
        let is_alive = is_alive || tenure_machine::planted::is(tenure_machine::planted::Bug::TellTheDead);
        // Of several places one may have ended before the last was granted.
        let is_certain = reply.more_keys.is_empty() && !self.reads.is_doubtful(reply.token);
        let stands = |key: &SharedBytes| state.lock_grant(key, reply.token).is_some();
        if is_alive && (is_certain || keys_of(reply).all(stands)) {
            return None;
        }
        let ended = state.recent_holders().rev().find(|holder| holder.token == reply.token);
        Some(ended.map_or(LockEnd::LeaseExpired, |holder| holder.cause))
    }

    pub(crate) fn read(&mut self, call: CallId, read: Read) {
        let state = self.machine.state();
        let result = match read {
            Read::Range(query) => match state.range_within(&query, self.config.range_budget) {
                Some(result) => result.map(Answered::Range).map_err(Failure::from),
                None => Ok(Answered::View(Box::new(self.machine.view()))),
            },
            Read::View => Ok(Answered::View(Box::new(self.machine.view()))),
            Read::LeaseTimes(leases) => return self.ask(call, Question::Times(leases)),
            Read::LeaseTimeToLive(lease) => return self.ask(call, Question::TimeToLive(lease)),
        };
        self.answer(call, result);
    }
}

/// Something to do once leadership is confirmed and the confirmed index is applied.
pub(crate) enum Confirmed {
    Read {
        call: CallId,
        read: Read,
    },
    /// The leader's own.
    Question {
        asker: Asker,
        question: Question,
    },
    /// Tell the caller that it holds the lock, if the grant still stands then.
    Grant {
        call: CallId,
        reply: LockReply,
        joiner: u128,
    },
}

impl Confirmed {
    pub(crate) fn call(&self) -> Option<CallId> {
        match self {
            Confirmed::Read { call, .. } | Confirmed::Grant { call, .. } => Some(*call),
            Confirmed::Question { asker, .. } => asker.call(),
        }
    }
}

pub(crate) struct Waiting {
    pub(crate) since_ms: u64,
    pub(crate) what: Confirmed,
}

struct Round {
    /// One for each time it was asked about. A context is never used for those who came after it.
    contexts: Vec<u64>,
    issued_ms: u64,
    waiting: Vec<Waiting>,
}

#[derive(Default)]
pub(crate) struct Reads {
    gathering: Vec<Waiting>,
    /// Grants that the leader's word is under way for, with the index of the entry that made each.
    vouched: Vec<(u64, Waiting)>,
    issued: VecDeque<Round>,
    /// Confirmed at this index, to be done once it is applied.
    confirmed: VecDeque<(u64, Vec<Waiting>)>,
    next_context: u64,
    doubts: Doubts,
}

/// Which of the grants that wait to be told may have ended meanwhile: the others need not be looked up again.
#[derive(Default)]
struct Doubts {
    /// Of the grants that wait, or have waited since there was none.
    lowest_token: Option<Revision>,
    ended: BTreeSet<Revision>,
    are_all: bool,
}

impl Reads {
    pub(crate) fn gather(&mut self, what: Confirmed, now_ms: u64) {
        self.note_grant(&what);
        self.gathering.push(Waiting { since_ms: now_ms, what });
    }

    /// Confirmed already, at this index.
    pub(crate) fn gather_confirmed(&mut self, what: Confirmed, index: u64, now_ms: u64) {
        self.note_grant(&what);
        let waiting = Waiting { since_ms: now_ms, what };
        match self.confirmed.back_mut() {
            Some((at, together)) if *at == index => together.push(waiting),
            _ => self.confirmed.push_back((index, vec![waiting])),
        }
    }

    /// The leader's word on the entry at this index is under way.
    pub(crate) fn gather_vouched(&mut self, what: Confirmed, index: u64, now_ms: u64) {
        self.note_grant(&what);
        self.vouched.push((index, Waiting { since_ms: now_ms, what }));
    }

    /// It has come, for all entries up to the first, and holds once the second is applied.
    pub(crate) fn confirm_vouched(&mut self, upto: u64, committed: u64) {
        if self.vouched.is_empty() {
            return;
        }
        let (confirmed, rest) = std::mem::take(&mut self.vouched).into_iter().partition(|(index, _)| *index <= upto);
        self.vouched = rest;
        let confirmed: Vec<(u64, Waiting)> = confirmed;
        if !confirmed.is_empty() {
            self.confirmed.push_back((committed, confirmed.into_iter().map(|(_, waiting)| waiting).collect()));
        }
    }

    /// It has not come for a while: these are asked about in the usual way.
    fn ask_for_vouched(&mut self, now_ms: u64, patience_ms: u64) {
        if self.vouched.iter().any(|(_, waiting)| waiting.since_ms + patience_ms < now_ms) {
            self.gathering.extend(self.vouched.drain(..).map(|(_, waiting)| waiting));
        }
    }

    fn note_grant(&mut self, what: &Confirmed) {
        if let Confirmed::Grant { reply, .. } = what {
            let lowest = self.doubts.lowest_token.map_or(reply.token, |lowest| lowest.min(reply.token));
            self.doubts.lowest_token = Some(lowest);
        }
    }

    pub(crate) fn len(&self) -> usize {
        let issued: usize = self.issued.iter().map(|round| round.waiting.len()).sum();
        let confirmed: usize = self.confirmed.iter().map(|(_, waiting)| waiting.len()).sum();
        self.gathering.len() + self.vouched.len() + issued + confirmed
    }

    pub(crate) fn is_idle(&self) -> bool {
        let is_asking = !self.gathering.is_empty() || !self.vouched.is_empty() || !self.issued.is_empty();
        !is_asking && self.confirmed.is_empty()
    }

    /// Somebody's tenure has ended.
    pub(crate) fn doubt(&mut self, token: Revision) {
        if self.doubts.lowest_token.is_some_and(|lowest| token >= lowest) {
            self.doubts.ended.insert(token);
            self.doubts.are_all |= self.doubts.ended.len() > MOST_DOUBTS;
        }
    }

    /// The state is another one.
    pub(crate) fn doubt_all(&mut self) {
        self.doubts.are_all = true;
    }

    fn is_doubtful(&self, token: Revision) -> bool {
        self.doubts.are_all || self.doubts.ended.contains(&token)
    }

    fn forget_doubts(&mut self) {
        if self.doubts.are_all {
            self.doubts.ended.clear();
        }
        if self.is_idle() {
            self.doubts = Doubts::default();
        }
    }

    /// Starts a confirmation for all that has gathered; gives its context, never used twice.
    pub(crate) fn issue(&mut self, now_ms: u64) -> Option<u64> {
        if self.gathering.is_empty() {
            return None;
        }
        #[cfg(feature = "planted")]
        if tenure_machine::planted::is(tenure_machine::planted::Bug::ShareContext)
            && let Some(round) = self.issued.back_mut()
        {
            round.waiting.append(&mut self.gathering);
            return None;
        }
        self.next_context += 1;
        let waiting = std::mem::take(&mut self.gathering);
        self.issued.push_back(Round { contexts: vec![self.next_context], issued_ms: now_ms, waiting });
        Some(self.next_context)
    }

    pub(crate) fn confirm(&mut self, context: u64, index: u64) {
        while let Some(position) = self.issued.iter().position(|round| round.contexts.contains(&context)) {
            let round = self.issued.remove(position).expect("position is inside");
            self.confirmed.push_back((index, round.waiting));
        }
    }

    /// All that may be done now that `applied` is applied.
    pub(crate) fn take_ready(&mut self, applied: u64) -> Option<Vec<Waiting>> {
        let position = self.confirmed.iter().position(|(index, _)| *index <= applied)?;
        self.confirmed.remove(position).map(|(_, waiting)| waiting)
    }

    /// Asks again, under one new context, for all rounds that were not answered in time. An answer to an older
    /// question is still good for those who waited when it was asked, and for nobody else.
    pub(crate) fn retry(&mut self, now_ms: u64, patience_ms: u64) -> Option<u64> {
        let late = self.issued.iter_mut().filter(|round| round.issued_ms + patience_ms < now_ms);
        let mut context = None;
        for round in late {
            if context.is_none() {
                self.next_context += 1;
                context = Some(self.next_context);
            }
            round.contexts.extend(context);
            round.issued_ms = now_ms;
        }
        context
    }

    /// Whoever was asked leads no more, or may have answered long ago.
    pub(crate) fn begin_again(&mut self) {
        self.gathering.extend(self.vouched.drain(..).map(|(_, waiting)| waiting));
        for round in self.issued.drain(..) {
            self.gathering.extend(round.waiting);
        }
    }

    /// Takes out every call that has waited since before `since_ms`.
    pub(crate) fn take_older_than(&mut self, since_ms: u64) -> Vec<Waiting> {
        self.take_where(|waiting| waiting.since_ms < since_ms)
    }

    pub(crate) fn take_calls(&mut self, is_taken: impl Fn(CallId) -> bool) -> Vec<Waiting> {
        self.take_where(|waiting| waiting.what.call().is_some_and(&is_taken))
    }

    /// Not a grant: that stands in the log.
    pub(crate) fn take_reads(&mut self, call: CallId) -> Vec<Waiting> {
        self.take_where(|waiting| matches!(waiting.what, Confirmed::Read { call: other, .. } if other == call))
    }

    /// What only the leader of its term may answer, when it leads no more.
    pub(crate) fn take_questions(&mut self) -> Vec<CallId> {
        let questions = self.take_where(|waiting| matches!(waiting.what, Confirmed::Question { .. }));
        questions.into_iter().filter_map(|waiting| waiting.what.call()).collect()
    }

    fn take_where(&mut self, matches: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut taken = Vec::new();
        taken.extend(self.vouched.extract_if(.., |(_, waiting)| matches(waiting)).map(|(_, waiting)| waiting));
        let rounds = self.issued.iter_mut().map(|round| &mut round.waiting);
        let confirmed = self.confirmed.iter_mut().map(|(_, waiting)| waiting);
        for waiting in std::iter::once(&mut self.gathering).chain(rounds).chain(confirmed) {
            if waiting.iter().any(&matches) {
                let (out, kept) = std::mem::take(waiting).into_iter().partition(&matches);
                *waiting = kept;
                taken.extend::<Vec<Waiting>>(out);
            }
        }
        taken
    }
}
