//! One command does no more work than it names and changes: its operations, names and leases, the keys that it writes,
//! and the places of the queues. Only ranges and comparisons of a transaction may walk over keys, each at most over all
//! that there are. The machine counts its work itself (`Applied::work`).
//!
//! From level 1 on two things are limited, in some seeds to a few, in the others as in production. A command that ends
//! leases, or goes on with that, deletes at most [`Limits::lease_keys`] keys. All keys of the leases are deleted at one
//! revision if they are no more; a command leaves keys to `Continue` only if it has deleted that many. Every command
//! grants at most [`Limits::lock_grants`] places. Only the round of a barrier may exceed that: it is granted as a whole.
//!
//! A leader proposes the next `Continue` when it has applied the one before, so that other commands have a turn between
//! them.
//!
//! What it would not notice: work that the machine does not count; the work of one step, which applies all that is
//! committed: nothing but the size of the entries limits how many those are; a `Continue` that a former leader
//! forwards beside the leader's own.
//!
//! [`Limits::lease_keys`]: crate::plan::Limits::lease_keys
//! [`Limits::lock_grants`]: crate::plan::Limits::lock_grants

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Command, Envelope, Event, MemberId, Mode, Op, SharedBytes, Txn, limits};

use super::{Check, Context, Seen};
use crate::model::Outcome;

#[derive(Default)]
pub struct Work {
    /// Every key that ever was: a range may ask for an old revision.
    keys: BTreeSet<SharedBytes>,
    /// Before this command.
    places: u64,
    /// The last `Continue` of each member in its present life: term and index.
    continued: BTreeMap<MemberId, (u64, u64)>,
}

impl Check for Work {
    fn name(&self) -> &'static str {
        "work: one command does no more than it names and changes"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Booted { member } => drop(self.continued.remove(member)),
            // With the limits of production it is a client that proposes it, at any time.
            Seen::Proposed {
                member,
                index,
                term,
                envelope: Envelope { origin: None, command: Command::Continue, .. },
                applied,
            } if context.plan.limits.are_small() => {
                let before = self.continued.insert(*member, (*term, *index));
                if let Some((_, before)) = before.filter(|before| before.0 == *term && before.1 > *applied) {
                    return Err(format!(
                        "member {member} proposes Continue at {index}, before it has applied the one at {before}"
                    ));
                }
            }
            Seen::Applied { index, command: Some(command), outcome } => {
                let commit = if outcome.wrote { context.reference.model.commit(outcome.revision) } else { None };
                let events = commit.map_or(&[][..], |commit| &commit.events[..]);
                self.counted(*index, command, events, context)?;
                let within = is_within_limits(command, events, outcome, context);
                return within.map_err(|what| format!("entry {index}, {command:?}: {what}"));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Work {
    /// Compares the work that the machine counted with what there was to do.
    fn counted(
        &mut self,
        index: u64,
        command: &Command,
        events: &[Event],
        context: &Context<'_>,
    ) -> Result<(), String> {
        self.keys.extend(events.iter().map(|event| event.kv.key.clone()));
        let places = context.reference.model.queues().map(|(_, places)| places.len() as u64).sum();
        // A place may be granted and end by one command.
        let most_places = 2 * (std::mem::replace(&mut self.places, places) + places + events.len() as u64);
        let most = size(command, self.keys.len() as u64) + events.len() as u64 + most_places;
        let work = context.reference.committed(index).map_or(0, |committed| committed.work);
        match work <= most {
            true => Ok(()),
            false => Err(format!("entry {index}, {command:?}: {work} steps of work, {most} at most")),
        }
    }
}

/// Whether a command keeps to the limits of its seed, which count from level 1 on.
fn is_within_limits(
    command: &Command,
    events: &[Event],
    outcome: &Outcome,
    context: &Context<'_>,
) -> Result<(), String> {
    let (model, limits) = (&context.reference.model, context.plan.limits);
    if model.level() == 0 {
        return Ok(());
    }
    let leases = match command {
        Command::LeaseRevoke { lease } => Some(std::slice::from_ref(lease)),
        Command::LeaseExpire { leases, .. } => Some(&leases[..]),
        Command::Continue => Some(&[][..]),
        _ => None,
    };
    if let Some(leases) = leases {
        let (deleted, most) = (events.len(), limits.lease_keys);
        if deleted > most {
            return Err(format!("{deleted} keys are deleted, {most} at most"));
        }
        let are_left = leases.iter().any(|lease| model.ending_since(*lease) == Some(model.applied));
        if are_left && deleted < most {
            return Err(format!("{deleted} keys are deleted, and some are left: {most} are to be deleted at once"));
        }
    }
    let last = outcome.granted.last().and_then(|(key, token)| model.stay(key, *token));
    let last_round = match last.map(|stay| stay.mode) {
        Some(Mode::Barrier(parties)) => parties as usize,
        _ => 1,
    };
    match outcome.granted.len() < limits.lock_grants + last_round {
        true => Ok(()),
        false => Err(format!("{} places are granted, {} at most", outcome.granted.len(), limits.lock_grants)),
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
