//! From a disk to a replica that can boot: what the server does with a data directory, on a disk that lies.

use std::path::Path;

use tenure_machine::Machine;
use tenure_machine::snapshot::{Restore, chunks};
use tenure_replica::{Boot, FIRST_INDEX, FIRST_TERM, HardState, LogEntry, first_configuration};
use tenure_storage::{Entry, Identity, MemoryDisk, OpenError, Opened, Options, Recovered, SnapshotMeta, Store};

pub const MEMBER: u64 = 1;
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

pub fn open(
    disk: &MemoryDisk,
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
            let identity = Identity { cluster_id: 1, member_id: MEMBER, directory_id };
            let configuration = first_configuration(&[MEMBER]);
            let meta = SnapshotMeta { index: FIRST_INDEX, term: FIRST_TERM, configuration };
            let mut machine = Machine::new();
            machine.skip(FIRST_INDEX, FIRST_TERM);
            blank.initialise(identity, meta, chunks(machine.view(), chunk_bytes)).map_err(|f| storage(f.into()))?
        }
    };
    let mut reader = store.snapshot_reader().map_err(|fault| storage(fault.into()))?;
    let mut restore = Restore::new();
    let mut snapshot_bytes = 0;
    while let Some(chunk) = reader.next_chunk().map_err(|fault| storage(fault.into()))? {
        snapshot_bytes += chunk.len() as u64;
        restore.chunk(&chunk).map_err(|error| OpeningError::Snapshot(error.to_string()))?;
    }
    let machine = restore.finish().map_err(|error| OpeningError::Snapshot(error.to_string()))?;
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

fn log_entry(entry: Entry) -> LogEntry {
    let Entry { index, term, kind, data, context } = entry;
    LogEntry { index, term, kind, data, context }
}

pub fn stored_entry(entry: LogEntry) -> Entry {
    let LogEntry { index, term, kind, data, context } = entry;
    Entry { index, term, kind, data, context }
}
