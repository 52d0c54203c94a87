//! One command does no more work than it names and changes: its operations, names and leases, the keys that it writes,
//! and the places of the queues. Only ranges and comparisons of a transaction may walk over keys, each at most over all
//! that there are. The machine counts its work itself (`Applied::work`).
//!
//! What it would not notice: work that the machine does not count; the limit of keys that one command deletes when a lease
//! ends, because no lease in this world has that many keys; the work of one step, which applies all that is committed.

use std::collections::BTreeSet;

use tenure_machine::{Command, Op, SharedBytes, Txn, limits};

use super::{Check, Context, Seen};

#[derive(Default)]
pub struct Work {
    /// Every key that ever was: a range may ask for an old revision.
    keys: BTreeSet<SharedBytes>,
    /// Before this command.
    places: u64,
}

impl Check for Work {
    fn name(&self) -> &'static str {
        "work: one command does no more than it names and changes"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let Seen::Applied { index, command: Some(command), outcome } = seen else { return Ok(()) };
        let model = &context.reference.model;
        let commit = if outcome.wrote { model.commit(outcome.revision) } else { None };
        let events = commit.map_or(&[][..], |commit| &commit.events[..]);
        self.keys.extend(events.iter().map(|event| event.kv.key.clone()));
        let places = model.queues().map(|(_, places)| places.len() as u64).sum();
        // A place may be granted and end by one command.
        let most_places = 2 * (std::mem::replace(&mut self.places, places) + places + events.len() as u64);
        let most = size(command, self.keys.len() as u64) + events.len() as u64 + most_places;
        let work = context.reference.committed(*index).map_or(0, |committed| committed.work);
        match work <= most {
            true => Ok(()),
            false => Err(format!("entry {index}, {command:?}: {work} steps of work, {most} at most")),
        }
    }
}

/// What a command names, and what it may walk over where there are this many keys.
fn size(command: &Command, keys: u64) -> u64 {
    match command {
        Command::Txn(txn) => txn_size(txn, keys),
        Command::LeaseExpire { leases, .. } => leases.len() as u64,
        Command::Lock(lock) if !lock.owner.is_empty() => (1 + limits::DEADLOCK_SEARCH) as u64,
        _ => 1,
    }
}

fn txn_size(txn: &Txn, keys: u64) -> u64 {
    let ops = txn.success.iter().chain(&txn.failure).map(|op| match op {
        Op::Txn(nested) => txn_size(nested, keys),
        Op::Range(_) => keys,
        Op::Put(_) | Op::Delete(_) => 0,
    });
    1 + txn.compare.len() as u64 * keys + ops.sum::<u64>()
}
