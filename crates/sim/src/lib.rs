//! A whole cluster in a small world: simulated clocks, disks, network and clients around real replicas and
//! real storage, on one thread. One seed is one run, to the last byte.
//!
//! The [`world`] turns: it takes the next event, lets a [`member`] step or its disk work, carries messages
//! over the [`network`], lets clients act ([`traffic`]) and [`faults`] strike. Everything that goes into a
//! member and comes out of it is shown to the [`checks`], which know from the [`reference`] what it should
//! have been. After a while all
//! faults are taken back, and what waited must come to its end.
//!
//! What a seed turns on is drawn in [`plan`]; [`planted`] bugs prove that a bug would be found.
#![forbid(unsafe_code)]

pub mod checks;
pub mod coverage;
pub mod describe;
pub mod durable;
pub mod events;
pub mod fates;
pub mod faults;
pub mod member;
pub mod model;
pub mod network;
pub mod plan;
pub mod planted;
pub mod random;
pub mod recovery;
pub mod reference;
pub mod request;
pub mod shrink;
pub mod trace;
pub mod traffic;
pub mod world;

pub use planted::Planted;
pub use shrink::explain;
pub use world::{Report, Setting, Violation, run};

/// Lines of the timeline that a violation comes with, unless more are asked for.
pub const TIMELINE_LINES: usize = 40;
