//! What each command does to the model.

use tenure_machine::{
    Command, Delete, KeyValue, LeaseGrant, LeaseId, Leave, Lock, LockEnd, LockReply, Mode, Put, Refusal, Reply,
    Revision, Unlock,
};

use super::{Lease, Model, Outcome, Place};

impl Model {
    pub fn apply(&mut self, index: u64, term: u64, command: &Command) -> Outcome {
        self.applied = index;
        let before = self.commits.len();
        let mut reply = self.execute(term, command);
        let wrote = self.commits.len() > before;
        if wrote {
            self.revision += 1;
            self.settle_queues();
        }
        if let Ok(Reply::Lock(reply)) = &mut reply {
            self.place_in(reply);
        }
        Outcome { reply, revision: self.revision, wrote }
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
            Command::Alarm(_) => Ok(Reply::Alarms(Vec::new())),
            Command::Publish(_) => Ok(Reply::Published),
            Command::Unlock(unlock) => self.unlock(unlock),
            Command::ForceRelease { .. }
            | Command::ForgetLock { .. }
            | Command::ResumeSession { .. }
            | Command::ChangeMembers(_) => {
                unreachable!("nobody in this world sends {command:?}")
            }
        }
    }

    pub(super) fn check_put(&self, put: &Put) -> Result<(), Refusal> {
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
        if self.lease(grant.lease).is_some() {
            return Err(Refusal::LeaseExists);
        }
        let lease = Lease { ttl_ms: grant.ttl_ms, granted: self.applied, ended: None };
        self.leases.entry(grant.lease).or_default().push(lease);
        Ok(Reply::LeaseGranted { lease: grant.lease, ttl_ms: grant.ttl_ms })
    }

    fn end_leases(&mut self, leases: &[LeaseId], cause: LockEnd) -> usize {
        let mut doomed = Vec::new();
        let mut ended = 0;
        for &lease in leases {
            if self.lease(lease).is_none() {
                continue;
            }
            doomed.extend(self.keys_of(lease).map(|kv| kv.key.clone()));
            if let Some(life) = self.leases.get_mut(&lease).and_then(|lives| lives.last_mut()) {
                life.ended = Some(self.applied);
            }
            ended += 1;
        }
        doomed.sort_unstable();
        for key in doomed {
            self.delete(&key, cause);
        }
        ended
    }

    fn lock(&mut self, lock: &Lock) -> Result<Reply, Refusal> {
        if lock.name.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if lock.lease <= 0 || self.lease(lock.lease).is_none() {
            return Err(Refusal::LeaseNotFound);
        }
        let key = format!("{}/{:x}", String::from_utf8_lossy(&lock.name), lock.lease).into_bytes();
        let Some(kv) = self.live(&key).cloned() else {
            self.put(&key, &lock.value, lock.lease);
            self.take_place(&key, lock.lease, Some(lock));
            let token = self.revision + 1;
            return Ok(Reply::Lock(a_place(key, token, false)));
        };
        let token = kv.create_revision;
        let place = self.queues.values_mut().flatten().find(|place| place.key == key && place.token == token);
        let Some(place) = place else { return Err(Refusal::NotAnEntry) };
        place.last_joiner = Some(lock.call);
        let overwrites = lock.overwrite && kv.value[..] != lock.value[..];
        if overwrites || kv.lease != lock.lease {
            let value = if overwrites { lock.value.to_vec() } else { kv.value.to_vec() };
            self.put(&key, &value, lock.lease);
        }
        Ok(Reply::Lock(a_place(key, token, true)))
    }

    fn unlock(&mut self, unlock: &Unlock) -> Result<Reply, Refusal> {
        let mut held = Vec::new();
        for name in &unlock.names {
            let Some(places) = self.queues.get(&name[..]) else { continue };
            let granted = &places[..Model::granted(places)];
            let place = granted.iter().find(|place| place.token == unlock.token).ok_or(Refusal::NotTheHolder)?;
            held.push(place.key.clone());
        }
        for key in &held {
            self.delete(key, LockEnd::Released);
        }
        Ok(Reply::Unlocked { released: !held.is_empty() })
    }

    fn leave(&mut self, leave: &Leave) -> bool {
        let Some(kv) = self.live(&leave.key) else { return false };
        let (key, token) = (kv.key.clone(), kv.create_revision);
        let mut places = self.queues.values().flatten();
        let joined_last =
            places.any(|place| place.key == key[..] && place.token == token && place.last_joiner == Some(leave.call));
        joined_last && self.delete(&key, LockEnd::Left).is_some()
    }

    /// A key that was just created with `lease` is a place in a queue if its name says so.
    fn take_place(&mut self, key: &[u8], lease: LeaseId, lock: Option<&Lock>) {
        let Ok(text) = std::str::from_utf8(key) else { return };
        let Some((name, last)) = text.rsplit_once('/') else { return };
        let token = self.revision + 1;
        if lease <= 0 || name.is_empty() || last != format!("{lease:x}") {
            return;
        }
        let queue = self.queues.get(name.as_bytes());
        if queue.is_some_and(|places| places.iter().any(|place| place.token == token)) {
            return;
        }
        let place = Place {
            key: key.to_vec(),
            token,
            lease,
            mode: lock.map_or(Mode::Exclusive, |lock| lock.mode),
            last_joiner: lock.map(|lock| lock.call),
            slot: None,
        };
        self.join_queue(name.as_bytes(), place);
    }

    fn place_in(&self, reply: &mut LockReply) {
        for places in self.queues.values() {
            let of_reply = |place: &Place| place.key == reply.key[..] && place.token == reply.token;
            if let Some(position) = places.iter().position(of_reply) {
                reply.granted = position < Model::granted(places);
                reply.ahead = if reply.granted { 0 } else { position };
                reply.slot = places[position].slot.unwrap_or(0);
            }
        }
    }
}

fn a_place(key: Vec<u8>, token: Revision, renewed: bool) -> LockReply {
    LockReply { key: key.into(), more_keys: Vec::new(), token, granted: false, slot: 0, renewed, ahead: 0 }
}
