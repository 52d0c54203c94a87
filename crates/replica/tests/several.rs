//! Requests for several locks at once, whose places do not all end in the same way.

mod harness;
mod members;

use bytes::Bytes;
use members::{Asked, Cluster};
use tenure_machine::{Command, Lock, MemberId, lock::entry_key};
use tenure_replica::{CallId, Config, Failure, Input};

fn lock(cluster: &mut Cluster, member: MemberId, lease: i64, names: &[&'static str]) -> CallId {
    let mut names = names.iter().map(|name| Bytes::from(*name));
    let (name, call) = (names.next().expect("at least one"), u128::from(cluster.next_call));
    let lock = Lock { name, lease, call, more_names: names.collect(), ..Lock::default() };
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
