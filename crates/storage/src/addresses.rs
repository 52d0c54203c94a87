//! Where this member listens and is found, as it was told when it was started last: known to a member that starts again
//! before any leader could write its addresses into the log. The file is small and replaced as a whole.

use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, read_all};
use crate::error::{Fault, OpenError};
use crate::{FORMAT_VERSION, layout};

const MAGIC: &[u8; 8] = b"TENURADR";
const HEADER_BYTES: usize = 8 + 4 + 4;

/// For any thread. Keeps the directory's lock.
pub struct Addresses<D: Disk> {
    disk: D,
    directory: PathBuf,
    _lock: Arc<D::Lock>,
}

impl<D: Disk> Addresses<D> {
    pub(crate) fn new(disk: D, directory: PathBuf, lock: Arc<D::Lock>) -> Self {
        Self { disk, directory, _lock: lock }
    }

    /// What was written last, opaque to storage; `None` if nothing was.
    pub fn read(&self) -> Result<Option<Vec<u8>>, OpenError> {
        let found = self.disk.list(&self.directory);
        let found = found.map_err(|source| Fault::io("listing", &self.directory, source))?;
        if !found.iter().any(|found| found.name == layout::ADDRESSES) {
            return Ok(None);
        }
        let path = self.directory.join(layout::ADDRESSES);
        let file = self.disk.open(&path).map_err(|source| Fault::io("opening", &path, source))?;
        let bytes = read_all(&file).map_err(|source| Fault::io("reading", &path, source))?;
        let decoded = decode(&bytes);
        decoded.map(Some).map_err(|reason| OpenError::Corrupt { file: path, offset: 0, reason: reason.to_owned() })
    }

    /// Durable on return.
    pub fn write(&self, addresses: &[u8]) -> Result<(), Fault> {
        let temporary = self.directory.join(layout::ADDRESSES_TEMPORARY);
        let failed = |source| Fault::io("writing", &temporary, source);
        let mut file = self.disk.create(&temporary).map_err(failed)?;
        file.write_at(&encode(addresses), 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        drop(file);
        self.disk.rename(&temporary, &self.directory.join(layout::ADDRESSES)).map_err(failed)?;
        self.disk.sync_directory(&self.directory).map_err(failed)
    }
}

fn encode(addresses: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + addresses.len() + 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(addresses.len() as u32).to_le_bytes());
    bytes.extend_from_slice(addresses);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (content, checksum) = bytes.split_last_chunk::<4>().ok_or("the file of addresses is too short")?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
        return Err("the checksum of the addresses does not match");
    }
    let rest = content.strip_prefix(MAGIC).ok_or("not a file of addresses")?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or("the file of addresses is too short")?;
    let (length, addresses) = rest.split_first_chunk::<4>().ok_or("the file of addresses is too short")?;
    if u32::from_le_bytes(*version) != FORMAT_VERSION || u32::from_le_bytes(*length) as usize != addresses.len() {
        return Err("the file of addresses has another format");
    }
    Ok(addresses.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written_and_damage_is_noticed() {
        for addresses in [&b""[..], b"127.0.0.1:2379"] {
            let bytes = encode(addresses);
            assert_eq!(decode(&bytes).unwrap(), addresses);
            for place in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1;
                assert!(decode(&damaged).is_err(), "byte {place}");
                assert!(decode(&bytes[..place]).is_err(), "cut at {place}");
            }
        }
    }
}
