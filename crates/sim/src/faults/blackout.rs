//! The power goes everywhere at once, or nearly: what only a majority's memory holds is gone.

use super::Fault;
use crate::world::World;

pub struct Blackout;

impl Fault for Blackout {
    fn name(&self) -> &'static str {
        "blackout"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        for member in world.members.keys().copied().collect::<Vec<_>>() {
            if world.fault_random.percent(90) {
                let torn = world.fault_random.percent(50).then(|| world.fault_random.between(1, 4));
                world.lose_power(member, torn);
            }
        }
        world.fault_random.spread(1_000_000, 6_000_000)
    }
}
