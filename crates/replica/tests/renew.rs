//! Leases of clients at members that do not lead.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use harness::config;
use members::{Asked, Cluster, MEMBERS, TTL_MS};
use tenure_machine::*;
use tenure_replica::{Config, Consistency, Failure, Input, Read};

/// The kind of message that carries a leader's answers.
const ANSWERS: u8 = 6;

fn small_config() -> Config {
    Config { election_min_ms: 100, election_max_ms: 200, heartbeat_ms: 20, call_timeout_ms: 1000, ..config(1) }
}

/// A cluster with lease 7, its leader and one that follows.
fn cluster(seed: u64) -> (Cluster, MemberId, MemberId) {
    cluster_with(seed, &[])
}

fn cluster_with(seed: u64, learners: &[MemberId]) -> (Cluster, MemberId, MemberId) {
    cluster_at(0, seed, learners)
}

/// A cluster whose members support this feature level and no later one.
fn cluster_at(level: Level, seed: u64, learners: &[MemberId]) -> (Cluster, MemberId, MemberId) {
    let mut cluster = Cluster::of(seed, Config { highest_level: level, ..small_config() }, &MEMBERS, learners);
    let leader = cluster.wait_for_leader();
    cluster.run_until("the level is reached", |cluster| cluster.status(leader).level == level);
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    cluster.grant(follower, 7);
    cluster.run(50);
    (cluster, leader, follower)
}

fn has_lease(cluster: &Cluster, member: MemberId) -> bool {
    cluster.hosts[&member].replica.machine().state().lease_ttl_ms(7).is_some()
}

#[test]
fn a_renewal_at_a_follower_keeps_the_lease() {
    let (mut cluster, leader, follower) = cluster(1);
    for _ in 0..10 {
        cluster.keep_alive(follower, 7);
        cluster.run(TTL_MS / 2);
        assert!(has_lease(&cluster, leader));
    }
    assert_eq!(cluster.counts.kept_alive, 10);
    cluster.run(TTL_MS + 100);
    assert!(!has_lease(&cluster, leader));
    let call = cluster.keep_alive(follower, 7);
    cluster.run(50);
    assert_eq!((cluster.outcomes.get(&call), cluster.counts.kept_alive), (Some(&None), 10), "told that it is gone");
}

/// Locks again with lease 7 for as long as three times its TTL, then says whether the lease lives.
fn lives_by_locking_again(level: Level, seed: u64) -> bool {
    let (mut cluster, leader, follower) = cluster_at(level, seed, &[]);
    assert_eq!(cluster.status(leader).level, level);
    for _ in 0..6 {
        cluster.lock(follower, 7);
        cluster.run(TTL_MS / 2);
    }
    has_lease(&cluster, leader)
}

#[test]
fn locking_again_renews_the_lease_from_level_1_on() {
    assert!(!lives_by_locking_again(0, 11), "as in releases without levels");
    assert!(lives_by_locking_again(1, 11));
}

/// The lease's time is over while a Lock that renews it waits for a quorum. An expiry behind it in the log would end the
/// lease right after its client was told that it has all of its time.
#[test]
fn a_lease_does_not_expire_behind_a_lock_that_renews_it() {
    let mut renewed = 0;
    for seed in 0..20 {
        let (mut cluster, leader, _) = cluster_at(1, seed, &[]);
        cluster.lock(leader, 7);
        cluster.run(20);
        cluster.keep_alive(leader, 7);
        cluster.run(TTL_MS - 10);
        cluster.isolate(leader);
        let call = cluster.lock(leader, 7);
        cluster.run(60);
        cluster.heal();
        cluster.run(60);
        if cluster.status(leader).leader != leader {
            continue;
        }
        renewed += 1;
        assert_eq!(cluster.outcomes.get(&call), Some(&None), "seed {seed}: it is granted");
        cluster.run(TTL_MS / 2);
        assert!(has_lease(&cluster, leader), "seed {seed}");
        cluster.run(TTL_MS);
        assert!(!has_lease(&cluster, leader), "seed {seed}: it ends when it is not renewed");
    }
    assert!(renewed > 0, "no leader stays");
}

/// An expiry of many leases finds no room in what may be under way, and a Lock that renews one of them does.
#[test]
fn a_lease_does_not_expire_behind_a_lock_that_found_room_before_it() {
    let config = Config { highest_level: 1, inflight_bytes: 300, ..small_config() };
    let mut renewed = 0;
    for seed in 0..20 {
        let mut cluster = Cluster::of(seed, config.clone(), &MEMBERS, &[]);
        let leader = cluster.wait_for_leader();
        cluster.run_until("the level is reached", |cluster| cluster.status(leader).level == 1);
        let others = (1 << 40)..(1 << 40) + 40;
        for lease in others.clone().chain([7]) {
            cluster.grant(leader, lease);
            cluster.run(5);
        }
        cluster.lock(leader, 7);
        cluster.run(20);
        for lease in others.chain([7]) {
            cluster.keep_alive(leader, lease);
        }
        cluster.run(TTL_MS - 5);
        cluster.isolate(leader);
        let (key, value) = ("padding".into(), vec![7; 150].into());
        let padding = Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
        cluster.propose(leader, Asked::Other, Command::Put(padding));
        cluster.run(10);
        let call = cluster.lock(leader, 7);
        cluster.run(40);
        cluster.heal();
        cluster.run(60);
        if cluster.status(leader).leader != leader || cluster.outcomes.get(&call) != Some(&None) {
            continue;
        }
        renewed += 1;
        cluster.run(TTL_MS / 2);
        assert!(has_lease(&cluster, leader), "seed {seed}");
        cluster.run(TTL_MS);
        assert!(!has_lease(&cluster, leader), "seed {seed}: it ends when it is not renewed");
    }
    assert!(renewed > 0, "no leader stays");
}

#[test]
fn a_leader_deletes_all_keys_of_a_lease_with_very_many() {
    let (mut cluster, leader, follower) = cluster_at(1, 12, &[]);
    let keys = 2 * limits::LEASE_KEYS_AT_ONCE + 100;
    for first in (0..keys).step_by(limits::TXN_OPERATIONS) {
        let put = |number: usize| {
            let key = format!("of-the-lease/{number:06}").into();
            let value = bytes::Bytes::new();
            Op::Put(Put { key, value, lease: 7, prev_kv: false, ignore_value: false, ignore_lease: false })
        };
        let success = (first..keys.min(first + limits::TXN_OPERATIONS)).map(put).collect();
        cluster.propose(follower, Asked::Other, Command::Txn(Txn { success, ..Txn::default() }));
        cluster.keep_alive(follower, 7);
        cluster.run(10);
    }
    cluster.run(50);
    assert_eq!(cluster.hosts[&leader].replica.machine().state().lease_key_count(7), keys);
    cluster.run(TTL_MS + 500);
    for member in MEMBERS {
        let state = cluster.hosts[&member].replica.machine().state();
        assert_eq!((state.keys(), state.ending_leases().count()), (0, 0), "at member {member}");
    }
}

/// A leader that gives its place away proposes no `Continue` meanwhile. If it kept one, the next leader would take that
/// for its own and propose two at a time.
#[test]
fn a_leader_that_gives_its_place_away_leaves_the_rest_to_the_next() {
    limits::set_at_once(1, 1);
    let mut unfinished = 0;
    for seed in 0..20 {
        let (mut cluster, leader, follower) = cluster_at(1, seed, &[]);
        let put = |number: usize| {
            let (key, value) = (format!("of-the-lease/{number}").into(), bytes::Bytes::new());
            Op::Put(Put { key, value, lease: 7, prev_kv: false, ignore_value: false, ignore_lease: false })
        };
        let success = (0..20).map(put).collect();
        cluster.propose(leader, Asked::Other, Command::Txn(Txn { success, ..Txn::default() }));
        cluster.run(20);
        cluster.promised_ms.clear();
        cluster.propose(leader, Asked::Other, Command::LeaseRevoke { lease: 7 });
        cluster.run(1 + seed / 4);
        cluster.transfer(leader, Some(follower));
        cluster.run_until("another one leads", |cluster| cluster.leader() == Some(follower));
        unfinished += usize::from(cluster.hosts[&follower].replica.machine().state().has_unfinished());
        cluster.run(500);
        for member in MEMBERS {
            assert_eq!(cluster.hosts[&member].replica.machine().state().keys(), 0, "seed {seed}, member {member}");
        }
        let entries = cluster.hosts[&follower].disk.entries.iter().filter(|entry| !entry.data.is_empty());
        let envelopes = entries.filter_map(|entry| codec::decode(entry.data.clone()).ok());
        let continued: Vec<_> = envelopes.filter(|envelope| envelope.command == Command::Continue).collect();
        assert!(continued.iter().all(|envelope| envelope.origin.is_none()), "seed {seed}: {continued:?}");
        assert_eq!(continued.len(), 19, "seed {seed}");
    }
    assert!(unfinished > 0, "no leader gives its place away in time");
}

#[test]
fn what_is_left_of_a_lease_is_known_everywhere() {
    let (mut cluster, leader, _) = cluster(2);
    cluster.run(500);
    let calls = MEMBERS.map(|member| {
        let read = Read::LeaseTimes(vec![7, 8]);
        cluster.ask(member, Asked::Other, |call| Input::Read { call, read, consistency: Consistency::Linearizable })
    });
    cluster.run(50);
    for call in calls {
        let [Some(status), None] = cluster.lease_times[&call][..] else { panic!("{:?}", cluster.lease_times[&call]) };
        assert_eq!((status.lease, status.ttl_ms), (7, TTL_MS));
        assert!(status.remaining_ms < TTL_MS - 400 && status.remaining_ms > TTL_MS - 700, "{status:?}");
    }
    for member in MEMBERS {
        let read = Read::LeaseTimeToLive(7);
        cluster.ask(member, Asked::Other, |call| Input::Read { call, read, consistency: Consistency::Serializable });
    }
    cluster.run(50);
    assert!(cluster.asked.is_empty());
    assert!(cluster.outcomes.values().all(Option::is_none));
    assert!(has_lease(&cluster, leader));
}

#[test]
fn a_renewal_is_asked_for_again_when_it_is_lost() {
    let (mut cluster, _, follower) = cluster(3);
    cluster.loss_percent = 30;
    let calls: Vec<_> = (0..20)
        .map(|_| {
            cluster.run(20);
            cluster.keep_alive(follower, 7)
        })
        .collect();
    cluster.run(900);
    let answered = calls.iter().filter(|call| cluster.outcomes.get(call) == Some(&None)).count();
    assert!(answered > 15, "{answered}");
}

/// Scenario 2: a leader that is cut off from the others must promise nothing, to whomever it can still talk.
#[test]
fn a_deposed_leader_promises_nothing() {
    const LEARNER: MemberId = 4;
    let (mut cluster, old, _) = cluster_with(4, &[LEARNER]);
    for other in MEMBERS.into_iter().chain([LEARNER]).filter(|other| *other != old) {
        cluster.cut_raft.extend([(old, other), (other, old)]);
    }
    // A voter's question would be a vote for it, and true; a learner's is none.
    let call = cluster.keep_alive(LEARNER, 7);
    cluster.run_until("a new leader", |cluster| {
        assert!(!cluster.outcomes.contains_key(&call) || cluster.leader() != Some(old));
        cluster.leader().is_some_and(|leader| leader != old)
    });
    assert_eq!(cluster.counts.kept_alive, 0);
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
    assert_eq!((&cluster.outcomes[&call], cluster.counts.kept_alive), (&None, 1), "by the new leader");
}

/// Of three, a leader and one that asks it in its term are a majority: nobody else leads. Whoever leads next gives
/// the lease all of its time, which the harness checks.
#[test]
fn a_voters_question_confirms_the_leader() {
    let (mut cluster, old, follower) = cluster(7);
    for other in MEMBERS.into_iter().filter(|other| *other != old) {
        cluster.cut_raft.extend([(old, other), (other, old)]);
    }
    let call = cluster.keep_alive(follower, 7);
    cluster.run(20);
    assert_eq!((cluster.outcomes.get(&call), cluster.leader()), (Some(&None), Some(old)));
    cluster.run_until("a new leader", |cluster| cluster.leader().is_some_and(|leader| leader != old));
    let late = cluster.keep_alive(old, 7);
    cluster.run(400);
    assert_ne!(cluster.outcomes.get(&late), Some(&None), "it confirms nothing by itself");
}

#[test]
fn a_question_goes_on_to_the_next_leader() {
    let (mut cluster, old, follower) = cluster(5);
    cluster.isolate(old);
    let call = cluster.keep_alive(follower, 7);
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
    assert_eq!(cluster.outcomes[&call], None);
    assert_ne!(cluster.leader(), Some(old));
}

#[test]
fn without_a_leader_a_renewal_waits_and_is_told() {
    let (mut cluster, _, follower) = cluster(6);
    cluster.isolate(follower);
    cluster.run(500);
    let call = cluster.keep_alive(follower, 7);
    cluster.run(1100);
    assert_eq!(cluster.outcomes[&call], Some(Failure::NoLeader));
}

/// An answer belongs to the question whose number it names, of this process.
#[test]
fn a_late_answer_answers_nothing_else() {
    let (mut cluster, leader, follower) = cluster(7);
    cluster.copied = Some((leader, follower, ANSWERS));
    cluster.keep_alive(follower, 7);
    cluster.run(50);
    assert_eq!((cluster.counts.kept_alive, cluster.copies.len()), (1, 1));
    cluster.copied = None;
    cluster.restart(follower);
    cluster.cut.push((follower, leader));
    cluster.run(20);
    let call = cluster.keep_alive(follower, 7);
    cluster.deliver_copies();
    cluster.run(20);
    assert!(!cluster.outcomes.contains_key(&call));
}

#[test]
fn an_older_stream_of_a_session_renews_nothing() {
    let (mut cluster, _, follower) = cluster(8);
    cluster.propose(follower, Asked::Other, Command::ResumeSession { lease: 7 });
    cluster.run(50);
    let epochs =
        [1, 2].map(|epoch| cluster.ask(follower, Asked::Other, |call| Input::KeepAlive { call, lease: 7, epoch }));
    cluster.run(50);
    assert_eq!(cluster.outcomes[&epochs[0]], None);
    assert_eq!(cluster.outcomes[&epochs[1]], Some(Failure::Refused(Refusal::SessionResumed)));
}

/// Rule 4: a renewal that comes while the end of its lease is in flight waits for the outcome, wherever it was asked.
#[test]
fn a_renewal_waits_for_an_expiry_in_flight() {
    let (mut cluster, leader, follower) = cluster(9);
    cluster.run(TTL_MS - 60);
    // The others are slow to write, so that the expiry takes its time.
    for member in MEMBERS.into_iter().filter(|member| *member != leader) {
        cluster.host(member).disk_pace_ms = 80;
    }
    cluster.run_until("the expiry is proposed", |cluster| {
        cluster.status(leader).last_index > cluster.status(leader).commit_index
    });
    let call = cluster.keep_alive(follower, 7);
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
    assert_eq!((&cluster.outcomes[&call], cluster.counts.kept_alive), (&None, 0), "told that it is gone");
    assert!(!has_lease(&cluster, leader));
}
