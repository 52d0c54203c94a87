//! One key: its newest version, and the older ones that can still be read.
//!
//! Most keys have one version, so a record is two words, and the older versions are a persistent
//! vector that exists only where it is needed: adding to it and dropping from its front cost the
//! same however often a key was written, and a read at an old revision is a binary search.

use std::sync::Arc;

use imbl::Vector;

use super::cost;
use crate::{KeyValue, LeaseId, Revision, SharedBytes};

#[derive(Clone)]
pub(crate) struct KeyRecord {
    /// A tombstone if the key is deleted.
    pub newest: Arc<KeyValue>,
    /// By ascending mod revision; not empty if there.
    older: Option<Arc<Vector<Arc<KeyValue>>>>,
}

impl KeyRecord {
    pub fn new(newest: Arc<KeyValue>) -> KeyRecord {
        KeyRecord { newest, older: None }
    }

    pub fn live(&self) -> Option<&Arc<KeyValue>> {
        (!is_tombstone(&self.newest)).then_some(&self.newest)
    }

    /// What a read at `revision` sees.
    pub fn at(&self, revision: Revision) -> Option<&Arc<KeyValue>> {
        if self.newest.mod_revision <= revision {
            return self.live();
        }
        let older = self.older.as_ref()?;
        let (mut low, mut high) = (0, older.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if older[middle].mod_revision <= revision {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = older.get(low.checked_sub(1)?)?;
        (!is_tombstone(found)).then_some(found)
    }

    pub fn push(&mut self, kv: Arc<KeyValue>) {
        let older = std::mem::replace(&mut self.newest, kv);
        match &mut self.older {
            Some(versions) => Arc::make_mut(versions).push_back(older),
            None => self.older = Some(Arc::new(Vector::unit(older))),
        }
    }

    /// There is nothing to trim, at whatever revision.
    pub fn is_lean(&self) -> bool {
        self.older.is_none() && !is_tombstone(&self.newest)
    }

    /// Drops what a read at `revision` or later cannot see: (nothing is left, bytes freed).
    ///
    /// Called for each revision that wrote the key in turn, so that each call drops about one version.
    pub fn trim(&mut self, revision: Revision) -> (bool, u64) {
        let mut freed = 0;
        if let Some(versions) = &mut self.older {
            let mut drop_front = 0;
            while let Some(front) = versions.get(drop_front) {
                let next = versions.get(drop_front + 1).unwrap_or(&self.newest);
                let hidden = next.mod_revision <= revision || (front.mod_revision <= revision && is_tombstone(front));
                if !hidden {
                    break;
                }
                freed += cost(front);
                drop_front += 1;
            }
            if drop_front == versions.len() {
                self.older = None;
            } else if drop_front > 0 {
                let versions = Arc::make_mut(versions);
                for _ in 0..drop_front {
                    versions.pop_front();
                }
            }
        }
        let gone = self.older.is_none() && is_tombstone(&self.newest) && self.newest.mod_revision <= revision;
        if gone {
            freed += cost(&self.newest);
        }
        (gone, freed)
    }
}

pub(crate) fn first_version(key: SharedBytes, value: Box<[u8]>, lease: LeaseId, revision: Revision) -> Arc<KeyValue> {
    Arc::new(KeyValue { key, value, create_revision: revision, mod_revision: revision, version: 1, lease })
}

pub(crate) fn tombstone(key: SharedBytes, revision: Revision) -> Arc<KeyValue> {
    Arc::new(KeyValue { key, value: Box::default(), create_revision: 0, mod_revision: revision, version: 0, lease: 0 })
}

pub(crate) fn is_tombstone(kv: &KeyValue) -> bool {
    kv.version == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::shared;

    fn version(revision: Revision, version: i64) -> Arc<KeyValue> {
        Arc::new(KeyValue {
            key: shared(b"k"),
            value: Box::from(*b"v"),
            create_revision: 2,
            mod_revision: revision,
            version,
            lease: 0,
        })
    }

    #[test]
    fn a_read_finds_the_version_of_its_time() {
        let mut record = KeyRecord::new(version(2, 1));
        record.push(version(5, 2));
        record.push(tombstone(shared(b"k"), 7));
        record.push(version(9, 1));
        let seen: Vec<_> = (1..=10).map(|revision| record.at(revision).map(|kv| kv.mod_revision)).collect();
        assert_eq!(
            seen,
            [None, Some(2), Some(2), Some(2), Some(5), Some(5), None, None, Some(9), Some(9)],
            "revisions 1 to 10"
        );
    }

    #[test]
    fn trimming_keeps_what_is_live_at_the_revision() {
        let mut record = KeyRecord::new(version(2, 1));
        record.push(version(5, 2));
        record.push(tombstone(shared(b"k"), 7));
        record.push(version(9, 1));
        record.trim(5);
        assert_eq!(record.at(6).unwrap().mod_revision, 5);
        record.trim(7);
        assert!(record.older.is_none());
        assert_eq!(record.at(9).unwrap().mod_revision, 9);
        record.push(tombstone(shared(b"k"), 11));
        assert!(!record.trim(9).0);
        assert!(record.trim(11).0);
    }

    #[test]
    fn a_key_written_very_often_is_cheap_to_read_and_to_drop() {
        let mut record = KeyRecord::new(version(2, 1));
        for revision in 3..200_000 {
            record.push(version(revision, revision - 1));
        }
        assert_eq!(record.at(77_777).unwrap().version, 77_776);
        for revision in 3..150_000 {
            record.trim(revision);
        }
        assert_eq!(record.older.as_ref().unwrap().len(), 50_000);
        assert_eq!(record.at(149_999).unwrap().version, 149_998);
        drop(record);
    }
}
