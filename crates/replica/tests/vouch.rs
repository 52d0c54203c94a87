//! The leader's word that a grant stands: it comes with the commit, and is not believed when it may be old.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;
mod members;

use bytes::Bytes;
use harness::config;
use members::{Asked, Cluster, MEMBERS, raft_message};
use raft::eraftpb::MessageType;
use tenure_machine::*;
use tenure_replica::{CallId, Config, Failure, Input};

const RAFT: u8 = 0;
const VOUCH: u8 = 10;
const HOLDER: LeaseId = 8;
const WAITER: LeaseId = 7;

fn small_config() -> Config {
    Config { election_min_ms: 100, election_max_ms: 200, heartbeat_ms: 20, call_timeout_ms: 5000, ..config(1) }
}

/// Somebody holds the lock by way of a third member; a call waits for it at this one.
struct Story {
    cluster: Cluster,
    leader: MemberId,
    teller: MemberId,
    other: MemberId,
    waiting: CallId,
}

impl Story {
    fn new(seed: u64, voters: &[MemberId], tells_at_leader: bool) -> Story {
        Story::with(small_config(), seed, voters, tells_at_leader)
    }

    fn with(config: Config, seed: u64, voters: &[MemberId], tells_at_leader: bool) -> Story {
        let mut cluster = Cluster::of(seed, config, voters, &[]);
        let leader = cluster.wait_for_leader();
        let mut others = voters.iter().copied().filter(|member| *member != leader);
        let (first, second) = (others.next().expect("a second"), others.next().expect("a third"));
        let (teller, other) = if tells_at_leader { (leader, first) } else { (first, second) };
        cluster.grant(other, HOLDER);
        cluster.grant(teller, WAITER);
        cluster.run(50);
        cluster.lock(other, HOLDER);
        cluster.run(50);
        let waiting = cluster.lock(teller, WAITER);
        cluster.run(50);
        assert!(!cluster.outcomes.contains_key(&waiting));
        Story { cluster, leader, teller, other, waiting }
    }

    fn release(&mut self) {
        self.cluster.delete(self.other, lock::entry_key(b"job", HOLDER));
    }

    fn has_granted(cluster: &Cluster, member: MemberId) -> bool {
        let holders = cluster.hosts[&member].replica.machine().state().lock_holders(b"job");
        holders.first().is_some_and(|(key, _)| key[..] == lock::entry_key(b"job", WAITER)[..])
    }

    fn questions(&self) -> usize {
        let messages = self.cluster.copies.iter().filter_map(|packet| raft_message(&packet.message));
        messages.filter(|message| message.msg_type() == MessageType::MsgReadIndex).count()
    }

    /// The teller sleeps from now on, and what was said to it until it hears nothing more lies in its buffers.
    fn put_to_sleep(&mut self) {
        let (teller, now_ms) = (self.teller, self.cluster.now_ms);
        self.cluster.host(teller).paused_until_ms = now_ms + 10_000;
        self.cluster.run(10);
        self.cluster.isolate(teller);
    }

    /// What the waiter was granted ends meanwhile. The teller must not say that it holds it when it wakes.
    fn end_and_wake(mut self) {
        let (teller, other) = (self.teller, self.other);
        self.cluster.run_until("a leader", |cluster| cluster.leader().is_some_and(|leader| leader != teller));
        self.cluster.wait_for_leader();
        self.cluster.delete(other, lock::entry_key(b"job", WAITER));
        self.cluster.run_until("the end", |cluster| {
            cluster.hosts[&other].replica.machine().state().lock_queue(b"job").count() == 0
        });
        // Half an election timeout is what is noticed.
        self.cluster.run(60);
        self.cluster.host(self.teller).paused_until_ms = 0;
        self.cluster.run(60);
        assert!(!self.cluster.outcomes.contains_key(&self.waiting), "it cannot know");
        self.cluster.heal();
        let waiting = self.waiting;
        self.cluster.run_until("an answer", |cluster| cluster.outcomes.contains_key(&waiting));
        let outcome = &self.cluster.outcomes[&waiting];
        assert!(matches!(outcome, Some(Failure::EntryEnded(_))), "{outcome:?}");
        assert_eq!(self.cluster.counts.grants, 1, "the first one");
    }
}

#[test]
fn a_follower_of_three_hears_with_the_commit_that_its_grant_stands() {
    for seed in 0..10 {
        let mut story = Story::new(seed, &MEMBERS, false);
        story.cluster.copied = Some((story.teller, story.leader, RAFT));
        story.release();
        let waiting = story.waiting;
        story.cluster.run_until("the grant", |cluster| cluster.outcomes.contains_key(&waiting));
        assert_eq!(story.cluster.outcomes[&waiting], None);
        assert_eq!(story.questions(), 0, "seed {seed}: it asked");
    }
}

/// Seed 160000844 of the simulation: the word came with the first of several messages that it lacked.
#[test]
fn a_follower_that_lags_applies_all_that_was_committed_before_it_tells() {
    for seed in 0..10 {
        let config = Config { inflight_bytes: 2000, ..small_config() };
        let mut story = Story::with(config, seed, &MEMBERS, false);
        let (leader, teller, other, waiting) = (story.leader, story.teller, story.other, story.waiting);
        story.cluster.isolate(teller);
        story.release();
        story.cluster.run_until("the grant", |cluster| Story::has_granted(cluster, leader));
        for key in ["a", "b", "c"] {
            let (key, value) = (Bytes::from_static(key.as_bytes()), vec![7; 1500].into());
            let put = Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
            story.cluster.propose(leader, Asked::Other, Command::Put(put));
            story.cluster.run(8);
        }
        story.cluster.delete(other, lock::entry_key(b"job", WAITER));
        story.cluster.run_until("the end", |cluster| {
            cluster.hosts[&leader].replica.machine().state().lock_queue(b"job").count() == 0
        });
        story.cluster.heal();
        story.cluster.run_until("an answer", |cluster| cluster.outcomes.contains_key(&waiting));
        let outcome = &story.cluster.outcomes[&waiting];
        assert!(matches!(outcome, Some(Failure::EntryEnded(_))), "seed {seed}: {outcome:?}");
    }
}

#[test]
fn a_follower_of_five_asks() {
    let mut story = Story::new(1, &[1, 2, 3, 4, 5], false);
    story.cluster.copied = Some((story.teller, story.leader, RAFT));
    story.release();
    let waiting = story.waiting;
    story.cluster.run_until("the grant", |cluster| cluster.outcomes.contains_key(&waiting));
    assert!(story.questions() > 0, "with the leader it is no majority");
}

#[test]
fn a_word_that_is_lost_is_asked_for() {
    let mut story = Story::new(2, &MEMBERS, false);
    story.release();
    let (leader, teller, waiting) = (story.leader, story.teller, story.waiting);
    story.cluster.run_until("the entry", |cluster| Story::has_granted(cluster, leader));
    story.cluster.cut.push((leader, teller));
    story.cluster.run(10);
    story.cluster.heal();
    story.cluster.run_until("the grant", |cluster| cluster.outcomes.contains_key(&waiting));
    assert_eq!(story.cluster.outcomes[&waiting], None);
}

#[test]
fn a_follower_that_slept_does_not_believe_what_it_finds_in_its_buffers() {
    for seed in 0..10 {
        let mut story = Story::new(seed, &MEMBERS, false);
        story.release();
        let leader = story.leader;
        story.cluster.run_until("the commit", |cluster| Story::has_granted(cluster, leader));
        story.put_to_sleep();
        story.end_and_wake();
    }
}

#[test]
fn a_leader_that_slept_does_not_believe_its_own_commit() {
    for seed in 0..10 {
        let mut story = Story::new(seed, &MEMBERS, true);
        let (leader, other) = (story.leader, story.other);
        let before = story.cluster.status(leader).last_index;
        story.release();
        story.cluster.run_until("the entry", |cluster| cluster.status(leader).last_index > before);
        assert!(!Story::has_granted(&story.cluster, leader));
        story.put_to_sleep();
        story.cluster.run_until("the commit", |cluster| Story::has_granted(cluster, other));
        story.end_and_wake();
    }
}

/// Seeds 27 and 120000474 of the simulation: what confirms the grant is taken in the same step as the cancel, behind it
/// or before it.
#[test]
fn a_call_that_is_given_up_before_the_word_comes_is_not_granted() {
    let mut reached = 0;
    for (seed, is_cancelled_first) in (0..60).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut story = Story::new(seed, &MEMBERS, false);
        let (leader, teller, waiting) = (story.leader, story.teller, story.waiting);
        story.cluster.copied = Some((leader, teller, VOUCH));
        story.release();
        story.cluster.run_until("the grant", |cluster| Story::has_granted(cluster, teller));
        story.cluster.isolate(teller);
        story.cluster.run(2);
        let word = story.cluster.copies.last().map(|packet| packet.message.clone());
        let Some(message) = word.filter(|_| !story.cluster.outcomes.contains_key(&waiting)) else { continue };
        reached += 1;
        story.cluster.cancel(teller, waiting);
        let inputs = &mut story.cluster.host(teller).inputs;
        inputs.push(Input::Message { from: leader, message });
        if !is_cancelled_first {
            inputs.reverse();
        }
        story.cluster.run(2);
        story.cluster.heal();
        story.cluster.run(300);
        let places = story.cluster.hosts[&teller].replica.machine().state().lock_queue(b"job").count();
        assert_eq!((places, story.cluster.counts.grants), (0, 1), "seed {seed}: it is not left, or is told");
    }
    assert!(reached > 0, "the word never comes behind the commit");
}
