//! An operator stops the member in order and starts it again.

use super::Fault;
use crate::world::World;

pub struct CleanRestart;

impl Fault for CleanRestart {
    fn name(&self) -> &'static str {
        "clean restart"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        world.stop_in_order();
        world.fault_random.spread(500_000, 6_000_000)
    }
}
