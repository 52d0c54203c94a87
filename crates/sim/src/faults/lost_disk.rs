//! A member's disk is gone for good, and the process starts on an empty one, under its old name, as if it had
//! never voted. It must help nobody to lead; an operator replaces it by a new member.

use super::Fault;
use crate::world::World;

#[derive(Default)]
pub struct LostDisk {
    tries: u64,
}

const NEVER_US: u64 = 1 << 50;
/// So often it waits for a moment at which the loss is felt.
const PATIENCE: u64 = 40;

impl Fault for LostDisk {
    fn name(&self) -> &'static str {
        "lost disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        self.tries += 1;
        let voters = world.voters();
        let Some(victim) = world.fault_random.pick(&voters).copied() else { return NEVER_US };
        if !world.can_lose_disk(victim) {
            return world.fault_random.spread(50_000, 500_000);
        }
        let last = |member: u64| world.life(member).map(|life| life.replica.status().last_index);
        let is_missed = world.configured().into_iter().any(|other| last(other) < last(victim));
        if !is_missed && self.tries < PATIENCE {
            return world.fault_random.spread(20_000, 100_000);
        }
        world.lose_disk(victim);
        if let Some(leader) = world.leader().filter(|leader| *leader != victim && world.fault_random.percent(50)) {
            world.pause(leader, 2_000_000 * world.plan.slowness);
        }
        // Once in a run: two losses may be a majority.
        NEVER_US
    }
}
