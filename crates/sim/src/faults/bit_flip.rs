//! A bit of a file changes while its machine is dark: in the log, a snapshot, the stamp or the list of peers. Who opens
//! it has to notice, and is then given back the disk as it was; so that damage on several disks destroys nothing.

use std::path::{Path, PathBuf};

use super::Fault;
use crate::world::World;

pub struct BitFlip;

impl Fault for BitFlip {
    fn name(&self) -> &'static str {
        "bit flip"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        let victim = world.victim();
        world.flip_bit(victim, |world| {
            let disk = &world.members[&victim].disk;
            let length = |file: &Path| disk.contents(file).map_or(0, |bytes| bytes.len());
            let files: Vec<PathBuf> = disk.files().into_iter().filter(|file| length(file) > 0).collect();
            let file = world.fault_random.pick(&files)?.clone();
            let bytes = world.members[&victim].disk.contents(&file)?;
            // Mostly where something was written; a segment is long before it is full.
            let written = bytes.iter().rposition(|byte| *byte != 0).map_or(bytes.len(), |last| last + 1);
            let within = if world.fault_random.percent(90) { written } else { bytes.len() };
            let (offset, bit) = (world.fault_random.below(within as u64), world.fault_random.below(8) as u8);
            Some((file, offset, bit))
        });
        world.fault_random.spread(200_000, 4_000_000)
    }
}
