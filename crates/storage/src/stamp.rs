//! The stamp: which format a directory has, and whose it is.

use std::path::Path;

use bytes::Buf;

use crate::disk::{Disk, DiskFile, read_all};
use crate::error::{Fault, OpenError};
use crate::types::Identity;
use crate::{FORMAT_VERSION, layout};

const MAGIC: &[u8; 8] = b"TENURDIR";
const STAMP_BYTES: usize = 8 + 4 + 8 + 8 + 16 + 4;

/// Announces that the directory is being initialised: durable before any other file of ours.
pub(crate) fn begin<D: Disk>(disk: &D, directory: &Path, identity: &Identity) -> Result<(), Fault> {
    let temporary = directory.join(layout::STAMP_TEMPORARY);
    let failed = |source| Fault::io("writing", &temporary, source);
    let mut file = disk.create(&temporary).map_err(failed)?;
    file.write_at(&encode(identity), 0).map_err(failed)?;
    file.sync_data().map_err(failed)?;
    disk.sync_directory(directory).map_err(failed)
}

/// Declares the directory initialised; everything else must be durable by now.
pub(crate) fn complete<D: Disk>(disk: &D, directory: &Path) -> Result<(), Fault> {
    let stamp = directory.join(layout::STAMP);
    let failed = |source| Fault::io("writing", &stamp, source);
    disk.rename(&directory.join(layout::STAMP_TEMPORARY), &stamp).map_err(failed)?;
    disk.sync_directory(directory).map_err(failed)
}

pub(crate) fn read<D: Disk>(disk: &D, directory: &Path) -> Result<Identity, OpenError> {
    let path = directory.join(layout::STAMP);
    let file = disk.open(&path).map_err(|source| Fault::io("opening", &path, source))?;
    let bytes = read_all(&file).map_err(|source| Fault::io("reading", &path, source))?;
    let corrupt = |reason: &str| OpenError::Corrupt { file: path.clone(), offset: 0, reason: reason.to_string() };
    if bytes.len() < 12 || &bytes[..8] != MAGIC {
        return Err(corrupt("it is not a stamp"));
    }
    // The version comes before the checksum: a newer format may have another layout behind it.
    let mut fields = &bytes[8..];
    let found = fields.get_u32_le();
    if found > FORMAT_VERSION {
        return Err(OpenError::Newer { directory: directory.to_path_buf(), found, supported: FORMAT_VERSION });
    }
    if bytes.len() != STAMP_BYTES {
        return Err(corrupt("it has the wrong length"));
    }
    let identity = Identity {
        cluster_id: fields.get_u64_le(),
        member_id: fields.get_u64_le(),
        directory_id: fields.get_u128_le(),
    };
    if fields.get_u32_le() != crc32c::crc32c(&bytes[..STAMP_BYTES - 4]) {
        return Err(corrupt("its checksum does not match"));
    }
    Ok(identity)
}

fn encode(identity: &Identity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(STAMP_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&identity.cluster_id.to_le_bytes());
    bytes.extend_from_slice(&identity.member_id.to_le_bytes());
    bytes.extend_from_slice(&identity.directory_id.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}
