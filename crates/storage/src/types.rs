//! The values that cross the border of this crate. All of them are opaque here: an entry's data and a
//! snapshot's configuration are bytes that somebody else encodes.

use std::path::PathBuf;

use bytes::Bytes;

/// One entry of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub index: u64,
    pub term: u64,
    pub kind: u8,
    pub data: Bytes,
    pub context: Bytes,
}

/// What a member must not forget between entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    pub term: u64,
    pub vote: u64,
    /// A hint: never beyond the last entry that is durable with it.
    pub commit: u64,
}

/// Who lives in a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster_id: u64,
    pub member_id: u64,
    /// Random, given by the caller when the directory is created: a wiped disk comes back with another.
    pub directory_id: u128,
}

/// What a snapshot stands for: the state after the entry `index` of `term`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotMeta {
    pub index: u64,
    pub term: u64,
    /// Encoded by the caller.
    pub configuration: Bytes,
}

/// One caller's share of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group<'a> {
    pub hard_state: Option<HardState>,
    pub entries: &'a [Entry],
}

/// The remains of an unfinished batch, cut off when the directory was opened. Nothing in it was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub file: PathBuf,
    pub offset: u64,
    pub bytes: u64,
}
