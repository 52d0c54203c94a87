//! Members that lag too far for the log, or know nothing yet: they are sent a snapshot, and whoever waits there is
//! looked up in it.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use bytes::Bytes;
use harness::{Disk, config};
use members::{Asked, Cluster, MEMBERS, raft_bytes};
use raft::eraftpb::{ConfState, Message, MessageType};
use tenure_machine::*;
use tenure_replica::{
    Config, Failure, Input, LockNotice, LockWatchRequest, Notice, SessionNotice, WatchRequest, first_configuration,
};

/// Almost no log is kept for those who are not there.
fn small_log() -> Config {
    Config {
        election_min_ms: 100,
        election_max_ms: 200,
        heartbeat_ms: 20,
        call_timeout_ms: 5000,
        log_tail_bytes: 500,
        catch_up_bytes: 20_000,
        ..config(1)
    }
}

/// A cluster, its leader and one that follows.
fn cluster(seed: u64) -> (Cluster, MemberId, MemberId) {
    let mut cluster = Cluster::new(seed, small_log());
    let leader = cluster.wait_for_leader();
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    cluster.run(100);
    (cluster, leader, follower)
}

/// Cuts a member off for so long that it is given up, and writes more than the log keeps.
fn leave_behind(cluster: &mut Cluster, member: MemberId) {
    cluster.isolate(member);
    cluster.run(600);
    let leader = cluster.wait_for_leader();
    for _ in 0..20 {
        cluster.put(leader);
        cluster.run(5);
    }
}

fn catch_up(cluster: &mut Cluster, member: MemberId) {
    cluster.heal();
    cluster.run_until("it catches up", |cluster| {
        cluster.leader().is_some_and(|leader| {
            cluster.status(member).applied_index == cluster.status(leader).applied_index
                && cluster.status(member).leader == leader
        })
    });
}

#[test]
fn a_member_that_lags_is_sent_a_snapshot() {
    let (mut cluster, _, follower) = cluster(1);
    leave_behind(&mut cluster, follower);
    catch_up(&mut cluster, follower);
    assert_eq!((cluster.counts.snapshots, cluster.counts.snapshots_refused), (1, 0));
    let installed = cluster.status(follower).snapshot_index;
    assert!(installed > 20, "{installed}");
    // It goes on from there as if nothing had been, also after a restart.
    cluster.mark(follower);
    cluster.run(50);
    cluster.restart(follower);
    assert_eq!(cluster.status(follower).applied_index, installed);
    cluster.run(100);
    cluster.mark(follower);
    cluster.get(follower);
    cluster.run(50);
    let leader = cluster.wait_for_leader();
    cluster.check_marks(leader);
    assert!(cluster.asked.is_empty());
    assert_eq!(cluster.counts.snapshots, 1);
}

#[test]
fn a_member_that_knows_nothing_is_sent_a_snapshot() {
    let mut cluster = Cluster::of(2, small_log(), &MEMBERS, &[4]);
    cluster.hosts.remove(&4);
    let leader = cluster.wait_for_leader();
    for _ in 0..5 {
        cluster.put(leader);
    }
    cluster.run(100);
    cluster.start(4, Disk::joining());
    let early = cluster.get(4);
    cluster.run(300);
    assert_eq!(cluster.status(4).applied_index, cluster.status(leader).applied_index);
    assert!(cluster.status(4).learner);
    assert_eq!((&cluster.outcomes[&early], cluster.counts.reads), (&None, 1));
    cluster.restart(4);
    cluster.run(100);
    cluster.mark(4);
    cluster.run(100);
    cluster.check_marks(leader);
    assert!(cluster.asked.is_empty());
}

/// Entries are kept for a member that is being sent a snapshot, or it would never be done.
#[test]
fn a_member_catches_up_while_others_write() {
    let (mut cluster, _, follower) = cluster(3);
    leave_behind(&mut cluster, follower);
    cluster.heal();
    cluster.stream_ms = 150;
    let leader = cluster.wait_for_leader();
    for _ in 0..300 {
        cluster.put(leader);
        cluster.run(3);
    }
    let (lags, leads) = (cluster.status(follower).applied_index, cluster.status(leader).applied_index);
    assert!(lags + 20 > leads, "{lags} of {leads}");
    assert!(cluster.counts.snapshots <= 2, "{:?}", cluster.counts);
}

#[test]
fn a_snapshot_that_does_not_arrive_is_sent_again() {
    let (mut cluster, leader, follower) = cluster(4);
    leave_behind(&mut cluster, follower);
    cluster.stream_ms = 100;
    cluster.heal();
    cluster.run_until("it is on its way", |cluster| cluster.status(leader).snapshot_index > 20);
    cluster.run(80);
    cluster.isolate(follower);
    cluster.run(300);
    assert_eq!(cluster.counts.snapshots, 0);
    catch_up(&mut cluster, follower);
    assert_eq!(cluster.counts.snapshots, 1);
}

/// Scenario 16, and all else that may have become of a place meanwhile.
#[test]
fn places_in_queues_are_looked_up() {
    let (mut cluster, leader, follower) = cluster(5);
    let names = ["turn", "ended", "still"];
    for lease in 1..=2 {
        let grant = LeaseGrant { lease, ttl_ms: 60_000, client: Bytes::new() };
        cluster.propose(leader, Asked::Other, Command::LeaseGrant(grant));
    }
    cluster.run(50);
    let place = |name: &str, lease: LeaseId, call: u128| Lock {
        name: Bytes::copy_from_slice(name.as_bytes()),
        lease,
        call,
        ..Lock::default()
    };
    for (name, number) in names.iter().zip(0..) {
        let lock = place(name, 1, number);
        cluster.ask(leader, Asked::Other, |call| Input::Lock { call, lock: Box::new(lock) });
    }
    cluster.run(50);
    let calls = names.map(|name| {
        let lock = place(name, 2, 100 + u128::from(cluster.next_call));
        cluster.ask(follower, Asked::Lock, |call| Input::Lock { call, lock: Box::new(lock) })
    });
    cluster.run(50);
    assert_eq!(cluster.status(follower).waiting_locks, 3);
    leave_behind(&mut cluster, follower);
    let leader = cluster.wait_for_leader();
    cluster.delete(leader, lock::entry_key(b"turn", 1));
    cluster.delete(leader, lock::entry_key(b"ended", 2));
    cluster.run(50);
    catch_up(&mut cluster, follower);
    cluster.run(50);
    assert_eq!(cluster.counts.snapshots, 1);
    assert_eq!((cluster.outcomes.get(&calls[0]), cluster.counts.grants), (Some(&None), 1));
    assert_eq!(cluster.outcomes.get(&calls[1]), Some(&Some(Failure::EntryEnded(LockEnd::Released))));
    assert_eq!(cluster.outcomes.get(&calls[2]), None, "it waits on");
    cluster.delete(leader, lock::entry_key(b"still", 1));
    cluster.run(50);
    assert_eq!((cluster.outcomes.get(&calls[2]), cluster.counts.grants), (Some(&None), 2));
}

/// What was forwarded, took effect, and was skipped by the member that forwarded it.
#[test]
fn what_was_forwarded_is_looked_up() {
    let (mut cluster, leader, follower) = cluster(6);
    for lease in [7, 8] {
        let grant = LeaseGrant { lease, ttl_ms: 60_000, client: Bytes::new() };
        cluster.propose(leader, Asked::Other, Command::LeaseGrant(grant));
    }
    cluster.run(50);
    // Its messages reach the others, but nothing reaches it.
    for other in MEMBERS.into_iter().filter(|other| *other != follower) {
        cluster.cut.push((other, follower));
    }
    let put = cluster.mark(follower);
    let lock = cluster.lock(follower, 7);
    let cancelled = cluster.lock(follower, 8);
    cluster.run(20);
    cluster.cancel(follower, cancelled);
    cluster.run(20);
    let applied = cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count();
    assert_eq!(applied, 2, "forwarded, taken, and not known of");
    leave_behind(&mut cluster, follower);
    let later = cluster.mark(follower);
    catch_up(&mut cluster, follower);
    cluster.run(200);
    assert_eq!(cluster.counts.snapshots, 1);
    assert_eq!(cluster.outcomes.get(&put), Some(&Some(Failure::OutcomeUnknown)), "its reply is lost");
    assert_eq!((cluster.outcomes.get(&lock), cluster.counts.grants), (Some(&None), 1));
    assert!(cluster.outcomes.contains_key(&later), "one way or the other");
    let leader = cluster.wait_for_leader();
    assert_eq!(cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count(), 1, "the other was left");
    cluster.check_marks(leader);
}

/// A caller gives its lock up, and in the same step a snapshot shows that its place stands in the queue.
#[test]
fn a_place_that_is_given_up_right_before_the_snapshot_is_left() {
    let (mut cluster, leader, follower) = cluster(14);
    for lease in [7, 8] {
        let grant = LeaseGrant { lease, ttl_ms: 60_000, client: Bytes::new() };
        cluster.propose(leader, Asked::Other, Command::LeaseGrant(grant));
    }
    cluster.run(50);
    let holder = cluster.lock(leader, 7);
    cluster.run(50);
    // Its messages reach the others, but nothing reaches it.
    for other in MEMBERS.into_iter().filter(|other| *other != follower) {
        cluster.cut.push((other, follower));
    }
    let waits = cluster.lock(follower, 8);
    cluster.run(20);
    leave_behind(&mut cluster, follower);
    cluster.cut.clear();
    cluster.stream_ms = 200;
    cluster.run(150);
    let until_ms = cluster.now_ms + 300;
    cluster.host(follower).paused_until_ms = until_ms;
    assert_eq!(cluster.counts.snapshots, 0);
    cluster.cancel(follower, waits);
    cluster.run(600);
    assert_eq!(cluster.counts.snapshots, 1);
    let state = cluster.hosts[&follower].replica.machine().state();
    assert_eq!(state.lock_queue(b"job").count(), 1, "the holder's place only");
    assert_eq!(cluster.status(follower).waiting_locks, 0);
    assert_eq!((cluster.outcomes.get(&holder), cluster.outcomes.get(&waits)), (Some(&None), None));
}

/// A leader proposes two places and is cut off before it hears that they are committed. One of the calls is given up
/// meanwhile. The leader comes back by a snapshot: it leaves the place of that call and tells the other of its grant.
#[test]
fn own_places_are_looked_up() {
    let (mut cluster, old, _) = cluster(11);
    for lease in [7, 8] {
        let grant = LeaseGrant { lease, ttl_ms: 60_000, client: Bytes::new() };
        cluster.propose(old, Asked::Other, Command::LeaseGrant(grant));
    }
    cluster.run(50);
    // Its messages reach the others, but nothing reaches it.
    for other in MEMBERS.into_iter().filter(|other| *other != old) {
        cluster.cut.push((other, old));
    }
    let lock = cluster.lock(old, 7);
    let cancelled = cluster.lock(old, 8);
    cluster.run(20);
    cluster.cancel(old, cancelled);
    leave_behind(&mut cluster, old);
    let leader = cluster.wait_for_leader();
    assert_ne!(leader, old);
    let places = |cluster: &Cluster| cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count();
    assert_eq!(places(&cluster), 2, "both were committed");
    catch_up(&mut cluster, old);
    cluster.run(200);
    assert_eq!(cluster.counts.snapshots, 1);
    assert_eq!((cluster.outcomes.get(&lock), cluster.counts.grants), (Some(&None), 1));
    assert_eq!(places(&cluster), 1, "the place that nobody waits for is left");
}

/// A place that is given up by a timeout, not by its caller.
#[test]
fn own_places_that_timed_out_are_left() {
    let (mut cluster, old, _) = cluster(12);
    let grant = LeaseGrant { lease: 7, ttl_ms: 60_000, client: Bytes::new() };
    cluster.propose(old, Asked::Other, Command::LeaseGrant(grant));
    cluster.run(50);
    for other in MEMBERS.into_iter().filter(|other| *other != old) {
        cluster.cut.push((other, old));
    }
    let lock = cluster.lock(old, 7);
    cluster.run(20);
    leave_behind(&mut cluster, old);
    cluster.run_until("it times out", |cluster| cluster.outcomes.contains_key(&lock));
    assert_eq!(cluster.outcomes[&lock], Some(Failure::TimedOut));
    catch_up(&mut cluster, old);
    cluster.run(200);
    assert_eq!(cluster.counts.snapshots, 1);
    let leader = cluster.wait_for_leader();
    assert_eq!(cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count(), 0);
}

/// A deposed leader's proposals that the snapshot skips: nobody knows what became of them.
#[test]
fn proposals_that_were_skipped_are_told_so() {
    let (mut cluster, old, _) = cluster(7);
    cluster.isolate(old);
    let call = cluster.mark(old);
    cluster.run(20);
    leave_behind(&mut cluster, old);
    catch_up(&mut cluster, old);
    assert_eq!(cluster.counts.snapshots, 1);
    assert_eq!(cluster.outcomes.get(&call), Some(&Some(Failure::OutcomeUnknown)));
    cluster.check_marks(old);
}

/// Scenario 8: a watch goes on where it was, from history, or is told that it cannot.
#[test]
fn watches_go_on_from_history() {
    let (mut cluster, _, follower) = cluster(8);
    let keys = || Keys::One(Bytes::from_static(b"register"));
    let create = |watch| WatchRequest::Create { watch, keys: keys(), start: None };
    cluster.host(follower).inputs.push(Input::Watch { stream: 1, request: create(5) });
    cluster.run(10);
    let seen = cluster.status(follower).revision;
    leave_behind(&mut cluster, follower);
    catch_up(&mut cluster, follower);
    let behind = cluster.notices.iter().find_map(|(member, stream, notice)| match notice {
        Notice::Behind { watch: 5, from, view, .. } if (*member, *stream) == (follower, 1) => Some((*from, view)),
        _ => None,
    });
    let (from, view) = behind.expect("it reads on");
    assert_eq!(from, seen + 1);
    assert_eq!(view.commits(from).expect("history is there").count() as i64, view.revision() - seen);
    let from = view.revision() + 1;
    cluster.host(follower).inputs.push(Input::Watch { stream: 1, request: WatchRequest::Resume { watch: 5, from } });
    cluster.put(follower);
    cluster.run(50);
    let fed = cluster.notices.iter().any(|(_, _, notice)| matches!(notice, Notice::Commits { watch: 5, .. }));
    assert!(fed, "and is fed again");
    // Once more, but history is compacted meanwhile.
    leave_behind(&mut cluster, follower);
    let leader = cluster.wait_for_leader();
    let revision = cluster.status(leader).revision;
    cluster.propose(leader, Asked::Other, Command::Compact { revision });
    for _ in 0..10 {
        cluster.put(leader);
        cluster.run(5);
    }
    catch_up(&mut cluster, follower);
    let compacted = cluster.notices.iter().any(|(_, _, notice)| matches!(notice, Notice::Compacted { watch: 5, .. }));
    assert!(compacted);
}

/// A member may apply entries in the middle of a step, when it is offered a snapshot. What it feeds to a watch then
/// stands before what the rest of the step tells that watch.
#[test]
fn notices_stay_in_order_when_a_snapshot_comes_in_mid_step() {
    let mut cluster = Cluster::new(13, Config { watch_buffer_bytes: 1, ..small_log() });
    let leader = cluster.wait_for_leader();
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    cluster.run(100);
    let keys = Keys::One(Bytes::from_static(b"register"));
    let request = WatchRequest::Create { watch: 5, keys, start: None };
    cluster.host(follower).inputs.push(Input::Watch { stream: 1, request });
    cluster.run(10);
    let seen = cluster.status(follower).revision;
    // The follower hears that two puts are committed before its disk has them.
    cluster.host(follower).disk_pace_ms = 10_000;
    cluster.put(leader);
    cluster.put(leader);
    cluster.run(60);
    assert_eq!((cluster.counts.puts, cluster.status(follower).revision), (2, seen));
    let term = cluster.status(follower).term;
    let mut message = Message { to: follower, from: leader, term, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    message.mut_snapshot().mut_metadata().mut_conf_state().voters = MEMBERS.to_vec();
    let stale = Input::SnapshotReceived {
        from: leader,
        message: raft_bytes(&message),
        machine: Box::new(Machine::new()),
        configuration: first_configuration(&MEMBERS),
        bytes: 1,
    };
    let host = cluster.host(follower);
    let number = host.disk.unwritten.last().expect("the puts").number;
    host.disk.write_upto(number);
    let drained = Input::Watch { stream: 1, request: WatchRequest::Drained { bytes: 1 << 20 } };
    host.inputs.extend([Input::Persisted { number }, stale, drained]);
    cluster.notices.clear();
    cluster.run(1);
    let told = cluster.notices.iter().map(|(_, _, notice)| match notice {
        Notice::Commits { commits, .. } => commits[0].revision,
        Notice::Behind { from, .. } => *from,
        other => panic!("{other:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), [seen + 1, seen + 2]);
}

#[test]
fn lock_watches_and_sessions_are_told() {
    let (mut cluster, leader, follower) = cluster(9);
    let grant = LeaseGrant { lease: 7, ttl_ms: 60_000, client: Bytes::new() };
    cluster.propose(leader, Asked::Other, Command::LeaseGrant(grant));
    cluster.run(50);
    cluster.lock(follower, 7);
    cluster.run(50);
    let request = LockWatchRequest::Create { watch: 3, name: Bytes::from_static(b"job"), prefix: false, start: 0 };
    cluster.host(follower).inputs.push(Input::LockWatch { stream: 1, request });
    cluster.host(follower).inputs.push(Input::SessionOpened { stream: 2, lease: 7 });
    cluster.run(10);
    leave_behind(&mut cluster, follower);
    let leader = cluster.wait_for_leader();
    cluster.propose(leader, Asked::Other, Command::LeaseRevoke { lease: 7 });
    cluster.run(50);
    catch_up(&mut cluster, follower);
    assert_eq!(cluster.counts.snapshots, 1);
    let fell_behind = |notice: &LockNotice| matches!(notice, LockNotice::FellBehind { watch: 3, .. });
    assert!(cluster.lock_notices.iter().any(|(_, stream, notice)| *stream == 1 && fell_behind(notice)));
    let is_loss = |notice: &SessionNotice| matches!(notice, SessionNotice::Lost { name, cause: LockEnd::LeaseRevoked, .. } if &name[..] == b"job");
    let told = cluster.session_notices.iter().filter(|(_, stream, notice)| *stream == 2 && is_loss(notice)).count();
    assert_eq!(told, 1, "{:?}", cluster.session_notices);
}

/// Another client's put has taken the lease from the key of the place, which is not among the lease's keys any more.
#[test]
fn a_session_is_told_of_a_place_whose_key_was_overwritten() {
    let (mut cluster, leader, follower) = cluster(9);
    let grant = LeaseGrant { lease: 7, ttl_ms: 60_000, client: Bytes::new() };
    cluster.propose(leader, Asked::Other, Command::LeaseGrant(grant));
    cluster.run(50);
    cluster.lock(follower, 7);
    cluster.run(50);
    let key = Bytes::from(lock::entry_key(b"job", 7));
    let put = Put {
        key: key.clone(),
        value: key.clone(),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    };
    cluster.propose(leader, Asked::Other, Command::Put(put));
    cluster.host(follower).inputs.push(Input::SessionOpened { stream: 2, lease: 7 });
    cluster.run(50);
    leave_behind(&mut cluster, follower);
    let leader = cluster.wait_for_leader();
    cluster.propose(leader, Asked::Other, Command::Delete(Delete { keys: Keys::One(key), prev_kv: false }));
    cluster.run(50);
    catch_up(&mut cluster, follower);
    assert_eq!(cluster.counts.snapshots, 1);
    let is_loss = |notice: &SessionNotice| matches!(notice, SessionNotice::Lost { cause: LockEnd::Released, .. });
    let told = cluster.session_notices.iter().filter(|(_, stream, notice)| *stream == 2 && is_loss(notice)).count();
    assert_eq!(told, 1, "{:?}", cluster.session_notices);
}

/// Raft must not begin an election while a snapshot is not durable, however long that takes.
#[test]
fn a_slow_disk_while_a_snapshot_is_installed() {
    for seed in 0..10 {
        let (mut cluster, _, follower) = cluster(100 + seed);
        leave_behind(&mut cluster, follower);
        cluster.heal();
        cluster.host(follower).disk_pace_ms = 1500;
        cluster.run_until("the snapshot arrives", |cluster| cluster.counts.snapshots > 0);
        cluster.run(5);
        let leader = cluster.wait_for_leader();
        cluster.isolate(leader);
        let millis = 300 + cluster.draw(1000);
        cluster.run(millis);
        if seed % 2 == 0 {
            cluster.restart(follower);
        }
        catch_up(&mut cluster, follower);
        cluster.mark(follower);
        cluster.run(400);
        cluster.check_marks(follower);
    }
}

#[test]
fn a_snapshot_that_is_not_wanted_changes_nothing() {
    let (mut cluster, leader, follower) = cluster(10);
    cluster.put(leader);
    cluster.run(100);
    let before = cluster.status(follower);
    let snapshot = |index: u64, from: MemberId, voters: &[MemberId]| {
        let mut message = Message { to: follower, from, term: before.term, ..Message::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (index, before.term);
        *metadata.mut_conf_state() = ConfState { voters: voters.to_vec(), ..ConfState::default() };
        let mut machine = Machine::new();
        machine.skip(index, before.term);
        Input::SnapshotReceived {
            from,
            message: raft_bytes(&message),
            machine: Box::new(machine),
            configuration: first_configuration(voters),
            bytes: 1,
        }
    };
    let unwanted = [
        // Older than what this member has.
        snapshot(before.applied_index - 1, leader, &MEMBERS),
        // Of a configuration that it is no part of, or that cannot be.
        snapshot(before.applied_index + 100, leader, &[77, 78]),
        snapshot(before.applied_index + 100, leader, &[1, 1, 2, 3]),
        snapshot(before.applied_index + 100, leader, &[]),
    ];
    for (number, unwanted) in unwanted.into_iter().enumerate() {
        cluster.host(follower).inputs.push(unwanted);
        cluster.run(5);
        assert_eq!(cluster.counts.snapshots_refused, 1 + number as u64);
    }
    let mut other_file = snapshot(before.applied_index + 100, leader, &MEMBERS);
    if let Input::SnapshotReceived { machine, .. } = &mut other_file {
        machine.skip(before.applied_index + 101, before.term);
    }
    cluster.host(follower).inputs.push(other_file);
    cluster.run(5);
    assert_eq!(cluster.counts.snapshots_refused, 5);
    assert_eq!(cluster.status(follower).applied_index, before.applied_index);
    cluster.put(follower);
    cluster.run(100);
    assert_eq!(cluster.counts.puts, 2);
}

/// A follower knows that a change of members is committed, and waits until that is durable to apply it. In the step that
/// tells it so, a snapshot comes in that is past the change. Raft has the snapshot's configuration then, and the change
/// must not be made to it again (seed 1795200000613).
#[test]
fn a_change_that_waits_is_not_applied_on_top_of_a_snapshot() {
    let mut cluster = Cluster::new(1, Config { snapshot_floor_bytes: 500, ..small_log() });
    let leader = cluster.wait_for_leader();
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    cluster.run(100);
    let member = |id: MemberId| Member {
        id,
        name: format!("member {id}"),
        peer_urls: vec![format!("http://{id}:2380")],
        client_urls: Vec::new(),
        learner: true,
    };
    let before = cluster.status(leader).last_index;
    cluster.host(follower).disk_pace_ms = 20;
    cluster.change(leader, MemberChange::Add { member: member(4) });
    cluster.run_until("the change has come", |cluster| cluster.status(follower).last_index > before);
    // The next write is that the change is committed.
    cluster.host(follower).disk_pace_ms = 1_000_000;
    cluster.run_until("it is known to be committed", |cluster| cluster.status(follower).commit_index > before);
    cluster.run(10);
    assert_eq!(cluster.status(follower).applied_index, before, "it waits");
    cluster.isolate(follower);
    cluster.change(leader, MemberChange::Remove { id: 4, force: true });
    cluster.run_until("it is removed", |cluster| cluster.status(leader).learners.is_empty());
    let removed = cluster.status(leader).applied_index;
    for _ in 0..50 {
        cluster.put(leader);
        cluster.run(5);
    }
    let snapshot = cluster.hosts[&leader].disk.snapshot.clone().expect("of so many puts");
    assert!(snapshot.index >= removed);
    let mut message = Message { from: leader, to: follower, term: cluster.status(leader).term, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (snapshot.index, snapshot.term);
    metadata.set_conf_state(ConfState { voters: MEMBERS.to_vec(), ..ConfState::default() });
    cluster.finish_write(follower);
    let (machine, bytes) = (Box::new(snapshot.machine()), snapshot.bytes());
    let (message, configuration) = (raft_bytes(&message), snapshot.configuration.clone());
    let host = cluster.host(follower);
    host.disk.received.push(snapshot);
    host.inputs.push(Input::SnapshotReceived { from: leader, message, machine, configuration, bytes });
    cluster.heal();
    cluster.run(100);
    assert!(cluster.status(follower).applied_index >= removed, "it has taken the snapshot");
    // What raft believes shows in the next change.
    cluster.change(leader, MemberChange::Add { member: member(5) });
    cluster.run(100);
    assert_eq!((&*cluster.status(leader).learners, &*cluster.status(follower).learners), (&[5][..], &[5][..]));
}
