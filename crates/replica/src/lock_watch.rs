//! Who wants to know of which locks.
//!
//! What is told are the grants and ends of the commands that this member applies. The last of them are
//! kept, for those who come back after a break and say which revision they have seen. Whoever comes later
//! than that, or could not keep up, reads the lock as it is and watches on from there. Where so much happens
//! that they would not reach back as far as any break, only a few are kept: they would be as cold as
//! they are useless when they are let go.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use std::sync::Arc;

use bytes::Bytes;
use tenure_machine::{Keys, LockChange, LockEntry, Revision};

use crate::watch::{CLOSED_AT_ONCE, Index};
use crate::{Output, StreamId, WatchId};

/// Events that a stream may have undelivered before its watches are given up.
const UNDELIVERED: usize = 10_000;
/// Changes of locks that are kept for watches that begin in the past: less than a stream may have undelivered.
const KEPT: usize = 8192;
/// No more than these where that many would not reach back as far as this.
const KEPT_IN_A_RUSH: usize = 512;
const SHORTEST_BREAK_MS: u64 = 1000;
/// Events in one notice.
const EVENTS_AT_ONCE: usize = 512;

#[derive(Debug)]
pub enum LockWatchRequest {
    /// The lock `name`, or every lock whose name begins with it.
    Create {
        watch: WatchId,
        name: Bytes,
        prefix: bool,
        /// The first revision to tell of; 0 = the next.
        start: Revision,
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
    /// Every change after `revision` will be told, and before it those from the asked one on.
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
    /// What it asked for is known from `oldest` on: there is no watch.
    Forgotten {
        watch: WatchId,
        oldest: Revision,
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
    pub ended: Option<Arc<LockEntry>>,
}

pub(crate) struct LockHub {
    /// Oldest first; all after the revision `forgotten`.
    kept: VecDeque<Kept>,
    forgotten: Revision,
    /// Nothing that happened after this time is forgotten.
    forgotten_ms: u64,
    streams: BTreeMap<StreamId, LockStream>,
    index: Index,
    /// What is left of closed streams, see [`crate::watch::Hub`].
    closing: VecDeque<(StreamId, btree_map::IntoIter<WatchId, Watched>)>,
}

struct Kept {
    revision: Revision,
    /// When it was applied here.
    at_ms: u64,
    change: LockChange,
}

#[derive(Default)]
struct LockStream {
    watches: BTreeMap<WatchId, Watched>,
    undelivered: usize,
}

struct Watched {
    names: Keys,
    start: Revision,
}

impl LockHub {
    /// Of a member that has not seen what came before this revision.
    pub(crate) fn new(revision: Revision, now_ms: u64) -> LockHub {
        let (streams, index, closing) = Default::default();
        // Nothing happens at the first one.
        let forgotten = if revision == 1 { 0 } else { revision };
        LockHub { kept: VecDeque::new(), forgotten, forgotten_ms: now_ms, streams, index, closing }
    }

    pub(crate) fn take(
        &mut self,
        stream: StreamId,
        request: LockWatchRequest,
        (revision, term): (Revision, u64),
        outputs: &mut Vec<Output>,
    ) {
        match request {
            LockWatchRequest::Create { watch, start, .. } if start != 0 && start <= self.forgotten => {
                let notice = LockNotice::Forgotten { watch, oldest: self.forgotten + 1, revision, term };
                outputs.push(Output::LockNotice { stream, notice });
            }
            LockWatchRequest::Create { watch, name, prefix, start } => {
                self.finish_closing(stream);
                self.remove(stream, watch);
                let notice = LockNotice::Created { watch, revision, term };
                outputs.push(Output::LockNotice { stream, notice });
                let past = self.past(&name, prefix, start);
                let found = self.streams.entry(stream).or_default();
                found.undelivered += past.len();
                let names = if prefix { Keys::prefix(name) } else { Keys::One(name) };
                self.index.insert(&names, (stream, watch));
                found.watches.insert(watch, Watched { names, start });
                for events in past.chunks(EVENTS_AT_ONCE) {
                    let notice = LockNotice::Events { watch, events: events.to_vec(), revision, term };
                    outputs.push(Output::LockNotice { stream, notice });
                }
            }
            LockWatchRequest::Cancel { watch } => self.remove(stream, watch),
            LockWatchRequest::Drained { events } => {
                if let Some(found) = self.streams.get_mut(&stream) {
                    found.undelivered = found.undelivered.saturating_sub(events);
                }
            }
            LockWatchRequest::Close => {
                if let Some(closed) = self.streams.remove(&stream) {
                    self.closing.push_back((stream, closed.watches.into_iter()));
                }
            }
        }
    }

    /// Whether the next step has something to do even if nothing comes in.
    pub(crate) fn has_more(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Ends a step.
    pub(crate) fn close_some(&mut self) {
        let mut budget = CLOSED_AT_ONCE;
        while let Some((stream, mut watches)) = self.closing.pop_front() {
            for (watch, Watched { names, .. }) in watches.by_ref().take(budget) {
                budget -= 1;
                self.index.remove(&names, (stream, watch));
            }
            if watches.len() > 0 {
                return self.closing.push_front((stream, watches));
            }
        }
    }

    fn finish_closing(&mut self, stream: StreamId) {
        while let Some(position) = self.closing.iter().position(|(closing, _)| *closing == stream)
            && let Some((_, watches)) = self.closing.remove(position)
        {
            for (watch, Watched { names, .. }) in watches {
                self.index.remove(&names, (stream, watch));
            }
        }
    }

    /// The state has jumped, and what happened meanwhile cannot be told: whoever watches has to look anew.
    pub(crate) fn jump(&mut self, (revision, term): (Revision, u64), now_ms: u64, outputs: &mut Vec<Output>) {
        self.kept.clear();
        (self.forgotten, self.forgotten_ms) = (revision, now_ms);
        self.index = Index::default();
        self.closing.clear();
        for (stream, found) in &mut self.streams {
            for watch in std::mem::take(&mut found.watches).into_keys() {
                let notice = LockNotice::FellBehind { watch, revision, term };
                outputs.push(Output::LockNotice { stream: *stream, notice });
            }
        }
    }

    fn remove(&mut self, stream: StreamId, watch: WatchId) {
        let watched = self.streams.get_mut(&stream).and_then(|found| found.watches.remove(&watch));
        if let Some(Watched { names, .. }) = watched {
            self.index.remove(&names, (stream, watch));
        }
    }

    /// What happened from the revision `start` on, if it is not to come.
    fn past(&self, name: &[u8], prefix: bool, start: Revision) -> Vec<LockEvent> {
        if start == 0 {
            return Vec::new();
        }
        let first = self.kept.partition_point(|kept| kept.revision < start);
        let is_meant = |change: &LockChange| match prefix {
            true => change.name().starts_with(name),
            false => change.name() == name,
        };
        let meant: Vec<_> = self.kept.range(first..).filter(|kept| is_meant(&kept.change)).collect();
        let commands = meant.chunk_by(|a, b| a.revision == b.revision);
        commands.flat_map(|command| events(command[0].revision, command.iter().map(|kept| &kept.change))).collect()
    }

    fn keep(&mut self, change: LockChange, revision: Revision, at_ms: u64) {
        self.kept.push_back(Kept { revision, at_ms, change });
        let reach_ms = at_ms.saturating_sub(self.forgotten_ms);
        let is_rush = reach_ms * (KEPT as u64) < SHORTEST_BREAK_MS * self.kept.len() as u64;
        let most = if is_rush { KEPT_IN_A_RUSH } else { KEPT };
        while self.kept.len() > most
            && let Some(forgotten) = self.kept.pop_front()
        {
            (self.forgotten, self.forgotten_ms) = (forgotten.revision, forgotten.at_ms);
        }
    }

    /// Tells what one command did to locks.
    pub(crate) fn feed(
        &mut self,
        changes: &[LockChange],
        (revision, term): (Revision, u64),
        now_ms: u64,
        outputs: &mut Vec<Output>,
    ) {
        for change in changes.iter().filter(|change| change.entry().granted_wall_ms.is_some()) {
            self.keep(change.clone(), revision, now_ms);
        }
        if self.index.is_empty() {
            return;
        }
        let mut watchers = Vec::new();
        for event in events(revision, changes) {
            self.index.find(&event.name, &mut watchers);
            watchers.sort_unstable();
            for (stream, watch) in watchers.drain(..) {
                let Some(found) = self.streams.get_mut(&stream) else { continue };
                if found.watches.get(&watch).is_some_and(|watched| watched.start > revision) {
                    continue;
                }
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

/// Of one command: grants, and ends that leave a lock free, in the order in which they happened.
fn events<'a>(
    revision: Revision,
    changes: impl IntoIterator<Item = &'a LockChange, IntoIter: Clone>,
) -> Vec<LockEvent> {
    let changes = changes.into_iter();
    let grants = changes.clone().filter(|change| matches!(change, LockChange::Granted(_)));
    let granted_anew: BTreeSet<&[u8]> = grants.map(|change| change.name()).collect();
    let mut last_ended: BTreeMap<&[u8], &Arc<LockEntry>> = BTreeMap::new();
    let mut events = Vec::new();
    for change in changes.clone() {
        let name = change.name();
        let event = |holder, ended| LockEvent { name: Bytes::copy_from_slice(name), revision, holder, ended };
        match change {
            LockChange::Ended { entry, frees, .. } if entry.granted_wall_ms.is_some() => {
                if *frees && !granted_anew.contains(name) {
                    events.push(event(None, Some(entry.clone())));
                }
                last_ended.insert(name, entry);
            }
            LockChange::Ended { .. } => {}
            LockChange::Granted(entry) => {
                events.push(event(Some(entry.clone()), last_ended.get(name).copied().cloned()));
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use tenure_machine::{Mode, SharedBytes};

    use super::*;

    fn granted(revision: Revision) -> LockChange {
        LockChange::Granted(Arc::new(LockEntry {
            key: SharedBytes::from(&b"a/1"[..]),
            token: revision,
            lease: 1,
            mode: Mode::Exclusive,
            last_joiner: None,
            owner: SharedBytes::default(),
            holder: SharedBytes::default(),
            metadata: SharedBytes::default(),
            together: Arc::default(),
            joined_wall_ms: 0,
            granted_wall_ms: Some(0),
            slot: 0,
        }))
    }

    /// A change of each of these revisions, so many in a millisecond.
    fn feed(hub: &mut LockHub, revisions: std::ops::Range<Revision>, in_a_ms: i64) {
        for revision in revisions {
            hub.feed(&[granted(revision)], (revision, 1), (revision / in_a_ms) as u64, &mut Vec::new());
        }
    }

    #[test]
    fn what_happened_is_known_back_to_where_it_was_forgotten() {
        let mut hub = LockHub::new(1, 0);
        feed(&mut hub, 2..20_002, 1);
        assert_eq!((hub.kept.len(), hub.forgotten), (KEPT, 20_001 - KEPT as Revision));
        assert_eq!(hub.past(b"a", false, hub.forgotten + 1).len(), KEPT);
        let mut outputs = Vec::new();
        let (name, start) = (Bytes::from_static(b"a"), hub.forgotten);
        hub.take(7, LockWatchRequest::Create { watch: 1, name, prefix: false, start }, (20_001, 1), &mut outputs);
        let [Output::LockNotice { notice: LockNotice::Forgotten { oldest, .. }, .. }] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        assert_eq!(*oldest, start + 1);
    }

    #[test]
    fn of_a_rush_little_is_kept_and_of_what_comes_after_it_more_again() {
        let mut hub = LockHub::new(1, 0);
        feed(&mut hub, 100..20_000, 100);
        assert_eq!((hub.kept.len(), hub.forgotten), (KEPT_IN_A_RUSH, 19_999 - KEPT_IN_A_RUSH as Revision));
        assert_eq!(hub.past(b"a", false, hub.forgotten + 1).len(), KEPT_IN_A_RUSH);
        feed(&mut hub, 20_000..40_000, 1);
        assert_eq!(hub.kept.len(), KEPT);
    }

    #[test]
    fn a_crowd_after_a_quiet_time_is_kept() {
        let mut hub = LockHub::new(1, 0);
        for revision in 2..5002 {
            hub.feed(&[granted(revision)], (revision, 1), 60_000, &mut Vec::new());
        }
        assert_eq!((hub.kept.len(), hub.forgotten), (5000, 0), "all since the beginning is known");
    }
}
