//! How the longest applies grow with what they work on. Prints milliseconds; asserts nothing.
//!
//! `cargo run --release -p tenure-machine --example growth`
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, clippy::print_stdout)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_machine::*;

struct Driver {
    machine: Machine,
    index: u64,
}

impl Driver {
    fn new() -> Driver {
        let mut driver = Driver { machine: Machine::new(), index: 0 };
        driver.apply(Command::RaiseLevel { level: level::HIGHEST });
        driver
    }

    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        self.machine.apply(self.index, 1, &Envelope { wall_ms: self.index, origin: None, command })
    }

    fn timed(&mut self, command: Command) -> (Applied, Duration) {
        self.index += 1;
        let envelope = Envelope { wall_ms: self.index, origin: None, command };
        let (kept_before, start) = (kept_waiting(), Instant::now());
        let applied = self.machine.apply(self.index, 1, &envelope);
        let took = start.elapsed();
        (applied, took.saturating_sub(kept_waiting() - kept_before))
    }

    /// Applies a command and whatever it leaves to be done: how many applies, how long all and the longest took.
    fn finish(&mut self, command: Command) -> (usize, Duration, Duration) {
        let (mut applies, mut total, mut longest) = (0, Duration::ZERO, Duration::ZERO);
        let mut next = Some(command);
        while let Some(command) = next {
            let (_, took) = self.timed(command);
            (applies, total, longest) = (applies + 1, total + took, longest.max(took));
            next = self.machine.state().has_unfinished().then_some(Command::Continue);
        }
        (applies, total, longest)
    }

    fn grant(&mut self, leases: impl Iterator<Item = LeaseId>) {
        for lease in leases {
            self.apply(Command::LeaseGrant(LeaseGrant { lease, ttl_ms: 60_000, client: Bytes::new() }));
        }
    }

    /// Takes a place, and gives the time that it took.
    fn lock(&mut self, name: &str, lease: LeaseId, mode: Mode, owner: &str) -> Duration {
        let (name, owner) = (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(owner.as_bytes()));
        let lock = Lock { name, lease, mode, owner, call: 1, ..Lock::default() };
        let (applied, took) = self.timed(Command::Lock(Box::new(lock)));
        assert!(applied.reply.is_ok(), "{:?}", applied.reply);
        took
    }
}

/// How long this thread has waited for a CPU that other processes had (Linux).
fn kept_waiting() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn millis(took: Duration) -> String {
    format!("{:10.3} ms", took.as_secs_f64() * 1e3)
}

/// All slots of a semaphore are granted after one release; the longest of the applies that it takes.
fn slots(waiters: u32) {
    let mut driver = Driver::new();
    driver.grant(1..LeaseId::from(waiters) + 2);
    driver.lock("s", 1, Mode::Exclusive, "");
    for lease in 2..LeaseId::from(waiters) + 2 {
        driver.lock("s", lease, Mode::Slots(waiters), "");
    }
    let (applies, total, longest) = driver.finish(Command::LeaseRevoke { lease: 1 });
    assert_eq!(driver.machine.state().lock_counts(b"s"), (waiters as usize, waiters as usize));
    println!(
        "{waiters:>8} slots granted by one release: all {} longest {} in {applies}",
        millis(total),
        millis(longest)
    );
}

/// One waiter asks again in the middle of a queue.
fn ask_again(waiters: LeaseId) {
    let mut driver = Driver::new();
    driver.grant(1..waiters + 1);
    for lease in 1..=waiters {
        driver.lock("s", lease, Mode::Exclusive, "");
    }
    let took = driver.lock("s", waiters * 2 / 3, Mode::Exclusive, "");
    println!("{waiters:>8} waiters, one asks again        {}", millis(took));
}

/// Owners that hold a lock each join one queue; `is_wanted`: another waits for each of those locks.
fn owners(waiters: LeaseId, is_wanted: bool) {
    let mut driver = Driver::new();
    driver.grant(1..waiters * 2 + 1);
    let (mut total, mut longest) = (Duration::ZERO, Duration::ZERO);
    for lease in 1..=waiters {
        let owner = format!("owner-{lease}");
        driver.lock(&format!("own-{lease}"), lease, Mode::Exclusive, &owner);
        if is_wanted {
            driver.lock(&format!("own-{lease}"), waiters + lease, Mode::Exclusive, &format!("other-{lease}"));
        }
        let took = driver.lock("q", lease, Mode::Exclusive, &owner);
        (total, longest) = (total + took, longest.max(took));
    }
    let what = if is_wanted { "with waiters behind them" } else { "with a lock of their own" };
    println!("{waiters:>8} owners {what} join: all {} longest {}", millis(total), millis(longest));
}

/// A lease ends with all of its keys; the longest of the applies that it takes.
fn revoke(keys: usize) {
    let mut driver = Driver::new();
    driver.grant(1..2);
    for number in 0..keys {
        let key = Bytes::from(format!("some/key/{number:09}"));
        let put = Put { key, value: Bytes::new(), lease: 1, prev_kv: false, ignore_value: false, ignore_lease: false };
        driver.apply(Command::Put(put));
    }
    let (applies, total, longest) = driver.finish(Command::LeaseRevoke { lease: 1 });
    assert_eq!(driver.machine.state().keys(), 0);
    println!("{keys:>8} keys of a lease deleted: all {} longest {} in {applies}", millis(total), millis(longest));
}

fn main() {
    for keys in [1_000, 10_000, 100_000, 1_000_000] {
        revoke(keys);
    }
    for waiters in [1_000, 10_000, 99_999] {
        slots(waiters);
        ask_again(LeaseId::from(waiters));
    }
    for waiters in [1_000, 10_000, 99_999] {
        owners(waiters, false);
        owners(waiters, true);
    }
}
