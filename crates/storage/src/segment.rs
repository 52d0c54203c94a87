//! A segment: one file of the log, written with zeroes to its full length before it is used, so that a
//! sync has no metadata to write. Its salt follows from the directory and the segment's number and enters
//! every checksum: stale bytes of an older file can never pass for new ones, and the batches of a segment
//! can be recognised even when its header is lost.
//!
//! The header is written together with the first batch. A segment without a readable first batch is
//! unused: prepared ahead, or torn at its first write.

use std::path::{Path, PathBuf};

use bytes::Buf;

use crate::aligned::AlignedBuffer;
use crate::batch::{SECTOR_BYTES, salted_checksum};
use crate::disk::{Disk, DiskFile};
use crate::error::Fault;
use crate::{FORMAT_VERSION, layout};

pub(crate) const SEGMENT_HEADER_BYTES: usize = SECTOR_BYTES;

const MAGIC: &[u8; 8] = b"TENURLOG";
const FIELDS_BYTES: usize = 8 + 4 + 4 + 8 + 16 + 8;
/// So little is in flight, and synced at once where there is time, that the log's own syncs are not held up for long.
const SLICE_BYTES: usize = 256 << 10;
const SYNC_BYTES_IN_HASTE: u64 = 1 << 20;

/// What is to be done behind a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is time: what was written is synced before anything else is.
    AtEase,
    InHaste,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub sequence: u64,
    pub directory_id: u128,
    pub first_batch: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(SECTOR_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.directory_id.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first_batch.to_le_bytes());
        let checksum = salted_checksum(salt(self.directory_id, self.sequence), &bytes[..FIELDS_BYTES]);
        bytes[48..52].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// A header that is whole, whichever segment it belongs to.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES)?;
        let mut fields = &bytes[MAGIC.len()..];
        let version = fields.get_u32_le();
        let alignment = fields.get_u32_le();
        let header = Self {
            sequence: fields.get_u64_le(),
            directory_id: fields.get_u128_le(),
            first_batch: fields.get_u64_le(),
        };
        let salt = salt(header.directory_id, header.sequence);
        let valid = &bytes[..MAGIC.len()] == MAGIC
            && version == FORMAT_VERSION
            && alignment == SECTOR_BYTES as u32
            && fields.get_u32_le() == salted_checksum(salt, &bytes[..FIELDS_BYTES]);
        valid.then_some(header)
    }
}

/// Differs for every segment of every directory.
pub(crate) fn salt(directory_id: u128, sequence: u64) -> u64 {
    let high = (directory_id >> 64) as u64;
    let low = directory_id as u64;
    mix(mix(mix(high) ^ low) ^ sequence)
}

/// The finaliser of splitmix64: every bit of the input moves half of the output's.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A segment ready to be taken into use: zeroes to its full length, durable with its name.
#[derive(Debug)]
pub(crate) struct Prepared<F> {
    pub file: F,
    pub path: PathBuf,
    pub sequence: u64,
    pub bytes: u64,
}

/// Writes the zeroes. `next` is asked between slices how to go on, and may take its time; `None` if that was cancelled.
pub(crate) fn prepare<D: Disk>(
    disk: &D,
    directory: &Path,
    sequence: u64,
    bytes: u64,
    next: impl Fn(u64) -> Next,
) -> Result<Option<Prepared<D::File>>, Fault> {
    let temporary = directory.join(layout::segment_temporary_name(sequence));
    let path = directory.join(layout::segment_name(sequence));
    let failed = |source| Fault::io("preparing log segment", &path, source);
    let written = (|| {
        let mut file = disk.create_log(&temporary)?;
        let zeroes = AlignedBuffer::zeroes(SLICE_BYTES.min(bytes as usize));
        let (mut offset, mut synced) = (0, 0);
        loop {
            let next = next(offset);
            if next == Next::Cancelled {
                return Ok(false);
            }
            let length = (bytes - offset).min(zeroes.len() as u64);
            file.write_at(&zeroes.as_slice()[..length as usize], offset)?;
            offset += length;
            if offset == bytes {
                break;
            }
            if next == Next::AtEase || offset - synced >= SYNC_BYTES_IN_HASTE {
                file.sync_data()?;
                synced = offset;
            }
        }
        file.sync_data()?;
        disk.rename(&temporary, &path)?;
        disk.sync_directory(directory)?;
        Ok(true)
    })();
    match written {
        Ok(true) => {}
        Ok(false) => {
            let _ = disk.remove(&temporary);
            return Ok(None);
        }
        Err(error) => {
            // Gives the space back to a full disk; what cannot be removed now goes when the store is next opened.
            let _ = disk.remove(&temporary);
            return Err(failed(error));
        }
    }
    let file = disk.open_log(&path).map_err(failed)?;
    Ok(Some(Prepared { file, path, sequence, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_whole_or_not_at_all() {
        let header = SegmentHeader { sequence: 4, directory_id: 77, first_batch: 12 };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        for bit in 0..(FIELDS_BYTES + 4) * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn salts_differ() {
        assert_ne!(salt(1, 1), salt(1, 2));
        assert_ne!(salt(1, 1), salt(2, 1));
        assert_ne!(salt(1 << 64, 1), salt(1, 1));
    }
}
