//! What each command does to the model.

use tenure_machine::{
    Alarm, AlarmChange, Command, Commit, Delete, Envelope, KeyValue, LeaseGrant, LeaseId, LockEnd, Put, Refusal, Reply,
    SharedBytes,
};

use super::{Lease, Model, Outcome};

impl Model {
    pub fn apply(&mut self, index: u64, term: u64, envelope: &Envelope) -> Outcome {
        self.applied = index;
        self.granted_now.clear();
        self.changed.clear();
        self.room = if self.level > 0 { self.limits.lock_grants } else { usize::MAX };
        let before = self.commits.len();
        let is_settled = envelope.origin.as_ref().is_some_and(|origin| self.is_settled(origin));
        let mut reply = if is_settled { Ok(Reply::Duplicate) } else { self.execute(term, &envelope.command) };
        let wrote = self.commits.len() > before;
        if wrote {
            self.revision += 1;
            // What is due in other queues is left to `Continue`.
            for name in std::mem::take(&mut self.changed) {
                self.settle(&name);
            }
        }
        if let Ok(Reply::Lock(reply)) = &mut reply {
            self.place_in(reply);
        }
        Outcome { reply, revision: self.revision, wrote, granted: self.granted_now.clone() }
    }

    /// An entry whose command must not have any effect.
    pub fn refuse(&mut self, index: u64, envelope: &Envelope, refusal: Refusal) -> Result<Reply, Refusal> {
        self.applied = index;
        let is_settled = envelope.origin.as_ref().is_some_and(|origin| self.is_settled(origin));
        if is_settled { Ok(Reply::Duplicate) } else { Err(refusal) }
    }

    /// An entry of the log without a command.
    pub fn skip(&mut self, index: u64) {
        self.applied = index;
    }

    fn execute(&mut self, term: u64, command: &Command) -> Result<Reply, Refusal> {
        match command {
            Command::Put(put) => {
                self.check_put(put)?;
                let prev = self.live(&put.key).cloned();
                self.do_put(put);
                Ok(Reply::Put { prev: prev.filter(|_| put.prev_kv) })
            }
            Command::Delete(delete) => {
                let (deleted, prev) = self.do_delete(delete);
                Ok(Reply::Delete { deleted, prev })
            }
            Command::Txn(txn) => self.txn(txn).map(Reply::Txn),
            Command::Compact { revision } => {
                let compacted = self.compacted();
                if *revision <= compacted {
                    return Err(Refusal::Compacted { asked: *revision, compacted });
                }
                if *revision > self.revision {
                    return Err(Refusal::FutureRevision { asked: *revision, current: self.revision });
                }
                self.compactions.push((self.applied, *revision));
                Ok(Reply::Compacted)
            }
            Command::LeaseGrant(grant) => self.grant(grant),
            Command::LeaseRevoke { lease } => {
                if self.lease(*lease).is_none() {
                    return Err(Refusal::LeaseNotFound);
                }
                self.end_leases(&[*lease], LockEnd::LeaseRevoked);
                Ok(Reply::LeaseRevoked)
            }
            Command::LeaseExpire { term: proposed, leases } => {
                let expired = if *proposed == term { self.end_leases(leases, LockEnd::LeaseExpired) } else { 0 };
                Ok(Reply::LeasesExpired { expired })
            }
            Command::Lock(lock) => self.lock(lock),
            Command::Leave(leave) => Ok(Reply::Left { left: self.leave(leave) }),
            Command::Alarm(change) => Ok(Reply::Alarms(self.change_alarm(*change))),
            Command::Publish(member) => {
                self.describe(member);
                Ok(Reply::Published)
            }
            Command::Unlock(unlock) => self.unlock(unlock),
            Command::ForceRelease { name, token } => self.force_release(name, *token),
            Command::ResumeSession { lease } => self.resume_session(*lease),
            Command::LeaseCheckpoint { term: proposed, left_ms } => {
                if *proposed == term {
                    left_ms.iter().for_each(|(lease, left_ms)| self.checkpoint(*lease, *left_ms));
                }
                Ok(Reply::LeasesCheckpointed)
            }
            Command::ChangeMembers(change) => self.change_members(change).map(|()| Reply::MembersChanged),
            Command::CompareStates => Ok(Reply::StatesCompared),
            Command::Continue => Ok(self.go_on()),
            Command::RaiseLevel { level } => match self.level_pin {
                Some(pin) if *level > pin => Err(Refusal::LevelPinned { level: *level, pin }),
                _ => {
                    self.level = self.level.max(*level);
                    self.raises.push((self.applied, self.level));
                    Ok(Reply::Level { level: self.level, pin: self.level_pin })
                }
            },
            Command::PinLevel { level: Some(pin) } if *pin < self.level => {
                Err(Refusal::LevelReached { level: self.level, pin: *pin })
            }
            Command::PinLevel { level } => {
                self.level_pin = *level;
                Ok(Reply::Level { level: self.level, pin: self.level_pin })
            }
            // How many recent holders that were is left out: it is the machine's to count.
            Command::ForgetLock { name } => match self.queues.contains_key(&name[..]) {
                true => Err(Refusal::InUse),
                false => Ok(Reply::LockForgotten { holders: 0 }),
            },
        }
    }

    fn resume_session(&mut self, lease: LeaseId) -> Result<Reply, Refusal> {
        let life = self.live_lease(lease).ok_or(Refusal::LeaseNotFound)?;
        life.epoch += 1;
        Ok(Reply::SessionResumed { epoch: life.epoch, ttl_ms: life.ttl_ms })
    }

    pub(super) fn checkpoint(&mut self, lease: LeaseId, left_ms: u64) {
        if let Some(life) = self.live_lease(lease) {
            life.left_ms = left_ms.min(life.ttl_ms);
        }
    }

    fn live_lease(&mut self, lease: LeaseId) -> Option<&mut Lease> {
        self.leases.get_mut(&lease)?.last_mut().filter(|life| life.ended.is_none())
    }

    fn change_alarm(&mut self, change: AlarmChange) -> Vec<Alarm> {
        match change {
            AlarmChange::Raise(alarm) => {
                self.alarms.insert(alarm);
                vec![alarm]
            }
            AlarmChange::Clear(pattern) => {
                let is_meant =
                    |alarm: &&Alarm| alarm.kind == pattern.kind && [0, alarm.member].contains(&pattern.member);
                let cleared: Vec<Alarm> = self.alarms.iter().filter(is_meant).copied().collect();
                self.alarms.retain(|alarm| !cleared.contains(alarm));
                cleared
            }
        }
    }

    /// Whatever makes the store larger is refused while it is full.
    pub(super) fn check_growth(&self) -> Result<(), Refusal> {
        if self.has_alarm() { Err(Refusal::NoSpace) } else { Ok(()) }
    }

    pub(super) fn check_put(&self, put: &Put) -> Result<(), Refusal> {
        self.check_growth()?;
        if put.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if put.lease != 0 && self.lease(put.lease).is_none() {
            return Err(Refusal::LeaseNotFound);
        }
        if (put.ignore_value || put.ignore_lease) && self.live(&put.key).is_none() {
            return Err(Refusal::KeyNotFound);
        }
        Ok(())
    }

    pub(super) fn do_put(&mut self, put: &Put) {
        let before = self.live(&put.key).cloned();
        let value = match &before {
            Some(before) if put.ignore_value => before.value.to_vec(),
            _ => put.value.to_vec(),
        };
        let lease = match &before {
            Some(before) if put.ignore_lease => before.lease,
            _ => put.lease,
        };
        self.put(&put.key, &value, lease);
        if before.is_none() {
            self.take_place(&put.key, lease, None);
        }
    }

    pub(super) fn do_delete(&mut self, delete: &Delete) -> (i64, Vec<std::sync::Arc<KeyValue>>) {
        let doomed: Vec<_> = self.live_in(&delete.keys).cloned().collect();
        for kv in &doomed {
            self.delete(&kv.key, LockEnd::Released);
        }
        (doomed.len() as i64, if delete.prev_kv { doomed } else { Vec::new() })
    }

    fn grant(&mut self, grant: &LeaseGrant) -> Result<Reply, Refusal> {
        self.check_growth()?;
        if self.lease(grant.lease).is_some() || self.is_ending(grant.lease) {
            return Err(Refusal::LeaseExists);
        }
        let (granted, ttl_ms) = (self.applied, grant.ttl_ms);
        let born = if self.level > 0 { self.revision } else { 0 };
        let lease = Lease { ttl_ms, granted, ended: None, ending: None, born, left_ms: ttl_ms, epoch: 0 };
        self.leases.entry(grant.lease).or_default().push(lease);
        Ok(Reply::LeaseGranted { lease: grant.lease, ttl_ms: grant.ttl_ms })
    }

    /// Ends leases, and deletes their keys in the order of keys. From level 1 on only so many keys are deleted: those of
    /// the first leases, and of each lease the first ones. A lease with more is *ending*.
    fn end_leases(&mut self, leases: &[LeaseId], cause: LockEnd) -> usize {
        let most = if self.level > 0 { self.limits.lease_keys } else { usize::MAX };
        let mut doomed = Vec::new();
        let mut ended = 0;
        for &lease in leases {
            if self.lease(lease).is_none() {
                continue;
            }
            let (mut keys, is_all) = self.first_keys_of(lease, most - doomed.len());
            doomed.append(&mut keys);
            if let Some(life) = self.leases.get_mut(&lease).and_then(|lives| lives.last_mut()) {
                (life.ended, life.ending) = (Some(self.applied), Some(cause).filter(|_| !is_all));
            }
            ended += 1;
        }
        doomed.sort_unstable();
        for key in doomed {
            self.delete(&key, cause);
        }
        ended
    }

    /// Does more of what earlier commands have left: deletes keys of ending leases, in the order of their ids, then grants
    /// what they have left due, in the order of names. What the deleted keys let in comes last, as with any command. It
    /// is not counted in the reply. Grants have a revision, also if no key is written.
    fn go_on(&mut self) -> Reply {
        let ((ending, due), mut deleted) = (self.unfinished(), 0);
        for lease in ending {
            deleted += self.go_on_ending(lease, self.limits.lease_keys - deleted);
        }
        let room = self.room;
        due.iter().for_each(|name| self.settle(name));
        if self.room < room && deleted == 0 {
            self.commits.push(Commit { revision: self.revision + 1, events: [].into() });
        }
        Reply::Continued { deleted, granted: self.granted_now.len() }
    }

    fn go_on_ending(&mut self, lease: LeaseId, most: usize) -> usize {
        let (keys, is_all) = self.first_keys_of(lease, most);
        let life = self.leases.get_mut(&lease).and_then(|lives| lives.last_mut());
        let Some((life, cause)) = life.and_then(|life| life.ending.map(|cause| (life, cause))) else { return 0 };
        // A command that has deleted all that it may does not look at the next lease.
        if is_all && most > 0 {
            life.ending = None;
        }
        for key in &keys {
            self.delete(key, cause);
        }
        keys.len()
    }

    /// The first keys of a lease, at most so many, and whether these are all.
    fn first_keys_of(&self, lease: LeaseId, most: usize) -> (Vec<SharedBytes>, bool) {
        let keys = self.keys_of(lease).take(most).map(|kv| kv.key.clone()).collect();
        (keys, self.keys_of(lease).count() <= most)
    }
}
