//! Every decoder of bytes from outside or from disk, as a function that a fuzzer can call.
//!
//! A target takes any bytes and panics only if Tenure is wrong: if a decoder panics, or if what it let pass does not
//! mean what it says. `fuzz/run TARGET` drives one with libFuzzer and keeps what it learns in `fuzz/corpus/TARGET`;
//! the tests of this crate run all that was kept, on every machine.
#![forbid(unsafe_code)]

mod command;
mod etcd_request;
mod fence;
mod json;
mod lock_request;
mod log;
mod peer_message;
mod snapshot;

/// One decoder.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Sound inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: &[Target] = &[
    Target { name: "command", run: command::run, seeds: command::seeds },
    Target { name: "snapshot", run: snapshot::run, seeds: snapshot::seeds },
    Target { name: "log", run: log::run, seeds: log::seeds },
    Target { name: "peer_message", run: peer_message::run, seeds: peer_message::seeds },
    Target { name: "etcd_request", run: etcd_request::run, seeds: etcd_request::seeds },
    Target { name: "lock_request", run: lock_request::run, seeds: lock_request::seeds },
    Target { name: "json", run: json::run, seeds: json::seeds },
    Target { name: "fence", run: fence::run, seeds: fence::seeds },
];

pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
