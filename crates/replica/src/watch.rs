//! The watch hub: who is to be told of what.
//!
//! A watch is *synced* (fed as commands are applied), or it *reads* history out of a view on
//! another thread at its own pace, or it is *held* because its stream does not keep up. Nothing is
//! buffered for a watch that is not synced: a revision is all that is kept of it, and the view it
//! reads from is shared with everybody. So a slow reader costs the same as an idle one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use tenure_machine::{Commit, Keys, Machine, Revision};

use crate::{Notice, Output, StreamId, WatchId, WatchRequest};

type Place = (StreamId, WatchId);

pub(crate) struct Hub {
    streams: BTreeMap<StreamId, Stream>,
    synced: Index,
    /// What this step has fed so far; one notice for each watch when the step ends.
    fed: BTreeMap<Place, Feed>,
    progress_wanted: BTreeSet<StreamId>,
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
            progress_wanted: BTreeSet::new(),
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
                for (watch, Watch { keys, state, .. }) in closed.watches {
                    self.watches -= 1;
                    self.fed.remove(&(stream, watch));
                    if state == State::Synced {
                        self.synced.remove(&keys, (stream, watch));
                    }
                }
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
        let bytes = commit_bytes(commit);
        for place in places {
            let Some(stream) = self.streams.get_mut(&place.0) else { continue };
            let Some(watch) = stream.watches.get_mut(&place.1) else { continue };
            if commit.revision < watch.next {
                continue;
            }
            if stream.charged > self.buffer_bytes {
                watch.next = commit.revision;
                watch.state = State::Held;
                stream.held.insert(place.1);
                self.synced.remove(&watch.keys, place);
                continue;
            }
            stream.charged += bytes;
            watch.next = commit.revision + 1;
            let feed = self.fed.entry(place).or_default();
            feed.commits.push(commit.clone());
            feed.bytes += bytes;
        }
    }

    /// The state has jumped from revision `before` to a later one: those who were fed read on from history.
    pub(crate) fn jump(&mut self, before: Revision, machine: &Machine, term: u64, outputs: &mut Vec<Output>) {
        for ((stream, watch), feed) in std::mem::take(&mut self.fed) {
            outputs.push(commits_notice(stream, watch, feed, before, term));
        }
        self.synced = Index::default();
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
        self.flush_fed(machine, term, outputs);
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
        let places: Vec<Place> =
            self.fed.range((stream, 0)..=(stream, WatchId::MAX)).map(|(place, _)| *place).collect();
        for place in places {
            if let Some(feed) = self.fed.remove(&place) {
                outputs.push(commits_notice(place.0, place.1, feed, revision, term));
            }
        }
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

/// Which synced watches a key concerns: one map for single keys, one for spans.
#[derive(Default)]
struct Index {
    ones: BTreeMap<Bytes, BTreeSet<Place>>,
    /// Every span that is watched, with its watchers.
    spans: BTreeMap<Span, BTreeSet<Place>>,
    /// The key space cut at every bound of a span; each piece, named by its first key, knows the
    /// spans that cover it. A key lies in exactly one piece.
    pieces: BTreeMap<Bytes, BTreeSet<Span>>,
}

/// From, up to and without; None = no end.
type Span = (Bytes, Option<Bytes>);

impl Index {
    fn is_empty(&self) -> bool {
        self.ones.is_empty() && self.spans.is_empty()
    }

    fn insert(&mut self, keys: &Keys, place: Place) {
        let span = match keys {
            Keys::One(key) => {
                self.ones.entry(key.clone()).or_default().insert(place);
                return;
            }
            Keys::Span { from, to } => (from.clone(), to.clone()),
        };
        let watchers = self.spans.entry(span.clone()).or_default();
        watchers.insert(place);
        if watchers.len() > 1 || is_empty_span(&span) {
            return;
        }
        self.cut(&span.0);
        if let Some(to) = &span.1 {
            self.cut(to);
        }
        for (_, covering) in self.pieces.range_mut(bounds(&span)) {
            covering.insert(span.clone());
        }
    }

    fn remove(&mut self, keys: &Keys, place: Place) {
        let span = match keys {
            Keys::One(key) => {
                if let Some(watchers) = self.ones.get_mut(key) {
                    watchers.remove(&place);
                    if watchers.is_empty() {
                        self.ones.remove(key);
                    }
                }
                return;
            }
            Keys::Span { from, to } => (from.clone(), to.clone()),
        };
        let Some(watchers) = self.spans.get_mut(&span) else { return };
        watchers.remove(&place);
        if !watchers.is_empty() {
            return;
        }
        self.spans.remove(&span);
        if is_empty_span(&span) {
            return;
        }
        for (_, covering) in self.pieces.range_mut(bounds(&span)) {
            covering.remove(&span);
        }
        self.join(&span.0);
        if let Some(to) = &span.1 {
            self.join(to);
        }
    }

    fn find(&self, key: &[u8], places: &mut Vec<Place>) {
        if let Some(watchers) = self.ones.get(key) {
            places.extend(watchers);
        }
        if self.pieces.is_empty() {
            return;
        }
        let upto = (Bound::Unbounded, Bound::Included(key));
        if let Some((_, covering)) = self.pieces.range::<[u8], _>(upto).next_back() {
            for span in covering {
                places.extend(self.spans.get(span).into_iter().flatten());
            }
        }
    }

    /// Makes `at` the beginning of a piece.
    fn cut(&mut self, at: &Bytes) {
        if !self.pieces.contains_key(at) {
            let before = self.pieces.range::<Bytes, _>(..at).next_back();
            let covering = before.map(|(_, covering)| covering.clone()).unwrap_or_default();
            self.pieces.insert(at.clone(), covering);
        }
    }

    /// Takes back a cut that no span needs any more.
    fn join(&mut self, at: &Bytes) {
        let Some(covering) = self.pieces.get(at) else { return };
        let needless = match self.pieces.range::<Bytes, _>(..at).next_back() {
            Some((_, before)) => before == covering,
            None => covering.is_empty(),
        };
        if needless {
            self.pieces.remove(at);
        }
    }
}

fn is_empty_span(span: &Span) -> bool {
    span.1.as_ref().is_some_and(|to| *to <= span.0)
}

fn bounds(span: &Span) -> (Bound<Bytes>, Bound<Bytes>) {
    (Bound::Included(span.0.clone()), span.1.clone().map_or(Bound::Unbounded, Bound::Excluded))
}

#[cfg(test)]
mod tests {
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
        assert!(index.pieces.is_empty(), "{:?}", index.pieces);
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
