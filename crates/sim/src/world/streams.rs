//! Session streams in the world: messages move between clients and the members that serve them, and either end may go.

use tenure_client::retry::{Failure as Failed, Next, Retry};
use tenure_machine::{Command, LeaseGrant, MemberId, Mode, Reply, Unlock};
use tenure_replica::{Answer, Answered, CallId, Failure, Input, SessionNotice, StreamId};

use super::{Broken, Event, Phase, World, context, see};
use crate::checks::Seen;
use crate::coverage;
use crate::model::Model;
use crate::request::Request;
use crate::traffic::streams::client::{Deed, Granting, Link, SessionClient, Turn};
use crate::traffic::streams::served::{self, Served};
use crate::traffic::streams::{Asked, Asker, Down, FIRST_LEASE, Happening, Mail, Pipe, PipeId, Streams, Up};

/// How long a client tries to open a stream, or to be granted a lease.
const PATIENCE_US: u64 = 5_000_000;
/// A connection that says nothing is left after this.
const SILENCE_US: u64 = 2_000_000;
/// The server grants sessions no shorter lease.
const SHORTEST_TTL_MS: u64 = 500;

impl World {
    pub(super) fn begin_sessions(&mut self) {
        for client in 0..self.sessions.clients.len() {
            let at_us = 2_000 + self.sessions.random.spread(0, 500_000);
            self.happens(at_us, Happening::Act(client));
        }
    }

    fn happens(&mut self, at_us: u64, happening: Happening) {
        self.events.at(at_us, Event::Session(Box::new(happening)));
    }

    fn happens_in(&mut self, least_us: u64, most_us: u64, happening: Happening) {
        let at_us = self.now_us + self.sessions.random.spread(least_us, most_us);
        self.happens(at_us, happening);
    }

    pub(super) fn happen_to_session(&mut self, happening: Happening) -> Result<(), Broken> {
        if self.phase != Phase::Busy && self.phase != Phase::Healed {
            return Ok(());
        }
        // What happens to a process that stands still happens when it goes on.
        let client = match &happening {
            Happening::Act(client) | Happening::Tick(client) | Happening::Moment(client, _) => Some(*client),
            Happening::OpenNext(client) | Happening::Granted(client, _) | Happening::GrantAgain(client) => {
                Some(*client)
            }
            Happening::Down(pipe, _) | Happening::ClientLearns(pipe) | Happening::OpenExpired(pipe) => {
                self.sessions.pipes.get(pipe).map(|pipe| pipe.client)
            }
            _ => None,
        };
        if let Some(until_us) = client.map(|client| self.sessions.clients[client].paused_us)
            && until_us > self.now_us
        {
            self.happens(until_us, happening);
            return Ok(());
        }
        match happening {
            Happening::Act(client) => self.session_acts(client),
            Happening::Tick(client) if self.sessions.clients[client].tick_us != self.now_us => Ok(()),
            Happening::Tick(client) => {
                self.sessions.clients[client].tick_us = u64::MAX;
                self.with_session(client, SessionClient::tick)
            }
            Happening::Moment(client, ticket) => self.with_session(client, |of, turn| of.moment(turn, ticket)),
            Happening::GoOn(client) if self.sessions.clients[client].paused_us != self.now_us => Ok(()),
            Happening::GoOn(client) => self.with_session(client, |of, turn| of.pause(turn, false)),
            Happening::OpenNext(client) => self.with_session(client, SessionClient::open_next),
            Happening::Granted(client, result) => self.lease_granted(client, result),
            Happening::GrantAgain(client) => self.ask_for_lease(client),
            Happening::Cut(pipe) => {
                self.cut_pipe(pipe);
                Ok(())
            }
            Happening::ClientLearns(pipe) => match self.sessions.pipes.get(&pipe) {
                Some(Pipe { client, has_client: true, .. }) => {
                    let client = *client;
                    self.with_session(client, |of, turn| of.broke(turn, pipe))
                }
                _ => Ok(()),
            },
            Happening::OpenExpired(pipe) => match self.sessions.pipes.get(&pipe).map(|pipe| pipe.client) {
                Some(client) => self.with_session(client, |of, turn| of.open_expired(turn, pipe)),
                None => Ok(()),
            },
            Happening::Down(pipe, down) => match self.sessions.pipes.get(&pipe) {
                Some(Pipe { client, has_client: true, is_cut: false, .. }) => {
                    let client = *client;
                    self.with_session(client, |of, turn| of.heard(turn, pipe, down))
                }
                _ => Ok(()),
            },
            serving => self.happen_to_server(serving),
        }
    }

    fn happen_to_server(&mut self, happening: Happening) -> Result<(), Broken> {
        let (Happening::Up(id, _)
        | Happening::Mail(id, ..)
        | Happening::Notice(id, _)
        | Happening::Timeout(id)
        | Happening::ServerLearns(id)) = &happening
        else {
            return Ok(());
        };
        let id = *id;
        let Some(pipe) = self.sessions.pipes.get(&id).filter(|pipe| pipe.has_server) else { return Ok(()) };
        let (member, is_cut) = (pipe.served.member, pipe.is_cut);
        let Some(life) = self.life(member).filter(|life| life.number == pipe.served.life) else { return Ok(()) };
        let until_us = life.paused_until_us;
        if until_us > self.now_us {
            self.happens(until_us, happening);
            return Ok(());
        }
        let now_us = self.now_us;
        let (joiner, is_overloaded) = match &happening {
            Happening::Up(_, Up::Lock { .. }) => {
                (self.sessions.drawn.joiner(), self.phase == Phase::Busy && self.sessions.random.percent(2))
            }
            _ => (0, false),
        };
        let Some(pipe) = self.sessions.pipes.get_mut(&id) else { return Ok(()) };
        let deeds = match happening {
            Happening::Up(..) if is_cut => Vec::new(),
            Happening::Up(_, up) => pipe.served.asked(up, now_us, joiner, is_overloaded),
            Happening::Mail(_, call, result) => {
                self.telling.remove(&call);
                pipe.served.heard(Mail::Answer(call, *result))
            }
            Happening::Notice(_, notice) => pipe.served.heard(Mail::Notice(notice)),
            Happening::Timeout(_) => pipe.served.pass_time(now_us),
            _ => vec![served::Deed::End],
        };
        self.serve(id, member, deeds)
    }

    fn serve(&mut self, id: PipeId, member: MemberId, deeds: Vec<served::Deed>) -> Result<(), Broken> {
        for deed in deeds {
            let Some(pipe) = self.sessions.pipes.get(&id).filter(|pipe| pipe.has_server) else { return Ok(()) };
            let client = self.sessions.clients[pipe.client].number;
            match deed {
                served::Deed::Call { number, what, request } => {
                    let call = self.next_call;
                    self.sessions.askers.insert(call, Asker::Pipe(id));
                    self.issue(client, member, *request)?;
                    if let Some(pipe) = self.sessions.pipes.get_mut(&id) {
                        pipe.served.called(call, number, what);
                        let timeout_us = pipe.served.next_timeout_us();
                        timeout_us.into_iter().for_each(|due_us| self.happens(due_us, Happening::Timeout(id)));
                    }
                }
                served::Deed::Follow { lease } => {
                    self.give(member, Input::SessionOpened { stream: Streams::stream_of(id), lease });
                }
                served::Deed::GiveUp(call) => self.give_up(call)?,
                served::Deed::Tell(down) => self.send_down(id, down),
                served::Deed::End => self.end_server(id),
            }
        }
        Ok(())
    }

    /// The member's side of a stream ends. What it has put to the replica goes on, and its answers are not heard.
    fn end_server(&mut self, id: PipeId) {
        let Some(pipe) = self.sessions.pipes.get_mut(&id).filter(|pipe| pipe.has_server) else { return };
        pipe.has_server = false;
        let (member, life, lease) = (pipe.served.member, pipe.served.life, pipe.served.lease());
        for call in pipe.served.calls().collect::<Vec<_>>() {
            self.sessions.askers.remove(&call);
            self.telling.remove(&call);
        }
        if self.life(member).is_some_and(|now| now.number == life) {
            self.give(member, Input::SessionClosed { stream: Streams::stream_of(id), lease });
        }
        self.forget_pipe(id);
    }

    fn forget_pipe(&mut self, id: PipeId) {
        if self.sessions.pipes.get(&id).is_some_and(|pipe| !pipe.has_client && !pipe.has_server) {
            self.sessions.pipes.remove(&id);
        }
    }

    fn send_down(&mut self, id: PipeId, down: Down) {
        let (least_us, most_us) = self.plan.answer_us;
        let at_us = self.now_us + self.sessions.random.spread(least_us, most_us);
        let Some(pipe) = self.sessions.pipes.get_mut(&id) else { return };
        pipe.down_us = at_us.max(pipe.down_us + 1);
        let at_us = pipe.down_us;
        self.happens(at_us, Happening::Down(id, down));
    }

    fn send_up(&mut self, id: PipeId, up: Up) {
        let at_us = self.now_us + self.sessions.random.spread(self.plan.delay_us.0, self.plan.delay_us.1);
        let Some(pipe) = self.sessions.pipes.get_mut(&id) else { return };
        pipe.up_us = at_us.max(pipe.up_us + 1);
        let at_us = pipe.up_us;
        if let Up::HangUp = up {
            pipe.has_client = false;
            if !pipe.has_server {
                return self.forget_pipe(id);
            }
            if pipe.is_cut {
                return;
            }
        }
        self.happens(at_us, Happening::Up(id, up));
    }

    /// Nothing passes from now on. Each end learns of it in its own time.
    fn cut_pipe(&mut self, id: PipeId) {
        let Some(pipe) = self.sessions.pipes.get_mut(&id) else { return };
        if !std::mem::replace(&mut pipe.is_cut, true) {
            self.happens_in(100, SILENCE_US, Happening::ClientLearns(id));
            self.happens_in(100, 2 * SILENCE_US, Happening::ServerLearns(id));
        }
    }

    /// A member is gone, and all its streams with it.
    pub(super) fn sessions_lose(&mut self, member: MemberId, lost: &[CallId]) {
        for id in self.sessions.at(member) {
            let Some(pipe) = self.sessions.pipes.get_mut(&id) else { continue };
            (pipe.is_cut, pipe.has_server) = (true, false);
            for call in pipe.served.calls().collect::<Vec<_>>() {
                self.telling.remove(&call);
            }
            self.happens_in(100, SILENCE_US, Happening::ClientLearns(id));
            self.forget_pipe(id);
        }
        for call in lost {
            if let Some(Asker::Grant(client)) = self.sessions.askers.remove(call) {
                self.happens_in(100, SILENCE_US, Happening::Granted(client, Some(Err(Failure::OutcomeUnknown))));
            }
        }
    }

    /// Whether no session waits for anything, and none of its calls is under way.
    pub(super) fn sessions_are_calm(&self) -> bool {
        self.sessions.is_calm() && self.calls.values().all(|call| call.cancelled || !self.is_of_session(call.client))
    }

    /// Whether a call was made by a client of a session stream, or for it.
    pub(super) fn is_of_session(&self, client: usize) -> bool {
        client >= self.plan.clients
    }

    /// An answer of a member to a call of a session stream. It is heard after the step.
    pub(super) fn session_answered(&mut self, id: CallId, answer: Answer) {
        let rank = if matches!(answer.result, Ok(Answered::Lock(_))) { 0 } else { 1 };
        match self.sessions.askers.remove(&id) {
            Some(Asker::Pipe(pipe)) => self.sessions.mail.push((rank, pipe, Mail::Answer(id, answer.result))),
            Some(Asker::Grant(client)) => {
                let result = answer.result.map(|answered| match answered {
                    Answered::Reply(Reply::LeaseGranted { ttl_ms, .. }) => ttl_ms,
                    _ => 0,
                });
                let (least_us, most_us) = self.plan.answer_us;
                self.happens_in(least_us, most_us, Happening::Granted(client, Some(result)));
            }
            Some(Asker::Nobody) | None => drop(self.telling.remove(&id)),
        }
    }

    pub(super) fn session_noticed(&mut self, stream: StreamId, notice: SessionNotice) {
        if let Some(pipe) = self.sessions.pipe_of(stream) {
            self.sessions.mail.push((2, pipe, Mail::Notice(notice)));
        }
    }

    /// Hands out what a step has for session streams: grants first, notices last, as the server's mailbox does.
    pub(super) fn hand_out_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.sessions.mail);
        mail.sort_by_key(|(rank, ..)| *rank);
        for (_, id, mail) in mail {
            let at_us = self.now_us + self.sessions.random.spread(0, 300);
            let Some(pipe) = self.sessions.pipes.get_mut(&id) else { continue };
            pipe.mail_us = at_us.max(pipe.mail_us + 1);
            let at_us = pipe.mail_us;
            let happening = match mail {
                Mail::Answer(call, result) => Happening::Mail(id, call, Box::new(result)),
                Mail::Notice(notice) => Happening::Notice(id, notice),
            };
            self.happens(at_us, happening);
        }
    }

    fn with_session(
        &mut self,
        client: usize,
        work: impl FnOnce(&mut SessionClient, &mut Turn<'_>),
    ) -> Result<(), Broken> {
        let Streams { random, clients, drawn, .. } = &mut self.sessions;
        let mut turn = Turn { now_us: self.now_us, random, drawn, deeds: Vec::new() };
        work(&mut clients[client], &mut turn);
        let (deeds, number) = (turn.deeds, clients[client].number);
        for deed in deeds {
            match deed {
                Deed::Stepped { lease, input, effects } => {
                    *self.report.sent.entry(coverage::request(&input)).or_default() += 1;
                    self.trace.note(self.now_us, format_args!("session {lease:x}: {input:?}: {effects:?}"));
                    let seen = Seen::SessionStepped { lease, input: &input, effects: &effects };
                    see(&mut self.checks, &seen, &context!(self))?;
                }
                Deed::Believes { lease, holds } => {
                    see(&mut self.checks, &Seen::Believed { client: number, lease, holds }, &context!(self))?;
                }
                Deed::Open { pipe, lease } => self.open_pipe(client, pipe, lease),
                Deed::OpenNext { after_ms } => {
                    self.happens(self.now_us + after_ms * 1000, Happening::OpenNext(client));
                }
                Deed::Send(pipe, up) => self.send_up(pipe, up),
                Deed::Moment { ticket, at_us } => self.happens(at_us, Happening::Moment(client, ticket)),
            }
        }
        let of = &mut self.sessions.clients[client];
        let Some(due_us) = of.due_us().map(|due_us| due_us.max(self.now_us).max(of.paused_us)) else { return Ok(()) };
        if due_us < of.tick_us {
            of.tick_us = due_us;
            self.happens(due_us, Happening::Tick(client));
        }
        Ok(())
    }

    /// A client connects to any member that is there.
    fn open_pipe(&mut self, client: usize, id: PipeId, lease: tenure_machine::LeaseId) {
        let there = self.members_there();
        let member = self.sessions.random.pick(&there).copied();
        let life = member.and_then(|member| self.life(member)).map(|life| life.number);
        let has_server = life.is_some();
        let served = Served::new(member.unwrap_or(0), life.unwrap_or(0));
        let is_cut = self.sessions.clients[client].cut_off_us > self.now_us || !has_server;
        let (up_us, down_us, mail_us) = (0, 0, 0);
        let pipe = Pipe { client, served, up_us, down_us, mail_us, is_cut, has_client: true, has_server };
        self.sessions.pipes.insert(id, pipe);
        // An attempt to open a stream is given up after a while, and an open one is cut now and then.
        match is_cut {
            true => {
                self.happens_in(100, PATIENCE_US, Happening::ClientLearns(id));
                self.happens_in(100, PATIENCE_US, Happening::ServerLearns(id));
            }
            false if self.phase == Phase::Busy && self.sessions.random.percent(50) => {
                self.happens_in(100, 3_000_000, Happening::Cut(id));
            }
            false => {}
        }
        self.happens(self.now_us + PATIENCE_US, Happening::OpenExpired(id));
        self.send_up(id, Up::Open { lease });
    }

    fn members_there(&self) -> Vec<MemberId> {
        self.configured().into_iter().filter(|id| self.life(*id).is_some()).collect()
    }

    /// A client does something new.
    fn session_acts(&mut self, client: usize) -> Result<(), Broken> {
        let (least_us, most_us) = self.plan.think_us;
        self.happens_in(least_us, most_us, Happening::Act(client));
        let link = self.sessions.clients[client].session.as_ref().map(|session| session.link);
        if self.phase == Phase::Healed {
            return self.with_session(client, SessionClient::give_back_all);
        }
        if link.is_none_or(|link| link == Link::Over) {
            if self.sessions.clients[client].granting.is_some() {
                return Ok(());
            }
            let now_ms = self.sessions.clients[client].now_ms(self.now_us);
            let retry = Retry::new(true, now_ms, now_ms + PATIENCE_US / 1000);
            let ttl_ms = self.sessions.random.between(self.plan.ttl_ms.0, self.plan.ttl_ms.1).max(SHORTEST_TTL_MS);
            let granting = Granting { lease: 0, ttl_ms, retry, sent_us: 0 };
            self.sessions.clients[client].granting = Some(granting);
            return self.ask_for_lease(client);
        }
        match self.sessions.random.below(100) {
            0..70 => self.caller_asks(client),
            70..73 => self.close_session(client),
            73..76 => {
                let most_us = 4_000_000 * self.plan.slowness;
                let until_us = self.now_us + self.sessions.random.spread(1_000, most_us);
                self.sessions.clients[client].paused_us = until_us;
                self.sessions.clients[client].tick_us = u64::MAX;
                self.happens(until_us, Happening::GoOn(client));
                self.with_session(client, |of, turn| of.pause(turn, true))
            }
            76..79 => {
                let most_us = 4_000_000 * self.plan.slowness;
                self.sessions.clients[client].cut_off_us = self.now_us + self.sessions.random.spread(1_000, most_us);
                if let Some(Link::Opening(pipe) | Link::Open(pipe)) = link {
                    self.cut_pipe(pipe);
                }
                Ok(())
            }
            79..84 => self.end_a_tenure(client),
            _ => Ok(()),
        }
    }

    fn caller_asks(&mut self, client: usize) -> Result<(), Broken> {
        let random = &mut self.sessions.random;
        let name = |random: &mut crate::random::Random| format!("lock/{}", random.below(self.plan.lock_names));
        let mut names = vec![name(random)];
        if self.plan.multi_locks && random.percent(40) {
            names.push(name(random));
        }
        names.dedup();
        let mode = match random.below(5) {
            0 if self.plan.shared_locks => Mode::Shared,
            1 if self.plan.shared_locks => Mode::Slots(2),
            _ => Mode::Exclusive,
        };
        let timeout_ms = match random.below(6) {
            0 => Some(0),
            1 => Some(random.spread(1, 2_000)),
            _ => None,
        };
        let gone_us = match random.percent(50) {
            true => Some(self.now_us + random.spread(0, 2_000_000)),
            false => None,
        };
        self.with_session(client, |of, turn| of.lock(turn, Asked { names, mode, timeout_ms }, gone_us))
    }

    /// The user drops a session, and its lease is revoked.
    fn close_session(&mut self, client: usize) -> Result<(), Broken> {
        let mut is_revoked = false;
        let lease = self.sessions.clients[client].session.as_ref().map_or(0, |session| session.lease);
        self.with_session(client, |of, turn| is_revoked = of.close(turn))?;
        match is_revoked {
            true => self.call_unheard(client, Request::Propose(Command::LeaseRevoke { lease })),
            false => Ok(()),
        }
    }

    /// Another client, or an operator, ends the tenure of a session.
    fn end_a_tenure(&mut self, client: usize) -> Result<(), Broken> {
        let queues = self.reference.model.queues();
        let granted = queues.flat_map(|(name, places)| {
            let granted = places[..Model::granted(places)].iter().filter(|place| place.lease >= FIRST_LEASE);
            granted.map(|place| (bytes::Bytes::copy_from_slice(name), place.token))
        });
        let granted: Vec<_> = granted.collect();
        let Some((name, token)) = self.sessions.random.pick(&granted).cloned() else { return Ok(()) };
        let command = match self.sessions.random.percent(80) {
            true => Command::ForceRelease { name, token },
            false => Command::Unlock(Unlock { names: vec![name], token, epoch: 0 }),
        };
        self.call_unheard(client, Request::Propose(command))
    }

    fn call_unheard(&mut self, client: usize, request: Request) -> Result<(), Broken> {
        let there = self.members_there();
        let Some(member) = self.sessions.random.pick(&there).copied() else { return Ok(()) };
        self.sessions.askers.insert(self.next_call, Asker::Nobody);
        self.issue(self.sessions.clients[client].number, member, request)
    }

    fn ask_for_lease(&mut self, client: usize) -> Result<(), Broken> {
        let lease = self.sessions.drawn.lease();
        let Some(granting) = &mut self.sessions.clients[client].granting else { return Ok(()) };
        (granting.lease, granting.sent_us) = (lease, self.now_us);
        let grant = LeaseGrant { lease, ttl_ms: granting.ttl_ms, client: bytes::Bytes::new() };
        let there = self.members_there();
        let Some(member) = self.sessions.random.pick(&there).copied() else {
            return self.lease_granted(client, None);
        };
        self.sessions.askers.insert(self.next_call, Asker::Grant(client));
        self.issue(self.sessions.clients[client].number, member, Request::Propose(Command::LeaseGrant(grant)))
    }

    fn lease_granted(&mut self, client: usize, result: Option<Result<u64, Failure>>) -> Result<(), Broken> {
        let failure = match result {
            Some(Ok(ttl_ms)) => return self.with_session(client, |of, turn| of.granted(turn, ttl_ms)),
            None => Failed::Unreachable,
            Some(Err(Failure::NoLeader)) => Failed::NotDone,
            Some(Err(Failure::TimedOut | Failure::LeaderChanged | Failure::OutcomeUnknown)) => Failed::InDoubt,
            Some(Err(_)) => Failed::Verdict,
        };
        let now_ms = self.sessions.clients[client].now_ms(self.now_us);
        let Some(granting) = &mut self.sessions.clients[client].granting else { return Ok(()) };
        match granting.retry.next(now_ms, failure, true) {
            Next::Retry { pause_ms } => {
                self.happens(self.now_us + pause_ms * 1000, Happening::GrantAgain(client));
            }
            Next::Fail => self.sessions.clients[client].granting = None,
        }
        Ok(())
    }

    /// Clients fall silent: their streams are closed, and they believe nothing any more.
    pub(super) fn end_sessions(&mut self) -> Result<(), Broken> {
        for client in 0..self.sessions.clients.len() {
            self.with_session(client, |of, turn| {
                of.close(turn);
            })?;
        }
        for id in self.sessions.pipes.keys().copied().collect::<Vec<_>>() {
            self.end_server(id);
        }
        Ok(())
    }
}
