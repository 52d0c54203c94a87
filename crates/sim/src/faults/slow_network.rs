//! For a while messages take long, and overtake each other unless they travel in order.

use super::Fault;
use crate::world::World;

#[derive(Default)]
pub struct SlowNetwork {
    usual: Option<((u64, u64), bool)>,
}

impl Fault for SlowNetwork {
    fn name(&self) -> &'static str {
        "slow network"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        if self.usual.is_some() {
            self.heal(world);
            return world.fault_random.spread(200_000, 5_000_000);
        }
        self.usual = Some((world.network.delay_us, world.network.is_ordered));
        let slow_us = world.fault_random.spread(5_000, 800_000) * world.plan.slowness;
        world.network.delay_us = (100, slow_us);
        world.network.is_ordered &= world.fault_random.percent(50);
        world.fault_random.spread(100_000, 5_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        if let Some((delay_us, is_ordered)) = self.usual.take() {
            world.network.delay_us = delay_us;
            world.network.is_ordered = is_ordered;
        }
    }
}
