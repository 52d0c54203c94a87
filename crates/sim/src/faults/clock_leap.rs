//! Somebody's monotonic clock leaps ahead, as after a machine was moved: further than any step takes, so that it is
//! known for a pause and given back to all leases (rule 14). What clocks gain unnoticed is their drift.

use tenure_machine::MemberId;

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
        if is_steady(world, victim) {
            world.shift_clock(victim, leap_us as i64);
        }
        world.fault_random.spread(200_000, 5_000_000)
    }
}

/// Whether the member has had a step in time since its last gap. A member takes a gap behind a late step for slowness,
/// which counts as time that has passed. So what it promises holds only if its clock does not leap in two steps in a row.
fn is_steady(world: &World, member: MemberId) -> bool {
    let in_time_us = (2 * world.plan.replica.tick_ms + LONGEST_SLEEP_MS) * 1000;
    world.life(member).is_some_and(|life| {
        let gap_us = life.paused_until_us.max(life.leapt_us);
        gap_us == 0 || world.now_us > gap_us + in_time_us
    })
}
