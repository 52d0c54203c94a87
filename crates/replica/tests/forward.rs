//! Clients at members that do not lead: what they ask for is forwarded, and has its effect at most once.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use bytes::Bytes;
use harness::config;
use members::{Asked, Cluster, MEMBERS, raft_message};
use raft::eraftpb::MessageType;
use tenure_machine::*;
use tenure_replica::{Config, Failure, Input};

/// The kinds of messages that carry raft's own, and commands.
const RAFT: u8 = 0;
const COMMANDS: u8 = 3;

fn small_config() -> Config {
    Config { election_min_ms: 100, election_max_ms: 200, heartbeat_ms: 20, call_timeout_ms: 1000, ..config(1) }
}

fn follower(cluster: &Cluster) -> MemberId {
    let leader = cluster.leader().expect("somebody leads");
    MEMBERS.into_iter().find(|member| *member != leader).expect("one of two")
}

fn put(key: &str, bytes: usize) -> Command {
    let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), vec![7; bytes].into());
    Command::Put(Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false })
}

#[test]
fn whoever_is_asked_has_it_done() {
    let mut cluster = Cluster::new(1, small_config());
    cluster.wait_for_leader();
    for member in MEMBERS {
        cluster.put(member);
        cluster.mark(member);
        cluster.grant(member, member as LeaseId);
        let marks = Delete { keys: Keys::prefix(Bytes::from_static(b"mark/")), prev_kv: false };
        let txn = Txn { success: vec![Op::Delete(marks)], ..Txn::default() };
        cluster.propose(member, Asked::Other, Command::Txn(txn));
        cluster.run(30);
        cluster.get(member);
        cluster.lock(member, member as LeaseId);
        cluster.run(30);
        cluster.delete(member, lock::entry_key(b"job", member as LeaseId));
        cluster.run(30);
    }
    assert_eq!((cluster.counts.puts, cluster.counts.reads, cluster.counts.grants), (3, 3, 3));
    assert!(cluster.asked.is_empty(), "{:?}", cluster.asked);
    assert!(cluster.outcomes.values().all(Option::is_none));
}

/// A hand-over is one round of the log: the release takes along the place that somebody asked for meanwhile. If no
/// command comes it is not forgotten.
#[test]
fn a_place_behind_others_goes_with_the_next_command() {
    let mut cluster = Cluster::new(1, Config { join_patience_ms: 50, ..small_config() });
    let leader = cluster.wait_for_leader();
    let follower = follower(&cluster);
    for lease in 1..=3 {
        cluster.grant(leader, lease);
    }
    cluster.run(30);
    cluster.lock(leader, 1);
    cluster.run(30);
    let before = cluster.status(leader).last_index;
    cluster.lock(follower, 2);
    cluster.run(20);
    assert_eq!(cluster.status(leader).last_index, before, "nobody waits for it yet");
    cluster.put(follower);
    cluster.run(20);
    assert_eq!(cluster.status(leader).last_index, before + 2, "both");
    let queue = |cluster: &Cluster| {
        let state = cluster.hosts[&leader].replica.machine().state();
        state.lock_queue(b"job").map(|entry| entry.lease).collect::<Vec<_>>()
    };
    assert_eq!(queue(&cluster), [1, 2]);
    cluster.lock(follower, 3);
    cluster.run(80);
    assert_eq!(queue(&cluster), [1, 2, 3], "its patience is over");
    cluster.delete(follower, lock::entry_key(b"job", 1));
    cluster.run(30);
    assert_eq!(cluster.counts.grants, 2, "the next one's turn");
}

/// With a member that is removed goes what is known of its commands. A copy of one that comes behind the removal, and
/// is held back like any place behind others, is not taken for new (seed 1794907519013).
#[test]
fn a_place_held_back_for_a_member_that_was_removed_is_not_taken_twice() {
    let mut cluster = Cluster::new(1, Config { join_patience_ms: 50, ..small_config() });
    let leader = cluster.wait_for_leader();
    let follower = follower(&cluster);
    for lease in 1..=4 {
        cluster.grant(leader, lease);
    }
    cluster.run(30);
    // More of them than commands will be under way: who comes then is held back.
    for lease in 1..=3 {
        cluster.lock(leader, lease);
        cluster.run(80);
    }
    let before = cluster.status(leader).last_index;
    cluster.copied = Some((follower, leader, COMMANDS));
    cluster.lock(follower, 4);
    cluster.run(20);
    for member in MEMBERS {
        cluster.host(member).disk_pace_ms = 15;
    }
    cluster.change(leader, MemberChange::Remove { id: follower, force: true });
    cluster.run(2);
    assert_eq!(cluster.status(leader).last_index, before + 2, "the place and the removal are under way");
    assert!(cluster.status(leader).applied_index <= before, "and have no effect yet");
    assert_eq!(cluster.copies.len(), 1);
    cluster.deliver_copies();
    cluster.run(200);
    let status = cluster.status(leader);
    assert_eq!((status.voters.len(), status.applied_index), (2, status.last_index), "it is removed");
    assert_eq!(status.last_index, before + 2, "the copy is not in the log");
}

/// A place that was held back goes to raft before raft begins to give leadership away: raft takes no proposals then, and
/// the leader, if it stays, would take every copy of the command for one that is in its log (seed 1794979177573).
#[test]
fn a_place_held_back_is_not_lost_when_leadership_is_not_taken() {
    for delay_ms in 30..60 {
        let mut cluster = Cluster::new(1, Config { join_patience_ms: 50, ..small_config() });
        let leader = cluster.wait_for_leader();
        let follower = follower(&cluster);
        for lease in 1..=4 {
            cluster.grant(leader, lease);
        }
        cluster.run(30);
        for lease in 1..=3 {
            cluster.lock(leader, lease);
            cluster.run(80);
        }
        cluster.lock(follower, 4);
        cluster.run(delay_ms);
        cluster.lost = Some(MessageType::MsgTimeoutNow);
        cluster.transfer(leader, None);
        cluster.run(400);
        assert_eq!(cluster.leader(), Some(leader), "nobody has heard that it may lead");
        let places = cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count();
        assert_eq!(places, 4, "asked to give way after {delay_ms} ms");
    }
}

/// The message that carries a Lock is late, its call is given up, and the leave would be the first to arrive. A caller
/// that is told that its place is left relies on it, even if this member dies then and the Lock comes after all.
#[test]
fn a_leave_does_not_overtake_its_lock() {
    for seed in 0..10 {
        let mut cluster = Cluster::new(seed, Config { call_timeout_ms: 60_000, ..small_config() });
        let leader = cluster.wait_for_leader();
        let follower = follower(&cluster);
        cluster.grant(follower, 7);
        cluster.run(50);
        cluster.copied = Some((follower, leader, COMMANDS));
        cluster.cut.push((follower, leader));
        let joiner = u128::from(cluster.next_call);
        let call = cluster.lock(follower, 7);
        cluster.run(5);
        cluster.heal();
        let leave = Leave { key: lock::entry_key(b"job", 7).into(), call: joiner };
        cluster.asked.remove(&call);
        cluster.host(follower).calls.cancelled(call);
        cluster.host(follower).inputs.push(Input::CancelLock { call, leaves: vec![leave.clone()] });
        let left = cluster.propose(follower, Asked::Other, Command::Leave(leave));
        cluster.run_until("the leave is committed", |cluster| cluster.outcomes.contains_key(&left));
        assert_eq!(cluster.outcomes[&left], None, "seed {seed}");
        cluster.isolate(follower);
        cluster.deliver_copies();
        cluster.run(400);
        let state = cluster.hosts[&leader].replica.machine().state();
        assert!(state.lease_ttl_ms(7).is_some(), "seed {seed}: the lease lives");
        assert_eq!(state.lock_queue(b"job").count(), 0, "seed {seed}");
    }
}

/// A session asks again for a place that it took at a member that is gone, only to leave it. The request is given up before
/// it is sent. A leave ends only what its own call has, so the request must take the place over first.
#[test]
fn a_lock_given_up_before_it_is_sent_leaves_the_place_of_its_session() {
    for seed in 0..5 {
        assert_eq!(leases_after_giving_up(seed, 1), [6], "seed {seed}");
    }
}

/// Without a session the place may be that of a call which still waits, or of one that relies on it.
#[test]
fn a_lock_given_up_before_it_is_sent_leaves_nothing_of_other_calls() {
    for seed in 0..5 {
        assert_eq!(leases_after_giving_up(seed, 0), [6, 7], "seed {seed}");
    }
}

/// Lease 6 holds a lock, and lease 7 waits for it by a call at a member that is cut off then. At another member a call of
/// lease 7 in this epoch of its session is given up before it is sent. Gives the leases in the queue when it is left.
fn leases_after_giving_up(seed: u64, epoch: u64) -> Vec<LeaseId> {
    let mut cluster = Cluster::new(seed, Config { call_timeout_ms: 60_000, ..small_config() });
    let leader = cluster.wait_for_leader();
    let follower = follower(&cluster);
    let other = MEMBERS.into_iter().find(|member| ![leader, follower].contains(member)).expect("a third one");
    cluster.grant(leader, 6);
    cluster.grant(leader, 7);
    cluster.run(50);
    cluster.lock(leader, 6);
    cluster.run(50);
    let first = cluster.lock(other, 7);
    cluster.run(50);
    cluster.asked.remove(&first);
    cluster.isolate(other);
    let (joiner, name) = (u128::from(cluster.next_call), Bytes::from_static(b"job"));
    cluster.propose(follower, Asked::Other, Command::ResumeSession { lease: 7 });
    cluster.run(50);
    let lock = Lock { name, lease: 7, call: joiner, epoch, ..Lock::default() };
    let call = cluster.ask(follower, Asked::Lock, |call| Input::Lock { call, lock: Box::new(lock) });
    let leave = Leave { key: lock::entry_key(b"job", 7).into(), call: joiner };
    cluster.asked.remove(&call);
    cluster.host(follower).calls.cancelled(call);
    cluster.host(follower).inputs.push(Input::CancelLock { call, leaves: vec![leave.clone()] });
    let left = cluster.propose(follower, Asked::Other, Command::Leave(leave));
    cluster.run_until("the leave is committed", |cluster| cluster.outcomes.contains_key(&left));
    assert_eq!(cluster.outcomes[&left], None, "seed {seed}");
    let state = cluster.hosts[&follower].replica.machine().state();
    state.lock_queue(b"job").map(|entry| entry.lease).collect()
}

/// A leader tells every commit index at once, and raft answers each time.
#[test]
fn a_follower_says_once_what_it_has_and_writes_down_what_is_committed_with_what_comes_next() {
    let slow = Config { election_min_ms: 1000, election_max_ms: 2000, heartbeat_ms: 200, ..small_config() };
    let mut cluster = Cluster::new(1, slow);
    let leader = cluster.wait_for_leader();
    let follower = follower(&cluster);
    cluster.run(300);
    cluster.copied = Some((follower, leader, RAFT));
    cluster.put(leader);
    cluster.run(60);
    let first = cluster.status(leader).commit_index;
    assert_eq!(cluster.status(follower).commit_index, first, "it knows");
    let sent = cluster.copies.iter().filter_map(|packet| raft_message(&packet.message));
    let said = sent.filter(|message| message.msg_type() == MessageType::MsgAppendResponse && message.index == first);
    assert_eq!(said.count(), 1);
    assert!(cluster.host(follower).disk.hard_state.commit < first, "that alone is not worth a write");
    cluster.put(leader);
    cluster.run(60);
    assert!(cluster.host(follower).disk.hard_state.commit >= first);
}

/// Without being forwarded again what the network loses would time out; without their origin copies would count twice.
#[test]
fn lost_and_doubled_messages_have_one_effect() {
    let mut cluster = Cluster::new(2, Config { call_timeout_ms: 10_000, ..small_config() });
    cluster.wait_for_leader();
    cluster.loss_percent = 25;
    for _ in 0..200 {
        let member = follower(&cluster);
        cluster.mark(member);
        cluster.run(5);
        if cluster.leader().is_none() {
            cluster.heal();
            cluster.wait_for_leader();
            cluster.loss_percent = 25;
        }
    }
    cluster.heal();
    let leader = cluster.wait_for_leader();
    cluster.run(3000);
    assert!(cluster.asked.is_empty());
    cluster.check_marks(leader);
    assert!(cluster.outcomes.values().all(Option::is_none), "{:?}", cluster.outcomes);
}

/// The leader dies with what was forwarded to it, at whatever point: the next one has it done.
#[test]
fn a_forwarded_command_outlives_its_leader() {
    for millis in 0..12 {
        let mut cluster = Cluster::new(3 + millis, small_config());
        let old = cluster.wait_for_leader();
        cluster.run(100);
        let follower = follower(&cluster);
        let call = cluster.mark(follower);
        cluster.run(millis);
        cluster.isolate(old);
        cluster.run_until("an answer", |cluster| cluster.outcomes.contains_key(&call));
        assert_eq!(cluster.outcomes[&call], None, "after {millis} ms");
        cluster.heal();
        let leader = cluster.wait_for_leader();
        cluster.run(500);
        cluster.check_marks(leader);
    }
}

/// A member that comes to lead with something of its own still to be forwarded proposes it itself.
#[test]
fn whoever_comes_to_lead_takes_its_own_along() {
    let mut seen = 0;
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, small_config());
        let old = cluster.wait_for_leader();
        cluster.run(100);
        cluster.isolate(old);
        let followers: Vec<_> = MEMBERS.into_iter().filter(|member| *member != old).collect();
        let calls: Vec<_> = followers.iter().map(|member| (*member, cluster.mark(*member))).collect();
        cluster.run_until("answers", |cluster| calls.iter().all(|(_, call)| cluster.outcomes.contains_key(call)));
        let leader = cluster.leader().expect("a new leader");
        seen += calls.iter().filter(|(member, call)| *member == leader && cluster.outcomes[call].is_none()).count();
        cluster.run(300);
        cluster.check_marks(leader);
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn without_a_leader_a_call_waits_and_is_told() {
    let mut cluster = Cluster::new(4, small_config());
    let leader = cluster.wait_for_leader();
    let follower = follower(&cluster);
    for member in MEMBERS {
        cluster.isolate(member);
    }
    cluster.run(600);
    assert_eq!(cluster.status(follower).leader, 0);
    let told = cluster.mark(follower);
    cluster.run(900);
    assert!(!cluster.outcomes.contains_key(&told), "it waits for its time");
    let done = cluster.mark(follower);
    cluster.run(200);
    assert_eq!(cluster.outcomes[&told], Some(Failure::NoLeader));
    cluster.heal();
    cluster.run(700);
    assert_eq!(cluster.outcomes[&done], None);
    cluster.check_marks(leader);
}

#[test]
fn a_place_is_taken_at_a_follower_and_granted_there_though_leaders_die() {
    for seed in 0..5 {
        let mut cluster = Cluster::new(seed, Config { call_timeout_ms: 5000, ..small_config() });
        let old = cluster.wait_for_leader();
        let follower = follower(&cluster);
        cluster.grant(follower, 7);
        cluster.grant(follower, 8);
        cluster.run(50);
        cluster.lock(old, 7);
        cluster.run(50);
        let waiting = cluster.lock(follower, 8);
        cluster.run(50);
        assert_eq!(cluster.status(follower).waiting_locks, 1);
        cluster.isolate(old);
        cluster.run_until("a new leader", |cluster| cluster.leader().is_some_and(|leader| leader != old));
        cluster.wait_for_leader();
        assert!(!cluster.outcomes.contains_key(&waiting));
        cluster.delete(follower, lock::entry_key(b"job", 7));
        cluster.run_until("the grant", |cluster| cluster.outcomes.contains_key(&waiting));
        assert_eq!(cluster.outcomes[&waiting], None);
        let state = cluster.hosts[&follower].replica.machine().state();
        assert_eq!(&state.lock_holders(b"job")[0].0[..], &lock::entry_key(b"job", 8)[..]);
    }
}

/// Rule 1, wherever the place was taken: a cancelled call leaves its place, and somebody else gets it.
#[test]
fn a_cancelled_call_leaves_its_place_whatever_becomes_of_messages() {
    let mut cancelled = 0;
    for seed in 0..30 {
        let mut cluster = Cluster::new(seed, Config { call_timeout_ms: 60_000, ..small_config() });
        let old = cluster.wait_for_leader();
        let follower = follower(&cluster);
        cluster.grant(follower, 7);
        cluster.grant(follower, 8);
        cluster.run(50);
        let call = cluster.lock(follower, 7);
        let millis = cluster.draw(8);
        cluster.run(millis);
        if cluster.outcomes.contains_key(&call) {
            continue;
        }
        cancelled += 1;
        cluster.cancel(follower, call);
        cluster.loss_percent = 40;
        cluster.run(millis);
        cluster.isolate(old);
        cluster.run(300);
        cluster.heal();
        let leader = cluster.wait_for_leader();
        cluster.run(200);
        let held = cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count();
        assert_eq!(held, 0, "seed {seed}");
    }
    assert!(cancelled >= 15, "{cancelled} were cancelled in time");
}

/// A leader's own leaves are not lost with its leadership either.
#[test]
fn a_deposed_leader_still_leaves() {
    for seed in 0..10 {
        let mut cluster = Cluster::new(seed, Config { call_timeout_ms: 60_000, ..small_config() });
        let old = cluster.wait_for_leader();
        cluster.grant(old, 6);
        cluster.grant(old, 7);
        cluster.run(50);
        cluster.lock(old, 6);
        cluster.run(50);
        let call = cluster.lock(old, 7);
        cluster.run_until("the place", |cluster| {
            cluster.hosts[&old].replica.machine().state().lock_queue(b"job").count() == 2
        });
        cluster.isolate(old);
        cluster.cancel(old, call);
        cluster.run_until("a new leader", |cluster| cluster.leader().is_some_and(|leader| leader != old));
        cluster.wait_for_leader();
        cluster.heal();
        cluster.run(400);
        let leader = cluster.wait_for_leader();
        assert!(cluster.hosts[&leader].replica.machine().state().lease_ttl_ms(7).is_some(), "it did not just expire");
        let places = cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count();
        assert_eq!(places, 1, "seed {seed}: only the holder is left");
    }
}

#[test]
fn a_leader_refuses_what_a_follower_forwards() {
    let mut cluster = Cluster::new(5, Config { quota_bytes: 4000, ..small_config() });
    let leader = cluster.wait_for_leader();
    let follower = follower(&cluster);
    cluster.propose(leader, Asked::Other, put("big", 5000));
    cluster.run(50);
    cluster.copied = Some((follower, leader, COMMANDS));
    let refused = cluster.mark(follower);
    cluster.run(50);
    assert_eq!(cluster.outcomes[&refused], Some(Failure::Refused(Refusal::NoSpace)));
    // There is room again; what was refused does not come in by a copy that was held up.
    let delete = Command::Delete(Delete { keys: Keys::One(Bytes::from_static(b"big")), prev_kv: false });
    // (By the leader itself: whatever the follower forwards says what it is through with.)
    cluster.propose(leader, Asked::Other, delete);
    cluster.run(50);
    cluster.propose(leader, Asked::Other, Command::Compact { revision: 3 });
    let clear = AlarmChange::Clear(Alarm { member: 0, kind: AlarmKind::NoSpace });
    cluster.propose(leader, Asked::Other, Command::Alarm(clear));
    cluster.run(50);
    assert!(!cluster.copies.is_empty());
    cluster.deliver_copies();
    cluster.run(50);
    let taken = cluster.mark(follower);
    cluster.run(50);
    assert_eq!(cluster.outcomes[&taken], None, "there is room");
    cluster.check_marks(leader);
}

/// A command of a process that is gone, coming late, must not make its successor's count for nothing.
#[test]
fn a_boot_that_is_gone_does_not_return() {
    let mut cluster = Cluster::new(6, small_config());
    let leader = cluster.wait_for_leader();
    cluster.run(50);
    let follower = follower(&cluster);
    cluster.copied = Some((follower, leader, COMMANDS));
    cluster.cut.push((follower, leader));
    cluster.mark(follower);
    cluster.run(20);
    cluster.restart(follower);
    cluster.heal();
    cluster.copied = None;
    cluster.run(100);
    let first = cluster.mark(follower);
    cluster.run(50);
    assert_eq!((cluster.copies.len(), &cluster.outcomes[&first]), (1, &None));
    cluster.deliver_copies();
    cluster.run(50);
    let second = cluster.mark(follower);
    cluster.run(50);
    assert_eq!(cluster.outcomes.get(&second), Some(&None));
    cluster.check_marks(leader);
}
