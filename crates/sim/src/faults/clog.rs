//! Between two members everything stands still for a while, and then comes at once.

use super::Fault;
use crate::world::World;

pub struct Clog;

impl Fault for Clog {
    fn name(&self) -> &'static str {
        "clog"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let (from, to) = (world.victim(), world.victim());
        let for_us = world.fault_random.spread(20_000, 4_000_000) * world.plan.slowness;
        world.network.clog(from, to, world.now_us + for_us);
        world.fault_random.spread(100_000, 3_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        world.network.unclog();
    }
}
