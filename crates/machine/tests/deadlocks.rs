//! Circles of owners: found whatever stands around them, and at a cost that does not grow with the queues.
#![allow(clippy::disallowed_types)]

use bytes::Bytes;
use tenure_machine::*;

struct Driver {
    machine: Machine,
    index: u64,
    lease: LeaseId,
}

impl Driver {
    fn at_level(level: Level) -> Driver {
        let mut driver = Driver { machine: Machine::new(), index: 0, lease: 0 };
        driver.apply(Command::RaiseLevel { level }).expect("a level");
        driver
    }

    fn apply(&mut self, command: Command) -> Result<Reply, Refusal> {
        self.index += 1;
        self.machine.apply(self.index, 1, &Envelope { wall_ms: self.index, origin: None, command }).reply
    }

    /// With a lease of its own.
    fn lock(&mut self, names: &str, mode: Mode, owner: &str) -> Result<Reply, Refusal> {
        self.lease += 1;
        let grant = LeaseGrant { lease: self.lease, ttl_ms: 1000, client: Bytes::new() };
        self.apply(Command::LeaseGrant(grant)).expect("a new lease");
        let mut names: Vec<Bytes> = names.split('+').map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
        let (name, owner) = (names.remove(0), Bytes::copy_from_slice(owner.as_bytes()));
        let lock = Lock { name, more_names: names, lease: self.lease, mode, owner, call: 1, ..Lock::default() };
        self.apply(Command::Lock(Box::new(lock)))
    }

    fn take(&mut self, names: &str, mode: Mode, owner: &str, is_granted: bool) {
        match self.lock(names, mode, owner) {
            Ok(Reply::Lock(reply)) => assert_eq!(reply.granted, is_granted, "{owner} asks for {names}"),
            other => panic!("{owner} asks for {names}: {other:?}"),
        }
    }

    fn refused(&mut self, names: &str, mode: Mode, owner: &str) -> String {
        match self.lock(names, mode, owner) {
            Err(Refusal::Deadlock { cycle }) => cycle,
            other => panic!("{owner} asks for {names}: {other:?}"),
        }
    }
}

use Mode::{Barrier, Exclusive, Shared, Slots};

#[test]
fn two_owners_behind_a_crowd_are_found() {
    let mut driver = Driver::at_level(1);
    driver.take("a", Exclusive, "ada", true);
    driver.take("b", Exclusive, "bob", true);
    for number in 0..2 * limits::DEADLOCK_STEPS {
        driver.take("a", Exclusive, &format!("other-{number}"), false);
    }
    driver.take("a", Exclusive, "bob", false);
    let cycle = driver.refused("b", Exclusive, "ada");
    assert_eq!(cycle, "ada waits for b behind bob, bob waits for a behind ada");
}

#[test]
fn what_the_earlier_search_missed_is_found() {
    for level in [0, 1] {
        let mut driver = Driver::at_level(level);
        for number in 0..limits::DEADLOCK_STEPS {
            driver.take("a", Exclusive, "", number == 0);
        }
        driver.take("a", Exclusive, "bob", false);
        driver.take("b", Exclusive, "ada", true);
        driver.take("b", Exclusive, "bob", false);
        // Bob stands before ada in a, behind the crowd, and waits for ada in b.
        let found = driver.lock("a", Exclusive, "ada");
        match level {
            0 => assert!(found.is_ok(), "the search was cut short and said nothing"),
            _ => assert!(matches!(found, Err(Refusal::Deadlock { .. })), "{found:?}"),
        }
    }
}

#[test]
fn circles_lead_through_readers_and_writers() {
    let mut driver = Driver::at_level(1);
    driver.take("a", Shared, "ada", true);
    driver.take("b", Exclusive, "bob", true);
    driver.take("a", Exclusive, "carl", false);
    // Behind the writer, not behind the reader: but the writer waits for that.
    driver.take("a", Shared, "bob", false);
    let cycle = driver.refused("b", Shared, "ada");
    assert_eq!(cycle, "ada waits for b behind bob, bob waits for a behind ada");
    // Readers do not wait for readers.
    driver.take("c", Shared, "ada", true);
    driver.take("c", Shared, "bob", true);
}

#[test]
fn circles_lead_through_several_names_and_barriers_and_one_slot() {
    let mut driver = Driver::at_level(1);
    driver.take("a", Exclusive, "ada", true);
    driver.take("b", Exclusive, "bob", true);
    driver.take("x+a", Exclusive, "bob", false);
    assert!(driver.refused("y+b", Exclusive, "ada").ends_with("bob waits for a behind ada"));
    // A round that is through holds up the next.
    driver.take("m", Barrier(1), "carl", true);
    driver.take("c", Exclusive, "dora", true);
    driver.take("m", Barrier(1), "dora", false);
    driver.refused("c", Exclusive, "carl");
    // One slot is a lock.
    driver.take("s", Slots(1), "emil", true);
    driver.take("e", Exclusive, "fay", true);
    driver.take("s", Slots(1), "fay", false);
    driver.refused("e", Exclusive, "emil");
}

/// A waiter for one of several slots waits for any one of the holders: this is documented, and not searched.
#[test]
fn several_slots_are_not_searched() {
    let mut driver = Driver::at_level(1);
    driver.take("s", Slots(2), "ada", true);
    driver.take("s", Slots(2), "bob", true);
    driver.take("c", Exclusive, "carl", true);
    driver.take("s", Slots(2), "carl", false);
    driver.take("c", Exclusive, "ada", false);
    driver.take("c", Exclusive, "bob", false);
}

#[test]
fn a_search_that_would_take_too_long_refuses() {
    let mut driver = Driver::at_level(1);
    let readers = limits::DEADLOCK_SEARCH + 1;
    for number in 0..readers {
        driver.take("a", Shared, &format!("reader-{number}"), true);
    }
    driver.take("b", Exclusive, "ada", true);
    // Nobody waits for ada: no search is needed.
    driver.take("a", Exclusive, "ada", false);
    driver.take("c", Exclusive, "bob", true);
    driver.take("c", Exclusive, "carl", false);
    // The readers are more than the limit.
    assert_eq!(driver.lock("a", Exclusive, "bob"), Err(Refusal::DeadlockUnknown));
    assert!(driver.lock("a", Exclusive, "dora").is_ok());
}

/// What is counted is the same in a member that restored the state.
#[test]
fn a_restored_member_decides_alike() {
    let mut driver = Driver::at_level(1);
    driver.take("a", Exclusive, "ada", true);
    driver.take("b", Exclusive, "bob", true);
    driver.take("a+c", Exclusive, "carl", false);
    driver.take("b+d", Exclusive, "carl", false);
    driver.take("d", Exclusive, "dora", false);
    let mut restore = snapshot::Restore::new();
    for chunk in snapshot::chunks(driver.machine.view(), 100) {
        restore.chunk(&chunk).expect("a good chunk");
    }
    let mut restored = Driver { machine: restore.finish().expect("a whole snapshot"), ..driver };
    assert!(restored.refused("a", Exclusive, "carl").contains("carl waits"));
    assert!(restored.refused("d", Exclusive, "bob").ends_with("carl waits for b behind bob"));
    assert!(restored.lock("d", Exclusive, "emil").is_ok());
}
