//! States that differ: noticed, named, not served, and replaced.

mod harness;
mod members;

use bytes::Bytes;
use harness::{Disk, Snapshot};
use members::{Asked, Cluster};
use tenure_machine::{Alarm, AlarmKind, Command, Envelope, Machine, MemberId, Put};
use tenure_replica::{Config, FIRST_INDEX, FIRST_TERM, Failure, Input, SaveSnapshot};

fn put(key: &'static str) -> Command {
    let (key, value) = (Bytes::from(key), Bytes::from("value"));
    Command::Put(Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false })
}

fn config() -> Config {
    Config { compare_interval_ms: 1_000, ..Config::default() }
}

/// A disk like those of the other members, but for one key.
fn different_disk(voters: &[MemberId]) -> Disk {
    let mut disk = Disk::new(voters, &[]);
    let mut machine = Machine::new();
    machine.apply(FIRST_INDEX, FIRST_TERM, &Envelope { wall_ms: 0, origin: None, command: put("only here") });
    let (index, term, configuration, view) = (FIRST_INDEX, FIRST_TERM, disk.configuration(), machine.view());
    disk.snapshot = Some(Snapshot::of(SaveSnapshot { index, term, configuration, view }));
    disk
}

/// Members of which one has a key that the others do not have.
fn with_different(seed: u64, voters: &[MemberId], different: MemberId) -> Cluster {
    let mut cluster = Cluster::of(seed, config(), &[], &[]);
    for member in voters {
        let is_different = *member == different;
        cluster.start(*member, if is_different { different_disk(voters) } else { Disk::new(voters, &[]) });
    }
    cluster.may_differ = Some(different);
    cluster
}

fn corrupt_members(cluster: &Cluster, member: MemberId) -> Vec<MemberId> {
    let alarms = cluster.hosts[&member].replica.machine().state().alarms();
    alarms.into_iter().filter(|alarm| alarm.kind == AlarmKind::Corrupt).map(|alarm| alarm.member).collect()
}

#[test]
fn equal_states_raise_no_alarm() {
    let mut cluster = Cluster::new(1, config());
    let leader = cluster.wait_for_leader();
    for _ in 0..10 {
        cluster.put(leader);
        cluster.run(500);
    }
    assert!([1, 2, 3].iter().all(|member| corrupt_members(&cluster, *member).is_empty()));
}

/// A leader that could not append its comparison kept it, and forwarded it to the next leader, where it was taken for
/// the next leader's own: hashes of two indexes were compared.
#[test]
fn a_comparison_that_was_forwarded_is_not_taken_for_the_leaders_own() {
    let mut cluster = Cluster::new(1, config());
    let leader = cluster.wait_for_leader();
    let follower = if leader == 1 { 2 } else { 1 };
    for _ in 0..1_000 {
        cluster.put(leader);
        cluster.propose(follower, Asked::Other, Command::CompareStates);
        cluster.run(3);
        assert!([1, 2, 3].iter().all(|member| corrupt_members(&cluster, *member).is_empty()));
    }
}

#[test]
fn a_member_that_differs_is_named_and_serves_nothing_until_it_is_reseeded() {
    for seed in 2..6 {
        for different in [1, 2, 3] {
            let mut cluster = with_different(seed, &[1, 2, 3], different);
            cluster.run_until("it is named", |cluster| {
                [1, 2, 3].iter().all(|member| corrupt_members(cluster, *member) == [different])
            });
            // Somebody else leads, and writes go on.
            cluster
                .run_until("another one leads", |cluster| cluster.leader().is_some_and(|leader| leader != different));
            let leader = cluster.wait_for_leader();
            let others = cluster.put(leader);
            let asked = [cluster.get(different), cluster.put(different), cluster.lock(different, 7)];
            let kept = cluster.keep_alive(different, 7);
            cluster.run(500);
            assert_eq!(cluster.outcomes[&others], None);
            for call in asked.into_iter().chain([kept]) {
                assert_eq!(cluster.outcomes[&call], Some(Failure::Corrupt), "seed {seed}");
            }
            let reseed = cluster.ask(different, Asked::Other, |call| Input::Reseed { call });
            cluster.run_until("it has another state", |cluster| cluster.outcomes.contains_key(&reseed));
            assert_eq!(cluster.outcomes[&reseed], None);
            cluster.run_until("the alarm is cleared", |cluster| {
                [1, 2, 3].iter().all(|member| corrupt_members(cluster, *member).is_empty())
            });
            // From here on it is compared with the others by the tests, too.
            cluster.may_differ = None;
            let read = cluster.get(different);
            cluster.put(different);
            cluster.run(500);
            assert_eq!(cluster.outcomes[&read], None);
        }
    }
}

#[test]
fn without_a_majority_nothing_is_written() {
    let mut cluster = with_different(7, &[1, 2], 2);
    cluster.run_until("all are suspected", |cluster| corrupt_members(cluster, 1) == [0]);
    let leader = cluster.wait_for_leader();
    let refused = cluster.put(leader);
    cluster.run(300);
    assert!(matches!(cluster.outcomes[&refused], Some(Failure::Refused(_))));
    let alarm = Alarm { member: 0, kind: AlarmKind::Corrupt };
    assert!(cluster.hosts[&1].replica.machine().state().alarms().contains(&alarm));
}

#[test]
fn a_leader_is_not_reseeded() {
    let mut cluster = Cluster::new(8, config());
    let leader = cluster.wait_for_leader();
    let call = cluster.ask(leader, Asked::Other, |call| Input::Reseed { call });
    cluster.run(50);
    assert_eq!(cluster.outcomes[&call], Some(Failure::Leading));
}

/// A leader can write a snapshot only of what is committed. Members that ask for one answer no append, so they must not
/// ask while the leader needs their answers.
#[test]
fn all_followers_may_be_reseeded_at_once_under_load() {
    for seed in 9..15 {
        let mut cluster = Cluster::new(seed, config());
        let leader = cluster.wait_for_leader();
        let followers: Vec<MemberId> = [1, 2, 3].into_iter().filter(|member| *member != leader).collect();
        let mut calls = Vec::new();
        for round in 0..40 {
            cluster.put(leader);
            if round == 20 {
                let reseed = |member: &MemberId| cluster.ask(*member, Asked::Other, |call| Input::Reseed { call });
                calls = followers.iter().map(reseed).collect();
            }
            cluster.run(1);
        }
        cluster.run_until("they have the leader's state", |cluster| {
            calls.iter().all(|call| cluster.outcomes.contains_key(call))
        });
        assert!(calls.iter().all(|call| cluster.outcomes[call].is_none()), "seed {seed}");
        let put = cluster.put(leader);
        cluster.run(500);
        assert_eq!(cluster.outcomes[&put], None, "seed {seed}");
    }
}

/// The snapshot that a reseeded member takes may go no further than what it had acknowledged before. The leader must not
/// wait for news of it: of two members both are needed.
#[test]
fn a_leader_goes_on_with_a_member_that_was_reseeded() {
    for seed in 20..26 {
        let mut cluster = Cluster::of(seed, config(), &[1, 2], &[]);
        let leader = cluster.wait_for_leader();
        cluster.put(leader);
        cluster.run(2_000);
        let reseed = cluster.ask(3 - leader, Asked::Other, |call| Input::Reseed { call });
        cluster.run_until("it has the leader's state", |cluster| cluster.outcomes.contains_key(&reseed));
        assert_eq!(cluster.outcomes[&reseed], None);
        let put = cluster.put(leader);
        cluster.run(500);
        assert_eq!(cluster.outcomes.get(&put), Some(&None), "seed {seed}");
    }
}
