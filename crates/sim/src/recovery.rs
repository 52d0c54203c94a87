//! From a disk to a replica that can boot: what the server does with a data directory, on a disk that lies.

use std::path::Path;

use tenure_machine::snapshot::{Restore, chunks};
use tenure_machine::{Machine, Member, MemberId};
use tenure_replica::{Boot, FIRST_INDEX, FIRST_TERM, HardState, LogEntry, first_configuration};
use tenure_storage::{
    Entry, Identity, MemoryDisk, OpenError, Opened, Options, Recovered, SnapshotMeta, SnapshotReader, Store,
};

pub const CLUSTER: u64 = 1;
pub const DIRECTORY: &str = "/data";

/// What was found on disk, and a replica's beginning made of it.
pub struct Opening {
    pub store: Store<MemoryDisk>,
    pub recovered: Recovered,
    pub boot: Boot,
    /// Of the state that the snapshot held.
    pub snapshot_hash: u64,
}

pub enum OpeningError {
    Storage(OpenError),
    /// The bytes are those that were written, and yet they mean nothing.
    Snapshot(String),
}

/// A data directory of `member`; an empty one becomes that of a founder, or of one that joins (no founders).
pub fn open(
    disk: &MemoryDisk,
    member: MemberId,
    founders: &[MemberId],
    segment_bytes: u64,
    directory_id: u128,
    chunk_bytes: usize,
) -> Result<Opening, OpeningError> {
    let storage = OpeningError::Storage;
    let options = Options { segment_bytes };
    let opened = Store::open(disk.clone(), Path::new(DIRECTORY), options).map_err(storage)?;
    let (store, recovered) = match opened {
        Opened::Existing(store, recovered) => (store, recovered),
        Opened::Empty(blank) => {
            let identity = Identity { cluster_id: CLUSTER, member_id: member, directory_id };
            let (index, term) = if founders.is_empty() { (0, 0) } else { (FIRST_INDEX, FIRST_TERM) };
            let meta = SnapshotMeta { index, term, configuration: first_configuration(founders) };
            let machine = first_state(founders, index, term);
            blank.initialise(identity, meta, chunks(machine.view(), chunk_bytes)).map_err(|f| storage(f.into()))?
        }
    };
    let (machine, snapshot_bytes) = restore(store.snapshot_reader().map_err(|fault| storage(fault.into()))?)?;
    let snapshot_hash = machine.state().hash();
    let boot = Boot {
        machine,
        snapshot_index: recovered.snapshot.index,
        snapshot_term: recovered.snapshot.term,
        configuration: recovered.snapshot.configuration.clone(),
        snapshot_bytes,
        hard_state: HardState {
            term: recovered.hard_state.term,
            vote: recovered.hard_state.vote,
            commit: recovered.hard_state.commit,
        },
        entries: recovered.entries.iter().cloned().map(log_entry).collect(),
    };
    Ok(Opening { store, recovered, boot, snapshot_hash })
}

/// The state that a new cluster begins with: it knows its members.
pub fn first_state(founders: &[MemberId], index: u64, term: u64) -> Machine {
    Machine::of_new_cluster(index, term, founders.iter().map(|id| described(*id, false)))
}

pub fn described(id: MemberId, learner: bool) -> Member {
    let peer_urls = vec![format!("http://{id}:2380")];
    Member { id, name: format!("member {id}"), peer_urls, client_urls: Vec::new(), learner }
}

/// The state that a snapshot holds, and its size.
pub fn restore(mut reader: SnapshotReader<MemoryDisk>) -> Result<(Machine, u64), OpeningError> {
    let mut restore = Restore::new();
    let mut bytes = 0;
    while let Some(chunk) = reader.next_chunk().map_err(|fault| OpeningError::Storage(fault.into()))? {
        bytes += chunk.len() as u64;
        restore.chunk(&chunk).map_err(|error| OpeningError::Snapshot(error.to_string()))?;
    }
    let machine = restore.finish().map_err(|error| OpeningError::Snapshot(error.to_string()))?;
    Ok((machine, bytes))
}

fn log_entry(entry: Entry) -> LogEntry {
    let Entry { index, term, kind, data, context } = entry;
    LogEntry { index, term, kind, data, context }
}

pub fn stored_entry(entry: LogEntry) -> Entry {
    let LogEntry { index, term, kind, data, context } = entry;
    Entry { index, term, kind, data, context }
}
