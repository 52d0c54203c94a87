//! Who wants to know of which locks, from now on.
//!
//! A lock's history is not kept: what is told are the grants and ends of the commands that this
//! member applies while somebody watches. Whoever comes later, or could not keep up, reads the lock
//! as it is and watches on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tenure_machine::{LockChange, LockEntry, RecentHolder, Revision, View};

use crate::{Output, StreamId, WatchId};

/// Events that a stream may have undelivered before its watches are given up.
const UNDELIVERED: usize = 10_000;

#[derive(Debug)]
pub enum LockWatchRequest {
    /// The lock `name`, or every lock whose name begins with it.
    Create {
        watch: WatchId,
        name: Bytes,
        prefix: bool,
    },
    Cancel {
        watch: WatchId,
    },
    /// So many events have been passed on.
    Drained {
        events: usize,
    },
    Close,
}

#[derive(Debug, Clone)]
pub enum LockNotice {
    /// Every change after `revision` will be told.
    Created {
        watch: WatchId,
        revision: Revision,
        term: u64,
    },
    Events {
        watch: WatchId,
        events: Vec<LockEvent>,
        revision: Revision,
        term: u64,
    },
    /// Its reader did not keep up, or this member did not: the watch is removed.
    FellBehind {
        watch: WatchId,
        revision: Revision,
        term: u64,
    },
}

/// A lock has a new holder, or none.
#[derive(Debug, Clone)]
pub struct LockEvent {
    pub name: Bytes,
    pub revision: Revision,
    /// None = it is free.
    pub holder: Option<Arc<LockEntry>>,
    /// Whose time ended with the same command.
    pub ended: Option<Arc<RecentHolder>>,
}

#[derive(Default)]
pub(crate) struct LockHub {
    streams: BTreeMap<StreamId, LockStream>,
    by_name: BTreeMap<Bytes, BTreeSet<(StreamId, WatchId)>>,
    by_prefix: BTreeMap<(StreamId, WatchId), Bytes>,
}

#[derive(Default)]
struct LockStream {
    watches: BTreeMap<WatchId, Bytes>,
    undelivered: usize,
}

impl LockHub {
    pub(crate) fn take(
        &mut self,
        stream: StreamId,
        request: LockWatchRequest,
        (revision, term): (Revision, u64),
        outputs: &mut Vec<Output>,
    ) {
        match request {
            LockWatchRequest::Create { watch, name, prefix } => {
                self.remove(stream, watch);
                self.streams.entry(stream).or_default().watches.insert(watch, name.clone());
                if prefix {
                    self.by_prefix.insert((stream, watch), name);
                } else {
                    self.by_name.entry(name).or_default().insert((stream, watch));
                }
                let notice = LockNotice::Created { watch, revision, term };
                outputs.push(Output::LockNotice { stream, notice });
            }
            LockWatchRequest::Cancel { watch } => self.remove(stream, watch),
            LockWatchRequest::Drained { events } => {
                if let Some(found) = self.streams.get_mut(&stream) {
                    found.undelivered = found.undelivered.saturating_sub(events);
                }
            }
            LockWatchRequest::Close => {
                let watches =
                    self.streams.get(&stream).map_or(Vec::new(), |found| found.watches.keys().copied().collect());
                for watch in watches {
                    self.remove(stream, watch);
                }
                self.streams.remove(&stream);
            }
        }
    }

    /// The state has jumped, and what happened meanwhile cannot be told: whoever watches has to look anew.
    pub(crate) fn jump(&mut self, revision: Revision, term: u64, outputs: &mut Vec<Output>) {
        self.by_name.clear();
        self.by_prefix.clear();
        for (stream, found) in &mut self.streams {
            for watch in std::mem::take(&mut found.watches).into_keys() {
                let notice = LockNotice::FellBehind { watch, revision, term };
                outputs.push(Output::LockNotice { stream: *stream, notice });
            }
        }
    }

    fn remove(&mut self, stream: StreamId, watch: WatchId) {
        let Some(name) = self.streams.get_mut(&stream).and_then(|found| found.watches.remove(&watch)) else { return };
        self.by_prefix.remove(&(stream, watch));
        if let Some(watchers) = self.by_name.get_mut(&name) {
            watchers.remove(&(stream, watch));
            if watchers.is_empty() {
                self.by_name.remove(&name);
            }
        }
    }

    /// Tells what one command did to locks; `view` is the state after it.
    pub(crate) fn feed(&mut self, changes: &[LockChange], view: &View, term: u64, outputs: &mut Vec<Output>) {
        if self.streams.is_empty() || changes.is_empty() {
            return;
        }
        let revision = view.revision();
        for event in events(changes, view) {
            let exact = self.by_name.get(&event.name).into_iter().flatten().copied();
            let prefixed = self.by_prefix.iter().filter(|(_, prefix)| event.name.starts_with(prefix));
            let watchers: BTreeSet<_> = exact.chain(prefixed.map(|(watcher, _)| *watcher)).collect();
            for (stream, watch) in watchers {
                let Some(found) = self.streams.get_mut(&stream) else { continue };
                found.undelivered += 1;
                let notice = if found.undelivered > UNDELIVERED {
                    self.remove(stream, watch);
                    LockNotice::FellBehind { watch, revision, term }
                } else {
                    LockNotice::Events { watch, events: vec![event.clone()], revision, term }
                };
                outputs.push(Output::LockNotice { stream, notice });
            }
        }
    }
}

/// Grants, and ends that leave a lock free, in the order in which they happened.
fn events(changes: &[LockChange], view: &View) -> Vec<LockEvent> {
    let revision = view.revision();
    let ended = |token: Revision| view.recent_holders().rev().find(|holder| holder.token == token).cloned();
    let mut last_ended: BTreeMap<&[u8], Option<Arc<RecentHolder>>> = BTreeMap::new();
    let mut events = Vec::new();
    for change in changes {
        let name = change.name();
        let event = |holder, ended| LockEvent { name: Bytes::copy_from_slice(name), revision, holder, ended };
        match change {
            LockChange::Ended { token, held: true, .. } => {
                let ended = ended(*token);
                if view.lock_counts(name).1 == 0 {
                    events.push(event(None, ended.clone()));
                }
                last_ended.insert(name, ended);
            }
            LockChange::Ended { .. } => {}
            LockChange::Granted { key, .. } => {
                let holder = view.lock_entry(key).map(|(_, entry)| entry.clone());
                events.push(event(holder, last_ended.get(name).cloned().flatten()));
            }
        }
    }
    events
}
