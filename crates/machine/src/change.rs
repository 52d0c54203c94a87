//! One command's writes while they are made.
//!
//! A command validates first and writes then, so that a refused one leaves no trace. Its writes go
//! straight into the state, all at the revision after the current one; what they mean for leases
//! and queues follows each write at once. Two things wait for the end: the revision itself, which
//! is raised only if anything was written, and the grants, which are settled when all is done. What
//! would be granted beyond [`limits::LOCK_GRANTS_AT_ONCE`] is left to [`crate::Command::Continue`].

use std::sync::Arc;

use smallvec::SmallVec;

use crate::lock::{self, LockEntry};
use crate::mvcc::{Written, shared};
use crate::{
    Commit, Event, KeyValue, LeaseChange, LeaseId, Lock, LockChange, LockChanges, LockEnd, Mode, Put, Revision,
    SharedBytes, View, limits,
};

pub(crate) struct Change {
    /// The revision of all that is written.
    pub revision: Revision,
    pub wall_ms: u64,
    pub events: SmallVec<[Event; 1]>,
    pub lock_changes: LockChanges,
    pub lease_changes: Vec<LeaseChange>,
    /// It has a revision of its own, even if it writes nothing.
    has_revision: bool,
    /// Places that it may still grant.
    room: usize,
    /// What was done beside the writes and the changes of places, see [`crate::Applied::work`].
    pub work: u64,
    /// Keys whose entries joined or left a queue that is not empty.
    touched: SmallVec<[SharedBytes; 1]>,
    /// Keys that became entries at this revision.
    joined: SmallVec<[SharedBytes; 1]>,
}

/// A place that a Lock takes.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub lock: &'a Lock,
    /// Of the queue, one of those that the Lock names.
    pub name: &'a [u8],
    pub holder: &'a SharedBytes,
    /// There is no such queue, and the Lock asks for nothing else: it is granted as it is made.
    pub is_free: bool,
}

impl Change {
    pub fn new(revision: Revision, wall_ms: u64) -> Change {
        Change {
            revision,
            wall_ms,
            events: SmallVec::new(),
            lock_changes: LockChanges::new(),
            lease_changes: Vec::new(),
            has_revision: false,
            room: limits::lock_grants_at_once(),
            work: 0,
            touched: SmallVec::new(),
            joined: SmallVec::new(),
        }
    }

    /// What a read in the middle of the command takes for the current revision.
    pub fn current(&self) -> Revision {
        if self.events.is_empty() { self.revision - 1 } else { self.revision }
    }

    fn event(&mut self, written: &Written) {
        let event = written.event(&self.events);
        self.events.push(event);
    }
}

impl View {
    /// Does a put that was validated. Gives the live version that it replaced.
    pub(crate) fn put(&mut self, change: &mut Change, put: &Put) -> Option<Arc<KeyValue>> {
        let written = self.write(change, &put.key, None, |prev| {
            // An unchecked transaction may have deleted the key after its put was validated: then there is
            // nothing to keep.
            let value = if put.ignore_value {
                prev.map_or_else(Box::default, |prev| prev.value.clone())
            } else {
                put.value[..].into()
            };
            let lease = if put.ignore_lease { prev.map_or(0, |prev| prev.lease) } else { put.lease };
            (value, lease)
        });
        written.prev
    }

    /// Writes a version. `place` are the facts of the entry that this write makes, if not a plain put's.
    pub(crate) fn write(
        &mut self,
        change: &mut Change,
        key: &[u8],
        place: Option<Place<'_>>,
        content: impl FnOnce(Option<&KeyValue>) -> (Box<[u8]>, LeaseId),
    ) -> Written {
        let written = self.store.put(change.revision, key, content);
        self.follow(change, &written, place);
        written
    }

    /// What a version that was just written means for leases, queues and watchers.
    pub(crate) fn follow(&mut self, change: &mut Change, written: &Written, place: Option<Place<'_>>) {
        let old_lease = written.prev.as_ref().map_or(0, |prev| prev.lease);
        let kv = &written.kv;
        if kv.lease != old_lease {
            if old_lease != 0 {
                self.leases.detach(old_lease, &kv.key);
            }
            if kv.lease != 0 {
                self.leases.attach(kv.lease, &kv.key);
            }
            if kv.version > 1 {
                self.locks.follow_lease(&kv.key, kv.create_revision, kv.lease);
            }
        }
        if kv.version == 1 && kv.lease != 0 {
            self.join(change, kv, place);
        }
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::PutEndsPlace) && kv.version > 1 && kv.lease != old_lease {
            let ended = self.locks.end(&kv.key, kv.create_revision, LockEnd::Released, change.wall_ms);
            change.lock_changes.extend(ended.map(|(ended, _)| ended));
        }
        change.event(written);
    }

    /// Deletes a key that may or may not be live.
    pub(crate) fn delete_if_live(&mut self, change: &mut Change, key: &[u8], cause: LockEnd) -> Option<Arc<KeyValue>> {
        // Looked up first without intent to write: a miss must not copy nodes that a view shares.
        self.store.live(key)?;
        self.delete(change, key, cause)
    }

    /// Deletes a live key, and with it the place in a queue that it may be.
    pub(crate) fn delete(&mut self, change: &mut Change, key: &[u8], cause: LockEnd) -> Option<Arc<KeyValue>> {
        let written = self.store.delete(change.revision, key)?;
        if let Some(prev) = &written.prev {
            if prev.lease != 0 {
                self.leases.detach(prev.lease, &prev.key);
            }
            if let Some((ended, is_empty)) = self.locks.end(key, prev.create_revision, cause, change.wall_ms) {
                if !is_empty {
                    change.touched.push(prev.key.clone());
                }
                change.lock_changes.push(ended);
            }
        }
        change.event(&written);
        written.prev
    }

    /// Deletes the key of an entry that was just looked up, beneath this name; whether it is the last of its queue
    /// is known, too.
    pub(crate) fn release(&mut self, change: &mut Change, name: &[u8], entry: Arc<LockEntry>, is_last: bool) {
        let Some(written) = self.store.delete(change.revision, &entry.key) else { return };
        if let Some(prev) = &written.prev
            && prev.lease != 0
        {
            self.leases.detach(prev.lease, &prev.key);
        }
        if !is_last {
            change.touched.push(entry.key.clone());
        }
        change.lock_changes.push(self.locks.release(name, entry, is_last, change.wall_ms));
        change.event(&written);
    }

    /// Makes an entry of a key that was just created, if it is one.
    fn join(&mut self, change: &mut Change, kv: &KeyValue, place: Option<Place<'_>>) {
        let named = match place {
            Some(place) => Some((place.name, place.lock.lease)),
            None => lock::split_key(&kv.key),
        };
        let Some((name, lease)) = named else { return };
        if lease != kv.lease || change.joined.iter().any(|joined| lock::name_of(joined) == name) {
            return;
        }
        let lock = place.map(|place| place.lock);
        let is_free = place.is_some_and(|place| place.is_free);
        let entry = LockEntry {
            key: kv.key.clone(),
            token: kv.create_revision,
            lease,
            mode: lock.map_or(Mode::Exclusive, |lock| lock.mode.sane()),
            last_joiner: lock.map(|lock| lock.call),
            owner: lock.map_or_else(SharedBytes::default, |lock| shared(&lock.owner)),
            holder: place.map_or_else(SharedBytes::default, |place| place.holder.clone()),
            metadata: lock.map_or_else(SharedBytes::default, |lock| shared(&lock.metadata)),
            together: lock.map_or_else(Arc::default, |lock| lock::together(lock, name)),
            joined_wall_ms: change.wall_ms,
            granted_wall_ms: is_free.then_some(change.wall_ms),
            slot: 0,
        };
        if is_free {
            change.lock_changes.push(LockChange::Granted(self.locks.open(name, entry)));
        } else if self.locks.join(name, entry) {
            change.joined.push(kv.key.clone());
            change.touched.push(kv.key.clone());
        }
    }

    /// Grants what is still due of earlier commands, and gives how many places. The command has a revision of its own if
    /// it grants any, so that every watch of a lock can say what it has seen by a revision.
    pub(crate) fn grant_due(&mut self, change: &mut Change) -> usize {
        let View { locks, leases, .. } = self;
        let known = change.lock_changes.len();
        while change.room > 0
            && let Some(name) = locks.first_due()
        {
            let may_hold = |entry: &LockEntry| leases.is_alive(entry);
            locks.settle(&name, change.wall_ms, &mut change.room, may_hold, &mut change.lock_changes);
        }
        change.has_revision = change.lock_changes.len() > known;
        change.lock_changes[known..].iter().filter(|change| matches!(change, LockChange::Granted(_))).count()
    }

    /// Raises the revision if anything was written, and grants what can be granted now.
    pub(crate) fn finish(&mut self, change: &mut Change) -> Option<Commit> {
        if change.events.is_empty() && !change.has_revision {
            return None;
        }
        change.work += change.events.len() as u64;
        let commit = self.store.commit(std::mem::take(&mut change.events));
        change.touched.sort_unstable_by(|a, b| lock::name_of(a).cmp(lock::name_of(b)));
        change.touched.dedup_by(|a, b| lock::name_of(a) == lock::name_of(b));
        let View { locks, leases, level, .. } = self;
        let may_hold = |entry: &LockEntry| *level == 0 || leases.is_alive(entry);
        if *level == 0 {
            change.room = usize::MAX;
        }
        for key in &change.touched {
            locks.settle(lock::name_of(key), change.wall_ms, &mut change.room, may_hold, &mut change.lock_changes);
        }
        Some(commit)
    }
}
