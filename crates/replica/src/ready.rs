//! Between raft and the driver: messages that come in, and what raft has ready, taken apart in the right order.

use raft::GetEntriesContext;
use raft::eraftpb::{Entry, Message, MessageType};
use tenure_machine::MemberId;

use crate::commit::is_change;
use crate::message;
use crate::{HardState, LogEntry, Output, Persist, Replica};

impl Replica {
    /// Turns raft until it stands still.
    pub(crate) fn crank(&mut self) {
        // Not as soon as it is known to be durable: watches take what is applied when all that came in is taken.
        self.apply_held();
        loop {
            self.note_role();
            if self.unsent_due_ms().is_some_and(|due_ms| due_ms <= self.running_ms()) {
                self.send_unsent();
            }
            self.seek_successor();
            self.send_forwards();
            self.send_questions();
            self.issue_reads();
            self.hand_to_raft();
            if !self.node.has_ready() {
                break;
            }
            self.take_ready();
            if self.failed {
                break;
            }
        }
    }

    pub(crate) fn take_raft_message(&mut self, from: MemberId, mut message: Message) {
        if message.to == self.config.member
            && message.from == from
            && (message::is_sound(&message, self.node.raft.raft_log.last_index()) || self.has_already(&message))
            && (message.msg_type() != MessageType::MsgTimeoutNow || self.may_campaign())
        {
            if message.msg_type() == MessageType::MsgReadIndex {
                if !self.is_leader() {
                    // Whoever asked will ask the next one.
                    return;
                }
                if self.is_confirmed_by(from, message.term) {
                    return self.answer_read_index(message);
                }
                // To raft such questions have no term.
                message.term = 0;
            }
            if message.msg_type() == MessageType::MsgAppend
                && (self.holds_log_still(&message) || self.stop_before_later_level(&message))
            {
                return;
            }
            let (kind, term, index, commit) = (message.msg_type(), message.term, message.index, message.commit);
            let along = match kind {
                MessageType::MsgAppend | MessageType::MsgAppendResponse => std::mem::take(&mut message.context),
                _ => Default::default(),
            };
            let is_acknowledgement = kind == MessageType::MsgAppendResponse && !message.reject;
            self.note_late_answer(&message);
            let _ = self.node.step(message);
            self.note_role();
            if is_acknowledgement {
                self.end_known_snapshot(from, index);
            }
            if !along.is_empty() {
                match kind {
                    MessageType::MsgAppend => self.take_vouch(from, term, commit, &along),
                    _ => self.take_question(from, term, index, along),
                }
            }
            if self.node.raft.leader_id == from {
                self.heard_leader_ms = self.running_ms();
            }
        }
    }

    /// The offer of a snapshot that this member is past: raft takes nothing of it, but says how far it is. Otherwise
    /// the leader would offer it for ever.
    fn has_already(&self, message: &Message) -> bool {
        message.msg_type() == MessageType::MsgSnapshot
            && !self.wants_state()
            && message.term < u64::MAX / 2
            && message.get_snapshot().get_metadata().index <= self.machine.applied_index()
    }

    pub(crate) fn take_ready(&mut self) {
        let mut ready = self.node.ready();
        let number = ready.number();
        self.last_ready = number;
        if let Some(state) = ready.hs().filter(|state| state.term > self.term_asked.0) {
            self.term_asked = (state.term, number);
        }
        let is_term_durable = self.term_asked.1 <= self.persist_done;
        let mut messages = Vec::new();
        for mut message in ready.take_messages() {
            self.withhold_change(&mut message);
            match message.msg_type() {
                _ if self.is_said_already(&message) => {}
                MessageType::MsgReadIndexResp if is_term_durable => self.send_read_index(message),
                _ if is_term_durable => {
                    self.vouch_along(&mut message);
                    self.send(&message)
                }
                // Whoever votes alone leads at once, and could forget it: what learners hear of a term that comes
                // twice would not agree.
                MessageType::MsgSnapshot => {
                    self.snapshot_sent(message.to, message.get_snapshot().get_metadata().index, false)
                }
                _ => messages.push((message.to, message::encode_raft(&message))),
            }
        }
        for mut message in ready.take_persisted_messages() {
            match message.msg_type() {
                // A question promises nothing, and need not wait until something is durable.
                MessageType::MsgReadIndex => {
                    message.term = self.node.raft.term;
                    self.send(&message);
                }
                // Of a leader that is none any more.
                MessageType::MsgSnapshot => {}
                MessageType::MsgAppendResponse if self.is_acknowledged_already(&message) => {}
                MessageType::MsgAppendResponse => {
                    self.ask_along(&mut message);
                    messages.push((message.to, message::encode_raft(&message)));
                }
                _ => messages.push((message.to, message::encode_raft(&message))),
            }
        }
        let mut hard_state = ready.hs().map(hard_state);
        let entries = ready.take_entries();
        let mut sync = ready.must_sync();
        let snapshot = self.begin_install(number, ready.snapshot());
        self.node.mut_store().append(&entries);
        let read_states = ready.take_read_states();
        let committed = ready.take_committed_entries();
        let changes_members = committed.iter().any(is_change);
        #[cfg(feature = "planted")]
        let changes_members =
            changes_members && !tenure_machine::planted::is(tenure_machine::planted::Bug::ForgetChange);
        if changes_members {
            hard_state = Some(self::hard_state(&self.node.raft.hard_state()));
            sync = true;
            self.held_until = Some(number);
        }
        let is_leader = self.is_leader();
        self.node.advance_append_async(ready);
        // Rule 5: all that must be durable, or must wait for what is, goes through the log in order. Only a commit
        // index that comes alone is left out: it is found again by itself, and a follower's goes with what comes next.
        if sync || !entries.is_empty() || !messages.is_empty() {
            if std::mem::take(&mut self.is_commit_unsaved) && hard_state.is_none() {
                hard_state = Some(self::hard_state(&self.node.raft.hard_state()));
            }
            let entries = entries.into_iter().map(log_entry).collect();
            self.persist_asked = number;
            self.unpersisted_since_ms.get_or_insert(self.now.monotonic_ms - self.paused_ms);
            self.outputs.push(Output::Persist(Persist { number, snapshot, hard_state, entries, sync, messages }));
        } else {
            self.is_commit_unsaved |= !is_leader && hard_state.is_some();
            if self.persist_asked == self.persist_done {
                self.node.on_persist_ready(number);
            }
        }
        if snapshot.is_some() {
            self.adopt();
        }
        for read_state in read_states {
            if let Some(context) = self.own_context(&read_state.request_ctx) {
                self.reads.confirm(context, read_state.index);
            }
        }
        self.apply(committed);
        self.do_confirmed();
    }

    /// Nobody is told that a change of members is committed before it is applied here, and so durable: whom it removes
    /// ends, and a leader that had forgotten the change would wait for its vote.
    fn withhold_change(&self, message: &mut Message) {
        if matches!(message.msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat)
            && let Some(change) = self.unapplied_change(message.commit)
        {
            message.commit = change - 1;
        }
    }

    /// The index of a change of members that is committed, if it is no later than this and not applied yet.
    pub(crate) fn unapplied_change(&self, upto: u64) -> Option<u64> {
        #[cfg(feature = "planted")]
        if tenure_machine::planted::is(tenure_machine::planted::Bug::ForgetChange) {
            return None;
        }
        let raft = &self.node.raft;
        if !raft.has_pending_conf() || upto <= raft.raft_log.applied {
            return None;
        }
        let context = GetEntriesContext::empty(false);
        let entries = raft.raft_log.slice(raft.raft_log.applied + 1, upto + 1, None, context).unwrap_or_default();
        entries.iter().find(|entry| is_change(entry)).map(|change| change.index)
    }

    /// How far a member must have got to read tells it, too, what is committed. A smaller index would be wrong: what
    /// an earlier leader has acknowledged may lie beyond it. So the answer waits.
    pub(crate) fn send_read_index(&mut self, answer: Message) {
        match self.unapplied_change(answer.index) {
            Some(_) => self.withheld_answers.push(answer),
            None => self.send(&answer),
        }
    }

    pub(crate) fn send_withheld_answers(&mut self) {
        for answer in std::mem::take(&mut self.withheld_answers) {
            // Whoever asked another leader asks again.
            if self.is_leader() && answer.term == self.node.raft.term {
                self.send_read_index(answer);
            }
        }
    }

    pub(crate) fn persisted(&mut self, number: u64) {
        if number <= self.persist_done {
            return;
        }
        self.persist_done = number;
        let all_done = number >= self.persist_asked;
        self.unpersisted_since_ms = (!all_done).then_some(self.running_ms());
        // Readys behind the last one that went to the log had nothing to persist.
        self.node.on_persist_ready(if all_done { self.last_ready } else { number });
        self.installed(number);
    }

    pub(crate) fn send(&mut self, message: &Message) {
        let (to, bytes) = (message.to, message::encode_raft(message));
        self.outputs.push(match message.msg_type() {
            MessageType::MsgSnapshot => {
                Output::SendSnapshot { to, index: message.get_snapshot().get_metadata().index, message: bytes }
            }
            _ => Output::Send { to, message: bytes },
        });
    }
}

fn hard_state(state: &raft::eraftpb::HardState) -> HardState {
    HardState { term: state.term, vote: state.vote, commit: state.commit }
}

pub(crate) fn raft_entry(entry: LogEntry) -> Entry {
    Entry {
        entry_type: entry.kind as i32,
        term: entry.term,
        index: entry.index,
        data: entry.data,
        context: entry.context,
        ..Default::default()
    }
}

fn log_entry(entry: Entry) -> LogEntry {
    LogEntry {
        index: entry.index,
        term: entry.term,
        kind: entry.entry_type as u8,
        data: entry.data,
        context: entry.context,
    }
}
