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
//! An entry is granted if and only if its lease lives and all earlier ones are granted and compatible: same mode, and
//! for slots the same number with fewer than that before it. When the turn comes of an entry whose lease
//! has ended (its key was overwritten, so it did not end with the lease), the place ends instead, and
//! its key stays as an ordinary one. So the granted ones are always a
//! prefix of the queue, and it is enough to remember where the prefix ends. Grants are settled once,
//! when all writes of a command are done: a waiter that ends in the same command as the holder
//! before it was never granted.
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

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::{Bound, Deref};
use std::sync::Arc;

use bytes::Bytes;
use imbl::{OrdMap, OrdSet, Vector};
use smallvec::SmallVec;

pub(crate) use commands::together;

use crate::{LeaseId, LockChange, LockChanges, LockEnd, Mode, Refusal, Revision, SharedBytes, limits};

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
    /// The places of each owner that has a name, by queue and token.
    owners: OrdMap<SharedBytes, OrdSet<(LockName, Revision)>>,
    entries: u64,
}

/// The beginning of the key of one of its entries, so that a name takes no memory of its own.
#[derive(Clone)]
pub(crate) struct LockName {
    key: SharedBytes,
    length: usize,
}

#[derive(Clone)]
pub(crate) struct Queue {
    entries: Entries,
    /// The token of the last entry that is granted; 0 if none is.
    last_granted: Revision,
    granted: usize,
}

/// By token. Most locks have a holder and nobody waiting, and a tree for one entry would take half a kilobyte.
#[derive(Clone)]
enum Entries {
    One(Arc<LockEntry>),
    Many(OrdMap<Revision, Arc<LockEntry>>),
}

impl Locks {
    pub fn queue(&self, name: &[u8]) -> Option<&Queue> {
        self.queues.get(name)
    }

    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The entry that lives in `key`, created at `create_revision`, and its queue.
    pub fn entry(&self, key: &[u8], create_revision: Revision) -> Option<(&LockName, &Queue, &Arc<LockEntry>)> {
        let (name, _) = split_key(key)?;
        let (name, queue) = self.queues.get_key_value(name)?;
        let entry = queue.entries.get(create_revision).filter(|entry| *entry.key == *key)?;
        Some((name, queue, entry))
    }

    /// Adds an entry at the end of its queue; it is granted when the command is settled. False if an
    /// entry of the same revision is there already (or a later one).
    pub fn join(&mut self, name: &[u8], entry: LockEntry) -> bool {
        let (token, owner) = (entry.token, entry.owner.clone());
        let entry = Arc::new(entry);
        // Looked up first without intent to write: a miss must not copy nodes only to copy them again.
        let name = match self.queues.get_key_value(name) {
            Some((_, queue)) if queue.entries.last_token() >= token => return false,
            Some((name, _)) => {
                let name = name.clone();
                if let Some(queue) = self.queues.get_mut(&name) {
                    queue.entries.insert(entry);
                }
                name
            }
            None => {
                let name = LockName { key: entry.key.clone(), length: name.len() };
                let queue = Queue { entries: Entries::One(entry), last_granted: 0, granted: 0 };
                self.queues.insert(name.clone(), queue);
                name
            }
        };
        self.entries += 1;
        if !owner.is_empty() {
            self.owners.entry(owner).or_default().insert((name, token));
        }
        true
    }

    /// Makes a queue of an entry that is granted already; there must be none of that name.
    pub fn open(&mut self, name: &[u8], entry: LockEntry) -> Arc<LockEntry> {
        let name = LockName { key: entry.key.clone(), length: name.len() };
        let entry = Arc::new(entry);
        if !entry.owner.is_empty() {
            self.owners.entry(entry.owner.clone()).or_default().insert((name.clone(), entry.token));
        }
        self.queues.insert(name, Queue { last_granted: entry.token, granted: 1, entries: Entries::One(entry.clone()) });
        self.entries += 1;
        entry
    }

    fn discount(&mut self, name: &LockName, entry: &LockEntry) {
        self.entries -= 1;
        if entry.owner.is_empty() {
            return;
        }
        if let Some(places) = self.owners.get_mut(&entry.owner) {
            places.remove(&(name.clone(), entry.token));
            if places.is_empty() {
                self.owners.remove(&entry.owner);
            }
        }
    }

    /// Where an owner holds or waits.
    pub fn places_of_owner(&self, owner: &SharedBytes) -> impl Iterator<Item = &(LockName, Revision)> + '_ {
        self.owners.get(owner).into_iter().flatten()
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
        } else if let Some(queue) = self.queues.get_mut(name) {
            granted = queue.granted;
            queue.remove(&entry);
        }
        let frees = entry.granted_wall_ms.is_some() && granted == 1;
        self.discount(name, &entry);
        if entry.granted_wall_ms.is_some() {
            self.remember(RecentHolder { entry: entry.clone(), ended_wall_ms: wall_ms, cause });
        }
        LockChange::Ended { entry, cause, frees }
    }

    /// Grants all that can be granted in the queue `name` now. An entry that is due and may not hold ends instead.
    pub fn settle(
        &mut self,
        name: &[u8],
        wall_ms: u64,
        may_hold: impl Fn(&LockEntry) -> bool,
        changes: &mut LockChanges,
    ) {
        loop {
            // The command has written to this queue: nothing is copied here that was not copied already.
            let Some(queue) = self.queues.get_mut(name) else { return };
            let ending = queue.grant_due(wall_ms, &may_hold, changes);
            if ending.is_empty() {
                return;
            }
            for entry in ending {
                let is_last = self.queues.get(name).is_some_and(|queue| queue.len() == 1);
                let name = LockName { key: entry.key.clone(), length: name.len() };
                changes.push(self.remove(&name, entry, is_last, LockEnd::LeaseExpired, wall_ms));
            }
        }
    }

    /// Records who asked for the entry last.
    pub fn rejoin(&mut self, name: &[u8], token: Revision, call: u128) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        if let Some(entry) = queue.entries.get_mut(token) {
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

    /// Takes an entry from a snapshot, in the order of names and tokens; an error if it cannot be.
    pub fn restore(&mut self, entry: LockEntry) -> Result<(), &'static str> {
        let key = entry.key.clone();
        let (name, lease) = split_key(&key).ok_or("not the key of a lock entry")?;
        if lease != entry.lease {
            return Err("a lock entry of another lease");
        }
        let (token, mode, is_granted) = (entry.token, entry.mode, entry.granted_wall_ms.is_some());
        if !self.join(name, entry) {
            return Err("lock entries out of order");
        }
        let queue = self.queues.get_mut(name).ok_or("lock entries out of order")?;
        let is_in_turn = match is_granted {
            true => queue.granted + 1 == queue.len() && queue.goes_with_last(mode),
            false => queue.due() == 0,
        };
        if !is_in_turn {
            return Err("a lock granted out of turn");
        }
        if is_granted {
            queue.last_granted = token;
            queue.granted += 1;
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

impl Queue {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn granted(&self) -> usize {
        self.granted
    }

    /// All entries in order: the granted ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        self.entries.after(0)
    }

    /// The entries behind the one with this token.
    pub fn after(&self, token: Revision) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        self.entries.after(token)
    }

    /// How many stand before the entry with this token. A new entry is last, so that costs nothing;
    /// otherwise it walks.
    pub fn ahead(&self, token: Revision) -> usize {
        if token >= self.entries.last_token() {
            return self.len() - 1;
        }
        self.iter().take_while(|entry| entry.token < token).count()
    }

    /// Whether one more entry fits.
    pub fn check_room(&self) -> Result<(), Refusal> {
        if self.len() >= limits::LOCK_ENTRIES { Err(Refusal::TooManyWaiters) } else { Ok(()) }
    }

    /// Grants what is due until nothing is, or until something is due that may not hold: gives that.
    fn grant_due(
        &mut self,
        wall_ms: u64,
        may_hold: impl Fn(&LockEntry) -> bool,
        changes: &mut LockChanges,
    ) -> SmallVec<[Arc<LockEntry>; 1]> {
        loop {
            let due = self.due();
            let next = self.entries.after(self.last_granted).take(due);
            let ending: SmallVec<[_; 1]> = next.filter(|entry| !may_hold(entry)).cloned().collect();
            if due == 0 || !ending.is_empty() {
                return ending;
            }
            for entry in (0..due).map_while(|_| self.grant_next(wall_ms)) {
                changes.push(LockChange::Granted(entry));
            }
        }
    }

    /// How many of the first waiting entries are to be granted together now.
    fn due(&self) -> usize {
        let Some(next) = self.entries.after(self.last_granted).next() else { return 0 };
        let Mode::Barrier(parties) = next.mode else { return usize::from(self.goes_with_last(next.mode)) };
        let parties = parties as usize;
        let is_complete = self.granted == 0
            && self.len() >= parties
            && self.iter().take(parties).all(|entry| entry.mode == next.mode);
        if is_complete { parties } else { 0 }
    }

    /// Whether one more of this mode may stand beside those that are granted.
    fn goes_with_last(&self, mode: Mode) -> bool {
        self.entries.get(self.last_granted).is_none_or(|last| fits(last.mode, mode, self.granted))
    }

    /// The entry with this token, if it is granted.
    pub fn holder(&self, token: Revision) -> Option<&Arc<LockEntry>> {
        self.entries.get(token).filter(|entry| entry.granted_wall_ms.is_some())
    }

    /// The first slot that no holder has.
    fn free_slot(&self) -> u32 {
        let mut taken: Vec<u32> = self.iter().take(self.granted).map(|entry| entry.slot).collect();
        taken.sort_unstable();
        (0..).zip(&taken).take_while(|(slot, taken)| slot == *taken).count() as u32
    }

    fn grant_next(&mut self, wall_ms: u64) -> Option<Arc<LockEntry>> {
        let next = self.entries.after(self.last_granted).next()?;
        let token = next.token;
        let slot = match next.mode {
            Mode::Slots(_) => self.free_slot(),
            // A round is granted in one go, to a queue without holders.
            Mode::Barrier(_) => self.granted as u32,
            Mode::Exclusive | Mode::Shared => 0,
        };
        let entry = self.entries.get_mut(token)?;
        let granted = Arc::make_mut(entry);
        (granted.granted_wall_ms, granted.slot) = (Some(wall_ms), slot);
        let entry = entry.clone();
        self.last_granted = token;
        self.granted += 1;
        Some(entry)
    }

    /// Not for the last one: its queue goes with it.
    fn remove(&mut self, entry: &LockEntry) {
        self.entries.remove(entry.token);
        if entry.granted_wall_ms.is_some() {
            self.granted -= 1;
            if entry.token == self.last_granted {
                self.last_granted = self.entries.before(entry.token).map_or(0, |before| before.token);
            }
        }
    }
}

/// Whether an entry of this mode would be granted as soon as it is made.
pub(crate) fn would_grant(queue: Option<&Queue>, mode: Mode, may_hold: impl Fn(&LockEntry) -> bool) -> bool {
    if let Mode::Barrier(parties) = mode {
        let is_last = queue.map_or(0, Queue::len) + 1 == parties as usize;
        let is_party = |entry: &Arc<LockEntry>| entry.mode == mode && may_hold(entry);
        let meets = |queue: &Queue| queue.granted == 0 && queue.iter().all(is_party);
        return is_last && queue.is_none_or(meets);
    }
    queue.is_none_or(|queue| queue.granted == queue.len() && queue.goes_with_last(mode))
}

/// Whether an entry goes with the last one that is granted, being one of so many.
fn fits(last: Mode, next: Mode, granted: usize) -> bool {
    match (last, next) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots(slots), Mode::Slots(wanted)) | (Mode::Barrier(slots), Mode::Barrier(wanted)) => {
            slots == wanted && granted < slots as usize
        }
        _ => false,
    }
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Entries::One(_) => 1,
            Entries::Many(entries) => entries.len(),
        }
    }

    fn get(&self, token: Revision) -> Option<&Arc<LockEntry>> {
        match self {
            Entries::One(entry) => (entry.token == token).then_some(entry),
            Entries::Many(entries) => entries.get(&token),
        }
    }

    fn get_mut(&mut self, token: Revision) -> Option<&mut Arc<LockEntry>> {
        match self {
            Entries::One(entry) => (entry.token == token).then_some(entry),
            Entries::Many(entries) => entries.get_mut(&token),
        }
    }

    fn last_token(&self) -> Revision {
        match self {
            Entries::One(entry) => entry.token,
            Entries::Many(entries) => entries.get_max().map_or(0, |(token, _)| *token),
        }
    }

    fn after(&self, token: Revision) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        let (one, many) = match self {
            Entries::One(entry) => ((entry.token > token).then_some(entry), None),
            Entries::Many(entries) => (None, Some(entries.range((Bound::Excluded(token), Bound::Unbounded)))),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(_, entry)| entry))
    }

    fn before(&self, token: Revision) -> Option<&Arc<LockEntry>> {
        match self {
            Entries::One(entry) => (entry.token < token).then_some(entry),
            Entries::Many(entries) => entries.range(..token).next_back().map(|(_, entry)| entry),
        }
    }

    fn insert(&mut self, entry: Arc<LockEntry>) {
        match self {
            Entries::One(first) => {
                let mut entries = OrdMap::unit(first.token, first.clone());
                entries.insert(entry.token, entry);
                *self = Entries::Many(entries);
            }
            Entries::Many(entries) => {
                entries.insert(entry.token, entry);
            }
        }
    }

    fn remove(&mut self, token: Revision) {
        if let Entries::Many(entries) = self {
            entries.remove(&token);
        }
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
