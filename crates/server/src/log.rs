//! The log's thread: whatever is waiting becomes one batch with one sync.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bytes::Bytes;
use tenure_machine::snapshot::chunks;
use tenure_machine::{MemberId, View};
use tenure_replica::{Input, InstalledSnapshot, LogEntry, Persist, SaveSnapshot};
use tenure_storage::{Entry, Fault, Group, HardState, OsDisk, SnapshotMeta, Snapshots, Store};

use crate::background::give_way;
use crate::data::CHUNK_BYTES;
use crate::driver::{Ending, Turns};

/// A sync that takes longer than this on average is left to the log's thread: what could be saved is then
/// little beside it, and a network thread has connections that wait.
const QUICK_SYNC_US: u64 = 400;
/// More than these are left to the log's thread: where so many write, more will come during the sync.
const FEW_ENTRIES: usize = 4;

pub(crate) enum LogWork {
    Persist(Vec<Persist>),
    SaveSnapshot(Box<SaveSnapshot>),
    /// A state to be compared with those of other members.
    HashState {
        index: u64,
        view: Box<View>,
    },
    /// From the thread that wrote it.
    SnapshotWritten {
        meta: SnapshotMeta,
        bytes: u64,
    },
    /// A received snapshot that the replica has no use for.
    DiscardSnapshot {
        index: u64,
    },
    Stop,
}

/// The log as all who may write to it see it.
pub(crate) struct SharedLog {
    /// None = closed.
    store: Mutex<Option<Store<OsDisk>>>,
    /// What the log's thread was given and has not written.
    handed_over: AtomicUsize,
    /// How long a sync takes: a running average.
    sync_us: AtomicU64,
}

/// What has become durable.
pub(crate) struct Durable {
    /// For the replica, first.
    pub(crate) report: Input,
    /// For peers, once that is on its way.
    pub(crate) messages: Vec<(MemberId, Bytes)>,
}

/// The right to write to the log. Whoever has it reports what was written before giving it back.
pub(crate) struct LogTurn<'a> {
    store: MutexGuard<'a, Option<Store<OsDisk>>>,
    sync_us: &'a AtomicU64,
}

impl SharedLog {
    pub(crate) fn new(store: Store<OsDisk>) -> SharedLog {
        SharedLog {
            store: Mutex::new(Some(store)),
            handed_over: AtomicUsize::new(0),
            sync_us: AtomicU64::new(QUICK_SYNC_US),
        }
    }

    /// Must be told before so many are sent to the log's thread.
    pub(crate) fn hand_over(&self, persists: usize) {
        self.handed_over.fetch_add(persists, Ordering::Relaxed);
    }

    /// The log, if this is little, nothing else is being written, and a sync takes no longer than to
    /// have another thread do it.
    pub(crate) fn if_quick(&self, persists: &[Persist]) -> Option<LogTurn<'_>> {
        let entries: usize = persists.iter().map(|persist| persist.entries.len()).sum();
        if entries > FEW_ENTRIES
            || persists.iter().any(|persist| persist.snapshot.is_some())
            || self.sync_us.load(Ordering::Relaxed) >= QUICK_SYNC_US
            || self.handed_over.load(Ordering::Relaxed) > 0
        {
            return None;
        }
        let store = self.store.try_lock().ok().filter(|store| store.is_some())?;
        Some(LogTurn { store, sync_us: &self.sync_us })
    }

    fn turn(&self) -> LogTurn<'_> {
        LogTurn { store: self.store.lock().expect("no panic while the log is locked"), sync_us: &self.sync_us }
    }

    fn close(&self) -> Result<(), Fault> {
        self.turn().store.take().map_or(Ok(()), Store::close)
    }
}

impl LogTurn<'_> {
    fn store(&mut self) -> &mut Store<OsDisk> {
        self.store.as_mut().expect("the log is open while it is written")
    }

    /// Writes all of it as one batch with one sync.
    pub(crate) fn persist(&mut self, persists: Vec<Persist>) -> Result<Durable, Fault> {
        let report = Input::Persisted { number: persists.last().map_or(0, |last| last.number) };
        let mut messages = Vec::new();
        let mut batch = Vec::new();
        for mut persist in persists {
            messages.append(&mut persist.messages);
            if let Some(snapshot) = persist.snapshot {
                self.append(&std::mem::take(&mut batch))?;
                self.install(snapshot)?;
            }
            batch.push(StoredPersist::from(persist));
        }
        self.append(&batch)?;
        Ok(Durable { report, messages })
    }

    fn append(&mut self, batch: &[StoredPersist]) -> Result<(), Fault> {
        if !batch.iter().any(|persist| persist.sync) {
            return batch
                .iter()
                .try_for_each(|persist| self.store().append(persist.hard_state, &persist.entries, false));
        }
        let began = Instant::now();
        let groups = batch.iter().map(|p| Group { hard_state: p.hard_state, entries: &p.entries });
        self.store().append_group(groups)?;
        let (before, took) = (self.sync_us.load(Ordering::Relaxed), began.elapsed().as_micros() as u64);
        self.sync_us.store((before * 7 + took) / 8, Ordering::Relaxed);
        Ok(())
    }

    /// The log starts anew behind a snapshot that a peer has sent. What it had voted for is kept.
    fn install(&mut self, InstalledSnapshot { index, term }: InstalledSnapshot) -> Result<(), Fault> {
        let meta = self.store().snapshots().reader_of(index, term)?.meta().clone();
        self.store().install_snapshot(meta, None)
    }
}

pub(crate) struct LogThread {
    pub(crate) log: Arc<SharedLog>,
    pub(crate) work: Receiver<LogWork>,
    /// Another end of the same queue, for snapshot writers.
    pub(crate) sender: Sender<LogWork>,
    pub(crate) turns: Turns,
    pub(crate) snapshot_writer: Option<SnapshotThread>,
}

/// A snapshot being written in the background; at most one at a time.
pub(crate) struct SnapshotThread {
    index: u64,
    cancelled: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl LogThread {
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.serve() {
            self.turns.end(Some(Ending::Fault(fault.to_string())));
        }
        if let Some(writer) = self.snapshot_writer.take() {
            writer.cancelled.store(true, Ordering::Relaxed);
            let _ = writer.thread.join();
        }
        if let Err(fault) = self.log.close() {
            tracing::warn!(%fault, "the log could not be closed in order; nothing acknowledged is lost");
        }
    }

    fn serve(&mut self) -> Result<(), Fault> {
        while let Ok(first) = self.work.recv() {
            let mut stop = false;
            let mut persists = Vec::new();
            let log = self.log.clone();
            let mut turn = log.turn();
            for work in std::iter::once(first).chain(self.work.try_iter().collect::<Vec<_>>()) {
                match work {
                    LogWork::Persist(some) => persists.extend(some),
                    LogWork::SaveSnapshot(save) => self.save_snapshot(*save, turn.store().snapshots()),
                    LogWork::HashState { index, view } => self.hash_state(index, *view),
                    LogWork::SnapshotWritten { meta, bytes } => {
                        let index = meta.index;
                        // Overtaken by one that a peer has sent: nothing builds on it any more.
                        if index < turn.store().snapshots().newest().index {
                            self.turns.bring(Input::SnapshotFailed { index });
                            continue;
                        }
                        turn.store().snapshot_saved(meta)?;
                        self.turns.bring(Input::SnapshotSaved { index, bytes });
                    }
                    LogWork::DiscardSnapshot { index } => {
                        // One of this member's own may be about to get the same name.
                        if self.snapshot_writer.as_ref().is_none_or(|writer| writer.index != index) {
                            turn.store().discard_snapshot(index)?;
                        }
                    }
                    LogWork::Stop => stop = true,
                }
            }
            let handed_over = persists.len();
            if handed_over > 0 {
                let durable = turn.persist(persists)?;
                self.turns.report(durable);
                log.handed_over.fetch_sub(handed_over, Ordering::Relaxed);
            }
            drop(turn);
            self.turns.take_a_few();
            if stop {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hashes a state on a thread of its own. Where there is no thread to be had, this comparison does without it.
    fn hash_state(&self, index: u64, view: View) {
        let turns = self.turns.clone();
        let hash = move || {
            give_way();
            let began = Instant::now();
            let hash = view.hash();
            turns.bring(Input::StateHashed { index, hash, took_ms: began.elapsed().as_millis() as u64 });
            turns.take_a_few();
        };
        if let Err(error) = thread::Builder::new().name("tenure-compare".into()).spawn(hash) {
            tracing::warn!(index, %error, "no thread to hash the state with");
        }
    }

    fn save_snapshot(&mut self, save: SaveSnapshot, snapshots: Snapshots<OsDisk>) {
        if let Some(before) = self.snapshot_writer.take() {
            // Finished, unless a peer's snapshot has made it useless.
            before.cancelled.store(true, Ordering::Relaxed);
            let _ = before.thread.join();
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let (index, turns, sender) = (save.index, self.turns.clone(), self.sender.clone());
        let (snapshots, flag) = (snapshots, cancelled.clone());
        let write = move || {
            give_way();
            match write_snapshot(&snapshots, save, &flag) {
                Ok(Some((meta, bytes))) => {
                    let _ = sender.send(LogWork::SnapshotWritten { meta, bytes });
                }
                Ok(None) => {}
                Err(fault) => {
                    tracing::warn!(index, %fault, "a snapshot could not be written; it will be tried again");
                    turns.bring(Input::SnapshotFailed { index });
                    turns.take_a_few();
                }
            }
        };
        match thread::Builder::new().name("tenure-snapshot".into()).spawn(write) {
            Ok(thread) => self.snapshot_writer = Some(SnapshotThread { index, cancelled, thread }),
            Err(error) => {
                tracing::warn!(index, %error, "no thread to write a snapshot with; it will be tried again");
                self.turns.bring(Input::SnapshotFailed { index });
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
    hard_state: Option<HardState>,
    entries: Vec<Entry>,
    sync: bool,
}

impl From<Persist> for StoredPersist {
    fn from(persist: Persist) -> StoredPersist {
        StoredPersist {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use tenure_machine::Machine;
    use tenure_storage::{Identity, Opened, Options, Recovered};

    fn open(directory: &Path) -> (Store<OsDisk>, Recovered) {
        match Store::open(OsDisk::default(), directory, Options::default()).unwrap() {
            Opened::Existing(store, recovered) => (store, recovered),
            Opened::Empty(blank) => {
                let identity = Identity { cluster_id: 1, member_id: 1, directory_id: 1 };
                let meta = SnapshotMeta { index: 1, term: 1, configuration: Bytes::new() };
                blank.initialise(identity, meta, chunks(Machine::new().view(), CHUNK_BYTES)).unwrap()
            }
        }
    }

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry { index, term, kind: 0, data: Bytes::from_static(b"data"), context: Bytes::new() }
    }

    fn persist(number: u64, entries: Vec<LogEntry>) -> Persist {
        let messages = vec![(number, Bytes::from_static(b"done"))];
        Persist { number, snapshot: None, hard_state: None, entries, sync: true, messages }
    }

    #[test]
    fn a_peers_snapshot_takes_the_place_of_the_log_in_its_turn() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let (store, _) = open(&data);
        let snapshots = store.snapshots();
        let log = SharedLog::new(store);
        let meta = SnapshotMeta { index: 20, term: 3, configuration: Bytes::from_static(b"who votes") };
        snapshots.writer(meta.clone()).unwrap().finish().unwrap();
        let installed = Persist {
            snapshot: Some(InstalledSnapshot { index: 20, term: 3 }),
            hard_state: Some(tenure_replica::HardState { term: 4, vote: 2, commit: 21 }),
            ..persist(2, vec![entry(21, 3), entry(22, 3)])
        };
        assert!(log.if_quick(std::slice::from_ref(&installed)).is_none(), "not on a network thread");
        let batch = vec![persist(1, vec![entry(2, 1), entry(3, 1)]), installed, persist(3, vec![entry(23, 4)])];
        let durable = log.turn().persist(batch).unwrap();
        assert!(matches!(durable.report, Input::Persisted { number: 3 }));
        assert_eq!(durable.messages.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(snapshots.newest(), meta);
        log.close().unwrap();
        drop(snapshots);
        let (_, recovered) = open(&data);
        assert_eq!(recovered.snapshot, meta);
        assert_eq!(
            recovered.entries.iter().map(|entry| (entry.index, entry.term)).collect::<Vec<_>>(),
            [(21, 3), (22, 3), (23, 4)]
        );
        let HardState { term, vote, commit } = recovered.hard_state;
        assert_eq!((term, vote, commit), (4, 2, 21));
    }

    #[test]
    fn a_snapshot_that_is_not_there_is_not_installed() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let log = SharedLog::new(open(&data).0);
        let snapshot = Some(InstalledSnapshot { index: 20, term: 3 });
        assert!(log.turn().persist(vec![Persist { snapshot, ..persist(1, Vec::new()) }]).is_err());
    }
}
