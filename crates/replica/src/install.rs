//! Snapshots: when one is written, how one reaches a member that lags, and what it means for those who wait there.
//!
//! Raft only knows that a member needs one. The driver streams the file beside raft's messages; on
//! the other side it is received whole, checked, made durable and read into a machine before the
//! replica hears of it. Then raft decides whether it is still wanted, and if so the machine is
//! replaced in one step. Whoever waits for something that may have happened in the entries that were
//! skipped is looked up in the new state (rule 7).

use bytes::Bytes;
use raft::eraftpb::{ConfState, Message, MessageType};
use raft::{ProgressState, SnapshotStatus};
use tenure_machine::{Command, LockEnd, LockReply, Machine, MemberId, Revision, SharedBytes, View, codec, lock};

#[cfg(feature = "planted")]
use tenure_machine::planted::{self, Bug};

use crate::config::{decode_configuration, encode_configuration};
use crate::level::check_level;
use crate::log::SavedSnapshot;
use crate::message::{self, PeerMessage};
use crate::propose::{QueuedCall, Waits, keys_of};
use crate::read::Confirmed;
use crate::{Failure, InstalledSnapshot, Output, Replica, SaveSnapshot, SessionNotice};

/// What is known of this member's own snapshots.
pub(crate) struct SnapshotProgress {
    pub(crate) bytes: u64,
    pub(crate) log_bytes_since: u64,
    /// Being written.
    pub(crate) saving: Option<SavedSnapshot>,
}

/// A snapshot that came from another member.
pub(crate) struct Arrived {
    machine: Box<Machine>,
    bytes: u64,
}

impl Replica {
    /// When the log has outgrown the data, a snapshot costs no more than the log did. When a member needs one
    /// and there is none that would do, it costs what it costs.
    pub(crate) fn ask_for_snapshot(&mut self) {
        let index = self.machine.applied_index();
        let saved = self.node.store().saved().index;
        let progress = &mut self.snapshot;
        let has_outgrown = progress.log_bytes_since > progress.bytes.max(self.config.snapshot_floor_bytes);
        let is_due = has_outgrown || self.node.store().is_snapshot_wanted();
        if !is_due || progress.saving.is_some() || index <= saved || self.installing.is_some() {
            return;
        }
        let term = self.machine.applied_term();
        let configuration = self.node.store().configuration().clone();
        progress.log_bytes_since = 0;
        self.outputs.push(Output::SaveSnapshot(Box::new(SaveSnapshot {
            index,
            term,
            configuration: encode_configuration(&configuration),
            view: self.machine.view(),
        })));
        progress.saving = Some(SavedSnapshot { index, term, configuration });
    }

    pub(crate) fn snapshot_saved(&mut self, index: u64, bytes: u64) {
        if let Some(saved) = self.snapshot.saving.take_if(|saving| saving.index == index) {
            self.snapshot.bytes = bytes;
            self.node.mut_store().snapshot_saved(saved);
        }
    }

    pub(crate) fn snapshot_failed(&mut self, index: u64) {
        self.snapshot.saving.take_if(|saving| saving.index == index);
    }

    /// A snapshot that did not arrive is sent again. One that did is raft's own business: the member says how far
    /// it is when it has installed it. But it may refuse it, or die before.
    pub(crate) fn snapshot_sent(&mut self, to: MemberId, index: u64, delivered: bool) {
        if !self.awaits_snapshot(to, index) {
            return;
        }
        if delivered {
            self.delivered.insert(to, (index, self.running_ms()));
        } else {
            self.node.report_snapshot(to, SnapshotStatus::Failure);
        }
    }

    /// A member that asked for a snapshot of what it had acknowledged already says that it has it. Raft waits for an
    /// acknowledgement of something new, and would send nothing more until then.
    pub(crate) fn end_known_snapshot(&mut self, member: MemberId, acknowledged: u64) {
        let progress = self.node.raft.prs().get(member);
        let is_known = |progress: &raft::Progress| {
            let pending = progress.pending_snapshot;
            progress.state == ProgressState::Snapshot && acknowledged >= pending && progress.matched >= pending
        };
        if self.is_leader() && progress.is_some_and(is_known) {
            self.delivered.remove(&member);
            self.node.report_snapshot(member, SnapshotStatus::Finish);
        }
    }

    pub(crate) fn give_up_delivered(&mut self) {
        let before_ms = self.running_ms().saturating_sub(10 * self.config.election_max_ms);
        let late: Vec<_> = self.delivered.iter().filter(|(_, (_, since_ms))| *since_ms < before_ms).collect();
        let late: Vec<_> = late.into_iter().map(|(member, (index, _))| (*member, *index)).collect();
        for (member, index) in late {
            self.delivered.remove(&member);
            if self.awaits_snapshot(member, index) {
                self.node.report_snapshot(member, SnapshotStatus::Failure);
            }
        }
    }

    fn awaits_snapshot(&self, member: MemberId, index: u64) -> bool {
        let progress = self.node.raft.prs().get(member);
        self.is_leader()
            && progress
                .is_some_and(|progress| progress.state == ProgressState::Snapshot && progress.pending_snapshot == index)
    }

    pub(crate) fn receive_snapshot(
        &mut self,
        from: MemberId,
        message: &Bytes,
        machine: Box<Machine>,
        configuration: &Bytes,
        bytes: u64,
    ) {
        let index = machine.applied_index();
        let Some(message) = self.sound_snapshot(from, message, &machine, configuration) else {
            return self.outputs.push(Output::SnapshotRefused { index });
        };
        if let Err(reason) = check_level(&self.config, machine.state().level()) {
            return self.give_up_over(reason);
        }
        self.arrived = Some(Arrived { machine, bytes });
        let _ = self.node.step(message);
        if self.node.raft.snap().is_some() {
            // Raft has the snapshot's configuration already. It has these changes in it.
            (self.held, self.held_until) = (Vec::new(), None);
        }
        // Whether raft takes it shows in what it has ready.
        self.crank();
        // That may have applied something, and what comes in later in this step stands behind it.
        #[cfg(feature = "planted")]
        let is_late = planted::is(Bug::NoticesOutOfOrder);
        #[cfg(not(feature = "planted"))]
        let is_late = false;
        if !is_late {
            self.hub.flush_fed(&self.machine, self.node.raft.term, &mut self.outputs);
        }
        if self.arrived.take().is_some() {
            self.outputs.push(Output::SnapshotRefused { index });
        }
    }

    /// The message, if it is one and speaks of this very snapshot.
    fn sound_snapshot(
        &self,
        from: MemberId,
        message: &Bytes,
        machine: &Machine,
        configuration: &Bytes,
    ) -> Option<Message> {
        let Some(PeerMessage::Raft(message)) = message::decode(message) else { return None };
        let configuration = decode_configuration(configuration)?;
        let metadata = message.get_snapshot().get_metadata();
        let is_sound = (message.msg_type(), message.from, message.to)
            == (MessageType::MsgSnapshot, from, self.config.member)
            && (metadata.index, metadata.term) == (machine.applied_index(), machine.applied_term())
            && message.term < u64::MAX / 2
            && *metadata.get_conf_state() == configuration
            && is_possible(&configuration);
        is_sound.then_some(*message)
    }

    /// Raft takes the snapshot that has arrived: the log begins anew behind it.
    pub(crate) fn begin_install(
        &mut self,
        number: u64,
        snapshot: &raft::eraftpb::Snapshot,
    ) -> Option<InstalledSnapshot> {
        if snapshot.is_empty() {
            return None;
        }
        let metadata = snapshot.get_metadata();
        let (index, term) = (metadata.index, metadata.term);
        self.installing = Some((number, index));
        let configuration = metadata.get_conf_state().clone();
        debug_assert!(self.held.is_empty(), "what was held is in the snapshot");
        self.node.mut_store().install(SavedSnapshot { index, term, configuration });
        Some(InstalledSnapshot { index, term })
    }

    /// It is durable that the log begins behind the snapshot; raft may count it as applied only now.
    pub(crate) fn installed(&mut self, number: u64) {
        if let Some((_, index)) = self.installing.take_if(|(installing, _)| *installing <= number) {
            self.node.advance_apply_to(index);
        }
    }

    /// Rule 7: the new state, for all who wait for something here.
    pub(crate) fn adopt(&mut self) {
        let Some(Arrived { machine, bytes }) = self.arrived.take() else { return };
        let old = std::mem::replace(&mut self.machine, *machine);
        self.reads.doubt_all();
        let (old, index) = (old.state(), self.machine.applied_index());
        self.snapshot = SnapshotProgress { bytes, log_bytes_since: 0, saving: None };
        let term = self.node.raft.term;
        #[cfg(feature = "planted")]
        let is_silent = planted::is(Bug::SilentAfterInstall);
        #[cfg(not(feature = "planted"))]
        let is_silent = false;
        if !is_silent {
            self.hub.jump(old.revision(), &self.machine, term, &mut self.outputs);
        }
        let now_ms = self.running_ms();
        self.lock_hub.jump((self.machine.state().revision(), term), now_ms, &mut self.outputs);
        self.tell_sessions_of_gap(old);
        for skipped in self.proposals.take_before(index + 1) {
            self.look_up_skipped(&skipped.envelope.command, skipped.waits);
        }
        self.follow_configuration();
        // The leader waits to hear that it is installed, even if it knows that this member had all of it.
        self.acknowledged = None;
        self.reseeded();
        self.look_up_forwards();
        #[cfg(feature = "planted")]
        if planted::is(Bug::ForgetWaiters) {
            return;
        }
        for queued in self.queued.take_all() {
            self.look_up_queued(queued);
        }
    }

    /// What was forwarded and is in the new state has had its effect, but its reply is lost.
    fn look_up_forwards(&mut self) {
        for (data, waits) in self.forwards.take_settled(self.config.member, self.config.boot, self.machine.state()) {
            self.look_up_forward(data, waits);
        }
    }

    pub(crate) fn look_up_forward(&mut self, data: Bytes, waits: Waits) {
        if let Ok(envelope) = codec::decode(data) {
            self.look_up_skipped(&envelope.command, waits);
        }
    }

    /// Settles a command of this member whose entry it has skipped: it may have been applied, and its reply is lost.
    /// Only the places of a Lock can be found again. A place that its call has given up is left, whichever way the
    /// command went; otherwise it would stand in the queue until its lease ends.
    ///
    /// A process that starts again knows nothing of its earlier calls, so it cannot leave their places: these end with
    /// their leases.
    pub(crate) fn look_up_skipped(&mut self, command: &Command, waits: Waits) {
        let place = match command {
            Command::Lock(lock) => self.machine.state().places_taken_by(lock),
            _ => None,
        };
        match (waits, place) {
            #[cfg(feature = "planted")]
            (Waits::Lock { call: None, .. }, Some(_)) if planted::is(Bug::ForgetGivenUp) => {}
            (Waits::Lock { call: None, joiner, .. }, Some(reply)) => self.leave(&reply, joiner),
            (Waits::Lock { call: Some(call), joiner, .. }, Some(reply)) => {
                if !reply.granted {
                    self.outputs.push(Output::Queued { call, ahead: reply.ahead });
                }
                self.look_up_queued(QueuedCall { call, joiner, reply, awaited: Vec::new() });
            }
            (Waits::Expiry(leases), _) => self.keep_leases(&leases),
            (waits, _) => waits.call().into_iter().for_each(|call| self.fail(call, Failure::OutcomeUnknown)),
        }
    }

    fn look_up_queued(&mut self, queued: QueuedCall) {
        let QueuedCall { call, joiner, reply, .. } = queued;
        let state = self.machine.state();
        let entry = |key: &SharedBytes| {
            state.lock_entry(key).map(|(_, entry)| entry.clone()).filter(|entry| entry.token == reply.token)
        };
        let entries: Option<Vec<_>> = keys_of(&reply).map(entry).collect();
        let Some(entries) = entries else {
            let cause = how_ended(state, &reply);
            self.leave(&reply, joiner);
            return self.fail(call, Failure::EntryEnded(cause));
        };
        if entries.iter().all(|entry| entry.granted_wall_ms.is_some()) {
            let reply = LockReply { granted: true, slot: entries[0].slot, ahead: 0, ..reply };
            return self.reads.gather(Confirmed::Grant { call, reply, joiner }, self.running_ms());
        }
        let waiting = entries.iter().filter(|entry| entry.granted_wall_ms.is_none());
        let awaited = waiting.map(|entry| entry.key.clone()).collect();
        self.queued.insert(QueuedCall { call, joiner, reply, awaited });
    }

    /// What sessions held before and do not hold now is lost, by whatever means.
    fn tell_sessions_of_gap(&mut self, old: &View) {
        if self.sessions.is_empty() {
            return;
        }
        let new = self.machine.state();
        // Not by the keys of the lease: another client's put may have taken the lease from the key of a place.
        for (name, entry) in old.holders() {
            let Some(stream) = self.sessions.get(&entry.lease) else { continue };
            let is_held = new.lock_entry(&entry.key).is_some_and(|(_, now)| now.token == entry.token);
            if !is_held {
                let (name, token) = (Bytes::copy_from_slice(name), entry.token);
                let cause = recent_end(new, token).unwrap_or(LockEnd::LeaseExpired);
                let notice = SessionNotice::Lost { name, token, cause };
                self.outputs.push(Output::Session { stream: *stream, notice });
            }
        }
    }
}

fn recent_end(state: &View, token: Revision) -> Option<LockEnd> {
    state.recent_holders().rev().find(|holder| holder.token == token).map(|holder| holder.cause)
}

/// Of a place that is there no more; nobody has kept how it ended unless it was granted before.
fn how_ended(state: &View, reply: &LockReply) -> LockEnd {
    let is_alive = || {
        let lease = lock::split_key(&reply.key).map(|(_, lease)| lease);
        lease.is_some_and(|lease| state.lease_ttl_ms(lease).is_some())
    };
    recent_end(state, reply.token).unwrap_or_else(|| if is_alive() { LockEnd::Released } else { LockEnd::LeaseExpired })
}

/// Raft gives itself up over a configuration that contradicts itself.
fn is_possible(configuration: &ConfState) -> bool {
    let ConfState { voters, learners, voters_outgoing, learners_next, .. } = configuration;
    let all = [voters, learners, voters_outgoing, learners_next];
    let is_joint = !voters_outgoing.is_empty();
    let has_twice = |members: &Vec<u64>| (1..members.len()).any(|index| members[..index].contains(&members[index]));
    !voters.is_empty()
        && all.iter().all(|members| !has_twice(members) && !members.contains(&raft::INVALID_ID))
        && learners.iter().all(|learner| !voters.contains(learner) && !voters_outgoing.contains(learner))
        && learners_next.iter().all(|next| voters_outgoing.contains(next) && !voters.contains(next))
        && (is_joint || !configuration.auto_leave)
}
