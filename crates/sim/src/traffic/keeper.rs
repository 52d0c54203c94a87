//! Clients that keep their leases as Tenure's own client does: by the real lifecycle, on clocks of their own.
//!
//! A keeper is woken when its lifecycle wants to be, sends the renewals that it is told to, and lets it know what
//! became of each. From what the lifecycle says follows whether its client may still work under the lease, which
//! is shown to the checks.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_client::lifecycle::{CancelAt, Cause, Effect, Input, Lifecycle};
use tenure_machine::{Command, LeaseId, Reply};
use tenure_replica::{Answer, Answered, CallId};

use super::leases::Session;
use super::{Client, Doing, Mood, Traffic};
use crate::request::{Call, Request};

/// What a client may believe of a lease from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Belief {
    pub client: usize,
    pub lease: LeaseId,
    pub holds: bool,
}

pub(super) struct Keeper {
    lifecycle: Lifecycle,
    /// To go out when the keeper is woken next, which is at once.
    unsent: Option<u64>,
    /// Going out with what the client does now.
    sending: Option<u64>,
    /// Renewals under way, by call.
    asked: BTreeMap<CallId, u64>,
    holds: bool,
}

/// A client's own clock. It never goes back, and runs on while the client stands still.
#[derive(Clone, Copy, Default)]
pub(in crate::traffic) struct Clock {
    pub drift_ppm: i64,
    pub is_paused: bool,
}

impl Clock {
    pub fn ms(self, now_us: u64) -> u64 {
        (i128::from(now_us) * i128::from(1_000_000 + self.drift_ppm) / 1_000_000_000) as u64
    }

    /// The first moment of the world at which it shows this.
    pub fn world_us(self, ms: u64) -> u64 {
        let rate = i128::from(1_000_000 + self.drift_ppm);
        ((i128::from(ms) * 1_000_000_000 + rate - 1) / rate) as u64
    }
}

impl Traffic {
    /// When a client's keeper has to be woken next.
    pub fn keep_us(&self, client: usize) -> Option<u64> {
        let Client { sessions, clock, .. } = &self.clients[client];
        let keepers = sessions.iter().filter_map(|session| session.keeper.as_ref());
        let due_us = |keeper: &Keeper| match keeper.unsent {
            Some(_) => Some(0),
            None => keeper.lifecycle.next_step_ms().map(|ms| clock.world_us(ms)),
        };
        keepers.filter_map(due_us).min()
    }

    /// Time has passed: what a client's keeper does now.
    pub fn keep(&mut self, client: usize, now_us: u64) -> Vec<Doing> {
        let mood = self.mood;
        let Client { sessions, waiting, clock, .. } = &mut self.clients[client];
        let (now_ms, mut doing) = (clock.ms(now_us), Vec::new());
        for session in sessions.iter_mut() {
            let is_waited_with = waiting.values().any(|lease| *lease == session.lease);
            let Some(keeper) = &mut session.keeper else { continue };
            if let Some(number) = keeper.sending.take() {
                // It met nobody.
                keeper.take(now_ms, Input::Failed { number });
            }
            keeper.take(now_ms, Input::Tick);
            // Some clients fall silent; at the end all do, but those that still wait for something.
            let is_heard = match mood {
                Mood::Busy => session.kept,
                Mood::Finishing => is_waited_with,
                Mood::Silent => false,
            };
            keeper.sending = keeper.unsent.take().filter(|_| is_heard);
            // Whoever is cut off is so after some renewals, as a rule.
            session.kept &= !self.random.percent(8);
            if keeper.sending.is_some() {
                doing.push(Doing::Call(Request::KeepAlive { lease: session.lease, epoch: session.epoch }));
            }
        }
        self.note_beliefs(client);
        doing
    }

    /// The client stands still, or goes on: what it believes meanwhile harms nobody, because it does nothing.
    pub fn pause(&mut self, client: usize, is_paused: bool) {
        self.clients[client].clock.is_paused = is_paused;
        self.note_beliefs(client);
    }

    pub fn take_beliefs(&mut self) -> Vec<Belief> {
        std::mem::take(&mut self.beliefs)
    }

    /// Compares what a client believes with what it believed, and drops what is lost.
    pub(super) fn note_beliefs(&mut self, client: usize) {
        let Client { sessions, held, clock, .. } = &mut self.clients[client];
        let beliefs = &mut self.beliefs;
        sessions.retain_mut(|session| {
            let Some(keeper) = &mut session.keeper else { return true };
            let holds = !keeper.lifecycle.is_cancelled() && !clock.is_paused;
            if holds != keeper.holds {
                keeper.holds = holds;
                beliefs.push(Belief { client, lease: session.lease, holds });
            }
            let is_lost = keeper.lifecycle.lost().is_some();
            if is_lost {
                held.retain(|held| held.lease != session.lease);
            }
            !is_lost
        });
    }

    /// A session is given up by its client, which believes nothing of it any more.
    pub(super) fn forget_session(&mut self, client: usize, nth: usize) {
        let session = self.clients[client].sessions.remove(nth);
        self.old_leases.push(session.lease);
        if session.keeper.is_some_and(|keeper| keeper.holds) {
            self.beliefs.push(Belief { client, lease: session.lease, holds: false });
        }
    }
}

impl Client {
    pub(super) fn renewal_issued(&mut self, id: CallId, call: &Call) {
        let Request::KeepAlive { lease, .. } = &call.request else { return };
        if let Some(keeper) = self.keeper(*lease)
            && let Some(number) = keeper.sending.take()
        {
            keeper.asked.insert(id, number);
        }
    }

    /// Nobody will hear what became of these calls.
    pub(super) fn renewals_failed(&mut self, is_failed: impl Fn(CallId) -> bool, now_us: u64) {
        let now_ms = self.clock.ms(now_us);
        for keeper in self.sessions.iter_mut().filter_map(|session| session.keeper.as_mut()) {
            let failed: Vec<CallId> = keeper.asked.keys().copied().filter(|id| is_failed(*id)).collect();
            for number in failed.iter().filter_map(|id| keeper.asked.remove(id)).collect::<Vec<_>>() {
                keeper.take(now_ms, Input::Failed { number });
            }
        }
    }

    /// With `from_answer`, a confirmation counts from when it came.
    pub(super) fn renewal_answered(
        &mut self,
        id: CallId,
        call: &Call,
        answer: &Answer,
        now_us: u64,
        from_answer: bool,
    ) {
        let clock = self.clock;
        let (now_ms, sent_ms) = (clock.ms(now_us), clock.ms(if from_answer { now_us } else { call.issued_us }));
        match (&call.request, &answer.result) {
            (Request::Propose(Command::LeaseGrant(_)), Ok(Answered::Reply(Reply::LeaseGranted { lease, ttl_ms }))) => {
                let session = self.sessions.iter_mut().find(|session| session.is_granted_by(*lease, *ttl_ms));
                if let Some(session) = session.filter(|session| session.has_keeper && session.keeper.is_none()) {
                    session.keeper = Some(Keeper::new(session, sent_ms, *ttl_ms));
                    session.keeper.iter_mut().for_each(|keeper| keeper.take(now_ms, Input::Tick));
                }
            }
            (Request::KeepAlive { lease, .. }, result) => {
                let Some(keeper) = self.keeper(*lease) else { return };
                let input = match (result, keeper.asked.remove(&id)) {
                    (Ok(Answered::KeptAlive { ttl_ms: None }), _) => Input::Ended(Cause::LeaseEnded),
                    (Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) }), Some(number)) => {
                        Input::Answered { number, ttl_ms: *ttl_ms }
                    }
                    (_, Some(number)) => Input::Failed { number },
                    (_, None) => return,
                };
                keeper.take(now_ms, input);
                if let (true, Input::Answered { .. }) = (from_answer, input) {
                    keeper.lifecycle = Lifecycle::new(CancelAt::Deadline, sent_ms, keeper.lifecycle.ttl_ms());
                }
            }
            _ => {}
        }
    }

    fn keeper(&mut self, lease: LeaseId) -> Option<&mut Keeper> {
        self.sessions.iter_mut().find(|session| session.lease == lease)?.keeper.as_mut()
    }
}

impl Keeper {
    fn new(session: &Session, sent_ms: u64, ttl_ms: u64) -> Keeper {
        let cancel_at = match session.lease / 4 % 4 {
            0 => CancelAt::HalfTtl,
            1 => CancelAt::Before(Duration::from_millis(ttl_ms / 4)),
            _ => CancelAt::Deadline,
        };
        let lifecycle = Lifecycle::new(cancel_at, sent_ms, ttl_ms);
        Keeper { lifecycle, unsent: None, sending: None, asked: BTreeMap::new(), holds: false }
    }

    fn take(&mut self, now_ms: u64, input: Input) {
        for effect in self.lifecycle.step(now_ms, input) {
            if let Effect::SendRenewal { number } = effect {
                self.unsent = Some(number);
            }
        }
    }
}
