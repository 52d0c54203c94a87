//! For a while files cannot grow. The member stops when it needs more than is left, and cannot start
//! while it finds none.

use std::path::Path;

use tenure_storage::Disk;

use super::Fault;
use crate::recovery::DIRECTORY;
use crate::world::World;

#[derive(Default)]
pub struct FullDisk {
    is_full: bool,
}

impl Fault for FullDisk {
    fn name(&self) -> &'static str {
        "full disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        if self.is_full {
            self.heal(world);
            return world.fault_random.spread(200_000, 6_000_000);
        }
        self.is_full = true;
        world.member.disk_is_bad = true;
        let disk = &world.member.disk;
        const PLENTY: u64 = 1 << 60;
        disk.set_capacity(Some(PLENTY));
        let used = PLENTY - disk.free_bytes(Path::new(DIRECTORY)).unwrap_or(PLENTY);
        let room = world.fault_random.spread(0, 64 << 10);
        disk.set_capacity(Some(used + room));
        world.fault_random.spread(100_000, 3_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        self.is_full = false;
        world.member.disk.set_capacity(None);
    }
}
