//! Watchers that read at their own pace, break off, and go on where they were.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::{Keys, Revision};
use tenure_replica::{Notice, StreamId, WatchId, WatchRequest};

use super::{Action, Doing, Known, Traffic};
use crate::plan::Plan;

const STREAMS: usize = 4;

#[derive(Default)]
pub(super) struct Stream {
    pub client: usize,
    watches: BTreeMap<WatchId, Watch>,
    /// The connection is gone.
    pub broken: bool,
}

struct Watch {
    keys: Keys,
    /// Where to go on after a break; None until that is known.
    next: Option<Revision>,
    created: bool,
}

impl Traffic {
    pub(super) fn on_watches(&mut self, client: usize, action: Action, plan: &Plan, known: &Known) -> Vec<Doing> {
        let own = self.own_streams(client);
        let some = self.random.pick(&own).copied();
        match (action, some) {
            (Action::Watch, _) => {
                let keys = match self.random.below(4) {
                    0 => Keys::all(),
                    1 => Keys::prefix(Bytes::from_static(b"lock/")),
                    2 => self.span(plan),
                    _ => Keys::One(self.key(plan)),
                };
                let start = match self.random.below(3) {
                    0 => None,
                    1 => Some(known.revision + 1),
                    _ => {
                        let low = (known.compacted - 1).max(1) as u64;
                        Some(self.random.between(low, known.revision as u64 + 3) as i64)
                    }
                };
                vec![self.watch_from(client, keys, start)]
            }
            (Action::Unwatch, Some(stream)) => {
                let Some(found) = self.streams.get_mut(&stream) else { return Vec::new() };
                let watches: Vec<WatchId> = found.watches.keys().copied().collect();
                let Some(watch) = self.random.pick(&watches).copied() else { return Vec::new() };
                found.watches.remove(&watch);
                vec![Doing::Watch(stream, WatchRequest::Cancel { watch })]
            }
            (Action::CloseStream, Some(stream)) => {
                self.streams.remove(&stream);
                vec![Doing::Watch(stream, WatchRequest::Close)]
            }
            (Action::Progress, Some(stream)) => vec![Doing::Watch(stream, WatchRequest::Progress)],
            _ => Vec::new(),
        }
    }

    /// On one of the client's streams, or on a new one.
    pub(super) fn watch_from(&mut self, client: usize, keys: Keys, start: Option<Revision>) -> Doing {
        let own = self.own_streams(client);
        let stream = match self.random.pick(&own).copied() {
            Some(stream) if own.len() >= STREAMS || self.random.percent(60) => stream,
            _ => self.open_stream(client),
        };
        self.create(stream, keys, start)
    }

    fn own_streams(&self, client: usize) -> Vec<StreamId> {
        let is_own = |stream: &Stream| stream.client == client && !stream.broken;
        self.streams.iter().filter(|(_, stream)| is_own(stream)).map(|(id, _)| *id).collect()
    }

    /// Every broken stream of a client is opened anew, with whoever is there.
    pub(super) fn watch_again(&mut self, client: usize) -> Vec<Doing> {
        let is_broken = |stream: &Stream| stream.broken && stream.client == client;
        let broken: Vec<StreamId> = self.streams.iter().filter(|(_, s)| is_broken(s)).map(|(id, _)| *id).collect();
        let mut doing = Vec::new();
        for stream in broken {
            let Some(Stream { client, watches, .. }) = self.streams.remove(&stream) else { continue };
            let again = self.open_stream(client);
            for Watch { keys, next, .. } in watches.into_values() {
                doing.push(self.create(again, keys, next));
            }
        }
        doing
    }

    fn open_stream(&mut self, client: usize) -> StreamId {
        let stream = self.next_stream;
        self.next_stream += 1;
        self.streams.insert(stream, Stream { client, ..Stream::default() });
        stream
    }

    fn create(&mut self, stream: StreamId, keys: Keys, start: Option<Revision>) -> Doing {
        let watch = self.draw();
        let created = Watch { keys: keys.clone(), next: start, created: false };
        self.streams.entry(stream).or_default().watches.insert(watch, created);
        Doing::Watch(stream, WatchRequest::Create { watch, keys, start })
    }
}

impl Stream {
    pub(super) fn noticed(&mut self, notice: &Notice) -> Option<WatchRequest> {
        match notice {
            Notice::Created { watch, revision, .. } => {
                let watch = self.watches.get_mut(watch)?;
                watch.created = true;
                watch.next.get_or_insert(revision + 1);
                None
            }
            Notice::Commits { watch, commits, bytes, .. } => {
                if let Some(found) = self.watches.get_mut(watch) {
                    found.next = commits.last().map(|commit| commit.revision + 1);
                }
                Some(WatchRequest::Drained { bytes: *bytes })
            }
            Notice::Behind { watch, view, .. } => {
                let from = view.revision() + 1;
                self.watches.get_mut(watch)?.next = Some(from);
                Some(WatchRequest::Resume { watch: *watch, from })
            }
            Notice::Compacted { watch, .. } => {
                self.watches.remove(watch);
                None
            }
            Notice::Progress { revision, .. } => {
                for watch in self.watches.values_mut().filter(|watch| watch.created) {
                    watch.next = watch.next.max(Some(revision + 1));
                }
                None
            }
        }
    }
}
