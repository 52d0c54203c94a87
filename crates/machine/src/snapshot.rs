//! The state as bytes, in self-contained chunks.
//!
//! A snapshot is a sequence of records in an order that depends on nothing but the logical state:
//! what a compaction has not yet freed is left out, and no record depends on how chunks are cut.
//! So the hash of the records is the hash of the state ([`View::hash`]), and the last record carries
//! it for the reader to check.
//!
//! Each chunk begins with the format's number (the newest only above the lowest feature level), then come records, each with its length. In order:
//! the header; members, alarms, origins, leases; the version of each key that is live at the
//! compacted revision, in key order; every event from the compacted revision on; lock entries by
//! name and token; recent holders; the end. What follows from these (older versions, `prev`s, the
//! keys of a lease, who is granted) is derived again.
//!
//! Chunks are made one at a time from a [`View`], each resuming where the last one stopped, so that
//! writing a snapshot holds no more than one chunk in memory.

mod restore;

use std::ops::Bound;
use std::sync::Arc;

pub use self::restore::Restore;
use crate::codec::{encode_alarm, encode_member, encode_mode, encode_pin};
use crate::encoding::{put_bytes, put_signed, put_varint, varint_length};
use crate::hash::RecordHasher;
use crate::level::HIGHEST;
use crate::lock::{LockEntry, LockName, RecentHolder};
use crate::{EventKind, KeyValue, LeaseId, Level, LockEnd, MemberId, Revision, SharedBytes, View};

/// The newest format of snapshots that this code reads, and the one that it writes where the feature level asks for it.
pub const FORMAT: u8 = 4;
/// Before there were feature levels. A state at the lowest level is still written so: members of releases without
/// levels must be able to read it.
const THIRD_FORMAT: u8 = 3;
/// Before there were sessions, slots and several names.
const FIRST_FORMAT: u8 = 1;
/// Before it was noted what is left of leases.
const SECOND_FORMAT: u8 = 2;
/// What is taken for a chunk at once, however large it may become.
const MOST_ROOM_BYTES: usize = 1 << 20;

/// The view as a sequence of chunks of about `target_bytes` each, every one decodable by itself.
pub fn chunks(view: View, target_bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut writer = Writer::new(view);
    std::iter::from_fn(move || writer.chunk(target_bytes))
}

/// Why chunks make no machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// No release writes such a snapshot.
    #[error("snapshot chunk {chunk}: {reason}")]
    Damaged { chunk: usize, reason: String },
    #[error(
        "the snapshot is at feature level {level}: a later release is needed (this one supports feature level {HIGHEST})"
    )]
    LaterLevel { level: Level },
    #[error(
        "the snapshot is written in a newer format, {format}: a later release is needed (this one reads up to {FORMAT})"
    )]
    LaterFormat { format: u8 },
}

impl SnapshotError {
    /// Whether a later release wrote the snapshot, and could read it.
    pub fn is_of_later_release(&self) -> bool {
        !matches!(self, SnapshotError::Damaged { .. })
    }
}

pub(crate) fn hash(view: &View) -> u64 {
    const BUFFER_BYTES: usize = 64 * 1024;
    let mut writer = Writer::new(view.clone());
    while writer.chunk(BUFFER_BYTES).is_some() {}
    writer.hasher.finish()
}

/// What a record is about; its first byte.
mod tag {
    pub const HEADER: u8 = 1;
    pub const MEMBER: u8 = 2;
    pub const ALARM: u8 = 3;
    pub const ORIGIN: u8 = 4;
    pub const LEASE: u8 = 5;
    pub const BASE: u8 = 6;
    /// Events: a put, a put of the version that the base holds already, a delete.
    pub const PUT: u8 = 7;
    pub const PUT_OF_BASE: u8 = 8;
    pub const DELETE: u8 = 9;
    pub const ENTRY: u8 = 10;
    pub const RECENT: u8 = 11;
    pub const END: u8 = 12;
    /// A revision without an event; it stands among the events.
    pub const NO_EVENT: u8 = 13;
}

struct Writer {
    view: View,
    place: Place,
    hasher: RecordHasher,
    /// The record being made.
    record: Vec<u8>,
}

/// What comes next, with the last thing written of it.
enum Place {
    Header,
    Members(Option<MemberId>),
    Alarms,
    Origins(Option<MemberId>),
    Leases(Option<LeaseId>),
    Base(Option<SharedBytes>),
    Events(Revision, usize),
    Entries(Option<(LockName, Revision)>),
    Recent(usize),
    End,
    Done,
}

/// The chunk in the making.
struct Chunk {
    bytes: Vec<u8>,
    target_bytes: usize,
}

impl Chunk {
    fn is_full(&self) -> bool {
        self.bytes.len() >= self.target_bytes
    }

    fn add(&mut self, record: &mut Vec<u8>, hasher: Option<&mut RecordHasher>) {
        if let Some(hasher) = hasher {
            hasher.record(record);
        }
        put_bytes(&mut self.bytes, record);
        record.clear();
    }
}

impl Writer {
    fn new(view: View) -> Writer {
        Writer { view, place: Place::Header, hasher: RecordHasher::new(), record: Vec::new() }
    }

    fn chunk(&mut self, target_bytes: usize) -> Option<Vec<u8>> {
        if matches!(self.place, Place::Done) {
            return None;
        }
        // Taken once, with room for the record that goes beyond: what grows by doubling is copied, and touches new pages.
        let room = target_bytes.min(MOST_ROOM_BYTES);
        let mut bytes = Vec::with_capacity(room + room / 8);
        bytes.push(if self.view.is_beyond_lowest() { FORMAT } else { THIRD_FORMAT });
        let mut chunk = Chunk { bytes, target_bytes };
        loop {
            // Each writes what there is of its kind until the chunk is full.
            self.place = self.advance(&mut chunk);
            if chunk.is_full() || matches!(self.place, Place::Done) {
                return Some(chunk.bytes);
            }
        }
    }

    fn advance(&mut self, chunk: &mut Chunk) -> Place {
        match std::mem::replace(&mut self.place, Place::Done) {
            Place::Header => self.header(chunk),
            Place::Members(last) => self.members(last, chunk),
            Place::Alarms => self.alarms(chunk),
            Place::Origins(last) => self.origins(last, chunk),
            Place::Leases(last) => self.leases(last, chunk),
            Place::Base(last) => self.base(last, chunk),
            Place::Events(revision, event) => self.events(revision, event, chunk),
            Place::Entries(last) => self.entries(last, chunk),
            Place::Recent(index) => self.recent(index, chunk),
            Place::End | Place::Done => self.end(chunk),
        }
    }

    fn header(&mut self, chunk: &mut Chunk) -> Place {
        let store = &self.view.store;
        self.record.push(tag::HEADER);
        put_varint(&mut self.record, self.view.applied_index);
        put_varint(&mut self.record, self.view.applied_term);
        put_signed(&mut self.record, store.revision);
        put_signed(&mut self.record, store.compacted);
        put_signed(&mut self.record, first_event_revision(&self.view));
        if self.view.is_beyond_lowest() {
            put_varint(&mut self.record, u64::from(self.view.level));
            encode_pin(self.view.level_pin, &mut self.record);
        }
        chunk.add(&mut self.record, Some(&mut self.hasher));
        Place::Members(None)
    }

    fn members(&mut self, last: Option<MemberId>, chunk: &mut Chunk) -> Place {
        for (id, member) in self.view.members.range((after(&last), Bound::Unbounded)) {
            self.record.push(tag::MEMBER);
            encode_member(member, &mut self.record);
            chunk.add(&mut self.record, Some(&mut self.hasher));
            if chunk.is_full() {
                return Place::Members(Some(*id));
            }
        }
        Place::Alarms
    }

    fn alarms(&mut self, chunk: &mut Chunk) -> Place {
        for alarm in &self.view.alarms {
            self.record.push(tag::ALARM);
            encode_alarm(alarm, &mut self.record);
            chunk.add(&mut self.record, Some(&mut self.hasher));
        }
        Place::Origins(None)
    }

    fn origins(&mut self, last: Option<MemberId>, chunk: &mut Chunk) -> Place {
        for (member, origins) in self.view.origins.members.range((after(&last), Bound::Unbounded)) {
            self.record.push(tag::ORIGIN);
            for number in [*member, origins.boot, origins.floor] {
                put_varint(&mut self.record, number);
            }
            put_varint(&mut self.record, origins.applied.len() as u64);
            for sequence in &origins.applied {
                put_varint(&mut self.record, *sequence);
            }
            put_varint(&mut self.record, origins.retired.len() as u64);
            for boot in &origins.retired {
                put_varint(&mut self.record, *boot);
            }
            chunk.add(&mut self.record, Some(&mut self.hasher));
            if chunk.is_full() {
                return Place::Origins(Some(*member));
            }
        }
        Place::Leases(None)
    }

    fn leases(&mut self, last: Option<LeaseId>, chunk: &mut Chunk) -> Place {
        for (id, lease) in self.view.leases.leases.range((after(&last), Bound::Unbounded)) {
            self.record.push(tag::LEASE);
            put_signed(&mut self.record, *id);
            put_varint(&mut self.record, lease.ttl_ms);
            put_varint(&mut self.record, lease.granted_wall_ms);
            put_bytes(&mut self.record, &lease.client);
            put_varint(&mut self.record, lease.epoch);
            put_varint(&mut self.record, lease.left_ms);
            if self.view.is_beyond_lowest() {
                put_signed(&mut self.record, lease.granted_revision);
                self.record.push(lease.ending.map_or(0, |cause| 1 + end_number(cause)));
            }
            chunk.add(&mut self.record, Some(&mut self.hasher));
            if chunk.is_full() {
                return Place::Leases(Some(*id));
            }
        }
        Place::Base(None)
    }

    fn base(&mut self, last: Option<SharedBytes>, chunk: &mut Chunk) -> Place {
        let store = &self.view.store;
        for (key, record) in store.records_after(last.as_deref()) {
            let Some(kv) = record.at(store.compacted) else { continue };
            self.record.push(tag::BASE);
            put_version(&mut self.record, kv);
            put_signed(&mut self.record, kv.mod_revision);
            chunk.add(&mut self.record, Some(&mut self.hasher));
            if chunk.is_full() {
                return Place::Base(Some(key.clone()));
            }
        }
        Place::Events(first_event_revision(&self.view), 0)
    }

    /// An event names its revision; those with the same one follow each other and make one commit.
    fn events(&mut self, revision: Revision, first: usize, chunk: &mut Chunk) -> Place {
        let store = &self.view.store;
        let mut first = first;
        for commit in store.history.from(revision) {
            for (index, event) in commit.events.iter().enumerate().skip(first) {
                let kv = &event.kv;
                let is_base = commit.revision == store.compacted
                    && store
                        .keys
                        .get(&*kv.key)
                        .and_then(|record| record.at(store.compacted))
                        .is_some_and(|base| Arc::ptr_eq(base, kv));
                self.record.push(match event.kind() {
                    EventKind::Put if is_base => tag::PUT_OF_BASE,
                    EventKind::Put => tag::PUT,
                    EventKind::Delete => tag::DELETE,
                });
                put_signed(&mut self.record, commit.revision);
                if event.kind() == EventKind::Put && !is_base {
                    put_version(&mut self.record, kv);
                } else {
                    put_bytes(&mut self.record, &kv.key);
                }
                chunk.add(&mut self.record, Some(&mut self.hasher));
                if chunk.is_full() {
                    return Place::Events(commit.revision, index + 1);
                }
            }
            first = 0;
            if commit.events.is_empty() {
                self.record.push(tag::NO_EVENT);
                put_signed(&mut self.record, commit.revision);
                chunk.add(&mut self.record, Some(&mut self.hasher));
                if chunk.is_full() {
                    return Place::Events(commit.revision + 1, 0);
                }
            }
        }
        Place::Entries(None)
    }

    fn entries(&mut self, last: Option<(LockName, Revision)>, chunk: &mut Chunk) -> Place {
        let (name, mut last_token) = last.unzip();
        let from = name.as_ref().map_or(Bound::Unbounded, Bound::Included);
        for (name, queue) in self.view.locks.queues.range::<_, LockName>((from, Bound::Unbounded)) {
            for entry in queue.after(last_token.take().unwrap_or(0)) {
                self.record.push(tag::ENTRY);
                put_entry(&mut self.record, entry);
                chunk.add(&mut self.record, Some(&mut self.hasher));
                if chunk.is_full() {
                    return Place::Entries(Some((name.clone(), entry.token)));
                }
            }
        }
        Place::Recent(0)
    }

    fn recent(&mut self, index: usize, chunk: &mut Chunk) -> Place {
        for (index, holder) in self.view.locks.recent.iter().enumerate().skip(index) {
            self.record.push(tag::RECENT);
            put_recent(&mut self.record, holder);
            chunk.add(&mut self.record, Some(&mut self.hasher));
            if chunk.is_full() {
                return Place::Recent(index + 1);
            }
        }
        Place::End
    }

    fn end(&mut self, chunk: &mut Chunk) -> Place {
        self.record.push(tag::END);
        self.record.extend_from_slice(&self.hasher.finish().to_le_bytes());
        chunk.add(&mut self.record, None);
        Place::Done
    }
}

/// The revision of the first event in a snapshot: what lies before the compacted revision is logically gone.
fn first_event_revision(view: &View) -> Revision {
    view.store.history.first().max(view.store.compacted)
}

fn after<T: Copy>(last: &Option<T>) -> Bound<T> {
    last.map_or(Bound::Unbounded, Bound::Excluded)
}

fn put_version(into: &mut Vec<u8>, kv: &KeyValue) {
    into.reserve(kv.key.len() + kv.value.len() + varint_length(u64::MAX) * 6);
    put_bytes(into, &kv.key);
    put_bytes(into, &kv.value);
    put_signed(into, kv.create_revision);
    put_signed(into, kv.version);
    put_signed(into, kv.lease);
}

fn put_entry(into: &mut Vec<u8>, entry: &LockEntry) {
    put_bytes(into, &entry.key);
    put_signed(into, entry.token);
    put_signed(into, entry.lease);
    encode_mode(entry.mode, into);
    into.push(u8::from(entry.last_joiner.is_some()));
    into.extend_from_slice(&entry.last_joiner.unwrap_or(0).to_le_bytes());
    for bytes in [&entry.owner, &entry.holder, &entry.metadata] {
        put_bytes(into, bytes);
    }
    put_varint(into, entry.joined_wall_ms);
    into.push(u8::from(entry.granted_wall_ms.is_some()));
    put_varint(into, entry.granted_wall_ms.unwrap_or(0));
    put_varint(into, u64::from(entry.slot));
    put_varint(into, entry.together.len() as u64);
    for name in entry.together.iter() {
        put_bytes(into, name);
    }
}

fn put_recent(into: &mut Vec<u8>, holder: &RecentHolder) {
    put_bytes(into, holder.name());
    put_signed(into, holder.token);
    put_signed(into, holder.lease);
    encode_mode(holder.mode, into);
    for bytes in [&holder.owner, &holder.holder, &holder.metadata] {
        put_bytes(into, bytes);
    }
    for wall_ms in [holder.joined_wall_ms, holder.granted_wall_ms.unwrap_or(0), holder.ended_wall_ms] {
        put_varint(into, wall_ms);
    }
    into.push(end_number(holder.cause));
}

fn end_number(cause: LockEnd) -> u8 {
    match cause {
        LockEnd::Released => 0,
        LockEnd::Left => 1,
        LockEnd::LeaseExpired => 2,
        LockEnd::LeaseRevoked => 3,
        LockEnd::Forced => 4,
    }
}
