//! Sessions: leases that some clients keep alive and others let go.

use bytes::Bytes;
use tenure_machine::{Command, LeaseGrant, LeaseId, Reply};
use tenure_replica::{Answer, Answered};

use super::keeper::Keeper;
use super::{Action, Client, Doing, Known, Mood, Traffic, crowds};
use crate::plan::Plan;
use crate::request::Request;

const SESSIONS: usize = 3;

pub(super) struct Session {
    pub lease: LeaseId,
    ttl_ms: u64,
    /// Its client renews it.
    pub kept: bool,
    renew_us: u64,
    /// It is for Tenure's own client to keep, once it is granted; the others are kept as others may do it.
    pub has_keeper: bool,
    pub keeper: Option<Keeper>,
    /// Of the stream that carries it; 0 = it was never taken up.
    pub epoch: u64,
}

impl Session {
    /// Whether an answer is to the grant of this session. Another session may have had the same id before, and the
    /// answer to its grant may come late.
    pub fn is_granted_by(&self, lease: LeaseId, ttl_ms: u64) -> bool {
        (self.lease, self.ttl_ms) == (lease, ttl_ms)
    }

    /// How long after one renewal the next is due: a third of the TTL, as it should be, or, of every fourth, just
    /// about all of it: too early or too late by little.
    fn pace_us(&self) -> u64 {
        let ttl_us = self.ttl_ms * 1000;
        match self.lease % 4 {
            0 => ttl_us * (970 + self.lease as u64 / 4 % 40) / 1000,
            _ => ttl_us / 3,
        }
    }
}

impl Traffic {
    pub(super) fn on_leases(&mut self, client: usize, action: Action, plan: &Plan, known: &Known) -> Vec<Doing> {
        let request = match action {
            Action::Grant => {
                let most = if plan.limits.are_small() { crowds::SESSIONS } else { SESSIONS };
                if self.clients[client].sessions.len() >= most {
                    let gone = self.random.below(most as u64) as usize;
                    self.forget_session(client, gone);
                }
                let mut lease = (self.draw() * 0x1_0001 + self.random.below(0xffff)) as LeaseId;
                if plan.wide.is_some_and(|wide| wide.reuses_leases) {
                    lease = self.lease_again().unwrap_or(lease);
                }
                let (least_ms, most_ms) = plan.long_ttl_ms.filter(|_| self.random.percent(40)).unwrap_or(plan.ttl_ms);
                let ttl_ms = self.random.between(least_ms, most_ms);
                let kept = self.random.percent(70);
                // One of four is renewed so late that it may be too late, which no lifecycle would do.
                let has_keeper = client.is_multiple_of(2) && lease % 4 != 0;
                let (renew_us, keeper, epoch) = (known.now_us, None, 0);
                self.clients[client].sessions.push(Session {
                    lease,
                    ttl_ms,
                    kept,
                    renew_us,
                    has_keeper,
                    keeper,
                    epoch,
                });
                Request::Propose(Command::LeaseGrant(LeaseGrant { lease, ttl_ms, client: Bytes::new() }))
            }
            Action::Revoke => Request::Propose(Command::LeaseRevoke { lease: self.some_lease(client) }),
            Action::Resume => Request::Propose(Command::ResumeSession { lease: self.some_lease(client) }),
            Action::TimeToLive => Request::TimeToLive(self.some_lease(client)),
            _ => Request::KeepAlive { lease: self.some_lease(client), epoch: 0 },
        };
        vec![Doing::Call(request)]
    }

    /// An id that somebody had before, now and then, unless a client still has a session with it.
    fn lease_again(&mut self) -> Option<LeaseId> {
        let old = self.random.pick(&self.old_leases).copied().filter(|_| self.random.percent(30))?;
        let mut sessions = self.clients.iter().flat_map(|client| &client.sessions);
        sessions.all(|session| session.lease != old).then_some(old)
    }

    /// Mostly one of the client's own, now and then anybody's, and sometimes one that never was.
    pub(super) fn some_lease(&mut self, client: usize) -> LeaseId {
        let whose =
            if self.random.percent(85) { client } else { self.random.below(self.clients.len() as u64) as usize };
        let sessions = &self.clients[whose].sessions;
        self.random.pick(sessions).map_or(7, |session| session.lease)
    }

    /// Of the client's own session; of others' nothing is known.
    pub(super) fn epoch(&mut self, client: usize, lease: LeaseId) -> u64 {
        let session = self.clients[client].sessions.iter().find(|session| session.lease == lease);
        let epoch = session.map_or(0, |session| session.epoch);
        // Now and then an older stream is still at work.
        if self.random.percent(10) { epoch.saturating_sub(1) } else { epoch }
    }

    /// What is due of keeping sessions alive: a third of the TTL after the last time.
    pub(super) fn renewals(&mut self, client: usize, now_us: u64) -> Vec<Doing> {
        let finishing = self.mood != Mood::Busy;
        let Client { sessions, waiting, .. } = &mut self.clients[client];
        let mut doing = Vec::new();
        for session in sessions.iter_mut().filter(|session| !session.has_keeper && session.renew_us <= now_us) {
            let is_waited_with = waiting.values().any(|lease| *lease == session.lease);
            if if finishing { is_waited_with } else { session.kept } {
                session.renew_us = now_us + session.pace_us();
                doing.push(Doing::Call(Request::KeepAlive { lease: session.lease, epoch: session.epoch }));
            }
        }
        doing
    }
}

impl Client {
    pub(super) fn lease_answered(&mut self, request: &Request, answer: &Answer, now_us: u64) {
        match (request, &answer.result) {
            (Request::Propose(Command::ResumeSession { lease }), Ok(Answered::Reply(reply))) => {
                let session = self.sessions.iter_mut().find(|session| session.lease == *lease);
                if let (Some(session), Reply::SessionResumed { epoch, .. }) = (session, reply) {
                    session.epoch = *epoch;
                }
            }
            (Request::KeepAlive { lease, .. }, Ok(Answered::KeptAlive { ttl_ms: None })) => {
                // What has a keeper is for that to give up.
                self.sessions.retain(|session| session.lease != *lease || session.keeper.is_some());
                self.held.retain(|held| held.lease != *lease);
            }
            (_, Ok(Answered::Reply(Reply::LeaseGranted { lease, ttl_ms }))) => {
                for session in self.sessions.iter_mut().filter(|session| session.is_granted_by(*lease, *ttl_ms)) {
                    session.renew_us = now_us + session.pace_us();
                }
            }
            _ => {}
        }
    }
}
