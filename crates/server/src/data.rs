//! Opening a member's data directory: from files to everything a replica boots from.

use std::time::Instant;

use tenure_machine::Machine;
use tenure_machine::snapshot::{Restore, SnapshotError, chunks};
use tenure_replica::{Boot, FIRST_INDEX, FIRST_TERM, HardState, LogEntry, first_configuration};
use tenure_storage::{Entry, Fault, Identity, OpenError, Opened, Options, OsDisk, Recovered, SnapshotMeta, Store};

use crate::config::Config;
use crate::member::random_u64;

/// Target size of a snapshot's chunks.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// A data directory, locked, with what was found in it.
pub struct Data {
    pub identity: Identity,
    pub boot: Boot,
    pub store: Store<OsDisk>,
}

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("data directory: {0}")]
    Open(#[from] OpenError),
    #[error("data directory: {0}")]
    Fault(#[from] Fault),
    #[error("data directory: {0}; it was written by a newer version, or is damaged")]
    Snapshot(#[from] SnapshotError),
}

/// Opens the data directory, or makes it that of a new cluster of one.
pub fn open(config: &Config) -> Result<Data, DataError> {
    let began = Instant::now();
    let (store, recovered) = match Store::open(OsDisk::default(), &config.data_dir, Options::default())? {
        Opened::Existing(store, recovered) => (store, recovered),
        Opened::Empty(blank) => {
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
            let mut machine = Machine::new();
            machine.skip(FIRST_INDEX, FIRST_TERM);
            blank.initialise(identity, meta, chunks(machine.view(), CHUNK_BYTES))?
        }
    };
    let identity = recovered.identity;
    let (machine, snapshot_bytes) = read_snapshot(&store)?;
    report(&recovered, &machine, began);
    let boot = Boot {
        machine,
        snapshot_index: recovered.snapshot.index,
        snapshot_term: recovered.snapshot.term,
        configuration: recovered.snapshot.configuration,
        snapshot_bytes,
        hard_state: HardState {
            term: recovered.hard_state.term,
            vote: recovered.hard_state.vote,
            commit: recovered.hard_state.commit,
        },
        entries: recovered.entries.into_iter().map(log_entry).collect(),
    };
    Ok(Data { identity, boot, store })
}

fn read_snapshot(store: &Store<OsDisk>) -> Result<(Machine, u64), DataError> {
    let mut reader = store.snapshot_reader()?;
    let mut restore = Restore::new();
    let mut bytes = 0;
    while let Some(chunk) = reader.next_chunk()? {
        bytes += chunk.len() as u64;
        restore.chunk(&chunk)?;
    }
    Ok((restore.finish()?, bytes))
}

fn report(recovered: &Recovered, machine: &Machine, began: Instant) {
    if let Some(torn) = &recovered.torn_tail {
        tracing::warn!(
            file = %torn.file.display(), offset = torn.offset, bytes = torn.bytes,
            "cut off an unfinished write at the end of the log; nothing in it was acknowledged"
        );
    }
    for file in &recovered.damaged_snapshots {
        tracing::warn!(file = %file.display(), "a damaged snapshot was passed over; the log had all that it held");
    }
    tracing::info!(
        snapshot = recovered.snapshot.index,
        entries = recovered.entries.len(),
        revision = machine.state().revision(),
        millis = began.elapsed().as_millis() as u64,
        "read the data directory"
    );
}

fn log_entry(entry: Entry) -> LogEntry {
    let Entry { index, term, kind, data, context } = entry;
    LogEntry { index, term, kind, data, context }
}
