//! Leases: what is granted, and which keys hang on each.
//!
//! The machine knows no deadlines: the leader keeps those, and ends leases by a command. What is
//! replicated is that a lease exists, its TTL, and its keys. The keys are exactly those whose live
//! version names the lease, so a snapshot need not store them.

use imbl::{OrdMap, OrdSet};

use crate::mvcc::shared;
use crate::{LeaseGrant, LeaseId, Refusal, SharedBytes, limits};

#[derive(Clone, Default)]
pub(crate) struct Leases {
    pub(crate) leases: OrdMap<LeaseId, Lease>,
}

#[derive(Clone)]
pub(crate) struct Lease {
    pub ttl_ms: u64,
    pub granted_wall_ms: u64,
    pub client: SharedBytes,
    /// How often a stream has taken up the session that lives by this lease.
    pub epoch: u64,
    keys: AttachedKeys,
}

/// One key is by far the commonest (a lock, a session), and a tree for it would take half a kilobyte.
#[derive(Clone)]
enum AttachedKeys {
    None,
    One(SharedBytes),
    Many(OrdSet<SharedBytes>),
}

impl Leases {
    pub fn contains(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    pub fn grant(&mut self, grant: &LeaseGrant, wall_ms: u64) -> Result<(), Refusal> {
        if grant.lease == 0 {
            return Err(Refusal::LeaseNotFound);
        }
        if grant.ttl_ms > limits::LEASE_TTL_MS {
            return Err(Refusal::LeaseTtlTooLarge);
        }
        if self.contains(grant.lease) {
            return Err(Refusal::LeaseExists);
        }
        self.restore(grant.lease, grant.ttl_ms, wall_ms, shared(&grant.client), 0);
        Ok(())
    }

    pub fn restore(&mut self, lease: LeaseId, ttl_ms: u64, granted_wall_ms: u64, client: SharedBytes, epoch: u64) {
        self.leases.insert(lease, Lease { ttl_ms, granted_wall_ms, client, epoch, keys: AttachedKeys::None });
    }

    pub fn epoch(&self, lease: LeaseId) -> Option<u64> {
        self.leases.get(&lease).map(|lease| lease.epoch)
    }

    /// The new epoch of a session, and its TTL.
    pub fn resume(&mut self, lease: LeaseId) -> Option<(u64, u64)> {
        let lease = self.leases.get_mut(&lease)?;
        lease.epoch += 1;
        Some((lease.epoch, lease.ttl_ms))
    }

    /// Ends a lease and gives the keys that hung on it, in order.
    pub fn end(&mut self, lease: LeaseId) -> Option<Vec<SharedBytes>> {
        self.leases.remove(&lease).map(|lease| lease.keys().cloned().collect())
    }

    /// False if there is no such lease.
    pub fn attach(&mut self, lease: LeaseId, key: &SharedBytes) -> bool {
        let Some(lease) = self.leases.get_mut(&lease) else { return false };
        match &mut lease.keys {
            AttachedKeys::None => lease.keys = AttachedKeys::One(key.clone()),
            AttachedKeys::One(other) => {
                let mut keys = OrdSet::unit(other.clone());
                keys.insert(key.clone());
                lease.keys = AttachedKeys::Many(keys);
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
    pub fn keys(&self) -> impl Iterator<Item = &SharedBytes> + '_ {
        let (one, many) = match &self.keys {
            AttachedKeys::None => (None, None),
            AttachedKeys::One(key) => (Some(key), None),
            AttachedKeys::Many(keys) => (None, Some(keys.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub fn key_count(&self) -> usize {
        match &self.keys {
            AttachedKeys::None => 0,
            AttachedKeys::One(_) => 1,
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
        leases.restore(7, 1000, 0, SharedBytes::default(), 0);
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
        assert!(leases.attach(7, &b));
        leases.detach(7, &a);
        assert_eq!(leases.end(7), Some(vec![b.clone()]));
        assert!(!leases.attach(7, &b));
        assert!(leases.end(7).is_none());
    }
}
