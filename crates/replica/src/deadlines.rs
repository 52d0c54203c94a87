//! When leases end. Kept by the leader alone, in memory: renewals stay off the log.
//!
//! Deadlines are points on the *lease clock*: the monotonic clock less every pause of this process,
//! so that a leader that slept does not take its own sleep for its clients' silence.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::LeaseId;

use crate::CallId;
use crate::question::Asker;

#[derive(Default)]
pub(crate) struct Deadlines {
    by_lease: BTreeMap<LeaseId, u64>,
    by_time: BTreeSet<(u64, LeaseId)>,
    /// Leases whose end is proposed, with the renewals that came meanwhile and wait for its outcome.
    expiring: BTreeMap<LeaseId, Vec<Asker>>,
    /// Leases that were granted under this leader and never renewed.
    fresh: BTreeSet<LeaseId>,
    /// While some expire, no others do before this.
    next_part: u64,
    /// Set while a new leader has not looked at all leases that were granted before its term.
    unread: Option<Unread>,
}

/// A new leader looks at the leases in parts, so that no step is long however many there are. A lease that it has not
/// looked at has all of its time: it is renewed like any other, and cannot expire yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unread {
    /// Leases up to this one have been looked at.
    pub(crate) after: Option<LeaseId>,
    /// When this member began to lead: time counts from then.
    pub(crate) since_ms: u64,
}

impl Deadlines {
    /// Forgets everything: this member leads no more. Gives back the renewals that waited.
    pub(crate) fn clear(&mut self) -> Vec<Asker> {
        self.by_lease.clear();
        self.by_time.clear();
        self.unread = None;
        self.fresh.clear();
        std::mem::take(&mut self.expiring).into_values().flatten().collect()
    }

    pub(crate) fn begin(&mut self, now_ms: u64) {
        self.unread = Some(Unread { after: None, since_ms: now_ms });
    }

    pub(crate) fn unread(&self) -> Option<Unread> {
        self.unread
    }

    /// All leases up to this one have been looked at; None = all.
    pub(crate) fn note_read(&mut self, upto: Option<LeaseId>) {
        self.unread = self.unread.filter(|_| upto.is_some()).map(|unread| Unread { after: upto, ..unread });
    }

    pub(crate) fn set(&mut self, lease: LeaseId, deadline: u64) {
        if let Some(old) = self.by_lease.insert(lease, deadline) {
            self.by_time.remove(&(old, lease));
        }
        // One whose end is proposed is not due again before that is decided.
        if !self.expiring.contains_key(&lease) {
            self.by_time.insert((deadline, lease));
        }
    }

    pub(crate) fn note_granted(&mut self, lease: LeaseId) {
        self.fresh.insert(lease);
    }

    pub(crate) fn note_renewed(&mut self, lease: LeaseId) {
        self.fresh.remove(&lease);
    }

    /// Whether the lease was renewed, as far as this leader knows: of those that it found it takes it for granted.
    pub(crate) fn is_renewed(&self, lease: LeaseId) -> bool {
        !self.fresh.contains(&lease)
    }

    /// The lease is gone; gives back the renewals that waited for that.
    pub(crate) fn remove(&mut self, lease: LeaseId) -> Vec<Asker> {
        if let Some(old) = self.by_lease.remove(&lease) {
            self.by_time.remove(&(old, lease));
        }
        self.fresh.remove(&lease);
        self.expiring.remove(&lease).unwrap_or_default()
    }

    pub(crate) fn deadline(&self, lease: LeaseId) -> Option<u64> {
        self.by_lease.get(&lease).copied()
    }

    /// When there is something to take.
    pub(crate) fn earliest(&self) -> Option<u64> {
        let (deadline, _) = self.by_time.first()?;
        Some(if self.expiring.is_empty() { *deadline } else { self.next_part.max(*deadline) })
    }

    /// Leases past their deadline, one or as many as the budget allows. They count as expiring until they are
    /// removed or kept. The next part of a crowd that falls due together is given when this one is gone, so that
    /// everybody else has a turn between them, or after `patience_ms`, so that a slow disk is asked less often.
    pub(crate) fn take_due(
        &mut self,
        lease_clock: u64,
        budget: usize,
        patience_ms: u64,
        cost: impl Fn(LeaseId) -> usize,
    ) -> Vec<LeaseId> {
        let mut due = Vec::new();
        if self.earliest().is_none_or(|earliest| earliest > lease_clock) {
            return due;
        }
        let mut spent = 0;
        while let Some(&(deadline, lease)) = self.by_time.first()
            && deadline <= lease_clock
        {
            spent += cost(lease);
            if spent > budget && !due.is_empty() {
                break;
            }
            self.by_time.pop_first();
            self.expiring.insert(lease, Vec::new());
            due.push(lease);
        }
        self.next_part = lease_clock + patience_ms;
        due
    }

    /// If the lease's end is in flight, the renewal waits for its outcome.
    pub(crate) fn wait_for_expiry(&mut self, lease: LeaseId, asker: Asker) -> bool {
        #[cfg(feature = "planted")]
        if tenure_machine::planted::is(tenure_machine::planted::Bug::RenewTheExpiring) {
            return false;
        }
        match self.expiring.get_mut(&lease) {
            Some(waiting) => {
                waiting.push(asker);
                true
            }
            None => false,
        }
    }

    /// The end of this lease was not carried out: it lives on, and is due again at `retry`, or later if it was
    /// renewed meanwhile. Gives back the renewals that waited.
    pub(crate) fn keep(&mut self, lease: LeaseId, retry: u64) -> Vec<Asker> {
        let Some(waiting) = self.expiring.remove(&lease) else { return Vec::new() };
        if let Some(deadline) = self.deadline(lease) {
            self.set(lease, deadline.max(retry));
        }
        waiting
    }

    /// Renewals that nobody waits for any more.
    pub(crate) fn forget_calls(&mut self, is_forgotten: impl Fn(CallId) -> bool) {
        for waiting in self.expiring.values_mut() {
            waiting.retain(|asker| !asker.call().is_some_and(&is_forgotten));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(_: LeaseId) -> usize {
        1
    }

    #[test]
    fn a_renewed_lease_is_due_later() {
        let mut deadlines = Deadlines::default();
        deadlines.set(7, 100);
        deadlines.set(8, 100);
        deadlines.set(7, 200);
        assert_eq!(deadlines.take_due(150, 10, 5, one), [8]);
        deadlines.remove(8);
        assert_eq!(deadlines.earliest(), Some(200));
    }

    #[test]
    fn a_renewal_waits_for_an_expiry_in_flight() {
        let mut deadlines = Deadlines::default();
        deadlines.set(7, 100);
        assert!(!deadlines.wait_for_expiry(7, Asker::Call(1)));
        assert_eq!(deadlines.take_due(100, 10, 5, one), [7]);
        assert!(deadlines.take_due(100, 10, 5, one).is_empty(), "proposed once");
        assert!(deadlines.wait_for_expiry(7, Asker::Call(1)));
        assert_eq!(deadlines.remove(7), [Asker::Call(1)]);
    }

    #[test]
    fn an_expiry_that_came_to_nothing_leaves_the_lease_due() {
        let mut deadlines = Deadlines::default();
        deadlines.set(7, 100);
        deadlines.take_due(100, 10, 5, one);
        deadlines.wait_for_expiry(7, Asker::Call(1));
        assert_eq!(deadlines.keep(7, 120), [Asker::Call(1)]);
        assert!(
            deadlines.take_due(119, 10, 5, one).is_empty(),
            "not at once, or a refused expiry would be proposed without end"
        );
        assert_eq!(deadlines.take_due(120, 10, 5, one), [7]);
    }

    #[test]
    fn a_crowd_ends_in_parts_and_a_costly_lease_alone() {
        let mut deadlines = Deadlines::default();
        for lease in 1..=4 {
            deadlines.set(lease, 100);
        }
        let cost = |lease| if lease == 3 { 50 } else { 4 };
        assert_eq!(deadlines.take_due(100, 10, 5, cost), [1, 2]);
        assert!(deadlines.take_due(100, 10, 5, cost).is_empty(), "one part at a time");
        deadlines.remove(1);
        assert!(deadlines.take_due(100, 10, 5, cost).is_empty(), "not before all of it is gone");
        deadlines.remove(2);
        assert_eq!(deadlines.earliest(), Some(100));
        assert_eq!(deadlines.take_due(100, 10, 5, cost), [3]);
    }

    #[test]
    fn the_next_part_does_not_wait_forever_for_the_one_before() {
        let mut deadlines = Deadlines::default();
        deadlines.set(1, 100);
        deadlines.set(2, 100);
        deadlines.set(3, 107);
        assert_eq!(deadlines.take_due(100, 1, 5, one), [1]);
        assert_eq!(deadlines.earliest(), Some(105));
        assert!(deadlines.take_due(104, 1, 5, one).is_empty());
        assert_eq!(deadlines.take_due(105, 1, 5, one), [2]);
        assert_eq!(deadlines.earliest(), Some(110));
        deadlines.remove(1);
        deadlines.remove(2);
        assert_eq!(deadlines.earliest(), Some(107));
    }
}
