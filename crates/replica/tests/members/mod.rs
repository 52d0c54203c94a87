//! Three members in one thread: their messages, disks and clients, and what has to hold at every step.
// Each file of tests uses its own part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;

use bytes::Bytes;
use prost011::Message as _;
use raft::eraftpb::{Message, MessageType};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tenure_machine::*;
use tenure_replica::{
    Answer, Answered, BootError, CallId, Config, Consistency, Failure, Input, LeaseStatus, LockNotice, Notice, Now,
    Output, Read, Replica, SessionNotice, Status, StreamId,
};

use crate::harness::{Calls, Disk, Snapshot};

pub const MEMBERS: [MemberId; 3] = [1, 2, 3];
pub const TTL_MS: u64 = 1500;

pub struct Cluster {
    seed: u64,
    pub random: ChaCha8Rng,
    pub now_ms: u64,
    pub hosts: BTreeMap<MemberId, Host>,
    packets: Vec<Packet>,
    /// Between these no message gets through, in this direction.
    pub cut: Vec<(MemberId, MemberId)>,
    /// Between these only raft's own messages do not.
    pub cut_raft: Vec<(MemberId, MemberId)>,
    /// Raft's messages of this type are lost.
    pub lost: Option<MessageType>,
    pub loss_percent: u64,
    /// Of these (from, to, kind) a copy is kept, to be delivered when a test wants it.
    pub copied: Option<(MemberId, MemberId, u8)>,
    pub copies: Vec<Packet>,
    config: Config,
    pub next_call: CallId,
    pub asked: BTreeMap<CallId, Asked>,
    /// How calls were answered: None = well.
    pub outcomes: BTreeMap<CallId, Option<Failure>>,
    /// The members and the leader that calls were told.
    pub told_members: BTreeMap<CallId, Vec<Member>>,
    pub told_leader: BTreeMap<CallId, MemberId>,
    /// What is left of leases, as calls were told.
    pub lease_times: BTreeMap<CallId, Vec<Option<LeaseStatus>>>,
    /// Keys that one call each has put, once.
    marks: BTreeMap<CallId, Bytes>,
    /// The highest revision at which `register` was written and acknowledged.
    written: Revision,
    /// A lease is promised until then.
    pub promised_ms: BTreeMap<LeaseId, u64>,
    /// The applied state's hash, by index.
    hashes: BTreeMap<u64, u64>,
    pub counts: Counts,
    pub notices: Vec<(MemberId, StreamId, Notice)>,
    pub session_notices: Vec<(MemberId, StreamId, SessionNotice)>,
    pub lock_notices: Vec<(MemberId, StreamId, LockNotice)>,
    streams: Vec<SnapshotStream>,
    /// Members of an earlier release: the latest feature level that each supports.
    pub highest_level: BTreeMap<MemberId, Level>,
    /// This member's state is not compared with the others' by the tests.
    pub may_differ: Option<MemberId>,
    /// Why members have stopped.
    pub fatal: BTreeMap<MemberId, String>,
    /// How long a snapshot is on its way.
    pub stream_ms: u64,
}

/// A snapshot on its way.
struct SnapshotStream {
    due_ms: u64,
    from: MemberId,
    to: MemberId,
    message: Bytes,
    snapshot: Snapshot,
}

#[derive(Default, Debug, Clone, Copy)]
pub struct Counts {
    pub puts: u64,
    pub reads: u64,
    pub kept_alive: u64,
    pub grants: u64,
    pub leader_changed: u64,
    pub timed_out: u64,
    pub terms: u64,
    pub snapshots: u64,
    pub snapshots_refused: u64,
    /// In raft's messages, whether they arrive or not.
    pub entries_sent: u64,
}

/// What a client waits for.
#[derive(Debug, Clone)]
pub enum Asked {
    Put,
    Read { written_before: Revision },
    Grant { lease: LeaseId, sent_ms: u64 },
    KeepAlive { lease: LeaseId, sent_ms: u64 },
    Lock,
    Other,
}

pub struct Host {
    pub replica: Replica,
    pub disk: Disk,
    pub calls: Calls,
    pub inputs: Vec<Input>,
    /// When the disk is done with what it was given, if it has something.
    disk_done_ms: Option<u64>,
    pub disk_pace_ms: u64,
    pub paused_until_ms: u64,
    /// The member stands still for so long after each of its steps.
    pub late_ms: u64,
    boots: u64,
    /// As it was told last.
    pub members: Option<Vec<Member>>,
    pub is_removed: bool,
    /// What raft may have said to be durable: the last entry of its own disk.
    durable_last: u64,
}

pub struct Packet {
    due_ms: u64,
    from: MemberId,
    to: MemberId,
    pub message: Bytes,
}

impl Cluster {
    pub fn new(seed: u64, config: Config) -> Cluster {
        Cluster::of(seed, config, &MEMBERS, &[])
    }

    pub fn of(seed: u64, config: Config, voters: &[MemberId], learners: &[MemberId]) -> Cluster {
        let mut cluster = Cluster {
            seed,
            random: ChaCha8Rng::seed_from_u64(seed),
            now_ms: 1000,
            hosts: BTreeMap::new(),
            packets: Vec::new(),
            cut: Vec::new(),
            cut_raft: Vec::new(),
            lost: None,
            loss_percent: 0,
            copied: None,
            copies: Vec::new(),
            config,
            next_call: 1,
            asked: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            told_members: BTreeMap::new(),
            told_leader: BTreeMap::new(),
            lease_times: BTreeMap::new(),
            marks: BTreeMap::new(),
            written: 0,
            promised_ms: BTreeMap::new(),
            hashes: BTreeMap::new(),
            counts: Counts::default(),
            notices: Vec::new(),
            session_notices: Vec::new(),
            lock_notices: Vec::new(),
            streams: Vec::new(),
            highest_level: BTreeMap::new(),
            may_differ: None,
            fatal: BTreeMap::new(),
            stream_ms: 10,
        };
        for member in voters.iter().chain(learners) {
            cluster.start(*member, Disk::new(voters, learners));
        }
        cluster
    }

    pub fn start(&mut self, member: MemberId, mut disk: Disk) {
        let replica = self.boot(member, 0, &mut disk);
        let host = Host {
            replica,
            disk,
            calls: Calls::default(),
            inputs: Vec::new(),
            disk_done_ms: None,
            disk_pace_ms: 1,
            paused_until_ms: 0,
            late_ms: 0,
            boots: 0,
            members: None,
            is_removed: false,
            durable_last: 1,
        };
        self.hosts.insert(member, host);
    }

    pub fn members(&self) -> Vec<MemberId> {
        self.hosts.keys().copied().collect()
    }

    pub fn status(&self, member: MemberId) -> Status {
        self.hosts[&member].replica.status()
    }

    /// Whoever believes to lead, in the highest term.
    pub fn leader(&self) -> Option<MemberId> {
        let leads = self.members().into_iter().filter(|member| self.status(*member).leader == *member);
        leads.max_by_key(|member| self.status(*member).term)
    }

    pub fn host(&mut self, member: MemberId) -> &mut Host {
        self.hosts.get_mut(&member).expect("a member that was started")
    }

    pub fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.draw(100) < percent
    }

    pub fn wait_for_leader(&mut self) -> MemberId {
        self.run_until("an election", |cluster| {
            cluster.leader().is_some_and(|leader| {
                let status = cluster.status(leader);
                status.commit_index == status.last_index && status.applied_index == status.commit_index
            })
        });
        self.leader().expect("just seen")
    }

    pub fn run_until(&mut self, what: &str, done: impl Fn(&Cluster) -> bool) {
        for _ in 0..20_000 {
            if done(self) {
                return;
            }
            self.tick();
        }
        panic!("seed {}: {what} did not happen in 20 s", self.seed);
    }

    pub fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.tick();
        }
    }

    pub fn put(&mut self, member: MemberId) -> CallId {
        let value = Bytes::copy_from_slice(&self.next_call.to_be_bytes());
        let key = Bytes::from_static(b"register");
        let put = Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
        self.propose(member, Asked::Put, Command::Put(put))
    }

    /// A put that must have its effect once if it is answered well, and at most once otherwise.
    pub fn mark(&mut self, member: MemberId) -> CallId {
        let key = Bytes::from(format!("mark/{}", self.next_call));
        self.marks.insert(self.next_call, key.clone());
        let put = Put { key, value: Bytes::new(), lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
        self.propose(member, Asked::Other, Command::Put(put))
    }

    /// K3, once everybody has caught up.
    pub fn check_marks(&self, member: MemberId) {
        let state = self.hosts[&member].replica.machine().state();
        for (call, key) in &self.marks {
            let times = state.get(key).map_or(0, |kv| kv.version);
            let outcome = self.outcomes.get(call);
            let expected = match outcome {
                Some(None) => 1..=1,
                Some(Some(Failure::Refused(_) | Failure::Overloaded | Failure::NoLeader | Failure::LeaderChanged)) => {
                    0..=0
                }
                Some(Some(_)) | None => 0..=1,
            };
            assert!(expected.contains(&times), "seed {}: call {call}, {outcome:?}: {times} times", self.seed);
        }
    }

    pub fn deliver_copies(&mut self) {
        for Packet { from, to, message, .. } in std::mem::take(&mut self.copies) {
            self.host(to).inputs.push(Input::Message { from, message });
        }
    }

    pub fn get(&mut self, member: MemberId) -> CallId {
        let query = RangeQuery::new(Keys::One(Bytes::from_static(b"register")));
        let consistency = Consistency::Linearizable;
        let asked = Asked::Read { written_before: self.written };
        self.ask(member, asked, |call| Input::Read { call, read: Read::Range(query), consistency })
    }

    pub fn grant(&mut self, member: MemberId, lease: LeaseId) -> CallId {
        let grant = LeaseGrant { lease, ttl_ms: TTL_MS, client: Bytes::new() };
        let asked = Asked::Grant { lease, sent_ms: self.now_ms };
        self.propose(member, asked, Command::LeaseGrant(grant))
    }

    pub fn keep_alive(&mut self, member: MemberId, lease: LeaseId) -> CallId {
        let sent_ms = self.now_ms;
        self.ask(member, Asked::KeepAlive { lease, sent_ms }, |call| Input::KeepAlive { call, lease, epoch: 0 })
    }

    pub fn lock(&mut self, member: MemberId, lease: LeaseId) -> CallId {
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
        self.ask(member, Asked::Lock, |call| Input::Lock { call, lock: Box::new(lock) })
    }

    pub fn delete(&mut self, member: MemberId, key: Vec<u8>) -> CallId {
        let delete = Delete { keys: Keys::One(key.into()), prev_kv: false };
        self.propose(member, Asked::Other, Command::Delete(delete))
    }

    pub fn change(&mut self, member: MemberId, change: MemberChange) -> CallId {
        self.ask(member, Asked::Other, |call| Input::ChangeMembers { call, change })
    }

    pub fn transfer(&mut self, member: MemberId, to: Option<MemberId>) -> CallId {
        self.ask(member, Asked::Other, |call| Input::TransferLeader { call, to })
    }

    pub fn cancel(&mut self, member: MemberId, call: CallId) {
        let host = self.host(member);
        if host.calls.waiting().contains(&call) {
            host.calls.cancelled(call);
            host.inputs.push(Input::Cancel { call });
            self.asked.remove(&call);
        }
    }

    pub fn hurry(&mut self, member: MemberId, call: CallId) {
        self.host(member).inputs.push(Input::Hurry { call });
    }

    pub fn isolate(&mut self, member: MemberId) {
        for other in self.members().into_iter().filter(|other| *other != member) {
            self.cut.extend([(member, other), (other, member)]);
        }
    }

    pub fn restart(&mut self, member: MemberId) {
        let mut host = self.hosts.remove(&member).expect("a member that was started");
        for call in std::mem::take(&mut host.calls).waiting() {
            self.asked.remove(call);
        }
        host.boots += 1;
        host.inputs.clear();
        host.disk_done_ms = None;
        (host.members, host.is_removed) = (None, false);
        host.replica = self.boot(member, host.boots, &mut host.disk);
        self.hosts.insert(member, host);
    }

    /// For good; its disk is thrown away.
    pub fn stop(&mut self, member: MemberId) {
        let mut host = self.hosts.remove(&member).expect("a member that was started");
        for call in std::mem::take(&mut host.calls).waiting() {
            self.asked.remove(call);
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
        self.cut_raft.clear();
        self.lost = None;
        self.loss_percent = 0;
        for host in self.hosts.values_mut() {
            host.disk_pace_ms = 1;
            host.paused_until_ms = 0;
        }
    }

    fn boot(&self, member: MemberId, boots: u64, disk: &mut Disk) -> Replica {
        self.try_boot(member, boots, disk).expect("a disk to boot from")
    }

    fn try_boot(&self, member: MemberId, boots: u64, disk: &mut Disk) -> Result<Replica, BootError> {
        let config = Config {
            member,
            boot: 1000 * member + boots,
            highest_level: self.highest_level.get(&member).copied().unwrap_or(self.config.highest_level),
            seed: self.seed.wrapping_mul(31) + member * 7 + boots * 1009,
            ..self.config.clone()
        };
        Replica::boot(config, disk.boot(), self.now())
    }

    /// Whether a member could start from its disk; it goes on as it is.
    pub fn check_boot(&mut self, member: MemberId) -> Result<(), BootError> {
        let mut host = self.hosts.remove(&member).expect("a member that was started");
        let booted = self.try_boot(member, host.boots, &mut host.disk).map(drop);
        self.hosts.insert(member, host);
        booted
    }

    pub fn now(&self) -> Now {
        Now { monotonic_ms: self.now_ms, wall_ms: self.now_ms }
    }

    /// One millisecond of everybody's life.
    fn tick(&mut self) {
        self.now_ms += 1;
        self.deliver();
        self.deliver_snapshots();
        for member in self.members() {
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
                let host = self.host(member);
                host.paused_until_ms = host.paused_until_ms.max(now_ms + host.late_ms);
            }
        }
    }

    fn deliver(&mut self) {
        let now_ms = self.now_ms;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.packets).into_iter().partition(|packet| packet.due_ms <= now_ms);
        self.packets = later;
        for Packet { from, to, message, .. } in due {
            let is_lost = self.lost.is_some() && raft_message(&message).map(|message| message.msg_type()) == self.lost;
            let is_cut = is_lost || (self.cut_raft.contains(&(from, to)) && message[0] == 0);
            if !is_cut
                && !self.cut.contains(&(from, to))
                && let Some(host) = self.hosts.get_mut(&to)
            {
                host.inputs.push(Input::Message { from, message });
            }
        }
    }

    fn stream_snapshot(&mut self, from: MemberId, to: MemberId, index: u64, message: Bytes) {
        let saved = self.hosts[&from].disk.snapshot.clone().filter(|saved| saved.index == index);
        let Some(snapshot) = saved else {
            return self.host(from).inputs.push(Input::SnapshotSent { to, index, delivered: false });
        };
        let due_ms = self.now_ms + self.stream_ms;
        self.streams.push(SnapshotStream { due_ms, from, to, message, snapshot });
    }

    fn deliver_snapshots(&mut self) {
        let now_ms = self.now_ms;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.streams).into_iter().partition(|stream| stream.due_ms <= now_ms);
        self.streams = later;
        for SnapshotStream { from, to, message, snapshot, .. } in due {
            let is_cut = self.cut.contains(&(from, to)) || self.percent(self.loss_percent);
            let (delivered, index) = (!is_cut && self.hosts.contains_key(&to), snapshot.index);
            if delivered {
                self.counts.snapshots += 1;
                let (machine, bytes) = (Box::new(snapshot.machine()), snapshot.bytes());
                let configuration = snapshot.configuration.clone();
                let host = self.host(to);
                host.disk.received.push(snapshot);
                host.inputs.push(Input::SnapshotReceived { from, message, machine, configuration, bytes });
            }
            if let Some(host) = self.hosts.get_mut(&from) {
                host.inputs.push(Input::SnapshotSent { to, index, delivered });
            }
        }
    }

    /// The disk is done with what it has.
    pub fn finish_write(&mut self, member: MemberId) {
        let host = self.host(member);
        // The disk takes all that was waiting when it is done with what was before.
        host.disk_done_ms = None;
        let numbers: Vec<u64> = host.disk.unwritten.iter().map(|persist| persist.number).collect();
        let Some(last) = numbers.last().copied() else { return };
        let mut messages = Vec::new();
        for number in numbers {
            // What a later part of the batch overwrites was on the disk when it was acknowledged.
            let host = self.host(member);
            let written = host.disk.write_upto(number);
            host.durable_last = host.disk.last_index();
            written.iter().for_each(|(_, message)| self.check_durable(member, message));
            messages.extend(written);
        }
        self.host(member).inputs.push(Input::Persisted { number: last });
        for (to, message) in messages {
            self.send(member, to, message);
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
                if let Some(decoded) = raft_message(&message) {
                    let kind = decoded.msg_type();
                    // What a leader may say at once promises nothing about its own disk.
                    assert!(
                        !matches!(kind, MessageType::MsgAppendResponse | MessageType::MsgRequestVoteResponse)
                            || decoded.reject
                            || decoded.index == 0,
                        "seed {}: {member} sent {kind:?} before it was durable",
                        self.seed,
                    );
                }
                self.send(member, to, message);
            }
            Output::Queued { .. } => {}
            Output::Session { stream, notice } => self.session_notices.push((member, stream, notice)),
            Output::LockNotice { stream, notice } => self.lock_notices.push((member, stream, notice)),
            Output::Answer { call, answer } => {
                if self.host(member).calls.answered(call) {
                    let asked = self.asked.remove(&call).expect("every call was asked");
                    self.outcomes.insert(call, answer.result.as_ref().err().cloned());
                    match &answer.result {
                        Ok(Answered::LeaseTimes(times)) => drop(self.lease_times.insert(call, times.clone())),
                        Ok(Answered::Members(members)) => drop(self.told_members.insert(call, members.clone())),
                        Ok(Answered::Leader(leader)) => drop(self.told_leader.insert(call, *leader)),
                        _ => {}
                    }
                    self.answered(asked, answer);
                }
            }
            Output::Notice { stream, notice } => self.notices.push((member, stream, notice)),
            Output::SaveSnapshot(save) => {
                let snapshot = Snapshot::of(*save);
                let (index, bytes) = (snapshot.index, snapshot.bytes());
                let host = self.host(member);
                host.disk.snapshot = Some(snapshot);
                host.inputs.push(Input::SnapshotSaved { index, bytes });
            }
            Output::SendSnapshot { to, index, message } => self.stream_snapshot(member, to, index, message),
            Output::SnapshotRefused { index } => {
                self.host(member).disk.received.retain(|received| received.index != index);
                self.counts.snapshots_refused += 1;
            }
            Output::HashState { index, view } => {
                let hash = view.hash();
                self.host(member).inputs.push(Input::StateHashed { index, hash, took_ms: 1 });
            }
            Output::Members(members) => drop(self.host(member).members.replace(members)),
            Output::Removed => {
                assert!(!std::mem::replace(&mut self.host(member).is_removed, true), "told twice");
            }
            Output::Fatal(reason) => {
                let is_expected = self.highest_level.contains_key(&member);
                assert!(is_expected, "seed {}: {member}: {reason}", self.seed);
                self.fatal.insert(member, reason);
            }
        }
    }

    fn send(&mut self, from: MemberId, to: MemberId, message: Bytes) {
        self.counts.entries_sent += raft_message(&message).map_or(0, |message| message.entries.len() as u64);
        if self.copied == Some((from, to, message[0])) {
            self.copies.push(Packet { due_ms: 0, from, to, message: message.clone() });
        }
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
            (_, Err(Failure::LeaderChanged | Failure::OutcomeUnknown)) => self.counts.leader_changed += 1,
            (_, Err(Failure::TimedOut | Failure::NoLeader)) => self.counts.timed_out += 1,
            _ => {}
        }
    }

    /// Rule 5: who says that it has an entry has it on its disk.
    fn check_durable(&self, member: MemberId, message: &Bytes) {
        let Some(message) = raft_message(message) else { return };
        let host = &self.hosts[&member];
        // What was overwritten in a later term before it was written could not be committed any more.
        let is_of_term = message.term >= host.disk.hard_state.term;
        if message.msg_type() == MessageType::MsgAppendResponse && !message.reject && is_of_term {
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

    /// K5, L1 and E1 on what a member has just applied.
    fn check_state(&mut self, member: MemberId) {
        if self.may_differ == Some(member) {
            return;
        }
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

    pub fn propose(&mut self, member: MemberId, asked: Asked, command: Command) -> CallId {
        self.ask(member, asked, |call| Input::Propose { call, command })
    }

    pub fn ask(&mut self, member: MemberId, asked: Asked, input: impl FnOnce(CallId) -> Input) -> CallId {
        let call = self.next_call;
        self.next_call += 1;
        self.asked.insert(call, asked);
        let host = self.host(member);
        host.calls.open(call);
        host.inputs.push(input(call));
        call
    }
}

/// A message between members begins with its kind; raft's own are of kind 0.
pub fn raft_message(message: &Bytes) -> Option<Message> {
    let raft = message.strip_prefix(&[0])?;
    Some(Message::decode(raft).expect("own messages decode"))
}

pub fn raft_bytes(message: &Message) -> Bytes {
    [vec![0], message.encode_to_vec()].concat().into()
}
