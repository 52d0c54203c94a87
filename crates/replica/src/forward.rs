//! Commands of a member that does not lead: forwarded to the leader, answered by this member's own apply.
//!
//! The network may lose a message, and a leader may die with what it was given, so a command is sent
//! again until it is seen applied here or the leader refuses it. It applies at most once because it
//! bears its origin (`machine/origin`). A refusal must be as certain as an answer. So the leader takes
//! forwarded commands only when it has applied all that was there before its term, and then knows of
//! each of them whether it is in the log; and a message counts only in the term that it was sent in:
//! what was refused cannot come in by a copy that was held up on its way.
//!
//! A member that starts anew draws a new boot, and the state forgets the old one. A command of the
//! old process that comes late must not make the state forget the new one instead. So a boot says
//! hello first and forwards under the number it is given in return, which a process that is gone
//! cannot hear any more.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tenure_machine::{Command, Envelope, MemberId, Origin, Refusal, Reply, View, codec};

use crate::message;
use crate::outbox::Outbox;
use crate::propose::{NotAppended, Unsent, Waits};
use crate::{CallId, Config, Failure, Output, Replica};

/// What one message carries of commands, about.
const MESSAGE_BYTES: usize = 1 << 20;

impl Replica {
    /// The leader, if there is one and it is not this member.
    pub(crate) fn other_leader(&self) -> Option<MemberId> {
        let leader = self.node.raft.leader_id;
        (leader != raft::INVALID_ID && leader != self.config.member).then_some(leader)
    }

    /// After how long something is sent again.
    pub(crate) fn patience_ms(&self) -> u64 {
        self.config.election_min_ms / 2
    }

    /// Has a command proposed by whoever leads, as soon as somebody does, until it is known what became of it.
    pub(crate) fn forward(&mut self, command: Command, waits: Waits, since_ms: u64) {
        if self.forwards.bytes > self.config.inflight_bytes
            && let Some(call) = waits.call()
        {
            return self.fail(call, Failure::Overloaded);
        }
        let forward = self.make_forward(command, waits, since_ms);
        self.forwards.add(forward);
    }

    fn make_forward(&self, command: Command, waits: Waits, since_ms: u64) -> Forward {
        let (sequence, settled_below) = self.forwards.pending.next_number();
        let Config { member, boot, .. } = self.config;
        let origin = Some(Origin { member, boot, sequence, settled_below });
        let mut data = Vec::new();
        codec::encode(&Envelope { wall_ms: 0, origin, command }, &mut data);
        Forward { data: data.into(), waits, since_ms }
    }

    /// Sends what was not sent yet, and all of it again to a new leader or after a while.
    pub(crate) fn send_forwards(&mut self) {
        for Unsent { since_ms, command, waits } in self.forwards.take_released() {
            self.propose_since(since_ms, command, waits);
        }
        let (term, boot, now_ms) = (self.node.raft.term, self.config.boot, self.running_ms());
        let patience_ms = self.patience_ms();
        if self.forwards.sent_in_term != term {
            self.forwards.begin_term(term);
        }
        let Some(leader) = self.other_leader() else {
            if self.leading {
                self.append_forwards(now_ms, patience_ms);
            }
            return;
        };
        let Some(session) = self.forwards.session else {
            if self.forwards.hello_ms.is_none_or(|hello_ms| hello_ms + patience_ms < now_ms) {
                self.forwards.hello_ms = Some(now_ms);
                self.outputs.push(Output::Send { to: leader, message: message::hello(term, boot) });
            }
            return;
        };
        for batch in self.forwards.take_due(now_ms, patience_ms) {
            let message = message::commands(term, boot, session, batch.iter());
            self.outputs.push(Output::Send { to: leader, message });
        }
    }

    /// What was to be forwarded by a member that has come to lead goes into its own log, with its origin.
    fn append_forwards(&mut self, now_ms: u64, patience_ms: u64) {
        for data in self.forwards.take_due(now_ms, patience_ms).into_iter().flatten() {
            if let Ok(envelope) = codec::decode(data) {
                self.take_command(self.config.member, self.config.boot, envelope);
            }
        }
    }

    pub(crate) fn take_welcome(&mut self, term: u64, boot: u64, session: u64) {
        if boot == self.config.boot && term == self.node.raft.term && self.forwards.sent_in_term == term {
            self.forwards.session = Some(session);
        }
    }

    pub(crate) fn take_refusals(&mut self, term: u64, boot: u64, refusals: Vec<(u64, Failure)>) {
        // What was sent again in a later term may have been taken there.
        if boot != self.config.boot || term != self.forwards.sent_in_term {
            return;
        }
        for (sequence, failure) in refusals {
            self.take_refusal(sequence, failure);
        }
    }

    fn take_refusal(&mut self, sequence: u64, failure: Failure) {
        let Some(Forward { data, waits, .. }) = self.forwards.settle(sequence) else { return };
        let Some(call) = waits.call() else { return self.forward_again(data, waits, failure) };
        self.fail(call, failure);
    }

    /// A leave must reach the log one day, and so must a session's Lock that was given up while an earlier stream has the
    /// place already.
    /// Under another number it is not refused for the old one.
    fn forward_again(&mut self, data: Bytes, waits: Waits, failure: Failure) {
        let Ok(envelope) = codec::decode(data) else { return };
        if let Command::Lock(lock) = &envelope.command
            && (!waits.is_in_session() || failure != Failure::Overloaded || !self.has_place(&lock.leaves()))
        {
            return;
        }
        let now_ms = self.running_ms();
        let forward = self.make_forward(envelope.command, waits, now_ms);
        self.forwards.add_for_later(forward, now_ms);
    }

    /// Who waits for a command that was just applied, if it was forwarded by this member.
    pub(crate) fn take_forward(&mut self, origin: &Origin, reply: &Result<Reply, Refusal>) -> Option<Waits> {
        self.greeted.applied(origin);
        if origin.member != self.config.member || origin.boot != self.config.boot {
            return None;
        }
        let Forward { data, waits, .. } = self.forwards.settle(origin.sequence)?;
        if matches!(reply, Ok(Reply::Duplicate)) {
            self.look_up_forward(data, waits);
            return None;
        }
        Some(waits)
    }

    pub(crate) fn take_hello(&mut self, from: MemberId, term: u64, boot: u64) {
        if self.is_leader() && term == self.node.raft.term && self.is_member(from) {
            self.greeted.offer(from, boot);
            self.welcome(from, boot);
        }
    }

    fn welcome(&mut self, to: MemberId, boot: u64) {
        // Before it leads for good a leader does not know what is in its log.
        if self.leading
            && let Some(session) = self.greeted.offered(to, boot)
        {
            let message = message::welcome(self.node.raft.term, boot, session);
            self.outputs.push(Output::Send { to, message });
        }
    }

    pub(crate) fn welcome_all(&mut self) {
        for (member, boot) in self.greeted.all_offered() {
            self.welcome(member, boot);
        }
    }

    pub(crate) fn take_commands(
        &mut self,
        from: MemberId,
        (term, boot, session): (u64, u64, u64),
        commands: Vec<Envelope>,
    ) {
        if !self.leading || term != self.node.raft.term || !self.is_member(from) {
            return;
        }
        if !self.greeted.enter(from, boot, session) {
            return;
        }
        for envelope in commands {
            match &envelope.command {
                // As at this member itself, see `join`: the next command takes it along.
                Command::Lock(lock) if self.can_wait(lock) => {
                    let since_ms = self.running_ms();
                    self.held_joins.push(HeldJoin { since_ms, term, from, boot, envelope });
                }
                _ => {
                    self.send_unsent();
                    self.take_command(from, boot, envelope);
                }
            }
        }
    }

    /// What was held back goes into the log. Nobody waits for what came in another term: it is sent again.
    pub(crate) fn append_held_joins(&mut self) {
        for HeldJoin { term, from, boot, envelope, .. } in std::mem::take(&mut self.held_joins) {
            // Of one that was removed meanwhile nobody knows what has had its effect already.
            if self.leading && term == self.node.raft.term && self.is_member(from) {
                self.take_command(from, boot, envelope);
            }
        }
    }

    fn take_command(&mut self, from: MemberId, boot: u64, mut envelope: Envelope) {
        let Some(origin) = envelope.origin.filter(|origin| (origin.member, origin.boot) == (from, boot)) else {
            return;
        };
        #[cfg(feature = "planted")]
        if tenure_machine::planted::is(tenure_machine::planted::Bug::ForgetOrigins) {
            let _ = self.append(&mut envelope);
            return;
        }
        if self.machine.state().is_settled(&origin) {
            return;
        }
        match self.greeted.fate(&origin) {
            Fate::InFlight => {}
            Fate::Refused(failure) => self.refuse(from, origin.sequence, failure),
            Fate::Unknown => match self.append(&mut envelope) {
                Ok(_) => self.greeted.note_taken(&origin),
                Err(NotAppended::NotNow) if self.roll_call.is_some() => {
                    let (since_ms, term) = (self.running_ms(), self.node.raft.term);
                    self.held_joins.push(HeldJoin { since_ms, term, from, boot, envelope });
                }
                Err(NotAppended::NotNow) => {}
                Err(NotAppended::Refused(failure)) => {
                    self.greeted.note_refused(&origin, failure.clone());
                    self.refuse(from, origin.sequence, failure);
                }
            },
        }
    }

    fn refuse(&mut self, to: MemberId, sequence: u64, failure: Failure) {
        if to == self.config.member {
            return self.take_refusal(sequence, failure);
        }
        self.refusals.entry(to).or_default().push((sequence, failure));
    }

    pub(crate) fn send_refusals(&mut self) {
        for (to, refusals) in std::mem::take(&mut self.refusals) {
            let Some(boot) = self.greeted.boot(to) else { continue };
            let message = message::refusals(self.node.raft.term, boot, &refusals);
            self.outputs.push(Output::Send { to, message });
        }
    }
}

/// A command of another member that can wait a little.
pub(crate) struct HeldJoin {
    pub(crate) since_ms: u64,
    term: u64,
    from: MemberId,
    boot: u64,
    envelope: Envelope,
}

/// What this member has forwarded and does not know the end of.
#[derive(Default)]
pub(crate) struct Forwards {
    pending: Outbox<Forward>,
    bytes: u64,
    /// Those that ask for a lock: the joiner, and the number under which it was forwarded.
    locks: BTreeSet<(u128, u64)>,
    /// Leaves of those, by the number of the Lock. The network may lose a message and deliver the next one, so a leave
    /// is proposed only when it is known what became of its Lock. Otherwise it could overtake the Lock, and be answered
    /// before the place that it leaves is taken.
    held_leaves: BTreeMap<u64, Vec<Unsent>>,
    /// Leaves whose Lock is settled.
    released: Vec<Unsent>,
    /// To whom it was sent: there is one leader in a term.
    sent_in_term: u64,
    session: Option<u64>,
    hello_ms: Option<u64>,
}

struct Forward {
    /// The whole envelope, encoded.
    data: Bytes,
    waits: Waits,
    since_ms: u64,
}

impl Forwards {
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    pub(crate) fn has_locks(&self) -> bool {
        !self.locks.is_empty()
    }

    fn add(&mut self, forward: Forward) {
        self.bytes += forward.data.len() as u64;
        let joiner = forward.waits.joiner();
        let sequence = self.pending.add(forward);
        self.locks.extend(joiner.map(|joiner| (joiner, sequence)));
    }

    /// See [`Outbox::add_for_later`].
    fn add_for_later(&mut self, forward: Forward, now_ms: u64) {
        self.bytes += forward.data.len() as u64;
        let joiner = forward.waits.joiner();
        let sequence = self.pending.add_for_later(forward, now_ms);
        self.locks.extend(joiner.map(|joiner| (joiner, sequence)));
    }

    fn discount(&mut self, sequence: u64, forward: &Forward) {
        self.bytes -= forward.data.len() as u64;
        if let Some(joiner) = forward.waits.joiner() {
            self.locks.remove(&(joiner, sequence));
            self.released.extend(self.held_leaves.remove(&sequence).into_iter().flatten());
        }
    }

    fn settle(&mut self, sequence: u64) -> Option<Forward> {
        let settled = self.pending.settle(sequence)?;
        self.discount(sequence, &settled);
        Some(settled)
    }

    /// Keeps a leave back while its Lock is on its way; gives it back if the Lock is not.
    pub(crate) fn hold_leave(&mut self, joiner: u128, leave: Unsent) -> Option<Unsent> {
        match self.locks.range((joiner, 0)..=(joiner, u64::MAX)).next_back() {
            Some((_, sequence)) => {
                self.held_leaves.entry(*sequence).or_default().push(leave);
                None
            }
            None => Some(leave),
        }
    }

    fn take_released(&mut self) -> Vec<Unsent> {
        std::mem::take(&mut self.released)
    }

    fn begin_term(&mut self, term: u64) {
        (self.sent_in_term, self.session, self.hello_ms) = (term, None, None);
        self.pending.send_all_again();
    }

    /// What is to be sent now, in portions for one message each.
    fn take_due(&mut self, now_ms: u64, patience_ms: u64) -> Vec<Vec<Bytes>> {
        let mut batches: Vec<Vec<Bytes>> = Vec::new();
        let mut bytes = MESSAGE_BYTES;
        for (_, forward) in self.pending.take_due(now_ms, patience_ms) {
            if bytes >= MESSAGE_BYTES {
                bytes = 0;
                batches.push(Vec::new());
            }
            bytes += forward.data.len();
            batches.last_mut().expect("one was begun").push(forward.data.clone());
        }
        batches
    }

    /// What a new state says to have had its effect; with whoever waits for it.
    pub(crate) fn take_settled(&mut self, member: MemberId, boot: u64, state: &View) -> Vec<(Bytes, Waits)> {
        let settled = self
            .pending
            .take_where(|sequence, _, _| state.is_settled(&Origin { member, boot, sequence, settled_below: 0 }));
        settled.iter().for_each(|(sequence, forward)| self.discount(*sequence, forward));
        settled.into_iter().map(|(_, forward)| (forward.data, forward.waits)).collect()
    }

    /// Gives up waiting for commands older than `since_ms`, and gives their calls.
    pub(crate) fn abandon_older_than(&mut self, since_ms: u64) -> Vec<CallId> {
        let mut calls = self.abandon_where(|forward, _| forward.since_ms < since_ms, |_| false);
        calls.extend(self.drop_held_leaves(|leave, _| leave.since_ms < since_ms));
        calls
    }

    /// The calls of `is_kept` may have been given up before they were sent, and are sent all the same.
    pub(crate) fn abandon_calls(
        &mut self,
        is_abandoned: impl Fn(CallId) -> bool,
        is_kept: impl Fn(CallId) -> bool,
    ) -> Vec<CallId> {
        let mut calls = self.abandon_where(|_, call| is_abandoned(call), is_kept);
        calls.extend(self.drop_held_leaves(|_, call| is_abandoned(call)));
        calls
    }

    /// No harm is done: a Lock that was given up leaves by itself when it is applied.
    fn drop_held_leaves(&mut self, is_dropped: impl Fn(&Unsent, CallId) -> bool) -> Vec<CallId> {
        let mut calls = Vec::new();
        for leaves in self.held_leaves.values_mut().chain([&mut self.released]) {
            leaves.retain(|leave| match leave.waits.call() {
                Some(call) if is_dropped(leave, call) => {
                    calls.push(call);
                    false
                }
                _ => true,
            });
        }
        calls
    }

    fn abandon_where(
        &mut self,
        is_abandoned: impl Fn(&Forward, CallId) -> bool,
        is_kept: impl Fn(CallId) -> bool,
    ) -> Vec<CallId> {
        let mut calls = Vec::new();
        let forgotten = self.pending.take_where(|_, was_sent, forward| {
            let Some(call) = forward.waits.call().filter(|call| is_abandoned(forward, *call)) else { return false };
            calls.push(call);
            forward.waits.abandon();
            // A place that may have been taken must be seen, to be left. All else may come to nothing.
            let must_be_seen = was_sent && forward.waits.joiner().is_some();
            let is_kept = forward.waits.is_in_session() && is_kept(call);
            !must_be_seen && !is_kept
        });
        forgotten.iter().for_each(|(sequence, forward)| self.discount(*sequence, forward));
        calls
    }
}

/// Who forwards to this leader in its term, and what became of that.
#[derive(Default)]
pub(crate) struct Greeted {
    last_session: u64,
    /// By member and boot.
    offered: BTreeMap<(MemberId, u64), u64>,
    guests: BTreeMap<MemberId, Guest>,
}

/// The newest boot of a member that has forwarded something.
#[derive(Default)]
struct Guest {
    boot: u64,
    session: u64,
    in_flight: BTreeSet<u64>,
    refused: BTreeMap<u64, Failure>,
}

enum Fate {
    Unknown,
    InFlight,
    Refused(Failure),
}

impl Greeted {
    fn offer(&mut self, member: MemberId, boot: u64) {
        if !self.offered.contains_key(&(member, boot)) {
            self.last_session += 1;
            self.offered.insert((member, boot), self.last_session);
        }
    }

    fn offered(&self, member: MemberId, boot: u64) -> Option<u64> {
        self.offered.get(&(member, boot)).copied()
    }

    fn all_offered(&self) -> Vec<(MemberId, u64)> {
        self.offered.keys().copied().collect()
    }

    /// A session that is used for the first time ends those offered before it.
    fn enter(&mut self, member: MemberId, boot: u64, session: u64) -> bool {
        if self.offered(member, boot) != Some(session) {
            return false;
        }
        let guest = self.guests.entry(member).or_default();
        if guest.session < session {
            *guest = Guest { boot, session, ..Guest::default() };
            self.offered.retain(|(other, _), offered| *other != member || *offered >= session);
        }
        guest.session == session
    }

    fn boot(&self, member: MemberId) -> Option<u64> {
        self.guests.get(&member).map(|guest| guest.boot)
    }

    fn fate(&mut self, origin: &Origin) -> Fate {
        let Some(guest) = self.guests.get_mut(&origin.member) else { return Fate::Unknown };
        // What the origin knows to be settled it will not ask about again.
        guest.refused = guest.refused.split_off(&origin.settled_below);
        match guest.refused.get(&origin.sequence) {
            Some(failure) => Fate::Refused(failure.clone()),
            None if guest.in_flight.contains(&origin.sequence) => Fate::InFlight,
            None => Fate::Unknown,
        }
    }

    fn guest(&mut self, origin: &Origin) -> &mut Guest {
        self.guests.entry(origin.member).or_insert_with(|| Guest { boot: origin.boot, ..Guest::default() })
    }

    fn note_taken(&mut self, origin: &Origin) {
        self.guest(origin).in_flight.insert(origin.sequence);
    }

    fn note_refused(&mut self, origin: &Origin, failure: Failure) {
        self.guest(origin).refused.insert(origin.sequence, failure);
    }

    fn applied(&mut self, origin: &Origin) {
        if let Some(guest) = self.guests.get_mut(&origin.member).filter(|guest| guest.boot == origin.boot) {
            guest.in_flight.remove(&origin.sequence);
        }
    }
}
