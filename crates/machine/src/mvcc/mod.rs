//! Keys and all their versions.
//!
//! Every command that writes raises the revision by exactly one and leaves one [`Commit`] behind.
//! Two structures share the versions between them:
//!
//! - [`keys`]: an ordered map from key to its newest version and the older ones that can still be
//!   read. Answers ranges, now and at any revision that is not compacted.
//! - [`history`]: the commits, dense, so that a revision is an index. Answers watches.
//!
//! Both are persistent: cloning the [`Store`] takes constant time and shares everything.
//!
//! A deleted key keeps a tombstone (a version numbered 0), because a read at an older revision must
//! still find what was there.
//!
//! **Compaction** takes effect at once (reads below it are refused) but frees memory a little with
//! each following command: freeing a large history in one go would stall every other request. So
//! what lies below the compacted revision may or may not still be in memory, and nothing that can
//! be observed (ranges, commits, hashes, snapshots) may depend on it. What stays logically is: for
//! each key the version that is live at the compacted revision, every later version, and the commit
//! of the compacted revision itself, without its `prev`s, for a watch that starts there.

pub(crate) mod history;
pub(crate) mod keys;
mod range;

use std::sync::Arc;

use imbl::OrdMap;
use smallvec::SmallVec;

use self::history::History;
use self::keys::KeyRecord;
use crate::{Commit, Event, KeyValue, LeaseId, Refusal, Revision, SharedBytes};

#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) keys: OrdMap<SharedBytes, KeyRecord>,
    pub(crate) history: History,
    pub(crate) revision: Revision,
    /// -1 when nothing was ever compacted.
    pub(crate) compacted: Revision,
    trim: TrimCursor,
    /// Of all versions in memory, and of the live ones alone.
    bytes: u64,
    bytes_live: u64,
    keys_live: u64,
}

/// How far the freeing of compacted history has come: the next event to look at.
#[derive(Clone, Copy)]
struct TrimCursor {
    revision: Revision,
    event: usize,
}

/// A version that was just written, and the live one that it replaces.
pub(crate) struct Written {
    pub kv: Arc<KeyValue>,
    pub prev: Option<Arc<KeyValue>>,
}

impl Written {
    /// What watchers see of it, given the events of the same revision before it.
    pub fn event(&self, earlier: &[Event]) -> Event {
        let revision = self.kv.mod_revision;
        let prev = match &self.prev {
            // A key that was made at this revision had nothing before it.
            Some(_) if self.kv.create_revision == revision => None,
            // Watchers see what was there before the revision, not what the command itself put in between.
            Some(prev) if prev.mod_revision == revision => {
                let first = earlier.iter().find(|event| event.kv.key == prev.key);
                first.and_then(|event| event.prev.clone())
            }
            prev => prev.clone(),
        };
        Event { kv: self.kv.clone(), prev }
    }
}

/// The revision of a store that nothing was ever written to.
pub(crate) const EMPTY_REVISION: Revision = 1;

impl Store {
    pub fn new() -> Store {
        Store {
            keys: OrdMap::new(),
            history: History::starting_at(EMPTY_REVISION + 1),
            revision: EMPTY_REVISION,
            compacted: -1,
            trim: TrimCursor { revision: EMPTY_REVISION + 1, event: 0 },
            bytes: 0,
            bytes_live: 0,
            keys_live: 0,
        }
    }

    /// A store without keys at some point of its life, for a snapshot to fill.
    pub fn restored(revision: Revision, compacted: Revision, first: Revision) -> Store {
        Store {
            history: History::starting_at(first),
            revision,
            compacted,
            trim: TrimCursor { revision: (compacted + 1).max(first), event: 0 },
            ..Store::new()
        }
    }

    pub fn live(&self, key: &[u8]) -> Option<&Arc<KeyValue>> {
        self.keys.get(key)?.live()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn bytes_live(&self) -> u64 {
        self.bytes_live
    }

    pub fn keys_live(&self) -> u64 {
        self.keys_live
    }

    /// Writes a version of `key` at `revision`; value and lease may be taken from the live version.
    pub fn put(
        &mut self,
        revision: Revision,
        key: &[u8],
        content: impl FnOnce(Option<&KeyValue>) -> (Box<[u8]>, LeaseId),
    ) -> Written {
        let Some(record) = self.keys.get_mut(key) else {
            let (value, lease) = content(None);
            return self.insert(keys::first_version(Arc::from(key), value, lease, revision));
        };
        let prev = record.live().cloned();
        let (value, lease) = content(prev.as_deref());
        let (create_revision, version) = match &prev {
            Some(prev) => (prev.create_revision, prev.version + 1),
            None => (revision, 1),
        };
        let kv = Arc::new(KeyValue {
            key: record.newest.key.clone(),
            value,
            create_revision,
            mod_revision: revision,
            version,
            lease,
        });
        record.push(kv.clone());
        self.count_put(&kv, prev.as_deref());
        Written { kv, prev }
    }

    /// Writes the first version of `key`; none if it is live.
    pub fn create(&mut self, revision: Revision, key: &[u8], value: &[u8], lease: LeaseId) -> Option<Written> {
        let Some(record) = self.keys.get_mut(key) else {
            return Some(self.insert(keys::first_version(Arc::from(key), value.into(), lease, revision)));
        };
        if record.live().is_some() {
            return None;
        }
        let kv = keys::first_version(record.newest.key.clone(), value.into(), lease, revision);
        record.push(kv.clone());
        self.count_put(&kv, None);
        Some(Written { kv, prev: None })
    }

    fn insert(&mut self, kv: Arc<KeyValue>) -> Written {
        self.keys.insert(kv.key.clone(), KeyRecord::new(kv.clone()));
        self.count_put(&kv, None);
        Written { kv, prev: None }
    }

    /// Leaves a tombstone; none if `key` was not live.
    pub fn delete(&mut self, revision: Revision, key: &[u8]) -> Option<Written> {
        let record = self.keys.get_mut(key).filter(|record| record.live().is_some())?;
        let prev = record.newest.clone();
        let kv = keys::tombstone(prev.key.clone(), revision);
        record.push(kv.clone());
        self.bytes += cost(&kv);
        self.bytes_live -= cost(&prev);
        self.keys_live -= 1;
        Some(Written { kv, prev: Some(prev) })
    }

    /// Ends a revision: everything in `events` was written at the one after the current.
    pub fn commit(&mut self, events: SmallVec<[Event; 1]>) -> Commit {
        self.revision += 1;
        // Most commands write one key: then nothing is allocated but what history keeps.
        let events: Arc<[Event]> = match events.into_inner() {
            Ok(one) => Arc::new(one),
            Err(events) => events.into_vec().into(),
        };
        let commit = Commit { revision: self.revision, events };
        self.history.push(commit.clone());
        commit
    }

    pub fn check_revision(&self, asked: Revision, current: Revision) -> Result<(), Refusal> {
        if asked > current {
            Err(Refusal::FutureRevision { asked, current })
        } else if asked > 0 && asked < self.compacted {
            Err(Refusal::Compacted { asked, compacted: self.compacted })
        } else {
            Ok(())
        }
    }

    pub fn compact(&mut self, revision: Revision) -> Result<(), Refusal> {
        if revision <= self.compacted {
            return Err(Refusal::Compacted { asked: revision, compacted: self.compacted });
        }
        if revision > self.revision {
            return Err(Refusal::FutureRevision { asked: revision, current: self.revision });
        }
        self.compacted = revision;
        self.history.forget_previous(revision);
        Ok(())
    }

    /// Frees some of what compaction made unreachable: looks at up to `budget` events. True if more is left.
    pub fn trim(&mut self, budget: usize) -> bool {
        let mut budget = budget;
        self.trim.revision = self.trim.revision.max(self.history.first());
        while self.trim.revision <= self.compacted {
            if budget == 0 {
                return true;
            }
            let Some(commit) = self.history.get(self.trim.revision) else { break };
            let end = commit.events.len().min(self.trim.event.saturating_add(budget));
            for event in &commit.events[self.trim.event..end] {
                self.trim_key(&event.kv.key, commit.revision);
            }
            budget -= end - self.trim.event;
            if end < commit.events.len() {
                self.trim.event = end;
                return true;
            }
            self.trim = TrimCursor { revision: commit.revision + 1, event: 0 };
            self.history.forget_before(commit.revision);
        }
        false
    }

    /// Drops the versions of `key` that nobody can see who reads at `revision` or later.
    fn trim_key(&mut self, key: &SharedBytes, revision: Revision) {
        // Most keys have but one version: looking first spares copying nodes that a view shares.
        if self.keys.get(&**key).is_none_or(|record| record.is_lean()) {
            return;
        }
        let Some(record) = self.keys.get_mut(&**key) else { return };
        let (gone, freed) = record.trim(revision);
        self.bytes -= freed;
        if gone {
            self.keys.remove(&**key);
        }
    }

    fn count_put(&mut self, kv: &KeyValue, prev: Option<&KeyValue>) {
        self.bytes += cost(kv);
        self.bytes_live += cost(kv);
        match prev {
            Some(prev) => self.bytes_live -= cost(prev),
            None => self.keys_live += 1,
        }
    }

    /// Puts a version that is live at the compacted revision in its place; keys come in order.
    pub fn restore_base(&mut self, kv: Arc<KeyValue>) {
        self.count_put(&kv, None);
        self.keys.insert(kv.key.clone(), KeyRecord::new(kv));
    }
}

/// About what one version takes: its bytes, its place in the map, its event in history.
pub(crate) fn cost(kv: &KeyValue) -> u64 {
    const OVERHEAD: usize = 256;
    (kv.key.len() + kv.value.len() + OVERHEAD) as u64
}

/// Copies bytes out of a command, which may be a slice of a much larger network buffer.
pub(crate) fn shared(bytes: &[u8]) -> SharedBytes {
    // The empty default is one static allocation for all.
    if bytes.is_empty() { SharedBytes::default() } else { Arc::from(bytes) }
}
