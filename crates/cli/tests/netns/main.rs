//! Three members as processes, each on a machine of its own as far as the network goes, under faults that the test
//! makes there; clients of all kinds go on meanwhile, and what they did and saw is checked to the end.
//!
//! Needs root, `ip`, `tc` and `nft`; `cargo test --test netns -- --ignored` runs it.
#![forbid(unsafe_code)]

mod checks;
mod cluster;
mod faults;
mod history;
mod member;
mod net;
#[path = "../support/mod.rs"]
mod support;
mod workload;
