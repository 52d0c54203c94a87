//! Messages arrive twice, the second one perhaps much later.

use super::Fault;
use crate::world::World;

pub struct DoubledMessages;

impl Fault for DoubledMessages {
    fn name(&self) -> &'static str {
        "doubled messages"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        world.network.doubled_percent = world.fault_random.between(0, 30);
        world.fault_random.spread(200_000, 5_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        world.network.doubled_percent = 0;
    }
}
