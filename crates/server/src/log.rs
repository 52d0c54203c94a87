//! The log's thread: whatever is waiting becomes one batch with one sync.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tenure_machine::snapshot::chunks;
use tenure_replica::{Input, LogEntry, Persist, SaveSnapshot};
use tenure_storage::{Entry, Fault, Group, HardState, OsDisk, SnapshotMeta, Snapshots, Store};

use crate::data::CHUNK_BYTES;
use crate::member::Inputs;

pub(crate) enum LogWork {
    Persist(Persist),
    SaveSnapshot(Box<SaveSnapshot>),
    /// From the thread that wrote it.
    SnapshotWritten {
        meta: SnapshotMeta,
        bytes: u64,
    },
    Stop,
}

/// The reason for which the member must stop, left by whoever found it first.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    pub(crate) fn leave(&self, reason: String) {
        self.0.lock().expect("no panic while the failure is locked").get_or_insert(reason);
    }

    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().expect("no panic while the failure is locked").take()
    }
}

pub(crate) struct LogThread {
    pub(crate) store: Store<OsDisk>,
    pub(crate) work: Receiver<LogWork>,
    /// Another end of the same queue, for snapshot writers.
    pub(crate) sender: Sender<LogWork>,
    pub(crate) inputs: Inputs,
    pub(crate) failure: Failure,
    pub(crate) snapshot_writer: Option<SnapshotThread>,
}

/// A snapshot being written in the background; at most one at a time.
pub(crate) struct SnapshotThread {
    cancelled: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl LogThread {
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.serve() {
            self.failure.leave(fault.to_string());
            // Any input makes the replica's thread look up.
            self.inputs.send(Input::Cancel { call: u64::MAX });
        }
        if let Some(writer) = self.snapshot_writer.take() {
            writer.cancelled.store(true, Ordering::Relaxed);
            let _ = writer.thread.join();
        }
        if let Err(fault) = self.store.close() {
            tracing::warn!(%fault, "the log could not be closed in order; nothing acknowledged is lost");
        }
    }

    fn serve(&mut self) -> Result<(), Fault> {
        let mut persists = Vec::new();
        while let Ok(first) = self.work.recv() {
            let mut stop = false;
            for work in std::iter::once(first).chain(self.work.try_iter().collect::<Vec<_>>()) {
                match work {
                    LogWork::Persist(persist) => persists.push(StoredPersist::from(persist)),
                    LogWork::SaveSnapshot(save) => self.save_snapshot(*save),
                    LogWork::SnapshotWritten { meta, bytes } => {
                        let index = meta.index;
                        self.store.snapshot_saved(meta)?;
                        self.inputs.send(Input::SnapshotSaved { index, bytes });
                    }
                    LogWork::Stop => stop = true,
                }
            }
            self.persist(&mut persists)?;
            if stop {
                return Ok(());
            }
        }
        Ok(())
    }

    fn persist(&mut self, persists: &mut Vec<StoredPersist>) -> Result<(), Fault> {
        let Some(last) = persists.last() else { return Ok(()) };
        let number = last.number;
        if persists.iter().any(|persist| persist.sync) {
            self.store
                .append_group(persists.iter().map(|p| Group { hard_state: p.hard_state, entries: &p.entries }))?;
        } else {
            for persist in persists.iter() {
                self.store.append(persist.hard_state, &persist.entries, false)?;
            }
        }
        persists.clear();
        self.inputs.send(Input::Persisted { number });
        Ok(())
    }

    fn save_snapshot(&mut self, save: SaveSnapshot) {
        if let Some(finished) = self.snapshot_writer.take() {
            let _ = finished.thread.join();
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let (index, inputs, sender) = (save.index, self.inputs.clone(), self.sender.clone());
        let (snapshots, flag) = (self.store.snapshots(), cancelled.clone());
        let write = move || match write_snapshot(&snapshots, save, &flag) {
            Ok(Some((meta, bytes))) => {
                let _ = sender.send(LogWork::SnapshotWritten { meta, bytes });
            }
            Ok(None) => {}
            Err(fault) => {
                tracing::warn!(index, %fault, "a snapshot could not be written; it will be tried again");
                inputs.send(Input::SnapshotFailed { index });
            }
        };
        match thread::Builder::new().name("tenure-snapshot".into()).spawn(write) {
            Ok(thread) => self.snapshot_writer = Some(SnapshotThread { cancelled, thread }),
            Err(error) => {
                tracing::warn!(index, %error, "no thread to write a snapshot with; it will be tried again");
                self.inputs.send(Input::SnapshotFailed { index });
            }
        }
    }
}

/// None = cancelled.
fn write_snapshot(
    snapshots: &Snapshots<OsDisk>,
    save: SaveSnapshot,
    cancelled: &AtomicBool,
) -> Result<Option<(SnapshotMeta, u64)>, Fault> {
    let meta = SnapshotMeta { index: save.index, term: save.term, configuration: save.configuration };
    let mut writer = snapshots.writer(meta)?;
    let mut bytes = 0;
    for chunk in chunks(save.view, CHUNK_BYTES) {
        if cancelled.load(Ordering::Relaxed) {
            return Ok(None);
        }
        bytes += chunk.len() as u64;
        writer.write_chunk(&chunk)?;
    }
    Ok(Some((writer.finish()?, bytes)))
}

struct StoredPersist {
    number: u64,
    hard_state: Option<HardState>,
    entries: Vec<Entry>,
    sync: bool,
}

impl From<Persist> for StoredPersist {
    fn from(persist: Persist) -> StoredPersist {
        StoredPersist {
            number: persist.number,
            hard_state: persist.hard_state.map(|state| HardState {
                term: state.term,
                vote: state.vote,
                commit: state.commit,
            }),
            entries: persist.entries.into_iter().map(stored_entry).collect(),
            sync: persist.sync,
        }
    }
}

fn stored_entry(entry: LogEntry) -> Entry {
    let LogEntry { index, term, kind, data, context } = entry;
    Entry { index, term, kind, data, context }
}
