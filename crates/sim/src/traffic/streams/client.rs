//! The client's side of a session stream, as `tenure_client::session_stream` drives it: orders are taken while a stream is
//! open or being opened, and wait while the client pauses between two streams. Callers that hold the turn at a name
//! keep it until nothing is owed for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_client::lifecycle::{self, CancelAt, Cause, Lifecycle};
use tenure_client::requests::{Effect, Input, Names, Number, Request, Requests, Ticket, Token, Wait};
use tenure_client::retry::Retry;
use tenure_machine::{LeaseId, Mode};

use super::{Asked, Down, Drawn, PipeId, Up};
use crate::random::Random;
use crate::traffic::keeper::Clock;

const FIRST_PAUSE_MS: u64 = 20;
const LONGEST_PAUSE_MS: u64 = 500;
const A_MOMENT_MS: u64 = 1;
/// How long a caller waits for the answer to its unlock.
const UNLOCK_PATIENCE_US: u64 = 5_000_000;

pub struct SessionClient {
    /// By which the checks know it.
    pub number: usize,
    clock: Clock,
    pub session: Option<Session>,
    pub granting: Option<Granting>,
    /// It stands still until then.
    pub paused_us: u64,
    /// It reaches no member until then.
    pub cut_off_us: u64,
    /// When its lifecycle is woken next.
    pub tick_us: u64,
}

/// A lease that was asked for.
pub struct Granting {
    pub lease: LeaseId,
    pub ttl_ms: u64,
    pub retry: Retry,
    pub sent_us: u64,
}

pub struct Session {
    pub lease: LeaseId,
    lifecycle: Lifecycle,
    requests: Requests,
    pub link: Link,
    orders: VecDeque<Input>,
    callers: BTreeMap<Ticket, Caller>,
    /// Unlocks that are under way, with the ticket of the lock.
    unlocks: BTreeMap<Ticket, Ticket>,
    /// Names at which a caller has its turn.
    taken: BTreeSet<String>,
    pause_ms: u64,
    holds: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Nothing was ordered yet.
    Idle,
    Opening(PipeId),
    Open(PipeId),
    /// Between two streams.
    Pausing,
    Over,
}

struct Caller {
    names: Names,
    mode: Mode,
    give_up_us: Option<u64>,
    stage: Stage,
    /// When it goes on next.
    due_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waits,
    /// The grant is delivered, and not read.
    Granted(Token),
    Holds(Token),
    GivesBack(Token, Ticket),
    /// It went away before it had read an answer.
    Gone,
}

/// What follows from a step of a client.
pub enum Deed {
    Stepped { lease: LeaseId, input: Input, effects: Vec<Effect> },
    Believes { lease: LeaseId, holds: bool },
    Open { pipe: PipeId, lease: LeaseId },
    OpenNext { after_ms: u64 },
    Send(PipeId, Up),
    Moment { ticket: Ticket, at_us: u64 },
}

/// What a step of a client draws on, and what it comes to.
pub struct Turn<'a> {
    pub now_us: u64,
    pub random: &'a mut Random,
    pub drawn: &'a mut Drawn,
    pub deeds: Vec<Deed>,
}

/// How a session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    GoesOn,
    Reopen,
    Over,
}

impl SessionClient {
    pub fn new(number: usize, drift_ppm: i64) -> SessionClient {
        let clock = Clock { drift_ppm, ..Clock::default() };
        let (session, granting) = (None, None);
        SessionClient { number, clock, session, granting, paused_us: 0, cut_off_us: 0, tick_us: u64::MAX }
    }

    pub fn now_ms(&self, now_us: u64) -> u64 {
        self.clock.ms(now_us)
    }

    /// When the lifecycle has to be woken next.
    pub fn due_us(&self) -> Option<u64> {
        self.session.as_ref()?.lifecycle.next_step_ms().map(|ms| self.clock.world_us(ms))
    }

    pub fn is_calm(&self) -> bool {
        let is_calm = |session: &Session| session.callers.is_empty() && session.unlocks.is_empty();
        self.granting.is_none() && self.session.as_ref().is_none_or(is_calm)
    }

    /// The lease that was asked for is granted.
    pub fn granted(&mut self, turn: &mut Turn<'_>, ttl_ms: u64) {
        let Some(Granting { lease, sent_us, .. }) = self.granting.take() else { return };
        let cancel_at = match turn.random.below(4) {
            0 => CancelAt::HalfTtl,
            1 => CancelAt::Before(std::time::Duration::from_millis(ttl_ms / 4)),
            _ => CancelAt::Deadline,
        };
        self.session = Some(Session {
            lease,
            lifecycle: Lifecycle::new(cancel_at, self.clock.ms(sent_us), ttl_ms),
            requests: Requests::default(),
            link: Link::Idle,
            orders: VecDeque::new(),
            callers: BTreeMap::new(),
            unlocks: BTreeMap::new(),
            taken: BTreeSet::new(),
            pause_ms: 0,
            holds: false,
        });
        self.tick(turn);
    }

    /// Time has passed.
    pub fn tick(&mut self, turn: &mut Turn<'_>) {
        self.with(turn, |session, _, now_ms| session.live(now_ms, lifecycle::Input::Tick));
    }

    /// The client stands still or goes on. It does nothing meanwhile, so what it believes harms no other client.
    pub fn pause(&mut self, turn: &mut Turn<'_>, is_paused: bool) {
        self.clock.is_paused = is_paused;
        match (is_paused, &mut self.session) {
            (true, Some(session)) => session.note_belief(turn, true),
            (true, None) => {}
            (false, _) => self.tick(turn),
        }
    }

    /// A caller asks for locks.
    pub fn lock(&mut self, turn: &mut Turn<'_>, asked: Asked, gone_us: Option<u64>) {
        self.with(turn, |session, turn, _| {
            if asked.names.iter().any(|name| session.taken.contains(name)) || session.lifecycle.lost().is_some() {
                return;
            }
            let ticket = turn.drawn.ticket();
            let names: Names = asked.names.iter().cloned().collect();
            session.taken.extend(asked.names);
            session.orders.push_back(Input::Lock { ticket, names: names.clone() });
            let give_up_us = asked.timeout_ms.map(|timeout_ms| turn.now_us + timeout_ms * 1000);
            // A caller that has little time waits a little longer than that for the answer.
            let answer_by_us = give_up_us.map(|give_up_us| give_up_us + UNLOCK_PATIENCE_US);
            let due_us = gone_us.into_iter().chain(answer_by_us).min().unwrap_or(u64::MAX);
            let caller = Caller { names, mode: asked.mode, give_up_us, stage: Stage::Waits, due_us };
            session.callers.insert(ticket, caller);
            if due_us != u64::MAX {
                turn.deeds.push(Deed::Moment { ticket, at_us: due_us });
            }
        });
    }

    /// A caller goes on, or away.
    pub fn moment(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        self.with(turn, |session, turn, _| session.moment(turn, ticket));
    }

    /// All callers give back what they hold.
    pub fn give_back_all(&mut self, turn: &mut Turn<'_>) {
        self.with(turn, |session, turn, _| {
            let holders = session.callers.iter().filter(|(_, caller)| matches!(caller.stage, Stage::Holds(_)));
            for ticket in holders.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
                session.unlock(turn, ticket);
            }
        });
    }

    /// The user drops the session. True: its lease is to be revoked.
    pub fn close(&mut self, turn: &mut Turn<'_>) -> bool {
        let is_lost = self.session.as_ref().is_none_or(|session| session.lifecycle.lost().is_some());
        self.with(turn, |session, _, now_ms| session.live(now_ms, lifecycle::Input::Ended(Cause::Released)));
        !is_lost
    }

    pub fn heard(&mut self, turn: &mut Turn<'_>, pipe: PipeId, down: Down) {
        self.with(turn, |session, turn, now_ms| session.heard(turn, now_ms, pipe, down));
    }

    /// The connection fails.
    pub fn broke(&mut self, turn: &mut Turn<'_>, pipe: PipeId) {
        self.with(turn, |session, turn, _| {
            if matches!(session.link, Link::Opening(now) | Link::Open(now) if now == pipe) {
                session.reopen(turn, pipe);
            }
        });
    }

    /// The time for opening a stream is up.
    pub fn open_expired(&mut self, turn: &mut Turn<'_>, pipe: PipeId) {
        self.with(turn, |session, turn, _| {
            if session.link == Link::Opening(pipe) {
                session.reopen(turn, pipe);
            }
        });
    }

    pub fn open_next(&mut self, turn: &mut Turn<'_>) {
        self.with(turn, |session, turn, _| {
            if session.link == Link::Pausing {
                session.open(turn);
            }
        });
    }

    fn with(&mut self, turn: &mut Turn<'_>, work: impl FnOnce(&mut Session, &mut Turn<'_>, u64)) {
        let (now_ms, is_paused) = (self.clock.ms(turn.now_us), self.clock.is_paused);
        let Some(session) = &mut self.session else { return };
        work(session, turn, now_ms);
        session.take_orders(turn, now_ms);
        session.note_belief(turn, is_paused);
    }
}

impl Session {
    fn note_belief(&mut self, turn: &mut Turn<'_>, is_paused: bool) {
        let holds = !self.lifecycle.is_cancelled() && !is_paused;
        if std::mem::replace(&mut self.holds, holds) != holds {
            turn.deeds.push(Deed::Believes { lease: self.lease, holds });
        }
    }

    fn live(&mut self, now_ms: u64, input: lifecycle::Input) {
        for effect in self.lifecycle.step(now_ms, input) {
            match effect {
                lifecycle::Effect::SendRenewal { number } => self.orders.push_back(Input::Renew { renewal: number }),
                lifecycle::Effect::Lost(_) => self.orders.push_back(Input::Ended),
                lifecycle::Effect::Confirmed | lifecycle::Effect::Warn | lifecycle::Effect::Cancel => {}
            }
        }
    }

    fn take_orders(&mut self, turn: &mut Turn<'_>, now_ms: u64) {
        while !matches!(self.link, Link::Pausing | Link::Over)
            && let Some(order) = self.orders.pop_front()
        {
            let flow = self.step(turn, now_ms, order);
            match (flow, self.link) {
                (Flow::Over, _) => self.end(turn),
                (_, Link::Idle) => self.open(turn),
                (Flow::Reopen, Link::Opening(pipe) | Link::Open(pipe)) => self.reopen(turn, pipe),
                _ => {}
            }
        }
    }

    fn open(&mut self, turn: &mut Turn<'_>) {
        self.step(turn, 0, Input::Opening);
        let pipe = turn.drawn.pipe();
        self.link = Link::Opening(pipe);
        turn.deeds.push(Deed::Open { pipe, lease: self.lease });
    }

    fn reopen(&mut self, turn: &mut Turn<'_>, pipe: PipeId) {
        turn.deeds.push(Deed::Send(pipe, Up::HangUp));
        self.step(turn, 0, Input::Broken);
        self.link = Link::Pausing;
        turn.deeds.push(Deed::OpenNext { after_ms: self.pause_ms });
        self.pause_ms = (self.pause_ms * 2).clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
    }

    /// The session is over: its callers are told so, and nothing is owed.
    fn end(&mut self, turn: &mut Turn<'_>) {
        if let Link::Opening(pipe) | Link::Open(pipe) = self.link {
            turn.deeds.push(Deed::Send(pipe, Up::HangUp));
        }
        self.link = Link::Over;
        self.callers.clear();
        self.unlocks.clear();
        self.taken.clear();
    }

    fn heard(&mut self, turn: &mut Turn<'_>, now_ms: u64, pipe: PipeId, down: Down) {
        let input = match (self.link, down) {
            (Link::Opening(now), Down::Opened { ttl_ms, held }) if now == pipe => {
                self.link = Link::Open(pipe);
                return self.take(turn, now_ms, pipe, Input::Opened { ttl_ms, held });
            }
            (Link::Opening(now) | Link::Open(now), Down::Failed { is_verdict }) if now == pipe => {
                return match is_verdict {
                    true => {
                        self.live(now_ms, lifecycle::Input::Ended(Cause::LeaseEnded));
                        self.take(turn, now_ms, pipe, Input::Ended);
                    }
                    false => self.reopen(turn, pipe),
                };
            }
            (Link::Open(now), down) if now == pipe => match down {
                Down::Granted { number, token } => Input::Granted { number, token },
                Down::Refused { number, refusal } => Input::Refused { number, refusal },
                Down::Unlocked { number, released } => Input::Unlocked { number, released },
                Down::Renewed { number, ttl_ms } => Input::Renewed { number, ttl_ms },
                Down::Lost { token, cause } => Input::Lost { token, cause },
                Down::Opened { .. } | Down::Failed { .. } => return,
            },
            _ => return,
        };
        self.take(turn, now_ms, pipe, input);
        if self.link == Link::Open(pipe) {
            self.pause_ms = 0;
        }
    }

    fn take(&mut self, turn: &mut Turn<'_>, now_ms: u64, pipe: PipeId, input: Input) {
        match self.step(turn, now_ms, input) {
            Flow::GoesOn => {}
            Flow::Reopen => self.reopen(turn, pipe),
            Flow::Over => self.end(turn),
        }
    }

    fn step(&mut self, turn: &mut Turn<'_>, now_ms: u64, input: Input) -> Flow {
        let effects = self.requests.step(input.clone());
        turn.deeds.push(Deed::Stepped { lease: self.lease, input, effects: effects.clone() });
        let mut flow = Flow::GoesOn;
        for effect in effects {
            match effect {
                Effect::Send { number, request } => self.send(turn, number, request),
                Effect::Grant { ticket, token } => {
                    if let Some(caller) = self.callers.get_mut(&ticket) {
                        caller.stage = Stage::Granted(token);
                        let read_us = turn.now_us + turn.random.spread(0, 5_000);
                        self.go_on_at(turn, ticket, read_us);
                    }
                }
                Effect::Refuse { ticket } => {
                    self.free(ticket);
                    self.unlocked(ticket);
                }
                Effect::Released { ticket, .. } => self.unlocked(ticket),
                Effect::Settled { ticket } => self.free(ticket),
                Effect::TenureEnded { token, .. } => self.let_go(turn, token),
                Effect::Confirmed { renewal, ttl_ms } => {
                    self.live(now_ms, lifecycle::Input::Answered { number: renewal, ttl_ms });
                }
                Effect::Reopen => flow = Flow::Reopen,
                Effect::Over => flow = Flow::Over,
            }
        }
        flow
    }

    fn send(&self, turn: &mut Turn<'_>, number: Number, request: Request) {
        let Link::Open(pipe) = self.link else { return };
        let up = match request {
            Request::Lock { ticket, wait } => {
                let Some(caller) = self.callers.get(&ticket) else { return };
                let left_ms = caller.give_up_us.map(|give_up_us| give_up_us.saturating_sub(turn.now_us) / 1000);
                let timeout_ms = match wait {
                    Wait::AsAsked => left_ms,
                    Wait::AMoment => left_ms.map(|left_ms| left_ms.max(A_MOMENT_MS)),
                    Wait::ToLeave => Some(A_MOMENT_MS),
                };
                Up::Lock { number, asked: Asked { names: caller.names.to_vec(), mode: caller.mode, timeout_ms } }
            }
            Request::Cancel { number } => Up::Cancel { of: number },
            Request::Unlock { names, token } => Up::Unlock { number, names: names.to_vec(), token },
            Request::Renew => Up::Renew { number },
        };
        turn.deeds.push(Deed::Send(pipe, up));
    }

    fn go_on_at(&mut self, turn: &mut Turn<'_>, ticket: Ticket, at_us: u64) {
        if let Some(caller) = self.callers.get_mut(&ticket) {
            caller.due_us = at_us;
            turn.deeds.push(Deed::Moment { ticket, at_us });
        }
    }

    fn moment(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        let Some(caller) = self.callers.get_mut(&ticket).filter(|caller| caller.due_us <= turn.now_us) else { return };
        caller.due_us = u64::MAX;
        match caller.stage {
            Stage::Waits => self.abandon(ticket),
            // It was about to read the grant.
            Stage::Granted(_) if turn.random.percent(25) => self.abandon(ticket),
            Stage::Granted(token) => {
                caller.stage = Stage::Holds(token);
                let until_us = turn.now_us + turn.random.spread(100, 2_000_000);
                self.go_on_at(turn, ticket, until_us);
            }
            Stage::Holds(_) | Stage::GivesBack(..) => self.unlock(turn, ticket),
            Stage::Gone => {}
        }
    }

    fn abandon(&mut self, ticket: Ticket) {
        if let Some(caller) = self.callers.get_mut(&ticket) {
            caller.stage = Stage::Gone;
            self.orders.push_back(Input::Abandon { ticket });
        }
    }

    /// Gives a lock back, or tries again if the one who waited for the answer is gone.
    fn unlock(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        let (Stage::Holds(token) | Stage::GivesBack(token, _)) = caller.stage else { return };
        let unlock = turn.drawn.ticket();
        caller.stage = Stage::GivesBack(token, unlock);
        let names = caller.names.clone();
        self.orders.push_back(Input::Unlock { ticket: unlock, names, token });
        self.unlocks.insert(unlock, ticket);
        let patience_us = match turn.random.percent(20) {
            true => turn.random.spread(0, 20_000),
            false => UNLOCK_PATIENCE_US,
        };
        self.go_on_at(turn, ticket, turn.now_us + patience_us);
    }

    /// An unlock is answered.
    fn unlocked(&mut self, unlock: Ticket) {
        let Some(ticket) = self.unlocks.remove(&unlock) else { return };
        let is_last = |caller: &Caller| matches!(caller.stage, Stage::GivesBack(_, last) if last == unlock);
        if self.callers.get(&ticket).is_some_and(is_last) {
            self.free(ticket);
        }
    }

    /// A tenure has ended. Its caller notices soon, and drops the guard.
    fn let_go(&mut self, turn: &mut Turn<'_>, token: Token) {
        let holder = self.callers.iter().find(|(_, caller)| caller.stage == Stage::Holds(token));
        if let Some(ticket) = holder.map(|(ticket, _)| *ticket) {
            let soon_us = turn.now_us + turn.random.spread(0, 5_000);
            self.go_on_at(turn, ticket, soon_us);
        }
    }

    fn free(&mut self, ticket: Ticket) {
        if let Some(caller) = self.callers.remove(&ticket) {
            self.taken.retain(|name| !caller.names.contains(name));
        }
    }
}
