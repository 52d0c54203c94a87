//! The machine itself: takes the next committed command and does it.
//!
//! Apply runs for every request on one thread, so each command costs about one walk down the key
//! tree and no more allocations than what it leaves behind. It never panics, whatever the command:
//! what services check before they propose is checked here again where it matters.

use std::sync::Arc;

use crate::change::Change;
use crate::{
    Alarm, AlarmChange, AlarmKind, Applied, Command, Delete, Envelope, KeyValue, Keys, LeaseChange, LeaseId, LockEnd,
    MemberId, Refusal, Reply, View, level, limits,
};

pub struct Machine {
    state: View,
}

impl Machine {
    pub fn new() -> Machine {
        Machine { state: View::new() }
    }

    pub fn apply(&mut self, index: u64, term: u64, envelope: &Envelope) -> Applied {
        let state = &mut self.state;
        state.applied_index = index;
        state.applied_term = term;
        let mut change = Change::new(state.store.revision + 1, envelope.wall_ms);
        let is_new = envelope.origin.is_none_or(|origin| state.origins.admit(&origin));
        let mut reply = if is_new { state.execute(&mut change, &envelope.command, term) } else { Ok(Reply::Duplicate) };
        debug_assert!(reply.is_ok() || change.events.is_empty(), "a refused command wrote something");
        let commit = state.finish(&mut change);
        if let Ok(Reply::Lock(reply)) = &mut reply {
            state.fill_lock_reply(reply, &change.lock_changes);
        }
        state.store.trim(limits::TRIM_EVENTS);
        Applied {
            revision: state.store.revision,
            reply,
            commit,
            work: change.work + (change.lock_changes.len() + change.lease_changes.len()) as u64,
            lock_changes: change.lock_changes,
            lease_changes: change.lease_changes,
        }
    }

    /// Takes note of a command that whoever applies the log has to refuse. It must not come into effect one day by a
    /// copy that was held up on its way.
    pub fn refuse(&mut self, index: u64, term: u64, envelope: &Envelope, refusal: Refusal) -> Applied {
        self.skip(index, term);
        let is_new = envelope.origin.is_none_or(|origin| self.state.origins.admit(&origin));
        Applied {
            revision: self.state.store.revision,
            reply: if is_new { Err(refusal) } else { Ok(Reply::Duplicate) },
            commit: None,
            lock_changes: Default::default(),
            lease_changes: Vec::new(),
            work: 0,
        }
    }

    /// Takes note of an applied log entry that carries no command (a new leader's empty one, a configuration change).
    pub fn skip(&mut self, index: u64, term: u64) {
        self.state.applied_index = index;
        self.state.applied_term = term;
    }

    /// O(1).
    pub fn view(&self) -> View {
        self.state.clone()
    }

    /// The current state, to read on the machine's own thread without cloning.
    pub fn state(&self) -> &View {
        &self.state
    }

    pub fn applied_index(&self) -> u64 {
        self.state.applied_index
    }

    pub fn applied_term(&self) -> u64 {
        self.state.applied_term
    }

    /// Frees some more of what compaction made unreachable, for times when no commands come.
    /// Changes nothing that can be observed. True if more is left.
    pub fn trim(&mut self, events: usize) -> bool {
        self.state.store.trim(events)
    }

    pub(crate) fn state_mut(&mut self) -> &mut View {
        &mut self.state
    }

    pub(crate) fn restored(state: View) -> Machine {
        Machine { state }
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Machine").field(&self.state).finish()
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl View {
    fn execute(&mut self, change: &mut Change, command: &Command, term: u64) -> Result<Reply, Refusal> {
        match command {
            Command::Put(put) => {
                self.check_put(put)?;
                let prev = self.put(change, put);
                Ok(Reply::Put { prev: prev.filter(|_| put.prev_kv) })
            }
            Command::Delete(delete) => {
                self.check_sound()?;
                let (deleted, prev) = self.delete_all(change, delete, LockEnd::Released);
                Ok(Reply::Delete { deleted, prev })
            }
            Command::Txn(txn) => self.txn(change, txn).map(Reply::Txn),
            Command::Compact { revision } => {
                self.check_sound()?;
                self.store.compact(*revision)?;
                Ok(Reply::Compacted)
            }
            Command::LeaseGrant(grant) => {
                self.check_growth()?;
                let revision = if self.level >= 1 { self.store.revision } else { 0 };
                self.leases.grant(grant, change.wall_ms, revision)?;
                change.lease_changes.push(LeaseChange::Granted { lease: grant.lease, ttl_ms: grant.ttl_ms });
                Ok(Reply::LeaseGranted { lease: grant.lease, ttl_ms: grant.ttl_ms })
            }
            Command::LeaseRevoke { lease } => {
                self.check_sound()?;
                if !self.leases.contains(*lease) {
                    return Err(Refusal::LeaseNotFound);
                }
                self.end_leases(change, std::slice::from_ref(lease), LockEnd::LeaseRevoked);
                Ok(Reply::LeaseRevoked)
            }
            // A deposed leader's deadlines are not the ones that count.
            Command::LeaseExpire { term: proposed, .. } if *proposed != term => Ok(Reply::LeasesExpired { expired: 0 }),
            Command::LeaseExpire { leases, .. } => {
                self.check_sound()?;
                Ok(Reply::LeasesExpired { expired: self.end_leases(change, leases, LockEnd::LeaseExpired) })
            }
            Command::Lock(lock) => self.lock(change, lock),
            Command::Leave(leave) => self.leave(change, leave),
            Command::Alarm(alarm) => Ok(Reply::Alarms(self.change_alarm(*alarm))),
            Command::Publish(member) => {
                self.publish(member);
                Ok(Reply::Published)
            }
            Command::Unlock(unlock) => self.unlock(change, unlock),
            Command::ForceRelease { name, token } => self.force_release(change, name, *token),
            Command::ForgetLock { name } => self.forget_lock(name),
            Command::ResumeSession { lease } => self.resume_session(*lease),
            Command::LeaseCheckpoint { term: proposed, .. } if *proposed != term => Ok(Reply::LeasesCheckpointed),
            Command::LeaseCheckpoint { left_ms, .. } => {
                self.check_sound()?;
                for (lease, left_ms) in left_ms {
                    self.leases.checkpoint(*lease, *left_ms);
                }
                Ok(Reply::LeasesCheckpointed)
            }
            Command::ChangeMembers(change) => self.change_members(change).map(|()| Reply::MembersChanged),
            Command::CompareStates => Ok(Reply::StatesCompared),
            Command::Continue => {
                self.check_sound()?;
                let deleted = self.go_on_ending_leases(change);
                Ok(Reply::Continued { deleted, granted: self.grant_due(change) })
            }
            Command::RaiseLevel { level } => self.raise_level(*level),
            Command::PinLevel { level } => self.pin_level(*level),
        }
    }

    /// Refuses what writes while members disagree about the state: it would only carry the damage on.
    pub(crate) fn check_sound(&self) -> Result<(), Refusal> {
        let is_refused = match self.level() >= level::COMPARE {
            // A member that is named refuses by itself; only where no majority agrees is nothing to be trusted.
            true => self.is_corrupt(0),
            false => self.has_alarm(AlarmKind::Corrupt),
        };
        if is_refused { Err(Refusal::Corrupt) } else { Ok(()) }
    }

    /// Whether the alarm CORRUPT names this member; 0 stands for all of them.
    pub fn is_corrupt(&self, member: MemberId) -> bool {
        !self.alarms.is_empty() && self.alarms.contains(&Alarm { member, kind: AlarmKind::Corrupt })
    }

    /// Refuses what makes the store larger while it is full. What makes it smaller always passes.
    pub(crate) fn check_growth(&self) -> Result<(), Refusal> {
        self.check_sound()?;
        if self.has_alarm(AlarmKind::NoSpace) { Err(Refusal::NoSpace) } else { Ok(()) }
    }

    fn has_alarm(&self, kind: AlarmKind) -> bool {
        // Asked for each command, and to walk a tree takes more than to see that it is empty.
        !self.alarms.is_empty() && self.alarms.iter().any(|alarm| alarm.kind == kind)
    }

    pub(crate) fn delete_all(
        &mut self,
        change: &mut Change,
        delete: &Delete,
        cause: LockEnd,
    ) -> (i64, Vec<Arc<KeyValue>>) {
        if let Keys::One(key) = &delete.keys {
            let prev = self.delete_if_live(change, key, cause);
            let deleted = i64::from(prev.is_some());
            return (deleted, prev.filter(|_| delete.prev_kv).into_iter().collect());
        }
        let doomed: Vec<_> = self.store.live_in(&delete.keys).cloned().collect();
        for kv in &doomed {
            self.delete(change, &kv.key, cause);
        }
        (doomed.len() as i64, if delete.prev_kv { doomed } else { Vec::new() })
    }

    /// Ends leases and deletes their keys, in key order, at one revision. Unknown ones are passed over. From level 1 on at
    /// most [`limits::LEASE_KEYS_AT_ONCE`] keys are deleted: leases with more are ending until
    /// [`Command::Continue`] has deleted the rest.
    fn end_leases(&mut self, change: &mut Change, leases: &[LeaseId], cause: LockEnd) -> usize {
        let mut doomed = Vec::new();
        let mut ended = 0;
        let most = if self.level >= 1 { limits::lease_keys_at_once() } else { usize::MAX };
        for &lease in leases {
            let Some(mut keys) = self.leases.end(lease, cause, most - doomed.len()) else { continue };
            doomed.append(&mut keys);
            change.lease_changes.push(LeaseChange::Ended { lease });
            ended += 1;
        }
        doomed.sort_unstable();
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::UnboundedApply) {
            change.work += self.store.live_in(&Keys::all()).count() as u64;
        }
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::GrantTheDead) {
            doomed.retain(|key| self.lock_entry(key).is_none_or(|(_, entry)| entry.granted_wall_ms.is_some()));
        }
        for key in &doomed {
            self.delete(change, key, cause);
        }
        ended
    }

    /// Deletes more keys of leases that have ended, up to the limit.
    fn go_on_ending_leases(&mut self, change: &mut Change) -> usize {
        let (most, mut deleted) = (limits::lease_keys_at_once(), 0);
        while let Some((keys, cause)) = self.leases.end_more(most - deleted) {
            for key in &keys {
                self.delete(change, key, cause);
            }
            deleted += keys.len();
        }
        deleted
    }

    /// Gives the alarms that the change was about: the raised one, or those that were cleared.
    fn change_alarm(&mut self, change: AlarmChange) -> Vec<Alarm> {
        match change {
            AlarmChange::Raise(alarm) => {
                self.alarms.insert(alarm);
                vec![alarm]
            }
            AlarmChange::Clear(pattern) => {
                let matches = |alarm: &Alarm| {
                    alarm.kind == pattern.kind && (pattern.member == 0 || alarm.member == pattern.member)
                };
                let cleared: Vec<Alarm> = self.alarms.iter().copied().filter(matches).collect();
                for alarm in &cleared {
                    self.alarms.remove(alarm);
                }
                cleared
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Member, Origin};

    #[test]
    fn what_was_refused_stays_refused_in_every_copy() {
        let (name, peer_urls, client_urls) = ("four".to_owned(), Vec::new(), Vec::new());
        let member = Member { id: 4, name, peer_urls, client_urls, learner: false };
        let origin = |sequence| Some(Origin { member: 1, boot: 7, sequence, settled_below: 0 });
        let publish = |origin| Envelope { wall_ms: 0, origin, command: Command::Publish(member.clone()) };
        let mut machine = Machine::new();
        let refused = machine.refuse(1, 1, &publish(origin(1)), Refusal::MemberNotFound);
        assert_eq!(refused.reply, Err(Refusal::MemberNotFound));
        assert_eq!(machine.refuse(2, 1, &publish(origin(1)), Refusal::MemberNotFound).reply, Ok(Reply::Duplicate));
        // By now it could be done.
        assert_eq!(machine.apply(3, 1, &publish(origin(1))).reply, Ok(Reply::Duplicate));
        assert_eq!(machine.applied_index(), 3);
        assert_eq!(machine.refuse(4, 1, &publish(None), Refusal::MemberNotFound).reply, Err(Refusal::MemberNotFound));
    }
}
