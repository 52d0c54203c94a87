//! Every watch sees every change of its keys: once, in order, whole, with the previous version.
//!
//! What it would not notice: how late a change is shown; a watch that is cancelled as compacted although it could have been
//! served, where nothing of its keys lay between; filters, fragments and progress at a fixed pace, which the server adds.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use tenure_machine::{Commit, Keys, Revision};
use tenure_replica::{Notice, StreamId, WatchId, WatchRequest};

use super::{Check, Context, Seen};
use crate::model::Model;

#[derive(Default)]
pub struct Watches {
    watches: BTreeMap<(StreamId, WatchId), Watch>,
}

struct Watch {
    keys: Keys,
    /// The first revision that it has not been told of; None until it was created.
    next: Option<Revision>,
    /// It reads history by itself.
    behind: bool,
}

impl Check for Watches {
    fn name(&self) -> &'static str {
        "watch: no gap, no duplicate, in order, whole"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let model = &context.reference.model;
        match seen {
            Seen::Died { cut_off, .. } => self.watches.retain(|(stream, _), _| !cut_off.contains(stream)),
            Seen::WatchAsked { stream, request } => self.asked(*stream, request),
            Seen::Noticed { stream, notice, within, .. } => return self.noticed(*stream, notice, within, model),
            Seen::Ended => return self.nothing_missed(model),
            _ => {}
        }
        Ok(())
    }
}

impl Watches {
    fn asked(&mut self, stream: StreamId, request: &WatchRequest) {
        match request {
            WatchRequest::Create { watch, keys, start } => {
                let created = Watch { keys: keys.clone(), next: *start, behind: false };
                self.watches.insert((stream, *watch), created);
            }
            WatchRequest::Cancel { watch } => {
                self.watches.remove(&(stream, *watch));
            }
            WatchRequest::Resume { watch, .. } => {
                if let Some(watch) = self.watches.get_mut(&(stream, *watch)) {
                    watch.behind = false;
                }
            }
            WatchRequest::Close => self.watches.retain(|(of, _), _| *of != stream),
            WatchRequest::Drained { .. } | WatchRequest::Progress => {}
        }
    }

    fn noticed(
        &mut self,
        stream: StreamId,
        notice: &Notice,
        within: &RangeInclusive<u64>,
        model: &Model,
    ) -> Result<(), String> {
        match notice {
            Notice::Created { watch, revision, .. } => {
                if let Some(watch) = self.watches.get_mut(&(stream, *watch)) {
                    watch.next.get_or_insert(revision + 1);
                }
                Ok(())
            }
            Notice::Commits { watch, commits, revision, .. } => {
                let Some(found) = self.watches.get_mut(&(stream, *watch)) else { return Ok(()) };
                if found.behind || commits.is_empty() {
                    return Err(format!("watch {stream}.{watch} is fed {commits:?} while it reads history"));
                }
                for commit in commits {
                    found.take(commit, -1, model).map_err(|what| format!("watch {stream}.{watch}: {what}"))?;
                }
                let last = commits.last().map_or(0, |commit| commit.revision);
                if last > *revision {
                    return Err(format!("watch {stream}.{watch} sees revision {last} under a header of {revision}"));
                }
                Ok(())
            }
            Notice::Behind { watch, from, view, .. } => {
                let Some(found) = self.watches.get_mut(&(stream, *watch)) else { return Ok(()) };
                let named = |what| format!("watch {stream}.{watch}, reading history from {from}: {what}");
                found.nothing_before(*from, model).map_err(named)?;
                found.behind = true;
                let keys = found.keys.clone();
                for commit in view.commits(*from).map_err(|refusal| named(refusal.to_string()))? {
                    if commit.events.iter().any(|event| keys.contains(&event.kv.key)) {
                        found.take(&commit, view.compacted_revision(), model).map_err(named)?;
                    }
                }
                found.nothing_before(view.revision() + 1, model).map_err(named)
            }
            Notice::Compacted { watch, compacted, .. } => {
                let Some(found) = self.watches.remove(&(stream, *watch)) else { return Ok(()) };
                let was = within.clone().any(|index| model.compacted_at(index) == *compacted);
                // A watch may have been told of less than it had seen: nothing of its keys lay between.
                let next = found.next.unwrap_or(Revision::MAX);
                if was && next < *compacted { Ok(()) } else { Err(format!("watch at {next} is told {notice:?}")) }
            }
            Notice::Progress { revision, .. } => {
                for ((_, id), watch) in
                    self.watches.iter_mut().filter(|((of, _), watch)| *of == stream && !watch.behind)
                {
                    watch.nothing_before(revision + 1, model).map_err(|what| format!("watch {stream}.{id}: {what}"))?;
                }
                Ok(())
            }
        }
    }

    /// At the end everything that was to be seen has been.
    fn nothing_missed(&mut self, model: &Model) -> Result<(), String> {
        for ((stream, id), watch) in &mut self.watches {
            if watch.behind {
                return Err(format!("watch {stream}.{id} never caught up"));
            }
            watch.nothing_before(model.revision + 1, model).map_err(|what| format!("watch {stream}.{id}: {what}"))?;
        }
        Ok(())
    }
}

impl Watch {
    /// The watch is told of a commit; `compacted` is the revision at which versions before are gone.
    fn take(&mut self, commit: &Commit, compacted: Revision, model: &Model) -> Result<(), String> {
        let revision = commit.revision;
        if self.next.is_some_and(|next| revision < next) {
            return Err(format!("revision {revision} again, or too early: next was {:?}", self.next));
        }
        self.nothing_before(revision, model)?;
        let Some(expected) = model.commit(revision) else { return Err(format!("revision {revision} never was")) };
        let same = commit.events.len() == expected.events.len()
            && commit.events.iter().zip(expected.events.iter()).all(|(found, expected)| {
                let prev = found.prev == expected.prev || (revision <= compacted && found.prev.is_none());
                prev && found.kv == expected.kv
            });
        if !same {
            return Err(format!("saw {commit:?}, not {expected:?}"));
        }
        self.next = Some(revision + 1);
        Ok(())
    }

    /// Nothing that concerns the watch lies between what it has seen and `revision`.
    fn nothing_before(&mut self, revision: Revision, model: &Model) -> Result<(), String> {
        let Some(next) = self.next else { return Ok(()) };
        if let Some(missed) = model.commits_in(&self.keys, next, revision - 1).next() {
            return Err(format!("was never told of {missed:?}, next was {next}"));
        }
        self.next = Some(next.max(revision));
        Ok(())
    }
}
