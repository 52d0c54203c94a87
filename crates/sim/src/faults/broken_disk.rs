//! One write or one sync fails; after a failed sync nobody knows what the disk holds. The page cache outlives
//! the process, and the kernel has forgotten that its pages were never written: the next process reads what no
//! disk holds.

use super::Fault;
use crate::world::World;

pub struct BrokenDisk;

impl Fault for BrokenDisk {
    fn name(&self) -> &'static str {
        "broken disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        world.member.disk_is_bad = true;
        let nth = world.fault_random.spread(1, 16);
        if world.fault_random.percent(60) {
            world.member.disk.fail_sync(nth);
        } else {
            world.member.disk.fail_write(nth);
        }
        world.fault_random.spread(200_000, 6_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        // One that never comes.
        world.member.disk.fail_sync(u64::MAX);
        world.member.disk.fail_write(u64::MAX);
    }
}
