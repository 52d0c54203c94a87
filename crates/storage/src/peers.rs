//! The data directories of the other members, as they were first met.
//!
//! A member whose disk was lost or wiped has forgotten whom it voted for. It must not come back under its old
//! id as if nothing had happened, so everybody keeps the identity of everybody's directory and knows a stranger
//! by it. The file is small and replaced as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Buf;

use crate::disk::{Disk, DiskFile, read_all};
use crate::error::{Fault, OpenError};
use crate::{FORMAT_VERSION, layout};

const MAGIC: &[u8; 8] = b"TENURPRS";
const HEADER_BYTES: usize = 8 + 4 + 4;
const PEER_BYTES: usize = 8 + 16;

/// What a store knows of other members' directories, for other threads. Keeps the directory's lock.
pub struct Peers<D: Disk> {
    shared: Arc<Shared<D>>,
}

struct Shared<D: Disk> {
    disk: D,
    directory: PathBuf,
    /// The directory of each member, by the member's id. As it is on disk.
    known: Mutex<BTreeMap<u64, u128>>,
    lock: Arc<D::Lock>,
}

/// How a member that says whose directory it has compares to what was known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Nothing was known; it is now, durably.
    First,
    Again,
    /// It had another directory before.
    Stranger {
        known: u128,
    },
}

impl<D: Disk> Clone for Peers<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Disk> Peers<D> {
    pub(crate) fn new(disk: D, directory: PathBuf, known: BTreeMap<u64, u128>, lock: Arc<D::Lock>) -> Self {
        Self { shared: Arc::new(Shared { disk, directory, known: Mutex::new(known), lock }) }
    }

    pub(crate) fn directory_lock(&self) -> Arc<D::Lock> {
        self.shared.lock.clone()
    }

    /// Takes note of a member's directory at first contact. Durable on return.
    pub fn meet(&self, member: u64, directory_id: u128) -> Result<Meeting, Fault> {
        let mut known = self.lock();
        match known.get(&member) {
            Some(&before) if before == directory_id => return Ok(Meeting::Again),
            Some(&before) => return Ok(Meeting::Stranger { known: before }),
            None => {}
        }
        let mut with = known.clone();
        with.insert(member, directory_id);
        self.write(&with)?;
        *known = with;
        Ok(Meeting::First)
    }

    pub fn directory_of(&self, member: u64) -> Option<u128> {
        self.lock().get(&member).copied()
    }

    pub fn knows_others_than(&self, members: &[u64]) -> bool {
        self.lock().keys().any(|member| !members.contains(member))
    }

    /// Forgets all but these. An id is never given out twice, so nobody comes back for its entry.
    pub fn keep(&self, members: &[u64]) -> Result<(), Fault> {
        let mut known = self.lock();
        let mut kept = known.clone();
        kept.retain(|member, _| members.contains(member));
        if kept.len() < known.len() {
            self.write(&kept)?;
            *known = kept;
        }
        Ok(())
    }

    fn write(&self, known: &BTreeMap<u64, u128>) -> Result<(), Fault> {
        let Shared { disk, directory, .. } = &*self.shared;
        let temporary = directory.join(layout::PEERS_TEMPORARY);
        let failed = |source| Fault::io("writing", &temporary, source);
        let mut file = disk.create(&temporary).map_err(failed)?;
        file.write_at(&encode(known), 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        drop(file);
        disk.rename(&temporary, &directory.join(layout::PEERS)).map_err(failed)?;
        disk.sync_directory(directory).map_err(failed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u128>> {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the directory's file says.
pub(crate) fn read<D: Disk>(disk: &D, directory: &Path) -> Result<BTreeMap<u64, u128>, OpenError> {
    let path = directory.join(layout::PEERS);
    let file = disk.open(&path).map_err(|source| Fault::io("opening", &path, source))?;
    let bytes = read_all(&file).map_err(|source| Fault::io("reading", &path, source))?;
    decode(&bytes).map_err(|reason| OpenError::Corrupt { file: path, offset: 0, reason: reason.to_string() })
}

fn encode(known: &BTreeMap<u64, u128>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + known.len() * PEER_BYTES + 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(known.len() as u32).to_le_bytes());
    for (member, directory_id) in known {
        bytes.extend_from_slice(&member.to_le_bytes());
        bytes.extend_from_slice(&directory_id.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Result<BTreeMap<u64, u128>, &'static str> {
    if bytes.len() < HEADER_BYTES + 4 || &bytes[..8] != MAGIC {
        return Err("it is no list of peers");
    }
    let (content, mut checksum) = bytes.split_at(bytes.len() - 4);
    if checksum.get_u32_le() != crc32c::crc32c(content) {
        return Err("its checksum does not match");
    }
    let mut fields = &content[12..];
    let count = fields.get_u32_le() as usize;
    if fields.len() != count * PEER_BYTES {
        return Err("it has the wrong length");
    }
    Ok((0..count).map(|_| (fields.get_u64_le(), fields.get_u128_le())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_every_flipped_bit_is_noticed() {
        let known = BTreeMap::from([(3, 7), (u64::MAX, u128::MAX - 5)]);
        let bytes = encode(&known);
        assert_eq!(decode(&bytes), Ok(known));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
        }
    }
}
