//! Leases: what is granted, and which keys hang on each.
//!
//! The machine knows no deadlines: the leader keeps those, and ends leases by a command. What is
//! replicated is that a lease exists, its TTL, what was left of a long one when the leader noted it last, and its
//! keys. The keys are exactly those whose live
//! version names the lease, so a snapshot need not store them.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::mvcc::shared;
use crate::{LeaseGrant, LeaseId, LockEnd, LockEntry, Refusal, Revision, SharedBytes, limits};

#[derive(Clone, Default)]
pub(crate) struct Leases {
    /// Those that are ending, too: they are there for their keys only.
    pub(crate) leases: OrdMap<LeaseId, Lease>,
    ending: OrdSet<LeaseId>,
    /// Of the names of those who asked for them.
    client_bytes: u64,
}

#[derive(Clone)]
pub(crate) struct Lease {
    pub ttl_ms: u64,
    pub granted_wall_ms: u64,
    pub client: SharedBytes,
    /// How often a stream has taken up the session that lives by this lease.
    pub epoch: u64,
    /// The store's revision when it was granted; 0 if that was below level 1. An entry with a token beyond it was made
    /// with this lease, and not with an earlier one that had the same id.
    pub granted_revision: Revision,
    /// What was left of it when the leader noted that last; all of it if that was never, or it was renewed since.
    pub left_ms: u64,
    /// Set once the lease has ended, if it had more keys than one command deletes: why. The rest is deleted by following
    /// commands.
    pub ending: Option<LockEnd>,
    keys: AttachedKeys,
}

/// One key is by far the commonest (a lock), and a tree for it would take half a kilobyte. A session has a few, which
/// come and go with each of its locks.
#[derive(Clone)]
enum AttachedKeys {
    None,
    One(SharedBytes),
    /// In no order.
    Few(Arc<Vec<SharedBytes>>),
    Many(OrdSet<SharedBytes>),
}

/// More are kept in order.
const FEW: usize = 16;

impl Leases {
    /// Whether the lease lives.
    pub fn contains(&self, lease: LeaseId) -> bool {
        self.get(lease).is_some()
    }

    pub fn grant(&mut self, grant: &LeaseGrant, wall_ms: u64, revision: Revision) -> Result<(), Refusal> {
        if grant.lease == 0 {
            return Err(Refusal::LeaseNotFound);
        }
        if grant.ttl_ms > limits::LEASE_TTL_MS {
            return Err(Refusal::LeaseTtlTooLarge);
        }
        // An id is free again when the last key of the lease that had it is deleted.
        if self.leases.contains_key(&grant.lease) {
            return Err(Refusal::LeaseExists);
        }
        let mut lease = Lease::new(grant.ttl_ms, wall_ms, shared(&grant.client));
        lease.granted_revision = revision;
        self.add(grant.lease, lease);
        Ok(())
    }

    /// Adds a lease that was just granted, or is from a snapshot; its keys are attached later.
    pub fn add(&mut self, id: LeaseId, lease: Lease) {
        self.client_bytes += lease.client.len() as u64;
        if lease.ending.is_some() {
            self.ending.insert(id);
        }
        self.leases.insert(id, lease);
    }

    /// Notes what is left of a lease, at most all of it. One that has ended is passed over.
    pub fn checkpoint(&mut self, id: LeaseId, left_ms: u64) {
        let Some(lease) = self.get(id) else { return };
        let left_ms = left_ms.min(lease.ttl_ms);
        // A lease of which this is known already is not copied.
        if lease.left_ms != left_ms
            && let Some(lease) = self.leases.get_mut(&id)
        {
            lease.left_ms = left_ms;
        }
    }

    /// Gives a lease all of its time again, and says how much that is.
    pub fn renew(&mut self, lease: LeaseId) -> Option<u64> {
        // Looked up first without intent to write: most leases have nothing noted of them.
        let ttl_ms = self.get(lease).map(|lease| lease.ttl_ms)?;
        self.checkpoint(lease, ttl_ms);
        Some(ttl_ms)
    }

    /// A lease that lives.
    pub fn get(&self, lease: LeaseId) -> Option<&Lease> {
        self.leases.get(&lease).filter(|lease| lease.ending.is_none())
    }

    /// Those that live, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (LeaseId, &Lease)> + '_ {
        self.leases.iter().filter(|(_, lease)| lease.ending.is_none()).map(|(id, lease)| (*id, lease))
    }

    /// How many live.
    pub fn len(&self) -> usize {
        self.leases.len() - self.ending.len()
    }

    /// Whether a lease has ended and still has keys. Asked after every command, so it does not begin an iteration.
    pub fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Those that have ended and still have keys.
    pub fn ending(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.ending.iter().copied()
    }

    /// Whether the lease that an entry was made with still lives.
    pub fn is_alive(&self, entry: &LockEntry) -> bool {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::GrantOutlived)
            || crate::planted::is(crate::planted::Bug::GrantTheDead)
        {
            return true;
        }
        self.get(entry.lease).is_some_and(|lease| lease.granted_revision < entry.token)
    }

    pub fn epoch(&self, lease: LeaseId) -> Option<u64> {
        self.get(lease).map(|lease| lease.epoch)
    }

    /// The new epoch of a session, and its TTL.
    pub fn resume(&mut self, lease: LeaseId) -> Option<(u64, u64)> {
        let lease = self.leases.get_mut(&lease).filter(|lease| lease.ending.is_none())?;
        lease.epoch += 1;
        Some((lease.epoch, lease.ttl_ms))
    }

    /// Ends a lease and gives the keys that hang on it, in order, but at most so many. If there are more, it is ending
    /// until they are deleted.
    pub fn end(&mut self, id: LeaseId, cause: LockEnd, most: usize) -> Option<Vec<SharedBytes>> {
        let lease = self.get(id)?;
        let is_all = lease.key_count() <= most;
        let keys = lease.keys().take(most).cloned().collect();
        if is_all {
            self.remove(id);
        } else if let Some(lease) = self.leases.get_mut(&id) {
            lease.ending = Some(cause);
            self.ending.insert(id);
        }
        Some(keys)
    }

    /// Keys of one of the leases that are ending, in order, at most so many, and why it ended. The lease is gone when
    /// these are all.
    pub fn end_more(&mut self, most: usize) -> Option<(Vec<SharedBytes>, LockEnd)> {
        let id = *self.ending.get_min().filter(|_| most > 0)?;
        let lease = self.leases.get(&id)?;
        let (is_all, cause) = (lease.key_count() <= most, lease.ending?);
        let keys = lease.keys().take(most).cloned().collect();
        #[cfg(feature = "planted")]
        let is_all = is_all || crate::planted::is(crate::planted::Bug::ForgetRest);
        if is_all {
            self.remove(id);
            self.ending.remove(&id);
        }
        Some((keys, cause))
    }

    fn remove(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.remove(&id) {
            self.client_bytes -= lease.client.len() as u64;
        }
    }

    /// About what all of them take, with so many bytes each beside the client's name.
    pub fn bytes(&self, each: u64) -> u64 {
        self.leases.len() as u64 * each + self.client_bytes
    }

    /// A key that is not attached to it. False if there is no such lease.
    pub fn attach(&mut self, lease: LeaseId, key: &SharedBytes) -> bool {
        let Some(lease) = self.leases.get_mut(&lease) else { return false };
        debug_assert!(!lease.has(key), "attached already");
        match &mut lease.keys {
            AttachedKeys::None => lease.keys = AttachedKeys::One(key.clone()),
            AttachedKeys::One(other) => lease.keys = AttachedKeys::Few(Arc::new(vec![other.clone(), key.clone()])),
            AttachedKeys::Few(keys) if keys.len() < FEW => Arc::make_mut(keys).push(key.clone()),
            AttachedKeys::Few(keys) => {
                lease.keys = AttachedKeys::Many(keys.iter().chain([key]).cloned().collect());
            }
            AttachedKeys::Many(keys) => {
                keys.insert(key.clone());
            }
        }
        true
    }

    /// A lease that has ended already keeps no keys, so there is nothing to do for it.
    pub fn detach(&mut self, lease: LeaseId, key: &SharedBytes) {
        let Some(lease) = self.leases.get_mut(&lease) else { return };
        match &mut lease.keys {
            AttachedKeys::None => {}
            AttachedKeys::One(other) => {
                if other == key {
                    lease.keys = AttachedKeys::None;
                }
            }
            AttachedKeys::Few(keys) => {
                // All versions of a key share its bytes.
                let same = keys.iter().position(|other| Arc::ptr_eq(other, key));
                if let Some(place) = same.or_else(|| keys.iter().position(|other| other == key)) {
                    Arc::make_mut(keys).swap_remove(place);
                }
            }
            AttachedKeys::Many(keys) => {
                keys.remove(key);
                if keys.is_empty() {
                    lease.keys = AttachedKeys::None;
                }
            }
        }
    }
}

impl Lease {
    pub fn new(ttl_ms: u64, granted_wall_ms: u64, client: SharedBytes) -> Lease {
        Lease {
            ttl_ms,
            granted_wall_ms,
            client,
            epoch: 0,
            granted_revision: 0,
            left_ms: ttl_ms,
            ending: None,
            keys: AttachedKeys::None,
        }
    }

    /// In order.
    pub fn keys(&self) -> impl Iterator<Item = &SharedBytes> + '_ {
        let (few, many) = match &self.keys {
            AttachedKeys::None => (Vec::new(), None),
            AttachedKeys::One(key) => (vec![key], None),
            AttachedKeys::Few(keys) => {
                let mut keys: Vec<_> = keys.iter().collect();
                keys.sort_unstable();
                (keys, None)
            }
            AttachedKeys::Many(keys) => (Vec::new(), Some(keys.iter())),
        };
        few.into_iter().chain(many.into_iter().flatten())
    }

    fn has(&self, key: &SharedBytes) -> bool {
        match &self.keys {
            AttachedKeys::Many(keys) => keys.contains(key),
            _ => self.keys().any(|other| other == key),
        }
    }

    pub fn key_count(&self) -> usize {
        match &self.keys {
            AttachedKeys::None => 0,
            AttachedKeys::One(_) => 1,
            AttachedKeys::Few(keys) => keys.len(),
            AttachedKeys::Many(keys) => keys.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(leases: &Leases, lease: LeaseId) -> Vec<SharedBytes> {
        leases.leases[&lease].keys().cloned().collect()
    }

    #[test]
    fn keys_come_and_go_in_order() {
        let mut leases = Leases::default();
        leases.add(7, Lease::new(1000, 0, SharedBytes::default()));
        let (a, b, c) = (shared(b"a"), shared(b"b"), shared(b"c"));
        for (count, key) in [&c, &a, &b].into_iter().enumerate() {
            assert_eq!(leases.leases[&7].key_count(), count);
            assert!(leases.attach(7, key));
        }
        assert_eq!(leases.leases[&7].key_count(), 3);
        assert_eq!(keys(&leases, 7), [a.clone(), b.clone(), c.clone()]);
        leases.detach(7, &b);
        assert_eq!(keys(&leases, 7), [a.clone(), c.clone()]);
        leases.detach(7, &a);
        leases.detach(7, &c);
        assert!(keys(&leases, 7).is_empty());
        assert!(leases.attach(7, &b));
        leases.detach(7, &a);
        assert_eq!(leases.end(7, LockEnd::LeaseRevoked, 1), Some(vec![b.clone()]));
        assert!(!leases.attach(7, &b));
        assert!(leases.end(7, LockEnd::LeaseRevoked, 1).is_none());
    }

    #[test]
    fn keys_are_known_however_many_there_are() {
        let mut leases = Leases::default();
        leases.add(7, Lease::new(1000, 0, SharedBytes::default()));
        let names: Vec<_> = (0..3 * FEW).map(|number| shared(format!("{:03}", number * 7 % 48).as_bytes())).collect();
        for (count, name) in names.iter().enumerate() {
            assert!(leases.attach(7, name));
            let mut expected = names[..=count].to_vec();
            expected.sort();
            assert_eq!(keys(&leases, 7), expected);
        }
        let view = leases.clone();
        for (count, name) in names.iter().enumerate() {
            assert_eq!(leases.leases[&7].key_count(), names.len() - count);
            // Other bytes that read the same.
            leases.detach(7, &shared(name));
        }
        assert!(keys(&leases, 7).is_empty());
        assert_eq!(keys(&view, 7).len(), names.len());
    }
}
