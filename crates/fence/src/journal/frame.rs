//! The bytes of a journal's file, and how to read them after a crash. Pure.
//!
//! | bytes | header of the file | | bytes | frame |
//! |---|---|---|---|---|
//! | 8 | `TENUJRNL` | | 4 | `FRAM` |
//! | 4 | version | | 4 | length of the body |
//! | 4 | what the records are | | 8 | number: 1, 2, 3, … |
//! | 8 | directory id | | 4 | checksum of the body |
//! | 8 | sequence of the file | | 4 | checksum of the salt and the 20 bytes before |
//! | 8 | length that was durable when the file got its name | | 1 | 0xE5 |
//! | 4 | checksum of the bytes before | | | the body, and 0xE5 once more |
//!
//! Numbers are little-endian, checksums CRC32C. The salt is directory id, sequence and offset: a frame is valid in
//! one place only, and nobody who chooses the contents of a body can make it look like one.
//!
//! A frame is written only after the one before it is durable. So a bad frame is either the last one, torn by a
//! crash, and was never acknowledged; or it is damage, and then everything behind it is in doubt too. It is damage if
//! the file was sealed beyond it, if a valid frame lies behind it, or if all of its bytes are there and none of its
//! sectors ends in a zero: a sector that a crash kept from the disk reads as zeroes to its end.

use std::ops::Range;

pub(crate) const FILE_HEADER_BYTES: usize = 44;
pub(crate) const FRAME_HEADER_BYTES: usize = 25;
/// No frame is longer; a length beyond it is never believed.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 20;

const FILE_MAGIC: &[u8; 8] = b"TENUJRNL";
const FRAME_MAGIC: &[u8; 4] = b"FRAM";
const MARK: u8 = 0xE5;
const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub version: u32,
    pub kind: u32,
    pub directory_id: u64,
    pub sequence: u64,
    pub sealed_bytes: u64,
}

/// What makes a frame valid in one file only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Salt {
    pub directory_id: u64,
    pub sequence: u64,
}

/// A file that cannot be trusted, from this byte on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub offset: usize,
    pub reason: String,
}

/// The valid part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub bodies: Vec<Range<usize>>,
    /// Where the next frame goes.
    pub end: usize,
    /// Bytes of a frame that a crash cut short.
    pub torn_bytes: usize,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
        bytes.extend_from_slice(FILE_MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.kind.to_le_bytes());
        for number in [self.directory_id, self.sequence, self.sealed_bytes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn salt(&self) -> Salt {
        Salt { directory_id: self.directory_id, sequence: self.sequence }
    }

    /// The file was complete, header and all, before it got its name: whatever is wrong with the header is damage.
    pub(crate) fn decode(bytes: &[u8], newest: u32) -> Result<FileHeader, Result<u32, Damage>> {
        let damage = |reason: &str| Err(Err(Damage { offset: 0, reason: reason.to_owned() }));
        if bytes.get(..8) != Some(FILE_MAGIC) {
            return damage("it is not a journal");
        }
        let Some(header) = bytes.get(..FILE_HEADER_BYTES) else { return damage("its header is cut short") };
        let version = u32_at(header, 8);
        // Before the checksum: a newer format may have another layout behind it.
        if version > newest {
            return Err(Ok(version));
        }
        if u32_at(header, FILE_HEADER_BYTES - 4) != crc32c::crc32c(&header[..FILE_HEADER_BYTES - 4]) {
            return damage("the checksum of its header does not match");
        }
        Ok(FileHeader {
            version,
            kind: u32_at(header, 12),
            directory_id: u64_at(header, 16),
            sequence: u64_at(header, 24),
            sealed_bytes: u64_at(header, 32),
        })
    }
}

pub(crate) fn encode(salt: Salt, offset: u64, number: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + body.len() + 1);
    bytes.extend_from_slice(FRAME_MAGIC);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let checksum = salted(salt, offset, &bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.push(MARK);
    bytes.extend_from_slice(body);
    bytes.push(MARK);
    bytes
}

/// Reads the frames of a file whose header has been read.
pub(crate) fn read(bytes: &[u8], header: &FileHeader) -> Result<Reading, Damage> {
    let salt = header.salt();
    let mut reading = Reading { bodies: Vec::new(), end: FILE_HEADER_BYTES, torn_bytes: 0 };
    while reading.end < bytes.len() {
        let number = reading.bodies.len() as u64 + 1;
        match frame_at(bytes, reading.end, number, salt) {
            Ok(body) => {
                reading.end = body.end + 1;
                reading.bodies.push(body);
            }
            Err(Broken { reason, extent }) => {
                let damage = |reason: String| Err(Damage { offset: reading.end, reason });
                if (reading.end as u64) < header.sealed_bytes {
                    return damage(format!("{reason}, and it was durable when the file got its name"));
                }
                if let Some(later) = find_frame(bytes, extent.end, salt) {
                    return damage(format!("{reason}, and a later frame at byte {later} shows that it was written"));
                }
                if extent.end <= bytes.len() && !has_unwritten_sector(bytes, &extent) {
                    return damage(format!("{reason}, and no unfinished write can have left it so"));
                }
                reading.torn_bytes = bytes.len() - reading.end;
                return Ok(reading);
            }
        }
    }
    if (reading.end as u64) < header.sealed_bytes {
        let reason = format!("the file ends, but was {} bytes long when it got its name", header.sealed_bytes);
        return Err(Damage { offset: reading.end, reason });
    }
    Ok(reading)
}

struct Broken {
    reason: &'static str,
    /// What the frame covers, as far as its header can be believed.
    extent: Range<usize>,
}

/// Where the body of the frame lies.
fn frame_at(bytes: &[u8], offset: usize, number: u64, salt: Salt) -> Result<Range<usize>, Broken> {
    let body = offset + FRAME_HEADER_BYTES;
    let Some(length) = header_at(bytes, offset, salt, Some(number)) else {
        return Err(Broken { reason: "the header of a frame is damaged", extent: offset..body });
    };
    let end = body + length;
    let whole = bytes.get(end) == Some(&MARK) && crc32c::crc32c(&bytes[body..end]) == u32_at(bytes, offset + 16);
    if whole {
        Ok(body..end)
    } else {
        Err(Broken { reason: "the body of a frame is damaged", extent: offset..end + 1 })
    }
}

/// The length of the body, if there is the header of a frame.
fn header_at(bytes: &[u8], offset: usize, salt: Salt, number: Option<u64>) -> Option<usize> {
    let header = bytes.get(offset..offset + FRAME_HEADER_BYTES)?;
    let length = u32_at(header, 4) as usize;
    let valid = &header[..4] == FRAME_MAGIC
        && header[FRAME_HEADER_BYTES - 1] == MARK
        && length <= MAX_BODY_BYTES
        && number.is_none_or(|number| u64_at(header, 8) == number)
        && u32_at(header, 20) == salted(salt, offset as u64, &header[..20]);
    valid.then_some(length)
}

fn find_frame(bytes: &[u8], from: usize, salt: Salt) -> Option<usize> {
    (from..bytes.len().saturating_sub(FRAME_HEADER_BYTES - 1))
        .filter(|offset| bytes[*offset..].starts_with(FRAME_MAGIC))
        .find(|offset| header_at(bytes, *offset, salt, None).is_some())
}

fn has_unwritten_sector(bytes: &[u8], extent: &Range<usize>) -> bool {
    let sectors = extent.start / SECTOR_BYTES..extent.end.div_ceil(SECTOR_BYTES);
    sectors.map(|sector| ((sector + 1) * SECTOR_BYTES).min(extent.end) - 1).any(|last| bytes[last] == 0)
}

fn salted(salt: Salt, offset: u64, bytes: &[u8]) -> u32 {
    let mut checksum = 0;
    for number in [salt.directory_id, salt.sequence, offset] {
        checksum = crc32c::crc32c_append(checksum, &number.to_le_bytes());
    }
    crc32c::crc32c_append(checksum, bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|position| bytes[offset + position]))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|position| bytes[offset + position]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader { version: 1, kind: 1, directory_id: 7, sequence: 3, sealed_bytes: 44 };

    /// A file of frames with bodies of many lengths, some of them blank, and where each ends.
    fn file(header: FileHeader) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header.encode();
        let mut ends = vec![bytes.len()];
        for (number, length) in [0, 1, 40, 700, 513, 3].into_iter().enumerate() {
            let body: Vec<u8> =
                (0..length).map(|position| if number == 4 { 0 } else { (position % 251) as u8 }).collect();
            let frame = encode(header.salt(), bytes.len() as u64, number as u64 + 1, &body);
            bytes.extend_from_slice(&frame);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn a_file_cut_at_any_byte_gives_all_frames_before_the_cut() {
        let (bytes, ends) = file(HEADER);
        for cut in FILE_HEADER_BYTES..=bytes.len() {
            let reading = read(&bytes[..cut], &HEADER).unwrap_or_else(|damage| panic!("cut at {cut}: {damage:?}"));
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!((reading.bodies.len(), reading.end), (whole, ends[whole]), "cut at {cut}");
            assert_eq!(reading.torn_bytes, cut - ends[whole]);
        }
    }

    #[test]
    fn a_last_frame_that_lost_sectors_is_torn() {
        let (mut bytes, ends) = file(HEADER);
        let begin = bytes.len();
        let frame = encode(HEADER.salt(), begin as u64, 7, &[0xAA; 2_000]);
        bytes.extend_from_slice(&frame);
        let first = begin / SECTOR_BYTES;
        for lost in 0..(1 << (bytes.len().div_ceil(SECTOR_BYTES) - first)) {
            let mut left = bytes.clone();
            for (position, byte) in left.iter_mut().enumerate().skip(begin) {
                if lost & (1 << (position / SECTOR_BYTES - first)) != 0 {
                    *byte = 0;
                }
            }
            let reading = read(&left, &HEADER).unwrap();
            assert_eq!((reading.bodies.len(), reading.torn_bytes == 0), (if lost == 0 { 7 } else { 6 }, lost == 0));
            assert!(reading.end == *ends.last().unwrap() || lost == 0);
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error_with_its_frame() {
        let (bytes, ends) = file(HEADER);
        for position in 0..bytes.len() * 8 {
            let (byte, bit) = (position / 8, position % 8);
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << bit;
            let Ok(header) = FileHeader::decode(&flipped, 1) else {
                assert!(byte < FILE_HEADER_BYTES);
                continue;
            };
            let damage = read(&flipped, &header).expect_err("a flipped bit");
            let frame = ends.iter().rposition(|end| *end <= byte).unwrap();
            assert_eq!(damage.offset, ends[frame], "bit {bit} of byte {byte}: {damage:?}");
        }
    }

    #[test]
    fn what_was_sealed_is_never_taken_for_torn() {
        let (bytes, _) = file(HEADER);
        let header = FileHeader { sealed_bytes: bytes.len() as u64, ..HEADER };
        assert!(read(&bytes, &header).is_ok());
        for cut in FILE_HEADER_BYTES..bytes.len() {
            assert!(read(&bytes[..cut], &header).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_is_valid_in_its_place_only() {
        let (bytes, ends) = file(HEADER);
        let other = FileHeader { sequence: 4, ..HEADER };
        let stray = encode(other.salt(), bytes.len() as u64, 7, b"stray");
        for frame in [&bytes[ends[1]..ends[2]], &bytes[ends[5]..ends[6]], &stray] {
            let mut longer = bytes.clone();
            longer.extend_from_slice(frame);
            assert_eq!(read(&longer, &HEADER).unwrap_err().offset, bytes.len());
        }
    }
}
