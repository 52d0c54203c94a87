//! Locks and elections: queues of the keys beneath a name.
//!
//! An entry is a key `<name>/<lease in hex>` that was *created* with that very lease attached, be it
//! by [`crate::Command::Lock`], by a plain put or within a transaction: etcd's lock and election
//! recipes make such keys, so they stand in one queue with native clients. Entries are ordered by
//! create revision, which is also the fencing token. An entry ends when its key is deleted, by
//! whatever means.
//!
//! What is recorded of an entry (mode, owner, holder, metadata) is fixed when it is created and
//! never parsed out of the key's value, which anybody may overwrite. Overwriting an entry's key,
//! even with another lease or with none, therefore changes nothing in the queue: the entry stays
//! until its key is deleted. An etcd client that counts keys sees the same queue. A key that lost
//! its lease so does not end with it; a Lock call for the entry attaches it again.
//!
//! An entry is granted if and only if its lease lives and all earlier ones are granted and compatible:
//! same mode, and for slots the same number with fewer than that before it. So the granted ones are
//! always a prefix of the queue, and it is enough to remember where the prefix ends. Grants are settled
//! once, when all writes of a command are done: a waiter that ends in the same command as the holder
//! before it was never granted. From level 1 on a command grants a bounded number. What it leaves is
//! *due*: later commands that change the queue, or [`crate::Command::Continue`], grant it in order.
//!
//! A key that was overwritten does not end with the lease of its entry, so a waiting entry may outlive
//! its lease. When its turn comes the place ends instead, and the key stays as an ordinary one. (Below
//! level 1 it is granted.)
//!
//! A barrier is granted in rounds: when nobody holds the queue and as many as the barrier has parties
//! stand at its head, all of them are granted at once. Nobody joins them later; the next round can
//! begin when the last of them has left. Until a round is complete a queue may have no holder.
//!
//! Limits: a name longer than [`limits::LOCK_NAME_BYTES`] makes no queue (the key is an ordinary
//! one), an entry beyond [`limits::LOCK_ENTRIES`] is refused. Two entries of one queue never share
//! a revision: the second of a transaction is an ordinary key.

mod commands;
mod deadlock;
mod owners;
mod queue;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use imbl::{OrdMap, OrdSet, Vector};
use smallvec::SmallVec;

use self::owners::Owners;
pub(crate) use commands::together;
pub(crate) use queue::{Queue, would_grant};

use crate::{LeaseId, LockChange, LockChanges, LockEnd, Mode, Revision, SharedBytes, limits};

/// A place in a queue, with all that is recorded of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockEntry {
    pub key: SharedBytes,
    /// The key's create revision: the place in the queue, and the fencing token.
    pub token: Revision,
    /// The lease it was created with.
    pub lease: LeaseId,
    pub mode: Mode,
    /// The Lock call that joined last; none for an entry made by a plain put.
    pub last_joiner: Option<u128>,
    pub owner: SharedBytes,
    pub holder: SharedBytes,
    pub metadata: SharedBytes,
    /// Other names that were asked for in the same request.
    pub together: Arc<[Bytes]>,
    pub joined_wall_ms: u64,
    /// Set when it was granted.
    pub granted_wall_ms: Option<u64>,
    /// Of a semaphore: which of its slots, once granted. What it guards is fenced by name and slot. Of a
    /// barrier: the place in its round, from 0 on.
    pub slot: u32,
}

impl LockEntry {
    /// Of what it says about itself. The key is counted with the key space.
    fn bytes(&self) -> u64 {
        let together: usize = self.together.iter().map(Bytes::len).sum();
        (self.owner.len() + self.holder.len() + self.metadata.len() + together) as u64
    }
}

/// Somebody who held a lock and does no more: its entry as it was when it ended, and how that came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentHolder {
    pub entry: Arc<LockEntry>,
    pub ended_wall_ms: u64,
    pub cause: LockEnd,
}

impl RecentHolder {
    /// Of the lock.
    pub fn name(&self) -> &[u8] {
        name_of(&self.entry.key)
    }
}

impl Deref for RecentHolder {
    type Target = LockEntry;

    fn deref(&self) -> &LockEntry {
        &self.entry
    }
}

#[derive(Clone, Default)]
pub(crate) struct Locks {
    /// A queue is there as long as it has entries.
    pub(crate) queues: OrdMap<LockName, Queue>,
    /// Oldest first.
    pub(crate) recent: Vector<RecentHolder>,
    owners: Owners,
    /// Entries whose keys do not name their lease any more, by lease and key: another client's put has taken it off. Rare,
    /// and follows from the entries and their keys.
    detached: OrdSet<(LeaseId, SharedBytes)>,
    /// Queues with places that could be granted now. Follows from the queues.
    due: OrdSet<LockName>,
    entries: u64,
    /// Of what the entries say about themselves.
    entry_bytes: u64,
}

/// The beginning of the key of one of its entries, so that a name takes no memory of its own.
#[derive(Clone)]
pub(crate) struct LockName {
    key: SharedBytes,
    length: usize,
}

impl Locks {
    pub fn queue(&self, name: &[u8]) -> Option<&Queue> {
        self.queues.get(name)
    }

    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Whether places are left that could be granted now.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The first queue that has such places.
    pub fn first_due(&self) -> Option<LockName> {
        self.due.get_min().cloned()
    }

    /// Bytes of all that the entries say about themselves: owners, holders, metadata and the names taken together.
    pub fn entry_bytes(&self) -> u64 {
        self.entry_bytes
    }

    /// The entry that lives in `key`, created at `create_revision`, and its queue.
    pub fn entry(&self, key: &[u8], create_revision: Revision) -> Option<(&LockName, &Queue, &Arc<LockEntry>)> {
        let (name, _) = split_key(key)?;
        let (name, queue) = self.queues.get_key_value(name)?;
        let entry = queue.get(create_revision).filter(|entry| *entry.key == *key)?;
        Some((name, queue, entry))
    }

    /// Notes that the live version of `key`, which was created at `create_revision`, has changed its lease to this one.
    pub fn follow_lease(&mut self, key: &SharedBytes, create_revision: Revision, lease: LeaseId) {
        let Some(own) = self.entry(key, create_revision).map(|(_, _, entry)| entry.lease) else { return };
        match own == lease {
            true => self.detached.remove(&(own, key.clone())),
            false => self.detached.insert((own, key.clone())),
        };
    }

    /// The keys of entries of this lease that do not name it any more, in order.
    pub fn detached(&self, lease: LeaseId) -> impl Iterator<Item = &SharedBytes> + '_ {
        let from = (lease, SharedBytes::default());
        self.detached.range(from..).take_while(move |(of, _)| *of == lease).map(|(_, key)| key)
    }

    /// Adds an entry at the end of its queue; it is granted when the command is settled. False if an
    /// entry of the same revision is there already (or a later one).
    pub fn join(&mut self, name: &[u8], entry: LockEntry) -> bool {
        let (token, owner, bytes) = (entry.token, entry.owner.clone(), entry.bytes());
        let entry = Arc::new(entry);
        // Looked up first without intent to write: a miss must not copy nodes only to copy them again.
        let name = match self.queues.get_key_value(name) {
            Some((_, queue)) if queue.last_token() >= token => return false,
            Some((name, _)) => {
                let name = name.clone();
                if let Some(queue) = self.queues.get_mut(&name) {
                    queue.join(entry);
                }
                name
            }
            None => {
                let name = LockName { key: entry.key.clone(), length: name.len() };
                self.queues.insert(name.clone(), Queue::new(entry));
                name
            }
        };
        self.entries += 1;
        self.entry_bytes += bytes;
        if !owner.is_empty() {
            self.entangle(&owner, &name, token);
            self.owners.join(&owner, (name, token), false);
        }
        true
    }

    /// Notes on the places of an owner that it waits in several queues, when it comes to wait in one more.
    fn entangle(&mut self, owner: &SharedBytes, name: &LockName, token: Revision) {
        let Some(waiting) = self.owners.get(owner).map(|owner| &owner.waiting) else { return };
        // All but the first were noted when they joined.
        let first = waiting.iter().next().filter(|_| waiting.len() == 1).cloned();
        if waiting.len() == 0 {
            return;
        }
        for (name, token) in first.into_iter().chain([(name.clone(), token)]) {
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.entangle(token);
            }
        }
    }

    /// Makes a queue of an entry that is granted already; there must be none of that name.
    pub fn open(&mut self, name: &[u8], entry: LockEntry) -> Arc<LockEntry> {
        let name = LockName { key: entry.key.clone(), length: name.len() };
        let entry = Arc::new(entry);
        if !entry.owner.is_empty() {
            self.owners.join(&entry.owner, (name.clone(), entry.token), true);
        }
        self.queues.insert(name, Queue::new(entry.clone()));
        self.entries += 1;
        self.entry_bytes += entry.bytes();
        entry
    }

    fn discount(&mut self, name: &LockName, entry: &LockEntry) {
        self.entries -= 1;
        self.entry_bytes -= entry.bytes();
        if !self.detached.is_empty() {
            self.detached.remove(&(entry.lease, entry.key.clone()));
        }
        if !entry.owner.is_empty() {
            self.owners.leave(&entry.owner, &(name.clone(), entry.token), entry.granted_wall_ms.is_some());
        }
    }

    /// Removes the entry that lived in a deleted key, if it was one. Also tells whether its queue is empty now.
    pub fn end(
        &mut self,
        key: &[u8],
        create_revision: Revision,
        cause: LockEnd,
        wall_ms: u64,
    ) -> Option<(LockChange, bool)> {
        let (name, queue, entry) = self.entry(key, create_revision)?;
        let (name, entry, is_last) = (name.clone(), entry.clone(), queue.len() == 1);
        Some((self.remove(&name, entry, is_last, cause, wall_ms), is_last))
    }

    /// The same for an entry whose place is known.
    pub fn release(&mut self, name: &[u8], entry: Arc<LockEntry>, is_last: bool, wall_ms: u64) -> LockChange {
        let name = LockName { key: entry.key.clone(), length: name.len() };
        self.remove(&name, entry, is_last, LockEnd::Released, wall_ms)
    }

    fn remove(
        &mut self,
        name: &LockName,
        entry: Arc<LockEntry>,
        is_last: bool,
        cause: LockEnd,
        wall_ms: u64,
    ) -> LockChange {
        let mut granted = usize::from(entry.granted_wall_ms.is_some());
        if is_last {
            self.queues.remove(name);
            self.due.remove(name);
        } else if let Some(queue) = self.queues.get_mut(name) {
            granted = queue.granted();
            queue.remove(&entry);
        }
        let frees = entry.granted_wall_ms.is_some() && granted == 1;
        self.discount(name, &entry);
        if entry.granted_wall_ms.is_some() {
            self.remember(RecentHolder { entry: entry.clone(), ended_wall_ms: wall_ms, cause });
        }
        LockChange::Ended { entry, cause, frees }
    }

    /// Grants what can be granted in the queue `name` now, at most `room` places, and takes them off `room`. An entry that
    /// is due and may not hold ends instead, and counts, too.
    pub fn settle(
        &mut self,
        name: &[u8],
        wall_ms: u64,
        room: &mut usize,
        may_hold: impl Fn(&LockEntry) -> bool,
        changes: &mut LockChanges,
    ) {
        loop {
            // The command has written to this queue: nothing is copied here that was not copied already.
            let Some(queue) = self.queues.get_mut(name) else { return };
            let known = changes.len();
            let ending = queue.grant_due(wall_ms, room, &may_hold, changes);
            let is_due = ending.is_empty() && *room == 0 && queue.has_due();
            for granted in changes[known..].iter().map(LockChange::entry).filter(|entry| !entry.owner.is_empty()) {
                let name = LockName { key: granted.key.clone(), length: name.len() };
                self.owners.grant(&granted.owner, (name, granted.token));
            }
            if ending.is_empty() {
                return self.note_due(name, is_due);
            }
            *room = room.saturating_sub(ending.len());
            for entry in ending {
                let is_last = self.queues.get(name).is_some_and(|queue| queue.len() == 1);
                let name = LockName { key: entry.key.clone(), length: name.len() };
                changes.push(self.remove(&name, entry, is_last, LockEnd::LeaseExpired, wall_ms));
            }
        }
    }

    fn note_due(&mut self, name: &[u8], is_due: bool) {
        if !is_due && self.due.is_empty() {
            return;
        }
        let Some((name, _)) = self.queues.get_key_value(name) else { return };
        let name = name.clone();
        match is_due {
            true => self.due.insert(name),
            false => self.due.remove(&name),
        };
    }

    /// Records who asked for the entry last.
    pub fn rejoin(&mut self, name: &[u8], token: Revision, call: u128) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        if let Some(entry) = queue.get_mut(token) {
            Arc::make_mut(entry).last_joiner = Some(call);
        }
    }

    /// Nobody holds or waits; who did so is still known.
    pub fn without_queues(&self) -> Locks {
        Locks { recent: self.recent.clone(), ..Locks::default() }
    }

    pub fn remember(&mut self, holder: RecentHolder) {
        self.recent.push_back(holder);
        if self.recent.len() > limits::RECENT_HOLDERS {
            self.recent.pop_front();
        }
    }

    /// Takes an entry from a snapshot, in the order of names and tokens; an error if it cannot be. `may_be_due`: places
    /// that could be granted may still wait.
    pub fn restore(&mut self, entry: LockEntry, may_be_due: bool) -> Result<(), &'static str> {
        let key = entry.key.clone();
        let (name, lease) = split_key(&key).ok_or("not the key of a lock entry")?;
        if lease != entry.lease {
            return Err("a lock entry of another lease");
        }
        let is_granted = entry.granted_wall_ms.is_some();
        // Each is the first that was free, so there are no more of them than entries.
        if entry.slot as usize >= limits::LOCK_ENTRIES {
            return Err("an impossible slot");
        }
        // It joins as one that waits.
        if !self.join(name, LockEntry { granted_wall_ms: None, ..entry.clone() }) {
            return Err("lock entries out of order");
        }
        let queue = self.queues.get_mut(name).ok_or("lock entries out of order")?;
        let name = LockName { key: key.clone(), length: name.len() };
        if !is_granted && queue.has_due() && may_be_due {
            #[cfg(feature = "planted")]
            if crate::planted::is(crate::planted::Bug::ForgetDue) {
                return Ok(());
            }
            self.due.insert(name);
        } else if !queue.is_in_turn(entry.mode, is_granted) {
            return Err("a lock granted out of turn");
        } else if is_granted {
            if !entry.owner.is_empty() {
                self.owners.grant(&entry.owner, (name, entry.token));
            }
            queue.restore_granted(entry);
        }
        Ok(())
    }
}

impl Deref for LockName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.key[..self.length]
    }
}

impl Borrow<[u8]> for LockName {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &LockName) -> bool {
        **self == **other
    }
}

impl Eq for LockName {}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &LockName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockName {
    fn cmp(&self, other: &LockName) -> Ordering {
        (**self).cmp(&**other)
    }
}

/// The key of the entry of `lease` in the queue `name`.
pub fn entry_key(name: &[u8], lease: LeaseId) -> Vec<u8> {
    entry_key_at_hand(name, lease).into_vec()
}

/// The same, to be looked at and not kept: most take no memory but the stack's.
pub(crate) fn entry_key_at_hand(name: &[u8], lease: LeaseId) -> SmallVec<[u8; 64]> {
    let mut digits = [0; 16];
    let (mut rest, mut first) = (lease as u64, digits.len());
    loop {
        first -= 1;
        digits[first] = b"0123456789abcdef"[(rest & 15) as usize];
        rest >>= 4;
        if rest == 0 {
            break;
        }
    }
    let mut key = SmallVec::with_capacity(name.len() + 17);
    key.extend_from_slice(name);
    key.push(b'/');
    key.extend_from_slice(&digits[first..]);
    key
}

/// The name of the queue of an entry's key.
pub(crate) fn name_of(key: &[u8]) -> &[u8] {
    key.iter().rposition(|byte| *byte == b'/').map_or(key, |slash| &key[..slash])
}

/// Takes `<name>/<lease in hex>` apart; None if the key cannot be an entry of any queue.
pub fn split_key(key: &[u8]) -> Option<(&[u8], LeaseId)> {
    // The digits are at the end and few, so that an ordinary key is seen through after a few bytes.
    let (mut lease, mut split) = (0u64, key.len());
    for (place, byte) in key.iter().rev().take(17).enumerate() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'/' => break,
            _ => return None,
        };
        if place == 16 {
            return None;
        }
        lease |= u64::from(digit) << (4 * place);
        split -= 1;
    }
    // The slash, no digit, or a leading zero: one lease has one key.
    if split == 0 || key.get(split).is_none_or(|first| *first == b'0') {
        return None;
    }
    let name = &key[..split - 1];
    if name.len() > limits::LOCK_NAME_BYTES {
        return None;
    }
    Some((name, LeaseId::try_from(lease).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_put_together_and_taken_apart() {
        for lease in [1, 15, 16, 0x1234_5678_9abc_def0, i64::MAX] {
            let key = entry_key(b"jobs/nightly", lease);
            assert_eq!(key, format!("jobs/nightly/{lease:x}").into_bytes());
            assert_eq!(split_key(&key), Some((&b"jobs/nightly"[..], lease)));
        }
        assert_eq!(split_key(b"a//1f"), Some((&b"a/"[..], 0x1f)));
        assert_eq!(split_key(b"/1f"), Some((&b""[..], 0x1f)), "etcd lets a lock have no name");
        for key in ["", "a", "1f", "a/", "a/0", "a/01", "a/1F", "a/1g", "a/x1", "a/8000000000000000"] {
            assert_eq!(split_key(key.as_bytes()), None, "{key}");
        }
        assert_eq!(split_key(b"a/11111111111111111"), None);
        let longest = vec![b'n'; limits::LOCK_NAME_BYTES];
        assert!(split_key(&entry_key(&longest, 1)).is_some());
        assert!(split_key(&entry_key(&[&longest[..], b"n"].concat(), 1)).is_none());
    }
}
