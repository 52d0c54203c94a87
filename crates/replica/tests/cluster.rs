//! Three members in one thread, their messages as bytes in a box, every decision drawn from a seed.
//!
//! Members are stepped, messages delivered, lost, doubled and reordered, disks made slow, members
//! paused and restarted, while clients anywhere write, read, renew and lock. Afterwards
//! everything heals. Checked all the time: raft's own assertions, at most one answer to a call,
//! nothing sent before it is durable, equal state at equal applied index, reads that see all that was
//! acknowledged before them, one holder at a time, renewals that hold. `REPLICA_SEEDS=from..to` runs others.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use bytes::Bytes;
use harness::{Disk, config};
use members::{Asked, Cluster, Counts, MEMBERS, raft_bytes};
use raft::eraftpb::{Message, MessageType};
use rand_chacha::rand_core::RngCore;
use tenure_machine::*;
use tenure_replica::{Boot, CallId, Config, Failure, HardState, Input, Now, Output, Persist, Replica};

fn small_config() -> Config {
    Config { election_min_ms: 100, election_max_ms: 200, heartbeat_ms: 20, call_timeout_ms: 1000, ..config(1) }
}

#[test]
fn a_leader_is_elected_and_everybody_applies_the_same() {
    let mut cluster = Cluster::new(1, small_config());
    let leader = cluster.wait_for_leader();
    for _ in 0..10 {
        cluster.put(leader);
    }
    cluster.get(leader);
    cluster.run(200);
    assert_eq!((cluster.counts.puts, cluster.counts.reads), (10, 1));
    let applied: Vec<u64> = MEMBERS.iter().map(|member| cluster.status(*member).applied_index).collect();
    assert_eq!(applied, [applied[0]; 3]);
}

#[test]
fn a_read_needs_a_quorum_and_a_renewal_too() {
    let mut cluster = Cluster::new(2, small_config());
    let leader = cluster.wait_for_leader();
    cluster.grant(leader, 7);
    cluster.run(50);
    cluster.isolate(leader);
    cluster.get(leader);
    cluster.keep_alive(leader, 7);
    cluster.run(50);
    assert_eq!((cluster.counts.reads, cluster.counts.kept_alive), (0, 0));
    assert_eq!(cluster.hosts[&leader].calls.waiting().len(), 2);
    // It gives up leadership for want of a quorum, and with it what only a leader may promise.
    cluster.run(400);
    assert_eq!(cluster.counts.leader_changed, 1);
    cluster.heal();
    cluster.run(1500);
    assert!(cluster.asked.is_empty(), "{:?}", cluster.asked);
    assert_eq!(cluster.counts.kept_alive, 0);
}

/// An entry that a later leader has overwritten in this member's log may still be committed, from another's. Here the
/// leader `first` appends six commands that reach `keeper` alone. Then it loses them to `second`, leads again, and
/// appends at the same indexes. Then `keeper` leads and commits the six.
#[test]
fn what_was_overwritten_may_be_found_again() {
    let voters = [1, 2, 3, 4, 5];
    let mut cluster = Cluster::of(21, Config { call_timeout_ms: 10_000, ..small_config() }, &voters, &[]);
    let first = cluster.wait_for_leader();
    for lease in [7, 8] {
        let grant = LeaseGrant { lease, ttl_ms: 60_000, client: Bytes::new() };
        cluster.propose(first, Asked::Other, Command::LeaseGrant(grant));
    }
    cluster.run(100);
    let others: Vec<MemberId> = voters.into_iter().filter(|member| *member != first).collect();
    let keeper = others[0];
    // Only these reach each other.
    let connect = |cluster: &mut Cluster, together: &[MemberId]| {
        cluster.cut.clear();
        let apart = |pair: &(MemberId, MemberId)| !together.contains(&pair.0) || !together.contains(&pair.1);
        let pairs = voters.into_iter().flat_map(|from| voters.map(|to| (from, to)));
        cluster.cut.extend(pairs.filter(apart));
    };
    connect(&mut cluster, &[first, keeper]);
    let marks: Vec<CallId> = (0..4).map(|_| cluster.mark(first)).collect();
    let (lock, cancelled) = (cluster.lock(first, 7), cluster.lock(first, 8));
    cluster.run(20);
    assert_eq!(cluster.status(keeper).last_index, cluster.status(first).last_index);
    cluster.cancel(first, cancelled);
    connect(&mut cluster, &others[1..]);
    let led_by = |cluster: &Cluster, who: &[MemberId]| {
        who.iter().copied().find(|member| cluster.status(*member).leader == *member)
    };
    cluster.run_until("another leads", |cluster| led_by(cluster, &others[1..]).is_some());
    let second = led_by(&cluster, &others[1..]).expect("just seen");
    connect(&mut cluster, &[first, second]);
    let last_index = cluster.status(second).last_index;
    cluster.run_until("the entries are overwritten", |cluster| cluster.status(first).last_index == last_index);
    cluster.run(20);
    let rest: Vec<MemberId> = others[1..].iter().copied().filter(|member| *member != second).collect();
    connect(&mut cluster, &[first, rest[0], rest[1]]);
    cluster.run_until("it leads again", |cluster| cluster.status(first).leader == first);
    cluster.cut.clear();
    cluster.isolate(first);
    let later = cluster.mark(first);
    cluster.run(20);
    connect(&mut cluster, &[keeper, rest[0], rest[1]]);
    cluster.run_until("the keeper leads", |cluster| cluster.status(keeper).leader == keeper);
    cluster.run(50);
    cluster.heal();
    cluster.run(1000);
    cluster.check_marks(first);
    for mark in marks {
        assert_eq!(cluster.outcomes.get(&mark), Some(&None), "call {mark} is done after all");
    }
    assert_eq!(cluster.outcomes.get(&later), Some(&Some(Failure::LeaderChanged)));
    assert_eq!((cluster.outcomes.get(&lock), cluster.counts.grants), (Some(&None), 1));
    let state = cluster.hosts[&first].replica.machine().state();
    assert_eq!(state.lock_queue(b"job").count(), 1, "the place that nobody waits for is left");
}

/// Every read makes a heartbeat, and every answer to one makes raft send all that the member may lack.
#[test]
fn a_member_that_comes_back_is_not_drowned_in_what_it_lacks() {
    const MISSED: u64 = 200;
    let mut cluster = Cluster::new(4, small_config());
    let leader = cluster.wait_for_leader();
    let away = MEMBERS.into_iter().find(|member| *member != leader).unwrap();
    cluster.isolate(away);
    for _ in 0..MISSED {
        cluster.put(leader);
        cluster.run(1);
    }
    cluster.restart(away);
    cluster.heal();
    // It hears everything, and takes its time to say what it has.
    cluster.host(away).disk_pace_ms = 60;
    let before = cluster.counts.entries_sent;
    for _ in 0..200 {
        cluster.get(leader);
        cluster.run(1);
    }
    cluster.run(500);
    let (sent, leader) = (cluster.counts.entries_sent - before, cluster.leader().unwrap());
    assert_eq!(cluster.status(away).applied_index, cluster.status(leader).applied_index);
    assert!(sent < 10 * MISSED, "{sent} entries were sent to a member that lacked {MISSED}");
}

#[test]
fn what_another_leader_overwrote_is_told_so() {
    let mut cluster = Cluster::new(3, small_config());
    let old = cluster.wait_for_leader();
    cluster.isolate(old);
    cluster.put(old);
    cluster.put(old);
    cluster.run(20);
    cluster.run_until("a new leader", |cluster| cluster.leader() != Some(old) && cluster.leader().is_some());
    cluster.wait_for_leader();
    cluster.heal();
    cluster.run(600);
    let new = cluster.leader().expect("a leader");
    cluster.put(new);
    cluster.put(new);
    cluster.run(200);
    assert_eq!((cluster.counts.puts, cluster.counts.leader_changed), (2, 2));
    assert!(cluster.asked.is_empty());
}

/// Proposals of an earlier term must not be taken for those of a later one, at the same index.
#[test]
fn a_leader_that_leads_again_answers_its_new_proposals() {
    for seed in 0..20 {
        let config = Config { call_timeout_ms: 60_000, ..small_config() };
        let mut cluster = Cluster::new(seed, config);
        let old = cluster.wait_for_leader();
        cluster.isolate(old);
        for _ in 0..10 {
            cluster.put(old);
        }
        cluster.run(20);
        cluster.run_until("a new leader", |cluster| cluster.leader() != Some(old) && cluster.leader().is_some());
        let new = cluster.wait_for_leader();
        cluster.heal();
        cluster.run(600);
        // Everybody but the first leader sleeps now and then, until it leads again.
        for _ in 0..50 {
            if cluster.leader() == Some(old) {
                break;
            }
            let leader = cluster.leader().unwrap_or(new);
            cluster.host(leader).paused_until_ms = cluster.now_ms + 700;
            cluster.run(1000);
        }
        if cluster.leader() != Some(old) {
            continue;
        }
        cluster.run(300);
        let before = cluster.counts;
        for _ in 0..5 {
            cluster.put(old);
        }
        cluster.run(300);
        assert_eq!(cluster.counts.puts - before.puts, 5, "seed {seed}: {:?}", cluster.counts);
        assert_eq!(cluster.counts.leader_changed, 10, "seed {seed}");
    }
}

/// Rule 14: a leader that cannot write makes room for others.
#[test]
fn a_leader_whose_log_hangs_gives_up() {
    let mut cluster = Cluster::new(5, small_config());
    let old = cluster.wait_for_leader();
    cluster.host(old).disk_pace_ms = 100_000;
    cluster.put(old);
    cluster.run_until("a new leader", |cluster| cluster.leader() != Some(old) && cluster.leader().is_some());
    let new = cluster.wait_for_leader();
    assert_ne!(new, old);
    cluster.put(new);
    cluster.run(100);
    assert!(cluster.counts.puts >= 1);
}

/// A report that comes again, and late, is not taken for a log that hangs.
#[test]
fn an_old_report_deposes_nobody() {
    let mut cluster = Cluster::new(7, small_config());
    let leader = cluster.wait_for_leader();
    let term = cluster.status(leader).term;
    cluster.host(leader).inputs.push(Input::Persisted { number: 1 });
    cluster.run(1000);
    assert_eq!((cluster.leader(), cluster.status(leader).term), (Some(leader), term));
}

/// What cannot be installed yet must not be taken for installed.
#[test]
fn a_snapshot_message_is_dropped() {
    let mut cluster = Cluster::new(8, small_config());
    let leader = cluster.wait_for_leader();
    cluster.put(leader);
    cluster.run(100);
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    let before = cluster.status(follower);
    let mut message = Message { to: follower, from: leader, term: before.term, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (before.last_index + 1000, before.term);
    metadata.mut_conf_state().voters = MEMBERS.to_vec();
    let message = raft_bytes(&message);
    cluster.host(follower).inputs.push(Input::Message { from: leader, message });
    cluster.run(100);
    assert_eq!(cluster.status(follower).last_index, before.last_index);
    cluster.put(leader);
    cluster.run(100);
    assert_eq!(cluster.counts.puts, 2);
    assert_eq!(cluster.status(follower).applied_index, cluster.status(leader).applied_index);
}

/// A leader with learners and no other voter must go on telling them that it is there.
#[test]
fn a_leader_of_learners_sends_heartbeats() {
    let boot = Disk::new(&[1], &[2]).boot();
    let now = |monotonic_ms| Now { monotonic_ms, wall_ms: 0 };
    let mut replica = Replica::boot(small_config(), boot, now(0)).expect("boots");
    let mut sent_ms = Vec::new();
    let mut written = Vec::new();
    for now_ms in 0..1000 {
        let mut outputs = Vec::new();
        if replica.wake_ms() <= now_ms || !written.is_empty() {
            replica.step(now(now_ms), written.drain(..), &mut outputs);
        }
        written.extend(outputs.iter().filter_map(|output| match output {
            Output::Persist(Persist { number, .. }) => Some(Input::Persisted { number: *number }),
            _ => None,
        }));
        sent_ms.extend(outputs.iter().filter(|output| matches!(output, Output::Send { .. })).map(|_| now_ms));
    }
    assert!(sent_ms.len() > 40, "{sent_ms:?}");
}

/// A vote counts in its own term: a member whose snapshot is of a later one is free to vote.
#[test]
fn a_vote_of_an_earlier_term_binds_nobody() {
    let hard_state = HardState { term: 0, vote: 2, commit: 0 };
    let boot = Boot { hard_state, ..Disk::new(&MEMBERS, &[]).boot() };
    let now = Now { monotonic_ms: 0, wall_ms: 0 };
    let mut replica = Replica::boot(small_config(), boot, now).expect("boots");
    let mut message = Message { to: 1, from: 3, term: 1, index: 9, log_term: 1, ..Message::default() };
    message.set_msg_type(MessageType::MsgRequestVote);
    let mut outputs = Vec::new();
    let message = raft_bytes(&message);
    replica.step(now, [Input::Message { from: 3, message }], &mut outputs);
    let votes: Vec<u64> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Persist(persist) => persist.hard_state.map(|state| state.vote),
            _ => None,
        })
        .collect();
    assert_eq!(votes, [3]);
}

/// A grant is told only when it is confirmed; a call that is cancelled before leaves the lock.
#[test]
fn a_grant_that_is_cancelled_before_it_is_confirmed_is_left() {
    // A follower of five has to ask: it and the leader are no majority.
    let mut cluster = Cluster::of(6, small_config(), &[1, 2, 3, 4, 5], &[]);
    let leader = cluster.wait_for_leader();
    let follower = cluster.members().into_iter().find(|member| *member != leader).expect("there are others");
    cluster.grant(follower, 7);
    cluster.run(50);
    let call = cluster.lock(follower, 7);
    cluster.run_until("the grant", |cluster| {
        !cluster.hosts[&follower].replica.machine().state().lock_holders(b"job").is_empty()
    });
    assert!(cluster.hosts[&follower].calls.waiting().contains(&call), "applied, not yet confirmed");
    cluster.cancel(follower, call);
    cluster.run(100);
    assert!(cluster.hosts[&follower].replica.machine().state().lock_holders(b"job").is_empty());
    assert_eq!(cluster.counts.grants, 0);
}

#[test]
fn random_schedules() {
    let seeds = match std::env::var("REPLICA_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("from..to");
            from.parse().expect("a number")..to.parse().expect("a number")
        }
        Err(_) => 0..30,
    };
    let mut total = Counts::default();
    for seed in seeds.clone() {
        let counts = random_schedule(seed);
        total.puts += counts.puts;
        total.reads += counts.reads;
        total.kept_alive += counts.kept_alive;
        total.grants += counts.grants;
        total.leader_changed += counts.leader_changed;
        total.timed_out += counts.timed_out;
        total.terms += counts.terms;
        total.snapshots += counts.snapshots;
        total.snapshots_refused += counts.snapshots_refused;
    }
    println!("{seeds:?}: {total:?}");
    assert!(total.puts > 0 && total.reads > 0 && total.kept_alive > 0 && total.grants > 0 && total.leader_changed > 0);
}

/// The same seed twice is the same run: randomness comes from nowhere else.
#[test]
fn a_seed_is_a_run() {
    for seed in 0..10 {
        assert_eq!(format!("{:?}", random_schedule(seed)), format!("{:?}", random_schedule(seed)), "seed {seed}");
    }
}

fn random_schedule(seed: u64) -> Counts {
    // In every other run hardly any log is kept, and who lags is sent a snapshot.
    let small_log = Config { log_tail_bytes: 700, catch_up_bytes: 1500, ..small_config() };
    let mut cluster = Cluster::new(seed, if seed.is_multiple_of(2) { small_config() } else { small_log });
    // Each seed has its own mix of faults.
    let faults = cluster.draw(64);
    let has = |fault: u64| faults & (1 << fault) != 0;
    for _ in 0..150 {
        let member = MEMBERS[cluster.draw(3) as usize];
        match cluster.draw(40) {
            0 if has(0) => cluster.isolate(member),
            1 if has(1) => {
                let other = MEMBERS[cluster.draw(3) as usize];
                cluster.cut.push((member, other));
            }
            2 if has(2) => cluster.loss_percent = cluster.draw(30),
            3 if has(3) => cluster.host(member).disk_pace_ms = 1 + cluster.random.next_u64() % 300,
            4 if has(4) => cluster.host(member).paused_until_ms = cluster.now_ms + cluster.random.next_u64() % 800,
            5 if has(5) => cluster.restart(member),
            6..=12 => cluster.heal(),
            _ => {}
        }
        for _ in 0..cluster.draw(6) {
            act(&mut cluster);
        }
        let millis = cluster.draw(60);
        cluster.run(millis);
    }
    cluster.heal();
    let leader = cluster.wait_for_leader();
    cluster.put(leader);
    cluster.get(leader);
    cluster.run_until("everybody catches up", |cluster| {
        let last = MEMBERS.map(|member| cluster.status(member).applied_index);
        last == [last[0]; 3] && cluster.status(1).last_index == last[0]
    });
    // All but locks, which wait for their turn, are answered in the end.
    cluster.run(3000);
    let left: Vec<_> = cluster.asked.values().filter(|asked| !matches!(asked, Asked::Lock)).collect();
    assert!(left.is_empty(), "seed {seed}: never answered: {left:?}");
    cluster.check_marks(leader);
    // Leases end, and locks with them, and whoever waits for one is told.
    cluster.run(5000);
    assert!(cluster.asked.is_empty(), "seed {seed}: never answered: {:?}", cluster.asked);
    assert!(cluster.hosts[&leader].replica.machine().state().lock_holders(b"job").is_empty(), "seed {seed}");
    cluster.counts.terms = cluster.status(leader).term;
    cluster.counts
}

fn act(cluster: &mut Cluster) {
    let member = match cluster.leader() {
        Some(leader) if cluster.percent(50) => leader,
        _ => MEMBERS[cluster.draw(3) as usize],
    };
    let lease = 1 + cluster.draw(40) as LeaseId;
    match cluster.draw(12) {
        0 => drop(cluster.put(member)),
        1..=2 => drop(cluster.mark(member)),
        3 => drop(cluster.get(member)),
        // A read at a follower asks the leader.
        4 => {
            let anybody = MEMBERS[cluster.draw(3) as usize];
            cluster.get(anybody);
        }
        5 => drop(cluster.grant(member, cluster.next_call as LeaseId + 1000)),
        6..=7 => {
            let leases: Vec<LeaseId> = cluster.promised_ms.keys().rev().take(4).copied().collect();
            if !leases.is_empty() {
                let lease = leases[cluster.draw(leases.len() as u64) as usize];
                cluster.keep_alive(member, lease);
            }
        }
        8..=9 => {
            let lease = cluster.promised_ms.keys().next_back().copied().unwrap_or(lease);
            cluster.lock(member, lease);
        }
        10 => {
            let view = cluster.hosts[&member].replica.machine().view();
            if let Some((key, _)) = view.lock_holders(b"job").first() {
                cluster.delete(member, key.to_vec());
            }
        }
        _ => {
            let waiting: Vec<CallId> = cluster.hosts[&member].calls.waiting().iter().copied().collect();
            if !waiting.is_empty() {
                let call = waiting[cluster.draw(waiting.len() as u64) as usize];
                cluster.cancel(member, call);
            }
        }
    }
}
