//! The truth, as far as it can be known from outside: every entry that any member gave to its log, and
//! the one sequence of them that took effect, applied to the model and, beside it, to a second machine
//! that nothing ever crashes.
//!
//! Whoever applies an index first decides what stands there; everybody else must apply the same. A
//! command whose answer never came stands in the log or does not, so nothing has to be guessed. What
//! clients were told is then compared with what the model says about that place in the log. And nothing
//! takes effect but what was asked for: each command at most as often as calls asked for it, but for
//! the few that members propose by themselves.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::snapshot::{Restore, chunks};
use tenure_machine::{
    Command, Envelope, LockChange, Machine, MemberChange, MemberId, Refusal, Reply, Revision, View, codec,
};
use tenure_replica::{FIRST_INDEX, FIRST_TERM, LogEntry};
use tenure_storage::Recovered;

use crate::model::{Configuration, Model, Outcome};
use crate::plan::Limits;
use crate::recovery::{described, first_state};

pub struct Reference {
    pub model: Model,
    shadow: Machine,
    /// Every entry that any member has written, by index and term.
    written: BTreeMap<(u64, u64), Recorded>,
    /// What took effect, by index.
    log: BTreeMap<u64, Committed>,
    /// Every state there was, and the hashes of those that were asked for.
    views: BTreeMap<u64, View>,
    hashes: RefCell<BTreeMap<u64, u64>>,
    asked: BTreeMap<Bytes, Asked>,
}

struct Recorded {
    kind: u8,
    data: Bytes,
    context: Bytes,
    envelope: Option<Envelope>,
}

/// An entry that took effect.
pub struct Committed {
    pub term: u64,
    /// The term of whoever applied it first: all who lead in a later one have it.
    pub applied_in: u64,
    /// When somebody applied it first.
    pub applied_us: u64,
    pub reply: Result<Reply, Refusal>,
    pub revision: Revision,
    /// How much there was to do, as the machine counts it.
    pub work: u64,
}

/// One command, as often as it was asked for.
#[derive(Default)]
struct Asked {
    calls: u64,
    /// Where it took effect.
    applied: Vec<u64>,
    /// Of these, those that a call was answered with.
    claimed: u64,
}

impl Reference {
    pub fn new(founders: &[MemberId], limits: Limits) -> Reference {
        let shadow = first_state(founders, FIRST_INDEX, FIRST_TERM);
        let mut model = Model::new(FIRST_INDEX, limits);
        model.found(founders.iter().map(|id| described(*id, false)));
        Reference {
            model,
            views: BTreeMap::from([(FIRST_INDEX, shadow.view())]),
            shadow,
            written: BTreeMap::new(),
            log: BTreeMap::new(),
            hashes: RefCell::default(),
            asked: BTreeMap::new(),
        }
    }

    pub fn applied(&self) -> u64 {
        self.model.applied
    }

    /// What took effect at an index.
    pub fn committed(&self, index: u64) -> Option<&Committed> {
        self.log.get(&index)
    }

    pub fn command(&self, index: u64) -> Option<&Command> {
        let term = self.log.get(&index)?.term;
        self.written.get(&(index, term))?.envelope.as_ref().map(|envelope| &envelope.command)
    }

    /// Of the state after this index, if there was one.
    pub fn hash_at(&self, index: u64) -> Option<u64> {
        let view = self.views.get(&index)?;
        Some(*self.hashes.borrow_mut().entry(index).or_insert_with(|| view.hash()))
    }

    pub fn ask(&mut self, command: &Command) {
        self.asked.entry(key_of(command)).or_default().calls += 1;
    }

    /// The caller was told that the command will never take effect.
    pub fn turn_away(&mut self, command: &Command) -> Result<(), String> {
        let asked = self.asked.entry(key_of(command)).or_default();
        asked.calls = asked.calls.saturating_sub(1);
        if asked.calls < asked.applied.len() as u64 && !is_members_own(command) {
            return Err(format!("{command:?} was refused, and took effect at entry {:?}", asked.applied));
        }
        Ok(())
    }

    /// Whether the command took effect within these indexes with this outcome, for a call that was not told before.
    pub fn claim(
        &mut self,
        command: &Command,
        after: u64,
        upto: u64,
        reply: &Result<Reply, Refusal>,
        revision: Option<Revision>,
    ) -> Result<(), String> {
        let asked = self.asked.entry(key_of(command)).or_default();
        let (log, claimed) = (&self.log, asked.claimed);
        let applied: Vec<u64> =
            asked.applied.iter().copied().filter(|index| (after + 1..=upto).contains(index)).collect();
        let is_it = |index: &&u64| {
            log.get(index).is_some_and(|entry| {
                entry.reply == *reply && revision.is_none_or(|revision| entry.revision == revision)
            })
        };
        if applied.iter().any(|index| is_it(&index)) && claimed < asked.applied.len() as u64 {
            asked.claimed += 1;
            return Ok(());
        }
        let found: Vec<_> = applied
            .iter()
            .filter_map(|index| log.get(index).map(|entry| (index, &entry.reply, entry.revision)))
            .collect();
        Err(format!("{command:?} was answered {reply:?} at revision {revision:?}; it took effect as {found:?}"))
    }

    pub fn took_effect(&self, command: &Command, after: u64, upto: u64) -> bool {
        let asked = self.asked.get(&key_of(command));
        asked.is_some_and(|asked| asked.applied.iter().any(|index| (after + 1..=upto).contains(index)))
    }

    /// The command of an entry that some member has written.
    pub fn written(&self, index: u64, term: u64) -> Option<&Envelope> {
        self.written.get(&(index, term))?.envelope.as_ref()
    }

    /// A member wants an entry to be durable. True if no member had it before: this one has proposed it.
    pub fn record(&mut self, entry: &LogEntry) -> Result<bool, String> {
        let LogEntry { index, term, kind, data, context } = entry;
        if let Some(known) = self.written.get(&(*index, *term)) {
            if (known.kind, &known.data, &known.context) == (*kind, data, context) {
                return Ok(false);
            }
            return Err(format!("entry {index} of term {term} is not what another member has there"));
        }
        if let Some(committed) =
            self.log.get(index).filter(|committed| committed.term != *term && committed.applied_in < *term)
        {
            let old = committed.term;
            return Err(format!("entry {index} of term {old} took effect, and is replaced in term {term}"));
        }
        let encoded = if *kind == 0 { data } else { context };
        let envelope = match encoded.is_empty() {
            true => None,
            false => Some(codec::decode(encoded.clone()).map_err(|error| format!("entry {index}: {error}"))?),
        };
        let (kind, data, context) = (*kind, data.clone(), context.clone());
        self.written.insert((*index, *term), Recorded { kind, data, context, envelope });
        Ok(true)
    }

    /// A member starts again. Who votes alone may come to lead twice in one term: the first time was never durable, and
    /// nobody has heard of it.
    pub fn forget_unheard(&mut self, member: MemberId, term: u64) {
        let Configuration { voters, outgoing, .. } = self.model.configuration();
        if outgoing.is_empty() && voters.iter().eq([&member]) {
            self.written.retain(|(_, written), _| *written <= term);
        }
    }

    /// A member applied this entry, which another one had applied before.
    pub fn compare(&self, index: u64, term: u64) -> Result<(), String> {
        match self.log.get(&index) {
            Some(committed) if committed.term == term => Ok(()),
            Some(committed) => {
                Err(format!("entry {index} is of term {term} here, and of term {} elsewhere", committed.term))
            }
            None => Err(format!("entry {index} is not known to have taken effect")),
        }
    }

    /// Applies the next entry, which is the one of this term, to both. An error if they disagree.
    pub fn apply_next(&mut self, term: u64, applied_in: u64, now_us: u64) -> Result<Outcome, String> {
        let index = self.applied() + 1;
        let Some(recorded) = self.written.get(&(index, term)) else {
            return Err(format!("entry {index} of term {term} was applied, and never given to any log"));
        };
        let (outcome, work) = match &recorded.envelope {
            None => {
                self.shadow.skip(index, term);
                match recorded.kind {
                    0 => self.model.skip(index),
                    _ => self.model.leave_joint(index),
                }
                self.settle_shadow(changes_configuration(recorded.kind));
                (self.without_effect(Ok(Reply::Published)), 0)
            }
            Some(envelope) => {
                let (kind, envelope) = (recorded.kind, envelope.clone());
                let (outcome, work) = self.apply_both(index, term, &envelope)?;
                self.settle_shadow(changes_configuration(kind) && matches!(outcome.reply, Ok(Reply::MembersChanged)));
                self.note_effect(index, &envelope.command, &outcome)?;
                (outcome, work)
            }
        };
        let (reply, revision) = (outcome.reply.clone(), outcome.revision);
        self.log.insert(index, Committed { term, applied_in, applied_us: now_us, reply, revision, work });
        self.views.insert(index, self.shadow.view());
        Ok(outcome)
    }

    /// With how much there was to do.
    fn apply_both(&mut self, index: u64, term: u64, envelope: &Envelope) -> Result<(Outcome, u64), String> {
        let command = &envelope.command;
        // Of one who is no member the state takes no description.
        if let Command::Publish(member) | Command::ChangeMembers(MemberChange::Update { member }) = command
            && self.model.configuration().is_learner(member.id).is_none()
        {
            let reply = self.shadow.refuse(index, term, envelope, Refusal::MemberNotFound).reply;
            let expected = self.model.refuse(index, envelope, Refusal::MemberNotFound);
            if reply != expected {
                return Err(format!(
                    "entry {index}, {command:?}: the machine replies {reply:?}, the model {expected:?}"
                ));
            }
            return Ok((self.without_effect(reply), 0));
        }
        let outcome = self.model.apply(index, term, envelope);
        let applied = self.shadow.apply(index, term, envelope);
        if !is_same(&applied.reply, &outcome.reply) {
            let (machine, model) = (&applied.reply, &outcome.reply);
            return Err(format!("entry {index}, {command:?}: the machine replies {machine:?}, the model {model:?}"));
        }
        if let (Command::Lock(lock), Err(Refusal::Deadlock { cycle })) = (command, &applied.reply) {
            // A refusal leaves the model as it was.
            self.model.tells_circle(lock, cycle).map_err(|what| format!("entry {index}, {command:?}: {what}"))?;
        }
        if applied.revision != outcome.revision {
            let (machine, model) = (applied.revision, outcome.revision);
            return Err(format!("entry {index}, {command:?}: revision {machine} in the machine, {model} in the model"));
        }
        let expected = outcome.wrote.then(|| self.model.commit(outcome.revision)).flatten();
        if applied.commit.as_ref() != expected {
            let machine = &applied.commit;
            return Err(format!("entry {index}, {command:?}: the machine wrote {machine:?}, the model {expected:?}"));
        }
        let granted = applied.lock_changes.iter().filter_map(|change| match change {
            LockChange::Granted(entry) => Some((entry.key.to_vec(), entry.token)),
            LockChange::Ended { .. } => None,
        });
        let (granted, expected): (Vec<_>, _) = (granted.collect(), &outcome.granted);
        if granted != *expected {
            return Err(format!("entry {index}, {command:?}: the machine grants {granted:?}, the model {expected:?}"));
        }
        Ok((Outcome { reply: applied.reply, ..outcome }, applied.work))
    }

    /// Nothing but the reply.
    fn without_effect(&self, reply: Result<Reply, Refusal>) -> Outcome {
        Outcome { reply, revision: self.model.revision, wrote: false, granted: Vec::new() }
    }

    /// The second machine follows a change of the configuration.
    fn settle_shadow(&mut self, is_changed: bool) {
        if is_changed {
            let configuration = self.model.configuration();
            self.shadow.settle_members(|member| configuration.is_learner(member));
        }
    }

    fn note_effect(&mut self, index: u64, command: &Command, outcome: &Outcome) -> Result<(), String> {
        if matches!(outcome.reply, Ok(Reply::Duplicate)) {
            return Ok(());
        }
        let asked = self.asked.entry(key_of(command)).or_default();
        asked.applied.push(index);
        if asked.applied.len() as u64 > asked.calls && !is_members_own(command) {
            let (calls, applied) = (asked.calls, &asked.applied);
            return Err(format!("{command:?} was asked for {calls} times and took effect at {applied:?}"));
        }
        Ok(())
    }

    /// A snapshot of `view` is asked for: it must restore to the same state, and the second machine goes
    /// on from what was restored.
    pub fn snapshot(&mut self, view: &View, chunk_bytes: usize) -> Result<(), String> {
        let (index, hash) = (view.applied_index(), view.hash());
        let mut restore = Restore::new();
        for chunk in chunks(view.clone(), chunk_bytes) {
            restore.chunk(&chunk).map_err(|error| format!("a snapshot cannot be restored: {error}"))?;
        }
        let restored = restore.finish().map_err(|error| format!("a snapshot cannot be restored: {error}"))?;
        if restored.state().hash() != hash {
            return Err(format!("the snapshot at {index} restores to another state"));
        }
        self.is_state(index, hash)?;
        if index == self.applied() {
            self.shadow = restored;
        }
        Ok(())
    }

    pub fn is_state(&self, index: u64, hash: u64) -> Result<(), String> {
        match self.hash_at(index) {
            Some(known) if known == hash => Ok(()),
            Some(_) => Err(format!("the member's state at {index} is not what the log leads to")),
            None => Err(format!("a state at {index}, where the log never was")),
        }
    }

    /// Compares what came back from a member's disk with what any member ever wrote.
    pub fn recover(&self, recovered: &Recovered, snapshot_hash: u64) -> Result<(), String> {
        let index = recovered.snapshot.index;
        if index > 0 {
            self.is_state(index, snapshot_hash).map_err(|what| format!("a snapshot came back: {what}"))?;
        }
        for entry in &recovered.entries {
            let written = self.written.get(&(entry.index, entry.term));
            let is_same = |recorded: &Recorded| {
                (recorded.kind, &recorded.data, &recorded.context) == (entry.kind, &entry.data, &entry.context)
            };
            if !written.is_some_and(is_same) {
                return Err(format!("entry {} came back as something that was never written", entry.index));
            }
        }
        Ok(())
    }
}

/// Whether an entry of this kind changes raft's configuration.
fn changes_configuration(kind: u8) -> bool {
    kind != 0
}

/// What members propose without having been asked.
fn is_members_own(command: &Command) -> bool {
    matches!(
        command,
        Command::LeaseExpire { .. }
            | Command::LeaseCheckpoint { .. }
            | Command::Leave(_)
            | Command::Compact { .. }
            | Command::Alarm(_)
            | Command::Continue
            | Command::RaiseLevel { .. }
            | Command::CompareStates
    )
}

fn key_of(command: &Command) -> Bytes {
    let mut encoded = Vec::new();
    codec::encode(&Envelope { wall_ms: 0, origin: None, command: command.clone() }, &mut encoded);
    encoded.into()
}

/// The model leaves out how the machine describes who holds a lock and who waits in a circle.
fn is_same(machine: &Result<Reply, Refusal>, model: &Result<Reply, Refusal>) -> bool {
    match (machine, model) {
        (Ok(Reply::Busy(machine)), Ok(Reply::Busy(model))) => {
            (&machine.name, machine.waiting) == (&model.name, model.waiting)
        }
        (Err(Refusal::Deadlock { .. }), Err(Refusal::Deadlock { .. })) => true,
        (Ok(Reply::ForceReleased(_)), Ok(Reply::Unlocked { .. })) => true,
        (Ok(Reply::LockForgotten { .. }), Ok(Reply::LockForgotten { .. })) => true,
        (machine, model) => machine == model,
    }
}
