//! A member's power goes: between two disk operations, in the middle of one, or at some later one, which may be
//! one of recovery's own.

use super::Fault;
use crate::world::World;

pub struct PowerCut;

impl Fault for PowerCut {
    fn name(&self) -> &'static str {
        "power cut"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let victim = world.victim();
        match world.fault_random.below(4) {
            0 => world.lose_power(victim, None),
            1 => {
                let operations = world.fault_random.between(1, 4);
                world.lose_power(victim, Some(operations));
            }
            _ => {
                let operations = world.fault_random.spread(1, 24);
                world.member(victim).cut_power_in(operations);
            }
        }
        world.fault_random.spread(100_000, 5_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        for member in world.members.keys().copied().collect::<Vec<_>>() {
            if world.members[&member].cut_at.is_some() {
                world.lose_power(member, None);
            }
        }
    }
}
