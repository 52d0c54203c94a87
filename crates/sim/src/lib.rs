//! A whole member in a small world: simulated clock, disk and clients around the real replica and the
//! real storage, on one thread. One seed is one run, to the last byte.
//!
//! The [`world`] turns: it takes the next event, lets the [`member`] step or its disk work, lets clients
//! act ([`traffic`]) and [`faults`] strike. Everything that goes into the member and comes out of it is
//! shown to the [`checks`], which know from the [`reference`] what it should have been. After a while all
//! faults are taken back, and what waited must come to its end.
//!
//! What a seed turns on is drawn in [`plan`]; [`planted`] bugs prove that a bug would be found.
#![forbid(unsafe_code)]

pub mod checks;
pub mod events;
pub mod faults;
pub mod member;
pub mod model;
pub mod plan;
pub mod planted;
pub mod random;
pub mod recovery;
pub mod reference;
pub mod request;
pub mod trace;
pub mod traffic;
pub mod world;

pub use planted::Planted;
pub use world::{Report, Violation, run};

/// Lines of the timeline that a violation comes with, unless more are asked for.
pub const TIMELINE_LINES: usize = 40;

/// Runs a seed, and runs it again for its timeline if something is wrong.
pub fn explain(seed: u64, planted: Option<Planted>, lines: usize) -> Result<Report, Box<Violation>> {
    run(seed, planted, 0).or_else(|_| run(seed, planted, lines))
}
