//! A write is acknowledged, and stands elsewhere in its file. The member goes on until it starts anew; then it has to
//! notice, and its disk is as good as lost.

use tenure_machine::MemberId;

use super::Fault;
use crate::member::Damage;
use crate::world::World;

/// Disks write whole sectors.
const SECTOR_BYTES: u64 = 512;
const NEVER_US: u64 = 1 << 50;

#[derive(Default)]
pub struct MisdirectedWrite {
    victim: Option<MemberId>,
}

impl Fault for MisdirectedWrite {
    fn name(&self) -> &'static str {
        "misdirected write"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        if let Some(victim) = self.victim {
            let has_happened = !world.members[&victim].disk.is_misdirecting();
            if has_happened {
                world.kill(victim);
            }
            // Once in a run: two losses may be a majority.
            return if has_happened { NEVER_US } else { world.fault_random.spread(50_000, 1_000_000) };
        }
        let voters = world.voters();
        let Some(victim) = world.fault_random.pick(&voters).copied() else { return NEVER_US };
        if !world.can_lose_disk(victim) {
            return world.fault_random.spread(50_000, 500_000);
        }
        self.victim = Some(victim);
        let nth = world.fault_random.spread(1, 40);
        let offset = SECTOR_BYTES * world.fault_random.below(world.plan.segment_bytes / SECTOR_BYTES + 4);
        world.misdirect_write(victim, nth, offset);
        world.fault_random.spread(50_000, 2_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        let Some(victim) = self.victim else { return };
        if world.members[&victim].disk.is_misdirecting() {
            world.members[&victim].disk.misdirect_write(u64::MAX, 0);
            world.member(victim).damage = None;
        } else if matches!(world.members[&victim].damage, Some(Damage::Misdirected)) {
            world.kill(victim);
        }
    }
}
