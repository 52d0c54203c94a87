//! What the commands about locks do to the state.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::deadlock;
use super::{LockEntry, Queue, entry_key, entry_key_at_hand, would_grant};
use crate::change::{Change, Place};
use crate::mvcc::shared;
use crate::{
    BusyReply, LeaseChange, Leave, Lock, LockChange, LockEnd, LockReply, Mode, Refusal, Reply, Revision, SharedBytes,
    Unlock, View, limits,
};

impl View {
    /// Takes a place in each queue that is named, all at one revision: so all who ask for several locks
    /// stand in one order, and cannot wait for each other in a circle.
    pub(crate) fn lock(&mut self, change: &mut Change, lock: &Lock) -> Result<Reply, Refusal> {
        self.check_sound()?;
        check_names(lock)?;
        check_barrier(lock)?;
        if lock.lease <= 0 {
            return Err(Refusal::LeaseNotFound);
        }
        let lease = self.leases.get(lock.lease).ok_or(Refusal::LeaseNotFound)?;
        check_epoch(Some(lease.epoch), lock.epoch)?;
        // A request that names no holder is made by the lease's client. All locks of a session share that name's bytes.
        let is_client = lease.client[..] == lock.holder[..] || (self.level >= 1 && lock.holder.is_empty());
        let holder = if is_client { lease.client.clone() } else { shared(&lock.holder) };
        if self.is_free_for(lock)
            && let Some(reply) = self.lock_free(change, lock, &holder)
        {
            return Ok(reply);
        }
        let keys: SmallVec<[_; 1]> = lock.names().map(|name| entry_key(name, lock.lease)).collect();
        let there = keys.iter().filter(|key| self.store.live(key).is_some()).count();
        if there > 0 {
            return self.lock_again(change, lock, &keys, there);
        }
        self.check_growth()?;
        let mut busy = None;
        for name in lock.names() {
            let queue = self.locks.queue(name);
            queue.map_or(Ok(()), Queue::check_room)?;
            if !would_grant(queue, lock.mode, |entry| self.may_hold(entry)) {
                busy.get_or_insert(name);
            }
        }
        if let Some(busy) = busy {
            if lock.try_once {
                return Ok(Reply::Busy(self.busy(busy)));
            }
            if !lock.owner.is_empty() && self.level >= 1 {
                deadlock::check(&self.locks, lock, &mut change.work)?;
            } else if !lock.owner.is_empty()
                && let Some(cycle) = deadlock::cycle(&self.locks, lock)
            {
                return Err(Refusal::Deadlock { cycle });
            }
        }
        let mut places = lock.names().zip(&keys).map(|(name, key)| {
            let place = Place { lock, name, holder: &holder, is_free: false };
            let written = self.write(change, key, Some(place), |_| (lock.value[..].into(), lock.lease));
            written.kv.key.clone()
        });
        let (key, more_keys) = (places.next().unwrap_or_default(), places.collect());
        Ok(Reply::Lock(lock_reply(key, more_keys, change.revision, lock.mode.sane())))
    }

    /// Whether it asks for one lock in which nobody is, and nothing but its own key can be in the way. So it is with
    /// nearly all.
    fn is_free_for(&self, lock: &Lock) -> bool {
        lock.more_names.is_empty()
            && self.check_growth().is_ok()
            && would_grant(None, lock.mode, |_| true)
            && self.locks.queue(&lock.name).is_none()
    }

    /// Takes such a lock, with one look at the keys; None if there is a key where the entry would be.
    fn lock_free(&mut self, change: &mut Change, lock: &Lock, holder: &SharedBytes) -> Option<Reply> {
        let key = entry_key_at_hand(&lock.name, lock.lease);
        let written = self.store.create(change.revision, &key, &lock.value, lock.lease)?;
        let place = Place { lock, name: &lock.name, holder, is_free: true };
        self.follow(change, &written, Some(place));
        Some(Reply::Lock(lock_reply(written.kv.key.clone(), Vec::new(), change.revision, lock.mode.sane())))
    }

    /// The same lease asks again: same places, same token. Asking for more names than it has is refused, because
    /// waiting for one lock while holding another is how deadlocks begin. Asking for another mode is refused, because
    /// the place was made with its mode. A call that does not wait leaves a place whose turn has not come to the call
    /// that waits there.
    ///
    /// From level 1 on, what is left of an earlier request for these very names is left: several locks are held together
    /// or not at all. The request itself takes no place then, as if it had waited when the first of them ended.
    fn lock_again(
        &mut self,
        change: &mut Change,
        lock: &Lock,
        keys: &[Vec<u8>],
        there: usize,
    ) -> Result<Reply, Refusal> {
        if self.level >= 1 && !lock.more_names.is_empty() {
            let remains = self.remains_of(lock, keys);
            for key in &remains {
                self.delete(change, key, LockEnd::Left);
            }
            if !remains.is_empty() {
                return Ok(Reply::Left { left: true });
            }
        }
        let (mut token, mut waits) = (None, None);
        for (name, key) in lock.names().zip(keys) {
            let Some(kv) = self.store.live(key) else { continue };
            let entry = self.locks.entry(&kv.key, kv.create_revision).map(|(_, _, entry)| entry);
            // A place that outlived its lease is not taken over by a later lease with the same id.
            let entry = entry.filter(|entry| self.may_hold(entry)).ok_or(Refusal::NotAnEntry)?;
            if there < keys.len() || token.is_some_and(|token| token != entry.token) {
                return Err(Refusal::HeldAlready);
            }
            #[cfg(feature = "planted")]
            let is_renewed = crate::planted::is(crate::planted::Bug::RenewOtherMode);
            #[cfg(not(feature = "planted"))]
            let is_renewed = false;
            if self.level >= 1 && entry.mode != lock.mode.sane() && !is_renewed {
                let token = entry.granted_wall_ms.map(|_| entry.token);
                return Err(Refusal::OtherMode { mode: entry.mode, token });
            }
            token = Some(entry.token);
            if entry.granted_wall_ms.is_none() {
                waits.get_or_insert(name);
            }
        }
        if let Some(name) = waits.filter(|_| lock.try_once) {
            return Ok(Reply::Busy(self.busy(name)));
        }
        let token = token.ok_or(Refusal::NotAnEntry)?;
        for (name, key) in lock.names().zip(keys) {
            self.rejoin(change, lock, name, key, token);
        }
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::RenewInName) {
            return Ok(Reply::Lock(self.reply_for(keys, token, true)));
        }
        if self.level >= 1
            && let Some(ttl_ms) = self.leases.renew(lock.lease)
        {
            change.lease_changes.push(LeaseChange::Renewed { lease: lock.lease, ttl_ms });
        }
        Ok(Reply::Lock(self.reply_for(keys, token, true)))
    }

    /// The keys of places that this lease has taken by a request for the same names, if not all of these places are left.
    fn remains_of(&self, lock: &Lock, keys: &[Vec<u8>]) -> Vec<SharedBytes> {
        let entries = keys.iter().filter_map(|key| self.lock_entry(key)).map(|(_, entry)| entry);
        let is_same = |entry: &&Arc<LockEntry>| {
            self.may_hold(entry)
                && entry.together.len() == lock.more_names.len()
                && entry.together.iter().all(|name| lock.names().any(|asked| asked == name))
        };
        let entries: SmallVec<[_; 4]> = entries.filter(is_same).collect();
        let is_whole = |token: Revision| entries.iter().filter(|entry| entry.token == token).count() == keys.len();
        entries.iter().filter(|entry| !is_whole(entry.token)).map(|entry| entry.key.clone()).collect()
    }

    /// Whether an entry may be granted: from level 1 on only while its lease lives.
    fn may_hold(&self, entry: &LockEntry) -> bool {
        self.level == 0 || self.leases.is_alive(entry)
    }

    fn rejoin(&mut self, change: &mut Change, lock: &Lock, name: &[u8], key: &[u8], token: Revision) {
        let Some(kv) = self.store.live(key).cloned() else { return };
        self.locks.rejoin(name, token, lock.call);
        let replaces_value = lock.overwrite && kv.value[..] != lock.value[..];
        // Somebody's put may have taken the lease from the key: without it the entry would outlive its owner.
        if replaces_value || kv.lease != lock.lease {
            let value = if replaces_value { Box::from(&lock.value[..]) } else { kv.value.clone() };
            self.write(change, &kv.key, None, |_| (value, lock.lease));
        }
    }

    /// The places that a Lock has taken, applied at some time before this state, if one of them is left: as they
    /// would be told now.
    pub fn places_taken_by(&self, lock: &Lock) -> Option<LockReply> {
        let keys: SmallVec<[_; 1]> = lock.names().map(|name| entry_key(name, lock.lease)).collect();
        let entries = keys.iter().filter_map(|key| self.lock_entry(key));
        let (_, entry) = entries.into_iter().find(|(_, entry)| entry.last_joiner == Some(lock.call))?;
        let mut reply = self.reply_for(&keys, entry.token, false);
        self.fill_lock_reply(&mut reply, &[]);
        Some(reply)
    }

    /// For places that are there already.
    fn reply_for(&self, keys: &[Vec<u8>], token: Revision, renewed: bool) -> LockReply {
        let mut places = keys.iter().map(|key| self.store.live(key).map_or_else(|| shared(key), |kv| kv.key.clone()));
        let (key, more_keys) = (places.next().unwrap_or_default(), places.collect());
        // The mode is filled in from the entry.
        LockReply { renewed, ..lock_reply(key, more_keys, token, Mode::Exclusive) }
    }

    /// Adds what became of the places when the command's queues were settled.
    pub(crate) fn fill_lock_reply(&self, reply: &mut LockReply, changes: &[LockChange]) {
        // Granted at once, as most are: what was just done need not be looked up again.
        if let [LockChange::Granted(entry)] = changes
            && (&entry.key, entry.token) == (&reply.key, reply.token)
            && reply.more_keys.is_empty()
        {
            (reply.granted, reply.slot, reply.mode) = (true, entry.slot, entry.mode);
            return;
        }
        reply.granted = true;
        for key in std::iter::once(&reply.key).chain(&reply.more_keys) {
            let Some((_, queue, entry)) = self.locks.entry(key, reply.token) else { continue };
            reply.granted &= entry.granted_wall_ms.is_some();
            reply.ahead = reply.ahead.max(queue.ahead(entry.token));
        }
        if reply.granted {
            reply.ahead = 0;
        }
        if let Some((_, _, entry)) = self.locks.entry(&reply.key, reply.token) {
            (reply.slot, reply.mode) = (entry.slot, entry.mode);
        }
    }

    /// Who is in the way of somebody who asks for `name`.
    pub fn busy(&self, name: &[u8]) -> BusyReply {
        let (entries, granted) = self.lock_counts(name);
        let holder = self.lock_queue(name).next().filter(|first| first.granted_wall_ms.is_some()).cloned();
        BusyReply { name: Bytes::copy_from_slice(name), holder, waiting: entries - granted }
    }

    pub(crate) fn unlock(&mut self, change: &mut Change, unlock: &Unlock) -> Result<Reply, Refusal> {
        self.check_sound()?;
        let mut held = SmallVec::<[_; 1]>::new();
        let mut is_of_others = false;
        for name in &unlock.names {
            let Some(queue) = self.locks.queue(name) else { continue };
            let Some(entry) = queue.holder(unlock.token) else {
                is_of_others = true;
                continue;
            };
            if unlock.epoch != 0 {
                check_epoch(self.leases.epoch(entry.lease), unlock.epoch)?;
            }
            held.push((name, entry.clone(), queue.len() == 1));
        }
        let released = !held.is_empty();
        // Of several locks one may have been taken away. From level 1 on the others are released all the same.
        if is_of_others && (!released || self.level == 0) {
            return Err(Refusal::NotTheHolder);
        }
        for (name, entry, is_last) in held {
            self.release(change, name, entry, is_last);
        }
        Ok(Reply::Unlocked { released })
    }

    /// An operator's way out: ends the tenure of the holder with this token, whoever it is.
    pub(crate) fn force_release(
        &mut self,
        change: &mut Change,
        name: &[u8],
        token: Revision,
    ) -> Result<Reply, Refusal> {
        self.check_sound()?;
        let queue = self.locks.queue(name).ok_or(Refusal::NotHeld)?;
        let entry = queue.holder(token).ok_or(Refusal::NotTheHolder)?.clone();
        self.delete(change, &entry.key, LockEnd::Forced);
        Ok(Reply::ForceReleased(entry))
    }

    /// Forgets who held a lock that nobody holds.
    pub(crate) fn forget_lock(&mut self, name: &[u8]) -> Result<Reply, Refusal> {
        if self.locks.queue(name).is_some() {
            return Err(Refusal::InUse);
        }
        let before = self.locks.recent.len();
        self.locks.recent.retain(|holder| holder.name() != name);
        Ok(Reply::LockForgotten { holders: before - self.locks.recent.len() })
    }

    /// Gives up all places that the call has taken, if no later call has taken them over.
    pub(crate) fn leave(&mut self, change: &mut Change, leave: &Leave) -> Result<Reply, Refusal> {
        self.check_sound()?;
        let mut left = false;
        for key in self.places_of(leave) {
            left |= self.delete(change, &key, LockEnd::Left).is_some();
        }
        Ok(Reply::Left { left })
    }

    fn places_of(&self, leave: &Leave) -> Vec<SharedBytes> {
        let mut places = Vec::new();
        let is_last_joiner = |entry: &LockEntry| {
            #[cfg(feature = "planted")]
            if crate::planted::is(crate::planted::Bug::LeaveAnybody) {
                return true;
            }
            entry.last_joiner == Some(leave.call)
        };
        let entry = self.lock_entry(&leave.key).map(|(_, entry)| entry).filter(|entry| is_last_joiner(entry));
        let Some(entry) = entry else { return places };
        places.push(entry.key.clone());
        for name in entry.together.iter() {
            let key = entry_key(name, entry.lease);
            let sibling = self.lock_entry(&key).map(|(_, entry)| entry);
            let sibling = sibling.filter(|sibling| sibling.token == entry.token && is_last_joiner(sibling));
            places.extend(sibling.map(|sibling| sibling.key.clone()));
        }
        places.dedup();
        places
    }

    /// A stream takes a session over; what an older one still sends has no effect from here on.
    pub(crate) fn resume_session(&mut self, lease: crate::LeaseId) -> Result<Reply, Refusal> {
        let (epoch, ttl_ms) = self.leases.resume(lease).ok_or(Refusal::LeaseNotFound)?;
        Ok(Reply::SessionResumed { epoch, ttl_ms })
    }
}

fn lock_reply(key: SharedBytes, more_keys: Vec<SharedBytes>, token: Revision, mode: Mode) -> LockReply {
    LockReply { key, more_keys, token, mode, granted: false, slot: 0, renewed: false, ahead: 0 }
}

/// What an older stream of a session that was resumed elsewhere sends is void.
fn check_epoch(current: Option<u64>, sent: u64) -> Result<(), Refusal> {
    match sent != 0 && current != Some(sent) {
        true => Err(Refusal::SessionResumed),
        false => Ok(()),
    }
}

fn check_names(lock: &Lock) -> Result<(), Refusal> {
    if lock.more_names.len() >= limits::LOCK_NAMES {
        return Err(Refusal::TooManyNames);
    }
    for (index, name) in lock.names().enumerate() {
        if name.len() > limits::LOCK_NAME_BYTES {
            return Err(Refusal::NameTooLong);
        }
        if lock.names().take(index).any(|earlier| earlier == name) {
            return Err(Refusal::HeldAlready);
        }
    }
    Ok(())
}

/// One who waits at a barrier waits for those who come later, too: holding a place elsewhere meanwhile could
/// keep them from ever coming.
fn check_barrier(lock: &Lock) -> Result<(), Refusal> {
    match lock.mode {
        Mode::Barrier(1..=limits::BARRIER_PARTIES) if lock.more_names.is_empty() => Ok(()),
        Mode::Barrier(_) => Err(Refusal::ImpossibleBarrier),
        Mode::Exclusive | Mode::Shared | Mode::Slots(_) => Ok(()),
    }
}

/// The other names that an entry was taken together with.
pub(crate) fn together(lock: &Lock, own: &[u8]) -> Arc<[Bytes]> {
    match lock.more_names.is_empty() {
        true => Arc::default(),
        false => lock.names().filter(|name| name[..] != *own).map(|name| Bytes::copy_from_slice(name)).collect(),
    }
}
