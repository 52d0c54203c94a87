//! The watch hub: who is to be told of what.
//!
//! A watch is *synced* (fed as commands are applied), or it *reads* history out of a view on
//! another thread at its own pace, or it is *held* because its stream does not keep up. Nothing is
//! buffered for a watch that is not synced: a revision is all that is kept of it, and the view it
//! reads from is shared with everybody. So a slow reader costs the same as an idle one.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};

use bytes::Bytes;
use tenure_machine::{Commit, Keys, Machine, Revision};

use crate::spans::Spans;
use crate::{Notice, Output, StreamId, WatchId, WatchRequest};

pub(crate) type Place = (StreamId, WatchId);

/// Watches that one step feeds, about. A commit that concerns more is given to the rest in the steps that follow.
const FED_AT_ONCE: usize = 8192;
/// What may be left to the steps that follow. Where more commits come than can be fed so, steps take longer instead.
const MOST_UNFED: usize = 1 << 20;
/// Watches of closed streams that one step takes out of the index.
pub(crate) const CLOSED_AT_ONCE: usize = 4096;

pub(crate) struct Hub {
    streams: BTreeMap<StreamId, Stream>,
    synced: Index,
    /// What this step has fed so far; one notice for each watch when the step ends.
    fed: BTreeMap<Place, Feed>,
    /// Commits that have not been fed yet to these watches, oldest first.
    unfed: VecDeque<(Commit, std::vec::IntoIter<Place>)>,
    /// How many watches that are, each counted once for every commit.
    unfed_count: usize,
    /// How many watches this step may still feed.
    budget: usize,
    progress_wanted: BTreeSet<StreamId>,
    /// What is left of closed streams. Their watches are told nothing any more, but stand in the index: a stream may
    /// have so many that to take them out is the work of several steps.
    closing: VecDeque<(StreamId, btree_map::IntoIter<WatchId, Watch>)>,
    buffer_bytes: usize,
    watches: u64,
}

#[derive(Default)]
struct Stream {
    watches: BTreeMap<WatchId, Watch>,
    /// Bytes given to the stream's reader and not yet reported as passed on.
    charged: usize,
    /// Those of the watches that wait until the stream has passed on more.
    held: BTreeSet<WatchId>,
}

struct Watch {
    keys: Keys,
    /// The first revision that it has not been told of.
    next: Revision,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Synced,
    Reading,
    Held,
}

#[derive(Default)]
struct Feed {
    commits: Vec<Commit>,
    bytes: usize,
}

impl Hub {
    pub(crate) fn new(buffer_bytes: usize) -> Hub {
        Hub {
            streams: BTreeMap::new(),
            synced: Index::default(),
            fed: BTreeMap::new(),
            unfed: VecDeque::new(),
            unfed_count: 0,
            budget: FED_AT_ONCE,
            progress_wanted: BTreeSet::new(),
            closing: VecDeque::new(),
            buffer_bytes,
            watches: 0,
        }
    }

    pub(crate) fn watches(&self) -> u64 {
        self.watches
    }

    pub(crate) fn most_charged(&self) -> usize {
        self.streams.values().map(|stream| stream.charged).max().unwrap_or(0)
    }

    pub(crate) fn take(
        &mut self,
        stream: StreamId,
        request: WatchRequest,
        machine: &Machine,
        term: u64,
        outputs: &mut Vec<Output>,
    ) {
        match request {
            WatchRequest::Create { watch, keys, start } => {
                let revision = machine.state().revision();
                let next = start.unwrap_or(revision + 1);
                self.finish_closing(stream);
                self.feed_all();
                // What this step has fed belongs before a watch that is created after it.
                self.flush_stream(stream, machine, term, outputs);
                self.remove((stream, watch));
                outputs.push(Output::Notice { stream, notice: Notice::Created { watch, revision, term } });
                let watches = &mut self.streams.entry(stream).or_default().watches;
                watches.insert(watch, Watch { keys, next, state: State::Held });
                self.watches += 1;
                self.admit((stream, watch), machine, term, outputs);
            }
            WatchRequest::Resume { watch, from } => {
                let Some(found) = self.streams.get_mut(&stream).and_then(|s| s.watches.get_mut(&watch)) else { return };
                if found.state == State::Reading {
                    found.next = from;
                    found.state = State::Held;
                    self.admit((stream, watch), machine, term, outputs);
                }
            }
            WatchRequest::Cancel { watch } => self.remove((stream, watch)),
            WatchRequest::Drained { bytes } => {
                let Some(found) = self.streams.get_mut(&stream) else { return };
                found.charged = found.charged.saturating_sub(bytes);
                if found.charged <= self.buffer_bytes / 2 {
                    for watch in std::mem::take(&mut found.held) {
                        self.admit((stream, watch), machine, term, outputs);
                    }
                }
            }
            WatchRequest::Progress => {
                self.progress_wanted.insert(stream);
            }
            WatchRequest::Close => {
                let Some(closed) = self.streams.remove(&stream) else { return };
                self.progress_wanted.remove(&stream);
                self.watches -= closed.watches.len() as u64;
                self.take_fed(stream);
                self.closing.push_back((stream, closed.watches.into_iter()));
            }
        }
    }

    /// Whether the next step has something to do even if nothing comes in.
    pub(crate) fn has_more(&self) -> bool {
        !self.closing.is_empty() || !self.unfed.is_empty()
    }

    fn close_some(&mut self) {
        let mut budget = CLOSED_AT_ONCE;
        while let Some((stream, mut watches)) = self.closing.pop_front() {
            for (watch, Watch { keys, state, .. }) in watches.by_ref().take(budget) {
                budget -= 1;
                if state == State::Synced {
                    self.synced.remove(&keys, (stream, watch));
                }
            }
            if watches.len() > 0 {
                return self.closing.push_front((stream, watches));
            }
        }
    }

    /// A stream of this number begins anew: its old watches must not be taken for new ones.
    fn finish_closing(&mut self, stream: StreamId) {
        while let Some(position) = self.closing.iter().position(|(closing, _)| *closing == stream)
            && let Some((_, watches)) = self.closing.remove(position)
        {
            for (watch, Watch { keys, .. }) in watches {
                self.synced.remove(&keys, (stream, watch));
            }
        }
    }

    /// Feeds a commit, just applied, to every synced watch that it concerns.
    pub(crate) fn feed(&mut self, commit: &Commit) {
        if self.synced.is_empty() {
            return;
        }
        let mut places: Vec<Place> = Vec::new();
        for event in commit.events.iter() {
            self.synced.find(&event.kv.key, &mut places);
        }
        if commit.events.len() > 1 {
            places.sort_unstable();
            places.dedup();
        }
        if places.is_empty() {
            return;
        }
        self.unfed_count += places.len();
        self.unfed.push_back((commit.clone(), places.into_iter()));
        self.feed_some();
        while self.unfed_count > MOST_UNFED {
            self.budget = FED_AT_ONCE;
            self.feed_some();
        }
    }

    /// Feeds as many watches as this step may.
    fn feed_some(&mut self) {
        while self.budget > 0
            && let Some((commit, mut places)) = self.unfed.pop_front()
        {
            let bytes = commit_bytes(&commit);
            for place in places.by_ref().take(self.budget) {
                self.budget -= 1;
                self.unfed_count -= 1;
                self.feed_one(&commit, bytes, place);
            }
            if places.len() > 0 {
                self.unfed.push_front((commit, places));
            }
        }
    }

    fn feed_all(&mut self) {
        while !self.unfed.is_empty() {
            self.budget = FED_AT_ONCE;
            self.feed_some();
        }
    }

    fn feed_one(&mut self, commit: &Commit, bytes: usize, place: Place) {
        let Some(stream) = self.streams.get_mut(&place.0) else { return };
        let Some(watch) = stream.watches.get_mut(&place.1) else { return };
        // It may have fallen behind, or have been made anew, since it was found.
        if commit.revision < watch.next || watch.state != State::Synced {
            return;
        }
        if stream.charged > self.buffer_bytes {
            watch.next = commit.revision;
            watch.state = State::Held;
            stream.held.insert(place.1);
            self.synced.remove(&watch.keys, place);
            return;
        }
        stream.charged += bytes;
        watch.next = commit.revision + 1;
        let feed = self.fed.entry(place).or_default();
        feed.commits.push(commit.clone());
        feed.bytes += bytes;
    }

    /// The state has jumped from revision `before` to a later one: those who were fed read on from history.
    pub(crate) fn jump(&mut self, before: Revision, machine: &Machine, term: u64, outputs: &mut Vec<Output>) {
        self.feed_all();
        for ((stream, watch), feed) in std::mem::take(&mut self.fed) {
            outputs.push(commits_notice(stream, watch, feed, before, term));
        }
        self.synced = Index::default();
        self.closing.clear();
        let mut places = Vec::new();
        for (stream, Stream { watches, .. }) in &mut self.streams {
            for (watch, found) in watches.iter_mut().filter(|(_, found)| found.state == State::Synced) {
                found.next = found.next.max(before + 1);
                found.state = State::Held;
                places.push((*stream, *watch));
            }
        }
        for place in places {
            self.admit(place, machine, term, outputs);
        }
    }

    /// Gives out what was fed so far. The rest of a step may tell the same watches something that comes after it.
    pub(crate) fn flush_fed(&mut self, machine: &Machine, term: u64, outputs: &mut Vec<Output>) {
        let revision = machine.state().revision();
        for ((stream, watch), feed) in std::mem::take(&mut self.fed) {
            outputs.push(commits_notice(stream, watch, feed, revision, term));
        }
    }

    /// Ends a step: gives out what was fed, then answers those who asked how far they are.
    pub(crate) fn flush(&mut self, machine: &Machine, term: u64, outputs: &mut Vec<Output>) {
        self.feed_some();
        self.flush_fed(machine, term, outputs);
        self.budget = FED_AT_ONCE;
        self.close_some();
        if !self.unfed.is_empty() {
            return;
        }
        let revision = machine.state().revision();
        let streams = &self.streams;
        self.progress_wanted.retain(|stream| {
            let all_synced = match streams.get(stream) {
                Some(found) => found.watches.values().all(|watch| watch.state == State::Synced),
                None => true,
            };
            if all_synced {
                outputs.push(Output::Notice { stream: *stream, notice: Notice::Progress { revision, term } });
            }
            !all_synced
        });
    }

    fn flush_stream(&mut self, stream: StreamId, machine: &Machine, term: u64, outputs: &mut Vec<Output>) {
        let revision = machine.state().revision();
        for ((stream, watch), feed) in self.take_fed(stream) {
            outputs.push(commits_notice(stream, watch, feed, revision, term));
        }
    }

    /// What this step has fed to one stream.
    fn take_fed(&mut self, stream: StreamId) -> BTreeMap<Place, Feed> {
        let mut taken = self.fed.split_off(&(stream, WatchId::MIN));
        if let Some(next) = stream.checked_add(1) {
            self.fed.append(&mut taken.split_off(&(next, WatchId::MIN)));
        }
        taken
    }

    /// Lets a held watch go on: fed if it has seen everything, reading from a view otherwise.
    fn admit(&mut self, place: Place, machine: &Machine, term: u64, outputs: &mut Vec<Output>) {
        let (stream, watch) = place;
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let over = found.charged > self.buffer_bytes;
        let Some(entry) = found.watches.get_mut(&watch) else { return };
        let state = machine.state();
        let revision = state.revision();
        if entry.next > revision {
            entry.state = State::Synced;
            self.synced.insert(&entry.keys, place);
            return;
        }
        #[cfg(feature = "planted")]
        if tenure_machine::planted::is(tenure_machine::planted::Bug::SkipCompacted) {
            entry.next = entry.next.max(state.compacted_revision());
        }
        if entry.next < state.compacted_revision() {
            let compacted = state.compacted_revision();
            let notice = Notice::Compacted { watch, compacted, revision, term };
            self.remove(place);
            outputs.push(Output::Notice { stream, notice });
            return;
        }
        if over {
            found.held.insert(watch);
            return;
        }
        entry.state = State::Reading;
        let notice = Notice::Behind { watch, from: entry.next, view: Box::new(machine.view()), term };
        outputs.push(Output::Notice { stream, notice });
    }

    fn remove(&mut self, place: Place) {
        let Some(stream) = self.streams.get_mut(&place.0) else { return };
        let Some(found) = stream.watches.remove(&place.1) else { return };
        self.watches -= 1;
        stream.held.remove(&place.1);
        if let Some(feed) = self.fed.remove(&place) {
            stream.charged -= feed.bytes;
        }
        if found.state == State::Synced {
            self.synced.remove(&found.keys, place);
        }
    }
}

fn commits_notice(stream: StreamId, watch: WatchId, feed: Feed, revision: Revision, term: u64) -> Output {
    let notice = Notice::Commits { watch, commits: feed.commits, bytes: feed.bytes, revision, term };
    Output::Notice { stream, notice }
}

fn commit_bytes(commit: &Commit) -> usize {
    commit.events.iter().map(|event| event.kv.key.len() + event.kv.value.len() + 64).sum()
}

/// Which watches a key concerns: one map for single keys, one tree for spans.
#[derive(Default)]
pub(crate) struct Index {
    ones: BTreeMap<Bytes, BTreeSet<Place>>,
    spans: Spans<Place>,
}

impl Index {
    pub(crate) fn is_empty(&self) -> bool {
        self.ones.is_empty() && self.spans.is_empty()
    }

    pub(crate) fn insert(&mut self, keys: &Keys, place: Place) {
        match keys {
            Keys::One(key) => drop(self.ones.entry(key.clone()).or_default().insert(place)),
            Keys::Span { from, to } => self.spans.insert((from.clone(), to.clone()), place),
        }
    }

    pub(crate) fn remove(&mut self, keys: &Keys, place: Place) {
        match keys {
            Keys::One(key) => {
                if let Some(watchers) = self.ones.get_mut(key) {
                    watchers.remove(&place);
                    if watchers.is_empty() {
                        self.ones.remove(key);
                    }
                }
            }
            Keys::Span { from, to } => self.spans.remove(&(from.clone(), to.clone()), place),
        }
    }

    pub(crate) fn find(&self, key: &[u8], places: &mut Vec<Place>) {
        if let Some(watchers) = self.ones.get(key) {
            places.extend(watchers);
        }
        self.spans.find(key, places);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_machine::{Event, KeyValue};

    use super::*;

    fn span(from: &'static str, to: Option<&'static str>) -> Keys {
        Keys::Span { from: Bytes::from(from), to: to.map(Bytes::from) }
    }

    fn found(index: &Index, key: &str) -> Vec<WatchId> {
        let mut places = Vec::new();
        index.find(key.as_bytes(), &mut places);
        let mut watches: Vec<WatchId> = places.into_iter().map(|(_, watch)| watch).collect();
        watches.sort_unstable();
        watches
    }

    fn create(hub: &mut Hub, machine: &Machine, stream: StreamId, watch: WatchId) {
        let request = WatchRequest::Create { watch, keys: span("a", None), start: None };
        hub.take(stream, request, machine, 1, &mut Vec::new());
    }

    fn commit(revision: Revision) -> Commit {
        let (create_revision, mod_revision) = (revision, revision);
        let (key, value) = (Arc::from(&b"b"[..]), Box::default());
        let kv = Arc::new(KeyValue { key, value, create_revision, mod_revision, version: 1, lease: 0 });
        Commit { revision, events: [Event { kv, prev: None }].into() }
    }

    /// The watches that are told of a commit.
    fn fed(hub: &mut Hub, machine: &Machine, revision: Revision) -> Vec<Place> {
        hub.feed(&commit(revision));
        let places = hub.fed.keys().copied().collect();
        hub.flush(machine, 1, &mut Vec::new());
        places
    }

    #[test]
    fn a_stream_with_many_watches_is_closed_in_parts() {
        let (mut hub, machine) = (Hub::new(1 << 20), Machine::new());
        let many = CLOSED_AT_ONCE as u64 + 10;
        (0..many).for_each(|watch| create(&mut hub, &machine, 1, watch));
        create(&mut hub, &machine, 2, 7);
        hub.take(1, WatchRequest::Close, &machine, 1, &mut Vec::new());
        assert_eq!((hub.watches(), hub.has_more()), (1, true));
        assert_eq!(found(&hub.synced, "b").len() as u64, many + 1, "not all at once");
        assert_eq!(fed(&mut hub, &machine, 2), [(2, 7)], "but they are told nothing");
        assert_eq!((found(&hub.synced, "b").len(), hub.has_more()), (11, true));
        hub.flush(&machine, 1, &mut Vec::new());
        assert_eq!((found(&hub.synced, "b"), hub.has_more()), (vec![7], false));
    }

    #[test]
    fn a_commit_that_concerns_many_watches_is_fed_in_parts() {
        let (mut hub, machine) = (Hub::new(1 << 30), Machine::new());
        let many = FED_AT_ONCE as u64 + 10;
        (0..many).for_each(|watch| create(&mut hub, &machine, 1, watch));
        hub.take(1, WatchRequest::Progress, &machine, 1, &mut Vec::new());
        for revision in [2, 3] {
            hub.feed(&commit(revision));
        }
        let mut told: BTreeMap<WatchId, Vec<Revision>> = BTreeMap::new();
        let mut rounds = 0;
        while rounds == 0 || hub.has_more() {
            rounds += 1;
            let mut outputs = Vec::new();
            hub.flush(&machine, 1, &mut outputs);
            assert!(outputs.len() <= FED_AT_ONCE);
            for output in outputs {
                match output {
                    Output::Notice { notice: Notice::Commits { watch, commits, .. }, .. } => {
                        told.entry(watch).or_default().extend(commits.iter().map(|commit| commit.revision));
                    }
                    Output::Notice { notice: Notice::Progress { .. }, .. } => {
                        assert!(!hub.has_more(), "not before all are told");
                        told.entry(WatchId::MAX).or_default().push(0);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(rounds, 3);
        assert_eq!(told.remove(&WatchId::MAX), Some(vec![0]));
        assert_eq!(told.len() as u64, many);
        assert!(told.values().all(|revisions| revisions == &[2, 3]));
    }

    /// The old watches of a stream must not be taken for new ones of the same number.
    #[test]
    fn a_stream_that_is_opened_again_while_it_is_closed() {
        let (mut hub, machine) = (Hub::new(1 << 20), Machine::new());
        (0..2 * CLOSED_AT_ONCE as u64).for_each(|watch| create(&mut hub, &machine, 1, watch));
        hub.take(1, WatchRequest::Close, &machine, 1, &mut Vec::new());
        create(&mut hub, &machine, 1, 5);
        assert_eq!((found(&hub.synced, "b"), hub.watches()), (vec![5], 1));
        for revision in 2..5 {
            assert_eq!(fed(&mut hub, &machine, revision), [(1, 5)]);
        }
    }

    #[test]
    fn overlapping_spans_are_all_found() {
        let mut index = Index::default();
        index.insert(&span("b", Some("d")), (1, 1));
        index.insert(&span("c", None), (1, 2));
        index.insert(&span("a", Some("c")), (1, 3));
        index.insert(&span("c", Some("c")), (1, 4));
        index.insert(&Keys::One("c".into()), (1, 5));
        assert_eq!(found(&index, "a"), [3]);
        assert_eq!(found(&index, "b"), [1, 3]);
        assert_eq!(found(&index, "c"), [1, 2, 5]);
        assert_eq!(found(&index, "d"), [2]);
        assert_eq!(found(&index, "0"), [0; 0]);
    }

    #[test]
    fn what_is_removed_leaves_nothing_behind() {
        let mut index = Index::default();
        let all = [span("b", Some("d")), span("c", None), span("a", Some("c")), span("b", Some("d")), span("", None)];
        for (watch, keys) in all.iter().enumerate() {
            index.insert(keys, (1, watch as u64));
        }
        for (watch, keys) in all.iter().enumerate() {
            index.remove(keys, (1, watch as u64));
        }
        assert!(index.is_empty());
    }

    /// The index against asking every span in turn.
    #[test]
    fn the_index_agrees_with_a_plain_search() {
        let mut state = 7u64;
        let mut next = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let letters = ["", "a", "b", "c", "d", "e", "f"];
        let mut index = Index::default();
        let mut live: Vec<(Keys, Place)> = Vec::new();
        for round in 0..2000u64 {
            if next(3) == 0 && !live.is_empty() {
                let (keys, place) = live.swap_remove(next(live.len() as u64) as usize);
                index.remove(&keys, place);
            } else {
                let from = letters[next(7) as usize];
                let to = letters.get(next(9) as usize).copied();
                let keys = if next(4) == 0 { Keys::One(from.into()) } else { span(from, to) };
                index.insert(&keys, (1, round));
                live.push((keys, (1, round)));
            }
            let key = letters[next(7) as usize];
            let mut expected: Vec<WatchId> = live
                .iter()
                .filter(|(keys, _)| match keys {
                    Keys::One(one) => one == key,
                    Keys::Span { from, to } => {
                        from.as_ref() <= key.as_bytes() && to.as_ref().is_none_or(|to| key.as_bytes() < to.as_ref())
                    }
                })
                .map(|(_, place)| place.1)
                .collect();
            expected.sort_unstable();
            assert_eq!(found(&index, key), expected);
        }
    }
}
