//! The clients: what they ask for, and what they do with the answers.
//!
//! Every value that is written is unique, and so is every lease id and every name of a Lock call, so
//! that whatever turns up somewhere can be told from everything else. Clients crowd on few keys and few
//! locks, because it is where they meet that things go wrong.

mod crowds;
mod elections;
mod keeper;
mod keys;
mod leases;
mod lock_watches;
mod locks;
mod operator;
pub mod owners;
mod repeats;
mod strands;
pub mod streams;
mod watches;

use std::collections::BTreeMap;

use tenure_client::retry::Retry;
use tenure_machine::{Command, LeaseId, Level, MemberId, Revision};
use tenure_replica::{Answer, CallId, Failure, LockWatchRequest, Notice, StreamId, WatchRequest};

use crate::fates::Chores;
use crate::plan::Plan;
use crate::planted::Planted;
use crate::random::Random;
use crate::request::{Call, Request};

pub use self::keeper::Belief;
use self::keeper::Clock;
use self::leases::Session;
use self::lock_watches::Followers;
use self::locks::Held;
use self::operator::Operator;
use self::owners::Owners;
use self::repeats::Repeats;
use self::strands::Strands;
use self::watches::{Carrier, Stream};
pub use self::watches::{Delivery, Parcel};

/// Locks that one request asks for, at most.
pub const MOST_NAMES: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Put,
    PutLeased,
    PutKeeping,
    Delete,
    DeleteSpan,
    Txn,
    Range,
    RangeOld,
    View,
    Compact,
    Publish,
    Grant,
    Revoke,
    KeepAlive,
    TimeToLive,
    Resume,
    Lock,
    Relock,
    Unlock,
    Force,
    Meddle,
    Campaign,
    Proclaim,
    Resign,
    Observe,
    /// Whatever has an unknown outcome is asked for again, word by word.
    Retry,
    Cancel,
    Watch,
    Unwatch,
    CloseStream,
    Progress,
    /// Only in wide seeds, from here on.
    LeaseTimes,
    ForgetLock,
    LockWatch,
    LockUnwatch,
    OpenSession,
    CloseSession,
    UpdateMember,
}

impl Action {
    /// With how often each is done, before a seed changes that.
    pub const ALL: [(Action, u64); 31] = [
        (Action::Put, 20),
        (Action::PutLeased, 6),
        (Action::PutKeeping, 3),
        (Action::Delete, 5),
        (Action::DeleteSpan, 2),
        (Action::Txn, 12),
        (Action::Range, 10),
        (Action::RangeOld, 6),
        (Action::View, 2),
        (Action::Compact, 1),
        (Action::Publish, 1),
        (Action::Grant, 6),
        (Action::Revoke, 1),
        (Action::KeepAlive, 4),
        (Action::TimeToLive, 2),
        (Action::Resume, 1),
        (Action::Lock, 10),
        (Action::Relock, 3),
        (Action::Unlock, 8),
        (Action::Force, 1),
        (Action::Meddle, 1),
        (Action::Campaign, 3),
        (Action::Proclaim, 3),
        (Action::Resign, 2),
        (Action::Observe, 2),
        (Action::Retry, 4),
        (Action::Cancel, 3),
        (Action::Watch, 3),
        (Action::Unwatch, 1),
        (Action::CloseStream, 1),
        (Action::Progress, 2),
    ];

    /// With how often each is done in wide seeds.
    pub const WIDE: [(Action, u64); 7] = [
        (Action::LeaseTimes, 2),
        (Action::ForgetLock, 2),
        (Action::LockWatch, 4),
        (Action::LockUnwatch, 1),
        (Action::OpenSession, 4),
        (Action::CloseSession, 1),
        (Action::UpdateMember, 1),
    ];

    /// Whether it has to do with keys, and with nothing that changes keys, or hides them, by itself.
    pub fn is_on_keys(self) -> bool {
        use Action::*;
        matches!(self, Put | PutKeeping | Delete | DeleteSpan | Txn | Range | RangeOld | View | Retry | Cancel | Watch)
    }
}

/// What a client does.
pub enum Doing {
    Call(Request),
    /// One more attempt of a call, by the client's rule.
    Again(Request, Retry),
    Cancel(CallId),
    Watch(StreamId, WatchRequest),
    LockWatch(StreamId, LockWatchRequest),
    Session {
        stream: StreamId,
        lease: LeaseId,
        is_open: bool,
    },
}

/// What everybody may know.
pub struct Known {
    pub now_us: u64,
    pub revision: Revision,
    pub compacted: Revision,
    /// What is left to do at the end.
    pub chores: Chores,
    pub voters: Vec<MemberId>,
    pub learners: Vec<MemberId>,
    /// Members that will never come back.
    pub lost: Vec<MemberId>,
    /// The store is full, or was.
    pub has_alarm: bool,
    pub level: Level,
    /// An id that nobody had yet.
    pub next_member: MemberId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Everything goes.
    Busy,
    /// Nothing new is begun; what is held is given back, what is waited for is kept alive.
    Finishing,
    Silent,
}

pub struct Traffic {
    pub mood: Mood,
    random: Random,
    clients: Vec<Client>,
    streams: BTreeMap<StreamId, Stream>,
    next_stream: StreamId,
    carrier: Carrier,
    repeats: Repeats,
    strands: Strands,
    drawn: u64,
    operator: Operator,
    followers: Followers,
    owners: Owners,
    /// Ids of leases that were granted once.
    old_leases: Vec<LeaseId>,
    /// Those that have changed.
    beliefs: Vec<Belief>,
    /// A bug put in on purpose: see [`crate::Planted::CountFromAnswer`].
    counts_from_answer: bool,
}

#[derive(Default)]
struct Client {
    sessions: Vec<Session>,
    /// Lock calls that wait, with the lease they wait with.
    waiting: BTreeMap<CallId, LeaseId>,
    held: Vec<Held>,
    open: Vec<CallId>,
    /// Commands of which nobody knows what became of them, the last ones.
    unknown: Vec<Command>,
    clock: Clock,
    /// See [`Plan::is_careful`].
    is_careful: bool,
}

impl Client {
    /// Only what a client proposes itself; a place in a queue is asked for again under a new name.
    fn doubt(&mut self, request: &Request) {
        const MOST: usize = 8;
        if let Request::Propose(command) = request
            && !self.is_careful
            && !matches!(command, Command::Publish(_) | Command::Compact { .. } | Command::Leave(_))
        {
            self.unknown.truncate(MOST - 1);
            self.unknown.push(command.clone());
        }
    }
}

impl Traffic {
    pub fn new(seed: u64, plan: &Plan, planted: Option<Planted>) -> Traffic {
        let mut random = Random::new(seed, 2);
        let mut client = |client: usize| {
            let drift_ppm = random.below(2 * plan.drift_ppm + 1) as i64 - plan.drift_ppm as i64;
            let clock = Clock { drift_ppm, ..Clock::default() };
            Client { clock, is_careful: plan.is_careful(client), ..Client::default() }
        };
        Traffic {
            mood: Mood::Busy,
            clients: (0..plan.clients).map(&mut client).collect(),
            random,
            beliefs: Vec::new(),
            counts_from_answer: planted == Some(Planted::CountFromAnswer),
            streams: BTreeMap::new(),
            next_stream: 1,
            carrier: Carrier::new(seed, plan, planted),
            repeats: Repeats::new(planted),
            strands: Strands::new(seed, plan),
            drawn: 0,
            operator: Operator::default(),
            followers: Followers::default(),
            owners: Owners::new(seed),
            old_leases: Vec::new(),
        }
    }

    /// What a client does now, and in how many microseconds it does something again.
    pub fn act(&mut self, client: usize, plan: &Plan, known: &Known) -> (Vec<Doing>, u64) {
        let pause_us = self.random.between(plan.think_us.0, plan.think_us.1);
        if self.mood == Mood::Silent {
            return (Vec::new(), pause_us);
        }
        let mut doing = self.renewals(client, known.now_us);
        doing.extend(self.watch_again(client));
        doing.extend(self.follow_again(client));
        doing.extend(self.repeat(client, known.now_us));
        doing.extend(self.strand(client, known.now_us));
        doing.extend(self.crowd(client, plan));
        if client == 0 {
            doing.extend(self.tend(plan, known));
            doing.extend(self.operate(plan, known));
        }
        match self.mood {
            Mood::Busy => doing.extend(self.something(client, plan, known)),
            Mood::Finishing => doing.extend(self.give_back(client, known)),
            Mood::Silent => {}
        }
        (doing, pause_us)
    }

    fn something(&mut self, client: usize, plan: &Plan, known: &Known) -> Vec<Doing> {
        let total: u64 = plan.weights.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.random.below(total);
        let chosen = plan.weights.iter().find(|(_, weight)| {
            let chosen = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            chosen
        });
        let Some((action, _)) = chosen else { return Vec::new() };
        use Action::*;
        match action {
            Put | PutLeased | PutKeeping | Delete | DeleteSpan | Txn | Range | RangeOld | View | Compact | Publish => {
                vec![Doing::Call(self.on_keys(client, *action, plan, known))]
            }
            Grant | Revoke | KeepAlive | TimeToLive | Resume => self.on_leases(client, *action, plan, known),
            Lock | Relock | Unlock | Force | Meddle => self.on_locks(client, *action, plan),
            Campaign | Proclaim | Resign | Observe => self.on_elections(client, *action, plan, known),
            Retry => {
                let again = self.clients[client].unknown.pop().map(|command| Doing::Call(Request::Propose(command)));
                again.into_iter().collect()
            }
            Cancel => {
                let open = &mut self.clients[client].open;
                match self.random.below(open.len() as u64 + 1) as usize {
                    nth if nth < open.len() => vec![Doing::Cancel(open.swap_remove(nth))],
                    _ => Vec::new(),
                }
            }
            Watch | Unwatch | CloseStream | Progress => self.on_watches(client, *action, plan, known),
            LockWatch | LockUnwatch | OpenSession | CloseSession => self.on_lock_watches(client, *action, plan),
            LeaseTimes => {
                let leases = (0..self.random.between(1, 4)).map(|_| self.some_lease(client)).collect();
                vec![Doing::Call(Request::LeaseTimes(leases))]
            }
            ForgetLock => vec![Doing::Call(Request::Propose(Command::ForgetLock { name: self.name(plan) }))],
            UpdateMember => vec![Doing::Call(self.update(known))],
        }
    }

    pub fn issued(&mut self, id: CallId, call: &Call) {
        self.operator.issued(id, &call.request);
        self.repeat_issued(id, call);
        self.strand_issued(id, call);
        let client = &mut self.clients[call.client];
        client.renewal_issued(id, call);
        client.open.push(id);
        if let Request::Lock(lock) = &call.request {
            client.waiting.insert(id, lock.lease);
        }
    }

    /// The member is gone with this call.
    pub fn lost(&mut self, call: &Call) {
        self.clients[call.client].doubt(&call.request);
    }

    pub fn cancelled(&mut self, id: CallId, call: &Call, now_us: u64) {
        self.operator.answered(id);
        self.repeat_cancelled(id);
        let client = &mut self.clients[call.client];
        client.renewals_failed(|failed| failed == id, now_us);
        client.open.retain(|open| *open != id);
        client.waiting.remove(&id);
        client.doubt(&call.request);
    }

    /// A grant is on its way, and its client does not wait for it any more.
    pub fn disowned(&mut self, client: usize, id: CallId) {
        let client = &mut self.clients[client];
        client.open.retain(|open| *open != id);
        client.waiting.remove(&id);
    }

    pub fn answered(&mut self, id: CallId, call: &Call, answer: &Answer, now_us: u64) {
        self.repeat_answered(id, answer, now_us);
        let client = &mut self.clients[call.client];
        client.open.retain(|open| *open != id);
        client.waiting.remove(&id);
        self.operator.answered(id);
        client.renewal_answered(id, call, answer, now_us, self.counts_from_answer);
        client.lease_answered(&call.request, answer, now_us);
        if let Request::Lock(lock) = &call.request {
            client.lock_answered(lock, answer);
        }
        if let Err(Failure::TimedOut | Failure::LeaderChanged | Failure::OutcomeUnknown) = &answer.result {
            client.doubt(&call.request);
        }
        self.note_beliefs(call.client);
    }

    /// What the reader of a stream does with a notice, and in how many microseconds.
    pub fn noticed(&mut self, stream: StreamId, notice: &Notice) -> Option<(u64, WatchRequest)> {
        let request = self.streams.get_mut(&stream)?.noticed(notice)?;
        Some((self.random.spread(10, 400_000), request))
    }

    /// A member is gone: connections break. Nobody knows what became of what was under way.
    pub fn died(&mut self, lost: &[CallId], cut_off: &[StreamId], now_us: u64) {
        for client in &mut self.clients {
            client.renewals_failed(|id| lost.contains(&id), now_us);
            client.open.retain(|id| !lost.contains(id));
            client.waiting.retain(|id, _| !lost.contains(id));
        }
        self.repeats_lost(lost, now_us);
        self.operator.died(lost);
        self.lose_followers(cut_off);
        cut_off.iter().for_each(|stream| self.cut_off(*stream));
    }

    /// Nobody is at the other end of this stream any more.
    pub fn cut_off(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.broken = true;
        }
    }

    pub fn is_calm(&self) -> bool {
        self.clients.iter().all(|client| client.open.is_empty())
    }

    /// Every stream asks how far it is, or is opened anew.
    pub fn read_on(&mut self) -> Vec<(usize, Doing)> {
        let mut doing = Vec::new();
        for client in 0..self.clients.len() {
            let mut again = self.watch_again(client);
            again.extend(self.follow_again(client));
            doing.extend(again.into_iter().map(|doing| (client, doing)));
        }
        let asks = self.streams.iter().map(|(id, stream)| (stream.client, Doing::Watch(*id, WatchRequest::Progress)));
        doing.extend(asks);
        doing
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }
}
