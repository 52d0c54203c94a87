//! What a member is sent and cannot take: dropped, as if the network had lost it.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use bytes::Bytes;
use harness::config;
use members::{Cluster, MEMBERS, raft_bytes, raft_message};
use raft::eraftpb::{Entry, Message, MessageType};
use tenure_machine::MemberId;
use tenure_replica::{Config, Input, Output};

fn small_config() -> Config {
    Config { election_min_ms: 100, election_max_ms: 200, heartbeat_ms: 20, call_timeout_ms: 1000, ..config(1) }
}

/// A cluster with a few entries, and one that follows in it.
fn cluster() -> (Cluster, MemberId, MemberId) {
    let mut cluster = Cluster::new(1, small_config());
    let leader = cluster.wait_for_leader();
    for _ in 0..5 {
        cluster.put(leader);
    }
    cluster.run(100);
    let follower = MEMBERS.into_iter().find(|member| *member != leader).expect("one of two");
    (cluster, leader, follower)
}

fn message(kind: MessageType, from: MemberId, to: MemberId, term: u64) -> Message {
    let mut message = Message { from, to, term, ..Message::default() };
    message.set_msg_type(kind);
    message
}

#[test]
fn noise_is_dropped() {
    let (mut cluster, leader, follower) = cluster();
    for round in 0..20_000u64 {
        let mut noise: Vec<u8> = (0..cluster.draw(40)).map(|_| cluster.draw(256) as u8).collect();
        if let Some(kind) = noise.first_mut() {
            *kind = (round % 16) as u8;
        }
        let (from, to) = if round % 2 == 0 { (leader, follower) } else { (follower, leader) };
        cluster.host(to).inputs.push(Input::Message { from, message: Bytes::from(noise) });
        if round % 100 == 0 {
            cluster.run(1);
        }
    }
    let before = cluster.counts.puts;
    cluster.put(follower);
    cluster.run(1000);
    assert_eq!(cluster.counts.puts, before + 1);
}

#[test]
fn what_cannot_be_is_dropped() {
    let (mut cluster, leader, follower) = cluster();
    let (term, last) = (cluster.status(leader).term, cluster.status(leader).last_index);
    let with_entry = |index: u64, entry_index: u64| {
        let mut append = message(MessageType::MsgAppend, leader, follower, term);
        (append.index, append.log_term) = (index, term);
        append.entries = vec![Entry { index: entry_index, term, ..Entry::default() }];
        append
    };
    let faulty = [
        // Raft looks at its first entry.
        message(MessageType::MsgReadIndex, follower, leader, 0),
        message(MessageType::MsgPropose, follower, leader, 0),
        message(MessageType::MsgHup, follower, leader, 0),
        message(MessageType::MsgCheckQuorum, follower, leader, 0),
        message(MessageType::MsgTransferLeader, follower, leader, 0),
        message(MessageType::MsgSnapshot, leader, follower, term),
        message(MessageType::MsgAppend, leader, follower, u64::MAX),
        Message { commit: last + 100, ..message(MessageType::MsgHeartbeat, leader, follower, term) },
        with_entry(last, last + 7),
        with_entry(u64::MAX, 0),
        // Meant for somebody else, or not from whom it came.
        message(MessageType::MsgHeartbeat, leader, 77, term + 1),
        message(MessageType::MsgRequestVote, 77, follower, term + 1),
        Message { msg_type: 99, ..message(MessageType::MsgHeartbeat, leader, follower, term + 1) },
    ];
    for faulty in faulty {
        let (from, to) = if faulty.to == leader { (follower, leader) } else { (leader, follower) };
        cluster.host(to).inputs.push(Input::Message { from, message: raft_bytes(&faulty) });
        cluster.run(5);
    }
    assert_eq!((cluster.leader(), cluster.status(leader).term), (Some(leader), term), "nobody was disturbed");
    cluster.put(follower);
    cluster.run(100);
    assert_eq!(cluster.counts.puts, 6);
}

/// Raft would send it on to the leader, and fall over the term that it bears.
#[test]
fn a_question_for_the_leader_is_dropped_by_others() {
    let (mut cluster, leader, follower) = cluster();
    let other = MEMBERS.into_iter().find(|member| ![leader, follower].contains(member)).expect("one of three");
    let term = cluster.status(leader).term;
    let mut question = message(MessageType::MsgReadIndex, other, follower, term);
    question.entries.push(Entry { data: Bytes::from_static(b"context"), ..Entry::default() });
    cluster.host(follower).inputs.push(Input::Message { from: other, message: raft_bytes(&question) });
    cluster.run(50);
    let read = cluster.get(follower);
    cluster.run(50);
    assert_eq!(cluster.outcomes[&read], None);
}

/// A leader that offers it does not know how far this member is, and would offer it for ever.
#[test]
fn a_snapshot_that_one_is_past_is_answered() {
    let (mut cluster, leader, follower) = cluster();
    let (term, applied) = (cluster.status(leader).term, cluster.status(follower).applied_index);
    let mut offer = message(MessageType::MsgSnapshot, leader, follower, term);
    let metadata = offer.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (applied, term);
    let input = Input::Message { from: leader, message: raft_bytes(&offer) };
    let now = cluster.now();
    let mut outputs = Vec::new();
    cluster.host(follower).replica.step(now, [input], &mut outputs);
    let answers = outputs.iter().filter_map(|output| match output {
        Output::Persist(persist) => Some(&persist.messages),
        _ => None,
    });
    let answers: Vec<Message> = answers.flatten().filter_map(|(_, bytes)| raft_message(bytes)).collect();
    let is_answer = |answer: &Message| answer.msg_type() == MessageType::MsgAppendResponse && answer.index >= applied;
    assert!(answers.iter().any(is_answer), "{answers:?}");
}
