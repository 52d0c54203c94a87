//! Very many watches, locks and leases: what is done in parts, and figures of how cost grows. Nothing is asserted about
//! time.
//!
//! `cargo test --release -p tenure-replica --test growth -- --ignored --nocapture --test-threads=1`
//! `GROWTH_MOST=4000` leaves out larger numbers.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;

use std::time::Duration;

use bytes::Bytes;
use harness::config;
use tenure_machine::*;
use tenure_replica::{
    Answer, Answered, Boot, CallId, Config, Consistency, FIRST_TERM, Input, LeaseStatus, LockWatchRequest, Now, Output,
    Read, Replica, WatchRequest, first_configuration,
};

/// A member alone whose disk takes no time.
struct Alone {
    replica: Replica,
    now_ms: u64,
    notices: usize,
    statuses: Vec<Option<LeaseStatus>>,
    /// Calls that were told that they hold a lock, in order.
    granted: Vec<CallId>,
    /// The longest step since it was asked for last.
    longest: Duration,
    steps: usize,
}

impl Alone {
    /// `highest_level`: it raises its level up to this.
    fn boot(machine: Machine, highest_level: Level) -> Alone {
        let (index, term) = (machine.applied_index(), machine.applied_term());
        let boot = Boot {
            machine,
            snapshot_index: index,
            snapshot_term: term,
            configuration: first_configuration(&[1]),
            ..Boot::joining()
        };
        let (inflight_bytes, watch_buffer_bytes) = (1 << 30, 1 << 30);
        let config = Config { inflight_bytes, watch_buffer_bytes, highest_level, ..config(1) };
        let now = Now { monotonic_ms: 1000, wall_ms: 1000 };
        let replica = Replica::boot(config, boot, now).expect("a machine to boot from");
        let (statuses, granted) = (Vec::new(), Vec::new());
        let mut alone =
            Alone { replica, now_ms: 1000, notices: 0, statuses, granted, longest: Duration::ZERO, steps: 0 };
        alone.step(Vec::new());
        alone
    }

    fn new() -> Alone {
        let mut machine = Machine::new();
        machine.skip(1, FIRST_TERM);
        Alone::boot(machine, level::HIGHEST)
    }

    fn step(&mut self, inputs: Vec<Input>) {
        let mut inputs = inputs;
        loop {
            let mut outputs = Vec::new();
            let now = Now { monotonic_ms: self.now_ms, wall_ms: self.now_ms };
            let began = on_cpu();
            self.replica.step(now, inputs.drain(..), &mut outputs);
            self.longest = self.longest.max(on_cpu() - began);
            self.steps += 1;
            let mut last = None;
            for output in outputs {
                match output {
                    Output::Persist(persist) => last = Some(persist.number),
                    Output::Notice { .. } | Output::LockNotice { .. } => self.notices += 1,
                    Output::Answer { answer: Answer { result: Ok(Answered::LeaseTimeToLive(status)), .. }, .. } => {
                        self.statuses.push(status)
                    }
                    Output::Answer { call, answer: Answer { result: Ok(Answered::Lock(reply)), .. } }
                        if reply.granted =>
                    {
                        self.granted.push(call)
                    }
                    _ => {}
                }
            }
            let Some(number) = last else { return };
            inputs = vec![Input::Persisted { number }];
        }
    }

    /// Steps whenever it wants to be woken, for so long.
    fn run(&mut self, millis: u64) {
        let end_ms = self.now_ms + millis;
        while self.replica.wake_ms() <= end_ms {
            self.now_ms = self.replica.wake_ms();
            self.step(Vec::new());
        }
        self.now_ms = end_ms;
    }

    fn take_longest(&mut self) -> (Duration, usize) {
        (std::mem::take(&mut self.longest), std::mem::take(&mut self.steps))
    }
}

/// How long this thread has run: on a busy machine the clock says little.
fn on_cpu() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(schedstat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default())
}

fn resident_mib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4 / 1024
}

fn numbers(all: &[u64]) -> Vec<u64> {
    let most = std::env::var("GROWTH_MOST").ok().and_then(|most| most.parse().ok()).unwrap_or(u64::MAX);
    all.iter().copied().filter(|number| *number <= most).collect()
}

fn key(number: u64) -> Bytes {
    format!("key/{number:08}").into()
}

fn put(key: Bytes) -> Command {
    Command::Put(Put {
        key,
        value: Bytes::from_static(b"x"),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    })
}

#[test]
#[ignore = "prints figures"]
fn watches() {
    type Kind = (&'static str, fn(u64, u64) -> Keys);
    let kinds: [Kind; 4] = [
        ("from-key", |number, _| Keys::Span { from: key(number), to: None }),
        ("prefixes", |number, _| Keys::prefix(key(number))),
        ("overlapping", |number, all| Keys::Span { from: key(number), to: Some(key(number + all / 2)) }),
        ("same prefix", |_, _| Keys::prefix(Bytes::from_static(b"key/"))),
    ];
    for (name, keys) in kinds {
        for all in numbers(&[1000, 2000, 4000, 10_000, 100_000]) {
            let mut alone = Alone::new();
            alone.take_longest();
            let (began, before) = (on_cpu(), resident_mib());
            let create = |watch| WatchRequest::Create { watch, keys: keys(watch, all), start: None };
            for first in (0..all).step_by(1000) {
                let watches = first..(first + 1000).min(all);
                let inputs = watches.map(|watch| Input::Watch { stream: 1, request: create(watch) });
                alone.step(inputs.collect());
            }
            let (created, memory) = (on_cpu() - began, resident_mib().saturating_sub(before));
            alone.take_longest();
            alone.notices = 0;
            alone.step(vec![Input::Propose { call: 1, command: put(key(all / 2)) }]);
            let (event, told) = (alone.take_longest().0, alone.notices);
            let began = on_cpu();
            alone.step(vec![Input::Watch { stream: 1, request: WatchRequest::Close }]);
            alone.run(2000);
            let closed = on_cpu() - began;
            let (longest, _) = alone.take_longest();
            println!(
                "{name:12} {all:7}: created in {created:9.1?} with {memory:5} MiB; an event to {told:6} in {event:9.1?}; \
                 closed in {closed:9.1?}, longest step {longest:9.1?}"
            );
        }
    }
}

#[test]
#[ignore = "prints figures"]
fn a_session_of_many_locks_that_is_watched() {
    for is_watched in [false, true] {
        for all in numbers(&[2000, 4000, 20_000, 40_000, 100_000]) {
            let mut alone = Alone::new();
            let grant = LeaseGrant { lease: 7, ttl_ms: 600_000, client: Bytes::new() };
            alone.step(vec![Input::Propose { call: 1, command: Command::LeaseGrant(grant) }]);
            for first in (0..all).step_by(1000) {
                let locks = (first..(first + 1000).min(all)).map(|number| {
                    let lock = Lock { name: key(number), lease: 7, call: u128::from(number), ..Lock::default() };
                    Input::Lock { call: 10 + number, lock: Box::new(lock) }
                });
                let locks = locks.collect();
                alone.step(locks);
                alone.run(10);
            }
            assert_eq!(alone.replica.machine().state().lock_names(b"").count() as u64, all);
            if is_watched {
                for watch in 0..10 {
                    let name = Bytes::from(format!("key/{watch}"));
                    let request = LockWatchRequest::Create { watch, name, prefix: true, start: 0 };
                    alone.step(vec![Input::LockWatch { stream: 1, request }]);
                }
            }
            alone.take_longest();
            let began = on_cpu();
            alone.step(vec![Input::Propose { call: 2, command: Command::LeaseRevoke { lease: 7 } }]);
            let (took, (longest, _)) = (on_cpu() - began, alone.take_longest());
            println!("{all:7} locks, watched {is_watched:5}: revoked in {took:9.1?}, longest step {longest:9.1?}");
        }
    }
}

/// Waiters for the slots of a semaphore, and one holder of all of it in front of them.
fn with_waiters(all: u64) -> Alone {
    let mut alone = Alone::boot(machine_with_leases(all + 1, 600_000), level::HIGHEST);
    alone.run(1000);
    let lock = |lease: u64, mode| {
        let lock = Lock { name: "l".into(), lease: lease as LeaseId, mode, call: u128::from(lease), ..Lock::default() };
        Input::Lock { call: lease, lock: Box::new(lock) }
    };
    alone.step(vec![lock(all + 1, Mode::Exclusive)]);
    for first in (1..=all).step_by(1000) {
        alone.step((first..=all.min(first + 999)).map(|lease| lock(lease, Mode::Slots(all as u32))).collect());
        alone.run(10);
    }
    assert_eq!((std::mem::take(&mut alone.granted), alone.replica.status().level), (vec![all + 1], 1));
    alone.take_longest();
    alone
}

#[test]
fn very_many_waiters_are_told_in_order_that_they_hold() {
    let all = limits::LOCK_GRANTS_AT_ONCE as u64 + 100;
    let mut alone = with_waiters(all);
    alone.step(vec![Input::Propose { call: 0, command: Command::LeaseRevoke { lease: all as LeaseId + 1 } }]);
    alone.run(100);
    assert!(alone.granted.iter().copied().eq(1..=all), "{} were told", alone.granted.len());
}

#[test]
#[ignore = "prints figures"]
fn waiters_for_a_semaphore() {
    for all in numbers(&[1000, 10_000, 99_999]) {
        let mut alone = with_waiters(all);
        let began = on_cpu();
        alone.step(vec![Input::Propose { call: 0, command: Command::LeaseRevoke { lease: all as LeaseId + 1 } }]);
        alone.run(100);
        assert_eq!(alone.granted.len() as u64, all);
        let (took, (longest, steps)) = (on_cpu() - began, alone.take_longest());
        println!("{all:7} slots granted after one release: {took:9.1?} in {steps} steps, longest {longest:9.1?}");
    }
}

fn machine_with_leases(all: u64, ttl_ms: u64) -> Machine {
    let mut machine = Machine::new();
    machine.skip(1, FIRST_TERM);
    for number in 1..=all {
        let grant = LeaseGrant { lease: number as LeaseId, ttl_ms, client: Bytes::new() };
        let envelope = Envelope { wall_ms: 0, origin: None, command: Command::LeaseGrant(grant) };
        let _ = machine.apply(1 + number, FIRST_TERM, &envelope);
    }
    machine
}

/// A new leader looks at its leases in parts. One that it has not looked at is there with all of its time, can be
/// renewed, and ends when it must.
#[test]
fn leases_that_a_new_leader_has_not_looked_at() {
    let mut alone = Alone::boot(machine_with_leases(10_000, 3000), level::LOWEST);
    assert_eq!(alone.replica.wake_ms(), alone.now_ms + 1, "there is more to look at");
    let leases = |alone: &Alone| alone.replica.status().leases;
    alone.step(vec![
        Input::Read { call: 1, read: Read::LeaseTimeToLive(10_000), consistency: Consistency::Linearizable },
        Input::KeepAlive { call: 2, lease: 9999, epoch: 0 },
    ]);
    let margin_ms = 2 * config(1).election_max_ms;
    let status = LeaseStatus { lease: 10_000, ttl_ms: 3000, remaining_ms: 3000 + margin_ms, renewed: true };
    assert_eq!(alone.statuses, [Some(status)]);
    assert_eq!(alone.replica.wake_ms(), alone.now_ms + 1, "there is more to look at");
    alone.run(2990);
    assert_eq!(leases(&alone), 10_000);
    alone.run(20);
    assert_eq!(leases(&alone), 9999, "the one that was renewed has the time of a renewal, and no more");
    alone.run(margin_ms - 20);
    assert_eq!(leases(&alone), 9999);
    alone.run(1000);
    assert_eq!(leases(&alone), 0);
}

#[test]
#[ignore = "prints figures"]
fn leading_with_many_leases() {
    for all in numbers(&[1000, 10_000, 100_000, 1_000_000]) {
        let mut alone = Alone::boot(machine_with_leases(all, 60_000), level::LOWEST);
        assert_eq!(alone.replica.status().leader, 1);
        let (first, _) = alone.take_longest();
        alone.run(1900);
        let (longest, steps) = alone.take_longest();
        println!("{all:8} leases: leads after {first:9.1?}; longest of the next {steps} steps {longest:9.1?}");
    }
}
