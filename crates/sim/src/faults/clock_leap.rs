//! Somebody's monotonic clock leaps ahead, as after a machine was moved: further than any step takes, so that it is
//! known for a pause and given back to all leases (rule 14). What clocks gain unnoticed is their drift.

use super::Fault;
use crate::world::World;

/// A member alone may sleep for so long between two steps.
const LONGEST_SLEEP_MS: u64 = 500;

pub struct ClockLeap;

impl Fault for ClockLeap {
    fn name(&self) -> &'static str {
        "clock leap"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let least_us = (world.plan.replica.election_min_ms + LONGEST_SLEEP_MS) * 1000;
        let (victim, leap_us) = (world.victim(), least_us + world.fault_random.spread(0, 20_000_000));
        world.shift_clock(victim, leap_us as i64);
        world.fault_random.spread(200_000, 5_000_000)
    }
}
