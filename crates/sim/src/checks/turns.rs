//! Who holds each lock, from one command to the next, as the model says.

use std::collections::BTreeMap;

use tenure_machine::{LeaseId, Revision};

use crate::model::Model;

/// What one command changed about the holders of one lock.
#[derive(Debug, Clone)]
pub struct Turn {
    pub revision: Revision,
    pub name: Vec<u8>,
    /// Tokens that became holders, and those that ended as holders, with their leases.
    pub granted: Vec<(Revision, LeaseId)>,
    pub ended: Vec<(Revision, LeaseId)>,
    /// Nobody holds it any more.
    pub is_free: bool,
}

#[derive(Default)]
pub struct Turns {
    holders: BTreeMap<Vec<u8>, Vec<(Revision, LeaseId)>>,
    all: Vec<Turn>,
}

impl Turns {
    /// A command was applied: compares who holds what now with who held it before.
    pub fn applied(&mut self, revision: Revision, model: &Model) -> &[Turn] {
        let first = self.all.len();
        let now: BTreeMap<Vec<u8>, Vec<(Revision, LeaseId)>> = model
            .queues()
            .map(|(name, places)| {
                let holders = places[..Model::granted(places)].iter().map(|place| (place.token, place.lease));
                (name.to_vec(), holders.collect())
            })
            .collect();
        let none = Vec::new();
        for name in self.holders.keys().chain(now.keys().filter(|name| !self.holders.contains_key(*name))) {
            let before = self.holders.get(name).unwrap_or(&none);
            let after = now.get(name).unwrap_or(&none);
            let granted: Vec<_> = after.iter().copied().filter(|holder| !before.contains(holder)).collect();
            let ended: Vec<_> = before.iter().copied().filter(|holder| !after.contains(holder)).collect();
            if !granted.is_empty() || !ended.is_empty() {
                let (name, is_free) = (name.clone(), after.is_empty());
                self.all.push(Turn { revision, name, granted, ended, is_free });
            }
        }
        self.holders = now;
        &self.all[first..]
    }

    /// Those of revisions from `from` up to, and not including, `to`.
    pub fn between(&self, from: Revision, to: Revision) -> &[Turn] {
        let first = self.all.partition_point(|turn| turn.revision < from);
        let last = self.all.partition_point(|turn| turn.revision < to);
        &self.all[first..last.max(first)]
    }
}
