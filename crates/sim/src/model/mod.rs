//! What a store should be, written as plainly as possible.
//!
//! Nothing is shared with the machine but the types of commands and replies: every key has the list of
//! all versions it ever had, every lease and every place in a queue the index at which it came and went.
//! Nothing is ever forgotten, so a question about any moment of the past can be answered: "what did this
//! range hold at revision 40", "was this lease there at index 57".

mod apply;
mod deadlocks;
mod locks;
mod members;
mod range;
mod txn;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use tenure_machine::{
    Alarm, Commit, Event, KeyValue, Keys, LeaseId, Level, LockEnd, Member, MemberId, Mode, Refusal, Reply, Revision,
};

pub use self::members::Configuration;
use self::members::Forwarded;
use crate::plan::Limits;

#[derive(Default, Clone)]
pub struct Model {
    pub applied: u64,
    pub revision: Revision,
    /// Every compaction: at which index, up to which revision.
    compactions: Vec<(u64, Revision)>,
    /// By ascending mod revision; a version numbered 0 is a tombstone.
    versions: BTreeMap<Vec<u8>, Vec<Arc<KeyValue>>>,
    commits: Vec<Commit>,
    /// Every lease there ever was.
    leases: BTreeMap<LeaseId, Vec<Lease>>,
    queues: BTreeMap<Vec<u8>, Vec<Place>>,
    /// Every place that any queue ever had.
    places: BTreeMap<(Vec<u8>, Revision), Stay>,
    members: BTreeMap<MemberId, Member>,
    configuration: Configuration,
    forwarded: BTreeMap<MemberId, Forwarded>,
    level: Level,
    level_pin: Option<Level>,
    alarms: BTreeSet<Alarm>,
    /// Every raise of the level: at which index, to which level.
    raises: Vec<(u64, Level)>,
    /// What one command does at most, from level 1 on.
    limits: Limits,
    /// Of the command under way: places that it may still grant, those that it has granted, in order, and queues that
    /// places have joined or left.
    room: usize,
    granted_now: Vec<(Vec<u8>, Revision)>,
    changed: BTreeSet<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub struct Lease {
    pub ttl_ms: u64,
    pub granted: u64,
    pub ended: Option<u64>,
    /// Set from its end on until no key is left that hangs on it: why it ended. Its id is not free until then.
    pub ending: Option<LockEnd>,
    /// The revision at which it was granted; 0 below level 1. Places with a token beyond it are of this life.
    pub born: Revision,
    /// What the next leader would give it.
    pub left_ms: u64,
    /// How often its session was taken up.
    pub epoch: u64,
}

/// A place in a queue that is there now.
#[derive(Debug, Clone)]
pub struct Place {
    pub key: Vec<u8>,
    pub token: Revision,
    pub lease: LeaseId,
    pub mode: Mode,
    /// Empty if it was asked for without one.
    pub owner: Vec<u8>,
    pub last_joiner: Option<u128>,
    pub is_granted: bool,
    /// Of a semaphore or a barrier, once granted.
    pub slot: Option<u32>,
    /// Other names that were asked for in the same request.
    pub together: Vec<Vec<u8>>,
}

/// When a place was held, by log index.
#[derive(Debug, Clone, Default)]
pub struct Stay {
    pub lease: LeaseId,
    pub mode: Mode,
    pub granted: Option<u64>,
    pub ended: Option<(u64, Option<LockEnd>)>,
}

/// What one command should have done.
pub struct Outcome {
    pub reply: Result<Reply, Refusal>,
    pub revision: Revision,
    /// It has a revision of its own.
    pub wrote: bool,
    /// The places that were granted, in order: their keys and tokens.
    pub granted: Vec<(Vec<u8>, Revision)>,
}

impl Model {
    pub fn new(applied: u64, limits: Limits) -> Model {
        Model { applied, revision: 1, limits, ..Model::default() }
    }

    /// Only alarms of a full store are raised in this world.
    pub fn has_alarm(&self) -> bool {
        !self.alarms.is_empty()
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// The feature level as it was after `index`.
    pub fn level_at(&self, index: u64) -> Level {
        self.raises.iter().rev().find(|(at, _)| *at <= index).map_or(0, |(_, level)| *level)
    }

    pub fn level_pin(&self) -> Option<Level> {
        self.level_pin
    }

    pub fn live(&self, key: &[u8]) -> Option<&Arc<KeyValue>> {
        self.versions.get(key)?.last().filter(|kv| kv.version > 0)
    }

    /// In key order.
    pub fn live_in<'a>(&'a self, keys: &'a Keys) -> impl Iterator<Item = &'a Arc<KeyValue>> + 'a {
        self.at(keys, Revision::MAX)
    }

    /// What `keys` held at a revision, in key order.
    pub fn at<'a>(&'a self, keys: &'a Keys, revision: Revision) -> impl Iterator<Item = &'a Arc<KeyValue>> + 'a {
        self.versions.iter().filter(|(key, _)| keys.contains(key)).filter_map(move |(_, versions)| {
            versions.iter().rev().find(|kv| kv.mod_revision <= revision).filter(|kv| kv.version > 0)
        })
    }

    pub fn commit(&self, revision: Revision) -> Option<&Commit> {
        self.commits.get(usize::try_from(revision - 2).ok()?)
    }

    /// The commits of revisions `from..=to` with an event in `keys`.
    pub fn commits_in(&self, keys: &Keys, from: Revision, to: Revision) -> impl Iterator<Item = &Commit> {
        (from.max(2)..=to.min(self.revision))
            .filter_map(|revision| self.commit(revision))
            .filter(|commit| commit.events.iter().any(|event| keys.contains(&event.kv.key)))
    }

    /// The compacted revision as it was after `index`; -1 if nothing was compacted.
    pub fn compacted_at(&self, index: u64) -> Revision {
        self.compactions.iter().rev().find(|(at, _)| *at <= index).map_or(-1, |(_, revision)| *revision)
    }

    pub fn compacted(&self) -> Revision {
        self.compacted_at(u64::MAX)
    }

    pub fn lease(&self, lease: LeaseId) -> Option<&Lease> {
        self.leases.get(&lease)?.last().filter(|lease| lease.ended.is_none())
    }

    /// Whether the lease has ended and still has keys.
    pub fn is_ending(&self, lease: LeaseId) -> bool {
        self.ending_since(lease).is_some()
    }

    /// The index at which a lease has ended that still has keys.
    pub fn ending_since(&self, lease: LeaseId) -> Option<u64> {
        self.leases.get(&lease)?.last().filter(|life| life.ending.is_some())?.ended
    }

    /// What is left to `Continue`: leases that are ending, and queues with places that are due.
    pub fn unfinished(&self) -> (Vec<LeaseId>, Vec<Vec<u8>>) {
        (self.leases.keys().copied().filter(|lease| self.is_ending(*lease)).collect(), self.due_queues())
    }

    /// The TTL if the lease was there at some moment of these indexes.
    pub fn lease_within(&self, lease: LeaseId, indexes: &RangeInclusive<u64>) -> Option<u64> {
        let lives = self.leases.get(&lease)?.iter();
        let mut there = lives
            .filter(|life| life.granted <= *indexes.end() && life.ended.is_none_or(|ended| ended > *indexes.start()));
        there.next().map(|life| life.ttl_ms)
    }

    /// Whether a lease with this TTL was there at some moment of these indexes. An id may have had several lives.
    pub fn has_lease_within(&self, lease: LeaseId, ttl_ms: u64, indexes: &RangeInclusive<u64>) -> bool {
        let is_it = |life: &Lease| {
            let is_there = life.granted <= *indexes.end() && life.ended.is_none_or(|ended| ended > *indexes.start());
            is_there && life.ttl_ms == ttl_ms
        };
        self.leases.get(&lease).is_some_and(|lives| lives.iter().any(is_it))
    }

    /// Whether the lease was missing at some moment of these indexes.
    pub fn lease_missing_within(&self, lease: LeaseId, indexes: &RangeInclusive<u64>) -> bool {
        let there_throughout =
            |life: &Lease| life.granted <= *indexes.start() && life.ended.is_none_or(|ended| ended > *indexes.end());
        !self.leases.get(&lease).is_some_and(|lives| lives.iter().any(there_throughout))
    }

    /// Those that are there now, with what the next leader would give them.
    pub fn leases_left_ms(&self) -> impl Iterator<Item = (LeaseId, u64, u64)> + '_ {
        self.leases.keys().filter_map(|id| self.lease(*id).map(|found| (*id, found.ttl_ms, found.left_ms)))
    }

    /// Those that are there now, with their TTLs.
    pub fn leases(&self) -> impl Iterator<Item = (LeaseId, u64)> + '_ {
        self.leases.keys().filter_map(|lease| self.lease(*lease).map(|found| (*lease, found.ttl_ms)))
    }

    /// The live keys that hang on a lease, in order.
    pub fn keys_of(&self, lease: LeaseId) -> impl Iterator<Item = &Arc<KeyValue>> + '_ {
        self.versions
            .values()
            .filter_map(|versions| versions.last())
            .filter(move |kv| kv.version > 0 && kv.lease == lease)
    }

    pub fn queues(&self) -> impl Iterator<Item = (&[u8], &[Place])> {
        self.queues.iter().map(|(name, places)| (&name[..], &places[..]))
    }

    pub fn stay(&self, key: &[u8], token: Revision) -> Option<&Stay> {
        self.places.get(&(key.to_vec(), token))
    }

    /// How many of a queue's first places are granted.
    pub fn granted(places: &[Place]) -> usize {
        places.iter().take_while(|place| place.is_granted).count()
    }

    /// How many of a queue's first places may hold it together: each with all before it, if they can share. At a
    /// barrier it is the round that has begun, or else a whole one. Those that are not granted yet are *due*.
    fn in_turn(places: &[Place]) -> usize {
        let Some(first) = places.first() else { return 0 };
        let most = match first.mode {
            Mode::Exclusive => 1,
            Mode::Shared => usize::MAX,
            Mode::Slots(slots) => slots as usize,
            Mode::Barrier(_) if first.is_granted => return Model::granted(places),
            Mode::Barrier(parties) => parties as usize,
        };
        let alike = places.iter().take(most).take_while(|place| place.mode == first.mode).count();
        match first.mode {
            Mode::Barrier(_) if alike < most => 0,
            _ => alike,
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8], lease: LeaseId) {
        let before = self.live(key).cloned();
        let revision = self.revision + 1;
        let kv = Arc::new(KeyValue {
            key: Arc::from(key),
            value: value.into(),
            create_revision: before.as_ref().map_or(revision, |before| before.create_revision),
            mod_revision: revision,
            version: before.as_ref().map_or(1, |before| before.version + 1),
            lease,
        });
        self.versions.entry(key.to_vec()).or_default().push(kv.clone());
        // A key that this command creates had nothing before it, even if it deleted one first.
        let prev = if kv.version == 1 { None } else { before };
        self.event(Event { kv, prev });
    }

    /// The version that was deleted.
    fn delete(&mut self, key: &[u8], cause: LockEnd) -> Option<Arc<KeyValue>> {
        let before = self.live(key)?.clone();
        let revision = self.revision + 1;
        let kv = Arc::new(KeyValue {
            key: Arc::from(key),
            value: Box::default(),
            create_revision: 0,
            mod_revision: revision,
            version: 0,
            lease: 0,
        });
        self.versions.entry(key.to_vec()).or_default().push(kv.clone());
        self.event(Event { kv, prev: Some(before.clone()) });
        self.leave_queue(key, before.create_revision, cause);
        Some(before)
    }

    /// All events of the command under way belong to the one commit after the current revision.
    fn event(&mut self, mut event: Event) {
        let revision = self.revision + 1;
        // Watchers see what was there before the command, not what it made on its way.
        if event.prev.as_ref().is_some_and(|prev| prev.mod_revision == revision) {
            let mut earlier = self.commits.last().into_iter().flat_map(|commit| commit.events.iter());
            event.prev = earlier.find(|earlier| earlier.kv.key == event.kv.key).and_then(|first| first.prev.clone());
        }
        match self.commits.last_mut() {
            Some(commit) if commit.revision == revision => {
                commit.events = commit.events.iter().cloned().chain([event]).collect();
            }
            _ => self.commits.push(Commit { revision, events: [event].into() }),
        }
    }

    fn join_queue(&mut self, name: &[u8], place: Place) {
        let stay = Stay { lease: place.lease, mode: place.mode, ..Stay::default() };
        self.places.insert((place.key.clone(), place.token), stay);
        self.changed.insert(name.to_vec());
        self.queues.entry(name.to_vec()).or_default().push(place);
    }

    fn leave_queue(&mut self, key: &[u8], token: Revision, cause: LockEnd) {
        let applied = self.applied;
        for (name, places) in &mut self.queues {
            if let Some(position) = places.iter().position(|place| place.key == key && place.token == token) {
                places.remove(position);
                self.changed.insert(name.clone());
                if let Some(stay) = self.places.get_mut(&(key.to_vec(), token)) {
                    stay.ended = Some((applied, Some(cause)));
                }
            }
        }
        self.queues.retain(|_, places| !places.is_empty());
    }

    /// Whether a place may be granted: from level 1 on only while its lease lives.
    fn may_hold(&self, place: &Place) -> bool {
        self.level == 0 || self.lease(place.lease).is_some_and(|life| life.born < place.token)
    }

    /// The names of queues with places that are due.
    fn due_queues(&self) -> Vec<Vec<u8>> {
        let due = self.queues.iter().filter(|(_, places)| Model::granted(places) < Model::in_turn(places));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// The next places of a queue to be granted: the first one that is due, or all of a round.
    fn next_due(&self, name: &[u8]) -> Vec<Place> {
        let places = self.queues.get(name).map_or(&[][..], |places| &places[..]);
        let due = &places[Model::granted(places)..Model::in_turn(places)];
        match due.first().map(|place| place.mode) {
            Some(Mode::Barrier(_)) => due.to_vec(),
            _ => due.iter().take(1).cloned().collect(),
        }
    }

    /// Grants what is due in a queue, in order, while the command under way has room. A place whose lease has ended is
    /// not granted: it ends, and takes room, too. Without such a place a round is not complete, and the others of
    /// that round wait on.
    fn settle(&mut self, name: &[u8]) {
        while self.room > 0 {
            let next = self.next_due(name);
            let dead: Vec<&Place> = next.iter().filter(|place| !self.may_hold(place)).collect();
            let taken = if dead.is_empty() { next.len() } else { dead.len() };
            if taken == 0 {
                return;
            }
            let dead: Vec<_> = dead.into_iter().map(|place| (place.key.clone(), place.token)).collect();
            match dead.is_empty() {
                true => next.iter().for_each(|place| self.grant_place(name, place)),
                false => dead.iter().for_each(|(key, token)| self.leave_queue(key, *token, LockEnd::LeaseExpired)),
            }
            self.room = self.room.saturating_sub(taken);
        }
    }

    fn grant_place(&mut self, name: &[u8], granted: &Place) {
        let places = self.queues.get_mut(name).map_or(&mut [][..], |places| &mut places[..]);
        let is_taken = |slot: &u32| places.iter().any(|place| place.slot == Some(*slot));
        let has_slot = matches!(granted.mode, Mode::Slots(_) | Mode::Barrier(_));
        let slot = (0..).find(|slot| !is_taken(slot)).filter(|_| has_slot);
        for place in places.iter_mut().filter(|place| place.token == granted.token) {
            (place.is_granted, place.slot) = (true, slot);
        }
        let (key, token) = (granted.key.clone(), granted.token);
        if let Some(stay) = self.places.get_mut(&(key.clone(), token)) {
            stay.granted = Some(self.applied);
        }
        self.granted_now.push((key, token));
    }
}
