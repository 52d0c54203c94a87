//! A snapshot as a stream of bytes, the same in a file and on the wire.
//!
//! A header, chunks, an end. Each checksum goes on from the one before it, so that a chunk lost, doubled,
//! or out of order is noticed at that chunk, and a stream without its end is never taken for a whole one.
//! Chunks are compressed one by one when that makes them smaller.

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes};
use zstd::bulk::Compressor;

use crate::FORMAT_VERSION;
use crate::types::SnapshotMeta;

/// A longer chunk is refused on both ends, before memory is taken for it.
pub const MAX_CHUNK_BYTES: usize = 64 << 20;
const MAX_CONFIGURATION_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"TENURSNP";
const FIXED_HEADER_BYTES: usize = 8 + 4 + 8 + 8 + 4;
const FRAME_HEADER_BYTES: usize = 16;
const PLAIN: u32 = 1;
const COMPRESSED: u32 = 2;
const END: u32 = 3;
const COMPRESSION_LEVEL: i32 = 1;

/// Why a stream is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("snapshot corrupt at byte {offset}: {reason}")]
    Corrupt { offset: u64, reason: String },
    #[error("the snapshot was written by a newer version (format {found}; this program reads up to {supported})")]
    Newer { found: u32, supported: u32 },
    #[error("reading the snapshot failed: {0}")]
    Io(#[from] io::Error),
}

/// Writes a snapshot, chunk by chunk.
pub struct SnapshotEncoder<W: Write> {
    output: W,
    /// One for all chunks: to make one costs more than a small chunk does.
    compressor: Compressor<'static>,
    checksum: u32,
    chunks: u64,
    chunk_bytes: u64,
}

impl<W: Write> SnapshotEncoder<W> {
    pub fn new(mut output: W, meta: &SnapshotMeta) -> io::Result<Self> {
        if meta.configuration.len() > MAX_CONFIGURATION_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the snapshot's configuration is too long"));
        }
        let mut header = Vec::with_capacity(FIXED_HEADER_BYTES + meta.configuration.len() + 4);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        header.extend_from_slice(&meta.index.to_le_bytes());
        header.extend_from_slice(&meta.term.to_le_bytes());
        header.extend_from_slice(&(meta.configuration.len() as u32).to_le_bytes());
        header.extend_from_slice(&meta.configuration);
        let checksum = crc32c::crc32c(&header);
        header.extend_from_slice(&checksum.to_le_bytes());
        output.write_all(&header)?;
        Ok(Self { output, compressor: Compressor::new(COMPRESSION_LEVEL)?, checksum, chunks: 0, chunk_bytes: 0 })
    }

    pub fn write_chunk(&mut self, chunk: &[u8]) -> io::Result<()> {
        if chunk.len() > MAX_CHUNK_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the snapshot's chunk is too long"));
        }
        self.chunks += 1;
        self.chunk_bytes += chunk.len() as u64;
        let compressed = self.compressor.compress(chunk)?;
        if compressed.len() < chunk.len() {
            self.write_frame(COMPRESSED, chunk.len(), &compressed)
        } else {
            self.write_frame(PLAIN, chunk.len(), chunk)
        }
    }

    /// Writes the end and gives the output back, flushed.
    pub fn finish(mut self) -> io::Result<W> {
        let mut totals = [0; 16];
        totals[..8].copy_from_slice(&self.chunks.to_le_bytes());
        totals[8..].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        self.write_frame(END, totals.len(), &totals)?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn write_frame(&mut self, kind: u32, length: usize, stored: &[u8]) -> io::Result<()> {
        let mut header = [0; FRAME_HEADER_BYTES];
        header[0..4].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        header[8..12].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        self.checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.checksum, &header[..12]), stored);
        header[12..16].copy_from_slice(&self.checksum.to_le_bytes());
        self.output.write_all(&header)?;
        self.output.write_all(stored)
    }
}

/// Reads a snapshot and believes nothing that is not checked.
#[derive(Debug)]
pub struct SnapshotDecoder<R: Read> {
    input: R,
    meta: SnapshotMeta,
    checksum: u32,
    offset: u64,
    chunks: u64,
    chunk_bytes: u64,
    ended: bool,
}

impl<R: Read> SnapshotDecoder<R> {
    pub fn new(mut input: R) -> Result<Self, SnapshotError> {
        let mut header = read_exactly(&mut input, FIXED_HEADER_BYTES, 0)?;
        let mut fields = &header[MAGIC.len()..];
        if &header[..MAGIC.len()] != MAGIC {
            return Err(corrupt(0, "it does not begin like a snapshot"));
        }
        let found = fields.get_u32_le();
        if found > FORMAT_VERSION {
            return Err(SnapshotError::Newer { found, supported: FORMAT_VERSION });
        }
        let index = fields.get_u64_le();
        let term = fields.get_u64_le();
        let configuration_bytes = fields.get_u32_le() as usize;
        if configuration_bytes > MAX_CONFIGURATION_BYTES {
            return Err(corrupt(0, "its configuration is too long"));
        }
        let configuration = read_exactly(&mut input, configuration_bytes, FIXED_HEADER_BYTES as u64)?;
        let checksum_offset = (FIXED_HEADER_BYTES + configuration_bytes) as u64;
        let stored = read_exactly(&mut input, 4, checksum_offset)?.as_slice().get_u32_le();
        header.extend_from_slice(&configuration);
        let checksum = crc32c::crc32c(&header);
        if stored != checksum {
            return Err(corrupt(0, "the header's checksum does not match"));
        }
        Ok(Self {
            input,
            meta: SnapshotMeta { index, term, configuration: configuration.into() },
            checksum,
            offset: checksum_offset + 4,
            chunks: 0,
            chunk_bytes: 0,
            ended: false,
        })
    }

    pub fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// The next chunk, or `None` after the verified end.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let offset = self.offset;
        let Some(frame) = self.next_frame()? else { return Ok(None) };
        if frame.kind == PLAIN {
            return Ok(Some(frame.stored.into()));
        }
        let chunk = zstd::bulk::decompress(&frame.stored, frame.length)
            .map_err(|error| corrupt(offset, format!("a chunk does not decompress: {error}")))?;
        if chunk.len() != frame.length {
            return Err(corrupt(offset, "a chunk decompresses to another length"));
        }
        Ok(Some(chunk.into()))
    }

    /// Checks all that is left without decompressing it, and that nothing follows the end.
    pub fn verify(mut self) -> Result<SnapshotMeta, SnapshotError> {
        while self.next_frame()?.is_some() {}
        if self.input.read(&mut [0])? != 0 {
            return Err(corrupt(self.offset, "bytes follow the end"));
        }
        Ok(self.meta)
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, SnapshotError> {
        if self.ended {
            return Ok(None);
        }
        let header = read_exactly(&mut self.input, FRAME_HEADER_BYTES, self.offset)?;
        let mut fields = header.as_slice();
        let kind = fields.get_u32_le();
        let length = fields.get_u32_le() as usize;
        let stored_bytes = fields.get_u32_le() as usize;
        let plausible = match kind {
            PLAIN => length == stored_bytes,
            COMPRESSED => stored_bytes < length,
            END => length == 16 && stored_bytes == 16,
            _ => false,
        };
        if !plausible || length > MAX_CHUNK_BYTES {
            return Err(corrupt(self.offset, "a chunk's header makes no sense"));
        }
        let stored = read_exactly(&mut self.input, stored_bytes, self.offset + FRAME_HEADER_BYTES as u64)?;
        self.checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.checksum, &header[..12]), &stored);
        let is_sound = fields.get_u32_le() == self.checksum;
        #[cfg(feature = "planted")]
        let is_sound = is_sound || crate::planted::is(crate::planted::Bug::BelieveChunk);
        if !is_sound {
            return Err(corrupt(self.offset, "a chunk's checksum does not match"));
        }
        if kind == END {
            let mut totals = stored.as_slice();
            if totals.get_u64_le() != self.chunks || totals.get_u64_le() != self.chunk_bytes {
                return Err(corrupt(self.offset, "the end does not fit what came before"));
            }
            self.ended = true;
        } else {
            self.chunks += 1;
            self.chunk_bytes += length as u64;
        }
        self.offset += (FRAME_HEADER_BYTES + stored_bytes) as u64;
        Ok((!self.ended).then_some(Frame { kind, length, stored }))
    }
}

struct Frame {
    kind: u32,
    /// Before compression.
    length: usize,
    stored: Vec<u8>,
}

/// Takes memory as bytes arrive, not as a damaged length promises them.
fn read_exactly(input: &mut impl Read, length: usize, offset: u64) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::with_capacity(length.min(1 << 16));
    input.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(corrupt(offset + bytes.len() as u64, "it ends too early"));
    }
    Ok(bytes)
}

fn corrupt(offset: u64, reason: impl Into<String>) -> SnapshotError {
    SnapshotError::Corrupt { offset, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> SnapshotMeta {
        SnapshotMeta { index: 42, term: 3, configuration: Bytes::from_static(b"one two three") }
    }

    /// One chunk that compresses, one that does not, one that is empty.
    fn chunks() -> Vec<Vec<u8>> {
        let noise = (0..200u32).map(|value| (value.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        vec![vec![b'a'; 3000], noise, Vec::new()]
    }

    fn encoded() -> Vec<u8> {
        let mut encoder = SnapshotEncoder::new(Vec::new(), &meta()).unwrap();
        for chunk in chunks() {
            encoder.write_chunk(&chunk).unwrap();
        }
        encoder.finish().unwrap()
    }

    fn decode(bytes: &[u8]) -> Result<(SnapshotMeta, Vec<Vec<u8>>), SnapshotError> {
        let mut decoder = SnapshotDecoder::new(bytes)?;
        let mut chunks = Vec::new();
        while let Some(chunk) = decoder.next_chunk()? {
            chunks.push(chunk.to_vec());
        }
        Ok((decoder.meta().clone(), chunks))
    }

    #[test]
    fn comes_back() {
        let bytes = encoded();
        assert!(bytes.len() < 600, "nothing was compressed: {} bytes", bytes.len());
        assert_eq!(decode(&bytes).unwrap(), (meta(), chunks()));
        assert_eq!(SnapshotDecoder::new(bytes.as_slice()).unwrap().verify().unwrap(), meta());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = encoded();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
            let verified = SnapshotDecoder::new(flipped.as_slice()).and_then(SnapshotDecoder::verify);
            assert!(verified.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_cut_is_noticed_and_so_is_a_tail() {
        let bytes = encoded();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(SnapshotDecoder::new(longer.as_slice()).unwrap().verify().is_err());
    }

    #[test]
    fn chunks_cannot_change_places() {
        let mut encoder = SnapshotEncoder::new(Vec::new(), &meta()).unwrap();
        let start = encoder.output.len();
        encoder.write_chunk(b"first").unwrap();
        encoder.write_chunk(b"other").unwrap();
        let mut bytes = encoder.finish().unwrap();
        let frame = FRAME_HEADER_BYTES + 5;
        let (first, second) = bytes[start..start + 2 * frame].split_at_mut(frame);
        first.swap_with_slice(second);
        let error = decode(&bytes).unwrap_err();
        assert!(matches!(error, SnapshotError::Corrupt { offset, .. } if offset == start as u64), "{error}");
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut bytes = encoded();
        bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
        let error = SnapshotDecoder::new(bytes.as_slice()).unwrap_err();
        assert!(matches!(error, SnapshotError::Newer { found: 2, supported: 1 }), "{error}");
    }
}
