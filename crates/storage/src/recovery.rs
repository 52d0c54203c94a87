//! Opening an existing directory: from bytes back to a log that can be trusted.
//!
//! Everything acknowledged comes back, or the opening fails and says where. Three questions are decided
//! here, each by proof and not by guessing.
//!
//! *Which segments matter?* Each begins with the position before it. The newest whose position lies within
//! the snapshot needs nothing older, so that older files may be there or not: their removal need not be
//! ordered on disk. From that one on, none may be missing.
//!
//! *Torn tail or corruption?* See `batch`: a valid header with a later number, anywhere behind the damage,
//! proves corruption; so does a header that lies where it was not meant to. Otherwise the damage is what a
//! power cut left of the one batch that was in flight.
//!
//! *Do log and snapshot belong together?* A received snapshot may have got its name just before a crash, the
//! log not yet knowing of it. If the log has the snapshot's last entry with the snapshot's term, what follows
//! it is kept; otherwise the snapshot replaces the log, unless the log says that it had committed as far.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use bytes::Bytes;

use crate::batch::{BATCH_HEADER_BYTES, BatchHeader, Position, Record, SECTOR_BYTES, decode_records};
use crate::disk::{Disk, DiskFile, read_all};
use crate::error::Fault;
use crate::log::{Log, Place, Tail, UsedSegment, erase, first_needed};
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::types::{Entry, HardState, SnapshotMeta, TornTail};

/// What the segments hold, verified; nothing on disk has been changed yet.
pub(crate) struct Reading {
    pub hard_state: HardState,
    /// Those after the snapshot.
    pub entries: Vec<Entry>,
    pub torn_tail: Option<TornTail>,
    /// The snapshot is ahead of the log, or of another history: the log must be told.
    pub reset: bool,
    /// Files that are needed no more, oldest first.
    pub obsolete: Vec<PathBuf>,
    used: VecDeque<UsedSegment>,
    position: Position,
    next_batch: u64,
    tail_sequence: u64,
    tail_offset: u64,
    /// Where the file has its last byte that is not zero.
    tail_dirty: u64,
    /// The bytes of the last batch (with the segment's header, if it is the first one there), and where they stand.
    last_batch: (u64, Vec<u8>),
}

/// Reads the log of segments `sequences` (ascending) on top of `snapshot`.
pub(crate) fn read<D: Disk>(place: &Place<D>, sequences: &[u64], snapshot: &SnapshotMeta) -> Result<Reading, Fault> {
    let mut firsts = BTreeMap::new();
    for &sequence in sequences {
        if let Some(first) = read_first(place, sequence)? {
            firsts.insert(sequence, first);
        }
    }
    let used: VecDeque<UsedSegment> = firsts
        .iter()
        .map(|(&sequence, first)| UsedSegment { sequence, last_index_before: first.position.last_index })
        .collect();
    let Some(start) = first_needed(&used, snapshot.index) else {
        return Err(no_start(place, sequences, &used, snapshot));
    };
    let needed: VecDeque<UsedSegment> = used.iter().skip(start).copied().collect();
    let (first_sequence, tail_sequence) = (needed[0].sequence, needed[needed.len() - 1].sequence);

    let first = firsts[&first_sequence];
    let mut replay = Replay::new(first.position);
    let mut next_batch = first.number;
    let mut tail_bytes = Vec::new();
    let mut tail_offset = 0;
    let mut last_batch = 0;
    for sequence in first_sequence..=tail_sequence {
        let path = place.segment_path(sequence);
        if sequences.binary_search(&sequence).is_err() {
            return Err(Fault::corrupt(&path, 0, "the segment is missing, though later ones are there"));
        }
        let Some(first) = firsts.get(&sequence) else {
            let reason = "the segment's header or first batch is damaged, though later segments are there";
            return Err(Fault::corrupt(&path, 0, reason));
        };
        if first.number != next_batch {
            let earlier = place.segment_path(sequence - 1);
            let reason =
                format!("batch {next_batch} is damaged or missing: the next segment begins with {}", first.number);
            return Err(Fault::corrupt(&earlier, tail_offset as u64, reason));
        }
        tail_bytes = read_segment(place, sequence)?;
        (last_batch, tail_offset, next_batch) = replay.segment(place, sequence, &tail_bytes, next_batch)?;
    }
    prove_end(place, tail_sequence, &tail_bytes, tail_offset, next_batch)?;
    for &sequence in sequences.iter().filter(|sequence| **sequence > tail_sequence) {
        prove_unused(place, sequence, next_batch)?;
    }

    let tail_path = place.segment_path(tail_sequence);
    if replay.position.hard_state.commit > replay.position.last_index {
        let reason = format!(
            "the log ends at entry {}, but entry {} was committed",
            replay.position.last_index, replay.position.hard_state.commit
        );
        return Err(Fault::corrupt(&tail_path, tail_offset as u64, reason));
    }
    let tail_dirty = tail_bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let torn_tail = (tail_dirty > tail_offset).then(|| TornTail {
        file: tail_path,
        offset: tail_offset as u64,
        bytes: (tail_dirty - tail_offset) as u64,
    });
    let obsolete = sequences.iter().filter(|sequence| !(first_sequence..=tail_sequence).contains(*sequence));
    let obsolete = obsolete.map(|sequence| place.segment_path(*sequence)).collect();
    let (reset, entries) = replay.join(place, first_sequence, snapshot)?;
    let mut hard_state = replay.position.hard_state;
    hard_state.commit = hard_state.commit.max(snapshot.index);
    if snapshot.term > hard_state.term {
        hard_state = HardState { term: snapshot.term, vote: 0, ..hard_state };
    }
    Ok(Reading {
        hard_state,
        entries,
        torn_tail,
        reset,
        obsolete,
        used: needed,
        position: replay.position,
        next_batch,
        tail_sequence,
        tail_offset: tail_offset as u64,
        tail_dirty: tail_dirty as u64,
        last_batch: (last_batch as u64, tail_bytes[last_batch..tail_offset.min(tail_bytes.len())].to_vec()),
    })
}

impl Reading {
    /// Makes what was read durable: it may be in the page cache only, left by a process that was killed
    /// before its sync, or whose sync failed. In that case the kernel no longer knows that the pages differ
    /// from the disk, and another sync would do nothing: so the one batch that can be in doubt is written
    /// again, byte for byte. Nothing may be removed on its strength, or appended behind it, before that.
    pub(crate) fn sync<D: Disk>(&self, place: &Place<D>) -> Result<(), Fault> {
        let path = place.segment_path(self.tail_sequence);
        let failed = |source| Fault::io("syncing", &path, source);
        let (offset, bytes) = &self.last_batch;
        let mut file = place.disk.open(&path).map_err(failed)?;
        file.write_at(bytes, *offset).and_then(|()| file.sync_data()).map_err(failed)?;
        place.disk.sync_directory(&place.directory).map_err(failed)
    }

    /// Clears the torn tail and begins to write behind what was read.
    pub(crate) fn resume<D: Disk>(&self, place: Place<D>, snapshot: &SnapshotMeta) -> Result<Log<D>, Fault> {
        let path = place.segment_path(self.tail_sequence);
        let failed = |source| Fault::io("opening the log", &path, source);
        let mut file = place.disk.open(&path).map_err(failed)?;
        if self.torn_tail.is_some() {
            erase(&mut file, &path, self.tail_offset, self.tail_dirty)?;
            file.sync_data().map_err(failed)?;
        }
        let length = file.length().map_err(failed)?;
        drop(file);
        let tail = Tail {
            file: place.disk.open_log(&path).map_err(failed)?,
            salt: place.salt(self.tail_sequence),
            // A file that somebody cut short is full where it ends.
            capacity: (length - length % SECTOR_BYTES as u64).max(self.tail_offset),
            offset: self.tail_offset,
            path,
        };
        let mut log =
            Log::recovered(place, self.used.clone(), Some(tail), self.next_batch, self.position, snapshot.index);
        if self.reset {
            log.gather_reset(snapshot.index, snapshot.term, self.hard_state)?;
        } else {
            log.gather([crate::Group { hard_state: Some(self.hard_state), entries: &[] }])?;
        }
        log.flush()?;
        Ok(log)
    }
}

/// The log as its records tell it, one after the other.
struct Replay {
    position: Position,
    /// The index and, if known, the term before the first of `entries`.
    base: (u64, Option<u64>),
    entries: Vec<Entry>,
}

impl Replay {
    fn new(position: Position) -> Self {
        Self { position, base: (position.last_index, Some(position.last_term)), entries: Vec::new() }
    }

    /// Takes in the batches of a segment, up to the first that is not there. Where the last one begins (the
    /// first one with the segment's header), where the next one would, and its number.
    fn segment<D: Disk>(
        &mut self,
        place: &Place<D>,
        sequence: u64,
        bytes: &[u8],
        first_batch: u64,
    ) -> Result<(usize, usize, u64), Fault> {
        let salt = place.salt(sequence);
        let mut offset = SEGMENT_HEADER_BYTES;
        let mut number = first_batch;
        let mut last = 0;
        while let Some((header, body)) = batch_at(bytes, offset, number, salt) {
            let corrupt = |position: usize, reason: String| {
                let at = (offset + BATCH_HEADER_BYTES + position) as u64;
                Fault::corrupt(&place.segment_path(sequence), at, reason)
            };
            // One copy for each batch: an entry keeps its batch in memory, not its segment.
            let records =
                decode_records(Bytes::copy_from_slice(body)).map_err(|(position, reason)| corrupt(position, reason))?;
            for (position, record) in records.into_iter().enumerate() {
                let first = offset == SEGMENT_HEADER_BYTES && position == 0;
                self.record(record, first).map_err(|reason| corrupt(0, reason))?;
            }
            last = if offset == SEGMENT_HEADER_BYTES { 0 } else { offset };
            offset += header.padded_bytes();
            number += 1;
        }
        Ok((last, offset, number))
    }

    fn record(&mut self, record: Record, first_of_segment: bool) -> Result<(), String> {
        match record {
            Record::Position(position) if first_of_segment && position == self.position => {}
            Record::Position(_) => return Err("a position that does not fit what came before".to_string()),
            Record::HardState(hard_state) => self.position.hard_state = hard_state,
            Record::Reset { index, term } => {
                self.entries.clear();
                self.base = (index, Some(term));
                self.position.last_index = index;
                self.position.last_term = term;
            }
            Record::Entry(entry) => self.entry(entry)?,
        }
        Ok(())
    }

    fn entry(&mut self, entry: Entry) -> Result<(), String> {
        if entry.index == 0 || entry.index > self.position.last_index + 1 {
            return Err(format!("entry {} follows entry {}", entry.index, self.position.last_index));
        }
        if entry.index <= self.base.0 {
            self.base = (entry.index - 1, None);
            self.entries.clear();
        }
        self.entries.truncate((entry.index - self.base.0 - 1) as usize);
        self.position.last_index = entry.index;
        self.position.last_term = entry.term;
        self.entries.push(entry);
        Ok(())
    }

    /// Whether the log must be reset to the snapshot, and the entries that follow it otherwise.
    fn join<D: Disk>(
        &mut self,
        place: &Place<D>,
        first_sequence: u64,
        snapshot: &SnapshotMeta,
    ) -> Result<(bool, Vec<Entry>), Fault> {
        let corrupt = |reason| Err(Fault::corrupt(&place.segment_path(first_sequence), 0, reason));
        let (base_index, base_term) = self.base;
        if snapshot.index < base_index {
            return corrupt(format!(
                "the entries between the snapshot at {} and {} are missing",
                snapshot.index,
                base_index + 1
            ));
        }
        if snapshot.index > self.position.last_index {
            return Ok((true, Vec::new()));
        }
        let following = (snapshot.index - base_index) as usize;
        let term = if following == 0 { base_term } else { Some(self.entries[following - 1].term) };
        if term == Some(snapshot.term) {
            return Ok((false, self.entries.split_off(following)));
        }
        if self.position.hard_state.commit >= snapshot.index {
            return corrupt(format!(
                "the log had committed entry {} of another term than the snapshot's {}",
                snapshot.index, snapshot.term
            ));
        }
        Ok((true, Vec::new()))
    }
}

#[derive(Clone, Copy)]
struct First {
    number: u64,
    position: Position,
}

/// The number and position at the beginning of a segment; `None` if its header or first batch is not readable.
fn read_first<D: Disk>(place: &Place<D>, sequence: u64) -> Result<Option<First>, Fault> {
    let path = place.segment_path(sequence);
    let failed = |source| Fault::io("reading", &path, source);
    let file = place.disk.open(&path).map_err(failed)?;
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES + SECTOR_BYTES];
    let read = file.read_at(&mut bytes, 0).map_err(failed)?;
    bytes.truncate(read);
    let salt = place.salt(sequence);
    let Some(segment) = SegmentHeader::decode(&bytes) else { return Ok(None) };
    if (segment.directory_id, segment.sequence) != (place.directory_id, sequence) {
        let reason = format!("it is segment {} of directory {:032x}", segment.sequence, segment.directory_id);
        return Err(Fault::corrupt(&path, 0, reason));
    }
    let Some(header) = BatchHeader::decode(&bytes[SEGMENT_HEADER_BYTES..], salt) else { return Ok(None) };
    let end = SEGMENT_HEADER_BYTES + header.padded_bytes();
    if file.length().map_err(failed)?
        < (SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES) as u64 + u64::from(header.body_bytes)
    {
        return Ok(None);
    }
    bytes.resize(end, 0);
    let read = file.read_at(&mut bytes, 0).map_err(failed)?;
    bytes.truncate(read);
    let Some((_, body)) = batch_at(&bytes, SEGMENT_HEADER_BYTES, segment.first_batch, salt) else { return Ok(None) };
    match decode_records(Bytes::copy_from_slice(body)).as_deref() {
        Ok([Record::Position(position), ..]) => Ok(Some(First { number: segment.first_batch, position: *position })),
        _ => Err(Fault::corrupt(&path, SEGMENT_HEADER_BYTES as u64, "the segment does not begin with its position")),
    }
}

fn read_segment<D: Disk>(place: &Place<D>, sequence: u64) -> Result<Vec<u8>, Fault> {
    let path = place.segment_path(sequence);
    let failed = |source| Fault::io("reading", &path, source);
    read_all(&place.disk.open(&path).map_err(failed)?).map_err(failed)
}

/// The batch `number` at `offset`, whole and meant for this place.
fn batch_at(bytes: &[u8], offset: usize, number: u64, salt: u64) -> Option<(BatchHeader, &[u8])> {
    let header = BatchHeader::decode(bytes.get(offset..)?, salt)?;
    let begin = offset + BATCH_HEADER_BYTES;
    let body = bytes.get(begin..begin + header.body_bytes as usize)?;
    let is_sound = header.body_checksum == crc32c::crc32c(body);
    #[cfg(feature = "planted")]
    let is_sound = is_sound || crate::planted::is(crate::planted::Bug::BelieveTornBatch);
    let whole = header.number == number && header.offset == offset as u64 && is_sound;
    whole.then_some((header, body))
}

/// Nothing behind `end` proves that batch `number`, which should lie there, was durable once.
fn prove_end<D: Disk>(place: &Place<D>, sequence: u64, bytes: &[u8], end: usize, number: u64) -> Result<(), Fault> {
    let salt = place.salt(sequence);
    for offset in (end..bytes.len()).step_by(SECTOR_BYTES) {
        let Some(header) = BatchHeader::decode(&bytes[offset..], salt) else { continue };
        if offset == end && header.number == number && header.offset == end as u64 {
            continue;
        }
        let path = place.segment_path(sequence);
        let reason = if header.offset == offset as u64 {
            format!("batch {number} is damaged, and batch {} at byte {offset} shows that it was written", header.number)
        } else {
            format!("batch {} lies at byte {offset} but was meant for byte {}", header.number, header.offset)
        };
        return Err(Fault::corrupt(&path, end as u64, reason));
    }
    Ok(())
}

/// A segment without a readable beginning never held more than the torn batch `number`.
fn prove_unused<D: Disk>(place: &Place<D>, sequence: u64, number: u64) -> Result<(), Fault> {
    let bytes = read_segment(place, sequence)?;
    // A write that went astray may be what hides the beginning.
    if let Some(header) = BatchHeader::decode(&bytes, place.salt(sequence)) {
        let reason = format!("batch {} lies at byte 0 but was meant for byte {}", header.number, header.offset);
        return Err(Fault::corrupt(&place.segment_path(sequence), 0, reason));
    }
    prove_end(place, sequence, &bytes, SEGMENT_HEADER_BYTES, number)
}

fn no_start<D: Disk>(
    place: &Place<D>,
    sequences: &[u64],
    used: &VecDeque<UsedSegment>,
    snapshot: &SnapshotMeta,
) -> Fault {
    match used.front() {
        Some(first) => {
            let reason = format!(
                "the log begins after entry {}, but the newest usable snapshot ends at {}",
                first.last_index_before, snapshot.index
            );
            Fault::corrupt(&place.segment_path(first.sequence), 0, reason)
        }
        None => {
            let sequence = sequences.first().copied().unwrap_or(1);
            Fault::corrupt(&place.segment_path(sequence), 0, "the log has no readable segment")
        }
    }
}
