//! The truth, as far as it can be known from outside: every entry that the member gave to its log, in
//! order, applied to the model and, beside it, to a second machine that nothing ever crashes.
//!
//! The log decides what happened. A command whose answer never came stands in it or does not, and what
//! survived a crash is what recovery found there; so nothing has to be guessed. What clients were told is
//! then compared with what the model says about that place in the log. And the log itself holds nothing
//! but what was asked for: each entry is matched with a call, at most one for each call, or with one of
//! the few commands that a member proposes by itself.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::snapshot::{Restore, chunks};
use tenure_machine::{Command, Envelope, Machine, Refusal, Reply, Revision, View, codec};
use tenure_replica::{CallId, FIRST_INDEX, FIRST_TERM, LogEntry};
use tenure_storage::Recovered;

use crate::model::{Model, Outcome};

pub struct Reference {
    pub model: Model,
    shadow: Machine,
    log: BTreeMap<u64, Recorded>,
    /// What the command at an index was answered, or should have been.
    results: BTreeMap<u64, (Result<Reply, Refusal>, Revision)>,
    /// The hash of each state that a snapshot was asked for.
    snapshots: BTreeMap<u64, u64>,
    /// Commands given to the member in this life that are not in the log yet.
    unmatched: Vec<(CallId, Command)>,
    /// The newest revision that anybody was told of.
    pub exposed: Revision,
}

pub struct Recorded {
    pub term: u64,
    data: Bytes,
    envelope: Option<Envelope>,
}

impl Recorded {
    pub fn command(&self) -> Option<&Command> {
        self.envelope.as_ref().map(|envelope| &envelope.command)
    }
}

/// Whose command an entry is.
pub enum Origin {
    Call(CallId),
    /// The member's own.
    Member,
    /// A leader's first entry, which holds nothing.
    Nobody,
}

impl Default for Reference {
    fn default() -> Self {
        let mut shadow = Machine::new();
        shadow.skip(FIRST_INDEX, FIRST_TERM);
        let snapshots = BTreeMap::from([(FIRST_INDEX, shadow.state().hash())]);
        Reference {
            model: Model::new(FIRST_INDEX),
            shadow,
            log: BTreeMap::new(),
            results: BTreeMap::new(),
            snapshots,
            unmatched: Vec::new(),
            exposed: 1,
        }
    }
}

impl Reference {
    pub fn applied(&self) -> u64 {
        self.model.applied
    }

    pub fn entry(&self, index: u64) -> Option<&Recorded> {
        self.log.get(&index)
    }

    pub fn result(&self, index: u64) -> Option<&(Result<Reply, Refusal>, Revision)> {
        self.results.get(&index)
    }

    pub fn shadow(&self) -> &View {
        self.shadow.state()
    }

    pub fn asked(&mut self, call: CallId, command: Command) {
        self.unmatched.push((call, command));
    }

    /// The member refused the call before it reached the log.
    pub fn turned_away(&mut self, call: CallId) {
        self.unmatched.retain(|(asked, _)| *asked != call);
    }

    /// The member wants an entry to be durable.
    pub fn record(&mut self, entry: &LogEntry) -> Result<Origin, String> {
        let index = entry.index;
        if index <= self.applied() {
            return Err(format!("entry {index} is given to the log again, after it was applied"));
        }
        let last = self.log.last_key_value().map_or(FIRST_INDEX, |(index, _)| *index);
        if index > last + 1 {
            return Err(format!("entry {index} follows entry {last}"));
        }
        self.log.split_off(&index);
        let data = entry.data.clone();
        if data.is_empty() {
            self.log.insert(index, Recorded { term: entry.term, data, envelope: None });
            return Ok(Origin::Nobody);
        }
        let envelope = codec::decode(data.clone()).map_err(|error| format!("entry {index}: {error}"))?;
        let asked = self.unmatched.iter().position(|(_, command)| *command == envelope.command);
        let origin = match (asked, &envelope.command) {
            (Some(position), _) => Origin::Call(self.unmatched.remove(position).0),
            (None, Command::LeaseExpire { .. } | Command::Leave(_) | Command::Compact { .. }) => Origin::Member,
            (None, command) => {
                return Err(format!(
                    "entry {index} is a command that nobody asked for, or asked for once: {command:?}"
                ));
            }
        };
        self.log.insert(index, Recorded { term: entry.term, data, envelope: Some(envelope) });
        Ok(origin)
    }

    /// Applies the next entry to both. An error if they disagree.
    pub fn apply_next(&mut self) -> Result<Outcome, String> {
        let index = self.applied() + 1;
        let Some(recorded) = self.log.get(&index) else {
            return Err(format!("entry {index} was applied, and never given to the log"));
        };
        let Some(envelope) = &recorded.envelope else {
            self.model.skip(index);
            self.shadow.skip(index, recorded.term);
            return Ok(Outcome { reply: Ok(Reply::Published), revision: self.model.revision, wrote: false });
        };
        let outcome = self.model.apply(index, recorded.term, &envelope.command);
        let applied = self.shadow.apply(index, recorded.term, envelope);
        let command = &envelope.command;
        if applied.reply != outcome.reply {
            let (machine, model) = (&applied.reply, &outcome.reply);
            return Err(format!("entry {index}, {command:?}: the machine replies {machine:?}, the model {model:?}"));
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
        self.results.insert(index, (outcome.reply.clone(), outcome.revision));
        if self.results.len() > 4096 {
            self.results.pop_first();
        }
        Ok(outcome)
    }

    /// A snapshot of `view` is asked for: it must restore to the same state, and the second machine goes
    /// on from what was restored.
    pub fn snapshot(&mut self, view: &View, chunk_bytes: usize) -> Result<(), String> {
        let (index, hash) = (view.applied_index(), view.hash());
        self.snapshots.insert(index, hash);
        let mut restore = Restore::new();
        for chunk in chunks(view.clone(), chunk_bytes) {
            restore.chunk(&chunk).map_err(|error| format!("a snapshot cannot be restored: {error}"))?;
        }
        let restored = restore.finish().map_err(|error| format!("a snapshot cannot be restored: {error}"))?;
        if restored.state().hash() != hash {
            return Err(format!("the snapshot at {index} restores to another state"));
        }
        if index == self.applied() {
            if self.shadow.state().hash() != hash {
                return Err(format!("the member's state at {index} is not what its log leads to"));
            }
            self.shadow = restored;
        }
        Ok(())
    }

    /// Compares what came back from disk with what was given to it, and from here on believes the disk
    /// about everything that nobody was told of.
    pub fn recover(&mut self, recovered: &Recovered, snapshot_hash: u64) -> Result<(), String> {
        self.unmatched.clear();
        let (index, applied) = (recovered.snapshot.index, self.applied());
        match self.snapshots.get(&index) {
            Some(hash) if *hash == snapshot_hash => {}
            Some(_) => return Err(format!("the snapshot at {index} came back with another state")),
            None => return Err(format!("a snapshot at {index} came back that was never asked for")),
        }
        let last = recovered.entries.last().map_or(index, |entry| entry.index);
        if last < applied {
            return Err(format!("entries up to {applied} were applied, but only those up to {last} came back"));
        }
        for entry in &recovered.entries {
            let same = |recorded: &Recorded| recorded.term == entry.term && recorded.data == entry.data;
            if !self.log.get(&entry.index).is_some_and(same) {
                return Err(format!("entry {} came back as something that was never written", entry.index));
            }
        }
        self.log.split_off(&(last + 1));
        Ok(())
    }
}
