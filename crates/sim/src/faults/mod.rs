//! What can go wrong, each kind in a file of its own. A fault is struck from time to time, acts on the
//! world, and says when it strikes next.
//!
//! To add one: write it, and name it in [`NAMES`] and [`all`].

mod broken_disk;
mod clean_restart;
mod full_disk;
mod kill;
mod pause;
mod power_cut;
mod slow_disk;
mod wall_clock;

use crate::world::World;

pub trait Fault {
    fn name(&self) -> &'static str;
    /// In how many microseconds to strike again.
    fn strike(&mut self, world: &mut World) -> u64;
    /// Takes back whatever is still wrong.
    fn heal(&mut self, _world: &mut World) {}
}

pub const NAMES: [&str; 8] =
    ["power cut", "kill", "clean restart", "pause", "slow disk", "full disk", "broken disk", "wall clock"];

pub fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(power_cut::PowerCut),
        Box::new(kill::Kill),
        Box::new(clean_restart::CleanRestart),
        Box::new(pause::Pause),
        Box::new(slow_disk::SlowDisk::default()),
        Box::new(full_disk::FullDisk::default()),
        Box::new(broken_disk::BrokenDisk),
        Box::new(wall_clock::WallClock),
    ]
}
