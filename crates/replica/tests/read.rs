//! Reads at members that do not lead, and at learners.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use harness::config;
use members::{Cluster, MEMBERS};
use tenure_machine::{LeaseId, MemberId, lock};
use tenure_replica::{Config, Failure};

const LEARNER: MemberId = 4;

fn small_config() -> Config {
    Config { election_min_ms: 100, election_max_ms: 200, heartbeat_ms: 20, call_timeout_ms: 1000, ..config(1) }
}

fn cluster(seed: u64) -> (Cluster, MemberId) {
    let mut cluster = Cluster::of(seed, small_config(), &MEMBERS, &[LEARNER]);
    let leader = cluster.wait_for_leader();
    cluster.run(100);
    (cluster, leader)
}

/// The harness checks each read against what was acknowledged before it.
#[test]
fn a_read_at_a_learner_that_lags_sees_what_was_acknowledged() {
    let (mut cluster, leader) = cluster(1);
    assert!(cluster.status(LEARNER).learner && !cluster.status(leader).learner);
    cluster.host(LEARNER).disk_pace_ms = 60;
    for _ in 0..20 {
        let put = cluster.put(leader);
        cluster.run_until("the put", |cluster| cluster.outcomes.contains_key(&put));
        let read = cluster.get(LEARNER);
        assert!(cluster.status(LEARNER).applied_index < cluster.status(leader).applied_index, "it lags");
        cluster.run_until("the read", |cluster| cluster.outcomes.contains_key(&read));
    }
    assert_eq!((cluster.counts.puts, cluster.counts.reads), (20, 20));
}

#[test]
fn a_read_is_asked_for_again_when_it_is_lost() {
    let (mut cluster, leader) = cluster(2);
    cluster.loss_percent = 30;
    for _ in 0..30 {
        cluster.put(leader);
        cluster.get(LEARNER);
        cluster.run(20);
    }
    cluster.run(800);
    assert!(cluster.counts.reads > 25, "{:?}", cluster.counts);
}

#[test]
fn a_read_goes_on_to_the_next_leader() {
    let (mut cluster, old) = cluster(3);
    cluster.isolate(old);
    let read = cluster.get(LEARNER);
    cluster.run_until("the read", |cluster| cluster.outcomes.contains_key(&read));
    assert_eq!((&cluster.outcomes[&read], cluster.counts.reads), (&None, 1));
    assert_ne!(cluster.leader(), Some(old));
}

#[test]
fn a_read_that_nobody_can_confirm_is_told_so() {
    let (mut cluster, leader) = cluster(4);
    for member in MEMBERS {
        cluster.isolate(member);
    }
    cluster.run(700);
    assert_eq!(cluster.leader(), None);
    let at_follower = cluster.get(leader);
    let at_learner = cluster.get(LEARNER);
    cluster.run(1100);
    assert_eq!(cluster.outcomes[&at_follower], Some(Failure::NoLeader));
    // A learner that hears nothing does not look for a leader; it only knows that it got no answer.
    assert!(cluster.outcomes[&at_learner].is_some());
}

/// That there is no leader means that nothing was done: whoever hears it may ask again.
#[test]
fn who_has_little_time_is_told_that_nobody_leads_unless_it_may_take_effect() {
    let (mut cluster, leader) = cluster(7);
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("three members");
    for member in MEMBERS {
        cluster.isolate(member);
    }
    // One stands in the log, the other was given to who led: both may yet be done.
    let appended = cluster.put(leader);
    let forwarded = cluster.put(follower);
    cluster.run_until("nobody leads", |cluster| {
        cluster.hosts.values().all(|host| host.replica.status().leader == 0 || host.replica.status().learner)
    });
    let (put, get) = (cluster.put(follower), cluster.get(follower));
    cluster.run(10);
    for (member, call) in [(leader, appended), (follower, forwarded), (follower, put), (follower, get)] {
        assert!(!cluster.outcomes.contains_key(&call));
        cluster.hurry(member, call);
    }
    cluster.run(10);
    let told = |call| cluster.outcomes.get(&call).cloned();
    assert_eq!((told(put), told(get)), (Some(Some(Failure::NoLeader)), Some(Some(Failure::NoLeader))));
    assert_eq!((told(appended), told(forwarded)), (None, None));
}

#[test]
fn who_has_little_time_waits_on_where_somebody_leads() {
    let (mut cluster, leader) = cluster(8);
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("three members");
    for member in [leader, follower, LEARNER] {
        for call in [cluster.put(member), cluster.get(member)] {
            cluster.hurry(member, call);
            cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
            assert_eq!(cluster.outcomes[&call], None);
        }
    }
}

#[test]
fn a_learner_has_everything_done_too() {
    let (mut cluster, leader) = cluster(5);
    cluster.put(LEARNER);
    cluster.mark(LEARNER);
    cluster.grant(LEARNER, 7);
    cluster.run(50);
    cluster.grant(leader, 8);
    cluster.run(50);
    cluster.lock(leader, 8);
    cluster.run(50);
    let waiting = cluster.lock(LEARNER, 7);
    cluster.keep_alive(LEARNER, 7);
    cluster.run(50);
    assert!(!cluster.outcomes.contains_key(&waiting));
    cluster.delete(LEARNER, lock::entry_key(b"job", 8 as LeaseId));
    cluster.run(50);
    assert_eq!((cluster.counts.puts, cluster.counts.kept_alive, cluster.counts.grants), (1, 1, 2));
    assert!(cluster.asked.is_empty());
    cluster.check_marks(leader);
}

/// Scenario 19: a member wakes from a stall and must not tell of a grant that has ended since.
#[test]
fn a_grant_that_ended_meanwhile_is_not_told() {
    let (mut cluster, leader) = cluster(6);
    cluster.grant(leader, 7);
    cluster.grant(leader, 8);
    cluster.run(50);
    cluster.lock(leader, 7);
    cluster.run(50);
    let waiting = cluster.lock(LEARNER, 8);
    cluster.run(50);
    // It applies up to the grant and hears nothing more; meanwhile the lock goes on to nobody.
    cluster.delete(leader, lock::entry_key(b"job", 7));
    cluster.run_until("the grant", |cluster| {
        let state = cluster.hosts[&LEARNER].replica.machine().state();
        state.lock_holders(b"job").first().is_some_and(|(key, _)| **key == *lock::entry_key(b"job", 8))
    });
    cluster.isolate(LEARNER);
    cluster.delete(leader, lock::entry_key(b"job", 8));
    cluster.run(100);
    let grants = cluster.counts.grants;
    cluster.heal();
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&waiting));
    assert!(matches!(cluster.outcomes[&waiting], Some(Failure::EntryEnded(_))), "{:?}", cluster.outcomes[&waiting]);
    assert_eq!(cluster.counts.grants, grants);
}
