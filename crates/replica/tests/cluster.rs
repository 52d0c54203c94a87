//! Three members in one thread, their messages as bytes in a box, every decision drawn from a seed.
//!
//! Members are stepped, messages delivered, lost, doubled and reordered, disks made slow, members
//! paused and restarted, while clients at the leader write, read, renew and lock. Afterwards
//! everything heals. Checked all the time: raft's own assertions, at most one answer to a call,
//! nothing sent before it is durable, equal state at equal applied index, reads that see all that was
//! acknowledged before them, one holder at a time, renewals that hold. `REPLICA_SEEDS=from..to` runs others.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod harness;

use std::collections::BTreeMap;

use bytes::Bytes;
use harness::{Calls, Disk, config};
use prost011::Message as _;
use raft::eraftpb::{ConfState, Message, MessageType};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tenure_machine::*;
use tenure_replica::{
    Answer, Answered, Boot, CallId, Config, Consistency, Failure, HardState, Input, Now, Output, Read, Replica, Status,
};

const MEMBERS: [MemberId; 3] = [1, 2, 3];
const TTL_MS: u64 = 1500;

struct Host {
    replica: Replica,
    disk: Disk,
    calls: Calls,
    inputs: Vec<Input>,
    /// When the disk is done with what it was given, if it has something.
    disk_done_ms: Option<u64>,
    disk_pace_ms: u64,
    paused_until_ms: u64,
    boots: u64,
    /// What raft may have said to be durable: the last entry of its own disk.
    durable_last: u64,
}

struct Packet {
    due_ms: u64,
    from: MemberId,
    to: MemberId,
    message: Bytes,
}

/// What a client waits for.
#[derive(Debug, Clone)]
enum Asked {
    Put,
    Read { written_before: Revision },
    Grant { lease: LeaseId, sent_ms: u64 },
    KeepAlive { lease: LeaseId, sent_ms: u64 },
    Lock,
    Other,
}

struct Cluster {
    seed: u64,
    random: ChaCha8Rng,
    now_ms: u64,
    hosts: BTreeMap<MemberId, Host>,
    packets: Vec<Packet>,
    /// Between these no message gets through, in this direction.
    cut: Vec<(MemberId, MemberId)>,
    loss_percent: u64,
    config: Config,
    next_call: CallId,
    asked: BTreeMap<CallId, Asked>,
    /// The highest revision at which `register` was written and acknowledged.
    written: Revision,
    /// A lease is promised until then.
    promised_ms: BTreeMap<LeaseId, u64>,
    /// The applied state's hash, by index.
    hashes: BTreeMap<u64, u64>,
    counts: Counts,
}

#[derive(Default, Debug, Clone, Copy)]
struct Counts {
    puts: u64,
    reads: u64,
    kept_alive: u64,
    grants: u64,
    leader_changed: u64,
    timed_out: u64,
    terms: u64,
}

impl Cluster {
    fn new(seed: u64, config: Config) -> Cluster {
        let mut cluster = Cluster {
            seed,
            random: ChaCha8Rng::seed_from_u64(seed),
            now_ms: 1000,
            hosts: BTreeMap::new(),
            packets: Vec::new(),
            cut: Vec::new(),
            loss_percent: 0,
            config,
            next_call: 1,
            asked: BTreeMap::new(),
            written: 0,
            promised_ms: BTreeMap::new(),
            hashes: BTreeMap::new(),
            counts: Counts::default(),
        };
        for member in MEMBERS {
            let mut disk = Disk::new(&MEMBERS);
            let replica = cluster.boot(member, 0, &mut disk);
            let host = Host {
                replica,
                disk,
                calls: Calls::default(),
                inputs: Vec::new(),
                disk_done_ms: None,
                disk_pace_ms: 1,
                paused_until_ms: 0,
                boots: 0,
                durable_last: 1,
            };
            cluster.hosts.insert(member, host);
        }
        cluster
    }

    fn boot(&self, member: MemberId, boots: u64, disk: &mut Disk) -> Replica {
        let config = Config {
            member,
            boot: 1000 * member + boots,
            seed: self.seed.wrapping_mul(31) + member * 7 + boots * 1009,
            ..self.config.clone()
        };
        Replica::boot(config, disk.boot(), self.now()).expect("a disk to boot from")
    }

    fn now(&self) -> Now {
        Now { monotonic_ms: self.now_ms, wall_ms: self.now_ms }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.draw(100) < percent
    }

    fn host(&mut self, member: MemberId) -> &mut Host {
        self.hosts.get_mut(&member).expect("one of three")
    }

    fn status(&self, member: MemberId) -> Status {
        self.hosts[&member].replica.status()
    }

    /// Whoever believes to lead, in the highest term.
    fn leader(&self) -> Option<MemberId> {
        let leads = MEMBERS.into_iter().filter(|member| self.status(*member).leader == *member);
        leads.max_by_key(|member| self.status(*member).term)
    }

    /// One millisecond of everybody's life.
    fn tick(&mut self) {
        self.now_ms += 1;
        self.deliver();
        for member in MEMBERS {
            let now_ms = self.now_ms;
            let host = self.host(member);
            if host.paused_until_ms > now_ms {
                continue;
            }
            if host.disk_done_ms.is_some_and(|done_ms| done_ms <= now_ms) {
                self.finish_write(member);
            }
            let host = self.host(member);
            if !host.inputs.is_empty() || host.replica.wake_ms() <= now_ms {
                self.step(member);
            }
        }
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.tick();
        }
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Cluster) -> bool) {
        for _ in 0..20_000 {
            if done(self) {
                return;
            }
            self.tick();
        }
        panic!("seed {}: {what} did not happen in 20 s", self.seed);
    }

    fn wait_for_leader(&mut self) -> MemberId {
        self.run_until("an election", |cluster| {
            cluster.leader().is_some_and(|leader| {
                let status = cluster.status(leader);
                status.commit_index == status.last_index && status.applied_index == status.commit_index
            })
        });
        self.leader().expect("just seen")
    }

    fn deliver(&mut self) {
        let now_ms = self.now_ms;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.packets).into_iter().partition(|packet| packet.due_ms <= now_ms);
        self.packets = later;
        for Packet { from, to, message, .. } in due {
            if !self.cut.contains(&(from, to)) {
                self.host(to).inputs.push(Input::Message { from, message });
            }
        }
    }

    fn send(&mut self, from: MemberId, to: MemberId, message: Bytes) {
        if self.cut.contains(&(from, to)) || self.percent(self.loss_percent) {
            return;
        }
        let copies = if self.loss_percent > 0 && self.percent(5) { 2 } else { 1 };
        for _ in 0..copies {
            let spread_ms = if self.loss_percent > 0 { 40 } else { 3 };
            let due_ms = self.now_ms + 1 + self.draw(spread_ms);
            self.packets.push(Packet { due_ms, from, to, message: message.clone() });
        }
    }

    fn finish_write(&mut self, member: MemberId) {
        let host = self.host(member);
        // The disk takes all that was waiting when it is done with what was before.
        host.disk_done_ms = None;
        let count = host.disk.unwritten.len();
        let Some(number) = host.disk.unwritten.get(count.saturating_sub(1)).map(|persist| persist.number) else {
            return;
        };
        let messages = host.disk.write_upto(number);
        host.durable_last = host.disk.entries.last().map_or(1, |entry| entry.index);
        host.inputs.push(Input::Persisted { number });
        for (to, message) in messages {
            self.check_durable(member, &message);
            self.send(member, to, message);
        }
    }

    /// Rule 5: who says that it has an entry has it on its disk.
    fn check_durable(&self, member: MemberId, message: &Bytes) {
        let message = Message::decode(&message[..]).expect("own messages decode");
        let host = &self.hosts[&member];
        if message.msg_type() == MessageType::MsgAppendResponse && !message.reject {
            assert!(
                message.index <= host.durable_last,
                "seed {}: {member} acknowledged {} with {} on disk",
                self.seed,
                message.index,
                host.durable_last
            );
        }
        if message.msg_type() == MessageType::MsgRequestVoteResponse && !message.reject {
            let state = host.disk.hard_state;
            assert!(state.term > message.term || (state.term, state.vote) == (message.term, message.to));
        }
    }

    fn step(&mut self, member: MemberId) {
        let now = self.now();
        let host = self.host(member);
        let inputs: Vec<Input> = host.inputs.drain(..).collect();
        let mut outputs = Vec::new();
        let before = host.replica.status().applied_index;
        host.replica.step(now, inputs, &mut outputs);
        for output in outputs {
            self.take(member, output);
        }
        self.host(member).calls.stepped();
        if self.status(member).applied_index != before {
            self.check_state(member);
        }
    }

    fn take(&mut self, member: MemberId, output: Output) {
        match output {
            Output::Persist(persist) => {
                let now_ms = self.now_ms;
                let host = self.host(member);
                host.disk.unwritten.push(persist);
                host.disk_done_ms.get_or_insert(now_ms + host.disk_pace_ms);
            }
            Output::Send { to, message } => {
                let decoded = Message::decode(&message[..]).expect("own messages decode");
                // What a leader may say at once promises nothing about its own disk.
                assert!(
                    !matches!(decoded.msg_type(), MessageType::MsgAppendResponse | MessageType::MsgRequestVoteResponse)
                        || decoded.reject
                        || decoded.index == 0,
                    "seed {}: {member} sent {:?} before it was durable",
                    self.seed,
                    decoded.msg_type()
                );
                self.send(member, to, message);
            }
            Output::Queued { .. } | Output::Session { .. } | Output::LockNotice { .. } => {}
            Output::Answer { call, answer } => {
                if self.host(member).calls.answered(call) {
                    let asked = self.asked.remove(&call).expect("every call was asked");
                    self.answered(asked, answer);
                }
            }
            Output::Notice { .. } | Output::SaveSnapshot(_) => {}
            Output::SendSnapshot { .. } | Output::SnapshotRefused { .. } | Output::Members(_) | Output::Removed => {}
            Output::Fatal(reason) => panic!("seed {}: {member}: {reason}", self.seed),
        }
    }

    fn answered(&mut self, asked: Asked, answer: Answer) {
        match (&asked, answer.result) {
            (Asked::Put, Ok(_)) => {
                self.written = self.written.max(answer.revision);
                self.counts.puts += 1;
            }
            (Asked::Read { written_before }, Ok(Answered::Range(reply))) => {
                let found = reply.kvs.first().map_or(0, |kv| kv.mod_revision);
                assert!(
                    found >= *written_before,
                    "seed {}: read {found} after {written_before} was written",
                    self.seed
                );
                self.counts.reads += 1;
            }
            (Asked::Grant { lease, sent_ms }, Ok(_)) => {
                self.promised_ms.insert(*lease, sent_ms + TTL_MS);
            }
            (Asked::KeepAlive { lease, sent_ms }, Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) })) => {
                let promised = self.promised_ms.entry(*lease).or_default();
                *promised = (*promised).max(sent_ms + ttl_ms);
                self.counts.kept_alive += 1;
            }
            (Asked::Lock, Ok(Answered::Lock(reply))) => {
                assert!(reply.granted);
                self.counts.grants += 1;
            }
            (_, Err(Failure::LeaderChanged)) => self.counts.leader_changed += 1,
            (_, Err(Failure::TimedOut | Failure::NoLeader)) => self.counts.timed_out += 1,
            _ => {}
        }
    }

    /// K5, L1 and E1 on what a member has just applied.
    fn check_state(&mut self, member: MemberId) {
        let view = self.hosts[&member].replica.machine().view();
        let (index, hash) = (view.applied_index(), view.hash());
        let known = *self.hashes.entry(index).or_insert(hash);
        assert_eq!(known, hash, "seed {}: members differ at {index}", self.seed);
        let holders = view.lock_holders(b"job");
        assert!(holders.len() <= 1, "seed {}: {} holders", self.seed, holders.len());
        for (lease, promised_ms) in &self.promised_ms {
            // A member that lags may not know the lease yet; only the first to apply an index sees its end.
            let ended =
                index == *self.hashes.last_key_value().expect("just inserted").0 && view.lease_ttl_ms(*lease).is_none();
            assert!(
                !ended || self.now_ms >= *promised_ms,
                "seed {}: lease {lease} ended at {}, promised until {promised_ms}",
                self.seed,
                self.now_ms
            );
        }
    }

    fn ask(&mut self, member: MemberId, asked: Asked, input: impl FnOnce(CallId) -> Input) -> CallId {
        let call = self.next_call;
        self.next_call += 1;
        self.asked.insert(call, asked);
        let host = self.host(member);
        host.calls.open(call);
        host.inputs.push(input(call));
        call
    }

    fn propose(&mut self, member: MemberId, asked: Asked, command: Command) -> CallId {
        self.ask(member, asked, |call| Input::Propose { call, command })
    }

    fn put(&mut self, member: MemberId) -> CallId {
        let value = Bytes::copy_from_slice(&self.next_call.to_be_bytes());
        let key = Bytes::from_static(b"register");
        let put = Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
        self.propose(member, Asked::Put, Command::Put(put))
    }

    fn get(&mut self, member: MemberId) -> CallId {
        let query = RangeQuery::new(Keys::One(Bytes::from_static(b"register")));
        let consistency = Consistency::Linearizable;
        let asked = Asked::Read { written_before: self.written };
        self.ask(member, asked, |call| Input::Read { call, read: Read::Range(query), consistency })
    }

    fn keep_alive(&mut self, member: MemberId, lease: LeaseId) -> CallId {
        let sent_ms = self.now_ms;
        self.ask(member, Asked::KeepAlive { lease, sent_ms }, |call| Input::KeepAlive { call, lease, epoch: 0 })
    }

    fn lock(&mut self, member: MemberId, lease: LeaseId) -> CallId {
        let lock = Lock {
            name: Bytes::from_static(b"job"),
            lease,
            call: u128::from(self.next_call),
            mode: Mode::Exclusive,
            value: Bytes::new(),
            overwrite: false,
            owner: Bytes::new(),
            holder: Bytes::new(),
            metadata: Bytes::new(),
            ..Default::default()
        };
        self.ask(member, Asked::Lock, |call| Input::Lock { call, lock })
    }

    fn grant(&mut self, member: MemberId, lease: LeaseId) -> CallId {
        let grant = LeaseGrant { lease, ttl_ms: TTL_MS, client: Bytes::new() };
        let asked = Asked::Grant { lease, sent_ms: self.now_ms };
        self.propose(member, asked, Command::LeaseGrant(grant))
    }

    fn delete(&mut self, member: MemberId, key: Vec<u8>) -> CallId {
        let delete = Delete { keys: Keys::One(key.into()), prev_kv: false };
        self.propose(member, Asked::Other, Command::Delete(delete))
    }

    fn cancel(&mut self, member: MemberId, call: CallId) {
        let host = self.host(member);
        if host.calls.waiting().contains(&call) {
            host.calls.cancelled(call);
            host.inputs.push(Input::Cancel { call });
            self.asked.remove(&call);
        }
    }

    fn restart(&mut self, member: MemberId) {
        let mut host = self.hosts.remove(&member).expect("one of three");
        for call in std::mem::take(&mut host.calls).waiting() {
            self.asked.remove(call);
        }
        host.boots += 1;
        host.inputs.clear();
        host.disk_done_ms = None;
        host.replica = self.boot(member, host.boots, &mut host.disk);
        self.hosts.insert(member, host);
    }

    fn isolate(&mut self, member: MemberId) {
        for other in MEMBERS.into_iter().filter(|other| *other != member) {
            self.cut.extend([(member, other), (other, member)]);
        }
    }

    fn heal(&mut self) {
        self.cut.clear();
        self.loss_percent = 0;
        for host in self.hosts.values_mut() {
            host.disk_pace_ms = 1;
            host.paused_until_ms = 0;
        }
    }
}

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
    let message = message.encode_to_vec().into();
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
    let configuration = ConfState { voters: vec![1], learners: vec![2], ..ConfState::default() };
    let configuration = configuration.encode_to_vec().into();
    let boot = Boot { configuration, ..Disk::new(&[1]).boot() };
    let now = |monotonic_ms| Now { monotonic_ms, wall_ms: 0 };
    let mut replica = Replica::boot(small_config(), boot, now(0)).expect("boots");
    let mut sent_ms = Vec::new();
    for now_ms in 0..1000 {
        let mut outputs = Vec::new();
        if replica.wake_ms() <= now_ms {
            replica.step(now(now_ms), [], &mut outputs);
        }
        sent_ms.extend(outputs.iter().filter(|output| matches!(output, Output::Send { .. })).map(|_| now_ms));
    }
    assert!(sent_ms.len() > 40, "{sent_ms:?}");
}

/// A vote counts in its own term: a member whose snapshot is of a later one is free to vote.
#[test]
fn a_vote_of_an_earlier_term_binds_nobody() {
    let hard_state = HardState { term: 0, vote: 2, commit: 0 };
    let boot = Boot { hard_state, ..Disk::new(&MEMBERS).boot() };
    let now = Now { monotonic_ms: 0, wall_ms: 0 };
    let mut replica = Replica::boot(small_config(), boot, now).expect("boots");
    let mut message = Message { to: 1, from: 3, term: 1, index: 9, log_term: 1, ..Message::default() };
    message.set_msg_type(MessageType::MsgRequestVote);
    let mut outputs = Vec::new();
    let message = message.encode_to_vec().into();
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
    let mut cluster = Cluster::new(6, small_config());
    let leader = cluster.wait_for_leader();
    cluster.grant(leader, 7);
    cluster.run(50);
    let call = cluster.lock(leader, 7);
    cluster.run_until("the grant", |cluster| {
        !cluster.hosts[&leader].replica.machine().state().lock_holders(b"job").is_empty()
    });
    assert!(cluster.hosts[&leader].calls.waiting().contains(&call), "applied, not yet confirmed");
    cluster.cancel(leader, call);
    cluster.run(100);
    assert!(cluster.hosts[&leader].replica.machine().state().lock_holders(b"job").is_empty());
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
    let mut cluster = Cluster::new(seed, small_config());
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
    // Leases end, and locks with them, and whoever waits for one is told.
    cluster.run(5000);
    assert!(cluster.asked.is_empty(), "seed {seed}: never answered: {:?}", cluster.asked);
    assert!(cluster.hosts[&leader].replica.machine().state().lock_holders(b"job").is_empty(), "seed {seed}");
    cluster.counts.terms = cluster.status(leader).term;
    cluster.counts
}

fn act(cluster: &mut Cluster) {
    let member = match cluster.leader() {
        Some(leader) if !cluster.percent(5) => leader,
        _ => MEMBERS[cluster.draw(3) as usize],
    };
    let lease = 1 + cluster.draw(40) as LeaseId;
    match cluster.draw(12) {
        0..=2 => drop(cluster.put(member)),
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
