//! What is left of long leases, noted in the log now and then.
//!
//! Deadlines live in the leader's memory, and a new leader gives every lease its time anew. Of a
//! lease of a minute that costs a minute; of one of a week it would cost a week, each time. So when
//! half of a long lease has gone by without a renewal the leader notes what is left, and the next one
//! goes on from there; and again when half of that has gone by.
//!
//! What is noted must never be less than what somebody was promised. A renewal of a lease of which
//! less than all of its time is noted, or about to be, is therefore answered only when the log says
//! that it has all of its time again. Whoever renews a lease in time never sees that: it is not noted
//! before half of it is gone.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Command, Envelope, LeaseId, Refusal};

use crate::question::{Asker, LeaderAnswer};
use crate::{CallId, Failure, Replica};

/// Leases that live for longer than this are long.
const LONG_MS: u64 = 5 * 60 * 1000;
/// Leases noted by one command.
const AT_ONCE: usize = 10_000;

#[derive(Default)]
pub(crate) struct Checkpoints {
    /// When to note what is left of a long lease.
    due: BTreeMap<LeaseId, u64>,
    by_time: BTreeSet<(u64, LeaseId)>,
    /// Being noted.
    noting: BTreeSet<LeaseId>,
    /// Being given all of their time again, with the renewals that wait for that.
    clearing: BTreeMap<LeaseId, Vec<Asker>>,
    /// Of these, those that are not in the log yet.
    to_clear: BTreeSet<LeaseId>,
}

impl Checkpoints {
    /// Forgets everything: this member leads no more. Gives back the renewals that waited.
    pub(crate) fn clear(&mut self) -> Vec<Asker> {
        std::mem::take(self).clearing.into_values().flatten().collect()
    }

    /// The lease is gone; gives back the renewals that waited.
    pub(crate) fn remove(&mut self, lease: LeaseId) -> Vec<Asker> {
        self.set_due(lease, None);
        self.noting.remove(&lease);
        self.to_clear.remove(&lease);
        self.clearing.remove(&lease).unwrap_or_default()
    }

    pub(crate) fn forget_calls(&mut self, is_forgotten: impl Fn(CallId) -> bool) {
        for waiting in self.clearing.values_mut() {
            waiting.retain(|asker| !asker.call().is_some_and(&is_forgotten));
        }
    }

    fn set_due(&mut self, lease: LeaseId, due_ms: Option<u64>) {
        if let Some(old) = self.due.remove(&lease) {
            self.by_time.remove(&(old, lease));
        }
        if let Some(due_ms) = due_ms {
            self.due.insert(lease, due_ms);
            self.by_time.insert((due_ms, lease));
        }
    }

    fn take_due(&mut self, now_ms: u64) -> Vec<LeaseId> {
        let mut due = Vec::new();
        while due.len() < AT_ONCE
            && let Some(&(due_ms, lease)) = self.by_time.first()
            && due_ms <= now_ms
        {
            self.set_due(lease, None);
            due.push(lease);
        }
        due
    }
}

impl Replica {
    /// A lease ends when so much time has passed, unless it is renewed.
    pub(crate) fn give_time(&mut self, lease: LeaseId, ttl_ms: u64, left_ms: u64) {
        self.give_time_since(self.running_ms(), lease, ttl_ms, left_ms);
    }

    pub(crate) fn give_time_since(&mut self, since_ms: u64, lease: LeaseId, ttl_ms: u64, left_ms: u64) {
        self.deadlines.set(lease, since_ms + left_ms);
        if ttl_ms > LONG_MS {
            self.checkpoints.set_due(lease, when_to_note(since_ms, left_ms));
        }
    }

    /// A lease asked again for a lock that it has: all of its time begins anew. It may have more: a new leader adds a
    /// margin. No expiry stands behind the renewal in the log: see [`Replica::expire_due`].
    pub(crate) fn renewed_by_lock(&mut self, lease: LeaseId, ttl_ms: u64) {
        let deadline = self.running_ms() + ttl_ms;
        self.deadlines.note_renewed(lease);
        if self.deadline_of(lease).is_none_or(|known| known >= deadline) {
            return;
        }
        self.give_time(lease, ttl_ms, ttl_ms);
        // What is being noted was less than all of it, and stands behind the renewal in the log.
        if self.checkpoints.noting.contains(&lease) && !self.checkpoints.clearing.contains_key(&lease) {
            self.checkpoints.clearing.insert(lease, Vec::new());
            self.checkpoints.to_clear.insert(lease);
        }
    }

    pub(crate) fn checkpoint_due(&mut self) {
        if !self.checkpoints.to_clear.is_empty() {
            self.propose_clearing();
        }
        let now_ms = self.running_ms();
        let due = self.checkpoints.take_due(now_ms);
        let state = self.machine.state();
        let left = |lease: LeaseId| Some((lease, self.deadlines.deadline(lease)?.saturating_sub(now_ms)));
        let is_quiet = |lease: &LeaseId| !self.checkpoints.clearing.contains_key(lease);
        let noted: Vec<_> = due.iter().copied().filter(is_quiet).filter_map(left).collect();
        let less_than_known =
            |(lease, left_ms): &(LeaseId, u64)| state.lease_left_ms(*lease).is_some_and(|known_ms| *left_ms < known_ms);
        let noted: Vec<_> = noted.into_iter().filter(less_than_known).collect();
        if noted.is_empty() {
            return;
        }
        let is_taken = self.propose_checkpoint(noted.clone());
        for (lease, _) in noted {
            match is_taken {
                true => drop(self.checkpoints.noting.insert(lease)),
                // Not before what is under way is done: whatever waits to be appended could come behind a renewal.
                false => self.checkpoints.set_due(lease, Some(now_ms + LONG_MS)),
            }
        }
    }

    fn propose_checkpoint(&mut self, left_ms: Vec<(LeaseId, u64)>) -> bool {
        let command = Command::LeaseCheckpoint { term: self.node.raft.term, left_ms };
        self.append(&mut Envelope { wall_ms: 0, origin: None, command }).is_ok()
    }

    /// Whether a renewal has to wait because the next leader would give the lease less time than it promises.
    pub(crate) fn waits_for_clearing(&mut self, lease: LeaseId, asker: Asker) -> bool {
        let state = self.machine.state();
        let is_noted = state.lease_left_ms(lease) < state.lease_ttl_ms(lease);
        let checkpoints = &mut self.checkpoints;
        if !is_noted && !checkpoints.noting.contains(&lease) && !checkpoints.clearing.contains_key(&lease) {
            return false;
        }
        let waiting = checkpoints.clearing.entry(lease).or_default();
        if waiting.is_empty() {
            checkpoints.to_clear.insert(lease);
        }
        waiting.push(asker);
        true
    }

    /// Behind everything that was noted before, so that it counts.
    pub(crate) fn propose_clearing(&mut self) {
        let leases: Vec<_> = self.checkpoints.to_clear.iter().map(|lease| (*lease, u64::MAX)).collect();
        if !leases.is_empty() && self.propose_checkpoint(leases) {
            self.checkpoints.to_clear.clear();
        }
    }

    /// A checkpoint was applied. In another term than its own it had no effect, and there is nobody to tell.
    pub(crate) fn checkpointed(&mut self, left_ms: Vec<(LeaseId, u64)>) {
        if !self.leading {
            return;
        }
        let now_ms = self.running_ms();
        for (lease, left_ms) in left_ms {
            let state = self.machine.state();
            let (ttl_ms, noted_ms) = (state.lease_ttl_ms(lease), state.lease_left_ms(lease));
            if left_ms != u64::MAX {
                self.checkpoints.noting.remove(&lease);
                if ttl_ms.is_some() && !self.checkpoints.clearing.contains_key(&lease) {
                    self.checkpoints.set_due(lease, when_to_note(now_ms, left_ms));
                }
                continue;
            }
            for asker in self.checkpoints.clearing.remove(&lease).unwrap_or_default() {
                match (noted_ms == ttl_ms, asker) {
                    (true, asker) => self.tell_asker(asker, LeaderAnswer::KeptAlive { ttl_ms }),
                    // The state takes nothing any more.
                    (false, Asker::Call(call)) => self.fail(call, Failure::Refused(Refusal::Corrupt)),
                    (false, Asker::Peer { .. }) => {}
                }
            }
        }
    }
}

/// When half of it is gone. The last few minutes are not worth it.
fn when_to_note(now_ms: u64, left_ms: u64) -> Option<u64> {
    (left_ms > LONG_MS).then_some(now_ms + left_ms / 2)
}
