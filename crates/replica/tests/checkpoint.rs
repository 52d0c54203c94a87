//! Long leases, and leaders that come and go.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use bytes::Bytes;
use harness::config;
use members::{Asked, Cluster, MEMBERS};
use tenure_machine::*;
use tenure_replica::{Config, Consistency, Input, Read};

/// Just long enough to be noted once.
const TTL_MS: u64 = 302_000;
/// And twice.
const LONGER_MS: u64 = 12 * 60 * 1000;

fn small_config() -> Config {
    let (election_min_ms, election_max_ms) = (100, 200);
    // Nothing but leases writes to the log here.
    let compare_interval_ms = 0;
    Config {
        election_min_ms,
        election_max_ms,
        heartbeat_ms: 20,
        call_timeout_ms: 2000,
        compare_interval_ms,
        ..config(1)
    }
}

/// A cluster with a long lease, its leader, and one that follows.
fn cluster(seed: u64, ttl_ms: u64) -> (Cluster, MemberId, MemberId) {
    let mut cluster = Cluster::new(seed, small_config());
    let leader = cluster.wait_for_leader();
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    let grant = LeaseGrant { lease: 7, ttl_ms, client: Bytes::new() };
    cluster.propose(follower, Asked::Other, Command::LeaseGrant(grant));
    cluster.run(100);
    (cluster, leader, follower)
}

fn noted_ms(cluster: &Cluster, member: MemberId) -> u64 {
    cluster.hosts[&member].replica.machine().state().lease_left_ms(7).expect("the lease is there")
}

fn left_ms(cluster: &mut Cluster) -> u64 {
    let leader = cluster.wait_for_leader();
    let read = Read::LeaseTimes(vec![7]);
    let call =
        cluster.ask(leader, Asked::Other, |call| Input::Read { call, read, consistency: Consistency::Linearizable });
    cluster.run_until("the answer", |cluster| cluster.lease_times.contains_key(&call));
    cluster.lease_times[&call][0].expect("the lease is there").remaining_ms
}

fn depose(cluster: &mut Cluster) {
    let old = cluster.wait_for_leader();
    cluster.isolate(old);
    cluster.run_until("another leads", |cluster| cluster.leader().is_some_and(|leader| leader != old));
    cluster.wait_for_leader();
    cluster.heal();
    cluster.run(300);
}

#[test]
fn a_new_leader_does_not_give_a_long_lease_all_of_its_time() {
    let (mut cluster, leader, _) = cluster(1, LONGER_MS);
    cluster.run(LONGER_MS / 2 + 1000);
    assert!(MEMBERS.into_iter().all(|member| noted_ms(&cluster, member) <= LONGER_MS / 2), "noted everywhere");
    depose(&mut cluster);
    assert_ne!(cluster.leader(), Some(leader));
    let left = left_ms(&mut cluster);
    assert!(left <= LONGER_MS / 2 + 400, "{left}");
    // And again: what is left now goes on to shrink from leader to leader.
    cluster.run(LONGER_MS / 4 + 2000);
    depose(&mut cluster);
    let left = left_ms(&mut cluster);
    assert!(left <= LONGER_MS / 4 + 1000, "{left}");
}

/// A renewal promises all of the time, whoever leads then.
#[test]
fn a_renewal_clears_what_was_noted_before_it_is_answered() {
    let (mut cluster, leader, follower) = cluster(2, TTL_MS);
    cluster.run(TTL_MS / 2 + 1000);
    // Nothing is committed, so that nothing can be promised.
    let others: Vec<_> = MEMBERS.into_iter().filter(|member| *member != leader).collect();
    for other in &others {
        cluster.host(*other).disk_pace_ms = 90;
    }
    let calls = [cluster.keep_alive(follower, 7), cluster.keep_alive(leader, 7)];
    cluster.run_until("answers", |cluster| {
        let answered = calls.iter().any(|call| cluster.outcomes.contains_key(call));
        assert!(!answered || noted_ms(cluster, leader) == TTL_MS);
        calls.iter().all(|call| cluster.outcomes.contains_key(call))
    });
    assert_eq!(cluster.counts.kept_alive, 2);
    depose(&mut cluster);
    let left = left_ms(&mut cluster);
    assert!(left > TTL_MS - 2000, "{left}");
}

/// A renewal that comes while what is left is being noted, or just before.
#[test]
fn a_renewal_and_a_note_cross() {
    let (mut first, leader, _) = cluster(10, TTL_MS);
    let before = first.status(leader).last_index;
    first.run(TTL_MS / 2 - 1000);
    first.run_until("it is being noted", |cluster| cluster.status(leader).last_index > before);
    let noting_ms = first.now_ms;
    for early_ms in 8..20 {
        let (mut cluster, leader, follower) = cluster(10, TTL_MS);
        cluster.run(noting_ms - early_ms - cluster.now_ms);
        let call = cluster.keep_alive(follower, 7);
        cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
        cluster.run(500);
        assert_eq!((cluster.counts.kept_alive, noted_ms(&cluster, leader)), (1, TTL_MS), "{early_ms} ms before");
    }
}

/// A leader that is cut off notes nothing that counts.
#[test]
fn a_deposed_leader_notes_nothing() {
    let (mut cluster, old, follower) = cluster(3, TTL_MS);
    cluster.run(TTL_MS / 2 - 300);
    cluster.isolate(old);
    cluster.run(1000);
    let leader = cluster.wait_for_leader();
    assert_ne!(leader, old);
    let call = cluster.keep_alive(follower, 7);
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
    cluster.heal();
    cluster.run(2000);
    assert!(MEMBERS.into_iter().all(|member| noted_ms(&cluster, member) == TTL_MS));
}

/// Who renews in time never pays for it.
#[test]
fn a_lease_that_is_renewed_is_not_noted() {
    let (mut cluster, leader, follower) = cluster(4, TTL_MS);
    let before = cluster.status(leader).last_index;
    for _ in 0..4 {
        cluster.run(TTL_MS / 3);
        cluster.keep_alive(follower, 7);
    }
    cluster.run(100);
    assert_eq!((cluster.counts.kept_alive, cluster.status(leader).last_index), (4, before));
}
