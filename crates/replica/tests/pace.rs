//! Members that answer later than an election timeout, where every quorum needs them.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use harness::config;
use members::{Cluster, MEMBERS};
use tenure_machine::MemberId;
use tenure_replica::{Config, MemberChange};

const ELECTION_MAX_MS: u64 = 200;

fn small_config() -> Config {
    Config {
        election_min_ms: 100,
        election_max_ms: ELECTION_MAX_MS,
        heartbeat_ms: 30,
        call_timeout_ms: 4000,
        ..config(1)
    }
}

struct SlowQuorum {
    cluster: Cluster,
    /// The first leader, and those who are neither slow nor dead.
    quick: Vec<MemberId>,
    dead: Vec<MemberId>,
    /// A quorum needs it. It lacks entries, and is late in every step.
    slow: MemberId,
}

impl SlowQuorum {
    fn new(seed: u64, members: u64, late_ms: u64) -> SlowQuorum {
        let all: Vec<MemberId> = (1..=members).collect();
        let mut cluster = Cluster::of(seed, small_config(), &all, &[]);
        let leader = cluster.wait_for_leader();
        let mut quick = vec![leader];
        quick.extend(all.into_iter().filter(|member| *member != leader));
        let slow = quick.pop().expect("several members");
        let dead = quick.split_off(quick.len() - members as usize / 2);
        cluster.isolate(slow);
        for _ in 0..5 {
            cluster.put(leader);
        }
        cluster.run(50);
        assert_eq!(cluster.counts.puts, 5);
        cluster.cut.clear();
        dead.iter().for_each(|dead| cluster.isolate(*dead));
        cluster.host(slow).late_ms = late_ms;
        SlowQuorum { cluster, quick, dead, slow }
    }
}

#[test]
fn a_quorum_that_is_slower_than_an_election_timeout_elects_a_leader() {
    for (seed, late_ms) in [(1, 110), (2, 175), (3, 240), (4, 330)] {
        let SlowQuorum { mut cluster, quick, slow, .. } = SlowQuorum::new(seed, 3, late_ms);
        cluster.run(2000);
        let index = cluster.status(quick[0]).commit_index;
        cluster.run_until("a commit", |cluster| cluster.status(slow).applied_index > index);
        let (leads, term) = (cluster.leader(), cluster.status(quick[0]).term);
        cluster.run(5000);
        assert_eq!((cluster.leader(), cluster.status(quick[0]).term), (leads, term), "{late_ms} ms late: it leads on");
        let call = cluster.put(quick[0]);
        cluster.run_until("the put", |cluster| cluster.outcomes.contains_key(&call));
        assert_eq!(cluster.outcomes[&call], None);
    }
}

#[test]
fn candidates_that_compete_become_slow_enough_and_the_one_that_follows_hears_of_its_leader_in_time() {
    for (seed, late_ms) in [(30, 130), (31, 175), (32, 240), (33, 240), (34, 330)] {
        let SlowQuorum { mut cluster, quick, .. } = SlowQuorum::new(seed, 5, late_ms);
        cluster.run(15_000);
        let leader = cluster.leader().filter(|leader| quick.contains(leader));
        assert!(leader.is_some(), "seed {seed}");
        for _ in 0..3000 {
            cluster.run(1);
            quick.iter().for_each(|quick| assert_eq!(Some(cluster.status(*quick).leader), leader, "seed {seed}"));
        }
    }
}

#[test]
fn a_slow_quorum_removes_a_dead_member() {
    for seed in 10..20 {
        let SlowQuorum { mut cluster, quick, dead, slow } = SlowQuorum::new(seed, 3, 240);
        cluster.run(10_000 + seed * 31);
        let call = cluster.change(quick[0], MemberChange::Remove { id: dead[0], force: false });
        cluster.run_until("the removal", |cluster| cluster.outcomes.contains_key(&call));
        assert_eq!(cluster.outcomes[&call], None, "seed {seed}");
        cluster.run_until("all know", |cluster| cluster.status(slow).voters.len() == 2);
    }
}

#[test]
fn a_leader_whose_quorum_is_quick_again_steps_down_as_early_as_before() {
    let SlowQuorum { mut cluster, quick, slow, .. } = SlowQuorum::new(1, 3, 240);
    let leader = quick[0];
    cluster.run(10_000);
    assert_eq!(cluster.leader(), Some(leader));
    cluster.host(slow).late_ms = 0;
    cluster.run(10_000);
    assert_eq!(cluster.leader(), Some(leader));
    cluster.isolate(leader);
    cluster.run(ELECTION_MAX_MS + 10);
    assert_ne!(cluster.status(leader).leader, leader);
}

#[test]
fn members_that_hear_nothing_at_all_elect_as_soon_as_before_when_they_do() {
    let mut cluster = Cluster::new(5, small_config());
    cluster.wait_for_leader();
    MEMBERS.into_iter().for_each(|member| cluster.isolate(member));
    cluster.run(10_000);
    assert_eq!(cluster.leader(), None);
    cluster.heal();
    cluster.run(2 * ELECTION_MAX_MS);
    assert!(cluster.leader().is_some());
}
