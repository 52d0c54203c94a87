//! What the machine costs: time for each applied put, memory for each key, and a restore.
//!
//! `cargo run --release -p tenure-machine --example cost -- [keys] [value bytes]`, or `-- locks [cycles]`
//!
//! Prints, asserts nothing. Time is time on the processor, so that other load on the machine counts little. Memory is the process's resident set, with the system's allocator.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)]

use std::time::Duration;

use bytes::Bytes;
use tenure_machine::snapshot::{self, Restore};
use tenure_machine::{Command, Envelope, Keys, Lock, Machine, Put, RangeQuery, Txn};

fn main() {
    if std::env::args().nth(1).is_some_and(|argument| argument == "locks") {
        let cycles = std::env::args().nth(2).map(|argument| argument.parse().expect("a number"));
        return locks(cycles.unwrap_or(500_000));
    }
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().expect("a number"));
    let keys = arguments.next().unwrap_or(1_000_000);
    let value = Bytes::from(vec![b'v'; arguments.next().unwrap_or(256) as usize]);

    let mut driver = Driver { machine: Machine::new(), index: 0 };
    let before = resident_bytes();
    // In an order like that of real keys: neither sorted nor local.
    let key = |number: u64| Bytes::from(format!("key/{:016}", scatter(number) % 10_000_000_000_000_000));
    driver.measure("create", keys, |number| put(key(number), value.clone()));
    let resident = resident_bytes() - before;
    println!("{:>24}: {} bytes/key resident, all history kept", "memory", resident / keys);
    driver.measure("overwrite", keys.min(300_000), |number| put(key(number * 7 % keys), value.clone()));
    driver.measure("overwrite one hot key", 1_000_000, |_| put(key(1), value.clone()));

    let view = driver.machine.view();
    driver.measure("with one view held", 100_000, |number| put(key(number * 13 % keys), value.clone()));
    drop(view);
    let started = Processor::now();
    let mut held = driver.machine.view();
    for number in 0..20_000 {
        driver.apply(put(key(number * 17 % keys), value.clone()));
        held = driver.machine.view();
    }
    report("a view for each put", 20_000, started.elapsed());
    drop(held);

    let started = Processor::now();
    for number in 0..300_000 {
        driver.machine.state().range(&RangeQuery { ..one(key(number * 11 % keys)) }).expect("live");
    }
    report("get", 300_000, started.elapsed());
    let started = Processor::now();
    let hot = key(1);
    for number in 0..100_000i64 {
        let revision = keys as i64 + 400_000 + number * 7 % 800_000;
        driver.machine.state().range(&RangeQuery { revision, ..one(hot.clone()) }).expect("not compacted");
    }
    report("get at an old revision", 100_000, started.elapsed());

    driver.measure("txn of one put", 100_000, |number| {
        let Command::Put(put) = put(key(number), value.clone()) else { unreachable!() };
        Command::Txn(Txn { success: vec![tenure_machine::Op::Put(put)], ..Txn::default() })
    });

    let revision = driver.machine.state().revision();
    driver.apply(Command::Compact { revision });
    driver.measure("put while trimming", 80_000, |number| put(key(number * 19 % keys), value.clone()));
    let started = Processor::now();
    while driver.machine.trim(10_000) {}
    println!("{:>24}: {:?}", "rest of the trimming", started.elapsed());

    let started = Processor::now();
    let hash = driver.machine.state().hash();
    println!("{:>24}: {:?}", "hash", started.elapsed());
    let started = Processor::now();
    let chunks: Vec<_> = snapshot::chunks(driver.machine.view(), 1 << 20).collect();
    println!("{:>24}: {:?}", "snapshot", started.elapsed());
    let started = Processor::now();
    let mut restore = Restore::new();
    for chunk in &chunks {
        restore.chunk(chunk).expect("a good chunk");
    }
    let restored = restore.finish().expect("a whole snapshot");
    println!("{:>24}: {:?}", "restore", started.elapsed());
    assert_eq!(restored.state().hash(), hash);

    for lease in 1..=10_000 {
        driver.apply(Command::LeaseGrant(tenure_machine::LeaseGrant { lease, ttl_ms: 1000, client: Bytes::new() }));
    }
    driver.measure("join one long queue", 10_000, |number| lock("busy", number as i64 + 1));
    driver.measure("hand over", 10_000, |number| {
        let key = tenure_machine::lock::entry_key(b"busy", number as i64 + 1).into();
        Command::Delete(tenure_machine::Delete { keys: Keys::One(key), prev_kv: false })
    });
}

/// 64 sessions with eight locks each, taken and given back in turn.
fn locks(cycles: u64) {
    let mut driver = Driver { machine: Machine::new(), index: 0 };
    for lease in 1..=64 {
        driver.apply(Command::LeaseGrant(tenure_machine::LeaseGrant { lease, ttl_ms: 1000, client: Bytes::new() }));
    }
    let first = driver.machine.state().revision() + 1;
    driver.measure("lock, unlock", cycles * 2, |number| {
        // All eight of a session are taken before the first is given back.
        let (round, place) = (number / 1024, number % 1024);
        let name = Bytes::from(format!("bench/session/{:04}", place % 512));
        if place < 512 {
            let Command::Lock(lock) = lock("", place as i64 % 64 + 1) else { unreachable!() };
            return Command::Lock(Box::new(Lock { name, holder: Bytes::from_static(b"bench"), ..*lock }));
        }
        let token = first + (round * 1024 + place - 512) as i64;
        Command::Unlock(tenure_machine::Unlock { names: vec![name], token, epoch: 0 })
    });
}

struct Driver {
    machine: Machine,
    index: u64,
}

impl Driver {
    fn apply(&mut self, command: Command) {
        self.index += 1;
        let envelope = Envelope { wall_ms: self.index, origin: None, command };
        self.machine.apply(self.index, 1, &envelope).reply.expect("accepted");
    }

    /// Commands are made in small batches, so that making them counts neither as time nor as memory.
    fn measure(&mut self, what: &str, times: u64, command: impl Fn(u64) -> Command) {
        let mut elapsed = Duration::ZERO;
        for first in (0..times).step_by(1000) {
            let numbers = first..times.min(first + 1000);
            let batch: Vec<_> =
                numbers.map(|number| Envelope { wall_ms: number, origin: None, command: command(number) }).collect();
            let started = Processor::now();
            for envelope in &batch {
                self.index += 1;
                self.machine.apply(self.index, 1, envelope).reply.expect("accepted");
            }
            elapsed += started.elapsed();
        }
        report(what, times, elapsed);
    }
}

fn report(what: &str, times: u64, elapsed: Duration) {
    println!("{what:>24}: {} ns each", elapsed.as_nanos() as u64 / times);
}

fn put(key: Bytes, value: Bytes) -> Command {
    Command::Put(Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false })
}

fn lock(name: &str, lease: i64) -> Command {
    Command::Lock(Box::new(Lock {
        name: Bytes::copy_from_slice(name.as_bytes()),
        lease,
        call: lease as u128,
        ..Default::default()
    }))
}

fn one(key: Bytes) -> RangeQuery {
    RangeQuery::new(Keys::One(key))
}

fn scatter(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// A reading of the time that this thread has spent on a processor.
struct Processor(Duration);

impl Processor {
    fn now() -> Processor {
        let statistics = std::fs::read_to_string("/proc/self/schedstat").expect("a system with /proc");
        let nanoseconds = statistics.split(' ').next().and_then(|first| first.parse().ok()).expect("a number");
        Processor(Duration::from_nanos(nanoseconds))
    }

    fn elapsed(&self) -> Duration {
        Processor::now().0 - self.0
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("a system with /proc");
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4096
}
