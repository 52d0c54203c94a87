//! What can go wrong, each kind in a file of its own. A fault is struck from time to time, acts on the
//! world, and says when it strikes next.
//!
//! To add one: write it, and name it in [`NAMES`] and [`all`], and in [`BETWEEN_MEMBERS`] if it needs several.

mod bit_flip;
mod blackout;
mod broken_disk;
mod clean_restart;
mod client_pause;
mod clock_leap;
mod clog;
mod doubled;
mod full_disk;
mod kill;
mod late_snapshot;
mod lost;
mod lost_disk;
mod misdirected_write;
mod partition;
mod pause;
mod power_cut;
mod slow_disk;
mod slow_member;
mod slow_network;
mod suspend;
mod wall_clock;

use crate::world::World;

pub trait Fault {
    fn name(&self) -> &'static str;
    /// In how many microseconds to strike again.
    fn strike(&mut self, world: &mut World) -> u64;
    /// Takes back whatever is still wrong.
    fn heal(&mut self, _world: &mut World) {}
}

/// Those of wide seeds come last.
pub const NAMES: [&str; 22] = [
    "power cut",
    "blackout",
    "kill",
    "clean restart",
    "pause",
    "client pause",
    "slow disk",
    "full disk",
    "broken disk",
    "lost disk",
    "bit flip",
    "misdirected write",
    "wall clock",
    "clock leap",
    "suspend",
    "partition",
    "clog",
    "lost messages",
    "doubled messages",
    "slow network",
    "late snapshot",
    "slow member",
];

/// Only in wide seeds.
pub const WIDE: [&str; 1] = ["slow member"];

/// Where there is one member they mean nothing.
pub const BETWEEN_MEMBERS: [&str; 8] = [
    "partition",
    "clog",
    "lost messages",
    "doubled messages",
    "slow network",
    "late snapshot",
    "lost disk",
    "misdirected write",
];

/// Where one of these takes a member's disk for good, somebody has to replace the member.
pub const FOR_GOOD: [&str; 2] = ["lost disk", "misdirected write"];

/// What a disk does to the last thing that was written hides that a write went elsewhere.
pub const HIDES_MISDIRECTION: [&str; 5] = ["power cut", "blackout", "broken disk", "full disk", "bit flip"];

pub fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(power_cut::PowerCut),
        Box::new(blackout::Blackout),
        Box::new(kill::Kill),
        Box::new(clean_restart::CleanRestart),
        Box::new(pause::Pause),
        Box::new(client_pause::ClientPause),
        Box::new(slow_disk::SlowDisk::default()),
        Box::new(full_disk::FullDisk::default()),
        Box::new(broken_disk::BrokenDisk),
        Box::new(lost_disk::LostDisk::default()),
        Box::new(bit_flip::BitFlip),
        Box::new(misdirected_write::MisdirectedWrite::default()),
        Box::new(wall_clock::WallClock),
        Box::new(clock_leap::ClockLeap),
        Box::new(suspend::Suspend),
        Box::new(partition::Partition::default()),
        Box::new(clog::Clog),
        Box::new(lost::LostMessages),
        Box::new(doubled::DoubledMessages),
        Box::new(slow_network::SlowNetwork::default()),
        Box::new(late_snapshot::LateSnapshot::default()),
        Box::new(slow_member::SlowMember),
    ]
}
