//! Messages are lost, a few or many.

use super::Fault;
use crate::world::World;

pub struct LostMessages;

impl Fault for LostMessages {
    fn name(&self) -> &'static str {
        "lost messages"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        world.network.lost_percent = match world.fault_random.percent(40) {
            true => 0,
            false => world.fault_random.spread(1, 40),
        };
        world.fault_random.spread(200_000, 5_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        world.network.lost_percent = 0;
    }
}
