//! A process stands still while time and clients go on: a stopped machine, a moved one, a long page fault.

use super::Fault;
use crate::world::World;

pub struct Pause;

impl Fault for Pause {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let pause_us = world.fault_random.spread(10_000, 6_000_000) * world.plan.slowness;
        let victim = world.victim();
        world.pause(victim, pause_us);
        pause_us + world.fault_random.spread(100_000, 4_000_000)
    }
}
