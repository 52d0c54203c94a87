//! An operator stops a member in order and starts it again.

use super::Fault;
use crate::world::World;

pub struct CleanRestart;

impl Fault for CleanRestart {
    fn name(&self) -> &'static str {
        "clean restart"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let victim = world.victim();
        world.stop_in_order(victim);
        world.fault_random.spread(500_000, 6_000_000)
    }
}
