//! The feature level: raised when all members support it, and not before.

mod harness;
mod members;

use members::{Asked, Cluster};
use tenure_machine::{Command, Level, MemberId, level};
use tenure_replica::{Config, Failure};

fn levels(cluster: &Cluster) -> Vec<Level> {
    cluster.members().into_iter().map(|member| cluster.status(member).level).collect()
}

fn of_releases(seed: u64, highest: [Level; 3]) -> Cluster {
    let mut cluster = Cluster::of(seed, Config::default(), &[], &[]);
    cluster.highest_level = (1..).zip(highest).collect();
    for member in [1, 2, 3] {
        cluster.start(member, harness::Disk::new(&[1, 2, 3], &[]));
    }
    cluster
}

#[test]
fn the_level_rises_when_all_members_support_it() {
    let mut cluster = Cluster::new(1, Config::default());
    cluster.run_until("the level rises everywhere", |cluster| levels(cluster) == [level::HIGHEST; 3]);
}

#[test]
fn one_member_of_an_earlier_release_holds_the_level() {
    let mut cluster = of_releases(2, [1, 1, 0]);
    cluster.wait_for_leader();
    cluster.run(5_000);
    assert_eq!(levels(&cluster), [0, 0, 0]);
    // The last one is upgraded.
    cluster.highest_level.insert(3, 1);
    cluster.restart(3);
    cluster.run_until("the level rises everywhere", |cluster| levels(cluster) == [1, 1, 1]);
    assert!(cluster.fatal.is_empty());
}

#[test]
fn a_member_that_cannot_be_reached_holds_the_level() {
    let mut cluster = of_releases(3, [1, 1, 1]);
    cluster.isolate(3);
    cluster.wait_for_leader();
    cluster.run(5_000);
    assert_eq!(levels(&cluster), [0, 0, 0], "nobody knows what the third one supports");
    cluster.heal();
    cluster.run_until("the level rises everywhere", |cluster| levels(cluster) == [1, 1, 1]);
}

#[test]
fn a_leader_of_an_earlier_release_raises_nothing() {
    for seed in 4..8 {
        let mut cluster = of_releases(seed, [0, 0, 0]);
        let leader = cluster.wait_for_leader();
        // The followers are upgraded; the leader is not.
        for member in cluster.members().into_iter().filter(|member| *member != leader) {
            cluster.highest_level.insert(member, 1);
            cluster.restart(member);
            cluster.run(300);
        }
        cluster.run(3_000);
        assert_eq!(levels(&cluster), [0, 0, 0]);
    }
}

#[test]
fn an_earlier_release_does_not_start_after_the_level_was_raised() {
    let mut cluster = of_releases(9, [1, 1, 1]);
    cluster.run_until("the level rises everywhere", |cluster| levels(cluster) == [1, 1, 1]);
    cluster.run(100);
    cluster.highest_level.insert(2, 0);
    let refused = cluster.check_boot(2).expect_err("the log reaches a later level").to_string();
    assert!(refused.contains("feature level 1") && refused.contains("0.2.0"), "{refused}");
    // With nothing but a snapshot of that level it is the same.
    let config = Config { snapshot_floor_bytes: 1, ..Config::default() };
    let mut cluster = Cluster::of(10, config, &[], &[]);
    cluster.highest_level = [(1, 1), (2, 1), (3, 1)].into();
    for member in [1, 2, 3] {
        cluster.start(member, harness::Disk::new(&[1, 2, 3], &[]));
    }
    cluster.run_until("the level rises everywhere", |cluster| levels(cluster) == [1, 1, 1]);
    let leader = cluster.wait_for_leader();
    for _ in 0..20 {
        cluster.put(leader);
        cluster.run(20);
    }
    cluster.highest_level.insert(leader, 0);
    assert!(cluster.check_boot(leader).is_err());
}

#[test]
fn an_earlier_release_goes_on_from_its_disk_before_the_level_was_raised() {
    let mut cluster = of_releases(11, [1, 1, 0]);
    let leader = cluster.wait_for_leader();
    cluster.put(leader);
    cluster.run(1_000);
    for member in [1, 2] {
        cluster.highest_level.insert(member, 0);
        cluster.check_boot(member).expect("nothing of a later level was written");
    }
}

/// The greeting of two members keeps such a member away; if it is met all the same, it stops by itself.
#[test]
fn a_member_stops_before_it_appends_a_later_level() {
    let mut cluster = of_releases(12, [1, 1, 1]);
    let third: MemberId = 3;
    // It says what it supports, but is not sent the log.
    cluster.cut_raft = vec![(1, third), (2, third), (third, 1), (third, 2)];
    cluster.run_until("the level rises", |cluster| levels(cluster)[..2] == [1, 1]);
    cluster.highest_level.insert(third, 0);
    cluster.restart(third);
    cluster.heal();
    cluster.run_until("it stops", |cluster| cluster.fatal.contains_key(&third));
    let reason = &cluster.fatal[&third];
    assert!(reason.contains("feature level 1") && reason.contains("Tenure 0.2.0"), "{reason}");
    let last = cluster.hosts[&third].disk.last_index();
    cluster.run(1_000);
    assert_eq!(cluster.hosts[&third].disk.last_index(), last, "it has appended nothing");
    assert_eq!(cluster.status(third).level, 0);
}

#[test]
fn a_pin_holds_the_level_and_a_command_of_a_later_level_is_not_proposed() {
    let mut cluster = of_releases(13, [0, 0, 0]);
    let leader = cluster.wait_for_leader();
    let follower = if leader == 1 { 2 } else { 1 };
    for member in [leader, follower] {
        let before = cluster.status(leader).last_index;
        let call = cluster.propose(member, Asked::Other, Command::PinLevel { level: Some(0) });
        cluster.run(200);
        assert_eq!(cluster.outcomes[&call], Some(Failure::LevelTooLow { needed: 1 }));
        assert_eq!(cluster.status(leader).last_index, before, "nothing was proposed");
    }
    let mut cluster = of_releases(14, [1, 1, 1]);
    cluster.run_until("the level rises everywhere", |cluster| levels(cluster) == [1, 1, 1]);
    let leader = cluster.wait_for_leader();
    let refused = cluster.propose(leader, Asked::Other, Command::PinLevel { level: Some(0) });
    let pinned = cluster.propose(leader, Asked::Other, Command::PinLevel { level: Some(1) });
    cluster.run(200);
    assert!(matches!(cluster.outcomes[&refused], Some(Failure::Refused(_))));
    assert_eq!(cluster.outcomes[&pinned], None);
    assert_eq!(cluster.status(leader).level_pin, Some(1));
}
