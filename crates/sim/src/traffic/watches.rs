//! Watchers that read at their own pace, break off, and go on where they were.
//!
//! What a member says of a watch goes to the watcher in messages, which take time. Messages that are under way when the
//! connection breaks are lost. The real client's cursor says what of a message is new, and where the next stream starts.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_client::cursor::{Cursor, Message};
use tenure_machine::{Commit, Keys, Revision};
use tenure_replica::{Notice, StreamId, WatchId, WatchRequest};

use super::{Action, Doing, Known, Traffic};
use crate::plan::Plan;
use crate::planted::Planted;
use crate::random::Random;

const STREAMS: usize = 4;

#[derive(Default)]
pub(super) struct Stream {
    pub client: usize,
    watches: BTreeMap<WatchId, Watch>,
    /// The connection is gone.
    pub broken: bool,
}

struct Watch {
    /// The same on every stream that carries the watch.
    number: u64,
    keys: Keys,
    cursor: Cursor,
    /// It is in place on this stream: what was said of the stream before does not concern it.
    is_created: bool,
}

/// A message on its way from a member to a watcher.
#[derive(Debug)]
pub enum Parcel {
    Created {
        watch: WatchId,
        revision: Revision,
    },
    /// The revision of each event, and that of the store.
    Events {
        watch: WatchId,
        events: Vec<Revision>,
        revision: Revision,
    },
    Compacted {
        watch: WatchId,
    },
    Progress {
        revision: Revision,
    },
}

/// What a watch is told beyond its stream: everything that its cursor takes for new.
#[derive(Debug, Clone)]
pub enum Delivery {
    Began {
        watch: u64,
        keys: Keys,
        start: Option<Revision>,
    },
    /// The watch is in place since this revision of the store.
    Created {
        watch: u64,
        revision: Revision,
    },
    /// The revision of each event.
    Events {
        watch: u64,
        events: Vec<Revision>,
    },
    Over {
        watch: u64,
    },
}

/// The way from members to watchers.
pub(super) struct Carrier {
    random: Random,
    /// Messages take time, and what was read from history comes in parts.
    is_slow: bool,
    planted: Option<Planted>,
    /// When the last message of each stream arrives: they do not overtake each other.
    last_us: BTreeMap<StreamId, u64>,
    next_watch: u64,
    delivered: Vec<Delivery>,
}

impl Carrier {
    pub(super) fn new(seed: u64, plan: &Plan, planted: Option<Planted>) -> Carrier {
        Carrier {
            random: Random::new(seed, 21),
            is_slow: plan.wide.is_some(),
            planted,
            last_us: BTreeMap::new(),
            next_watch: 1,
            delivered: Vec::new(),
        }
    }

    /// When a message that is sent now arrives.
    fn arrival_us(&mut self, stream: StreamId, now_us: u64) -> u64 {
        let delay_us = if self.is_slow { self.random.spread(10, 300_000) } else { 0 };
        let last_us = self.last_us.entry(stream).or_default();
        *last_us = (now_us + delay_us).max(*last_us);
        *last_us
    }

    /// The messages that carry commits, as the server makes them: whole revisions, only events of these keys.
    fn parcels<'a>(
        &mut self,
        watch: WatchId,
        keys: &Keys,
        commits: impl Iterator<Item = &'a Commit>,
        revision: Revision,
    ) -> Vec<Parcel> {
        let mut parcels = Vec::new();
        let mut events: Vec<Revision> = Vec::new();
        for commit in commits {
            let concerned = commit.events.iter().filter(|event| keys.contains(&event.kv.key)).count();
            if concerned > 0 && !events.is_empty() && self.is_slow && self.random.percent(25) {
                parcels.push(Parcel::Events { watch, events: std::mem::take(&mut events), revision });
            }
            events.extend(std::iter::repeat_n(commit.revision, concerned));
        }
        if !events.is_empty() {
            parcels.push(Parcel::Events { watch, events, revision });
        }
        parcels
    }
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
                let removed = found.watches.remove(&watch);
                self.carrier.delivered.extend(removed.map(|watch| Delivery::Over { watch: watch.number }));
                vec![Doing::Watch(stream, WatchRequest::Cancel { watch })]
            }
            (Action::CloseStream, Some(stream)) => {
                let watches = self.streams.remove(&stream).map(|stream| stream.watches).unwrap_or_default();
                let over = watches.into_values().map(|watch| Delivery::Over { watch: watch.number });
                self.carrier.delivered.extend(over);
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
        let number = self.carrier.next_watch;
        self.carrier.next_watch += 1;
        self.carrier.delivered.push(Delivery::Began { watch: number, keys: keys.clone(), start });
        self.create(stream, Watch { number, keys, cursor: Cursor::new(start.unwrap_or(0)), is_created: false })
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
            doing.extend(watches.into_values().map(|watch| self.create(again, watch)));
        }
        doing
    }

    fn open_stream(&mut self, client: usize) -> StreamId {
        let stream = self.next_stream;
        self.next_stream += 1;
        self.streams.insert(stream, Stream { client, ..Stream::default() });
        stream
    }

    fn create(&mut self, stream: StreamId, watch: Watch) -> Doing {
        let id = self.draw();
        let (keys, next) = (watch.keys.clone(), watch.cursor.next());
        let watch = Watch { is_created: false, ..watch };
        self.streams.entry(stream).or_default().watches.insert(id, watch);
        Doing::Watch(stream, WatchRequest::Create { watch: id, keys, start: (next > 0).then_some(next) })
    }

    /// What a member says on a stream goes to its watcher: the messages, and when each of them arrives.
    pub fn send_parcels(&mut self, stream: StreamId, notice: &Notice, now_us: u64) -> Vec<(u64, Parcel)> {
        let Some(found) = self.streams.get(&stream) else { return Vec::new() };
        let parcels = match notice {
            Notice::Created { watch, revision, .. } => vec![Parcel::Created { watch: *watch, revision: *revision }],
            Notice::Compacted { watch, .. } => vec![Parcel::Compacted { watch: *watch }],
            Notice::Progress { revision, .. } => vec![Parcel::Progress { revision: *revision }],
            Notice::Commits { watch, commits, revision, .. } => match found.watches.get(watch) {
                Some(Watch { keys, .. }) => self.carrier.parcels(*watch, keys, commits.iter(), *revision),
                None => Vec::new(),
            },
            Notice::Behind { watch, from, view, .. } => match (found.watches.get(watch), view.commits(*from)) {
                (Some(Watch { keys, .. }), Ok(commits)) => {
                    let commits: Vec<Commit> = commits.collect();
                    self.carrier.parcels(*watch, keys, commits.iter(), view.revision())
                }
                _ => Vec::new(),
            },
        };
        parcels.into_iter().map(|parcel| (self.carrier.arrival_us(stream, now_us), parcel)).collect()
    }

    /// A message arrives. Of a stream that is broken or closed nothing is read any more.
    pub fn take_parcel(&mut self, stream: StreamId, parcel: Parcel) {
        let Some(Stream { watches, .. }) = self.streams.get_mut(&stream).filter(|stream| !stream.broken) else {
            return;
        };
        let Carrier { planted, delivered, .. } = &mut self.carrier;
        match parcel {
            Parcel::Created { watch, revision } => {
                let Some(watch) = watches.get_mut(&watch) else { return };
                watch.is_created = true;
                let is_created = *planted != Some(Planted::TrustCreated);
                watch.cursor.take(Message { is_created, revision, events: &[] });
                delivered.push(Delivery::Created { watch: watch.number, revision });
            }
            Parcel::Events { watch, events, revision } => {
                let Some(watch) = watches.get_mut(&watch) else { return };
                let before = watch.cursor;
                let known = watch.cursor.take(Message { is_created: false, revision, events: &events });
                if *planted == Some(Planted::ForgetTaken) && revision % 4 == 0 {
                    watch.cursor = before;
                }
                if known < events.len() {
                    delivered.push(Delivery::Events { watch: watch.number, events: events[known..].to_vec() });
                }
            }
            Parcel::Compacted { watch } => {
                delivered.extend(watches.remove(&watch).map(|watch| Delivery::Over { watch: watch.number }));
            }
            Parcel::Progress { revision } => {
                for watch in watches.values_mut().filter(|watch| watch.is_created) {
                    watch.cursor.take(Message { is_created: false, revision, events: &[] });
                }
            }
        }
    }

    pub fn take_delivered(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.carrier.delivered)
    }
}

impl Stream {
    /// What the server does with a notice once it is passed on.
    pub(super) fn noticed(&mut self, notice: &Notice) -> Option<WatchRequest> {
        match notice {
            Notice::Commits { bytes, .. } => Some(WatchRequest::Drained { bytes: *bytes }),
            Notice::Behind { watch, view, .. } => {
                let is_there = self.watches.contains_key(watch);
                is_there.then_some(WatchRequest::Resume { watch: *watch, from: view.revision() + 1 })
            }
            Notice::Created { .. } | Notice::Compacted { .. } | Notice::Progress { .. } => None,
        }
    }
}
