//! A member's disk is gone for good, and the process starts on an empty one, under its old name, as if it had
//! never voted. It must help nobody to lead; an operator replaces it by a new member.

use super::Fault;
use crate::world::World;

pub struct LostDisk;

const NEVER_US: u64 = 1 << 50;

impl Fault for LostDisk {
    fn name(&self) -> &'static str {
        "lost disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let voters = world.voters();
        let Some(victim) = world.fault_random.pick(&voters).copied() else { return NEVER_US };
        // Whoever was never seen cannot be known again, and without a majority nobody can go on.
        let others: Vec<u64> = world.configured().into_iter().filter(|other| *other != victim).collect();
        let knows = |other: &u64| world.life(*other).is_some_and(|life| life.peers.directory_of(victim).is_some());
        if others.len() < 2 || world.life(victim).is_none() || !others.iter().all(knows) {
            return world.fault_random.spread(200_000, 2_000_000);
        }
        world.lose_disk(victim);
        // Once in a run: two losses may be a majority.
        NEVER_US
    }
}
