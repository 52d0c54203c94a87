//! A batch: all that was waiting when the log was free, as one write and one sync.
//!
//! A batch is the unit of truth. It is there as a whole or not at all: one checksum over its body, and
//! one over its header, so that the header's length can be trusted before the body is read. Batches are
//! numbered without a gap and each is written only after the one before is durable; hence a valid header
//! with a later number *proves* that every earlier batch was durable, and a damaged one among them is
//! corruption. Without such a proof a damaged batch was never acknowledged: a torn tail.
//!
//! A batch begins on a sector of its own. So a write in flight never touches a sector that holds
//! acknowledged bytes, and a header, lying within one sector, is never torn.

use bytes::{Buf, Bytes};

use crate::aligned::AlignedBuffer;
use crate::types::{Entry, HardState};

/// Batches begin and end on multiples of this.
pub(crate) const SECTOR_BYTES: usize = 512;
pub(crate) const BATCH_HEADER_BYTES: usize = 32;
pub(crate) const POSITION_RECORD_BYTES: usize = 1 + 40;

const MAGIC: u32 = u32::from_le_bytes(*b"BTCH");
const POSITION: u8 = 1;
const HARD_STATE: u8 = 2;
const ENTRY: u8 = 3;
const RESET: u8 = 4;
/// Kind, index, term, kind of entry, and two lengths.
const ENTRY_HEAD_BYTES: usize = 1 + 8 + 8 + 1 + 4 + 4;

/// What is known of the log at some point: enough to go on without what came before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub hard_state: HardState,
    pub last_index: u64,
    pub last_term: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first record of every segment: the state before it.
    Position(Position),
    HardState(HardState),
    /// Replaces the entry of that index and drops all after it.
    Entry(Entry),
    /// A snapshot took the log's place: no entries, and the next has `index + 1`.
    Reset {
        index: u64,
        term: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub body_bytes: u32,
    pub number: u64,
    /// Where in its segment the batch was meant to lie.
    pub offset: u64,
    pub body_checksum: u32,
}

impl BatchHeader {
    pub(crate) fn encode(&self, salt: u64) -> [u8; BATCH_HEADER_BYTES] {
        let mut bytes = [0; BATCH_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.body_checksum.to_le_bytes());
        let checksum = salted_checksum(salt, &bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header at the start of `bytes`, if this segment's log wrote it.
    pub(crate) fn decode(bytes: &[u8], salt: u64) -> Option<Self> {
        let bytes = bytes.get(..BATCH_HEADER_BYTES)?;
        let mut fields = bytes;
        if fields.get_u32_le() != MAGIC {
            return None;
        }
        let header = Self {
            body_bytes: fields.get_u32_le(),
            number: fields.get_u64_le(),
            offset: fields.get_u64_le(),
            body_checksum: fields.get_u32_le(),
        };
        (fields.get_u32_le() == salted_checksum(salt, &bytes[..28])).then_some(header)
    }

    /// With the padding behind it.
    pub(crate) fn padded_bytes(&self) -> usize {
        (BATCH_HEADER_BYTES + self.body_bytes as usize).next_multiple_of(SECTOR_BYTES)
    }
}

/// A checksum that bytes of another segment, or of another directory, do not pass.
pub(crate) fn salted_checksum(salt: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), bytes)
}

pub(crate) fn put_position(buffer: &mut AlignedBuffer, position: &Position) {
    buffer.put_u8(POSITION);
    put_hard_state_fields(buffer, &position.hard_state);
    buffer.put_u64(position.last_index);
    buffer.put_u64(position.last_term);
}

pub(crate) fn put_hard_state(buffer: &mut AlignedBuffer, hard_state: &HardState) {
    buffer.put_u8(HARD_STATE);
    put_hard_state_fields(buffer, hard_state);
}

pub(crate) fn put_entry(buffer: &mut AlignedBuffer, entry: &Entry) {
    let mut head = [0; ENTRY_HEAD_BYTES];
    head[0] = ENTRY;
    head[1..9].copy_from_slice(&entry.index.to_le_bytes());
    head[9..17].copy_from_slice(&entry.term.to_le_bytes());
    head[17] = entry.kind;
    // Lengths fit: the log refuses longer entries before it comes here.
    head[18..22].copy_from_slice(&(entry.context.len() as u32).to_le_bytes());
    head[22..26].copy_from_slice(&(entry.data.len() as u32).to_le_bytes());
    buffer.put(&head);
    buffer.put(&entry.context);
    buffer.put(&entry.data);
}

pub(crate) fn entry_record_bytes(entry: &Entry) -> usize {
    ENTRY_HEAD_BYTES + entry.context.len() + entry.data.len()
}

pub(crate) fn put_reset(buffer: &mut AlignedBuffer, index: u64, term: u64) {
    buffer.put_u8(RESET);
    buffer.put_u64(index);
    buffer.put_u64(term);
}

/// The records of a verified body. An error names the byte within the body and what is wrong there.
pub(crate) fn decode_records(body: Bytes) -> Result<Vec<Record>, (usize, String)> {
    let total = body.len();
    let mut rest = body;
    let mut records = Vec::new();
    while rest.has_remaining() {
        let position = total - rest.len();
        let record = decode_record(&mut rest).map_err(|reason| (position, reason))?;
        records.push(record);
    }
    Ok(records)
}

fn decode_record(rest: &mut Bytes) -> Result<Record, String> {
    let short = |_| "a record ends beyond its batch".to_string();
    match rest.try_get_u8().map_err(short)? {
        POSITION => {
            let hard_state = decode_hard_state_fields(rest)?;
            let last_index = rest.try_get_u64_le().map_err(short)?;
            let last_term = rest.try_get_u64_le().map_err(short)?;
            Ok(Record::Position(Position { hard_state, last_index, last_term }))
        }
        HARD_STATE => decode_hard_state_fields(rest).map(Record::HardState),
        ENTRY => {
            let index = rest.try_get_u64_le().map_err(short)?;
            let term = rest.try_get_u64_le().map_err(short)?;
            let kind = rest.try_get_u8().map_err(short)?;
            let context_bytes = rest.try_get_u32_le().map_err(short)? as usize;
            let data_bytes = rest.try_get_u32_le().map_err(short)? as usize;
            if context_bytes.saturating_add(data_bytes) > rest.len() {
                return Err("an entry ends beyond its batch".to_string());
            }
            let context = rest.split_to(context_bytes);
            let data = rest.split_to(data_bytes);
            Ok(Record::Entry(Entry { index, term, kind, data, context }))
        }
        RESET => {
            let index = rest.try_get_u64_le().map_err(short)?;
            let term = rest.try_get_u64_le().map_err(short)?;
            Ok(Record::Reset { index, term })
        }
        unknown => Err(format!("a record of the unknown kind {unknown}")),
    }
}

fn put_hard_state_fields(buffer: &mut AlignedBuffer, hard_state: &HardState) {
    buffer.put_u64(hard_state.term);
    buffer.put_u64(hard_state.vote);
    buffer.put_u64(hard_state.commit);
}

fn decode_hard_state_fields(rest: &mut Bytes) -> Result<HardState, String> {
    let short = |_| "a hard state ends beyond its batch".to_string();
    let term = rest.try_get_u64_le().map_err(short)?;
    let vote = rest.try_get_u64_le().map_err(short)?;
    let commit = rest.try_get_u64_le().map_err(short)?;
    Ok(HardState { term, vote, commit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let hard_state = HardState { term: 3, vote: 2, commit: 9 };
        let position = Position { hard_state, last_index: 10, last_term: 3 };
        let entry = Entry {
            index: 11,
            term: 3,
            kind: 1,
            data: Bytes::from_static(b"data"),
            context: Bytes::from_static(b"who"),
        };
        let mut buffer = AlignedBuffer::with_capacity(16);
        put_position(&mut buffer, &position);
        assert_eq!(buffer.len(), POSITION_RECORD_BYTES);
        put_hard_state(&mut buffer, &hard_state);
        let before = buffer.len();
        put_entry(&mut buffer, &entry);
        assert_eq!(buffer.len() - before, entry_record_bytes(&entry));
        put_reset(&mut buffer, 20, 4);
        let records = decode_records(Bytes::copy_from_slice(buffer.as_slice())).unwrap();
        assert_eq!(
            records,
            [
                Record::Position(position),
                Record::HardState(hard_state),
                Record::Entry(entry),
                Record::Reset { index: 20, term: 4 }
            ]
        );
        for length in 1..buffer.len() {
            // A cut at a record's border is a shorter list; any other cut must be noticed.
            if let Ok(shorter) = decode_records(Bytes::copy_from_slice(&buffer.as_slice()[..length])) {
                assert!(shorter.len() < 4 && shorter == records[..shorter.len()]);
            }
        }
    }

    #[test]
    fn a_header_belongs_to_its_salt() {
        let header = BatchHeader { body_bytes: 100, number: 7, offset: 512, body_checksum: 0xdead };
        let bytes = header.encode(1);
        assert_eq!(BatchHeader::decode(&bytes, 1), Some(header));
        assert_eq!(BatchHeader::decode(&bytes, 2), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BatchHeader::decode(&flipped, 1), None, "bit {bit}");
        }
    }
}
