//! Requests for several locks at once, whose places do not all end in the same way.

mod harness;
mod members;

use bytes::Bytes;
use members::{Asked, Cluster};
use tenure_machine::{Command, Lock, MemberId, lock::entry_key};
use tenure_replica::{CallId, Config, Failure, Input};

/// What the next call asks for.
fn lock_of(cluster: &Cluster, lease: i64, name: &'static str) -> Lock {
    Lock { name: name.into(), lease, call: u128::from(cluster.next_call), ..Lock::default() }
}

fn lock(cluster: &mut Cluster, member: MemberId, lease: i64, names: &[&'static str]) -> CallId {
    let more_names = names[1..].iter().map(|name| Bytes::from(*name)).collect();
    let lock = Lock { more_names, ..lock_of(cluster, lease, names[0]) };
    cluster.ask(member, Asked::Other, |call| Input::Lock { call, lock: Box::new(lock) })
}

/// A request waits for three locks. A later call of the same lease asks for one of them again and is its last joiner from
/// then on. When the request fails, its other places must not stay behind.
#[test]
fn all_places_of_a_failed_request_are_left() {
    let mut cluster = Cluster::new(31, Config::default());
    let leader = cluster.wait_for_leader();
    let follower = if leader == 1 { 2 } else { 1 };
    cluster.grant(leader, 7);
    cluster.grant(leader, 8);
    cluster.run(100);
    // Another lease holds two of them.
    lock(&mut cluster, leader, 8, &["b", "c"]);
    cluster.run(50);
    let waiting = lock(&mut cluster, follower, 7, &["a", "b", "c"]);
    cluster.run(50);
    let again = lock(&mut cluster, follower, 7, &["b"]);
    cluster.run(50);
    let token = cluster.hosts[&leader].replica.machine().state().lock_holders(b"a")[0].1;
    let (name, force) = (Bytes::from("a"), Asked::Other);
    cluster.propose(leader, force, Command::ForceRelease { name, token });
    cluster.run(100);
    assert!(matches!(cluster.outcomes[&waiting], Some(Failure::EntryEnded(_))));
    let stands =
        |name: &[u8]| cluster.hosts[&leader].replica.machine().state().lock_entry(&entry_key(name, 7)).is_some();
    assert!(stands(b"b"), "the later call still waits for it");
    assert!(!stands(b"c"), "nothing waits for it any more");
    assert!(!cluster.outcomes.contains_key(&again));
}

/// The grant of a request for several locks is never read, and a later call of the same lease has the first of them, or it
/// is gone. The others must not stay behind.
#[test]
fn all_places_of_a_grant_that_is_not_read_are_left() {
    for is_gone in [false, true] {
        let mut cluster = Cluster::new(32, Config::default());
        let leader = cluster.wait_for_leader();
        cluster.grant(leader, 7);
        cluster.run(100);
        let places = Lock { more_names: vec!["b".into(), "c".into()], ..lock_of(&cluster, 7, "a") };
        let leaves = places.leaves();
        let granted = cluster.ask(leader, Asked::Other, |call| Input::Lock { call, lock: Box::new(places) });
        cluster.run(50);
        assert!(cluster.outcomes[&granted].is_none());
        if is_gone {
            cluster.delete(leader, entry_key(b"a", 7));
        } else {
            lock(&mut cluster, leader, 7, &["a"]);
        }
        cluster.run(50);
        cluster.host(leader).inputs.push(Input::CancelLock { call: granted, leaves });
        cluster.run(100);
        let stands =
            |name: &[u8]| cluster.hosts[&leader].replica.machine().state().lock_entry(&entry_key(name, 7)).is_some();
        assert_eq!(stands(b"a"), !is_gone, "the later call holds it");
        assert!(!stands(b"b") && !stands(b"c"), "nobody holds them");
    }
}

/// A request for two locks waits at a member that stops, and an operator takes one of the places away. Asking for both
/// again leaves the other one.
#[test]
fn what_is_left_of_a_request_is_left_when_it_is_made_again() {
    let mut cluster = Cluster::new(33, Config::default());
    let leader = cluster.wait_for_leader();
    let follower = if leader == 1 { 2 } else { 1 };
    cluster.run_until("level 1", |cluster| cluster.hosts[&leader].replica.machine().state().level() == 1);
    cluster.grant(leader, 7);
    cluster.grant(leader, 8);
    cluster.run(100);
    lock(&mut cluster, leader, 8, &["b"]);
    cluster.run(50);
    lock(&mut cluster, follower, 7, &["a", "b"]);
    cluster.run(50);
    cluster.stop(follower);
    cluster.delete(leader, entry_key(b"a", 7));
    cluster.run(50);
    let again = lock(&mut cluster, leader, 7, &["a", "b"]);
    cluster.run(50);
    assert!(matches!(cluster.outcomes[&again], Some(Failure::EntryEnded(_))), "{:?}", cluster.outcomes[&again]);
    assert_eq!(cluster.hosts[&leader].replica.machine().state().lock_counts(b"b"), (1, 1), "lease 8 holds it alone");
}
