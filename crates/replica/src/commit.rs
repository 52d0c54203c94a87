//! From a committed entry to its effects: apply it, and tell everybody whom it concerns.

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};
use tenure_machine::{
    Applied, Command, LeaseChange, LeaseId, LockChange, LockEnd, LockReply, Refusal, Reply, SharedBytes, codec,
};

#[cfg(feature = "planted")]
use tenure_machine::planted::{self, Bug};

use crate::deadlines::Unread;
use crate::log::entry_bytes;
use crate::members::described;
use crate::propose::{Proposal, QueuedCall, Waits, keys_of};
use crate::question::{LeaderAnswer, Question};
use crate::read::Confirmed;
use crate::{Answered, CallId, Config, Failure, Output, Replica, SessionNotice};

/// Leases that a new leader looks at in one step.
const LEASES_AT_ONCE: usize = 4096;

impl Replica {
    /// Applies what is committed. A change of members, and what follows it, waits until it is durable here that it is
    /// committed: by then those whom it removes may be gone, and a member that forgot it would need their votes.
    pub(crate) fn apply(&mut self, committed: Vec<Entry>) {
        let mut last = None;
        for entry in committed {
            if self.held_until.is_some() && (!self.held.is_empty() || is_change(&entry)) {
                self.held.push(entry);
                continue;
            }
            last = Some(entry.index);
            self.snapshot.log_bytes_since += entry_bytes(&entry);
            self.apply_entry(entry);
            if self.failed {
                return;
            }
        }
        let Some(last) = last else { return };
        // Raft may append by itself here: that a joint configuration is left.
        self.hand_to_raft();
        self.node.advance_apply_to(last);
        let Config { log_tail_bytes, catch_up_bytes, .. } = self.config;
        let needed = self.needed_by_others();
        self.node.mut_store().trim(last, log_tail_bytes, needed, catch_up_bytes);
    }

    pub(crate) fn apply_held(&mut self) {
        if self.held_until.take_if(|number| *number <= self.persist_done).is_some() {
            let held = std::mem::take(&mut self.held);
            if self.is_leader() {
                // Those who are about to be left out are still told, see `withhold_change`.
                self.node.raft.bcast_append();
            }
            self.apply(held);
            self.send_withheld_answers();
            self.do_confirmed();
        }
    }

    /// Up to here all have the log, or will have it by a snapshot, but for those who are not there.
    fn needed_by_others(&self) -> u64 {
        if !self.is_leader() {
            return u64::MAX;
        }
        let active = self.node.raft.prs().iter().filter(|(member, _)| self.is_active(**member));
        active.map(|(_, progress)| progress.matched.max(progress.pending_snapshot)).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn apply_entry(&mut self, entry: Entry) {
        let (index, term) = (entry.index, entry.term);
        let proposal = self.take_proposal(index, term);
        if is_change(&entry) {
            return self.apply_change(entry, proposal.map(|proposal| proposal.waits));
        }
        if entry.data.is_empty() {
            self.machine.skip(index, term);
            if let Some(Proposal { waits: Waits::Call(call), .. }) = proposal {
                // Raft makes nothing of a change of members that comes too soon.
                self.fail(call, Failure::ChangeUnderWay);
            }
            if !self.leading && self.is_leader() && term == self.node.raft.term {
                self.begin_leading();
            }
            return;
        }
        let decoded;
        let envelope = match &proposal {
            Some(proposal) => {
                debug_assert_eq!(codec::decode(entry.data).as_ref(), Ok(&proposal.envelope));
                &proposal.envelope
            }
            None => match codec::decode(entry.data) {
                Ok(envelope) => {
                    decoded = envelope;
                    &decoded
                }
                Err(error) => return self.give_up_over(format!("log entry {index} of term {term}: {error}")),
            },
        };
        let described = described(&envelope.command);
        let applied = match described.iter().all(|member| self.is_member(*member)) {
            true => self.machine.apply(index, term, envelope),
            // A member that was removed meanwhile must not come back into the list by what it says of itself.
            false => self.machine.refuse(index, term, envelope, Refusal::MemberNotFound),
        };
        if !described.is_empty() {
            self.tell_members();
        }
        let term = self.node.raft.term;
        let now_ms = self.running_ms();
        self.lock_hub.feed(&applied.lock_changes, (applied.revision, term), now_ms, &mut self.outputs);
        // A session that gives something back over its own stream knows. Another caller that has its token may do so, too.
        let is_given_back = match &envelope.command {
            Command::Unlock(unlock) => unlock.epoch != 0,
            Command::Leave(_) => true,
            _ => false,
        };
        if !is_given_back {
            self.tell_sessions_of_losses(&applied.lock_changes);
        }
        match &envelope.command {
            Command::LeaseGrant(grant) => drop(self.granting.remove(&grant.lease)),
            Command::Alarm(_) => self.alarm_asked = false,
            Command::CompareStates if envelope.origin.is_none() => self.take_view_to_compare(),
            Command::Compact { .. } => self.compact_asked = false,
            Command::RaiseLevel { .. } => self.levels.raised(),
            #[cfg(feature = "planted")]
            Command::Continue if planted::is(Bug::ContinueOnce) => {}
            Command::Continue if envelope.origin.is_none() => self.continue_asked = false,
            Command::LeaseCheckpoint { left_ms, .. } => self.checkpointed(left_ms.clone()),
            _ => {}
        }
        let (origin, is_alarm) = (envelope.origin, matches!(envelope.command, Command::Alarm(_)));
        let waits = match origin {
            Some(origin) => self.take_forward(&origin, &applied.reply),
            None => proposal.map(|proposal| proposal.waits),
        };
        self.tell(applied, waits);
        if is_alarm {
            self.follow_alarms();
        }
        if self.leading {
            self.go_on();
        }
    }

    pub(crate) fn give_up_over(&mut self, reason: String) {
        self.failed = true;
        self.outputs.push(Output::Fatal(reason));
    }

    /// The proposal that this entry is, if it is one of this member's own. Others for the same index are lost.
    pub(crate) fn take_proposal(&mut self, index: u64, term: u64) -> Option<Proposal> {
        if self.proposals.has_before(index) {
            for skipped in self.proposals.take_before(index) {
                self.look_up_skipped(&skipped.envelope.command, skipped.waits);
            }
        }
        // Terms never fall within a log: behind an entry of this term none of an earlier one is ever committed.
        if self.proposals.has_earlier_than(term) {
            for lost in self.proposals.take_earlier_than(term) {
                self.lose(lost.waits);
            }
        }
        let mut found = None;
        while let Some(proposal) = self.proposals.take_at(index) {
            match proposal.term == term {
                true => found = Some(proposal),
                false => self.lose(proposal.waits),
            }
        }
        found
    }

    /// The command has no effect, now or later: another leader's entry is committed at its index, or no log has it.
    pub(crate) fn lose(&mut self, waits: Waits) {
        match waits {
            Waits::Expiry(leases) => self.keep_leases(&leases),
            waits => {
                if let Some(call) = waits.call() {
                    self.fail(call, Failure::LeaderChanged);
                }
            }
        }
    }

    /// The first entry of this member's term is applied: from here on it knows all that was granted
    /// before. Nobody could renew during the election, so every lease starts anew, or from what was noted of it, with
    /// a margin.
    pub(crate) fn begin_leading(&mut self) {
        self.leading = true;
        self.deadlines.begin(self.running_ms());
        self.read_leases();
        self.welcome_all();
        self.raise_level();
    }

    /// Gives the next part of the leases their time, see [`crate::deadlines::Unread`].
    pub(crate) fn read_leases(&mut self) {
        let Some(Unread { after, since_ms }) = self.deadlines.unread() else { return };
        let leases = self.machine.state().leases_left_ms_after(after);
        let part: Vec<_> = leases.take(LEASES_AT_ONCE).collect();
        let last = part.last().map(|(lease, ..)| *lease);
        self.deadlines.note_read(last.filter(|_| part.len() == LEASES_AT_ONCE));
        for (lease, ttl_ms, left_ms) in part {
            #[cfg(feature = "planted")]
            let left_ms = if planted::is(Bug::FreeTheLiving) { 0 } else { left_ms };
            // It may have been renewed, or granted, since.
            if self.deadlines.deadline(lease).is_none() {
                self.give_time_since(since_ms, lease, ttl_ms, left_ms + self.new_leader_margin_ms());
            }
        }
    }

    pub(crate) fn new_leader_margin_ms(&self) -> u64 {
        2 * self.config.election_max_ms
    }

    pub(crate) fn tell(&mut self, applied: Applied, waits: Option<Waits>) {
        if let Some(commit) = &applied.commit {
            self.hub.feed(commit);
        }
        for change in &applied.lease_changes {
            self.tell_lease(*change);
        }
        for change in applied.lock_changes {
            self.tell_lock(change);
        }
        let Some(waits) = waits else { return };
        let revision = applied.revision;
        match (waits, applied.reply) {
            (Waits::Call(call), Ok(Reply::MembersChanged)) => self.tell_members_changed(call),
            (Waits::Call(call), reply) => {
                self.answer_at(call, revision, reply.map(Answered::Reply).map_err(Failure::from))
            }
            (Waits::Lock { call, joiner, .. }, Ok(Reply::Lock(reply))) => self.tell_place(call, joiner, reply),
            (Waits::Lock { call: Some(call), .. }, Ok(Reply::Busy(busy))) => {
                self.answer_at(call, revision, Ok(Answered::Reply(Reply::Busy(busy))))
            }
            (Waits::Lock { call: Some(call), .. }, Err(refusal)) => {
                self.answer_at(call, revision, Err(Failure::Refused(refusal)))
            }
            // It asked for several locks again, of which one had ended. A call that waits is told the same.
            (Waits::Lock { call: Some(call), .. }, Ok(Reply::Left { .. })) => {
                self.answer_at(call, revision, Err(Failure::EntryEnded(LockEnd::Released)))
            }
            (Waits::Lock { .. }, _) => {}
            (Waits::Expiry(leases), _) => self.keep_leases(&leases),
            (Waits::Nobody, _) => {}
        }
    }

    /// A Lock has taken its place.
    fn tell_place(&mut self, call: Option<CallId>, joiner: u128, reply: LockReply) {
        #[cfg(feature = "planted")]
        if let Some(call) = call.filter(|_| reply.granted && planted::is(Bug::GrantUnconfirmed)) {
            return self.answer(call, Ok(Answered::Lock(reply)));
        }
        match call {
            Some(call) if reply.granted => self.tell_grant(Confirmed::Grant { call, reply, joiner }),
            Some(call) => self.queue(call, joiner, reply),
            None => self.leave(&reply, joiner),
        }
    }

    fn queue(&mut self, call: CallId, joiner: u128, reply: LockReply) {
        let state = self.machine.state();
        let is_granted =
            |key: &SharedBytes| state.lock_entry(key).is_some_and(|(_, entry)| entry.granted_wall_ms.is_some());
        let awaited = keys_of(&reply).filter(|key| !is_granted(key)).cloned().collect();
        self.outputs.push(Output::Queued { call, ahead: reply.ahead });
        self.queued.insert(QueuedCall { call, joiner, reply, awaited });
    }

    pub(crate) fn tell_lease(&mut self, change: LeaseChange) {
        if !self.leading {
            return;
        }
        match change {
            LeaseChange::Granted { lease, ttl_ms } => {
                self.give_time(lease, ttl_ms, ttl_ms);
                self.deadlines.note_granted(lease);
            }
            LeaseChange::Renewed { lease, ttl_ms } => self.renewed_by_lock(lease, ttl_ms),
            LeaseChange::Ended { lease } => {
                let mut askers = self.deadlines.remove(lease);
                askers.extend(self.checkpoints.remove(lease));
                for asker in askers {
                    self.tell_asker(asker, LeaderAnswer::KeptAlive { ttl_ms: None });
                }
            }
        }
    }

    pub(crate) fn tell_lock(&mut self, change: LockChange) {
        match change {
            LockChange::Granted(entry) => {
                for QueuedCall { call, reply, joiner, .. } in self.queued.take_granted(&entry.key) {
                    // Of several names the first one's slot counts, which may have been granted earlier.
                    let slot = self.machine.state().lock_entry(&reply.key).map_or(0, |(_, entry)| entry.slot);
                    let reply = LockReply { granted: true, slot, ahead: 0, ..reply };
                    #[cfg(feature = "planted")]
                    if planted::is(Bug::GrantUnconfirmed) {
                        self.answer(call, Ok(Answered::Lock(reply)));
                        continue;
                    }
                    self.tell_grant(Confirmed::Grant { call, reply, joiner });
                }
            }
            LockChange::Ended { entry, cause, .. } => {
                self.reads.doubt(entry.token);
                for queued in self.queued.take_ended(&entry) {
                    self.leave(&queued.reply, queued.joiner);
                    self.fail(queued.call, Failure::EntryEnded(cause));
                }
            }
        }
    }

    fn tell_sessions_of_losses(&mut self, changes: &[LockChange]) {
        for change in changes {
            if let LockChange::Ended { entry, cause, .. } = change
                && entry.granted_wall_ms.is_some()
                && let Some(stream) = self.sessions.get(&entry.lease)
            {
                let name = Bytes::copy_from_slice(change.name());
                let notice = SessionNotice::Lost { name, token: entry.token, cause: *cause };
                self.outputs.push(Output::Session { stream: *stream, notice });
            }
        }
    }

    /// Leases whose expiry is decided: those that are still there live on.
    pub(crate) fn keep_leases(&mut self, leases: &[LeaseId]) {
        self.keep_leases_for(self.config.election_max_ms, leases);
    }

    /// Those that are still there live on, for this long at least.
    pub(crate) fn keep_leases_for(&mut self, least_ms: u64, leases: &[LeaseId]) {
        let (now_ms, retry) = (self.running_ms(), self.running_ms() + least_ms);
        for lease in leases {
            for asker in self.deadlines.keep(*lease, retry) {
                let question = Question::KeepAlive { lease: *lease, epoch: 0 };
                self.reads.gather(Confirmed::Question { asker, question }, now_ms);
            }
        }
    }
}

pub(crate) fn is_change(entry: &Entry) -> bool {
    entry.entry_type() != EntryType::EntryNormal
}
