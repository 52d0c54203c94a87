//! What the commands about locks do to the model.

use bytes::Bytes;
use tenure_machine::{BusyReply, LeaseId, Leave, Lock, LockEnd, LockReply, Mode, Refusal, Reply, Revision, Unlock};

use super::{Model, Place};

impl Model {
    pub(super) fn lock(&mut self, lock: &Lock) -> Result<Reply, Refusal> {
        let names: Vec<&Bytes> = std::iter::once(&lock.name).chain(&lock.more_names).collect();
        if (1..names.len()).any(|nth| names[..nth].contains(&names[nth])) {
            return Err(Refusal::HeldAlready);
        }
        if matches!(lock.mode, Mode::Barrier(_)) && names.len() > 1 {
            return Err(Refusal::ImpossibleBarrier);
        }
        let Some(life) = self.lease(lock.lease).filter(|_| lock.lease > 0) else { return Err(Refusal::LeaseNotFound) };
        if lock.epoch != 0 && lock.epoch != life.epoch {
            return Err(Refusal::SessionResumed);
        }
        let keys: Vec<Vec<u8>> = names.iter().map(|name| entry_key(name, lock.lease)).collect();
        if keys.iter().any(|key| self.live(key).is_some()) {
            return self.lock_again(lock, &names, &keys);
        }
        self.check_growth()?;
        let busy = names.iter().find(|name| !self.would_grant(name, lock.mode));
        if let Some(name) = busy.filter(|_| lock.try_once) {
            return Ok(Reply::Busy(self.busy(name)));
        }
        if busy.is_some() && self.closes_circle(lock) {
            // The words are the machine's to choose: see `tells_circle`.
            return Err(Refusal::Deadlock { cycle: String::new() });
        }
        for key in &keys {
            self.put(key, &lock.value, lock.lease);
            self.take_place(key, lock.lease, Some(lock));
        }
        Ok(Reply::Lock(a_place(keys, self.revision + 1, false)))
    }

    /// The same lease asks again for what it has, or for more.
    fn lock_again(&mut self, lock: &Lock, names: &[&Bytes], keys: &[Vec<u8>]) -> Result<Reply, Refusal> {
        let remains = self.remains_of(names, keys);
        if !remains.is_empty() {
            for key in &remains {
                self.delete(key, LockEnd::Left);
            }
            return Ok(Reply::Left { left: true });
        }
        let is_all_there = keys.iter().all(|key| self.live(key).is_some());
        let (mut token, mut waits) = (None, None);
        for (name, key) in names.iter().zip(keys) {
            let Some(created) = self.live(key).map(|kv| kv.create_revision) else { continue };
            let places = self.queues.get(&name[..]).map_or(&[][..], |places| &places[..]);
            let place = places.iter().position(|place| place.key == *key && place.token == created);
            let place = place.filter(|place| self.may_hold(&places[*place])).ok_or(Refusal::NotAnEntry)?;
            if !is_all_there || token.is_some_and(|token| token != created) {
                return Err(Refusal::HeldAlready);
            }
            let (mode, is_held) = (places[place].mode, place < Model::granted(places));
            if self.level > 0 && mode != lock.mode {
                return Err(Refusal::OtherMode { mode, token: is_held.then_some(created) });
            }
            token = Some(created);
            if !is_held {
                waits.get_or_insert(*name);
            }
        }
        if let Some(name) = waits.filter(|_| lock.try_once) {
            return Ok(Reply::Busy(self.busy(name)));
        }
        let token = token.ok_or(Refusal::NotAnEntry)?;
        for key in keys {
            let Some(kv) = self.live(key).cloned() else { continue };
            let mut places = self.queues.values_mut().flatten();
            if let Some(place) = places.find(|place| place.key == *key && place.token == token) {
                place.last_joiner = Some(lock.call);
            }
            let overwrites = lock.overwrite && kv.value[..] != lock.value[..];
            if overwrites || kv.lease != lock.lease {
                let value = if overwrites { lock.value.to_vec() } else { kv.value.to_vec() };
                self.put(key, &value, lock.lease);
            }
        }
        if self.level > 0 {
            self.checkpoint(lock.lease, u64::MAX);
        }
        Ok(Reply::Lock(a_place(keys.to_vec(), token, true)))
    }

    /// Places of an earlier request for the same names, of which one is gone.
    fn remains_of(&self, names: &[&Bytes], keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
        if self.level == 0 || names.len() == 1 {
            return Vec::new();
        }
        let is_asked = |name: &Vec<u8>| names.iter().any(|asked| asked[..] == name[..]);
        let is_same = |place: &Place| {
            place.together.len() + 1 == names.len() && place.together.iter().all(is_asked) && self.may_hold(place)
        };
        let mut places = Vec::new();
        for (name, key) in names.iter().zip(keys) {
            let queue = self.queues.get(&name[..]).map_or(&[][..], |queue| &queue[..]);
            places.extend(queue.iter().find(|place| place.key == *key).filter(|place| is_same(place)));
        }
        let is_whole = |token: Revision| places.iter().filter(|place| place.token == token).count() == names.len();
        places.iter().filter(|place| !is_whole(place.token)).map(|place| place.key.clone()).collect()
    }

    /// Whether one more place at the end would be granted at once.
    fn would_grant(&self, name: &[u8], mode: Mode) -> bool {
        let mut places = self.queues.get(name).cloned().unwrap_or_default();
        let is_kept = match mode {
            Mode::Barrier(_) => places.iter().any(|place| place.mode == mode && !self.may_hold(place)),
            // It does not overtake those whose turn has come.
            _ => places.iter().any(|place| !place.is_granted),
        };
        if is_kept {
            return false;
        }
        let (key, owner, together) = (Vec::new(), Vec::new(), Vec::new());
        let (token, lease) = (Revision::MAX, 0);
        let (last_joiner, is_granted, slot) = (None, false, None);
        places.push(Place { key, token, lease, mode, owner, last_joiner, is_granted, slot, together });
        Model::in_turn(&places) == places.len()
    }

    /// Who is in the way is left out: it is the machine's to describe.
    fn busy(&self, name: &[u8]) -> BusyReply {
        let places = self.queues.get(name).map_or(&[][..], |places| &places[..]);
        let waiting = places.len() - Model::granted(places);
        BusyReply { name: Bytes::copy_from_slice(name), holder: None, waiting }
    }

    pub(super) fn unlock(&mut self, unlock: &Unlock) -> Result<Reply, Refusal> {
        let (mut held, mut is_of_others) = (Vec::new(), false);
        for name in &unlock.names {
            let Some(places) = self.queues.get(&name[..]) else { continue };
            let granted = &places[..Model::granted(places)];
            let Some(place) = granted.iter().find(|place| place.token == unlock.token) else {
                is_of_others = true;
                continue;
            };
            if unlock.epoch != 0 && self.lease(place.lease).map(|life| life.epoch) != Some(unlock.epoch) {
                return Err(Refusal::SessionResumed);
            }
            held.push(place.key.clone());
        }
        if is_of_others && (held.is_empty() || self.level == 0) {
            return Err(Refusal::NotTheHolder);
        }
        for key in &held {
            self.delete(key, LockEnd::Released);
        }
        Ok(Reply::Unlocked { released: !held.is_empty() })
    }

    /// What is released is left out: it is the machine's to describe.
    pub(super) fn force_release(&mut self, name: &[u8], token: Revision) -> Result<Reply, Refusal> {
        let places = self.queues.get(name).ok_or(Refusal::NotHeld)?;
        let granted = &places[..Model::granted(places)];
        let place = granted.iter().find(|place| place.token == token).ok_or(Refusal::NotTheHolder)?;
        let key = place.key.clone();
        self.delete(&key, LockEnd::Forced);
        Ok(Reply::Unlocked { released: true })
    }

    pub(super) fn leave(&mut self, leave: &Leave) -> bool {
        let Some(kv) = self.live(&leave.key) else { return false };
        let (key, token) = (kv.key.to_vec(), kv.create_revision);
        let mut places = self.queues.values().flatten();
        let is_left = |place: &&Place| place.token == token && place.last_joiner == Some(leave.call);
        let Some(place) = places.find(|place| place.key == key && is_left(place)).cloned() else { return false };
        let siblings = place.together.iter().map(|name| entry_key(name, place.lease));
        let siblings: Vec<Vec<u8>> = siblings
            .filter(|key| self.queues.values().flatten().any(|other| other.key == *key && is_left(&other)))
            .collect();
        for key in std::iter::once(place.key).chain(siblings) {
            self.delete(&key, LockEnd::Left);
        }
        true
    }

    /// A key that was just created with `lease` is a place in a queue if its name says so.
    pub(super) fn take_place(&mut self, key: &[u8], lease: LeaseId, lock: Option<&Lock>) {
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
        let names = lock.into_iter().flat_map(|lock| std::iter::once(&lock.name).chain(&lock.more_names));
        let place = Place {
            key: key.to_vec(),
            token,
            lease,
            mode: lock.map_or(Mode::Exclusive, |lock| lock.mode),
            owner: lock.map_or_else(Vec::new, |lock| lock.owner.to_vec()),
            last_joiner: lock.map(|lock| lock.call),
            is_granted: false,
            slot: None,
            together: names.filter(|other| other[..] != *name.as_bytes()).map(|other| other.to_vec()).collect(),
        };
        self.join_queue(name.as_bytes(), place);
    }

    pub(super) fn place_in(&self, reply: &mut LockReply) {
        let keys: Vec<_> = std::iter::once(&reply.key).chain(&reply.more_keys).cloned().collect();
        let (mut granted, mut ahead, mut slot) = (true, 0, 0);
        for (nth, key) in keys.into_iter().enumerate() {
            for places in self.queues.values() {
                let is_it = |place: &Place| place.key[..] == key[..] && place.token == reply.token;
                let Some(position) = places.iter().position(is_it) else { continue };
                granted &= position < Model::granted(places);
                ahead = ahead.max(position);
                if nth == 0 {
                    slot = places[position].slot.unwrap_or(0);
                    reply.mode = places[position].mode;
                }
            }
        }
        (reply.granted, reply.ahead, reply.slot) = (granted, if granted { 0 } else { ahead }, slot);
    }
}

fn entry_key(name: &[u8], lease: LeaseId) -> Vec<u8> {
    format!("{}/{lease:x}", String::from_utf8_lossy(name)).into_bytes()
}

fn a_place(keys: Vec<Vec<u8>>, token: Revision, renewed: bool) -> LockReply {
    let mut keys = keys.into_iter().map(|key| key.into());
    let (key, more_keys) = (keys.next().unwrap_or_default(), keys.collect());
    LockReply { key, more_keys, token, mode: Mode::Exclusive, granted: false, slot: 0, renewed, ahead: 0 }
}
