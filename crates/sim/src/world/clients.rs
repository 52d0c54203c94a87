//! Clients in the world: whom they ask, and what is known of them at the end.

use tenure_machine::{MemberChange, MemberId};
use tenure_replica::{Answered, CallId, Input, LockWatchRequest, StreamId, WatchRequest};

use super::{Broken, Event, Own, Phase, Telling, Told, World, context, see};
use crate::checks::Seen;
use crate::fates::{Chores, Fate};
use crate::member::Member;
use crate::request::{Call, Request};
use crate::traffic::{Belief, Doing, Known};

/// Shorter than an election, so that some are in a hurry while nobody leads.
const SHORTEST_PATIENCE_US: u64 = 100_000;

impl World {
    pub(super) fn client_acts(&mut self, client: usize) -> Result<(), Broken> {
        let paused_us = self.clients_paused_us[client];
        if paused_us > self.now_us {
            self.events.at(paused_us, Event::Client(client));
            return Ok(());
        }
        let known = self.known();
        let (doing, pause_us) = self.traffic.act(client, &self.plan, &known);
        if self.phase == Phase::Busy || self.phase == Phase::Healed {
            self.events.at(self.now_us + pause_us, Event::Client(client));
        }
        doing.into_iter().try_for_each(|doing| self.perform(client, doing))?;
        self.believe()
    }

    /// A client's keeper looks at its leases.
    pub(super) fn keep(&mut self, client: usize) -> Result<(), Broken> {
        if self.keep_due_us[client] != self.now_us || self.clients_paused_us[client] > self.now_us {
            return Ok(());
        }
        self.keep_due_us[client] = u64::MAX;
        let doing = self.traffic.keep(client, self.now_us);
        // What it lets go of, it lets go of before it asks for anything.
        self.believe()?;
        doing.into_iter().try_for_each(|doing| self.perform(client, doing))?;
        self.believe()
    }

    /// Shows the checks which clients believe what since they were last asked, and wakes their keepers in time.
    pub(super) fn believe(&mut self) -> Result<(), Broken> {
        for Belief { client, lease, holds } in self.traffic.take_beliefs() {
            let seen = Seen::Believed { client, lease, holds };
            see(&mut self.checks, &seen, &context!(self))?;
        }
        for client in 0..self.plan.clients {
            if let Some(keep_us) = self.traffic.keep_us(client) {
                let keep_us = keep_us.max(self.now_us).max(self.clients_paused_us[client]);
                if keep_us < self.keep_due_us[client] {
                    self.keep_due_us[client] = keep_us;
                    self.events.at(keep_us, Event::Keep(client));
                }
            }
        }
        Ok(())
    }

    /// A client's process stands still for so long, its work with it.
    pub fn pause_client(&mut self, client: usize, pause_us: u64) {
        let until_us = self.now_us + pause_us;
        self.trace.note(self.now_us, format_args!("! client {client} stands still for {pause_us} us"));
        self.clients_paused_us[client] = until_us;
        self.keep_due_us[client] = u64::MAX;
        self.traffic.pause(client, true);
        self.events.at(until_us, Event::GoOn(client));
        if let Err(broken) = self.believe() {
            self.broken = Some(broken);
        }
    }

    /// What its lifecycle makes of the gap comes before anything else that the client does.
    pub(super) fn go_on_client(&mut self, client: usize) -> Result<(), Broken> {
        if self.clients_paused_us[client] != self.now_us {
            return Ok(());
        }
        let doing = self.traffic.keep(client, self.now_us);
        self.traffic.pause(client, false);
        self.believe()?;
        doing.into_iter().try_for_each(|doing| self.perform(client, doing))?;
        self.believe()
    }

    /// An answer comes to its client, or waits until that goes on.
    pub(super) fn tell(&mut self, told: Told) -> Result<(), Broken> {
        let Told { id, call, answer } = &told;
        let until_us = self.clients_paused_us[call.client];
        if until_us > self.now_us {
            self.events.at(until_us, Event::Told(Box::new(told)));
            return Ok(());
        }
        let is_grant = matches!(answer.result, Ok(Answered::Lock(_)));
        if is_grant && self.telling.remove(id).is_none() {
            // Its client has given it up meanwhile.
            return Ok(());
        }
        self.traffic.answered(*id, call, answer, self.now_us);
        self.believe()
    }

    fn known(&self) -> Known {
        let is_there = |member: &MemberId| self.life(*member).is_some();
        let configuration = self.reference.model.configuration();
        Known {
            now_us: self.now_us,
            revision: self.reference.model.revision,
            compacted: self.reference.model.compacted(),
            chores: match self.phase {
                Phase::Healed => self.fates.chores(&self.reference.model),
                _ => Chores::default(),
            },
            has_alarm: self.reference.model.has_alarm(),
            level: self.reference.model.level(),
            voters: configuration.voters.iter().copied().collect(),
            learners: configuration.learners.iter().copied().collect(),
            lost: self.configured().into_iter().filter(|id| !is_there(id) && self.members[id].is_gone).collect(),
            next_member: self.members.keys().last().map_or(1, |last| last + 1),
        }
    }

    /// The member that a client turns to: mostly the same, but another one if that is not there.
    fn whom(&mut self, client: usize) -> Option<MemberId> {
        let home = self.homes[client];
        let there: Vec<MemberId> = self.configured().into_iter().filter(|id| self.life(*id).is_some()).collect();
        if there.contains(&home) && !self.random.percent(15) {
            return Some(home);
        }
        let other = self.random.pick(&there).copied();
        if self.random.percent(30) || !there.contains(&home) {
            self.homes[client] = other.unwrap_or(home);
        }
        other
    }

    pub(super) fn perform(&mut self, client: usize, doing: Doing) -> Result<(), Broken> {
        match doing {
            // Nobody listens: whatever was to be done is not done.
            Doing::Call(request) => self.whom(client).map_or(Ok(()), |member| self.issue(client, member, request)),
            Doing::Again(request, retry) => {
                let member = self.whom(client);
                self.traffic.go_again(client, &request, retry, member.is_some(), self.now_us);
                member.map_or(Ok(()), |member| self.issue(client, member, request))
            }
            Doing::Cancel(id) => self.give_up(id),
            Doing::LockWatch(stream, request) => {
                match self.streams.get(&stream).copied().or_else(|| self.whom(client)) {
                    Some(member) => {
                        self.streams.insert(stream, member);
                        self.give(member, Input::LockWatch { stream, request });
                    }
                    None => self.traffic.died(&[], &[stream], self.now_us),
                }
                Ok(())
            }
            Doing::Session { stream, lease, is_open } => {
                let Some(member) = self.streams.get(&stream).copied().or_else(|| self.whom(client)) else {
                    return Ok(());
                };
                if is_open {
                    self.streams.insert(stream, member);
                    self.give(member, Input::SessionOpened { stream, lease });
                } else if self.streams.contains_key(&stream) {
                    self.give(member, Input::SessionClosed { stream, lease });
                }
                Ok(())
            }
            Doing::Watch(stream, request) => {
                let member = match self.streams.get(&stream) {
                    Some(member) => Some(*member),
                    None => self.whom(client),
                };
                match member {
                    Some(member) => {
                        self.streams.insert(stream, member);
                        self.give_watch(member, stream, request);
                    }
                    None => self.traffic.cut_off(stream),
                }
                Ok(())
            }
        }
    }

    pub(super) fn give_watch(&mut self, member: MemberId, stream: StreamId, request: WatchRequest) {
        self.give(member, Input::Watch { stream, request });
    }

    pub(super) fn give_up(&mut self, id: CallId) -> Result<(), Broken> {
        let Some(call) = self.calls.get_mut(&id) else { return self.disown(id) };
        call.cancelled = true;
        let member = call.member;
        let input = match &call.request {
            // One way or the other: the answer is not on its way yet.
            Request::Lock(lock) if id % 4 < 2 || call.client >= self.plan.clients => {
                Input::CancelLock { call: id, leaves: lock.leaves() }
            }
            _ => Input::Cancel { call: id },
        };
        self.give(member, input);
        let call = &self.calls[&id];
        if let Request::Lock(lock) = &call.request {
            self.fates.become_of(lock, Fate::Over, self.now_us);
        }
        if !self.is_of_session(call.client) {
            self.traffic.cancelled(id, call, self.now_us);
        }
        see(&mut self.checks, &Seen::Cancelled { id, call }, &context!(self))
    }

    /// A client gives up a Lock call when the grant is on its way already: it is never read, and the member that told
    /// it is asked to leave the place.
    fn disown(&mut self, id: CallId) -> Result<(), Broken> {
        let Some(Telling { client, member, life, lock }) = self.telling.remove(&id) else { return Ok(()) };
        if !self.is_of_session(client) {
            self.traffic.disowned(client, id);
        }
        let is_there = self.life(member).is_some_and(|now| now.number == life);
        self.fates.become_of(&lock, if is_there { Fate::Over } else { Fate::Unknown }, self.now_us);
        see(&mut self.checks, &Seen::Disowned { call: lock.call }, &context!(self))?;
        if is_there {
            self.give(member, Input::CancelLock { call: id, leaves: lock.leaves() });
        }
        Ok(())
    }

    pub(super) fn issue(&mut self, client: usize, member: MemberId, request: Request) -> Result<(), Broken> {
        if let Request::ChangeMembers(MemberChange::Add { member }) = &request {
            self.begin_to_join(member.id);
        }
        let id = self.next_call;
        self.next_call += 1;
        self.report.calls += 1;
        let input = request.input(id);
        if let Some(command) = request.command() {
            self.reference.ask(&command);
        }
        let call = Call {
            client,
            member,
            request,
            issued_us: self.now_us,
            floor_index: self.reference.applied(),
            floor: self.reference.model.revision,
            cancelled: false,
            cancel_taken: None,
        };
        if let Request::Lock(lock) = &call.request {
            self.fates.issued(id, client, member, lock, self.now_us);
        }
        let is_of_session = self.is_of_session(client);
        if !is_of_session {
            self.traffic.issued(id, &call);
        }
        see(&mut self.checks, &Seen::Issued { id, call: &call }, &context!(self))?;
        self.calls.insert(id, call);
        self.give(member, input);
        // Every other client says how long it waits. Session streams never do.
        if id.is_multiple_of(2)
            && !is_of_session
            && let Some(life) = self.life(member).map(|life| life.number)
        {
            let almost_up_us = self.now_us + (1 + id / 2 % 8) * SHORTEST_PATIENCE_US;
            self.events.at(almost_up_us, Event::Own { member, life, what: Own::Hurry(id) });
        }
        Ok(())
    }

    pub(super) fn hurry(&mut self, member: MemberId, call: CallId) {
        if self.calls.get(&call).is_some_and(|call| !call.cancelled) {
            self.give(member, Input::Hurry { call });
        }
    }

    /// Somebody is to be let in: its process starts, and waits for that.
    fn begin_to_join(&mut self, id: MemberId) {
        let (seed, sync_us) = (self.random.draw(), self.plan.sync_us);
        self.members.entry(id).or_insert_with(|| Member::new(id, seed, Vec::new(), sync_us, 0));
        self.events.at(self.now_us, Event::Restart(id));
    }

    /// Every stream asks how far it is, and those that were cut off go on elsewhere.
    pub(super) fn read_on(&mut self) -> Result<(), Broken> {
        let configured = self.configured();
        let astray: Vec<StreamId> =
            self.streams.iter().filter(|(_, member)| !configured.contains(member)).map(|(stream, _)| *stream).collect();
        for stream in astray {
            // Its member was removed meanwhile.
            if let Some(member) = self.streams.remove(&stream) {
                self.give(member, Input::Watch { stream, request: WatchRequest::Close });
                self.give(member, Input::LockWatch { stream, request: LockWatchRequest::Close });
            }
            self.traffic.died(&[], &[stream], self.now_us);
        }
        let doing = self.traffic.read_on();
        doing.into_iter().try_for_each(|(client, doing)| self.perform(client, doing))
    }
}
