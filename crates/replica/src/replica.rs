//! The member itself: one step at a time.
//!
//! A step ticks raft, takes what came in, and then turns raft's crank until it stands still: what
//! is to be persisted goes out, what is committed is applied and answered, what was confirmed is
//! read. Everything a step does is in its outputs, in the order in which it must be done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};
use raft::eraftpb::{Entry, HardState as RaftHardState, Message};
use raft::{RawNode, StateRole};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenure_machine::{Command, LeaseId, Leave, Machine, MemberId};

use crate::checkpoint::Checkpoints;
use crate::compare::Comparison;
use crate::config::{Boot, Config, decode_configuration};
use crate::deadlines::Deadlines;
use crate::forward::{Forwards, Greeted, HeldJoin};
use crate::install::{Arrived, SnapshotProgress};
use crate::level::{Levels, check_level, level_of};
use crate::lock_watch::LockHub;
use crate::log::Log;
use crate::members::Membership;
use crate::message::{self, PeerMessage};
use crate::pace::Pace;
use crate::probe::{Acknowledged, Probes};
use crate::propose::{Gathered, Proposals, Queued, Unsent, Waits};
use crate::question::{PeerAnswers, Question, Questions};
use crate::read::{Confirmed, Reads};
use crate::ready::raft_entry;
use crate::role::{election_ticks, is_only_voter};
use crate::roll_call::RollCall;
use crate::status::Roles;
use crate::transfer::Transfer;
use crate::vouch::Vouches;
use crate::watch::Hub;
use crate::{Answer, Answered, CallId, Consistency, Failure, Input, Now, Output, Read, StreamId};

/// History events freed in a tick after a compaction, beside those that each command frees.
const TRIM_EVENTS: usize = 256;
/// Commands that lie in one allocation, about: it lasts as long as the last of them.
const PROPOSED_BYTES: usize = 16 << 10;
/// How long a member alone may sleep when nothing is due.
const IDLE_MS: u64 = 500;

/// Why a member cannot start from what it was given.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error("the snapshot's configuration cannot be decoded")]
    Configuration,
    #[error("raft refuses to start: {0}")]
    Raft(String),
    /// A later release wrote it.
    #[error("{0}")]
    Level(String),
}

pub struct Replica {
    pub(crate) config: Config,
    pub(crate) node: RawNode<Log>,
    pub(crate) machine: Machine,
    pub(crate) random: ChaCha8Rng,
    pub(crate) now: Now,
    /// When the driver was told to step again at the latest.
    pub(crate) wake_ms: u64,
    pub(crate) last_tick_ms: u64,
    /// All pauses of this process together, see [`crate::deadlines`].
    pub(crate) paused_ms: u64,
    /// The last step came much later than it was asked for.
    pub(crate) was_late: bool,
    pub(crate) pace: Pace,
    pub(crate) role: (StateRole, u64),
    /// Who leads, as far as this member knows, and in which term.
    pub(crate) leader: (MemberId, u64),
    /// This member leads, and has applied everything that was committed before its term.
    pub(crate) leading: bool,
    /// When each of the others was last heard of.
    pub(crate) heard_ms: BTreeMap<MemberId, u64>,
    /// And when the leader was.
    pub(crate) heard_leader_ms: u64,
    pub(crate) membership: Membership,
    pub(crate) levels: Levels,
    pub(crate) compares: Comparison,
    pub(crate) roles: Roles,
    pub(crate) transfers: Vec<Transfer>,
    /// Whether this leader is looking for a successor.
    pub(crate) seeks_successor: bool,
    pub(crate) roll_call: Option<RollCall>,
    pub(crate) unsent: Vec<Unsent>,
    pub(crate) proposals: Proposals,
    pub(crate) forwards: Forwards,
    /// As a leader: who forwards to this member.
    pub(crate) greeted: Greeted,
    /// And who has been sent what it may lack.
    pub(crate) probes: Probes,
    /// Refused in this step, by member.
    pub(crate) refusals: BTreeMap<MemberId, Vec<(u64, Failure)>>,
    pub(crate) questions: Questions,
    /// Answered in this step, for other members.
    pub(crate) peer_answers: PeerAnswers,
    pub(crate) reads: Reads,
    pub(crate) vouches: Vouches,
    pub(crate) queued: Queued,
    pub(crate) deadlines: Deadlines,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) hub: Hub,
    pub(crate) lock_hub: LockHub,
    /// The streams that carry a lease's session at this member.
    pub(crate) sessions: BTreeMap<LeaseId, StreamId>,
    /// Number of the last Ready that was given to the log, and of the last one altogether.
    pub(crate) persist_asked: u64,
    pub(crate) persist_done: u64,
    pub(crate) last_ready: u64,
    /// The highest term that the log was asked to keep, and by which number.
    pub(crate) term_asked: (u64, u64),
    pub(crate) unpersisted_since_ms: Option<u64>,
    /// The log does not know how far this follower knows to be committed.
    pub(crate) is_commit_unsaved: bool,
    /// What the leader was told last of this member's log, and when.
    pub(crate) acknowledged: Option<(Acknowledged, u64)>,
    /// Commands of other members that can wait a little, in the term in which they came: places in queues, and changes
    /// of members that wait for a roll call.
    pub(crate) held_joins: Vec<HeldJoin>,
    pub(crate) timeouts_due_ms: u64,
    /// Compaction has left something to free.
    pub(crate) is_trimming: bool,
    /// Calls given up in this step; looked for once, when all inputs are taken.
    pub(crate) cancelled: Vec<(CallId, Vec<Leave>)>,
    pub(crate) snapshot: SnapshotProgress,
    /// Received, and raft is about to say whether it wants it.
    pub(crate) arrived: Option<Arrived>,
    /// Taken by raft and adopted, but not durable yet: number of its Ready, and its index.
    pub(crate) installing: Option<(u64, u64)>,
    /// Committed, from a change of members on that is applied when this number is durable.
    pub(crate) held: Vec<Entry>,
    pub(crate) held_until: Option<u64>,
    /// Answers to members that want to read, until that is applied.
    pub(crate) withheld_answers: Vec<Message>,
    /// As a leader: snapshots that arrived and whose members have not been heard of since.
    pub(crate) delivered: BTreeMap<MemberId, (u64, u64)>,
    /// Revisions with the time at which they were current.
    pub(crate) history_samples: std::collections::VecDeque<(u64, i64)>,
    /// Leases whose grant this leader has proposed and not yet applied.
    pub(crate) granting: BTreeSet<LeaseId>,
    /// Indexes and leases of Lock commands that this leader has appended, in order, until they are applied.
    pub(crate) locking: VecDeque<(u64, LeaseId)>,
    pub(crate) alarm_asked: bool,
    /// Whether the data was beyond the quota while the alarm was raised.
    pub(crate) was_full: bool,
    pub(crate) compact_asked: bool,
    /// A proposal of [`tenure_machine::Command::Continue`] is on its way.
    pub(crate) continue_asked: bool,
    /// Of the command that is being proposed.
    pub(crate) encoded: Vec<u8>,
    /// What raft was given of them, and room for more.
    pub(crate) proposed: BytesMut,
    pub(crate) gathered: Gathered,
    pub(crate) outputs: Vec<Output>,
    pub(crate) failed: bool,
}

impl Replica {
    pub fn boot(config: Config, boot: Boot, now: Now) -> Result<Replica, BootError> {
        let configuration = decode_configuration(&boot.configuration).ok_or(BootError::Configuration)?;
        check_level(&config, level_of(boot.machine.state().level(), &boot.entries)).map_err(BootError::Level)?;
        let single = is_only_voter(config.member, &configuration);
        let hard_state = RaftHardState {
            term: boot.hard_state.term.max(boot.snapshot_term),
            // A vote counts in its own term only.
            vote: if boot.hard_state.term < boot.snapshot_term { raft::INVALID_ID } else { boot.hard_state.vote },
            // A commit index may be written ahead of its entries only by a fault; the entries decide.
            commit: boot.hard_state.commit.clamp(boot.snapshot_index, boot.snapshot_index + boot.entries.len() as u64),
        };
        let term = hard_state.term;
        let entries = boot.entries.into_iter().map(raft_entry).collect();
        let log = Log::new(hard_state, configuration.clone(), boot.snapshot_index, boot.snapshot_term, entries);
        let (election_min_ticks, election_max_ticks) = election_ticks(&config);
        let raft_config = raft::Config {
            id: config.member,
            election_tick: election_min_ticks,
            min_election_tick: election_min_ticks,
            max_election_tick: election_max_ticks,
            heartbeat_tick: (config.heartbeat_ms / config.tick_ms).max(1) as usize,
            applied: boot.snapshot_index,
            max_size_per_msg: config.inflight_bytes.min(1 << 20),
            max_inflight_msgs: 256,
            // What is proposed in one step goes to a follower in one message.
            batch_append: true,
            check_quorum: true,
            pre_vote: true,
            read_only_option: raft::ReadOnlyOption::Safe,
            max_uncommitted_size: config.inflight_bytes,
            max_committed_size_per_ready: 4 << 20,
            ..Default::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut node = RawNode::new(&raft_config, log, &logger).map_err(|error| BootError::Raft(error.to_string()))?;
        // Alone there is nobody to wait for.
        if single {
            node.campaign().map_err(|error| BootError::Raft(error.to_string()))?;
        }
        let role = (StateRole::Follower, 0);
        let mut replica = Replica {
            random: ChaCha8Rng::seed_from_u64(config.seed),
            hub: Hub::new(config.watch_buffer_bytes),
            lock_hub: LockHub::new(boot.machine.state().revision(), now.monotonic_ms),
            node,
            machine: boot.machine,
            now,
            wake_ms: now.monotonic_ms,
            last_tick_ms: now.monotonic_ms,
            paused_ms: 0,
            was_late: false,
            pace: Pace::default(),
            role,
            leader: (raft::INVALID_ID, 0),
            leading: false,
            heard_ms: BTreeMap::new(),
            heard_leader_ms: now.monotonic_ms,
            membership: Membership::default(),
            levels: Levels::default(),
            compares: Comparison::default(),
            roles: Roles::of(&configuration),
            transfers: Vec::new(),
            seeks_successor: false,
            roll_call: None,
            unsent: Vec::new(),
            proposals: Proposals::default(),
            forwards: Forwards::default(),
            greeted: Greeted::default(),
            probes: Probes::default(),
            refusals: BTreeMap::new(),
            questions: Questions::default(),
            peer_answers: PeerAnswers::new(),
            reads: Reads::default(),
            vouches: Vouches::default(),
            queued: Queued::default(),
            deadlines: Deadlines::default(),
            checkpoints: Checkpoints::default(),
            sessions: BTreeMap::new(),
            persist_asked: 0,
            persist_done: 0,
            last_ready: 0,
            term_asked: (term, 0),
            unpersisted_since_ms: None,
            is_commit_unsaved: false,
            acknowledged: None,
            held_joins: Vec::new(),
            timeouts_due_ms: 0,
            is_trimming: false,
            cancelled: Vec::new(),
            snapshot: SnapshotProgress {
                bytes: boot.snapshot_bytes,
                // The entries behind the snapshot count when they are applied.
                log_bytes_since: 0,
                saving: None,
            },
            arrived: None,
            installing: None,
            held: Vec::new(),
            held_until: None,
            withheld_answers: Vec::new(),
            delivered: BTreeMap::new(),
            history_samples: Default::default(),
            granting: BTreeSet::new(),
            locking: VecDeque::new(),
            alarm_asked: false,
            was_full: false,
            compact_asked: false,
            continue_asked: false,
            encoded: Vec::new(),
            proposed: BytesMut::with_capacity(PROPOSED_BYTES),
            gathered: Gathered::default(),
            outputs: Vec::new(),
            failed: false,
            config,
        };
        replica.note_role();
        replica.note_removal();
        Ok(replica)
    }

    /// Takes what has happened and gives what is to be done, in order.
    pub fn step(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>, outputs: &mut Vec<Output>) {
        if self.failed {
            return;
        }
        std::mem::swap(&mut self.outputs, outputs);
        if !self.membership.is_told() {
            self.tell_members();
        }
        self.pass_time(now);
        for input in inputs {
            if !matches!(input, Input::Propose { .. } | Input::Lock { .. } | Input::Read { .. }) {
                self.hand_to_raft();
            }
            self.take(input);
        }
        // Grants are told only now: a call that is given up in this step is told nothing, whichever came first.
        self.do_confirmed();
        self.crank();
        if !self.failed {
            self.end_step();
        }
        std::mem::swap(&mut self.outputs, outputs);
    }

    /// When to step again even if nothing comes in.
    pub fn wake_ms(&self) -> u64 {
        self.wake_ms
    }

    /// The state as applied so far; for checkers and tools.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The monotonic clock less every pause of this process: what leases, and all who wait, are measured by.
    pub(crate) fn running_ms(&self) -> u64 {
        self.now.monotonic_ms - self.paused_ms
    }

    pub(crate) fn pass_time(&mut self, now: Now) {
        let before = self.now.monotonic_ms;
        self.now = Now { monotonic_ms: now.monotonic_ms.max(before), wall_ms: now.wall_ms };
        let now_ms = self.now.monotonic_ms;
        let late_ms = now_ms.saturating_sub(self.wake_ms.max(before));
        let is_late = late_ms >= self.config.election_min_ms / 2;
        if is_late {
            let given_back_ms = self.give_back(now_ms - before, late_ms);
            self.last_tick_ms = (self.last_tick_ms + given_back_ms).min(now_ms.saturating_sub(self.config.tick_ms));
            self.doubt_what_came_before();
        }
        self.was_late = is_late;
        let ticked = now_ms - self.last_tick_ms >= self.config.tick_ms;
        while now_ms - self.last_tick_ms >= self.config.tick_ms {
            self.last_tick_ms += self.config.tick_ms;
            if self.is_alone() && self.is_leader() {
                self.last_tick_ms = now_ms;
                break;
            }
            if self.may_campaign() {
                self.tick_raft();
            }
        }
        self.step_down_if_log_hangs();
        self.time_out_calls();
        if ticked {
            self.is_trimming = self.machine.trim(TRIM_EVENTS);
        }
        if self.leading {
            self.read_leases();
            self.expire_due();
            self.checkpoint_due();
            self.compact_history();
            self.clear_no_space();
            self.go_on();
        }
    }

    /// How much of the time since the last step does not count, because this member was paused.
    ///
    /// Clients could not reach a leader that did not run. It may have stopped right after its last step, so all of that
    /// time is given back, not only what it overslept. But a member whose every step is late is slow and not paused: it
    /// takes its inputs in every step, so clients do reach it. If it gave back all of its gaps, its clock would stand
    /// still, no lease would end and no call would time out. Therefore a gap behind a step that was late itself counts
    /// up to the lateness that every step is allowed, so that the clock goes on. It counts no further, so that one long
    /// gap among short ones does not end the leases of clients that could not renew them.
    fn give_back(&mut self, gap_ms: u64, late_ms: u64) -> u64 {
        let is_slow = self.was_late;
        #[cfg(feature = "planted")]
        let is_slow = is_slow && !tenure_machine::planted::is(tenure_machine::planted::Bug::StopLeaseClock);
        let given_back_ms = match is_slow {
            true => late_ms - self.config.election_min_ms / 2,
            false => gap_ms,
        };
        self.paused_ms += given_back_ms;
        given_back_ms
    }

    /// Looks at everything that waits, so once in a tick is often enough.
    pub(crate) fn time_out_calls(&mut self) {
        let now_ms = self.running_ms();
        if now_ms < self.timeouts_due_ms {
            return;
        }
        self.timeouts_due_ms = now_ms + self.config.tick_ms;
        self.retry_reads();
        self.give_up_delivered();
        self.ask_whether_removed();
        self.tell_removal();
        self.raise_level();
        self.compare_states();
        self.ask_for_state();
        let since_ms = now_ms.checked_sub(self.config.call_timeout_ms);
        self.time_out_transfers(since_ms);
        let Some(since_ms) = since_ms else { return };
        self.time_out_reseed(since_ms);
        let mut late = self.proposals.abandon_older_than(since_ms);
        late.extend(self.forwards.abandon_older_than(since_ms));
        late.extend(self.membership.take_older_than(since_ms));
        for call in late {
            self.fail(call, Failure::TimedOut);
        }
        for waiting in self.reads.take_older_than(since_ms) {
            waiting.what.call().into_iter().for_each(|call| self.fail(call, self.why_unanswered()));
            self.give_up(&waiting.what);
        }
        for call in self.questions.take_older_than(since_ms) {
            self.fail(call, self.why_unanswered());
        }
        // A leave must reach the log one day: somebody else waits behind that place.
        let is_late = |unsent: &Unsent| unsent.since_ms < since_ms && unsent.waits.call().is_some();
        if self.unsent.iter().any(is_late) {
            let (late, kept) = std::mem::take(&mut self.unsent).into_iter().partition(is_late);
            self.unsent = kept;
            for unsent in Vec::<Unsent>::into_iter(late) {
                unsent.waits.call().into_iter().for_each(|call| self.fail(call, Failure::NoLeader));
            }
        }
    }

    /// What a leader was given, or stands in the log, may still have its effect: only what has none for certain is
    /// answered.
    fn hurry(&mut self, call: CallId) {
        if self.is_leader() || self.other_leader().is_some() {
            return;
        }
        let unsent = self.unsent.extract_if(.., |unsent| unsent.waits.call() == Some(call)).count();
        let unanswered = self.reads.take_reads(call).len() + self.questions.take_calls(|other| other == call).len();
        #[cfg(feature = "planted")]
        let unsent = match tenure_machine::planted::is(tenure_machine::planted::Bug::SayNoLeader) {
            true => unsent + self.proposals.abandon_calls(|other| other == call).len(),
            false => unsent,
        };
        if unsent + unanswered > 0 {
            self.fail(call, Failure::NoLeader);
        }
    }

    pub(crate) fn why_unanswered(&self) -> Failure {
        if self.node.raft.leader_id == raft::INVALID_ID { Failure::NoLeader } else { Failure::TimedOut }
    }

    pub(crate) fn take(&mut self, input: Input) {
        if let Some(call) = self.refused_as_corrupt(&input) {
            return self.fail(call, Failure::Corrupt);
        }
        match input {
            Input::Propose { call, command } => self.propose_in_turn(command, Waits::Call(call)),
            Input::Lock { call, lock } => self.join(call, lock),
            Input::Read { call, read, consistency: Consistency::Serializable } => self.read(call, read),
            Input::Read { call, read: read @ (Read::LeaseTimeToLive(_) | Read::LeaseTimes(_)), .. } => {
                self.read(call, read)
            }
            Input::Read { call, read, consistency: Consistency::Linearizable } => {
                self.reads.gather(Confirmed::Read { call, read }, self.running_ms())
            }
            Input::KeepAlive { call, lease, epoch } => self.ask(call, Question::KeepAlive { lease, epoch }),
            Input::ChangeMembers { call, change } => {
                self.propose_in_turn(Command::ChangeMembers(change), Waits::Call(call))
            }
            Input::TransferLeader { call, to } => self.transfer(call, to),
            Input::Hurry { call } => self.hurry(call),
            Input::Cancel { call } => self.cancel(call, Vec::new()),
            Input::CancelLock { call, leaves } => self.cancel(call, leaves),
            Input::Watch { stream, request } => {
                let term = self.node.raft.term;
                self.hub.take(stream, request, &self.machine, term, &mut self.outputs)
            }
            Input::LockWatch { stream, request } => {
                let now = (self.machine.state().revision(), self.node.raft.term);
                self.lock_hub.take(stream, request, now, &mut self.outputs)
            }
            Input::SessionOpened { stream, lease } => drop(self.sessions.insert(lease, stream)),
            Input::SessionClosed { stream, lease } => {
                if self.sessions.get(&lease) == Some(&stream) {
                    self.sessions.remove(&lease);
                }
            }
            Input::Message { from, message } => self.take_message(from, &message),
            Input::RefusedAsRemoved { by } => self.take_refusal_as_removed(by),
            Input::PeerLost { member } => drop(self.heard_ms.remove(&member)),
            Input::Persisted { number } => self.persisted(number),
            Input::SnapshotSaved { index, bytes } => self.snapshot_saved(index, bytes),
            Input::SnapshotFailed { index } => self.snapshot_failed(index),
            Input::StateHashed { index, hash, took_ms } => self.state_hashed(index, hash, took_ms),
            Input::Reseed { call } => self.reseed(call),
            Input::SnapshotSent { to, index, delivered } => self.snapshot_sent(to, index, delivered),
            Input::SnapshotReceived { from, message, machine, configuration, bytes } => {
                self.receive_snapshot(from, &message, machine, &configuration, bytes)
            }
        }
    }

    pub(crate) fn take_message(&mut self, from: MemberId, message: &Bytes) {
        self.heard_ms.insert(from, self.running_ms());
        self.note_present(from);
        match message::decode(message) {
            Some(PeerMessage::Raft(message)) => self.take_raft_message(from, *message),
            Some(PeerMessage::Hello { term, boot }) => self.take_hello(from, term, boot),
            Some(PeerMessage::Welcome { term, boot, session }) => self.take_welcome(term, boot, session),
            Some(PeerMessage::Commands { term, boot, session, commands }) => {
                self.take_commands(from, (term, boot, session), commands)
            }
            Some(PeerMessage::Refusals { term, boot, refusals }) => self.take_refusals(term, boot, refusals),
            Some(PeerMessage::Questions { term, boot, questions }) => self.take_questions(from, term, boot, questions),
            Some(PeerMessage::Answers { boot, answers }) => self.take_answers(boot, answers),
            Some(PeerMessage::Transfer { term, to }) => self.take_transfer(from, term, to),
            Some(PeerMessage::Presence { cluster, applied }) => self.take_presence(from, cluster, applied),
            Some(PeerMessage::Removed { cluster, applied }) => self.take_removed(from, cluster, applied),
            Some(PeerMessage::Vouch { term, committed, question }) => {
                self.take_vouch(from, term, committed, &question);
            }
            Some(PeerMessage::AskHash { term, index }) => self.take_hash_question(from, term, index),
            Some(PeerMessage::TellHash { term, index, hash }) => self.take_hash(from, term, index, hash),
            Some(PeerMessage::AskLevel { term }) => self.take_level_question(from, term),
            Some(PeerMessage::TellLevel { term, highest }) => self.take_supported_level(from, term, highest),
            None => {}
        }
    }

    pub(crate) fn answer(&mut self, call: CallId, result: Result<Answered, Failure>) {
        self.answer_at(call, self.machine.state().revision(), result);
    }

    pub(crate) fn answer_at(&mut self, call: CallId, revision: i64, result: Result<Answered, Failure>) {
        let answer = Answer { revision, term: self.node.raft.term, result };
        self.outputs.push(Output::Answer { call, answer });
    }

    pub(crate) fn fail(&mut self, call: CallId, failure: Failure) {
        self.answer(call, Err(failure));
    }

    pub(crate) fn end_step(&mut self) {
        self.send_refusals();
        self.send_answers();
        self.send_vouches();
        self.hub.flush(&self.machine, self.node.raft.term, &mut self.outputs);
        self.lock_hub.close_some();
        self.ask_for_snapshot();
        self.wake_ms = self.next_wake_ms();
    }

    pub(crate) fn next_wake_ms(&self) -> u64 {
        let now_ms = self.now.monotonic_ms;
        // A member alone has nobody to hear from: it need not tick while nothing is due.
        let idle_ms = if self.is_alone() && self.is_leader() { IDLE_MS } else { self.config.tick_ms };
        let mut wake = self.last_tick_ms.max(now_ms.saturating_sub(self.config.tick_ms)) + idle_ms;
        if self.leading
            && let Some(deadline) = self.deadlines.earliest()
        {
            wake = wake.min(deadline + self.paused_ms);
        }
        // What waits for a roll call is unsent, too, and looked at in every step.
        if let Some(due_ms) = self.unsent_due_ms().filter(|_| self.can_send() && self.roll_call.is_none()) {
            wake = wake.min(due_ms + self.paused_ms);
        }
        if !self.reads.is_idle() || self.is_trimming || self.roll_call.is_some() {
            wake = wake.min(now_ms + self.config.tick_ms);
        }
        // The rest of a long piece of work, as soon as what came in meanwhile is taken.
        let has_more = self.hub.has_more() || self.lock_hub.has_more() || self.forwards.has_released();
        if self.deadlines.unread().is_some() || has_more {
            wake = now_ms + 1;
        }
        wake.max(now_ms + 1)
    }
}
