//! For a while somebody's files cannot grow. The member stops when it needs more than is left, and cannot start
//! while it finds none.

use std::path::Path;

use tenure_machine::MemberId;
use tenure_storage::Disk;

use super::Fault;
use crate::recovery::DIRECTORY;
use crate::world::World;

#[derive(Default)]
pub struct FullDisk {
    full: Option<MemberId>,
}

impl Fault for FullDisk {
    fn name(&self) -> &'static str {
        "full disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        if self.full.is_some() {
            self.heal(world);
            return world.fault_random.spread(200_000, 6_000_000);
        }
        const PLENTY: u64 = 1 << 60;
        let (victim, room) = (world.victim(), world.fault_random.spread(0, 64 << 10));
        self.full = Some(victim);
        let member = world.member(victim);
        member.disk_is_bad = true;
        member.disk.set_capacity(Some(PLENTY));
        let used = PLENTY - member.disk.free_bytes(Path::new(DIRECTORY)).unwrap_or(PLENTY);
        member.disk.set_capacity(Some(used + room));
        world.fault_random.spread(100_000, 3_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        if let Some(member) = self.full.take() {
            world.member(member).disk.set_capacity(None);
        }
    }
}
