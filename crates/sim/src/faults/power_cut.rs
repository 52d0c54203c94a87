//! The power goes: between two disk operations, in the middle of one, or at some later one, which may be
//! one of recovery's own.

use super::Fault;
use crate::world::World;

pub struct PowerCut;

impl Fault for PowerCut {
    fn name(&self) -> &'static str {
        "power cut"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        match world.fault_random.below(4) {
            0 => world.lose_power(None),
            1 => {
                let operations = world.fault_random.between(1, 4);
                world.lose_power(Some(operations));
            }
            _ => {
                let operations = world.fault_random.spread(1, 24);
                world.member.cut_power_in(operations);
            }
        }
        world.fault_random.spread(100_000, 5_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        if world.member.cut_at.is_some() {
            world.lose_power(None);
        }
    }
}
