//! A machine is suspended, and its monotonic clock does not count that: the process finds less time gone than the
//! others do, and no gap.

use super::Fault;
use crate::world::World;

pub struct Suspend;

impl Fault for Suspend {
    fn name(&self) -> &'static str {
        "suspend"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let pause_us = world.fault_random.spread(10_000, 6_000_000) * world.plan.slowness;
        let victim = world.victim();
        let is_paused = world.life(victim).is_none_or(|life| life.paused_until_us > world.now_us);
        if !is_paused {
            world.pause(victim, pause_us);
            world.shift_clock(victim, -(pause_us as i64));
        }
        pause_us + world.fault_random.spread(100_000, 4_000_000)
    }
}
