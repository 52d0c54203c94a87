//! A member whose every step comes late, most often the one that leads: a starved machine, or one that swaps.
//!
//! It is not broken, so it does not heal before the leases have had their time to end: a slow leader ends them, too.

use super::Fault;
use crate::world::World;

#[derive(Default)]
pub struct SlowMember;

impl Fault for SlowMember {
    fn name(&self) -> &'static str {
        "slow member"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let late_us = world.fault_random.between(20, 260) * 1000;
        let victim = world.victim();
        world.slow_down(victim, late_us);
        world.fault_random.spread(500_000, 10_000_000)
    }
}
