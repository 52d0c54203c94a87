//! A new cluster's state, made of an old one's.
//!
//! Whoever held a lease or a lock of the old cluster must not meet it again in the new one: clients may
//! have gone on after the backup was taken, and what they were granted then is unknown here. So no
//! lease lives on, with no key that hung on one and no place in a queue, and revisions, which are the
//! fencing tokens, go on from beyond everything that the old cluster can have issued.

use crate::lease::Leases;
use crate::mvcc::Store;
use crate::origin::Origins;
use crate::{Machine, Revision, View};

impl View {
    /// The state that a new cluster begins with, `revisions` beyond this one. None if there are not so many left.
    ///
    /// History does not go along: a watch that wants to go on from an old revision is told that it is compacted.
    pub fn reborn(&self, revisions: u64) -> Option<Machine> {
        #[cfg(feature = "planted")]
        let revisions = if crate::planted::is(crate::planted::Bug::RebornTooEarly) { 0 } else { revisions };
        let revision = self.store.revision.checked_add_unsigned(revisions).filter(|last| *last < Revision::MAX / 2)?;
        let mut store = Store::restored(revision, revision, revision + 1);
        for (_, record) in self.store.records_after(None) {
            let Some(kv) = record.live() else { continue };
            let is_place = self.locks.entry(&kv.key, kv.create_revision).is_some();
            if kv.lease == 0 && !is_place {
                store.restore_base(kv.clone());
            }
        }
        Some(Machine::restored(View {
            store,
            leases: Leases::default(),
            locks: self.locks.without_queues(),
            origins: Origins::default(),
            members: Default::default(),
            alarms: Default::default(),
            applied_index: 0,
            applied_term: 0,
            // What is carried over was written at this level. The pin was about the old cluster's upgrade.
            level: self.level,
            level_pin: None,
        }))
    }
}
