//! For a while every write takes long: long enough, at times, for calls to be given up.

use super::Fault;
use crate::world::World;

#[derive(Default)]
pub struct SlowDisk {
    usual_us: Option<(u64, u64)>,
}

impl Fault for SlowDisk {
    fn name(&self) -> &'static str {
        "slow disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        if self.usual_us.is_some() {
            self.heal(world);
            return world.fault_random.spread(200_000, 5_000_000);
        }
        let slow_us = world.fault_random.spread(20_000, 4_000_000);
        self.usual_us = Some(world.member.sync_us);
        world.member.sync_us = (slow_us / 2, slow_us * 2);
        world.fault_random.spread(100_000, 6_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        if let Some(usual_us) = self.usual_us.take() {
            world.member.sync_us = usual_us;
        }
    }
}
