//! The body of a simulated member: what the server's driver and log thread do, in simulated time.
//!
//! A life lasts from one boot to the next death. Within it, inputs wait in an inbox until the replica's
//! next step takes all of them; what must be durable waits in the log's queue until the log is free and
//! takes all of it as one batch; a snapshot is written chunk by chunk beside that. Disk operations happen
//! at the *end* of the time they take, so whatever strikes meanwhile finds them not done.

use std::collections::VecDeque;

use tenure_machine::snapshot::chunks;
use tenure_replica::{Input, Now, Persist, Replica, SaveSnapshot};
use tenure_storage::{Entry, Fault, Group, HardState, MemoryDisk, SnapshotMeta, SnapshotWriter, Store};

use crate::planted::Planted;
use crate::recovery::stored_entry;

pub struct Member {
    pub disk: MemoryDisk,
    pub life: Option<Life>,
    pub lives: u64,
    /// The power goes at this operation of the disk.
    pub cut_at: Option<u64>,
    /// Faults were put into the disk and may still come out of it.
    pub disk_is_bad: bool,
    pub sync_us: (u64, u64),
}

pub struct Life {
    pub number: u64,
    pub began_us: u64,
    pub replica: Replica,
    pub inbox: Vec<Input>,
    pub step_due_us: u64,
    pub paused_until_us: u64,
    store: Store<MemoryDisk>,
    queue: VecDeque<LogWork>,
    /// What the log has taken and not yet finished.
    batch: Vec<LogWork>,
    snapshot: Option<SnapshotJob>,
    chunk_bytes: usize,
    planted: Option<Planted>,
}

enum LogWork {
    Persist(Persist),
    SaveSnapshot(Box<SaveSnapshot>),
    SnapshotWritten { meta: SnapshotMeta, bytes: u64 },
}

struct SnapshotJob {
    index: u64,
    writer: SnapshotWriter<MemoryDisk>,
    chunks: Box<dyn Iterator<Item = Vec<u8>>>,
    bytes: u64,
}

impl Member {
    pub fn new(seed: u64, sync_us: (u64, u64)) -> Member {
        let disk = MemoryDisk::new(seed);
        Member { disk, life: None, lives: 0, cut_at: None, disk_is_bad: false, sync_us }
    }

    pub fn power_is_off(&self) -> bool {
        self.cut_at.is_some_and(|operation| self.disk.operations() >= operation)
    }

    /// From this operation on, counted from now, nothing reaches the disk.
    pub fn cut_power_in(&mut self, operations: u64) {
        let at = self.disk.operations() + operations;
        self.disk.cut_power_at(at);
        self.cut_at = Some(at);
    }

    /// The process is gone, and the machine's power with it. With `torn`, a write was under way.
    pub fn lose_power(&mut self, torn: Option<u64>) {
        if let (Some(operations), Some(life)) = (torn, &mut self.life) {
            self.disk.cut_power_at(self.disk.operations() + operations);
            let _ = life.finish_batch();
            let _ = life.write_chunk();
        }
        // A dead process cleans nothing up.
        self.disk.cut_power_at(self.disk.operations());
        self.life = None;
        self.disk.crash();
        self.cut_at = None;
    }

    /// The process is gone; what it wrote is not.
    pub fn kill(&mut self) {
        let at = self.disk.operations();
        self.disk.cut_power_at(at);
        self.life = None;
        self.disk.kill();
        if let Some(at) = self.cut_at {
            self.disk.cut_power_at(at);
        }
    }
}

impl Life {
    pub fn new(
        number: u64,
        began_us: u64,
        replica: Replica,
        store: Store<MemoryDisk>,
        chunk_bytes: usize,
        planted: Option<Planted>,
    ) -> Life {
        Life {
            number,
            began_us,
            replica,
            inbox: Vec::new(),
            step_due_us: u64::MAX,
            paused_until_us: 0,
            store,
            queue: VecDeque::new(),
            batch: Vec::new(),
            snapshot: None,
            chunk_bytes,
            planted,
        }
    }

    /// The time as this process sees it: its clock began with it.
    pub fn now(&self, now_us: u64, wall_ms: u64) -> Now {
        let elapsed_us = now_us - self.began_us;
        let monotonic_us = if self.planted == Some(Planted::FastClock) { elapsed_us * 3 } else { elapsed_us };
        Now { monotonic_ms: monotonic_us / 1000, wall_ms }
    }

    pub fn wake_us(&self) -> u64 {
        self.began_us + self.replica.wake_ms() * 1000
    }

    pub fn persist(&mut self, persist: Persist) {
        self.queue.push_back(LogWork::Persist(persist));
    }

    pub fn save_snapshot(&mut self, save: Box<SaveSnapshot>) {
        self.queue.push_back(LogWork::SaveSnapshot(save));
    }

    /// If the log is free and something waits, takes all of it. True if it did.
    pub fn begin_batch(&mut self) -> bool {
        if !self.batch.is_empty() || self.queue.is_empty() {
            return false;
        }
        self.batch = self.queue.drain(..).collect();
        if self.planted == Some(Planted::AcknowledgeEarly)
            && let Some(number) = self.last_number()
        {
            self.inbox.push(Input::Persisted { number });
        }
        true
    }

    fn last_number(&self) -> Option<u64> {
        self.batch.iter().rev().find_map(|work| match work {
            LogWork::Persist(persist) => Some(persist.number),
            _ => None,
        })
    }

    /// Does what the log took. True if a snapshot was begun.
    pub fn finish_batch(&mut self) -> Result<bool, Fault> {
        let mut began = false;
        let number = self.last_number();
        let mut persists = Vec::new();
        for work in std::mem::take(&mut self.batch) {
            match work {
                LogWork::Persist(persist) => persists.push(persist),
                LogWork::SaveSnapshot(save) => began |= self.begin_snapshot(*save),
                LogWork::SnapshotWritten { meta, bytes } => {
                    let index = meta.index;
                    self.store.snapshot_saved(meta)?;
                    self.inbox.push(Input::SnapshotSaved { index, bytes });
                }
            }
        }
        if let Some(number) = number {
            self.append(persists)?;
            if self.planted != Some(Planted::AcknowledgeEarly) {
                self.inbox.push(Input::Persisted { number });
            }
        }
        Ok(began)
    }

    fn append(&mut self, persists: Vec<Persist>) -> Result<(), Fault> {
        let sync = persists.iter().any(|persist| persist.sync);
        let planted = self.planted;
        let stored = persists.into_iter().map(|persist| {
            let hard_state =
                persist.hard_state.map(|state| HardState { term: state.term, vote: state.vote, commit: state.commit });
            let mut entries: Vec<Entry> = persist.entries.into_iter().map(stored_entry).collect();
            if planted == Some(Planted::EmptyEntry) {
                entries.iter_mut().filter(|entry| entry.index % 16 == 0).for_each(|entry| entry.data.clear());
            }
            (hard_state, entries)
        });
        let stored: Vec<(Option<HardState>, Vec<Entry>)> = stored.collect();
        if sync {
            let groups = stored.iter().map(|(hard_state, entries)| Group { hard_state: *hard_state, entries });
            return self.store.append_group(groups);
        }
        for (hard_state, entries) in &stored {
            self.store.append(*hard_state, entries, false)?;
        }
        Ok(())
    }

    fn begin_snapshot(&mut self, save: SaveSnapshot) -> bool {
        let index = save.index;
        let meta = SnapshotMeta { index, term: save.term, configuration: save.configuration };
        match self.store.snapshots().writer(meta) {
            Ok(writer) => {
                let chunks = Box::new(chunks(save.view, self.chunk_bytes));
                self.snapshot = Some(SnapshotJob { index, writer, chunks, bytes: 0 });
                true
            }
            Err(_) => {
                self.inbox.push(Input::SnapshotFailed { index });
                false
            }
        }
    }

    /// Writes a snapshot's next chunk, or ends it. True if there is more to do.
    pub fn write_chunk(&mut self) -> bool {
        let Some(mut job) = self.snapshot.take() else { return false };
        let index = job.index;
        let written = match job.chunks.next() {
            Some(chunk) => {
                job.bytes += chunk.len() as u64;
                job.writer.write_chunk(&chunk).map(|()| Some(job))
            }
            None => job.writer.finish().map(|meta| {
                self.queue.push_back(LogWork::SnapshotWritten { meta, bytes: job.bytes });
                None
            }),
        };
        match written {
            Ok(more) => self.snapshot = more,
            Err(_) => self.inbox.push(Input::SnapshotFailed { index }),
        }
        self.snapshot.is_some()
    }

    /// A stop in order: what waits for the log is still written, then the directory is closed.
    pub fn close(mut self) -> Result<(), Fault> {
        self.finish_batch()?;
        self.begin_batch();
        self.finish_batch()?;
        self.give_up();
        Ok(())
    }

    /// As the log's thread ends after a fault: tries to close, whatever comes of it.
    pub fn give_up(self) {
        drop(self.snapshot);
        let _ = self.store.close();
    }
}
