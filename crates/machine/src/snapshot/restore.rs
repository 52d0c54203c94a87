//! Reading a snapshot back.
//!
//! The bytes come from a disk or a peer, so nothing in them is believed: each record is checked
//! against what a machine could have written, an impossible one is an error that names its chunk,
//! and the hash at the end must be that of all records before it.

use std::sync::Arc;

use bytes::Bytes;
use imbl::{OrdSet, Vector};
use smallvec::SmallVec;

use super::{FIRST_FORMAT, FORMAT, SECOND_FORMAT, SnapshotError, THIRD_FORMAT, tag};
use crate::codec::{decode_alarm, decode_member, decode_mode, decode_pin};
use crate::encoding::{ReadResult, Reader};
use crate::hash::RecordHasher;
use crate::lease::Lease;
use crate::level::HIGHEST;
use crate::lock::{LockEntry, RecentHolder, entry_key};
use crate::mvcc::keys::tombstone;
use crate::mvcc::{EMPTY_REVISION, Store, shared};
use crate::origin::MemberOrigins;
use crate::{Event, KeyValue, LeaseId, LockEnd, Machine, Revision, View, limits};

/// Where records of a kind stand. Those of the history are one kind.
fn order(tag: u8) -> u8 {
    if matches!(tag, tag::PUT_OF_BASE | tag::DELETE | tag::NO_EVENT) { tag::PUT } else { tag }
}

/// Builds a machine from chunks given in order.
pub struct Restore {
    view: View,
    hasher: RecordHasher,
    chunks: usize,
    /// The kind of the last record: kinds come in order.
    last_tag: u8,
    /// The revision that the events so far belong to.
    pending: Revision,
    events: SmallVec<[Event; 1]>,
    format: u8,
}

impl Restore {
    pub fn new() -> Restore {
        Restore {
            view: View::new(),
            hasher: RecordHasher::new(),
            chunks: 0,
            last_tag: 0,
            pending: 0,
            events: SmallVec::new(),
            format: FORMAT,
        }
    }

    pub fn chunk(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let mut reader = Reader::new(bytes);
        match reader.byte() {
            Ok(format) if format > FORMAT => return Err(SnapshotError::LaterFormat { format }),
            Ok(0) | Err(_) => return Err(self.damaged("not a snapshot")),
            Ok(format) => self.format = format,
        }
        self.read_chunk(reader).map_err(|reason| self.damaged(reason))?;
        if self.view.level > HIGHEST {
            return Err(SnapshotError::LaterLevel { level: self.view.level });
        }
        self.chunks += 1;
        Ok(())
    }

    pub fn finish(self) -> Result<Machine, SnapshotError> {
        if self.last_tag != tag::END {
            return Err(self.damaged("the snapshot ends too early"));
        }
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::RevisionFalls) && self.view.store.compacted > 0 {
            let mut view = self.view;
            view.store.revision -= 1;
            return Ok(Machine::restored(view));
        }
        Ok(Machine::restored(self.view))
    }

    fn damaged(&self, reason: &str) -> SnapshotError {
        SnapshotError::Damaged { chunk: self.chunks, reason: reason.to_owned() }
    }

    fn read_chunk(&mut self, mut reader: Reader<'_>) -> ReadResult<()> {
        while !reader.is_empty() {
            // What a later level brings is unknown here: nothing behind the header is looked at.
            if self.view.level > HIGHEST {
                break;
            }
            self.read_record(reader.bytes()?)?;
        }
        Ok(())
    }

    fn read_record(&mut self, record: &[u8]) -> ReadResult<()> {
        let mut reader = Reader::new(record);
        let tag = reader.byte()?;
        let in_order = match self.last_tag {
            0 => tag == tag::HEADER,
            tag::END => return Err("records after the end"),
            last => tag != tag::HEADER && order(tag) >= order(last),
        };
        if !in_order {
            return Err("records out of order");
        }
        if order(tag) != tag::PUT && order(self.last_tag) == tag::PUT {
            self.end_last_commit()?;
        }
        if tag != tag::END {
            self.hasher.record(record);
        }
        self.last_tag = tag;
        match tag {
            tag::HEADER => self.header(&mut reader)?,
            tag::MEMBER => {
                let member = decode_member(&mut reader)?;
                self.view.members.insert(member.id, Arc::new(member));
            }
            tag::ALARM => {
                self.view.alarms.insert(decode_alarm(&mut reader)?);
            }
            tag::ORIGIN => self.origin(&mut reader)?,
            tag::LEASE => {
                let (lease, ttl_ms, wall_ms) = (reader.signed()?, reader.varint()?, reader.varint()?);
                let client = shared(reader.bytes()?);
                let epoch = if self.format == FIRST_FORMAT { 0 } else { reader.varint()? };
                let left_ms = if self.format <= SECOND_FORMAT { ttl_ms } else { reader.varint()? };
                if left_ms > ttl_ms {
                    return Err("more is left of a lease than there was");
                }
                let granted_revision = if self.format <= THIRD_FORMAT { 0 } else { reader.signed()? };
                if !(0..=self.pending).contains(&granted_revision) {
                    return Err("a lease of the future");
                }
                let mut restored = Lease::new(ttl_ms, wall_ms, client);
                (restored.epoch, restored.left_ms) = (epoch, left_ms);
                restored.granted_revision = granted_revision;
                restored.ending = match if self.format <= THIRD_FORMAT { 0 } else { reader.byte()? } {
                    0 => None,
                    number => Some(read_end(number - 1)?),
                };
                if self.view.leases.leases.contains_key(&lease) {
                    return Err("a lease twice");
                }
                self.view.leases.add(lease, restored);
            }
            tag::BASE => self.base(&mut reader)?,
            tag::PUT | tag::PUT_OF_BASE | tag::DELETE => self.event(tag, &mut reader)?,
            tag::NO_EVENT if self.format > THIRD_FORMAT => self.no_event(reader.signed()?)?,
            tag::ENTRY => self.entry(&mut reader)?,
            tag::RECENT => self.recent(&mut reader)?,
            tag::END => self.end(&mut reader)?,
            _ => return Err("unknown kind of record"),
        }
        reader.finish()
    }

    fn header(&mut self, reader: &mut Reader) -> ReadResult<()> {
        self.view.applied_index = reader.varint()?;
        self.view.applied_term = reader.varint()?;
        let (revision, compacted, first) = (reader.signed()?, reader.signed()?, reader.signed()?);
        let is_possible = (EMPTY_REVISION..Revision::MAX).contains(&revision)
            && (-1..=revision).contains(&compacted)
            && first > EMPTY_REVISION
            && first <= revision + 1
            && (first == compacted || first == compacted.max(EMPTY_REVISION) + 1);
        if !is_possible {
            return Err("impossible revisions");
        }
        if self.format > THIRD_FORMAT {
            (self.view.level, self.view.level_pin) = (reader.small()?, decode_pin(reader)?);
            let is_possible = self.view.is_beyond_lowest();
            if !is_possible || self.view.level_pin.is_some_and(|pin| pin < self.view.level) {
                return Err("an impossible feature level");
            }
        }
        self.view.store = Store::restored(first - 1, compacted, first);
        // Raised by each commit; compared with the one promised at the end.
        self.pending = revision;
        Ok(())
    }

    fn origin(&mut self, reader: &mut Reader) -> ReadResult<()> {
        let member = reader.varint()?;
        let mut origins = MemberOrigins { boot: reader.varint()?, floor: reader.varint()?, ..MemberOrigins::default() };
        origins.applied = (0..reader.count()?).map(|_| reader.varint()).collect::<ReadResult<OrdSet<u64>>>()?;
        origins.retired = (0..reader.count()?).map(|_| reader.varint()).collect::<ReadResult<Vector<u64>>>()?;
        self.view.origins.members.insert(member, origins);
        Ok(())
    }

    fn base(&mut self, reader: &mut Reader) -> ReadResult<()> {
        let mut kv = read_version(reader)?.with_mod_revision(0);
        kv.mod_revision = reader.signed()?;
        let store = &self.view.store;
        let is_possible = kv.mod_revision > EMPTY_REVISION
            && kv.mod_revision <= store.compacted
            && kv.create_revision > EMPTY_REVISION
            && kv.create_revision <= kv.mod_revision
            && kv.version > 0
            // Far from the end of the numbers, so that counting on is safe.
            && kv.version < Revision::MAX / 2;
        if !is_possible || store.keys.get_max().is_some_and(|(last, _)| *last >= kv.key) {
            return Err("an impossible key");
        }
        self.view.store.restore_base(Arc::new(kv));
        Ok(())
    }

    fn event(&mut self, tag: u8, reader: &mut Reader) -> ReadResult<()> {
        let revision = reader.signed()?;
        let next = self.view.store.history.next();
        if revision == next + 1 {
            self.end_commit()?;
        } else if revision != next {
            return Err("a revision is missing");
        }
        let event = if revision == self.view.store.compacted {
            self.event_of_the_compacted_revision(tag, revision, reader)?
        } else {
            self.later_event(tag, revision, reader)?
        };
        self.events.push(event);
        Ok(())
    }

    /// Changes no key: what it left behind is the base.
    fn event_of_the_compacted_revision(&self, tag: u8, revision: Revision, reader: &mut Reader) -> ReadResult<Event> {
        let kv = match tag {
            tag::PUT => Arc::new(read_version(reader)?.with_mod_revision(revision)),
            tag::PUT_OF_BASE => {
                let base = self.view.store.live(reader.bytes()?).filter(|kv| kv.mod_revision == revision);
                base.ok_or("an event without its key")?.clone()
            }
            _ => tombstone(shared(reader.bytes()?), revision),
        };
        Ok(Event { kv, prev: None })
    }

    fn later_event(&mut self, tag: u8, revision: Revision, reader: &mut Reader) -> ReadResult<Event> {
        let store = &mut self.view.store;
        let written = match tag {
            tag::PUT => {
                let version = read_version(reader)?;
                let written = store.put(revision, version.key, |_| (version.value.into(), version.lease));
                if written.kv.create_revision != version.create_revision || written.kv.version != version.version {
                    return Err("an impossible version");
                }
                written
            }
            tag::DELETE => {
                let written = store.delete(revision, reader.bytes()?);
                written.ok_or("a delete of what is not there")?
            }
            _ => return Err("an event without its key"),
        };
        Ok(written.event(&self.events))
    }

    /// A revision that wrote nothing.
    fn no_event(&mut self, revision: Revision) -> ReadResult<()> {
        self.end_last_commit()?;
        if revision != self.view.store.history.next() {
            return Err("a revision is missing");
        }
        self.view.store.commit(SmallVec::new());
        Ok(())
    }

    /// Ends the commit whose events were read, if the last record was one of them.
    fn end_last_commit(&mut self) -> ReadResult<()> {
        if self.events.is_empty() { Ok(()) } else { self.end_commit() }
    }

    fn end_commit(&mut self) -> ReadResult<()> {
        if self.events.is_empty() {
            return Err("a revision is missing");
        }
        self.view.store.commit(std::mem::take(&mut self.events));
        Ok(())
    }

    fn entry(&mut self, reader: &mut Reader) -> ReadResult<()> {
        let entry = LockEntry {
            key: shared(reader.bytes()?),
            token: reader.signed()?,
            lease: reader.signed()?,
            mode: decode_mode(reader)?,
            last_joiner: {
                let is_set = reader.flag()?;
                let bytes = reader.take(16)?.try_into().map_err(|_| "ends too early")?;
                is_set.then_some(u128::from_le_bytes(bytes))
            },
            owner: shared(reader.bytes()?),
            holder: shared(reader.bytes()?),
            metadata: shared(reader.bytes()?),
            joined_wall_ms: reader.varint()?,
            granted_wall_ms: {
                let is_set = reader.flag()?;
                let wall_ms = reader.varint()?;
                is_set.then_some(wall_ms)
            },
            slot: if self.format == FIRST_FORMAT { 0 } else { reader.small()? },
            together: {
                let names = if self.format == FIRST_FORMAT { 0 } else { reader.count()? };
                (0..names).map(|_| reader.bytes().map(Bytes::copy_from_slice)).collect::<ReadResult<_>>()?
            },
        };
        let kv = self.view.store.live(&entry.key).filter(|kv| kv.create_revision == entry.token);
        let kv = kv.ok_or("a lock entry without its key")?.clone();
        // The key's bytes are shared with the key space.
        let entry = LockEntry { key: kv.key.clone(), ..entry };
        let is_attached = kv.lease == entry.lease;
        self.view.locks.restore(entry, self.view.level >= 1)?;
        if !is_attached {
            self.view.locks.follow_lease(&kv.key, kv.create_revision, kv.lease);
        }
        Ok(())
    }

    fn recent(&mut self, reader: &mut Reader) -> ReadResult<()> {
        let (name, token, lease) = (reader.bytes()?, reader.signed()?, reader.signed()?);
        let entry = LockEntry {
            key: entry_key(name, lease).into(),
            token,
            lease,
            mode: decode_mode(reader)?,
            last_joiner: None,
            owner: shared(reader.bytes()?),
            holder: shared(reader.bytes()?),
            metadata: shared(reader.bytes()?),
            together: Arc::default(),
            joined_wall_ms: reader.varint()?,
            granted_wall_ms: Some(reader.varint()?),
            slot: 0,
        };
        let holder =
            RecentHolder { entry: Arc::new(entry), ended_wall_ms: reader.varint()?, cause: read_end(reader.byte()?)? };
        if self.view.locks.recent.len() >= limits::RECENT_HOLDERS {
            return Err("too many recent holders");
        }
        self.view.locks.remember(holder);
        Ok(())
    }

    fn end(&mut self, reader: &mut Reader) -> ReadResult<()> {
        if reader.take(8)? != self.hasher.finish().to_le_bytes() {
            return Err("the hash does not match");
        }
        if self.view.store.revision != self.pending {
            return Err("a revision is missing");
        }
        self.attach_keys()
    }

    /// A lease's keys are those whose live version names it.
    fn attach_keys(&mut self) -> ReadResult<()> {
        let View { store, leases, .. } = &mut self.view;
        for (key, record) in store.records_after(None) {
            let lease = record.live().map_or(0, |kv| kv.lease);
            if lease != 0 && !leases.attach(lease, key) {
                return Err("a key with an unknown lease");
            }
        }
        Ok(())
    }
}

impl Default for Restore {
    fn default() -> Restore {
        Restore::new()
    }
}

/// A version as it is written down: its mod revision is in another place.
struct Version<'a> {
    key: &'a [u8],
    value: &'a [u8],
    create_revision: Revision,
    version: i64,
    lease: LeaseId,
}

impl Version<'_> {
    fn with_mod_revision(&self, mod_revision: Revision) -> KeyValue {
        KeyValue {
            key: shared(self.key),
            value: self.value.into(),
            create_revision: self.create_revision,
            mod_revision,
            version: self.version,
            lease: self.lease,
        }
    }
}

fn read_end(number: u8) -> ReadResult<LockEnd> {
    Ok(match number {
        0 => LockEnd::Released,
        1 => LockEnd::Left,
        2 => LockEnd::LeaseExpired,
        3 => LockEnd::LeaseRevoked,
        4 => LockEnd::Forced,
        _ => return Err("unknown end of a lock"),
    })
}

fn read_version<'a>(reader: &mut Reader<'a>) -> ReadResult<Version<'a>> {
    Ok(Version {
        key: reader.bytes()?,
        value: reader.bytes()?,
        create_revision: reader.signed()?,
        version: reader.signed()?,
        lease: reader.signed()?,
    })
}
