//! A data directory for a new cluster, made of what is left of an old one.

use std::path::{Path, PathBuf};

use tenure_machine::snapshot::{Restore, SnapshotError, chunks};
use tenure_machine::{Machine, codec};
use tenure_replica::{FIRST_INDEX, FIRST_TERM, first_configuration};
use tenure_storage::{Fault, Identity, OpenError, Opened, Options, OsDisk, SnapshotMeta, Store};

use crate::data::CHUNK_BYTES;
use crate::member::random_u64;

/// More than a cluster can have issued between a backup and its loss: at 100,000 a second it lasts for three hours.
pub const REVISIONS_BEYOND: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Names the directory by itself.
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{} cannot be read or written", path.display())]
    Fault { path: PathBuf, source: Fault },
    #[error("{} was written by a newer version, or is damaged", path.display())]
    Snapshot { path: PathBuf, source: SnapshotError },
    #[error("{}: log entry {index}", path.display())]
    Entry { path: PathBuf, index: u64, source: codec::DecodeError },
    #[error("{} is no data directory of a member", .0.display())]
    NotAMember(PathBuf),
    #[error("{} is a member's already: restore into a directory that is empty or not there", .0.display())]
    InUse(PathBuf),
    #[error("there are no {0} revisions left beyond the last one")]
    NoRevisionsLeft(u64),
}

/// The state of a stopped member, with everything in its log: whether the last entries were committed cannot
/// be known without the others, and what was acknowledged must not be lost.
pub fn read_member(path: &Path) -> Result<Machine, RestoreError> {
    let fault = |source| RestoreError::Fault { path: path.to_owned(), source };
    let snapshot = |source| RestoreError::Snapshot { path: path.to_owned(), source };
    if !path.is_dir() {
        return Err(RestoreError::NotAMember(path.to_owned()));
    }
    let opened = Store::open(OsDisk::default(), path, Options::default())?;
    let Opened::Existing(store, recovered) = opened else { return Err(RestoreError::NotAMember(path.to_owned())) };
    let mut reader = store.snapshot_reader().map_err(fault)?;
    let mut restore = Restore::new();
    while let Some(chunk) = reader.next_chunk().map_err(fault)? {
        restore.chunk(&chunk).map_err(snapshot)?;
    }
    let mut machine = restore.finish().map_err(snapshot)?;
    for entry in recovered.entries {
        // Leadership and membership leave no trace in a new cluster.
        if entry.kind != 0 || entry.data.is_empty() {
            machine.skip(entry.index, entry.term);
            continue;
        }
        let envelope = codec::decode(entry.data).map_err(|source| RestoreError::Entry {
            path: path.to_owned(),
            index: entry.index,
            source,
        })?;
        machine.apply(entry.index, entry.term, &envelope);
    }
    Ok(machine)
}

/// Makes `directory` that of the only member of a new cluster, which begins with what `machine` holds.
pub fn begin_new_cluster(machine: &Machine, revisions_beyond: u64, directory: &Path) -> Result<Machine, RestoreError> {
    let no_revisions = || RestoreError::NoRevisionsLeft(revisions_beyond);
    let mut reborn = machine.state().reborn(revisions_beyond).ok_or_else(no_revisions)?;
    reborn.skip(FIRST_INDEX, FIRST_TERM);
    let opened = Store::open(OsDisk::default(), directory, Options::default())?;
    let Opened::Empty(blank) = opened else { return Err(RestoreError::InUse(directory.to_owned())) };
    let identity = Identity {
        cluster_id: random_u64().max(1),
        member_id: random_u64().max(1),
        directory_id: u128::from(random_u64()) << 64 | u128::from(random_u64()),
    };
    let meta = SnapshotMeta {
        index: FIRST_INDEX,
        term: FIRST_TERM,
        configuration: first_configuration(&[identity.member_id]),
    };
    blank
        .initialise(identity, meta, chunks(reborn.view(), CHUNK_BYTES))
        .map_err(|source| RestoreError::Fault { path: directory.to_owned(), source })?;
    Ok(reborn)
}
