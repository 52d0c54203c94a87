//! One step of a member: what goes in, what comes out, and what becomes of it.

use std::ops::RangeInclusive;

use tenure_machine::{MemberId, Refusal};
use tenure_replica::{
    Answer, Answered, CallId, Failure, Input, LockNotice, LockWatchRequest, Notice, Output, Persist, StreamId,
    WatchRequest,
};

use super::{Broken, Event, Own, Telling, Told, World, context, see};
use crate::checks::Seen;
use crate::coverage;
use crate::describe;
use crate::fates::Fate;
use crate::planted::Planted;
use crate::request::{Call, Request};

impl World {
    /// Puts an input into a member's inbox; a step will take it soon.
    pub(super) fn give(&mut self, member: MemberId, input: Input) {
        let Some(life) = self.life_mut(member) else { return };
        life.inbox.push(input);
        let soon_us = self.now_us + self.random.spread(1, 300);
        self.step_at(member, soon_us);
    }

    pub(super) fn step_at(&mut self, member: MemberId, time_us: u64) {
        let now_us = self.now_us;
        let late_us = self.members.get(&member).map_or(0, |member| member.late_us);
        let Some(life) = self.life_mut(member) else { return };
        let time_us = (time_us + late_us).max(life.busy_until_us);
        // While paused, or if an earlier step is due already, there is nothing to do.
        if time_us < life.step_due_us || life.step_due_us <= now_us {
            life.step_due_us = time_us;
            let life = life.number;
            self.events.at(time_us, Event::Own { member, life, what: Own::Step });
        }
    }

    pub(super) fn step(&mut self, id: MemberId) -> Result<(), Broken> {
        let Some(life) = self.life_mut(id) else { return Ok(()) };
        life.step_due_us = u64::MAX;
        let mut inputs = std::mem::take(&mut life.inbox);
        for input in &inputs {
            self.taken(id, input)?;
        }
        if let Some(planted) = self.planted {
            self.memory.spoil_inputs(planted, &mut inputs);
        }
        let now = self.members[&id].now(self.now_us, self.planted);
        let Some(life) = self.life_mut(id) else { return Ok(()) };
        let before = life.replica.machine().applied_index();
        let mut outputs = Vec::new();
        life.replica.step(now, inputs, &mut outputs);
        let applied = life.replica.machine().applied_index();
        for output in &outputs {
            if let Output::Persist(persist) = output {
                self.written(id, persist)?;
                if let (Some(first), Some(last)) = (persist.entries.first(), persist.entries.last()) {
                    let seen = Seen::Received { member: id, first: first.index, last: last.index };
                    see(&mut self.checks, &seen, &context!(self))?;
                }
            }
        }
        self.applied(id, applied)?;
        see(&mut self.checks, &Seen::Advanced { member: id, from: before, to: applied }, &context!(self))?;
        let mut within = before..=applied;
        let mut is_removed = false;
        for output in outputs {
            is_removed |= matches!(output, Output::Removed);
            self.come_out(id, output, &mut within)?;
        }
        self.hand_out_mail();
        self.report.steps += 1;
        if let Some(most_us) = self.plan.wide.map(|wide| wide.step_us).filter(|most_us| *most_us > 0) {
            let takes_us = match self.plan.windows.is_some_and(|windows| windows.long_steps) {
                true => self.random.between(most_us / 2, most_us),
                false => self.random.spread(1, most_us),
            };
            let busy_until_us = self.now_us + takes_us;
            self.life_mut(id).into_iter().for_each(|life| life.busy_until_us = busy_until_us);
        }
        if is_removed {
            self.report.removed += 1;
            self.retire(id, "is told that it was removed");
            return Ok(());
        }
        let Some(member) = self.members.get(&id) else { return Ok(()) };
        let Some(life) = &member.life else { return Ok(()) };
        self.report.term = self.report.term.max(life.replica.machine().applied_term());
        see(&mut self.checks, &Seen::Stepped { member: id, replica: &life.replica }, &context!(self))?;
        let wake_us = member.wake_us(life).max(self.now_us + 1);
        self.step_at(id, wake_us);
        self.begin_batch(id);
        Ok(())
    }

    fn taken(&mut self, id: MemberId, input: &Input) -> Result<(), Broken> {
        describe::input(&mut self.trace, self.now_us, id, input);
        *self.report.sent.entry(coverage::input(input)).or_default() += 1;
        match input {
            Input::Cancel { call } | Input::CancelLock { call, .. } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.cancel_taken = Some(self.report.steps);
                }
            }
            Input::Watch { stream, request } => {
                if matches!(request, WatchRequest::Close) {
                    self.streams.remove(stream);
                }
                see(&mut self.checks, &Seen::WatchAsked { stream: *stream, request }, &context!(self))?;
            }
            Input::LockWatch { stream, request } => {
                if matches!(request, LockWatchRequest::Close) {
                    self.streams.remove(stream);
                }
                see(&mut self.checks, &Seen::LockWatchAsked { stream: *stream, request }, &context!(self))?;
            }
            Input::SessionOpened { stream, lease } => {
                let seen = Seen::SessionAsked { member: id, stream: *stream, lease: *lease, is_open: true };
                see(&mut self.checks, &seen, &context!(self))?;
            }
            Input::SessionClosed { stream, lease } => {
                self.streams.remove(stream);
                let seen = Seen::SessionAsked { member: id, stream: *stream, lease: *lease, is_open: false };
                see(&mut self.checks, &seen, &context!(self))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Something is given to a member's log.
    fn written(&mut self, id: MemberId, persist: &Persist) -> Result<(), Broken> {
        for entry in &persist.entries {
            let recorded = self.reference.record(entry);
            let is_new =
                recorded.map_err(|what| Broken { rule: "K3: logs agree", what: format!("member {id}: {what}") })?;
            let applied = self.life(id).map_or(0, |life| life.replica.machine().applied_index());
            if let Some(envelope) = self.reference.written(entry.index, entry.term).filter(|_| is_new) {
                let (index, term) = (entry.index, entry.term);
                let seen = Seen::Proposed { member: id, index, term, envelope, applied };
                see(&mut self.checks, &seen, &context!(self))?;
            }
        }
        let Some(life) = self.life_mut(id) else { return Ok(()) };
        if let Some(snapshot) = persist.snapshot {
            life.terms.clear();
            life.compared = life.compared.max(snapshot.index);
            self.report.installs += 1;
        }
        let Some(life) = self.life_mut(id) else { return Ok(()) };
        if let Some(first) = persist.entries.first() {
            life.terms.split_off(&first.index);
        }
        life.terms.extend(persist.entries.iter().map(|entry| (entry.index, entry.term)));
        Ok(())
    }

    /// Everything up to `upto` is applied by a member.
    fn applied(&mut self, id: MemberId, upto: u64) -> Result<(), Broken> {
        let Some(compared) = self.life(id).map(|life| life.compared) else { return Ok(()) };
        for index in compared + 1..=upto {
            let named = |rule, what: String| Broken { rule, what: format!("member {id}: {what}") };
            let Some(term) = self.life(id).and_then(|life| life.terms.get(&index).copied()) else {
                let what = format!("entry {index} is applied, and is not in its log");
                return Err(named("K3: logs agree", what));
            };
            if index <= self.reference.applied() {
                self.reference.compare(index, term).map_err(|what| named("K5: all apply the same", what))?;
                continue;
            }
            let applied_in = self.life(id).map_or(term, |life| life.replica.status().term);
            let outcome = self.reference.apply_next(term, applied_in, self.now_us);
            let outcome = outcome.map_err(|what| named("K3/K4: the machine does what the model does, once", what))?;
            self.report.commands += 1;
            if let Some(command) = self.reference.command(index) {
                *self.report.sent.entry(coverage::command(command)).or_default() += 1;
            }
            for kind in coverage::continued(&outcome.reply) {
                *self.report.sent.entry(kind).or_default() += 1;
            }
            if let Err(Refusal::Deadlock { cycle }) = &outcome.reply {
                *self.report.sent.entry(coverage::circle(cycle)).or_default() += 1;
            }
            let seen = Seen::Applied { index, command: self.reference.command(index), outcome: &outcome };
            see(&mut self.checks, &seen, &context!(self))?;
        }
        if let Some(life) = self.life_mut(id) {
            life.compared = upto.max(life.compared);
        }
        Ok(())
    }

    fn come_out(&mut self, id: MemberId, mut output: Output, within: &mut RangeInclusive<u64>) -> Result<(), Broken> {
        let Some(life) = self.members.get_mut(&id).and_then(|member| member.life.as_mut()) else { return Ok(()) };
        if let Some(planted) = self.planted {
            let call = if let Output::Answer { call, .. } = &output { self.calls.get(call) } else { None };
            let view = life.replica.machine().view();
            if !self.memory.spoil_output(planted, view, call, &mut output) {
                return Ok(());
            }
        }
        describe::output(&mut self.trace, self.now_us, id, &output);
        match output {
            Output::Persist(mut persist) => {
                let is_early = self.planted == Some(Planted::AcknowledgeEmpty) && persist.entries.is_empty();
                let early = if is_early { std::mem::take(&mut persist.messages) } else { Vec::new() };
                life.persist(persist);
                early.into_iter().for_each(|(to, message)| self.send(id, to, message));
            }
            Output::SaveSnapshot(save) => {
                self.report.snapshots += 1;
                let checked = self.reference.snapshot(&save.view, self.plan.chunk_bytes);
                life.save_snapshot(save);
                checked.map_err(|what| Broken { rule: "K5: a snapshot is the state", what })?;
            }
            Output::HashState { index, view } => {
                let hash = view.hash();
                life.inbox.push(Input::StateHashed { index, hash, took_ms: 1 });
            }
            Output::Answer { call, answer } => self.answered(id, call, answer, within)?,
            Output::Queued { .. } => {}
            Output::Session { stream, notice } => {
                see(&mut self.checks, &Seen::SessionNoticed { stream, notice: &notice }, &context!(self))?;
                self.session_noticed(stream, notice);
            }
            Output::LockNotice { stream, notice } => self.lock_noticed(id, stream, &notice)?,
            Output::Notice { stream, notice } => self.noticed(id, stream, &notice, within)?,
            Output::SnapshotRefused { index } => life.discard_snapshot(index),
            Output::Members(members) => {
                let members: Vec<MemberId> = members.iter().map(|member| member.id).collect();
                // A disk that fails here fails again where it matters.
                let _ = life.peers.keep(&members);
                life.members = members;
                self.notice_power(id);
            }
            Output::Removed => {}
            Output::Send { to, message } => self.send(id, to, message),
            Output::SendSnapshot { to, index, message } => self.send_snapshot(id, to, index, message),
            Output::Fatal(reason) => return Err(Broken { rule: "no member gives itself up", what: reason }),
        }
        Ok(())
    }

    fn answered(
        &mut self,
        member: MemberId,
        id: CallId,
        answer: Answer,
        within: &mut RangeInclusive<u64>,
    ) -> Result<(), Broken> {
        let Some(call) = self.calls.remove(&id).filter(|call| call.member == member) else {
            let what = format!("call {id} is answered, but nobody waits: {answer:?}");
            return Err(Broken { rule: "a call is answered once", what });
        };
        // In the same step an answer may come before it; a grant never may.
        let granted = matches!(answer.result, Ok(Answered::Lock(_)));
        if call.cancel_taken.is_some_and(|step| granted || step < self.report.steps) {
            let what = format!("call {id} was given up and is answered all the same: {answer:?}");
            return Err(Broken { rule: "L6: who gave up is not answered", what });
        }
        if let Ok(Answered::View(view)) = &answer.result {
            let index = view.applied_index();
            *within = index.clamp(*within.start(), *within.end())..=*within.end();
        }
        if let Request::Lock(lock) = &call.request
            && !call.cancelled
        {
            let fate = if granted { Fate::Granted } else { Fate::Over };
            self.fates.become_of(lock, fate, self.now_us);
        }
        let within = within.clone();
        self.compare_reply(&call, &answer, *within.end())?;
        see(&mut self.checks, &Seen::Answered { id, call: &call, answer: &answer, within }, &context!(self))?;
        if !call.cancelled {
            let (least_us, most_us) = self.plan.answer_us;
            let at_us = self.now_us + self.random.spread(least_us, most_us);
            if let (Request::Lock(lock), true) = (&call.request, granted) {
                let life = self.life(member).map_or(0, |life| life.number);
                let (client, lock) = (call.client, lock.clone());
                self.telling.insert(id, Telling { client, member, life, lock });
            }
            match self.is_of_session(call.client) {
                true => self.session_answered(id, answer),
                false => self.events.at(at_us, Event::Told(Box::new(Told { id, call, answer }))),
            }
        }
        Ok(())
    }

    /// Every command that was answered was answered with what it did, at its place in the log; and what was refused
    /// for good never has an effect.
    fn compare_reply(&mut self, call: &Call, answer: &Answer, upto: u64) -> Result<(), Broken> {
        let Some(command) = call.request.command() else { return Ok(()) };
        // Who has a place already may be told that there is no leader to confirm it; the place is left then.
        let is_lock = matches!(call.request, Request::Lock(_));
        let reply = match &answer.result {
            Ok(Answered::Reply(reply)) => Ok(reply.clone()),
            Ok(Answered::Members(_)) => Ok(tenure_machine::Reply::MembersChanged),
            Err(Failure::Refused(refusal)) => Err(refusal.clone()),
            Err(Failure::NoLeader) if is_lock => return Ok(()),
            Err(
                Failure::NoLeader
                | Failure::LeaderChanged
                | Failure::Overloaded
                | Failure::LearnerNotReady
                | Failure::NotEnoughMembers
                | Failure::ChangeUnderWay
                | Failure::LevelTooLow { .. },
            ) => {
                let kept = self.reference.turn_away(&command);
                return kept.map_err(|what| Broken { rule: "K3: what was refused has no effect", what });
            }
            // A place in a queue is looked at elsewhere. Of all else nobody was told what became of it.
            _ => return Ok(()),
        };
        let is_change = matches!(answer.result, Ok(Answered::Members(_)));
        // Of a joint configuration the call is answered later, when it is left.
        let revision = if is_change { None } else { Some(answer.revision) };
        let claimed = self.reference.claim(&command, call.floor_index, upto, &reply, revision);
        match claimed {
            // Refused by the leader, before it came into its log.
            Err(_) if reply.is_err() && is_refused_early(&reply) => self.reference.turn_away(&command),
            claimed => claimed,
        }
        .map_err(|what| Broken { rule: "K1/K3: a reply is what the command did", what })
    }

    fn lock_noticed(&mut self, member: MemberId, stream: StreamId, notice: &LockNotice) -> Result<(), Broken> {
        see(&mut self.checks, &Seen::LockNoticed { stream, notice }, &context!(self))?;
        self.report.notices += 1;
        if let Some((delay_us, request)) = self.traffic.lock_noticed(stream, notice)
            && let Some(life) = self.life(member).map(|life| life.number)
        {
            let what = Own::LockStream(stream, request);
            self.events.at(self.now_us + delay_us, Event::Own { member, life, what });
        }
        Ok(())
    }

    fn noticed(
        &mut self,
        member: MemberId,
        stream: StreamId,
        notice: &Notice,
        within: &RangeInclusive<u64>,
    ) -> Result<(), Broken> {
        let seen = Seen::Noticed { member, stream, notice, within: within.clone() };
        see(&mut self.checks, &seen, &context!(self))?;
        self.report.notices += 1;
        for (at_us, parcel) in self.traffic.send_parcels(stream, notice, self.now_us) {
            match at_us > self.now_us {
                true => self.events.at(at_us, Event::Parcel(stream, parcel)),
                false => self.traffic.take_parcel(stream, parcel),
            }
        }
        if let Some((delay_us, request)) = self.traffic.noticed(stream, notice)
            && let Some(life) = self.life(member).map(|life| life.number)
        {
            let what = Own::Stream(stream, request);
            self.events.at(self.now_us + delay_us, Event::Own { member, life, what });
        }
        Ok(())
    }
}

/// What a leader refuses before it proposes it.
fn is_refused_early(reply: &Result<tenure_machine::Reply, Refusal>) -> bool {
    use tenure_machine::Refusal::*;
    matches!(reply, Err(MemberExists | MemberNotFound | NotALearner | PeerUrlExists | NoSpace))
}
