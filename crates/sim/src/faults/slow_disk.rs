//! For a while every write of somebody's takes long: long enough, at times, for calls to be given up.

use tenure_machine::MemberId;

use super::Fault;
use crate::world::World;

#[derive(Default)]
pub struct SlowDisk {
    victim: Option<MemberId>,
}

impl Fault for SlowDisk {
    fn name(&self) -> &'static str {
        "slow disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        if self.victim.is_some() {
            self.heal(world);
            return world.fault_random.spread(200_000, 5_000_000);
        }
        let victim = world.victim();
        let slow_us = world.fault_random.spread(20_000, 4_000_000) * world.plan.slowness;
        self.victim = Some(victim);
        world.member(victim).sync_us = (slow_us / 2, slow_us * 2);
        world.fault_random.spread(100_000, 6_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        // Not what it was before: that may have been slow by another fault.
        if let Some(victim) = self.victim.take() {
            world.member(victim).sync_us = world.plan.sync_us;
        }
    }
}
