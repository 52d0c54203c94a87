//! Locks of the model: who may hold, who waits, and for whom.

use super::*;

impl Naive {
    pub(super) fn busy(&self, name: &[u8]) -> Reply {
        let waiting = self.entries.iter().filter(|entry| entry.name == name).count()
            - self.granted().iter().filter(|(granted, _)| granted == name).count();
        Reply::Busy(BusyReply { name: name.to_vec().into(), holder: None, waiting })
    }

    pub(super) fn lock(&mut self, work: &mut Work, lock: &Lock) -> Result<Reply, Refusal> {
        self.sound()?;
        let names: Vec<_> = names(lock).collect();
        if (1..names.len()).any(|index| names[..index].contains(&names[index])) {
            return Err(Refusal::HeldAlready);
        }
        if let Mode::Barrier(parties) = lock.mode
            && (names.len() > 1 || parties == 0)
        {
            return Err(Refusal::ImpossibleBarrier);
        }
        if !self.leases.contains_key(&lock.lease) {
            return Err(Refusal::LeaseNotFound);
        }
        let keys: Vec<_> = names.iter().map(|name| key_of(name, lock.lease)).collect();
        let now = self.now(work);
        let mut reply = LockReply {
            key: keys[0].clone().into(),
            more_keys: keys[1..].iter().map(|key| key.clone().into()).collect(),
            token: self.revision() + 1,
            mode: lock.mode,
            granted: false,
            slot: 0,
            renewed: false,
            ahead: 0,
        };
        if keys.iter().all(|key| !now.contains_key(key)) {
            self.growth()?;
            if let Some(busy) = names.iter().find(|name| !self.would_grant(name, lock.mode)) {
                if lock.try_once {
                    return Ok(self.busy(busy));
                }
                if !lock.owner.is_empty() && self.waits_in_a_circle(lock, &names) {
                    return Err(Refusal::Deadlock { cycle: String::new() });
                }
            }
            for key in &keys {
                self.write(work, key, lock.value.to_vec(), lock.lease, Some(lock));
            }
            return Ok(Reply::Lock(reply));
        }
        let remains = self.remains_of(&names, &keys);
        if !remains.is_empty() {
            for key in remains {
                self.delete(work, &key, LockEnd::Left);
            }
            return Ok(Reply::Left { left: true });
        }
        let mut tokens = BTreeSet::new();
        for key in keys.iter().filter(|key| now.contains_key(*key)) {
            let entry = self.entries.iter().find(|entry| entry.key == *key && self.may_hold(entry));
            let entry = entry.ok_or(Refusal::NotAnEntry)?;
            tokens.insert(entry.token);
            if tokens.len() > 1 || keys.iter().any(|key| !now.contains_key(key)) {
                return Err(Refusal::HeldAlready);
            }
            if self.level > 0 && entry.mode != lock.mode {
                let is_held = self.granted().contains(&(entry.name.clone(), entry.token));
                return Err(Refusal::OtherMode { mode: entry.mode, token: is_held.then_some(entry.token) });
            }
            reply.mode = entry.mode;
        }
        (reply.token, reply.renewed) = (*tokens.first().unwrap(), true);
        let granted = self.granted();
        let waits = names.iter().find(|name| !granted.contains(&((*name).clone(), reply.token)));
        if let Some(name) = waits.filter(|_| lock.try_once) {
            return Ok(self.busy(name));
        }
        for key in &keys {
            self.entries.iter_mut().find(|entry| entry.key == *key).unwrap().call = Some(lock.call);
            let kv = &now[key];
            let value = if lock.overwrite { lock.value.to_vec() } else { kv.value.to_vec() };
            if value != kv.value[..] || kv.lease != lock.lease {
                self.write(work, key, value, lock.lease, None);
            }
        }
        if self.level > 0 {
            let (lease, ttl_ms) = (lock.lease, self.leases[&lock.lease]);
            work.lease_changes.push(LeaseChange::Renewed { lease, ttl_ms });
        }
        Ok(Reply::Lock(reply))
    }

    /// Places of an earlier request for the same names, of which one is gone.
    fn remains_of(&self, names: &[Vec<u8>], keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let asked: BTreeSet<_> = names.iter().collect();
        let is_same = |entry: &&Entry| {
            let taken: BTreeSet<_> = entry.together.iter().chain([&entry.name]).collect();
            self.level > 0 && names.len() > 1 && taken == asked && self.may_hold(entry)
        };
        let place = |key: &Vec<u8>| self.entries.iter().find(|entry| entry.key == *key).filter(is_same);
        let places: Vec<_> = keys.iter().filter_map(place).collect();
        let is_whole = |token| places.iter().filter(|place| place.token == token).count() == keys.len();
        places.iter().filter(|place| !is_whole(place.token)).map(|place| place.key.clone()).collect()
    }

    /// Whether one more entry would be granted: by adding it and looking.
    pub(super) fn would_grant(&self, name: &[u8], mode: Mode) -> bool {
        if self.entries.iter().any(|entry| {
            entry.name == name && mode == entry.mode && matches!(mode, Mode::Barrier(_)) && !self.may_hold(entry)
        }) {
            return false;
        }
        let entry = Entry {
            name: name.to_vec(),
            key: Vec::new(),
            token: Revision::MAX,
            lease: 0,
            mode,
            call: None,
            holder: Vec::new(),
            owner: Vec::new(),
            together: Vec::new(),
            slot: 0,
        };
        let entries = self.entries.iter().cloned().chain([entry]).collect();
        Naive { entries, passed: self.passed.clone(), ..Naive::default() }
            .granted()
            .contains(&(name.to_vec(), Revision::MAX))
    }

    /// Whether the owner reaches itself, following who waits for whom until nothing new is found.
    pub(super) fn waits_in_a_circle(&self, lock: &Lock, names: &[Vec<u8>]) -> bool {
        let granted = self.granted();
        let blockers = |name: &[u8], token: Revision, mode: Mode| -> Vec<Vec<u8>> {
            let goes_along = |other: &Entry| match mode {
                Mode::Exclusive => false,
                Mode::Slots(1) if self.level > 0 => false,
                Mode::Shared | Mode::Slots(_) => other.mode == mode,
                Mode::Barrier(_) => other.mode == mode && !granted.contains(&(other.name.clone(), other.token)),
            };
            let earlier = || self.entries.iter().filter(|other| other.name == name && other.token < token);
            // One that is in the way waits for all before it, whether it has an owner or not.
            let upto = earlier().filter(|other| !goes_along(other)).map(|other| other.token).max();
            let is_in_the_way = |other: &&Entry| match self.level > 0 {
                true => upto.is_some_and(|upto| other.token <= upto),
                false => !goes_along(other),
            };
            earlier()
                .filter(is_in_the_way)
                .filter(|other| !other.owner.is_empty())
                .map(|other| other.owner.clone())
                .collect()
        };
        let mut found: BTreeSet<Vec<u8>> =
            names.iter().flat_map(|name| blockers(name, Revision::MAX, lock.mode)).collect();
        loop {
            let before = found.len();
            for entry in &self.entries {
                if found.contains(&entry.owner) && !granted.contains(&(entry.name.clone(), entry.token)) {
                    found.extend(blockers(&entry.name, entry.token, entry.mode));
                }
            }
            if found.len() == before {
                return found.contains(&lock.owner[..]);
            }
        }
    }

    /// The lowest slot of its semaphore that no other holder has; of a barrier, how many came before.
    pub(super) fn give_slot(&mut self, name: &[u8], token: Revision, before: &BTreeSet<(Vec<u8>, Revision)>) {
        let holds = |other: &&Entry| {
            other.name == name && (other.token < token || before.contains(&(name.to_vec(), other.token)))
        };
        let earlier = self.entries.iter().filter(|other| other.name == name && other.token < token).count() as u32;
        let taken: BTreeSet<u32> = self.entries.iter().filter(holds).map(|other| other.slot).collect();
        let entry = self.entries.iter_mut().find(|entry| entry.name == name && entry.token == token).unwrap();
        match entry.mode {
            Mode::Slots(_) => entry.slot = (0..).find(|slot| !taken.contains(slot)).unwrap(),
            Mode::Barrier(_) => entry.slot = earlier,
            Mode::Exclusive | Mode::Shared => {}
        }
    }
}
