//! One write or one sync of somebody's disk fails; after a failed sync nobody knows what the disk holds. The page
//! cache outlives the process, and the kernel has forgotten that its pages were never written: the next process
//! reads what no disk holds.

use super::Fault;
use crate::world::World;

pub struct BrokenDisk;

impl Fault for BrokenDisk {
    fn name(&self) -> &'static str {
        "broken disk"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let victim = world.victim();
        let (nth, is_sync) = (world.fault_random.spread(1, 16), world.fault_random.percent(60));
        let member = world.member(victim);
        member.disk_is_bad = true;
        if is_sync {
            member.disk.fail_sync(nth)
        } else {
            member.disk.fail_write(nth)
        }
        world.fault_random.spread(200_000, 6_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        for member in world.members.values() {
            // One that never comes.
            member.disk.fail_sync(u64::MAX);
            member.disk.fail_write(u64::MAX);
        }
    }
}
