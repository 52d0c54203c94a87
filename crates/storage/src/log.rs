//! The log as its writer sees it.
//!
//! Records gather in a buffer; a flush makes them one batch: one write, one sync. What is not asked to be
//! durable stays in the buffer and travels with the next batch, so that no batch is ever written before
//! the one in front of it is durable. That order is what recovery's proofs rest on.
//!
//! The next segment is written with zeroes in the background when a quarter of this one is used. A disk
//! that fills up is thus noticed while there is still room ([`Log::early_warning`]), and changing over to
//! the next segment is one ordinary write: its header goes in front of its first batch.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::aligned::AlignedBuffer;
use crate::background::Background;
use crate::batch::{
    BATCH_HEADER_BYTES, BatchHeader, POSITION_RECORD_BYTES, Position, SECTOR_BYTES, entry_record_bytes, put_entry,
    put_hard_state, put_position, put_reset,
};
use crate::disk::{Disk, DiskFile};
use crate::error::Fault;
use crate::layout;
use crate::pace::{BEGIN, Pace, Progress};
use crate::segment::{self, Next, Prepared, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::types::{Entry, Group, HardState};

/// A batch stays well below what its 32-bit length can say.
const MAX_BATCH_BYTES: usize = 1 << 30;
/// Records that nobody waits for are written anyway once there are so many.
const MAX_UNSYNCED_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 1 << 16;
/// A buffer that one large batch made longer than this is not kept.
const MAX_KEPT_BUFFER_BYTES: usize = 4 << 20;
/// The first segment is small: a new directory need not wait for zeroes. Each is at most so many times as long as the one
/// before it, or the disk of a new directory would be busy with little else than zeroes.
const FIRST_SEGMENT_BYTES: u64 = 4 << 20;
const GROWTH: u64 = 2;

/// Where and whose the log is.
#[derive(Clone, Debug)]
pub(crate) struct Place<D> {
    pub disk: D,
    pub directory: PathBuf,
    pub directory_id: u128,
    pub segment_bytes: u64,
}

impl<D: Disk> Place<D> {
    pub(crate) fn segment_path(&self, sequence: u64) -> PathBuf {
        self.directory.join(layout::segment_name(sequence))
    }

    pub(crate) fn salt(&self, sequence: u64) -> u64 {
        segment::salt(self.directory_id, sequence)
    }
}

/// A segment in use, oldest first in the log's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsedSegment {
    pub sequence: u64,
    /// The last index of the log before this segment: with a snapshot at or beyond it, earlier segments are not needed.
    pub last_index_before: u64,
}

/// The segment that is being written.
#[derive(Debug)]
pub(crate) struct Tail<F> {
    pub file: F,
    pub path: PathBuf,
    pub salt: u64,
    pub capacity: u64,
    pub offset: u64,
}

#[derive(Debug)]
pub(crate) struct Log<D: Disk> {
    place: Place<D>,
    used: VecDeque<UsedSegment>,
    /// `None` before the first batch of a new directory.
    tail: Option<Tail<D::File>>,
    next_batch: u64,
    /// After the last durable batch.
    durable: Position,
    /// With what waits in the buffer.
    gathered: Position,
    /// Entries up to here are in a snapshot.
    snapshot_index: u64,
    /// Room for the batch header, then records.
    buffer: AlignedBuffer,
    next_segment: Arc<Mutex<NextSegment<D::File>>>,
    background: Background<D>,
    progress: Progress,
    poison: Option<String>,
}

/// The segment that is prepared ahead.
#[derive(Debug)]
enum NextSegment<F> {
    None,
    Running,
    Ready(Prepared<F>),
    Failed(Fault),
}

impl<D: Disk> Log<D> {
    /// The log of a new directory, which begins behind its first snapshot.
    pub(crate) fn new(place: Place<D>, position: Position) -> Self {
        Self::recovered(place, VecDeque::new(), None, 1, position, position.last_index)
    }

    pub(crate) fn recovered(
        place: Place<D>,
        used: VecDeque<UsedSegment>,
        tail: Option<Tail<D::File>>,
        next_batch: u64,
        durable: Position,
        snapshot_index: u64,
    ) -> Self {
        let background = Background::new(place.disk.clone());
        Self {
            place,
            used,
            tail,
            next_batch,
            durable,
            gathered: durable,
            snapshot_index,
            buffer: empty_buffer(),
            next_segment: Arc::new(Mutex::new(NextSegment::None)),
            background,
            progress: Progress::default(),
            poison: None,
        }
    }

    pub(crate) fn last_index(&self) -> u64 {
        self.gathered.last_index
    }

    pub(crate) fn hard_state(&self) -> HardState {
        self.gathered.hard_state
    }

    /// Takes the groups into the coming batch: all, or none if one of them breaks a rule.
    pub(crate) fn gather<'a>(&mut self, groups: impl IntoIterator<Item = Group<'a>>) -> Result<(), Fault> {
        self.check_poison()?;
        let (length, position) = (self.buffer.len(), self.gathered);
        let gathered = groups.into_iter().try_for_each(|group| self.gather_one(group));
        if gathered.is_err() {
            self.buffer.truncate(length);
            self.gathered = position;
        }
        gathered
    }

    /// A snapshot takes the place of all entries; the next one has `index + 1`.
    pub(crate) fn gather_reset(&mut self, index: u64, term: u64, hard_state: HardState) -> Result<(), Fault> {
        self.check_poison()?;
        put_reset(&mut self.buffer, index, term);
        self.gathered.last_index = index;
        self.gathered.last_term = term;
        self.snapshot_index = index;
        self.gather_hard_state(hard_state);
        Ok(())
    }

    /// A record that says nothing new: once it is durable it proves that all before it was.
    pub(crate) fn gather_marker(&mut self) -> Result<(), Fault> {
        self.check_poison()?;
        self.gather_hard_state(self.gathered.hard_state);
        Ok(())
    }

    /// Makes everything gathered durable.
    pub(crate) fn flush(&mut self) -> Result<(), Fault> {
        self.check_poison()?;
        if self.buffer.len() == BATCH_HEADER_BYTES {
            return Ok(());
        }
        let bytes = self.buffer.len().next_multiple_of(SECTOR_BYTES) as u64;
        let fits = self.tail.as_ref().is_some_and(|tail| bytes <= tail.capacity - tail.offset);
        let written = if fits { self.write_batch() } else { self.write_first_batch() };
        written.inspect_err(|fault| self.poison = Some(fault.to_string()))?;
        self.next_batch += 1;
        self.durable = self.gathered;
        if self.buffer.capacity() > MAX_KEPT_BUFFER_BYTES {
            self.buffer = empty_buffer();
        }
        self.buffer.truncate(BATCH_HEADER_BYTES);
        self.prepare_ahead();
        Ok(())
    }

    /// Flushes only if there is much.
    pub(crate) fn flush_if_large(&mut self) -> Result<(), Fault> {
        if self.buffer.len() > MAX_UNSYNCED_BYTES { self.flush() } else { self.check_poison() }
    }

    /// Entries up to `index` are in a durable snapshot. The files that are not needed any more, oldest first.
    pub(crate) fn forget(&mut self, index: u64) -> Vec<PathBuf> {
        self.snapshot_index = self.snapshot_index.max(index);
        let needed = first_needed(&self.used, index).unwrap_or(0);
        self.used.drain(..needed).map(|segment| self.place.segment_path(segment.sequence)).collect()
    }

    /// Room was made: a preparation that failed may be tried again.
    pub(crate) fn retry_preparation(&mut self) {
        let mut next = lock(&self.next_segment);
        if matches!(*next, NextSegment::Failed(_)) {
            *next = NextSegment::None;
        }
    }

    /// Why the next segment could not be prepared, while there is still room in this one.
    pub(crate) fn early_warning(&self) -> Option<Fault> {
        match &*lock(&self.next_segment) {
            NextSegment::Failed(fault) => Some(fault.clone()),
            _ => None,
        }
    }

    pub(crate) fn background(&self) -> &Background<D> {
        &self.background
    }

    pub(crate) fn check_poison(&self) -> Result<(), Fault> {
        match &self.poison {
            Some(cause) => Err(Fault::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn gather_one(&mut self, group: Group<'_>) -> Result<(), Fault> {
        for entry in group.entries {
            self.check_entry(entry)?;
            put_entry(&mut self.buffer, entry);
            self.gathered.last_index = entry.index;
            self.gathered.last_term = entry.term;
        }
        if let Some(hard_state) = group.hard_state {
            self.gather_hard_state(hard_state);
        }
        Ok(())
    }

    fn check_entry(&self, entry: &Entry) -> Result<(), Fault> {
        let Position { hard_state, last_index, .. } = self.gathered;
        if entry.index > last_index + 1 {
            return Err(Fault::refused(format!("entry {} would leave a gap after {last_index}", entry.index)));
        }
        if entry.index <= self.snapshot_index {
            let reason = format!("entry {} lies within the snapshot at {}", entry.index, self.snapshot_index);
            return Err(Fault::refused(reason));
        }
        if entry.index <= hard_state.commit {
            let reason = format!("entry {} would replace a committed one (commit {})", entry.index, hard_state.commit);
            return Err(Fault::refused(reason));
        }
        let bytes = entry_record_bytes(entry);
        if self.buffer.len() + bytes > MAX_BATCH_BYTES {
            return Err(Fault::refused(format!("a batch longer than {MAX_BATCH_BYTES} bytes")));
        }
        Ok(())
    }

    /// The commit index never points beyond the entries that are durable with it: so recovery may take
    /// a log that ends before its commit index for damaged.
    fn gather_hard_state(&mut self, hard_state: HardState) {
        let commit = hard_state.commit.min(self.gathered.last_index);
        let hard_state = HardState { commit, ..hard_state };
        put_hard_state(&mut self.buffer, &hard_state);
        self.gathered.hard_state = hard_state;
    }

    fn write_batch(&mut self) -> Result<(), Fault> {
        let Some(tail) = self.tail.as_mut() else { return Err(Fault::refused("no segment is open")) };
        let length = seal(&mut self.buffer, 0, self.next_batch, tail.offset, tail.salt);
        tail.file
            .write_durably(self.buffer.as_slice(), tail.offset)
            .map_err(|source| Fault::io("writing the log", &tail.path, source))?;
        tail.offset += length;
        Ok(())
    }

    /// The header, the position and the waiting records, as the first write to the next segment.
    fn write_first_batch(&mut self) -> Result<(), Fault> {
        let sequence = self.used.back().map_or(1, |segment| segment.sequence + 1);
        let salt = self.place.salt(sequence);
        let header = SegmentHeader { sequence, directory_id: self.place.directory_id, first_batch: self.next_batch };
        let records = &self.buffer.as_slice()[BATCH_HEADER_BYTES..];
        let mut first = AlignedBuffer::with_capacity(
            SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES + POSITION_RECORD_BYTES + records.len() + SECTOR_BYTES,
        );
        first.put(&header.encode());
        first.put(&[0; BATCH_HEADER_BYTES]);
        put_position(&mut first, &self.durable);
        first.put(records);
        let length = seal(&mut first, SEGMENT_HEADER_BYTES, self.next_batch, SEGMENT_HEADER_BYTES as u64, salt);
        let offset = SEGMENT_HEADER_BYTES as u64 + length;

        let Prepared { mut file, path, bytes: capacity, .. } = self.take_next_segment(sequence, offset)?;
        file.write_durably(first.as_slice(), 0).map_err(|source| Fault::io("writing the log", &path, source))?;
        self.used.push_back(UsedSegment { sequence, last_index_before: self.durable.last_index });
        self.tail = Some(Tail { file, path, salt, capacity, offset });
        Ok(())
    }

    /// The segment prepared ahead, or a new one if there is none, or none large enough.
    fn take_next_segment(&mut self, sequence: u64, needed: u64) -> Result<Prepared<D::File>, Fault> {
        if matches!(*lock(&self.next_segment), NextSegment::Running) {
            self.background.wait();
        }
        let next = std::mem::replace(&mut *lock(&self.next_segment), NextSegment::None);
        if let NextSegment::Ready(prepared) = next
            && prepared.sequence == sequence
            && prepared.bytes >= needed
        {
            return Ok(prepared);
        }
        let usual = if self.tail.is_none() { FIRST_SEGMENT_BYTES } else { u64::MAX }.min(self.place.segment_bytes);
        let bytes = usual.max(needed);
        let in_haste = |_| Next::InHaste;
        let prepared = segment::prepare(&self.place.disk, &self.place.directory, sequence, bytes, in_haste)?;
        prepared.ok_or_else(|| Fault::refused("cancelled"))
    }

    fn prepare_ahead(&mut self) {
        let Some(tail) = &self.tail else { return };
        self.progress.set(tail.offset, tail.capacity);
        let due = tail.offset as f64 >= tail.capacity as f64 * BEGIN;
        let mut next = lock(&self.next_segment);
        if !due || !matches!(*next, NextSegment::None) {
            return;
        }
        *next = NextSegment::Running;
        drop(next);
        let bytes = (tail.capacity * GROWTH).max(FIRST_SEGMENT_BYTES).min(self.place.segment_bytes);
        let Place { disk, directory, .. } = self.place.clone();
        let sequence = self.used.back().map_or(1, |segment| segment.sequence + 1);
        let slot = Arc::clone(&self.next_segment);
        let pace = Pace::new(bytes, self.progress.clone());
        let started = self.background.start(move |jobs| {
            let next = |written| jobs.next(disk.rest(), || pace.is_behind(written));
            let prepared = segment::prepare(&disk, &directory, sequence, bytes, next);
            *lock(&slot) = match prepared {
                Ok(Some(prepared)) => NextSegment::Ready(prepared),
                Ok(None) => NextSegment::None,
                Err(fault) => NextSegment::Failed(fault),
            };
        });
        if let Err(error) = started {
            let fault = Fault::io("starting a thread for", &self.place.segment_path(sequence), error);
            *lock(&self.next_segment) = NextSegment::Failed(fault);
        }
    }
}

/// The position, in a list of used segments, of the first that is needed with a snapshot at `index`.
pub(crate) fn first_needed(used: &VecDeque<UsedSegment>, index: u64) -> Option<usize> {
    used.iter().rposition(|segment| segment.last_index_before <= index)
}

/// Overwrites `[from, to)` with zeroes.
pub(crate) fn erase(file: &mut impl DiskFile, path: &Path, from: u64, to: u64) -> Result<(), Fault> {
    let zeroes = vec![0; 1 << 16];
    let mut offset = from;
    while offset < to {
        let length = (to - offset).min(zeroes.len() as u64);
        file.write_at(&zeroes[..length as usize], offset)
            .map_err(|source| Fault::io("clearing the torn tail of", path, source))?;
        offset += length;
    }
    Ok(())
}

fn empty_buffer() -> AlignedBuffer {
    let mut buffer = AlignedBuffer::with_capacity(BUFFER_BYTES);
    buffer.put(&[0; BATCH_HEADER_BYTES]);
    buffer
}

/// Fills in the header of the batch that begins at `start` in the buffer and pads it. Its length on disk.
fn seal(buffer: &mut AlignedBuffer, start: usize, number: u64, offset: u64, salt: u64) -> u64 {
    let body = &buffer.as_slice()[start + BATCH_HEADER_BYTES..];
    let header = BatchHeader { body_bytes: body.len() as u32, number, offset, body_checksum: crc32c::crc32c(body) };
    buffer.as_mut_slice()[start..start + BATCH_HEADER_BYTES].copy_from_slice(&header.encode(salt));
    buffer.pad(SECTOR_BYTES);
    header.padded_bytes() as u64
}

fn lock<F>(next: &Mutex<NextSegment<F>>) -> MutexGuard<'_, NextSegment<F>> {
    next.lock().unwrap_or_else(PoisonError::into_inner)
}
