//! The body of a simulated member: what the server's driver and log thread do, in simulated time.
//!
//! A life lasts from one boot to the next death. Within it, inputs wait in an inbox until the replica's
//! next step takes all of them; what must be durable waits in the log's queue until the log is free and
//! takes all of it as one batch; a snapshot is written chunk by chunk beside that. Disk operations happen
//! at the *end* of the time they take, so whatever strikes meanwhile finds them not done.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use bytes::Bytes;
use tenure_machine::MemberId;
use tenure_machine::snapshot::chunks;
use tenure_replica::{Input, InstalledSnapshot, Now, Persist, Replica, SaveSnapshot};
use tenure_storage::{
    Entry, Fault, Group, HardState, MemoryDisk, Peers, SnapshotMeta, SnapshotReceiver, SnapshotWriter, Snapshots, Store,
};

use crate::durable::Durable;
use crate::planted::Planted;
use crate::recovery::stored_entry;

/// A machine with its disk and its clock, and the process on it while one runs.
pub struct Member {
    pub id: MemberId,
    pub disk: MemoryDisk,
    pub life: Option<Life>,
    pub lives: u64,
    /// With whom it begins if its disk is empty; nobody = it joins those who are there.
    pub founders: Vec<MemberId>,
    /// The power goes at this operation of the disk.
    pub cut_at: Option<u64>,
    /// Faults were put into the disk and may still come out of it.
    pub disk_is_bad: bool,
    /// Something on the disk is not what was written there.
    pub damage: Option<Damage>,
    pub sync_us: (u64, u64),
    /// How much faster than the world its clock runs.
    pub drift_ppm: i64,
    /// Its wall clock stands so much ahead of the world's own.
    pub wall_ms: u64,
    /// It was told that it is no member any more, or that it is a stranger, and does not start again.
    pub is_gone: bool,
    pub durable: Durable,
    /// So much later than it should does it take each step.
    pub late_us: u64,
}

/// What is wrong with a disk that goes on as if nothing were.
pub enum Damage {
    /// A bit has changed while the power was off. `intact` is the disk as it was before.
    Flipped { file: PathBuf, offset: u64, intact: MemoryDisk },
    /// A write went elsewhere, or will.
    Misdirected,
}

pub struct Life {
    pub number: u64,
    pub began_us: u64,
    pub replica: Replica,
    pub inbox: Vec<Input>,
    pub step_due_us: u64,
    pub paused_until_us: u64,
    /// Its last step takes until then.
    pub busy_until_us: u64,
    /// When its clock leapt last.
    pub leapt_us: u64,
    /// How far its clock has leapt ahead of where it would be, or has stood still behind it.
    pub ahead_us: i64,
    /// Tells this data directory from any other.
    pub directory_id: u128,
    /// The term of each entry that the replica has given to its log.
    pub terms: BTreeMap<u64, u64>,
    /// Up to here what it applied was compared with what others did.
    pub compared: u64,
    /// What came in of snapshots whose stream was cut, by sender.
    pub partial: BTreeMap<MemberId, Partial>,
    pub snapshots: Snapshots<MemoryDisk>,
    pub peers: Peers<MemoryDisk>,
    /// As the replica has told them.
    pub members: Vec<MemberId>,
    store: Store<MemoryDisk>,
    queue: VecDeque<LogWork>,
    /// What the log has taken and not yet finished.
    batch: Vec<LogWork>,
    /// When the disk has done with the last batch that was begun.
    pub log_busy_until_us: u64,
    snapshot: Option<SnapshotJob>,
    chunk_bytes: usize,
    planted: Option<Planted>,
}

/// A snapshot that has come in so far.
pub struct Partial {
    pub index: u64,
    pub term: u64,
    pub bytes: u64,
    pub receiver: SnapshotReceiver<MemoryDisk>,
}

enum LogWork {
    Persist(Persist),
    SaveSnapshot(Box<SaveSnapshot>),
    SnapshotWritten { meta: SnapshotMeta, bytes: u64 },
    DiscardSnapshot { index: u64 },
}

struct SnapshotJob {
    index: u64,
    writer: SnapshotWriter<MemoryDisk>,
    chunks: Box<dyn Iterator<Item = Vec<u8>>>,
    bytes: u64,
}

/// What the log has done.
#[derive(Default)]
pub struct Done {
    pub snapshot_began: bool,
    /// May leave now that what they speak of is durable.
    pub messages: Vec<(MemberId, Bytes)>,
}

impl Member {
    pub fn new(id: MemberId, seed: u64, founders: Vec<MemberId>, sync_us: (u64, u64), drift_ppm: i64) -> Member {
        Member {
            id,
            disk: MemoryDisk::new(seed),
            life: None,
            lives: 0,
            founders,
            cut_at: None,
            disk_is_bad: false,
            damage: None,
            sync_us,
            drift_ppm,
            wall_ms: 1_700_000_000_000,
            is_gone: false,
            durable: Durable::default(),
            late_us: 0,
        }
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
            let _ = life.finish_batch(&mut Durable::default());
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

    /// The time as this process sees it: its clock began with it.
    pub fn now(&self, now_us: u64, planted: Option<Planted>) -> Now {
        let (began_us, ahead_us) = self.life.as_ref().map_or((now_us, 0), |life| (life.began_us, life.ahead_us));
        let ppm = if planted == Some(Planted::FastClock) { 2_000_000 } else { self.drift_ppm };
        let elapsed_us = i128::from(now_us - began_us) * i128::from(1_000_000 + ppm) / 1_000_000;
        let elapsed_us = (elapsed_us + i128::from(ahead_us)).max(0);
        Now { monotonic_ms: elapsed_us as u64 / 1000, wall_ms: self.wall_ms.wrapping_add(now_us / 1000) }
    }

    /// When the process wants to be woken, on the world's clock.
    pub fn wake_us(&self, life: &Life) -> u64 {
        let shown_us = (i128::from(life.replica.wake_ms()) * 1000 - i128::from(life.ahead_us)).max(0);
        life.began_us + (shown_us * 1_000_000 / i128::from(1_000_000 + self.drift_ppm)) as u64
    }
}

impl Life {
    pub fn new(
        number: u64,
        began_us: u64,
        replica: Replica,
        store: Store<MemoryDisk>,
        directory_id: u128,
        chunk_bytes: usize,
        planted: Option<Planted>,
    ) -> Life {
        Life {
            number,
            began_us,
            compared: replica.machine().applied_index(),
            replica,
            inbox: Vec::new(),
            step_due_us: u64::MAX,
            paused_until_us: 0,
            busy_until_us: 0,
            leapt_us: 0,
            ahead_us: 0,
            directory_id,
            terms: BTreeMap::new(),
            partial: BTreeMap::new(),
            snapshots: store.snapshots(),
            peers: store.peers(),
            members: Vec::new(),
            store,
            queue: VecDeque::new(),
            batch: Vec::new(),
            log_busy_until_us: 0,
            snapshot: None,
            chunk_bytes,
            planted,
        }
    }

    pub fn persist(&mut self, persist: Persist) {
        self.queue.push_back(LogWork::Persist(persist));
    }

    pub fn save_snapshot(&mut self, save: Box<SaveSnapshot>) {
        self.queue.push_back(LogWork::SaveSnapshot(save));
    }

    pub fn discard_snapshot(&mut self, index: u64) {
        self.queue.push_back(LogWork::DiscardSnapshot { index });
    }

    /// If the log is free and something waits, takes all of it. True if it did.
    pub fn begin_batch(&mut self, durable: &mut Durable) -> bool {
        if !self.batch.is_empty() || self.queue.is_empty() {
            return false;
        }
        self.batch = self.queue.drain(..).collect();
        durable.begin(self.batch.iter().filter_map(LogWork::persist));
        if self.acknowledges_early()
            && let Some(number) = self.last_number()
        {
            self.inbox.push(Input::Persisted { number });
        }
        true
    }

    /// What a log that acknowledges early lets go before it is written.
    pub fn early_messages(&mut self) -> Vec<(MemberId, Bytes)> {
        if !self.acknowledges_early() {
            return Vec::new();
        }
        let persists = self.batch.iter_mut().filter_map(|work| match work {
            LogWork::Persist(persist) => Some(persist),
            _ => None,
        });
        persists.flat_map(|persist| std::mem::take(&mut persist.messages)).collect()
    }

    fn acknowledges_early(&self) -> bool {
        self.planted == Some(Planted::AcknowledgeEarly)
    }

    fn last_number(&self) -> Option<u64> {
        self.batch.iter().rev().find_map(LogWork::persist).map(|persist| persist.number)
    }

    /// Does what the log took.
    pub fn finish_batch(&mut self, durable: &mut Durable) -> Result<Done, Fault> {
        let mut done = Done::default();
        let number = self.last_number();
        let mut persists = Vec::new();
        for work in std::mem::take(&mut self.batch) {
            match work {
                LogWork::Persist(persist) => persists.push(persist),
                LogWork::SaveSnapshot(save) => done.snapshot_began |= self.begin_snapshot(*save),
                LogWork::SnapshotWritten { meta, bytes } => self.name_snapshot(meta, bytes)?,
                LogWork::DiscardSnapshot { index } => {
                    // One of this member's own may be about to get the same name.
                    if self.snapshot.as_ref().is_none_or(|job| job.index != index) {
                        self.store.discard_snapshot(index)?;
                    }
                }
            }
        }
        if let Some(number) = number {
            done.messages = persists.iter_mut().flat_map(|persist| std::mem::take(&mut persist.messages)).collect();
            self.write(persists)?;
            durable.finish();
            if !self.acknowledges_early() {
                self.inbox.push(Input::Persisted { number });
            }
        }
        Ok(done)
    }

    fn name_snapshot(&mut self, meta: SnapshotMeta, bytes: u64) -> Result<(), Fault> {
        let index = meta.index;
        // Overtaken by one that a peer has sent: nothing builds on it any more.
        if index < self.snapshots.newest().index {
            self.inbox.push(Input::SnapshotFailed { index });
            return Ok(());
        }
        self.store.snapshot_saved(meta)?;
        self.inbox.push(Input::SnapshotSaved { index, bytes });
        Ok(())
    }

    fn write(&mut self, persists: Vec<Persist>) -> Result<(), Fault> {
        let mut batch = Vec::new();
        for persist in persists {
            if let Some(snapshot) = persist.snapshot {
                self.append(&std::mem::take(&mut batch))?;
                self.install(snapshot)?;
            }
            batch.push(self.stored(persist));
        }
        self.append(&batch)
    }

    fn stored(&self, persist: Persist) -> Stored {
        let hard_state =
            persist.hard_state.map(|state| HardState { term: state.term, vote: state.vote, commit: state.commit });
        let mut entries: Vec<Entry> = persist.entries.into_iter().map(stored_entry).collect();
        if self.planted == Some(Planted::EmptyEntry) {
            entries.iter_mut().filter(|entry| entry.index % 16 == 0).for_each(|entry| entry.data.clear());
        }
        Stored { hard_state, entries, sync: persist.sync }
    }

    fn append(&mut self, batch: &[Stored]) -> Result<(), Fault> {
        if batch.iter().any(|stored| stored.sync) {
            let groups = batch.iter().map(|stored| Group { hard_state: stored.hard_state, entries: &stored.entries });
            return self.store.append_group(groups);
        }
        batch.iter().try_for_each(|stored| self.store.append(stored.hard_state, &stored.entries, false))
    }

    /// The log starts anew behind a snapshot that a peer has sent. What it had voted for is kept.
    fn install(&mut self, InstalledSnapshot { index, term }: InstalledSnapshot) -> Result<(), Fault> {
        let meta = self.snapshots.reader_of(index, term)?.meta().clone();
        self.store.install_snapshot(meta, None)
    }

    fn begin_snapshot(&mut self, save: SaveSnapshot) -> bool {
        let index = save.index;
        let apart = u64::from(self.planted == Some(Planted::StateApart));
        let meta = SnapshotMeta { index: index - apart, term: save.term, configuration: save.configuration };
        match self.snapshots.writer(meta) {
            Ok(writer) => {
                let is_new = self.snapshot.is_none();
                let chunks = Box::new(chunks(save.view, self.chunk_bytes));
                // One that was being written has become useless by a peer's snapshot.
                self.snapshot = Some(SnapshotJob { index, writer, chunks, bytes: 0 });
                is_new
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
    pub fn close(mut self, durable: &mut Durable) -> Result<(), Fault> {
        self.finish_batch(durable)?;
        self.begin_batch(durable);
        self.finish_batch(durable)?;
        self.give_up();
        Ok(())
    }

    /// As the log's thread ends after a fault: tries to close, whatever comes of it.
    pub fn give_up(self) {
        drop(self.snapshot);
        drop(self.partial);
        let _ = self.store.close();
    }
}

struct Stored {
    hard_state: Option<HardState>,
    entries: Vec<Entry>,
    sync: bool,
}

impl LogWork {
    fn persist(&self) -> Option<&Persist> {
        match self {
            LogWork::Persist(persist) => Some(persist),
            _ => None,
        }
    }
}
