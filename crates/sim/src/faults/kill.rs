//! A process is killed; what it wrote stays in the page cache, synced or not.

use super::Fault;
use crate::world::World;

pub struct Kill;

impl Fault for Kill {
    fn name(&self) -> &'static str {
        "kill"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let victim = world.victim();
        world.kill(victim);
        world.fault_random.spread(100_000, 6_000_000)
    }
}
