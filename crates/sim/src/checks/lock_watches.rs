//! A lock watch is told of every grant and of every end that leaves its lock free: in order, once, with no gap.
//!
//! What it would not notice: a wrong owner, holder or metadata in an event; a wrong order of events of one revision; a
//! place that is granted and ends by the same command; a watch that is given up for no reason.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::Revision;
use tenure_replica::{LockEvent, LockNotice, LockWatchRequest, StreamId, WatchId};

use super::turns::Turns;
use super::{Check, Context, Seen};

#[derive(Default)]
pub struct LockWatches {
    turns: Turns,
    watches: BTreeMap<(StreamId, WatchId), Watch>,
}

struct Watch {
    name: Vec<u8>,
    prefix: bool,
    /// The first revision that it has not been told all of; None until it was created.
    next: Option<Revision>,
    /// What it was told of the revision `next`.
    told: BTreeSet<(Vec<u8>, Option<Revision>)>,
}

impl Check for LockWatches {
    fn name(&self) -> &'static str {
        "lock watch: no gap, no duplicate, in order"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Applied { outcome, .. } if outcome.wrote => {
                self.turns.applied(outcome.revision, &context.reference.model);
            }
            Seen::Died { cut_off, .. } => self.watches.retain(|(stream, _), _| !cut_off.contains(stream)),
            Seen::LockWatchAsked { stream, request } => self.asked(*stream, request),
            Seen::LockNoticed { stream, notice } => return self.noticed(*stream, notice),
            Seen::Ended => {
                for ((stream, id), watch) in &mut self.watches {
                    let named = |what| format!("lock watch {stream}.{id}: {what}");
                    watch.upto(context.reference.model.revision + 1, &self.turns).map_err(named)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl LockWatches {
    fn asked(&mut self, stream: StreamId, request: &LockWatchRequest) {
        match request {
            LockWatchRequest::Create { watch, name, prefix, start } => {
                let next = (*start != 0).then_some(*start);
                let created = Watch { name: name.to_vec(), prefix: *prefix, next, told: BTreeSet::new() };
                self.watches.insert((stream, *watch), created);
            }
            LockWatchRequest::Cancel { watch } => drop(self.watches.remove(&(stream, *watch))),
            LockWatchRequest::Close => self.watches.retain(|(of, _), _| *of != stream),
            LockWatchRequest::Drained { .. } => {}
        }
    }

    fn noticed(&mut self, stream: StreamId, notice: &LockNotice) -> Result<(), String> {
        match notice {
            LockNotice::Created { watch, revision, .. } => {
                if let Some(watch) = self.watches.get_mut(&(stream, *watch)) {
                    watch.next.get_or_insert(revision + 1);
                }
            }
            LockNotice::Events { watch, events, revision, .. } => {
                let Some(found) = self.watches.get_mut(&(stream, *watch)) else { return Ok(()) };
                for event in events {
                    let taken = found.take(event, *revision, &self.turns);
                    taken.map_err(|what| format!("lock watch {stream}.{watch}: {what}"))?;
                }
            }
            LockNotice::Forgotten { watch, oldest, .. } => {
                if let Some(watch) = self.watches.remove(&(stream, *watch))
                    && watch.next.is_none_or(|next| next >= *oldest)
                {
                    return Err(format!("{notice:?}, and it asked for {:?}", watch.next));
                }
            }
            LockNotice::FellBehind { watch, .. } => drop(self.watches.remove(&(stream, *watch))),
        }
        Ok(())
    }
}

impl Watch {
    fn take(&mut self, event: &LockEvent, header: Revision, turns: &Turns) -> Result<(), String> {
        let next = self.next.ok_or("it is told something before it was created")?;
        if event.revision < next || event.revision > header {
            return Err(format!("{event:?} under a header of {header}, next was {next}"));
        }
        self.upto(event.revision, turns)?;
        let token = event.holder.as_ref().map(|entry| entry.token);
        if !self.told.insert((event.name.to_vec(), token)) {
            return Err(format!("{event:?} for the second time"));
        }
        Ok(())
    }

    /// The watch has been told of everything before this revision.
    fn upto(&mut self, revision: Revision, turns: &Turns) -> Result<(), String> {
        let Some(next) = self.next.filter(|next| *next < revision) else { return Ok(()) };
        let mut expected = BTreeSet::new();
        let is_mine = |name: &[u8]| if self.prefix { name.starts_with(&self.name) } else { name == self.name };
        for turn in turns.between(next, revision).iter().filter(|turn| is_mine(&turn.name)) {
            expected.extend(turn.granted.iter().map(|(token, _)| (turn.revision, turn.name.clone(), Some(*token))));
            if turn.is_free && !turn.ended.is_empty() {
                expected.insert((turn.revision, turn.name.clone(), None));
            }
        }
        let told = std::mem::take(&mut self.told);
        let told: BTreeSet<_> = told.into_iter().map(|(name, token)| (next, name, token)).collect();
        if told != expected {
            return Err(format!("up to revision {revision} it was told {told:?}, not {expected:?}"));
        }
        self.next = Some(revision);
        Ok(())
    }
}
