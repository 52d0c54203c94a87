//! One step of the member: what goes in, what comes out, and what becomes of it.

use std::ops::RangeInclusive;

use tenure_machine::Revision;
use tenure_replica::{Answer, Answered, CallId, Failure, Input, LogEntry, Notice, Output, StreamId};

use super::{Broken, Event, World, context, see};
use crate::checks::Seen;
use crate::reference::Origin;

impl World {
    /// Puts an input into the member's inbox; a step will take it soon.
    pub(super) fn give(&mut self, input: Input) {
        let Some(life) = &mut self.member.life else { return };
        life.inbox.push(input);
        let soon_us = self.now_us + self.random.spread(1, 300);
        self.step_at(soon_us);
    }

    pub(super) fn step_at(&mut self, time_us: u64) {
        let Some(life) = &mut self.member.life else { return };
        // While paused, or if an earlier step is due already, there is nothing to do.
        if time_us < life.step_due_us || life.step_due_us <= self.now_us {
            life.step_due_us = time_us;
            self.events.at(time_us, Event::Step { life: life.number });
        }
    }

    pub(super) fn step(&mut self) -> Result<(), Broken> {
        let Some(life) = &mut self.member.life else { return Ok(()) };
        life.step_due_us = u64::MAX;
        let mut inputs = std::mem::take(&mut life.inbox);
        for input in &inputs {
            self.taken(input)?;
        }
        let Some(life) = &mut self.member.life else { return Ok(()) };
        if let Some(planted) = self.planted {
            self.memory.spoil_inputs(planted, &mut inputs);
        }
        let now = life.now(self.now_us, self.wall_ms.wrapping_add(self.now_us / 1000));
        let before = life.replica.machine().applied_index();
        let mut outputs = Vec::new();
        life.replica.step(now, inputs, &mut outputs);
        let applied = life.replica.machine().applied_index();

        for output in &outputs {
            if let Output::Persist(persist) = output {
                persist.entries.iter().try_for_each(|entry| self.logged(entry))?;
            }
        }
        self.applied(applied)?;
        let mut within = before..=applied;
        for output in outputs {
            self.come_out(output, &mut within)?;
        }
        let Some(life) = &self.member.life else { return Ok(()) };
        see(&mut self.checks, &Seen::Stepped { replica: &life.replica }, &context!(self))?;
        self.report.steps += 1;
        let wake_us = life.wake_us().max(self.now_us + 1);
        self.step_at(wake_us);
        self.begin_batch();
        Ok(())
    }

    fn taken(&mut self, input: &Input) -> Result<(), Broken> {
        self.trace.note(self.now_us, format_args!("-> {input:?}"));
        match input {
            Input::Cancel { call } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.cancel_taken = Some(self.report.steps);
                }
            }
            Input::Propose { call, .. } | Input::Lock { call, .. } => {
                if let Some(command) = self.calls.get(call).and_then(|call| call.request.command()) {
                    self.reference.asked(*call, command);
                }
            }
            Input::Watch { stream, request } => {
                see(&mut self.checks, &Seen::WatchAsked { stream: *stream, request }, &context!(self))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// An entry is given to the log.
    fn logged(&mut self, entry: &LogEntry) -> Result<(), Broken> {
        let origin = self.reference.record(entry);
        let origin = origin.map_err(|what| Broken { rule: "K3: the log holds what was asked for, once", what })?;
        if let Origin::Call(id) = origin
            && let Some(call) = self.calls.get_mut(&id)
        {
            call.index = Some(entry.index);
        }
        if let Some(command) = self.reference.entry(entry.index).and_then(|entry| entry.command()) {
            see(&mut self.checks, &Seen::Logged { command }, &context!(self))?;
        }
        Ok(())
    }

    /// Everything up to `index` is applied by the member.
    fn applied(&mut self, index: u64) -> Result<(), Broken> {
        while self.reference.applied() < index {
            let outcome = self.reference.apply_next();
            let outcome = outcome.map_err(|what| Broken { rule: "K4: the machine does what the model does", what })?;
            self.report.commands += 1;
            let command = self.reference.entry(self.reference.applied()).and_then(|entry| entry.command());
            see(&mut self.checks, &Seen::Applied { command, outcome: &outcome }, &context!(self))?;
        }
        Ok(())
    }

    fn come_out(&mut self, mut output: Output, within: &mut RangeInclusive<u64>) -> Result<(), Broken> {
        let Some(life) = &mut self.member.life else { return Ok(()) };
        if let Some(planted) = self.planted {
            let call = if let Output::Answer { call, .. } = &output { self.calls.get(call) } else { None };
            let view = life.replica.machine().view();
            if !self.memory.spoil_output(planted, view, call, &mut output) {
                return Ok(());
            }
        }
        self.trace.note(self.now_us, format_args!("<- {output:?}"));
        match output {
            Output::Persist(persist) => life.persist(persist),
            Output::SaveSnapshot(save) => {
                self.report.snapshots += 1;
                let checked = self.reference.snapshot(&save.view, self.plan.chunk_bytes);
                life.save_snapshot(save);
                checked.map_err(|what| Broken { rule: "K5: a snapshot is the state", what })?;
            }
            Output::Answer { call, answer } => self.answered(call, &answer, within)?,
            // Told to sessions only, of which this world has none.
            Output::Queued { .. } | Output::Session { .. } | Output::LockNotice { .. } => {}
            Output::Notice { stream, notice } => self.noticed(stream, &notice, within)?,
            // Only a snapshot that came from another member can be refused.
            Output::SnapshotRefused { .. } => {}
            Output::Members(_) => {}
            Output::Removed => return Err(Broken { rule: "alone", what: "the only member is none".to_owned() }),
            Output::Send { to, .. } | Output::SendSnapshot { to, .. } => {
                return Err(Broken { rule: "alone", what: format!("a message to member {to}, who does not exist") });
            }
            Output::Fatal(reason) => return Err(Broken { rule: "no member gives itself up", what: reason }),
        }
        Ok(())
    }

    fn answered(&mut self, id: CallId, answer: &Answer, within: &mut RangeInclusive<u64>) -> Result<(), Broken> {
        let Some(call) = self.calls.remove(&id) else {
            let what = format!("call {id} is answered, but nobody waits: {answer:?}");
            return Err(Broken { rule: "a call is answered once", what });
        };
        // In the same step an answer may come before it; a grant never may.
        let granted = matches!(answer.result, Ok(Answered::Lock(_)));
        if call.cancel_taken.is_some_and(|step| granted || step < self.report.steps) {
            let what = format!("call {id} was given up and is answered all the same: {answer:?}");
            return Err(Broken { rule: "L6: who gave up is not answered", what });
        }
        // What a later answer speaks of is no older than what an earlier one did.
        let index = match &answer.result {
            Ok(Answered::View(view)) => view.applied_index(),
            Ok(_) | Err(Failure::Refused(_)) => call.index.unwrap_or(0),
            Err(_) => 0,
        };
        *within = index.clamp(*within.start(), *within.end())..=*within.end();
        let within = within.clone();
        see(&mut self.checks, &Seen::Answered { id, call: &call, answer, within }, &context!(self))?;
        self.expose(answer.revision);
        if let Err(Failure::NoLeader | Failure::Overloaded) = answer.result {
            self.reference.turned_away(id);
        }
        if !call.cancelled {
            self.traffic.answered(id, &call, answer, self.now_us);
        }
        Ok(())
    }

    fn noticed(&mut self, stream: StreamId, notice: &Notice, within: &RangeInclusive<u64>) -> Result<(), Broken> {
        see(&mut self.checks, &Seen::Noticed { stream, notice, within: within.clone() }, &context!(self))?;
        self.report.notices += 1;
        self.expose(match notice {
            Notice::Created { revision, .. }
            | Notice::Commits { revision, .. }
            | Notice::Compacted { revision, .. }
            | Notice::Progress { revision, .. } => *revision,
            Notice::Behind { view, .. } => view.revision(),
        });
        if let Some((delay_us, request)) = self.traffic.noticed(stream, notice)
            && let Some(life) = &self.member.life
        {
            self.events.at(self.now_us + delay_us, Event::Stream { life: life.number, stream, request });
        }
        Ok(())
    }

    /// Somebody was told of this revision.
    fn expose(&mut self, revision: Revision) {
        self.reference.exposed = self.reference.exposed.max(revision);
    }
}
