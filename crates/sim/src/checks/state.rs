//! The whole state, from two sides: its hash against a second machine that took the same log and never died, and
//! everything that can be read of it against the model.
//!
//! What it would not notice: a difference that appears and is gone between two looks (one advance of 12 is hashed, one of
//! 72 is compared in full); fields that neither the hash nor the comparison covers, such as recent holders and alarms in the
//! comparison; a mistake that the machine makes everywhere alike and that the model shares.

use std::collections::BTreeMap;

use tenure_machine::{Keys, MemberId, RangeQuery, View};
use tenure_replica::Answered;

use super::{Check, Context, Seen};
use crate::model::Model;

/// The hash is taken after one of so many advances of a member, and after the first one of each life; all that can
/// be read is compared after one of so many again.
const EVERY: u64 = 12;
const IN_FULL: u64 = 6;

#[derive(Default)]
pub struct State {
    advances: BTreeMap<MemberId, u64>,
    due: Option<MemberId>,
}

impl Check for State {
    fn name(&self) -> &'static str {
        "K4/K5: the state is what the log leads to"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Booted { member } => drop(self.advances.insert(*member, 0)),
            Seen::Advanced { member, from, to } if from < to => {
                let advances = self.advances.entry(*member).or_default();
                // Whoever leaps has installed a snapshot.
                let is_due = advances.is_multiple_of(EVERY) || to - from > 8;
                self.due = is_due.then_some(*member);
                *advances += 1;
            }
            Seen::Stepped { member, replica } if self.due == Some(*member) => {
                self.due = None;
                let view = replica.machine().state();
                context.reference.is_state(view.applied_index(), view.hash())?;
                let is_full = self.advances.get(member).is_some_and(|count| (count / EVERY).is_multiple_of(IN_FULL));
                if is_full && view.applied_index() == context.reference.applied() {
                    return compare(view, context);
                }
            }
            Seen::Answered { answer, .. } => {
                if let Ok(Answered::View(view)) = &answer.result {
                    context.reference.is_state(view.applied_index(), view.hash())?;
                    if view.applied_index() == context.reference.applied() {
                        return compare(view, context);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn compare(view: &View, context: &Context<'_>) -> Result<(), String> {
    let reference = context.reference;
    let index = view.applied_index();
    let model = &reference.model;
    let (revision, compacted) = (view.revision(), view.compacted_revision());
    if (revision, compacted) != (model.revision, model.compacted()) {
        return Err(format!("at entry {index}: revision {revision}, compacted {compacted}"));
    }
    let oldest = compacted.max(1);
    for at in [0, revision, oldest, oldest + (revision - oldest) / 2] {
        let query = RangeQuery { revision: at, ..RangeQuery::new(Keys::all()) };
        let expected = Ok(model.range(&query, if at > 0 { at } else { revision }));
        let found = view.range(&query);
        if found != expected {
            return Err(format!("at entry {index}, revision {at}: keys are {found:?}, not {expected:?}"));
        }
    }
    compare_history(view, model)?;
    compare_leases(view, model)?;
    compare_members(view, model)?;
    compare_queues(view, model)
}

fn compare_history(view: &View, model: &Model) -> Result<(), String> {
    let compacted = view.compacted_revision();
    let from = compacted.max(2);
    let mut next = from;
    for commit in view.commits(from).map_err(|refusal| refusal.to_string())? {
        let Some(expected) = model.commit(next) else { return Err(format!("a commit {next} that never was")) };
        let same_events = || {
            let mut events = commit.events.iter().zip(expected.events.iter());
            // At the compacted revision the versions before are gone.
            commit.events.len() == expected.events.len()
                && events.all(|(found, expected)| {
                    let prev = if next == compacted { &None } else { &expected.prev };
                    (&found.kv, &found.prev) == (&expected.kv, prev)
                })
        };
        if commit.revision != next || !same_events() {
            return Err(format!("history at revision {next} holds {commit:?}, not {expected:?}"));
        }
        next += 1;
    }
    if next != view.revision().max(from - 1) + 1 {
        return Err(format!("history ends before revision {next}, the store is at {}", view.revision()));
    }
    Ok(())
}

fn compare_leases(view: &View, model: &Model) -> Result<(), String> {
    let found: Vec<_> = view.leases().map(|lease| (lease.lease, lease.ttl_ms, lease.keys)).collect();
    let expected: Vec<_> = model
        .leases()
        .map(|(lease, ttl_ms)| (lease, ttl_ms, model.keys_of(lease).map(|kv| kv.key.clone()).collect::<Vec<_>>()))
        .collect();
    if found != expected {
        return Err(format!("leases are {found:?}, not {expected:?}"));
    }
    let found: Vec<_> = view.leases_left_ms().collect();
    let expected: Vec<_> = model.leases_left_ms().collect();
    if found == expected { Ok(()) } else { Err(format!("of leases {found:?} is left, not {expected:?}")) }
}

fn compare_members(view: &View, model: &Model) -> Result<(), String> {
    let (found, expected) = (view.members(), model.members());
    if found == expected { Ok(()) } else { Err(format!("members are {found:?}, not {expected:?}")) }
}

fn compare_queues(view: &View, model: &Model) -> Result<(), String> {
    let names: Vec<&[u8]> = view.lock_names(b"").collect();
    let expected: Vec<&[u8]> = model.queues().map(|(name, _)| name).collect();
    if names != expected {
        return Err(format!("queues are {names:?}, not {expected:?}"));
    }
    for (name, places) in model.queues() {
        let granted = Model::granted(places);
        let expected: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(at, place)| {
                let owner = &place.owner[..];
                (&place.key[..], place.token, place.lease, place.mode, owner, place.last_joiner, at < granted)
            })
            .collect();
        let found: Vec<_> = view
            .lock_queue(name)
            .map(|e| {
                let is_granted = e.granted_wall_ms.is_some();
                (&e.key[..], e.token, e.lease, e.mode, &e.owner[..], e.last_joiner, is_granted)
            })
            .collect();
        if found != expected {
            return Err(format!("the queue {name:?} is {found:?}, not {expected:?}"));
        }
    }
    Ok(())
}
