//! A client stands still while its lease runs on: a stopped process, a suspended machine. Answers wait for it.

use super::Fault;
use crate::world::World;

pub struct ClientPause;

impl Fault for ClientPause {
    fn name(&self) -> &'static str {
        "client pause"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let client = world.fault_random.below(world.plan.clients as u64) as usize;
        let pause_us = world.fault_random.spread(10_000, 8_000_000) * world.plan.slowness;
        world.pause_client(client, pause_us);
        world.fault_random.spread(100_000, 4_000_000)
    }
}
