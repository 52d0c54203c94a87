//! The state at one applied index.
//!
//! Everything below is persistent, so a [`View`] is a handful of pointers: cloned in constant time,
//! sharing all memory with the machine it came from, and untouched by what the machine does next.

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::lease::{Lease, Leases};
use crate::lock::{LockEntry, Locks, Queue, RecentHolder};
use crate::mvcc::Store;
use crate::origin::Origins;
use crate::{
    Alarm, Commit, KeyValue, LeaseId, Level, Member, MemberId, Origin, RangeQuery, RangeReply, Refusal, Revision,
    SharedBytes, hash_keys, level, snapshot,
};

/// The whole state at one applied index. Cloning it takes constant time and shares everything.
#[derive(Clone)]
pub struct View {
    pub(crate) store: Store,
    pub(crate) leases: Leases,
    pub(crate) locks: Locks,
    pub(crate) origins: Origins,
    pub(crate) members: OrdMap<MemberId, Arc<Member>>,
    pub(crate) alarms: OrdSet<Alarm>,
    pub(crate) applied_index: u64,
    pub(crate) applied_term: u64,
    pub(crate) level: Level,
    pub(crate) level_pin: Option<Level>,
}

impl std::fmt::Debug for View {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { applied_index, applied_term, .. } = self;
        write!(formatter, "View {{ applied {applied_index}.{applied_term}, revision {} }}", self.revision())
    }
}

impl View {
    pub fn revision(&self) -> Revision {
        self.store.revision
    }

    /// The newest revision whose history is gone; -1 when nothing was ever compacted.
    pub fn compacted_revision(&self) -> Revision {
        self.store.compacted
    }

    pub fn applied_index(&self) -> u64 {
        self.applied_index
    }

    pub fn applied_term(&self) -> u64 {
        self.applied_term
    }

    /// The live version of one key.
    pub fn get(&self, key: &[u8]) -> Option<&Arc<KeyValue>> {
        self.store.live(key)
    }

    pub fn range(&self, query: &RangeQuery) -> Result<RangeReply, Refusal> {
        self.range_within(query, usize::MAX).unwrap_or_else(|| Ok(RangeReply::default()))
    }

    /// Like `range`, but gives up (None) once it has walked `budget` keys: what is longer runs on a view elsewhere.
    pub fn range_within(&self, query: &RangeQuery, budget: usize) -> Option<Result<RangeReply, Refusal>> {
        self.store.range(query, self.store.revision, budget)
    }

    /// Every commit from revision `from` on, in order. `from` must be beyond the compacted revision
    /// (a start at the compacted revision itself is allowed and sees that revision's deletes).
    pub fn commits(&self, from: Revision) -> Result<impl Iterator<Item = Commit> + '_, Refusal> {
        let compacted = self.store.compacted;
        if from < compacted {
            return Err(Refusal::Compacted { asked: from, compacted });
        }
        Ok(self.store.history.from(from))
    }

    pub fn lease(&self, lease: LeaseId) -> Option<LeaseView> {
        self.leases.get(lease).map(|found| LeaseView::new(lease, found))
    }

    /// In the order of their ids.
    pub fn leases(&self) -> impl Iterator<Item = LeaseView> + '_ {
        self.leases.iter().map(|(lease, found)| LeaseView::new(lease, found))
    }

    /// Of a lease that exists; without collecting its keys.
    pub fn lease_ttl_ms(&self, lease: LeaseId) -> Option<u64> {
        self.leases.get(lease).map(|lease| lease.ttl_ms)
    }

    /// Who asked for a lease that exists; without collecting its keys.
    pub fn lease_client(&self, lease: LeaseId) -> Option<&SharedBytes> {
        self.leases.get(lease).map(|lease| &lease.client)
    }

    /// The entries that were made with a lease that exists, with the names of their locks. Those whose keys name no lease
    /// or another one, because a client has overwritten them, come last.
    pub fn lease_entries(&self, lease: LeaseId) -> impl Iterator<Item = (&[u8], &Arc<LockEntry>)> + '_ {
        let attached = self.leases.get(lease).into_iter().flat_map(Lease::keys);
        let entries = attached.chain(self.locks.detached(lease)).filter_map(|key| self.lock_entry(key));
        entries.filter(move |(_, entry)| entry.lease == lease && self.leases.is_alive(entry))
    }

    /// 0 if there is no such lease.
    pub fn lease_key_count(&self, lease: LeaseId) -> usize {
        self.leases.get(lease).map_or(0, Lease::key_count)
    }

    /// Every lease, its TTL and what was left of it when that was noted last, in the order of their ids.
    pub fn leases_left_ms(&self) -> impl Iterator<Item = (LeaseId, u64, u64)> + '_ {
        self.leases_left_ms_after(None)
    }

    /// As [`View::leases_left_ms`], for the leases behind `after` in that order; None = for all.
    pub fn leases_left_ms_after(&self, after: Option<LeaseId>) -> impl Iterator<Item = (LeaseId, u64, u64)> + '_ {
        let bounds = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let live = self.leases.leases.range(bounds).filter(|(_, lease)| lease.ending.is_none());
        live.map(|(lease, found)| (*lease, found.ttl_ms, found.left_ms))
    }

    /// Of a lease that exists: what was left of it when that was noted last.
    pub fn lease_left_ms(&self, lease: LeaseId) -> Option<u64> {
        self.leases.get(lease).map(|lease| lease.left_ms)
    }

    pub fn lease_count(&self) -> u64 {
        self.leases.len() as u64
    }

    /// Whether an earlier command has left work to [`crate::Command::Continue`].
    pub fn has_unfinished(&self) -> bool {
        self.locks.has_due() || self.leases.has_ending()
    }

    /// Leases that have ended and still have keys, in the order of their ids: [`crate::Command::Continue`] deletes them.
    pub fn ending_leases(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.leases.ending()
    }

    pub fn members(&self) -> Vec<Member> {
        self.members.values().map(|member| Member::clone(member)).collect()
    }

    /// Whether a forwarded command would have no effect: it was applied before, or its origin is through with it.
    pub fn is_settled(&self, origin: &Origin) -> bool {
        self.origins.is_settled(origin)
    }

    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.iter().copied().collect()
    }

    /// The holders, in order, of the lock or election `name`: (key, token).
    pub fn lock_holders(&self, name: &[u8]) -> Vec<(SharedBytes, Revision)> {
        let holders = self.lock_queue(name).take_while(|entry| entry.granted_wall_ms.is_some());
        holders.map(|entry| (entry.key.clone(), entry.token)).collect()
    }

    /// Every entry in the queue of `name`, in order: the holders first.
    pub fn lock_queue(&self, name: &[u8]) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        self.locks.queue(name).into_iter().flat_map(Queue::iter)
    }

    /// How many entries the queue of `name` has, and how many of them are granted.
    pub fn lock_counts(&self, name: &[u8]) -> (usize, usize) {
        self.locks.queue(name).map_or((0, 0), |queue| (queue.len(), queue.granted()))
    }

    /// No queue is longer than this; found without looking at any.
    pub fn longest_lock_queue(&self) -> usize {
        (self.locks.entries() as usize + 1).saturating_sub(self.locks.queues.len())
    }

    /// The entry that the live key `key` is, if it is one, and the name of its queue.
    pub fn lock_entry(&self, key: &[u8]) -> Option<(&[u8], &Arc<LockEntry>)> {
        let kv = self.store.live(key)?;
        let (name, _, entry) = self.locks.entry(key, kv.create_revision)?;
        Some((name, entry))
    }

    /// The first key among these that a Lock call has made to be a place in a queue: the name of the lock, and the entry.
    /// Places that a client has made by writing keys, as etcd's recipes do, are left to that client.
    pub fn first_place(&self, keys: &crate::Keys) -> Option<(&[u8], &Arc<LockEntry>)> {
        let mut budget = usize::MAX;
        self.first_place_within(keys, &mut budget).flatten()
    }

    /// Like `first_place`, but gives up (None) once it has walked `budget` keys, which are taken off it: what is longer
    /// runs on a view elsewhere.
    pub fn first_place_within(
        &self,
        keys: &crate::Keys,
        budget: &mut usize,
    ) -> Option<Option<(&[u8], &Arc<LockEntry>)>> {
        for kv in self.store.live_in(keys) {
            *budget = budget.checked_sub(1)?;
            if let Some((name, _, entry)) = self.locks.entry(&kv.key, kv.create_revision)
                && entry.last_joiner.is_some()
            {
                return Some(Some((name, entry)));
            }
        }
        Some(None)
    }

    /// The entry with this key and token, if it is granted.
    pub fn lock_grant(&self, key: &[u8], token: Revision) -> Option<&Arc<LockEntry>> {
        let (_, _, entry) = self.locks.entry(key, token)?;
        Some(entry).filter(|entry| entry.granted_wall_ms.is_some())
    }

    /// Of the stream that carries the session of this lease; 0 = none has yet.
    pub fn session_epoch(&self, lease: LeaseId) -> Option<u64> {
        self.leases.epoch(lease)
    }

    /// The names of all locks that have entries, in order, from `from` on.
    pub fn lock_names<'a>(&'a self, from: &[u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        self.locks.queues.range::<_, [u8]>(bounds).map(|(name, _)| &name[..])
    }

    /// All holders, with the names of their locks.
    pub fn holders(&self) -> impl Iterator<Item = (&[u8], &Arc<LockEntry>)> + '_ {
        self.locks
            .queues
            .iter()
            .flat_map(|(name, queue)| queue.iter().take(queue.granted()).map(move |entry| (&name[..], entry)))
    }

    /// Holders whose time has ended, oldest first, over all locks; a bounded number.
    pub fn recent_holders(&self) -> impl DoubleEndedIterator<Item = &RecentHolder> + '_ {
        self.locks.recent.iter()
    }

    /// How many keys are live.
    pub fn keys(&self) -> u64 {
        self.store.keys_live()
    }

    /// Bytes of keys, values and history kept in memory, about.
    pub fn bytes(&self) -> u64 {
        self.store.bytes() + self.bytes_beside()
    }

    /// Of these, what the newest versions alone take.
    pub fn bytes_live(&self) -> u64 {
        self.store.bytes_live() + self.bytes_beside()
    }

    /// Equal on all members at equal applied index, whatever path led there. Walks everything that a
    /// snapshot would hold: run it off the replica's thread.
    pub fn hash(&self) -> u64 {
        snapshot::hash(self)
    }

    /// Hash of keys and their versions up to `revision` (0 = current), after the compacted revision;
    /// with the compacted revision it covers. Walks everything: run it off the replica's thread.
    pub fn hash_keys(&self, revision: Revision) -> Result<(u32, Revision), Refusal> {
        hash_keys::hash_keys(&self.store, revision)
    }

    pub(crate) fn new() -> View {
        View {
            store: Store::new(),
            leases: Leases::default(),
            locks: Locks::default(),
            origins: Origins::default(),
            members: OrdMap::new(),
            alarms: OrdSet::new(),
            applied_index: 0,
            applied_term: 0,
            level: level::LOWEST,
            level_pin: None,
        }
    }

    /// About what leases and entries take.
    fn bytes_beside(&self) -> u64 {
        const LEASE: u64 = 160;
        const ENTRY: u64 = 320;
        self.leases.bytes(LEASE) + self.locks.entries() * ENTRY + self.locks.entry_bytes()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseView {
    pub lease: LeaseId,
    pub ttl_ms: u64,
    pub granted_wall_ms: u64,
    /// Who asked for it; may be empty.
    pub client: SharedBytes,
    /// Attached keys, in order.
    pub keys: Vec<SharedBytes>,
}

impl LeaseView {
    fn new(lease: LeaseId, found: &Lease) -> LeaseView {
        LeaseView {
            lease,
            ttl_ms: found.ttl_ms,
            granted_wall_ms: found.granted_wall_ms,
            client: found.client.clone(),
            keys: found.keys().cloned().collect(),
        }
    }
}
