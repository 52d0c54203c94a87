//! Clients that follow locks: watches that resume after a break, and streams that carry a session.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::{LeaseId, Revision};
use tenure_replica::{LockNotice, LockWatchRequest, StreamId, WatchId};

use super::{Action, Doing, Traffic};
use crate::plan::Plan;

/// Streams of lock watches, and of sessions, that a client has at most.
const STREAMS: usize = 2;

#[derive(Default)]
pub(super) struct Followers {
    watches: BTreeMap<StreamId, LockStream>,
    sessions: BTreeMap<StreamId, (usize, LeaseId)>,
}

struct LockStream {
    client: usize,
    watch: WatchId,
    name: Bytes,
    prefix: bool,
    /// Where to go on after a break; 0 = it knows nothing yet.
    next: Revision,
    is_broken: bool,
}

impl Traffic {
    pub(super) fn on_lock_watches(&mut self, client: usize, action: Action, plan: &Plan) -> Vec<Doing> {
        let own: Vec<StreamId> =
            self.followers.watches.iter().filter(|(_, found)| found.client == client).map(|(id, _)| *id).collect();
        let carried: Vec<StreamId> =
            self.followers.sessions.iter().filter(|(_, (of, _))| *of == client).map(|(id, _)| *id).collect();
        match action {
            Action::LockWatch if own.len() < STREAMS => {
                let prefix = self.random.percent(40);
                let name = if prefix { Bytes::from_static(b"lock/") } else { self.name(plan) };
                let (stream, watch) = (self.next_stream, self.draw());
                self.next_stream += 1;
                let created = LockStream { client, watch, name, prefix, next: 0, is_broken: false };
                let doing = created.create(stream);
                self.followers.watches.insert(stream, created);
                vec![doing]
            }
            Action::LockUnwatch => {
                let Some(stream) = self.random.pick(&own).copied() else { return Vec::new() };
                let Some(LockStream { watch, .. }) = self.followers.watches.remove(&stream) else { return Vec::new() };
                let close = Doing::LockWatch(stream, LockWatchRequest::Close);
                match self.random.percent(50) {
                    true => vec![close],
                    false => vec![Doing::LockWatch(stream, LockWatchRequest::Cancel { watch }), close],
                }
            }
            Action::OpenSession if carried.len() < STREAMS => {
                let lease = self.some_lease(client);
                let stream = self.next_stream;
                self.next_stream += 1;
                self.followers.sessions.insert(stream, (client, lease));
                vec![Doing::Session { stream, lease, is_open: true }]
            }
            Action::CloseSession => {
                let Some(stream) = self.random.pick(&carried).copied() else { return Vec::new() };
                let Some((_, lease)) = self.followers.sessions.remove(&stream) else { return Vec::new() };
                vec![Doing::Session { stream, lease, is_open: false }]
            }
            _ => Vec::new(),
        }
    }

    /// Lock watches that broke off go on with any member that is there, from where they were.
    pub(super) fn follow_again(&mut self, client: usize) -> Vec<Doing> {
        let is_broken = |found: &LockStream| found.client == client && found.is_broken;
        let watches = &mut self.followers.watches;
        let broken: Vec<StreamId> = watches.iter().filter(|(_, found)| is_broken(found)).map(|(id, _)| *id).collect();
        let mut doing = Vec::new();
        for old in broken {
            let Some(found) = watches.remove(&old) else { continue };
            let (stream, again) = (self.next_stream, LockStream { is_broken: false, ..found });
            self.next_stream += 1;
            doing.push(again.create(stream));
            watches.insert(stream, again);
        }
        doing
    }

    /// Whether the reader of this stream has not closed it.
    pub fn follows(&self, stream: StreamId) -> bool {
        self.followers.watches.contains_key(&stream)
    }

    pub(super) fn lose_followers(&mut self, cut_off: &[StreamId]) {
        self.followers.sessions.retain(|stream, _| !cut_off.contains(stream));
        let watches = self.followers.watches.iter_mut().filter(|(stream, _)| cut_off.contains(stream));
        watches.for_each(|(_, found)| found.is_broken = true);
    }

    /// What the reader of a lock watch does with a notice, and in how many microseconds.
    pub fn lock_noticed(&mut self, stream: StreamId, notice: &LockNotice) -> Option<(u64, LockWatchRequest)> {
        let found = self.followers.watches.get_mut(&stream)?;
        match notice {
            LockNotice::Created { revision, .. } => {
                if found.next == 0 {
                    found.next = revision + 1;
                }
                None
            }
            LockNotice::Events { events, .. } => {
                // The rest of the last revision may still come.
                found.next = events.last().map_or(found.next, |event| found.next.max(event.revision + 1));
                let request = LockWatchRequest::Drained { events: events.len() };
                Some((self.random.spread(10, 400_000), request))
            }
            LockNotice::Forgotten { .. } | LockNotice::FellBehind { .. } => {
                // It reads the lock as it is, and watches on from there.
                found.next = 0;
                let (name, prefix) = (found.name.clone(), found.prefix);
                let request = LockWatchRequest::Create { watch: found.watch, name, prefix, start: 0 };
                Some((self.random.spread(10, 400_000), request))
            }
        }
    }
}

impl LockStream {
    fn create(&self, stream: StreamId) -> Doing {
        let (watch, name, prefix, start) = (self.watch, self.name.clone(), self.prefix, self.next);
        Doing::LockWatch(stream, LockWatchRequest::Create { watch, name, prefix, start })
    }
}
