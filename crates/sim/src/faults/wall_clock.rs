//! Somebody's wall clock jumps, forth and back. Nothing may depend on it.

use super::Fault;
use crate::world::World;

pub struct WallClock;

impl Fault for WallClock {
    fn name(&self) -> &'static str {
        "wall clock"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let (victim, wall_ms) = (world.victim(), world.fault_random.spread(0, 1 << 41));
        world.member(victim).wall_ms = wall_ms;
        world.fault_random.spread(100_000, 3_000_000)
    }
}
