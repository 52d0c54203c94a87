//! What lies between members: it loses, doubles, delays and reorders what it carries, as far as the
//! faults of a seed let it.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::MemberId;

use crate::random::Random;

pub struct Network {
    random: Random,
    /// From whom to whom nothing passes.
    cut: BTreeSet<(MemberId, MemberId)>,
    /// From whom to whom everything stands still until then.
    clogged: BTreeMap<(MemberId, MemberId), u64>,
    pub lost_percent: u64,
    pub doubled_percent: u64,
    /// How long a message is on its way.
    pub delay_us: (u64, u64),
    /// How much longer each piece of a snapshot is.
    pub piece_us: u64,
    /// How long it takes at most to read a snapshot that has come in; 0 = it is there at once.
    restore_us: u64,
    restoring: Random,
    /// What was sent earlier arrives earlier, as on one connection.
    pub is_ordered: bool,
    /// When the last message between two will have arrived.
    last_us: BTreeMap<(MemberId, MemberId), u64>,
}

impl Network {
    pub fn new(seed: u64, delay_us: (u64, u64), is_ordered: bool) -> Network {
        Network {
            random: Random::new(seed, 5),
            cut: BTreeSet::new(),
            clogged: BTreeMap::new(),
            lost_percent: 0,
            doubled_percent: 0,
            delay_us,
            piece_us: 0,
            restore_us: 0,
            restoring: Random::new(seed, 24),
            is_ordered,
            last_us: BTreeMap::new(),
        }
    }

    pub fn with_restores(self, restore_us: u64) -> Network {
        Network { restore_us, ..self }
    }

    /// How long it takes to read a snapshot that has come in whole, and whether its sender never hears that it has.
    pub fn restoring(&mut self) -> (u64, bool) {
        match self.restore_us {
            0 => (0, false),
            // A copy that takes much longer than another one comes when the log has gone on behind it.
            most_us if self.restoring.percent(40) => (self.restoring.between(most_us, 5 * most_us), true),
            most_us => (self.restoring.between(1, most_us), self.restoring.percent(50)),
        }
    }

    /// How long no step is taken before and after a snapshot is read in. The log's thread goes on meanwhile, so that
    /// one step is told what is durable, what is committed, and of the snapshot.
    pub fn stall_us(&mut self) -> (u64, u64) {
        (self.restoring.between(1, 150_000), self.restoring.between(1, 150_000))
    }

    pub fn is_cut(&self, from: MemberId, to: MemberId) -> bool {
        self.cut.contains(&(from, to))
    }

    pub fn cut(&mut self, from: MemberId, to: MemberId) {
        self.cut.insert((from, to));
    }

    /// Nothing passes between it and the others.
    pub fn cut_off(&mut self, member: MemberId, others: impl Iterator<Item = MemberId>) {
        for other in others.filter(|other| *other != member) {
            self.cut(member, other);
            self.cut(other, member);
        }
    }

    pub fn rejoin(&mut self, member: MemberId) {
        self.cut.retain(|(from, to)| *from != member && *to != member);
    }

    pub fn mend(&mut self) {
        self.cut.clear();
    }

    pub fn clog(&mut self, from: MemberId, to: MemberId, until_us: u64) {
        self.clogged.insert((from, to), until_us);
    }

    pub fn unclog(&mut self) {
        self.clogged.clear();
        self.last_us.clear();
    }

    /// When a message that is sent now arrives: never, once, or more than once.
    pub fn arrivals_us(&mut self, from: MemberId, to: MemberId, now_us: u64) -> Vec<u64> {
        if self.is_cut(from, to) || self.random.percent(self.lost_percent) {
            return Vec::new();
        }
        let copies = if self.random.percent(self.doubled_percent) { 2 } else { 1 };
        (0..copies).map(|_| self.arrival_us(from, to, now_us)).collect()
    }

    fn arrival_us(&mut self, from: MemberId, to: MemberId, now_us: u64) -> u64 {
        let begins_us = self.clogged.get(&(from, to)).copied().unwrap_or(0).max(now_us);
        let mut arrives_us = begins_us + self.random.spread(self.delay_us.0, self.delay_us.1);
        let last_us = self.last_us.entry((from, to)).or_default();
        if self.is_ordered {
            arrives_us = arrives_us.max(*last_us + 1);
        }
        *last_us = arrives_us.max(*last_us);
        arrives_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_one_way_until_it_is_mended() {
        let mut network = Network::new(1, (10, 20), true);
        network.cut(1, 2);
        assert!(network.arrivals_us(1, 2, 0).is_empty());
        assert_eq!(network.arrivals_us(2, 1, 0).len(), 1);
        network.mend();
        assert_eq!(network.arrivals_us(1, 2, 0).len(), 1);
    }

    #[test]
    fn a_connection_keeps_its_order_and_a_clog_holds_it_up() {
        let mut network = Network::new(1, (10, 10_000), true);
        let arrivals: Vec<u64> = (0..50).flat_map(|now_us| network.arrivals_us(1, 2, now_us)).collect();
        assert!(arrivals.is_sorted() && arrivals.len() == 50);
        network.clog(1, 3, 70_000);
        assert!(network.arrivals_us(1, 3, 5)[0] >= 70_010);
    }
}
