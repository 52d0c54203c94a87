//! A naive model of a store beside a real one on a faulty disk, and the question that every test asks
//! after a death: is what came back one of the states that were possible?
//!
//! A batch is atomic, so at any moment only two logs are possible: the acknowledged one, and the one with
//! what was being written. A snapshot that may have got its name adds the same logs as seen from there.

#![allow(dead_code)]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tenure_storage::{
    Entry, Fault, Group, HardState, Identity, MemoryDisk, OpenError, Opened, Options, Recovered, SnapshotEncoder,
    SnapshotMeta, Store,
};

pub const IDENTITY: Identity = Identity { cluster_id: 11, member_id: 22, directory_id: 0x3333_4444_5555_6666_7777 };

pub fn directory() -> PathBuf {
    PathBuf::from("/data")
}

pub fn options() -> Options {
    Options { segment_bytes: 8 << 10 }
}

pub fn meta(index: u64, term: u64) -> SnapshotMeta {
    SnapshotMeta { index, term, configuration: Bytes::from(format!("configuration {index} {term}")) }
}

/// Chunks that follow from the meta, so that a reader can tell whose they are.
pub fn chunks(meta: &SnapshotMeta) -> Vec<Vec<u8>> {
    (0..meta.index % 4).map(|chunk| format!("{meta:?} {chunk} ").repeat(20).into_bytes()).collect()
}

/// A snapshot as the bytes of its stream.
pub fn encoded(meta: &SnapshotMeta) -> Vec<u8> {
    let mut encoder = SnapshotEncoder::new(Vec::new(), meta).unwrap();
    for chunk in chunks(meta) {
        encoder.write_chunk(&chunk).unwrap();
    }
    encoder.finish().unwrap()
}

pub fn entry(index: u64, term: u64, bytes: usize) -> Entry {
    let data = (0..bytes).map(|position| (index as usize * 31 + term as usize * 7 + position) as u8).collect();
    Entry { index, term, kind: (index % 3) as u8, data, context: Bytes::from(format!("c{index}")) }
}

pub fn entries(from: u64, to: u64, term: u64, bytes: usize) -> Vec<Entry> {
    (from..=to).map(|index| entry(index, term, bytes)).collect()
}

#[derive(Clone, Debug)]
pub enum Operation {
    Append {
        hard_state: Option<HardState>,
        entries: Vec<Entry>,
        sync: bool,
    },
    Groups(Vec<(Option<HardState>, Vec<Entry>)>),
    /// Writes a snapshot of the member's own state and builds on it.
    Snapshot {
        index: u64,
    },
    /// Receives a snapshot; the log does not know of it.
    Receive {
        index: u64,
        term: u64,
    },
    /// Installs what was received before.
    InstallReceived {
        index: u64,
        term: u64,
    },
    /// Both.
    Install {
        index: u64,
        term: u64,
    },
    /// A clean stop and start.
    Reopen,
    /// The process dies and comes back; the page cache survives.
    Kill,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub hard_state: HardState,
    pub snapshot: SnapshotMeta,
    pub entries: Vec<Entry>,
}

impl State {
    pub fn last_index(&self) -> u64 {
        self.entries.last().map_or(self.snapshot.index, |entry| entry.index)
    }

    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.snapshot.index {
            return Some(self.snapshot.term);
        }
        self.entries.iter().find(|entry| entry.index == index).map(|entry| entry.term)
    }

    fn append(&mut self, hard_state: Option<HardState>, entries: &[Entry]) {
        for entry in entries {
            self.entries.retain(|earlier| earlier.index < entry.index);
            self.entries.push(entry.clone());
        }
        if let Some(hard_state) = hard_state {
            self.hard_state = HardState { commit: hard_state.commit.min(self.last_index()), ..hard_state };
        }
    }

    /// The same log as seen from a newer snapshot.
    fn adopt(&self, snapshot: &SnapshotMeta) -> Self {
        let mut state = self.clone();
        if snapshot.index < self.snapshot.index {
            return state;
        }
        if self.term_at(snapshot.index) == Some(snapshot.term) {
            state.entries.retain(|entry| entry.index > snapshot.index);
        } else {
            state.entries.clear();
        }
        state.hard_state.commit = state.hard_state.commit.max(snapshot.index);
        if snapshot.term > state.hard_state.term {
            state.hard_state.term = snapshot.term;
            state.hard_state.vote = 0;
        }
        state.snapshot = snapshot.clone();
        state
    }
}

impl From<&Recovered> for State {
    fn from(recovered: &Recovered) -> Self {
        Self {
            hard_state: recovered.hard_state,
            snapshot: recovered.snapshot.clone(),
            entries: recovered.entries.clone(),
        }
    }
}

/// The store and all that may be on its disk.
pub struct Member {
    pub disk: MemoryDisk,
    pub options: Options,
    store: Option<Store<MemoryDisk>>,
    /// `None` until initialising was acknowledged.
    pub durable: Option<State>,
    pub pending: Option<State>,
    snapshots: Vec<SnapshotMeta>,
}

impl Member {
    pub fn new(seed: u64) -> Self {
        let disk = MemoryDisk::new(seed);
        Self { disk, options: options(), store: None, durable: None, pending: None, snapshots: Vec::new() }
    }

    /// A new member, initialised.
    pub fn initialised(seed: u64) -> Self {
        let mut member = Self::new(seed);
        member.initialise().unwrap();
        member
    }

    pub fn store(&mut self) -> &mut Store<MemoryDisk> {
        self.store.as_mut().unwrap()
    }

    pub fn initialise(&mut self) -> Result<(), String> {
        let first = meta(1, 1);
        let state = State {
            hard_state: HardState { term: 1, vote: 0, commit: 1 },
            snapshot: first.clone(),
            entries: Vec::new(),
        };
        self.pending = Some(state.clone());
        let opened = Store::open(self.disk.clone(), &directory(), self.options.clone()).map_err(text)?;
        let Opened::Empty(blank) = opened else { panic!("a new directory is not empty") };
        let (store, _) = blank.initialise(IDENTITY, first.clone(), chunks(&first)).map_err(text)?;
        self.store = Some(store);
        self.durable = Some(state);
        Ok(())
    }

    pub fn run(&mut self, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::Append { hard_state, entries, sync } => {
                self.pending.as_mut().unwrap().append(*hard_state, entries);
                self.store().append(*hard_state, entries, *sync).map_err(text)?;
                if *sync {
                    self.durable = self.pending.clone();
                }
            }
            Operation::Groups(groups) => {
                for (hard_state, entries) in groups {
                    self.pending.as_mut().unwrap().append(*hard_state, entries);
                }
                let groups = groups.iter().map(|(hard_state, entries)| Group { hard_state: *hard_state, entries });
                let groups: Vec<_> = groups.collect();
                self.store().append_group(groups).map_err(text)?;
                self.durable = self.pending.clone();
            }
            Operation::Snapshot { index } => {
                let term = self.pending.as_ref().unwrap().term_at(*index).unwrap();
                let meta = self.write_snapshot(*index, term)?;
                self.store().snapshot_saved(meta.clone()).map_err(text)?;
                self.durable = self.durable.take().map(|state| state.adopt(&meta));
                self.pending = self.pending.take().map(|state| state.adopt(&meta));
            }
            Operation::Receive { index, term } => drop(self.receive_snapshot(*index, *term)?),
            Operation::Install { index, term } => {
                self.receive_snapshot(*index, *term)?;
                self.run(&Operation::InstallReceived { index: *index, term: *term })?;
            }
            Operation::InstallReceived { index, term } => {
                let reader = self.store().snapshots().reader_of(*index, *term).map_err(text)?;
                let meta = reader.meta().clone();
                let pending = self.pending.as_mut().unwrap();
                let mut state = pending.adopt(&meta);
                state.entries.clear();
                *pending = state.clone();
                self.store().install_snapshot(meta, None).map_err(text)?;
                self.durable = Some(state);
            }
            Operation::Reopen => {
                self.store.take().unwrap().close().map_err(text)?;
                self.durable = self.pending.clone();
                self.open_and_check()?;
            }
            Operation::Kill => {
                self.disk.kill();
                self.store = None;
                self.open_and_check()?;
            }
        }
        Ok(())
    }

    /// Opens the directory and checks that what comes back was possible. `Err` only if the power is off.
    pub fn open_and_check(&mut self) -> Result<(), String> {
        self.store = None;
        let opened = Store::open(self.disk.clone(), &directory(), self.options.clone());
        let (store, recovered) = match opened {
            Ok(Opened::Existing(store, recovered)) => (store, recovered),
            Ok(Opened::Empty(_)) => {
                assert!(self.durable.is_none(), "an initialised directory came back empty");
                return Ok(());
            }
            Err(error) if error.to_string().contains("the power is off") => return Err(error.to_string()),
            Err(error) => panic!("after a crash: {error}"),
        };
        assert_eq!(recovered.identity, IDENTITY);
        assert!(recovered.damaged_snapshots.is_empty());
        let state = State::from(&recovered);
        let possible = self.possible();
        assert!(possible.contains(&state), "came back: {}\npossible: {possible:#?}", summary(&state));
        assert_eq!(store.last_index(), state.last_index());
        check_snapshot(&store, &state.snapshot)?;
        self.store = Some(store);
        self.durable = Some(state.clone());
        self.pending = Some(state);
        self.snapshots.clear();
        Ok(())
    }

    fn possible(&self) -> Vec<State> {
        let mut possible: Vec<State> = self.durable.iter().chain(&self.pending).cloned().collect();
        for position in 0..possible.len() {
            for snapshot in &self.snapshots {
                possible.push(possible[position].adopt(snapshot));
            }
        }
        possible
    }

    /// The bytes of another member's snapshot, as they come in: in pieces.
    fn receive_snapshot(&mut self, index: u64, term: u64) -> Result<SnapshotMeta, String> {
        let meta = meta(index, term);
        self.snapshots.push(meta.clone());
        let bytes = encoded(&meta);
        let mut receiver = self.store().snapshots().receiver(index, term).map_err(text)?;
        for piece in bytes.chunks(100) {
            receiver.write(piece).map_err(text)?;
        }
        assert_eq!(receiver.offset(), bytes.len() as u64);
        assert_eq!(receiver.finish().map_err(text)?, meta);
        Ok(meta)
    }

    fn write_snapshot(&mut self, index: u64, term: u64) -> Result<SnapshotMeta, String> {
        let meta = meta(index, term);
        self.snapshots.push(meta.clone());
        let mut writer = self.store().snapshot_writer(meta.clone()).map_err(text)?;
        for chunk in chunks(&meta) {
            writer.write_chunk(&chunk).map_err(text)?;
        }
        assert_eq!(writer.finish().map_err(text)?, meta);
        Ok(meta)
    }
}

/// The fault's text, if the power is off: the only one that these workloads may meet.
fn text(fault: impl std::error::Error) -> String {
    let text = fault.to_string();
    assert!(text.contains("the power is off"), "{text}");
    text
}

pub fn check_snapshot(store: &Store<MemoryDisk>, expected: &SnapshotMeta) -> Result<(), String> {
    let reader = store.snapshot_reader().map_err(text)?;
    assert_eq!(reader.meta(), expected);
    let found = reader.map(|chunk| chunk.map(|chunk| chunk.to_vec())).collect::<Result<Vec<_>, Fault>>();
    assert_eq!(found.map_err(text)?, chunks(expected));
    Ok(())
}

fn summary(state: &State) -> String {
    let indexes: Vec<_> = state.entries.iter().map(|entry| (entry.index, entry.term)).collect();
    format!("{:?} {:?} {indexes:?}", state.hard_state, state.snapshot)
}

/// Every kind of operation, over several segments.
pub fn script() -> Vec<Operation> {
    use Operation::*;
    let hard_state = |term, vote, commit| Some(HardState { term, vote, commit });
    let append = |hard_state, entries, sync| Append { hard_state, entries, sync };
    vec![
        append(hard_state(1, 3, 1), vec![], true),
        append(None, entries(2, 4, 1, 100), true),
        // A suffix is replaced.
        append(hard_state(2, 1, 2), entries(3, 3, 2, 300), true),
        append(hard_state(2, 1, 3), vec![], false),
        append(None, entries(4, 6, 2, 1500), true),
        // Into the next segment.
        append(None, entries(7, 9, 2, 2000), true),
        Groups(vec![
            (hard_state(2, 1, 7), entries(10, 10, 2, 10)),
            (None, entries(11, 12, 2, 10)),
            (hard_state(3, 2, 8), entries(11, 11, 3, 600)),
        ]),
        Snapshot { index: 8 },
        Kill,
        append(hard_state(3, 2, 11), entries(12, 20, 3, 400), true),
        append(None, entries(21, 21, 3, 50), false),
        // Longer than a segment.
        append(None, entries(22, 22, 3, 20_000), true),
        append(hard_state(4, 0, 21), entries(23, 30, 3, 200), true),
        Snapshot { index: 21 },
        Reopen,
        append(None, entries(31, 33, 4, 700), true),
        // Another history takes over.
        Install { index: 50, term: 6 },
        append(hard_state(6, 1, 51), entries(51, 60, 6, 900), true),
        Install { index: 55, term: 7 },
        append(hard_state(7, 1, 56), entries(56, 58, 7, 100), true),
        Snapshot { index: 57 },
        append(None, entries(58, 62, 8, 1200), true),
        append(hard_state(9, 1, 60), entries(63, 70, 8, 1000), true),
    ]
}

/// Snapshots that arrive, and a log that goes on as if nothing had, until it is told.
pub fn received_script() -> Vec<Operation> {
    use Operation::*;
    let append =
        |term, commit, entries| Append { hard_state: Some(HardState { term, vote: 1, commit }), entries, sync: true };
    vec![
        append(1, 3, entries(2, 6, 1, 100)),
        // The log has its last entry: nothing is lost, whether it is found or not.
        Receive { index: 4, term: 1 },
        append(1, 4, entries(7, 9, 1, 700)),
        Kill,
        append(2, 6, entries(10, 14, 2, 800)),
        // Ahead of the log, which goes on.
        Receive { index: 20, term: 3 },
        append(2, 7, entries(15, 17, 2, 800)),
        InstallReceived { index: 20, term: 3 },
        append(3, 21, entries(21, 25, 3, 900)),
        // Another history than the log's; the process dies before the log is told.
        Receive { index: 23, term: 4 },
        Kill,
        append(4, 24, entries(24, 30, 4, 1200)),
        // Newer than one of the member's own that is saved meanwhile.
        Receive { index: 29, term: 5 },
        Snapshot { index: 24 },
        append(5, 24, entries(25, 27, 5, 300)),
        InstallReceived { index: 29, term: 5 },
        append(5, 30, entries(30, 33, 5, 300)),
        Reopen,
        append(5, 31, entries(34, 35, 5, 300)),
    ]
}

pub fn open(disk: &MemoryDisk, directory: &Path) -> Result<(Store<MemoryDisk>, Recovered), OpenError> {
    match Store::open(disk.clone(), directory, options())? {
        Opened::Existing(store, recovered) => Ok((store, recovered)),
        Opened::Empty(_) => panic!("the directory is empty"),
    }
}
