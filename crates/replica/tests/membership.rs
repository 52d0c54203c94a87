//! Members that come and go.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use harness::{Disk, config};
use members::{Asked, Cluster, MEMBERS};
use tenure_machine::{Command, Member, MemberChange, MemberId, Refusal};
use tenure_replica::{Boot, CallId, Config, FIRST_INDEX, FIRST_TERM, Failure, Now, Output, Replica};

fn small_config() -> Config {
    Config {
        election_min_ms: 100,
        election_max_ms: 200,
        heartbeat_ms: 20,
        call_timeout_ms: 3000,
        log_tail_bytes: 500,
        ..config(1)
    }
}

fn cluster(seed: u64) -> (Cluster, MemberId, MemberId) {
    let mut cluster = Cluster::new(seed, small_config());
    let leader = cluster.wait_for_leader();
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    cluster.run(100);
    (cluster, leader, follower)
}

fn member(id: MemberId, learner: bool) -> Member {
    let peer_urls = vec![format!("http://{id}:2380")];
    Member { id, name: format!("member {id}"), peer_urls, client_urls: Vec::new(), learner }
}

fn add(id: MemberId, learner: bool) -> MemberChange {
    MemberChange::Add { member: member(id, learner) }
}

fn remove(id: MemberId) -> MemberChange {
    MemberChange::Remove { id, force: false }
}

/// Asks for a change and waits for the answer.
fn changed(cluster: &mut Cluster, at: MemberId, change: MemberChange) -> Option<Failure> {
    let call = cluster.change(at, change);
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
    cluster.outcomes[&call].clone()
}

/// Everybody who is one knows the same members, and nobody else is one.
fn check_members(cluster: &mut Cluster, voters: &[MemberId], learners: &[MemberId]) {
    cluster.run_until("they agree", |cluster| {
        voters.iter().chain(learners).all(|member| {
            let status = cluster.status(*member);
            (&status.voters[..], &status.learners[..]) == (voters, learners)
        })
    });
    cluster.run(10);
    for at in voters.iter().chain(learners) {
        let told = cluster.hosts[at].members.as_ref().expect("told at boot");
        let ids: Vec<_> = told.iter().map(|member| (member.id, member.learner)).collect();
        let mut expected: Vec<_> = voters.iter().map(|id| (*id, false)).collect();
        expected.extend(learners.iter().map(|id| (*id, true)));
        expected.sort_unstable();
        assert_eq!(ids, expected, "at {at}");
    }
}

fn answers_well(cluster: &mut Cluster, at: MemberId) {
    let call = cluster.mark(at);
    cluster.run_until("an answer", |cluster| cluster.outcomes.contains_key(&call));
    assert_eq!(cluster.outcomes[&call], None);
}

/// Asked at a member that does not lead: a learner joins, catches up, and comes to vote.
#[test]
fn a_learner_joins_and_is_promoted() {
    let (mut cluster, leader, follower) = cluster(1);
    for _ in 0..30 {
        cluster.put(leader);
    }
    cluster.run(100);
    let call = cluster.change(follower, add(4, true));
    cluster.run(100);
    assert_eq!(cluster.outcomes[&call], None);
    let told = &cluster.told_members[&call];
    assert_eq!(told.iter().map(|member| member.id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(told[3], member(4, true), "with its addresses");
    assert_eq!(changed(&mut cluster, follower, MemberChange::Promote { id: 4 }), Some(Failure::LearnerNotReady));
    cluster.start(4, Disk::joining());
    cluster.run(300);
    assert_eq!(cluster.status(4).applied_index, cluster.status(leader).applied_index);
    check_members(&mut cluster, &MEMBERS, &[4]);
    answers_well(&mut cluster, 4);
    assert_eq!(changed(&mut cluster, 4, MemberChange::Promote { id: 4 }), None);
    check_members(&mut cluster, &[1, 2, 3, 4], &[]);
    let peers = cluster.status(leader).peers;
    assert_eq!(peers.len(), 3);
    assert!(peers.iter().all(|peer| peer.active && peer.matched > 30), "{peers:?}");
    // It votes: with two of four gone nothing goes on, with one of them back it does.
    cluster.isolate(leader);
    cluster.isolate(follower);
    cluster.run(1000);
    let others: Vec<_> = [1, 2, 3, 4].into_iter().filter(|member| ![leader, follower].contains(member)).collect();
    assert!(others.iter().all(|member| cluster.status(*member).leader == 0));
    cluster.heal();
    cluster.isolate(leader);
    cluster.run(1000);
    answers_well(&mut cluster, 4);
}

#[test]
fn a_member_alone_becomes_three() {
    let mut cluster = Cluster::of(2, small_config(), &[1], &[]);
    cluster.wait_for_leader();
    answers_well(&mut cluster, 1);
    assert_eq!(changed(&mut cluster, 1, add(2, false)), None);
    // A majority of two is two: nothing goes on before the second is there.
    let waiting = cluster.mark(1);
    cluster.run(50);
    assert!(!cluster.outcomes.contains_key(&waiting));
    cluster.start(2, Disk::joining());
    cluster.run_until("an answer", |cluster| cluster.outcomes.contains_key(&waiting));
    assert_eq!(cluster.outcomes[&waiting], None);
    cluster.run(200);
    assert_eq!(changed(&mut cluster, 2, add(3, true)), None);
    cluster.start(3, Disk::joining());
    cluster.run(300);
    assert_eq!(changed(&mut cluster, 3, MemberChange::Promote { id: 3 }), None);
    check_members(&mut cluster, &[1, 2, 3], &[]);
    for member in MEMBERS {
        cluster.restart(member);
        cluster.wait_for_leader();
    }
    cluster.run(300);
    check_members(&mut cluster, &[1, 2, 3], &[]);
    answers_well(&mut cluster, 3);
}

#[test]
fn three_members_become_one() {
    let (mut cluster, leader, _) = cluster(3);
    let others: Vec<_> = MEMBERS.into_iter().filter(|member| *member != leader).collect();
    assert_eq!(changed(&mut cluster, leader, remove(others[0])), None);
    cluster.run_until("it is told", |cluster| cluster.hosts[&others[0]].is_removed);
    assert_eq!(changed(&mut cluster, others[1], remove(others[1])), None);
    cluster.run_until("it is told", |cluster| cluster.hosts[&others[1]].is_removed);
    check_members(&mut cluster, &[leader], &[]);
    answers_well(&mut cluster, leader);
    assert_eq!(changed(&mut cluster, leader, remove(leader)), Some(Failure::NotEnoughMembers));
    let forced = MemberChange::Remove { id: leader, force: true };
    assert_eq!(changed(&mut cluster, leader, forced), Some(Failure::NotEnoughMembers), "nobody would be left");
    cluster.restart(leader);
    cluster.wait_for_leader();
    answers_well(&mut cluster, leader);
}

/// The log says who votes only as far as it is known to be committed. Of two, the one that is left must know that by
/// itself when it starts again: nobody else is there to ask.
#[test]
fn one_that_was_left_alone_starts_again() {
    let mut cluster = Cluster::of(31, small_config(), &[1, 2], &[]);
    let leader = cluster.wait_for_leader();
    let other = 3 - leader;
    answers_well(&mut cluster, leader);
    assert_eq!(changed(&mut cluster, leader, remove(other)), None);
    cluster.run_until("it is told", |cluster| cluster.hosts[&other].is_removed);
    cluster.stop(other);
    cluster.restart(leader);
    assert_eq!(cluster.wait_for_leader(), leader);
    answers_well(&mut cluster, leader);
}

/// A leader that is to be removed gives its place to another first, who removes it.
/// When it is told that the others are out, it is durable: they may be gone, and it cannot ask them for their votes.
#[test]
fn who_is_left_alone_goes_on_after_a_restart() {
    let (mut cluster, leader, _) = cluster(12);
    for other in MEMBERS.into_iter().filter(|other| *other != leader) {
        assert_eq!(changed(&mut cluster, leader, remove(other)), None);
        cluster.stop(other);
    }
    cluster.restart(leader);
    cluster.run_until("a leader", |cluster| cluster.leader() == Some(leader));
    check_members(&mut cluster, &[leader], &[]);
    answers_well(&mut cluster, leader);
}

#[test]
fn the_leader_is_removed() {
    for seed in 0..10 {
        let (mut cluster, leader, follower) = cluster(seed);
        let asked_at = if seed % 2 == 0 { leader } else { follower };
        assert_eq!(changed(&mut cluster, asked_at, remove(leader)), None, "seed {seed}");
        cluster.run_until("it is told", |cluster| cluster.hosts[&leader].is_removed);
        let left: Vec<_> = MEMBERS.into_iter().filter(|member| *member != leader).collect();
        check_members(&mut cluster, &left, &[]);
        answers_well(&mut cluster, follower);
        assert_eq!(changed(&mut cluster, follower, remove(leader)), Some(Failure::Refused(Refusal::MemberNotFound)));
    }
}

/// It is removed while it leads: the one who proposed that leads no more.
#[test]
fn a_leader_that_was_removed_by_another_before_it_steps_down() {
    let mut led = 0;
    for seed in 0..60 {
        let (mut cluster, old, _) = cluster(seed);
        let doomed = MEMBERS.into_iter().filter(|member| *member != old).nth(seed as usize % 2).expect("two others");
        let third = MEMBERS.into_iter().find(|member| ![old, doomed].contains(member)).expect("one of three");
        // The entry reaches the doomed one only, which is then the only one that can be elected.
        cluster.cut.push((old, third));
        cluster.change(old, MemberChange::Remove { id: doomed, force: true });
        cluster.run(4);
        cluster.isolate(old);
        cluster.cut.retain(|(from, to)| [*from, *to].contains(&old));
        let mut was_leader = false;
        for _ in 0..3000 {
            cluster.run(1);
            was_leader |= cluster.status(doomed).leader == doomed;
        }
        led += u64::from(was_leader);
        cluster.heal();
        cluster.run(1500);
        let leader = cluster.wait_for_leader();
        answers_well(&mut cluster, leader);
        let is_removed = !cluster.status(leader).voters.contains(&doomed);
        assert!(!was_leader || is_removed, "seed {seed}");
        cluster.run(1500);
        assert_eq!(cluster.hosts[&doomed].is_removed, is_removed, "seed {seed}");
    }
    assert!(led > 10, "{led}");
}

/// Whoever is out ends. A leader that had forgotten that would wait for its vote for ever.
#[test]
fn nobody_is_told_of_a_removal_that_the_leader_may_forget() {
    let mut cluster = Cluster::of(32, small_config(), &[1, 2], &[]);
    let leader = cluster.wait_for_leader();
    let other = 3 - leader;
    answers_well(&mut cluster, leader);
    let before = cluster.hosts[&leader].disk.last_index();
    cluster.change(leader, remove(other));
    cluster.run_until("it is in the log", |cluster| cluster.hosts[&leader].disk.last_index() > before);
    // Both have the entry, so it is committed; but nothing more gets to this disk.
    cluster.host(leader).disk_pace_ms = 10_000;
    cluster.run_until("so does the other one", |cluster| cluster.hosts[&other].disk.last_index() > before);
    cluster.run(50);
    assert_eq!(cluster.status(other).voters.len(), 2, "it is not told that it is out");
    cluster.host(leader).disk_pace_ms = 1;
    cluster.restart(leader);
    cluster.run_until("it is out, and knows it", |cluster| cluster.hosts[&other].is_removed);
    cluster.stop(other);
    cluster.restart(leader);
    assert_eq!(cluster.wait_for_leader(), leader);
    answers_well(&mut cluster, leader);
}

/// The answer to a question how far one must have got to read says what is committed, too: it waits.
#[test]
fn whoever_reads_is_not_told_either() {
    for voters in [&[1, 2][..], &[1, 2, 3, 4, 5]] {
        let mut cluster = Cluster::of(34, small_config(), voters, &[]);
        let leader = cluster.wait_for_leader();
        let other = voters.iter().copied().find(|voter| *voter != leader).expect("there are several");
        answers_well(&mut cluster, leader);
        let before = cluster.hosts[&leader].disk.last_index();
        cluster.change(leader, remove(other));
        cluster.run_until("it is in the log", |cluster| cluster.hosts[&leader].disk.last_index() > before);
        cluster.host(leader).disk_pace_ms = 10_000;
        cluster.run_until("all have it", |cluster| cluster.hosts.values().all(|host| host.disk.last_index() > before));
        let read = cluster.get(other);
        cluster.run(50);
        assert_eq!(cluster.status(other).voters.len(), voters.len(), "it is not told that it is out");
        assert!(!cluster.outcomes.contains_key(&read));
        cluster.host(leader).disk_pace_ms = 1;
        cluster.restart(leader);
        cluster.run_until("it is out, and knows it", |cluster| cluster.hosts[&other].is_removed);
    }
}

/// Who votes alone leads at once. If it forgets that, it leads in the same term again, with other entries.
#[test]
fn a_learner_hears_nothing_of_a_term_that_is_not_durable() {
    let mut cluster = Cluster::of(33, small_config(), &[1], &[2]);
    let before = cluster.hosts[&2].disk.last_index();
    // Nothing more gets to the disk of the one that votes.
    cluster.host(1).disk_pace_ms = 10_000;
    cluster.put(1);
    cluster.run(200);
    assert_eq!(cluster.status(1).leader, 1, "it leads, for now");
    assert_eq!(cluster.hosts[&2].disk.last_index(), before, "and nobody else knows");
    cluster.host(1).disk_pace_ms = 1;
    cluster.restart(1);
    answers_well(&mut cluster, 1);
    answers_well(&mut cluster, 2);
    check_members(&mut cluster, &[1], &[2]);
}

/// Of two, one is removed while it leads. If it went at once, the other might never hear of it, and wait for its vote.
#[test]
fn a_removed_leader_stays_until_another_knows() {
    let mut removed = 0;
    for seed in 0..60 {
        let mut cluster = Cluster::of(seed, small_config(), &[1, 2], &[]);
        let old = cluster.wait_for_leader();
        cluster.run(100);
        let doomed = 3 - old;
        // The entry arrives, but the news of that does not, until the leader gives up.
        cluster.cut.push((doomed, old));
        cluster.change(old, remove(doomed));
        cluster.run_until("it gives up", |cluster| cluster.status(old).leader != old);
        cluster.heal();
        let is_out = |cluster: &Cluster| cluster.status(doomed).voters[..] == [old];
        cluster.run_until("it is out", |cluster| is_out(cluster) || cluster.status(old).voters[..] == [old]);
        removed += u64::from(is_out(&cluster) && cluster.status(doomed).term > cluster.status(old).term - 1);
        cluster.cut.extend([(doomed, old), (old, doomed)]);
        for _ in 0..300 {
            cluster.run(1);
            if cluster.hosts.get(&doomed).is_some_and(|host| host.is_removed) {
                cluster.stop(doomed);
            }
        }
        cluster.heal();
        cluster.run_until("the other leads", |cluster| {
            cluster.status(old).leader == old && cluster.status(old).voters[..] == [old]
        });
        answers_well(&mut cluster, old);
    }
    assert!(removed > 10, "{removed}");
}

/// The news of its removal misses a member: it finds out when it hears from nobody, however often it restarts.
#[test]
fn a_removed_member_that_missed_it_finds_out() {
    for (seed, learner) in [(5, false), (6, true)] {
        let mut cluster = Cluster::of(seed, small_config(), &[1, 2, 3, 5], &[4]);
        cluster.wait_for_leader();
        cluster.run(100);
        let doomed = if learner { 4 } else { [5, 3].into_iter().find(|id| Some(*id) != cluster.leader()).unwrap() };
        cluster.isolate(doomed);
        let leader = cluster.leader().expect("a leader");
        assert_eq!(changed(&mut cluster, leader, remove(doomed)), None);
        for _ in 0..20 {
            cluster.put(leader);
        }
        cluster.run(500);
        cluster.heal();
        assert!(!cluster.hosts[&doomed].is_removed);
        cluster.run_until("it finds out", |cluster| cluster.hosts[&doomed].is_removed);
        cluster.restart(doomed);
        cluster.run_until("it finds out again", |cluster| cluster.hosts[&doomed].is_removed);
        // It has disturbed nobody.
        assert_eq!(cluster.leader(), Some(leader));
    }
}

/// A member that has joined must not be told that it was removed by one that does not know of it yet.
#[test]
fn a_new_member_is_not_taken_for_a_removed_one() {
    let (mut cluster, leader, follower) = cluster(7);
    cluster.isolate(follower);
    assert_eq!(changed(&mut cluster, leader, add(4, true)), None);
    cluster.start(4, Disk::joining());
    cluster.run(300);
    assert_eq!(changed(&mut cluster, leader, MemberChange::Promote { id: 4 }), None);
    cluster.run(20);
    cluster.heal();
    // Now it hears only from the one that lags.
    let others: Vec<_> = MEMBERS.into_iter().filter(|member| *member != follower).collect();
    for other in others {
        cluster.cut.extend([(other, 4), (4, other), (other, follower), (follower, other)]);
    }
    cluster.run(3000);
    assert!(!cluster.hosts[&4].is_removed);
    cluster.heal();
    cluster.run(1000);
    check_members(&mut cluster, &[1, 2, 3, 4], &[]);
}

/// Several at once, by way of a joint configuration, which is left again whoever leads meanwhile.
#[test]
fn several_change_at_once() {
    for seed in 0..30 {
        let (mut cluster, leader, follower) = cluster(seed);
        let third = MEMBERS.into_iter().find(|member| ![leader, follower].contains(member)).expect("one of three");
        for id in [4, 5] {
            assert_eq!(changed(&mut cluster, leader, add(id, true)), None);
            cluster.start(id, Disk::joining());
            cluster.run(200);
        }
        let promote = |id| MemberChange::Promote { id };
        let change = MemberChange::Together(vec![promote(4), promote(5), remove(follower), remove(third)]);
        let call = cluster.change(leader, change);
        if seed > 0 {
            // The leader is lost in the middle of it.
            let millis = cluster.draw(25);
            cluster.run(millis);
            cluster.isolate(leader);
            cluster.run(1000);
            cluster.heal();
        }
        cluster.run_until("it is decided", |cluster| {
            let leads = cluster.leader().filter(|leader| cluster.status(*leader).commit_index > 0);
            cluster.outcomes.contains_key(&call) && leads.is_some()
        });
        let now = cluster.wait_for_leader();
        cluster.run(300);
        let is_made = !cluster.status(now).voters.contains(&third);
        assert!(cluster.outcomes[&call].is_some() || is_made, "seed {seed}: {:?}", cluster.outcomes[&call]);
        if let Some(told) = cluster.told_members.get(&call) {
            assert_eq!(told.len(), 3, "seed {seed}: told when it is all done");
        }
        if is_made {
            let mut voters = vec![leader, 4, 5];
            voters.sort_unstable();
            check_members(&mut cluster, &voters, &[]);
            cluster.run(2000);
            assert!(cluster.hosts[&follower].is_removed && cluster.hosts[&third].is_removed, "seed {seed}");
        }
        answers_well(&mut cluster, 4);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (mut cluster, leader, follower) = cluster(8);
    let refused = |refusal| Some(Failure::Refused(refusal));
    for at in [leader, follower] {
        assert_eq!(changed(&mut cluster, at, add(2, false)), refused(Refusal::MemberExists));
        assert_eq!(changed(&mut cluster, at, add(0, false)), refused(Refusal::MemberExists));
        assert_eq!(changed(&mut cluster, at, remove(77)), refused(Refusal::MemberNotFound));
        assert_eq!(changed(&mut cluster, at, MemberChange::Promote { id: 77 }), refused(Refusal::MemberNotFound));
        assert_eq!(changed(&mut cluster, at, MemberChange::Promote { id: 2 }), refused(Refusal::NotALearner));
        let update = MemberChange::Update { member: member(77, false) };
        assert_eq!(changed(&mut cluster, at, update), refused(Refusal::MemberNotFound));
    }
    let update = MemberChange::Update { member: member(follower, true) };
    assert_eq!(changed(&mut cluster, follower, update), None);
    let told = cluster.hosts[&leader].members.clone().expect("told");
    assert_eq!(told.iter().find(|told| told.id == follower), Some(&member(follower, false)), "it goes on voting");
    let same_urls = MemberChange::Add { member: Member { id: 4, ..member(follower, true) } };
    assert_eq!(changed(&mut cluster, follower, same_urls.clone()), refused(Refusal::PeerUrlExists));
    assert_eq!(changed(&mut cluster, leader, same_urls), refused(Refusal::PeerUrlExists));
    check_members(&mut cluster, &MEMBERS, &[]);
}

#[test]
fn one_change_at_a_time() {
    let (mut cluster, leader, follower) = cluster(9);
    let calls: Vec<CallId> = [add(4, true), add(5, true)].map(|change| cluster.change(leader, change)).to_vec();
    let third = cluster.change(follower, add(6, true));
    cluster.run(300);
    assert_eq!((&cluster.outcomes[&calls[0]], &cluster.outcomes[&calls[1]]), (&None, &Some(Failure::ChangeUnderWay)));
    let made = cluster.outcomes[&third].is_none();
    assert!(made || cluster.outcomes[&third] == Some(Failure::ChangeUnderWay));
    let ids: Vec<_> = cluster.status(leader).learners.to_vec();
    assert_eq!(ids, if made { vec![4, 6] } else { vec![4] });
}

/// Those who are left and can be reached must be able to go on.
#[test]
fn what_would_lose_the_majority_is_refused() {
    let (mut cluster, leader, follower) = cluster(10);
    let lost = MEMBERS.into_iter().find(|member| ![leader, follower].contains(member)).expect("one of three");
    cluster.isolate(lost);
    cluster.run(1000);
    let leader = cluster.wait_for_leader();
    assert_eq!(changed(&mut cluster, leader, add(4, false)), Some(Failure::NotEnoughMembers));
    assert_eq!(changed(&mut cluster, leader, remove(follower)), Some(Failure::NotEnoughMembers));
    assert_eq!(changed(&mut cluster, leader, remove(leader)), Some(Failure::NotEnoughMembers));
    assert_eq!(changed(&mut cluster, leader, add(4, true)), None, "a learner costs nothing");
    assert_eq!(changed(&mut cluster, leader, remove(4)), None);
    // Whoever is lost can be removed, and then there is room for another.
    assert_eq!(changed(&mut cluster, leader, remove(lost)), None);
    assert_eq!(changed(&mut cluster, leader, add(4, false)), None);
    cluster.start(4, Disk::joining());
    cluster.run(300);
    answers_well(&mut cluster, 4);
    // An operator who knows better is let.
    let others: Vec<_> = [1, 2, 3, 4].into_iter().filter(|id| ![leader, lost, 4].contains(id)).collect();
    cluster.isolate(4);
    cluster.run(1000);
    let leader = cluster.wait_for_leader();
    assert_eq!(changed(&mut cluster, leader, remove(others[0])), Some(Failure::NotEnoughMembers));
    let forced = MemberChange::Remove { id: others[0], force: true };
    assert_eq!(changed(&mut cluster, leader, forced), None);
}

/// A member that has just died was heard of a moment ago. It does not answer, so it does not count.
#[test]
fn a_member_that_has_just_died_does_not_count() {
    let (mut cluster, leader, follower) = cluster(14);
    let last = MEMBERS.into_iter().find(|member| ![leader, follower].contains(member)).expect("one of three");
    cluster.stop(follower);
    cluster.run(5);
    assert_eq!(changed(&mut cluster, leader, add(4, false)), Some(Failure::NotEnoughMembers));
    assert_eq!(changed(&mut cluster, last, remove(last)), Some(Failure::NotEnoughMembers));
    answers_well(&mut cluster, last);
    assert_eq!(changed(&mut cluster, leader, remove(follower)), None);
    check_members(&mut cluster, &[leader.min(last), leader.max(last)], &[]);
}

#[test]
fn of_five_with_two_dead_only_a_dead_one_can_be_removed() {
    let voters = [1, 2, 3, 4, 5];
    let mut cluster = Cluster::of(15, small_config(), &voters, &[]);
    let leader = cluster.wait_for_leader();
    cluster.run(100);
    let others: Vec<MemberId> = voters.into_iter().filter(|member| *member != leader).collect();
    cluster.stop(others[0]);
    cluster.stop(others[1]);
    cluster.run(5);
    assert_eq!(changed(&mut cluster, leader, remove(others[2])), Some(Failure::NotEnoughMembers));
    assert_eq!(changed(&mut cluster, leader, remove(others[0])), None);
    answers_well(&mut cluster, others[3]);
}

/// Followers do not talk to each other: a leader that was just elected may not have heard of them all.
#[test]
fn a_new_leader_hears_the_others_out_before_it_refuses() {
    for seed in 0..5 {
        let (mut cluster, leader, _) = cluster(300 + seed);
        let others: Vec<MemberId> = MEMBERS.into_iter().filter(|member| *member != leader).collect();
        cluster.run(1000);
        let call = cluster.change(leader, remove(leader));
        cluster.cut.extend([(others[0], others[1]), (others[1], others[0])]);
        let is_led = |cluster: &Cluster| others.iter().any(|other| cluster.status(*other).leader == *other);
        cluster.run_until("another leads", is_led);
        cluster.run(40);
        cluster.heal();
        cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
        assert_eq!(cluster.outcomes[&call], None, "seed {seed}");
    }
}

/// The successor is one that can be reached now.
#[test]
fn leadership_goes_to_a_member_that_is_there() {
    for seed in 0..5 {
        let (mut cluster, leader, follower) = cluster(400 + seed);
        let last = MEMBERS.into_iter().find(|member| ![leader, follower].contains(member)).expect("one of three");
        // Which of them would be chosen does not matter: each dies once.
        let (dies, stays) = if seed % 2 == 0 { (follower, last) } else { (last, follower) };
        cluster.stop(dies);
        cluster.run(3);
        let call = cluster.transfer(leader, None);
        cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&call));
        assert_eq!((&cluster.outcomes[&call], cluster.told_leader.get(&call)), (&None, Some(&stays)), "seed {seed}");
    }
}

/// As etcd has it, a voter may be added to a member alone: nothing can be committed until it is there, and all goes on
/// when it is.
#[test]
fn a_voter_joins_a_member_alone_and_takes_the_quorum_until_it_is_there() {
    let mut cluster = Cluster::of(16, small_config(), &[1], &[]);
    cluster.wait_for_leader();
    assert_eq!(changed(&mut cluster, 1, add(2, false)), None);
    // To remove it again needs its vote.
    let forced = MemberChange::Remove { id: 2, force: true };
    let stuck = changed(&mut cluster, 1, forced);
    assert!(matches!(stuck, Some(Failure::TimedOut | Failure::NoLeader)), "{stuck:?}");
    cluster.start(2, Disk::joining());
    cluster.run(1000);
    cluster.wait_for_leader();
    answers_well(&mut cluster, 1);
}

/// What a removed member says of itself comes late.
#[test]
fn a_removed_member_does_not_come_back_by_publishing() {
    let (mut cluster, leader, follower) = cluster(11);
    for id in MEMBERS {
        cluster.propose(id, Asked::Other, Command::Publish(member(id, false)));
        cluster.run(50);
    }
    assert!(
        cluster.hosts[&leader].members.as_ref().is_some_and(|told| told[0] == member(1, false)),
        "and all are told"
    );
    assert_eq!(changed(&mut cluster, leader, remove(follower)), None);
    let call = cluster.propose(leader, Asked::Other, Command::Publish(member(follower, false)));
    cluster.run(100);
    assert_eq!(cluster.outcomes[&call], Some(Failure::Refused(Refusal::MemberNotFound)));
    let listed = cluster.hosts[&leader].replica.machine().state().members();
    assert_eq!(listed.len(), 2);
}

#[test]
fn a_cluster_knows_its_first_members_from_the_start() {
    let machine =
        tenure_machine::Machine::of_new_cluster(FIRST_INDEX, FIRST_TERM, [member(1, false), member(2, false)]);
    let boot = Boot { machine, ..Disk::new(&[1, 2], &[3]).boot() };
    let now = Now { monotonic_ms: 0, wall_ms: 0 };
    let mut replica = Replica::boot(small_config(), boot, now).expect("boots");
    let mut outputs = Vec::new();
    replica.step(now, [], &mut outputs);
    let told: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Members(members) => Some(members.clone()),
            _ => None,
        })
        .collect();
    let unknown = Member { name: String::new(), peer_urls: Vec::new(), ..member(3, true) };
    assert_eq!(told, [vec![member(1, false), member(2, false), unknown]]);
}

/// Whoever is to join knows where to find the others, and is not taken for removed by one that has not heard of it.
#[test]
fn a_member_that_is_to_join_waits() {
    let mut cluster = Cluster::new(14, small_config());
    cluster.wait_for_leader();
    let machine = tenure_machine::Machine::of_new_cluster(0, 0, MEMBERS.map(|id| member(id, false)));
    cluster.start(4, Disk { machine: Some(machine), ..Disk::joining() });
    cluster.run(5000);
    let ids: Vec<_> = cluster.hosts[&4].members.iter().flatten().map(|member| member.id).collect();
    assert_eq!((ids, cluster.hosts[&4].is_removed), (MEMBERS.to_vec(), false));
    assert_eq!(changed(&mut cluster, 1, add(4, false)), None);
    check_members(&mut cluster, &[1, 2, 3, 4], &[]);
    answers_well(&mut cluster, 4);
}

#[test]
fn leadership_is_given_away() {
    let (mut cluster, leader, follower) = cluster(12);
    // Whoever it is asked of, and writes that come meanwhile are not lost.
    let marks: Vec<_> = (0..10)
        .map(|number| {
            let call = cluster.mark(MEMBERS[number % 3]);
            if number == 3 {
                cluster.transfer(leader, Some(follower));
            }
            call
        })
        .collect();
    cluster.run_until("another leads", |cluster| cluster.leader() == Some(follower));
    cluster.run(300);
    assert!(marks.iter().all(|call| cluster.outcomes.get(call) == Some(&None)), "{:?}", cluster.outcomes);
    assert_eq!(cluster.told_leader.values().collect::<Vec<_>>(), [&follower]);
    // Asked of a member that does not lead; then of nobody in particular.
    let back = cluster.transfer(leader, Some(leader));
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&back));
    assert_eq!((cluster.told_leader[&back], cluster.leader()), (leader, Some(leader)));
    let any = cluster.transfer(leader, None);
    cluster.run_until("the answer", |cluster| cluster.outcomes.contains_key(&any));
    assert_ne!(cluster.told_leader[&any], leader);
    let now = cluster.wait_for_leader();
    let same = cluster.transfer(now, Some(now));
    cluster.run(5);
    assert_eq!(cluster.told_leader[&same], now);
    cluster.check_marks(now);
}

#[test]
fn leadership_is_given_to_nobody_who_cannot_lead() {
    let mut cluster = Cluster::of(13, small_config(), &MEMBERS, &[4]);
    let leader = cluster.wait_for_leader();
    cluster.run(100);
    for nobody in [4, 77] {
        let call = cluster.transfer(leader, Some(nobody));
        cluster.run(5);
        assert_eq!(cluster.outcomes[&call], Some(Failure::BadTransferee));
    }
    let lost = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    cluster.isolate(lost);
    cluster.run(300);
    let call = cluster.transfer(leader, Some(lost));
    cluster.run(50);
    assert!(!cluster.outcomes.contains_key(&call));
    cluster.run(300);
    assert_eq!(cluster.outcomes[&call], Some(Failure::TimedOut));
    // It leads on, and takes what came meanwhile.
    assert_eq!(cluster.leader(), Some(leader));
    answers_well(&mut cluster, leader);
    for member in MEMBERS {
        cluster.isolate(member);
    }
    cluster.run(1000);
    let call = cluster.transfer(leader, None);
    cluster.run(5);
    assert_eq!(cluster.outcomes[&call], Some(Failure::NoLeader));
}

/// A member that has no state yet could be removed before it has one, and would never see the place that it has to leave
/// (seed 1794988560059).
#[test]
fn a_member_without_a_state_takes_no_lock() {
    let (mut cluster, leader, _) = cluster(77);
    cluster.grant(leader, 7);
    assert_eq!(changed(&mut cluster, leader, add(4, true)), None);
    cluster.stream_ms = 1_000_000;
    cluster.start(4, Disk::joining());
    cluster.run_until("it hears of its leader", |cluster| cluster.status(4).leader == leader);
    let call = cluster.lock(4, 7);
    cluster.run(300);
    assert_eq!(cluster.outcomes.get(&call), Some(&Some(Failure::NoLeader)));
    assert_eq!(cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count(), 0);
}
