//! Owners: flows of work that name themselves when they ask for locks, so that members can see them wait in circles.
//!
//! They are few, and clients and leases share them: one client asks for a lock in the name of an owner for which another
//! client holds one. So circles of one, two and more owners are about to close all the time. An owner here is not one
//! sequential flow of work, as it should be: the rule about circles holds for owners that do several things at once, too.

use tenure_machine::{Lock, Mode};

use crate::plan::Plan;
use crate::random::Random;

/// The streams of chance of the plan and of the clients.
pub const PLAN: u64 = 9;
const CLIENTS: u64 = 10;

pub(super) struct Owners {
    random: Random,
}

impl Owners {
    pub fn new(seed: u64) -> Owners {
        Owners { random: Random::new(seed, CLIENTS) }
    }

    /// Names an owner in most requests, in seeds that have owners: mostly the client's own.
    pub fn own(&mut self, client: usize, plan: &Plan, mut lock: Lock) -> Lock {
        let owners = plan.wide.map_or(0, |wide| wide.owners);
        if owners == 0 || self.random.percent(25) {
            return lock;
        }
        let owner = if self.random.percent(60) { client as u64 % owners } else { self.random.below(owners) };
        lock.owner = format!("owner-{owner}").into();
        if plan.shared_locks && !matches!(lock.mode, Mode::Barrier(_)) {
            lock.mode = self.mode(lock.mode);
        }
        lock
    }

    /// Circles lead through any of several holders, and through semaphores only if they have one slot.
    fn mode(&mut self, asked: Mode) -> Mode {
        match self.random.below(8) {
            0..=2 => Mode::Shared,
            3 => Mode::Slots(1),
            4 => Mode::Slots(2),
            _ => asked,
        }
    }
}
