//! From a command to an entry of the log, and what waits for it to be applied.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use tenure_machine::lock::entry_key;
#[cfg(feature = "planted")]
use tenure_machine::planted::{self, Bug};
use tenure_machine::{
    Alarm, AlarmChange, AlarmKind, Command, Envelope, LeaseId, Leave, Lock, LockEntry, LockReply, Mode, Op, Refusal,
    SharedBytes, Txn, codec,
};

use crate::members::changes_configuration;
use crate::read::Confirmed;
use crate::{CallId, Failure, Replica};

/// How often the leader notes which revision is how old, to compact by age.
const HISTORY_SAMPLE_MS: u64 = 60_000;

impl Replica {
    /// Into the log, by whoever leads; kept while nobody does.
    pub(crate) fn propose(&mut self, command: Command, waits: Waits) {
        self.propose_since(self.running_ms(), command, waits);
    }

    pub(crate) fn propose_since(&mut self, since_ms: u64, mut command: Command, mut waits: Waits) {
        if let Command::Leave(Leave { call: joiner, .. }) = command {
            if self.can_send() && self.unsent.iter().any(|unsent| unsent.waits.joiner() == Some(joiner)) {
                return self.unsent.push(Unsent { since_ms, command, waits });
            }
            match self.forwards.hold_leave(joiner, Unsent { since_ms, command, waits }) {
                Some(leave) => (command, waits) = (leave.command, leave.waits),
                None => return,
            }
        }
        if let Err(failure) = self.check_level_of(&command) {
            return waits.call().into_iter().for_each(|call| self.fail(call, failure.clone()));
        }
        if !self.is_leader() {
            match self.other_leader() {
                Some(_) => self.forward(command, waits, since_ms),
                None => self.unsent.push(Unsent { since_ms, command, waits }),
            }
            return;
        }
        // Somebody waits behind a place that is to be left: that must not be lost with this leadership.
        if matches!((&command, &waits), (Command::Leave(_), Waits::Nobody)) && !self.is_only_voter() {
            return self.forward(command, waits, since_ms);
        }
        let mut envelope = Envelope { wall_ms: 0, origin: None, command };
        match (self.append(&mut envelope), waits.call()) {
            (Ok((index, term)), _) => self.proposals.push(Proposal { index, term, since_ms, waits, envelope }),
            (Err(NotAppended::Refused(failure)), Some(call)) => self.fail(call, failure),
            (Err(NotAppended::Refused(Failure::Refused(_))), None) => {}
            // If it waited, a Lock that renews a lease could come before it.
            (Err(_), None) if matches!(waits, Waits::Expiry(_)) => {
                if let Waits::Expiry(leases) = waits {
                    self.keep_leases_for(self.config.heartbeat_ms, &leases);
                }
            }
            // If it waited, the next leader could be given it beside its own.
            (Err(_), None) if envelope.command == Command::Continue => self.continue_asked = false,
            // If it waited, it could be forwarded to the next leader and come between its comparison and the answers.
            (Err(_), None) if envelope.command == Command::CompareStates => self.compares.give_up(),
            (Err(_), _) => self.unsent.push(Unsent { since_ms, command: envelope.command, waits }),
        }
    }

    /// Into this leader's log, with its stamp; gives index and term.
    pub(crate) fn append(&mut self, envelope: &mut Envelope) -> Result<(u64, u64), NotAppended> {
        if self.is_over_quota() && self.grows(&envelope.command) {
            self.raise_no_space();
            return Err(NotAppended::Refused(Failure::Refused(Refusal::NoSpace)));
        }
        self.check_level_of(&envelope.command).map_err(NotAppended::Refused)?;
        if self.node.raft.lead_transferee.is_some() {
            return Err(NotAppended::NotNow);
        }
        envelope.wall_ms = self.now.wall_ms;
        match &envelope.command {
            Command::ChangeMembers(change) if changes_configuration(change) => {
                self.hand_to_raft();
                self.append_change(envelope, change)?;
            }
            _ => {
                self.encoded.clear();
                codec::encode(envelope, &mut self.encoded);
                if !self.has_room(self.encoded.len()) {
                    return Err(NotAppended::Refused(Failure::Overloaded));
                }
                // Commands that come together lie together: nothing is allocated for each.
                self.proposed.extend_from_slice(&self.encoded);
                self.gathered.bytes += self.encoded.len();
                let data = self.proposed.split().freeze();
                self.gathered.entries.push(Entry { data, ..Entry::default() });
            }
        }
        let raft = &self.node.raft;
        let (index, term) = (raft.raft_log.last_index() + self.gathered.entries.len() as u64, raft.term);
        if self.proposals.has_from(index) {
            self.proposals.displace_from(index);
        }
        match &envelope.command {
            Command::LeaseGrant(grant) => drop(self.granting.insert(grant.lease)),
            // Below level 1 it renews nothing.
            Command::Lock(lock) if self.config.highest_level >= 1 => self.locking.push_back((index, lock.lease)),
            _ => {}
        }
        Ok((index, term))
    }

    /// As raft would say it: one command may always be under way.
    fn has_room(&self, bytes: usize) -> bool {
        let under_way = self.node.raft.uncommitted_size() + self.gathered.bytes;
        under_way == 0 || under_way + bytes <= self.config.inflight_bytes as usize
    }

    /// What was gathered goes into raft's log in one message; before anything else is done with raft, so that each
    /// entry comes to the index that was reckoned with.
    pub(crate) fn hand_to_raft(&mut self) {
        if self.gathered.entries.is_empty() {
            return;
        }
        let Gathered { entries, .. } = std::mem::take(&mut self.gathered);
        let first = self.node.raft.raft_log.last_index() + 1;
        let mut message = Message { from: self.config.member, entries, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        if !self.is_leader() || self.node.raft.step(message).is_err() {
            // It was deposed or removed meanwhile. No log has these entries. What it noted of forwarded commands has no
            // meaning any more: whoever forwarded them asks the next leader.
            debug_assert!(
                !self.is_leader() || !self.is_member(self.config.member),
                "raft takes what a leader proposes"
            );
            for lost in self.proposals.take_from(first) {
                self.lose(lost.waits);
            }
        }
    }

    /// For a client: behind everything that came before it and was held back.
    pub(crate) fn propose_in_turn(&mut self, command: Command, waits: Waits) {
        self.send_unsent();
        self.propose(command, waits);
    }

    /// A place behind others is waited for by nobody yet. It is held back until the next command comes, or
    /// for a little while, so that the release which is likely to be that command need not wait until the
    /// place is durable.
    pub(crate) fn join(&mut self, call: CallId, lock: Box<Lock>) {
        if self.node.store().configuration().voters.is_empty() {
            // It is to join and has no state yet. It may be removed before it has, and would never see the place that it
            // has to leave.
            return self.fail(call, Failure::NoLeader);
        }
        let waits = Waits::for_lock(call, &lock);
        if !self.is_leader() {
            // Only a leader knows what is under way.
            return self.propose_in_turn(Command::Lock(lock), waits);
        }
        if self.can_wait(&lock) {
            self.unsent.push(Unsent { since_ms: self.running_ms(), command: Command::Lock(lock), waits });
        } else {
            self.propose_in_turn(Command::Lock(lock), waits);
        }
    }

    /// Whether a new place would stand behind so many that its turn cannot come before what is under way is done.
    pub(crate) fn can_wait(&self, lock: &Lock) -> bool {
        let state = self.machine.state();
        // Each command under way may end an entry, and so bring this one to its turn.
        let under_way = self.proposals.len();
        if self.config.join_patience_ms == 0 || lock.try_once || state.longest_lock_queue() <= under_way {
            return false;
        }
        let (entries, granted) = state.lock_counts(&lock.name);
        let ahead = match lock.mode {
            Mode::Exclusive => entries,
            // Those who share would be granted at once beside holders; behind others, they wait like everybody.
            Mode::Shared | Mode::Slots(_) => entries - granted,
            // Those who wait ahead may be waiting for this one.
            Mode::Barrier(_) => 0,
        };
        ahead > under_way && state.lock_entry(&entry_key(&lock.name, lock.lease)).is_none()
    }

    pub(crate) fn is_over_quota(&self) -> bool {
        self.config.quota_bytes > 0 && self.machine.state().bytes() > self.config.quota_bytes
    }

    /// Whether a command can make the store larger: such are refused once the quota is reached.
    fn grows(&self, command: &Command) -> bool {
        match command {
            Command::Put(_) | Command::LeaseGrant(_) => true,
            // To ask again for a place that one has adds nothing.
            Command::Lock(lock) => !self.has_place(&lock.leaves()),
            Command::Txn(txn) => txn_grows(txn),
            _ => false,
        }
    }

    pub(crate) fn raise_no_space(&mut self) {
        let alarm = Alarm { member: self.config.member, kind: AlarmKind::NoSpace };
        if !self.alarm_asked && !self.machine.state().alarms().contains(&alarm) {
            self.alarm_asked = true;
            self.propose(Command::Alarm(AlarmChange::Raise(alarm)), Waits::Nobody);
        }
    }

    /// Clears the alarm when the data, after it was beyond the quota, has become smaller by a tenth of it. An alarm
    /// that somebody raised by hand stays: its cause is not the size.
    pub(crate) fn clear_no_space(&mut self) {
        let state = self.machine.state();
        let is_raised = state.alarms().iter().any(|alarm| alarm.kind == AlarmKind::NoSpace);
        let quota_bytes = self.config.quota_bytes;
        let has_room = quota_bytes == 0 || state.bytes() <= quota_bytes - quota_bytes / 10;
        match (is_raised, has_room) {
            (true, false) => self.was_full = true,
            (true, true) if self.was_full && !self.alarm_asked => {
                self.alarm_asked = true;
                let cleared = Alarm { member: 0, kind: AlarmKind::NoSpace };
                self.propose(Command::Alarm(AlarmChange::Clear(cleared)), Waits::Nobody);
            }
            (true, true) => {}
            (false, _) => self.was_full = false,
        }
    }

    pub(crate) fn send_unsent(&mut self) {
        if !self.held_joins.is_empty() {
            self.append_held_joins();
        }
        if self.can_send() && !self.unsent.is_empty() {
            for Unsent { since_ms, command, waits } in std::mem::take(&mut self.unsent) {
                self.propose_since(since_ms, command, waits);
            }
        }
    }

    /// Somebody is there to propose to. A leader that is giving up its place takes no more.
    pub(crate) fn can_send(&self) -> bool {
        match self.is_leader() {
            true => self.node.raft.lead_transferee.is_none(),
            false => self.other_leader().is_some(),
        }
    }

    pub(crate) fn unsent_due_ms(&self) -> Option<u64> {
        let unsent = self.unsent.first().map(|unsent| unsent.since_ms);
        let held = self.held_joins.first().map(|held| held.since_ms);
        unsent.into_iter().chain(held).min().map(|since_ms| since_ms + self.config.join_patience_ms)
    }

    pub(crate) fn cancel(&mut self, call: CallId, leaves: Vec<Leave>) {
        match self.queued.take_call(call) {
            Some(queued) => self.leave(&queued.reply, queued.joiner),
            None => self.cancelled.push((call, leaves)),
        }
    }

    /// One walk over what waits for all cancelled calls of a step: clients leave in crowds.
    pub(crate) fn cancel_rest(&mut self) {
        if self.cancelled.is_empty() {
            return;
        }
        let mut cancelled = std::mem::take(&mut self.cancelled);
        cancelled.sort_unstable_by_key(|(call, _)| *call);
        let is_cancelled = |call: CallId| cancelled.binary_search_by_key(&call, |(call, _)| *call).is_ok();
        // A Lock that was not sent yet is forgotten, unless its session asks for a place that an earlier stream has taken,
        // only to leave it. Its leaves end that place only if the Lock has taken it over.
        let taking_over = cancelled.iter().filter(|(_, leaves)| self.has_place(leaves));
        let taking_over: BTreeSet<CallId> = taking_over.map(|(call, _)| *call).collect();
        let mut found = self.proposals.abandon_calls(is_cancelled);
        found.extend(self.forwards.abandon_calls(is_cancelled, |call| taking_over.contains(&call)));
        found.extend(self.questions.take_calls(is_cancelled));
        found.extend(self.membership.take_calls(is_cancelled));
        found.extend(self.compares.take_calls(is_cancelled));
        found.extend(self.cancel_transfers(is_cancelled));
        self.unsent.retain_mut(|unsent| match unsent.waits.call() {
            Some(call) if is_cancelled(call) => {
                found.push(call);
                unsent.waits.abandon();
                unsent.waits.is_in_session() && taking_over.contains(&call)
            }
            _ => true,
        });
        self.deadlines.forget_calls(is_cancelled);
        self.checkpoints.forget_calls(is_cancelled);
        // A snapshot that came in the same step may have put the call into a queue after it was cancelled.
        for (call, _) in &cancelled {
            if let Some(queued) = self.queued.take_call(*call) {
                found.push(*call);
                self.leave(&queued.reply, queued.joiner);
            }
        }
        for waiting in self.reads.take_calls(is_cancelled) {
            found.extend(waiting.what.call());
            self.give_up(&waiting.what);
        }
        found.sort_unstable();
        // The others were answered already, and the answer met nobody.
        for (_, leaves) in cancelled.into_iter().filter(|(call, _)| found.binary_search(call).is_err()) {
            for leave in leaves {
                self.propose(Command::Leave(leave), Waits::Nobody);
            }
        }
    }

    /// Whether one of the places that these would leave is taken, by whichever call of their lease.
    pub(crate) fn has_place(&self, leaves: &[Leave]) -> bool {
        leaves.iter().any(|leave| self.machine.state().lock_entry(&leave.key).is_some())
    }

    /// Nobody will be told of this; a lock that was about to be told is left.
    pub(crate) fn give_up(&mut self, what: &Confirmed) {
        if let Confirmed::Grant { reply, joiner, .. } = what {
            self.leave(reply, *joiner);
        }
    }

    /// Rule 1: the leave names the call that it cleans up after, so that it cannot free what a retry holds.
    pub(crate) fn leave(&mut self, reply: &LockReply, joiner: u128) {
        // A leave ends all places of its call that were taken together. But a later call of the same lease may have
        // taken over some of them, so each place that is there has a leave of its own.
        let state = self.machine.state();
        let keys: Vec<_> = keys_of(reply).filter(|key| state.lock_entry(key).is_some()).cloned().collect();
        for key in keys {
            let leave = Leave { key: Bytes::copy_from_slice(&key), call: joiner };
            self.propose(Command::Leave(leave), Waits::Nobody);
        }
    }

    pub(crate) fn expire_due(&mut self) {
        let state = self.machine.state();
        let cost = |lease| 1 + state.lease_key_count(lease);
        let (budget, patience_ms) = (self.config.expiry_budget, self.config.tick_ms);
        let mut leases = self.deadlines.take_due(self.running_ms(), budget, patience_ms, cost);
        let applied = self.machine.applied_index();
        while self.locking.front().is_some_and(|(index, _)| *index <= applied) {
            self.locking.pop_front();
        }
        if !leases.is_empty() && (!self.granting.is_empty() || !self.locking.is_empty()) {
            // Such an id is being revoked and granted anew, or its lease asks for a lock, which may renew it: an expiry
            // behind that would end a lease that has all of its time.
            let locking: BTreeSet<LeaseId> = self.locking.iter().map(|(_, lease)| *lease).collect();
            let is_kept = |lease: &LeaseId| self.granting.contains(lease) || locking.contains(lease);
            let (again, due): (Vec<_>, Vec<_>) = leases.into_iter().partition(is_kept);
            leases = due;
            self.keep_leases(&again);
        }
        if !leases.is_empty() {
            let command = Command::LeaseExpire { term: self.node.raft.term, leases: leases.clone() };
            self.propose(command, Waits::Expiry(leases));
        }
    }

    /// A lease with very many keys ends by several commands, and very many waiters are granted by several, one after the
    /// other, so that others have a turn between them.
    pub(crate) fn go_on(&mut self) {
        let state = self.machine.state();
        if self.continue_asked || !state.has_unfinished() {
            return;
        }
        // While no majority agrees about the state it takes none of these.
        if state.is_corrupt(0) {
            return;
        }
        self.continue_asked = true;
        #[cfg(feature = "planted")]
        if planted::is(Bug::ContinueAgain) {
            self.continue_asked = false;
        }
        self.propose(Command::Continue, Waits::Nobody);
    }

    /// Rule 8: history is bounded by age and by size.
    pub(crate) fn compact_history(&mut self) {
        let now_ms = self.now.monotonic_ms;
        let state = self.machine.state();
        let (revision, compacted) = (state.revision(), state.compacted_revision().max(1));
        let mut upto = 0;
        if self.config.history_age_ms > 0 {
            if self.history_samples.back().is_none_or(|(at, _)| now_ms - at >= HISTORY_SAMPLE_MS) {
                self.history_samples.push_back((now_ms, revision));
            }
            while let Some(&(at, sampled)) = self.history_samples.front()
                && now_ms - at >= self.config.history_age_ms
            {
                upto = sampled;
                self.history_samples.pop_front();
            }
        }
        let history_bytes = state.bytes().saturating_sub(state.bytes_live());
        // What was compacted but not yet freed still counts: only when that is gone is the size known.
        if self.config.history_bytes > 0 && history_bytes > self.config.history_bytes && !self.machine.trim(0) {
            upto = upto.max(compacted + (revision - compacted) / 2);
        }
        if upto > compacted && !self.compact_asked {
            self.compact_asked = true;
            self.propose(Command::Compact { revision: upto }, Waits::Nobody);
        }
    }
}

/// Why a leader did not take a command.
pub(crate) enum NotAppended {
    Refused(Failure),
    /// It is giving its place to another, who will take it.
    NotNow,
}

/// A command that is not proposed yet, because there is no leader or because it can wait.
pub(crate) struct Unsent {
    pub(crate) since_ms: u64,
    pub(crate) command: Command,
    pub(crate) waits: Waits,
}

/// Who is to be told what became of a proposal.
pub(crate) enum Waits {
    Call(CallId),
    /// A place in a queue; its call is answered at the grant. None = the call is gone, so the place is to be left.
    Lock {
        call: Option<CallId>,
        joiner: u128,
        /// It came over a session's stream. No earlier stream of the session has a call that still waits.
        in_session: bool,
    },
    /// The leader's own expiry of these leases.
    Expiry(Vec<LeaseId>),
    Nobody,
}

impl Waits {
    pub(crate) fn for_lock(call: CallId, lock: &Lock) -> Waits {
        Waits::Lock { call: Some(call), joiner: lock.call, in_session: lock.epoch != 0 }
    }

    pub(crate) fn call(&self) -> Option<CallId> {
        match self {
            Waits::Call(call) => Some(*call),
            Waits::Lock { call, .. } => *call,
            Waits::Expiry(_) | Waits::Nobody => None,
        }
    }

    pub(crate) fn joiner(&self) -> Option<u128> {
        match self {
            Waits::Lock { joiner, .. } => Some(*joiner),
            Waits::Call(_) | Waits::Expiry(_) | Waits::Nobody => None,
        }
    }

    pub(crate) fn is_in_session(&self) -> bool {
        matches!(self, Waits::Lock { in_session: true, .. })
    }

    /// The call is gone. A place that it may still get is left as soon as it is known.
    pub(crate) fn abandon(&mut self) {
        match self {
            Waits::Call(_) => *self = Waits::Nobody,
            Waits::Lock { call, .. } => *call = None,
            Waits::Expiry(_) | Waits::Nobody => {}
        }
    }
}

pub(crate) struct Proposal {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) since_ms: u64,
    pub(crate) waits: Waits,
    /// As it stands in the log: whoever proposed it need not decode it again.
    pub(crate) envelope: Envelope,
}

/// Proposals in the order of their index.
#[derive(Default)]
pub(crate) struct Proposals {
    pending: VecDeque<Proposal>,
    /// Proposals of earlier terms whose entries this member's log has lost, by index and term. Another member may
    /// have them still, and may come to commit them. So they are not lost before an entry is applied that rules them
    /// out: another one at their index, or one of a later term before it.
    displaced: BTreeMap<(u64, u64), Proposal>,
}

impl Proposals {
    pub(crate) fn push(&mut self, proposal: Proposal) {
        self.pending.push_back(proposal);
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Those that somebody waits for.
    pub(crate) fn awaited(&self) -> usize {
        self.pending.iter().chain(self.displaced.values()).filter(|proposal| proposal.waits.call().is_some()).count()
    }

    /// All proposals before `index`.
    pub(crate) fn take_before(&mut self, index: u64) -> Vec<Proposal> {
        let count = self.pending.iter().take_while(|proposal| proposal.index < index).count();
        let mut taken: Vec<_> = self.pending.drain(..count).collect();
        let kept = self.displaced.split_off(&(index, 0));
        taken.extend(std::mem::replace(&mut self.displaced, kept).into_values());
        taken
    }

    /// This member leads in a later term and is about to append at `index`.
    fn displace_from(&mut self, index: u64) {
        for mut proposal in self.take_from(index) {
            // The deadlines of those leases went with the earlier leadership.
            if matches!(proposal.waits, Waits::Expiry(_)) {
                proposal.waits = Waits::Nobody;
            }
            self.displaced.insert((proposal.index, proposal.term), proposal);
        }
    }

    /// Proposals that stand at `index` or behind it.
    pub(crate) fn take_from(&mut self, index: u64) -> Vec<Proposal> {
        let count = self.pending.iter().rev().take_while(|proposal| proposal.index >= index).count();
        self.pending.drain(self.pending.len() - count..).collect()
    }

    /// The first proposal for `index` whose term is not ruled out yet; more than one if some are displaced.
    pub(crate) fn take_at(&mut self, index: u64) -> Option<Proposal> {
        if let Some(displaced) = self.displaced.first_entry().filter(|entry| entry.key().0 == index) {
            return Some(displaced.remove());
        }
        match self.pending.front().is_some_and(|proposal| proposal.index == index) {
            true => self.pending.pop_front(),
            false => None,
        }
    }

    pub(crate) fn has_before(&self, index: u64) -> bool {
        self.pending.front().is_some_and(|proposal| proposal.index < index)
            || self.displaced.first_key_value().is_some_and(|((displaced, _), _)| *displaced < index)
    }

    pub(crate) fn has_earlier_than(&self, term: u64) -> bool {
        self.pending.front().is_some_and(|proposal| proposal.term < term) || !self.displaced.is_empty()
    }

    /// All proposals of terms before this one.
    pub(crate) fn take_earlier_than(&mut self, term: u64) -> Vec<Proposal> {
        let count = self.pending.iter().take_while(|proposal| proposal.term < term).count();
        let mut taken: Vec<_> = self.pending.drain(..count).collect();
        let displaced = std::mem::take(&mut self.displaced).into_iter();
        let (earlier, kept): (Vec<_>, Vec<_>) = displaced.partition(|((_, displaced), _)| *displaced < term);
        self.displaced = kept.into_iter().collect();
        taken.extend(earlier.into_iter().map(|(_, proposal)| proposal));
        taken
    }

    pub(crate) fn has_from(&self, index: u64) -> bool {
        self.pending.back().is_some_and(|proposal| proposal.index >= index)
    }

    /// Gives up waiting for proposals older than `since_ms`; they stay, because they may still be applied.
    pub(crate) fn abandon_older_than(&mut self, since_ms: u64) -> Vec<CallId> {
        let mut calls = Vec::new();
        let pending = self.pending.iter_mut().take_while(|proposal| proposal.since_ms < since_ms);
        let displaced = self.displaced.values_mut().filter(|proposal| proposal.since_ms < since_ms);
        for proposal in pending.chain(displaced) {
            calls.extend(proposal.waits.call());
            proposal.waits.abandon();
        }
        calls
    }

    /// Gives the calls that were found.
    pub(crate) fn abandon_calls(&mut self, is_abandoned: impl Fn(CallId) -> bool) -> Vec<CallId> {
        let mut abandoned = Vec::new();
        for proposal in self.pending.iter_mut().chain(self.displaced.values_mut()) {
            if let Some(call) = proposal.waits.call().filter(|call| is_abandoned(*call)) {
                proposal.waits.abandon();
                abandoned.push(call);
            }
        }
        abandoned
    }
}

/// Commands on their way into raft's log, those of one step together.
#[derive(Default)]
pub(crate) struct Gathered {
    entries: Vec<Entry>,
    bytes: usize,
}

/// Calls that stand in queues and wait for their turn.
#[derive(Default)]
pub(crate) struct Queued {
    calls: BTreeMap<CallId, QueuedCall>,
    /// The calls that have a place under a key: more than one if the same lease has asked again. A call for several
    /// names is found under each of them, also under those that are granted already: it ends with any of its places.
    by_key: BTreeMap<SharedBytes, Vec<CallId>>,
}

#[derive(Clone)]
pub(crate) struct QueuedCall {
    pub(crate) call: CallId,
    pub(crate) joiner: u128,
    pub(crate) reply: LockReply,
    /// The entries that are not granted yet.
    pub(crate) awaited: Vec<SharedBytes>,
}

impl Queued {
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn insert(&mut self, queued: QueuedCall) {
        for key in keys_of(&queued.reply) {
            self.by_key.entry(key.clone()).or_default().push(queued.call);
        }
        self.calls.insert(queued.call, queued);
    }

    pub(crate) fn take_all(&mut self) -> Vec<QueuedCall> {
        self.by_key.clear();
        std::mem::take(&mut self.calls).into_values().collect()
    }

    /// An entry is granted: the calls that wait for nothing else.
    pub(crate) fn take_granted(&mut self, key: &SharedBytes) -> Vec<QueuedCall> {
        let mut granted = Vec::new();
        if self.by_key.is_empty() {
            return granted;
        }
        let mut waiting = Vec::new();
        for call in self.by_key.remove(key).unwrap_or_default() {
            let Some(queued) = self.calls.get_mut(&call) else { continue };
            queued.awaited.retain(|awaited| awaited != key);
            match queued.awaited.is_empty() {
                true => granted.extend(self.take_call(call)),
                false => waiting.push(call),
            }
        }
        if !waiting.is_empty() {
            self.by_key.insert(key.clone(), waiting);
        }
        granted
    }

    /// An entry is gone, granted or not: the calls that have it among their places.
    pub(crate) fn take_ended(&mut self, entry: &LockEntry) -> Vec<QueuedCall> {
        let Some(calls) = self.by_key.get(&entry.key) else { return Vec::new() };
        let has_it = |call: &CallId| self.calls.get(call).is_some_and(|queued| queued.reply.token == entry.token);
        #[cfg(feature = "planted")]
        let has_it = |call: &CallId| {
            let awaits = |queued: &QueuedCall| queued.awaited.contains(&entry.key);
            let is_told = !planted::is(Bug::EndAwaitedOnly) || self.calls.get(call).is_some_and(awaits);
            has_it(call) && is_told
        };
        let calls: Vec<CallId> = calls.iter().copied().filter(has_it).collect();
        calls.into_iter().filter_map(|call| self.take_call(call)).collect()
    }

    pub(crate) fn take_call(&mut self, call: CallId) -> Option<QueuedCall> {
        let queued = self.calls.remove(&call)?;
        for key in keys_of(&queued.reply) {
            if let Some(calls) = self.by_key.get_mut(key) {
                calls.retain(|other| *other != call);
                if calls.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
        Some(queued)
    }
}

/// The keys of all places that a Lock has taken.
pub(crate) fn keys_of(reply: &LockReply) -> impl Iterator<Item = &SharedBytes> {
    std::iter::once(&reply.key).chain(&reply.more_keys)
}

fn txn_grows(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| match op {
        Op::Put(_) => true,
        Op::Txn(txn) => txn_grows(txn),
        Op::Range(_) | Op::Delete(_) => false,
    })
}
