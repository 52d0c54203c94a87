//! An opened data directory: what the rest of the house sees.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::addresses::Addresses;
use crate::batch::Position;
use crate::candidacy::Candidacy;
use crate::disk::{Disk, Found};
use crate::error::{Fault, OpenError};
use crate::layout::{self, Name};
use crate::log::{Log, Place};
use crate::peers::{self, Peers};
use crate::snapshot::{self, SnapshotReader, SnapshotWriter, Snapshots};
use crate::types::{Entry, Group, HardState, Identity, SnapshotMeta, TornTail};
use crate::{recovery, stamp};

/// The root of a mounted filesystem has this in it; it is nobody's data.
const LOST_AND_FOUND: &str = "lost+found";

#[derive(Clone, Debug)]
pub struct Options {
    /// The length of a log segment.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

/// What an opened directory turned out to be.
#[expect(clippy::large_enum_variant, reason = "there is one, and it is taken apart at once")]
pub enum Opened<D: Disk> {
    Empty(Blank<D>),
    Existing(Store<D>, Recovered),
}

/// What came back from disk.
#[derive(Clone, Debug)]
pub struct Recovered {
    pub identity: Identity,
    pub hard_state: HardState,
    /// The newest valid one.
    pub snapshot: SnapshotMeta,
    /// Those after the snapshot, without a gap.
    pub entries: Vec<Entry>,
    /// For a line in the server's log.
    pub torn_tail: Option<TornTail>,
    /// Newer snapshots that are damaged; the log had all that was needed to do without them.
    pub damaged_snapshots: Vec<PathBuf>,
}

/// A directory that holds nothing yet, locked.
pub struct Blank<D: Disk> {
    disk: D,
    directory: PathBuf,
    options: Options,
    /// What an interrupted initialising left behind.
    leftovers: Vec<PathBuf>,
    lock: Arc<D::Lock>,
}

/// A data directory, locked and recovered.
pub struct Store<D: Disk> {
    // Dropped in this order: background work ends before the lock goes.
    log: Log<D>,
    disk: D,
    directory: PathBuf,
    snapshots: Snapshots<D>,
    peers: Peers<D>,
    removal: Arc<Mutex<Option<Fault>>>,
}

impl<D: Disk> Store<D> {
    /// Opens a directory, creating it if there is none.
    pub fn open(disk: D, directory: &Path, options: Options) -> Result<Opened<D>, OpenError> {
        let found = enter(&disk, directory)?;
        refuse_foreign(directory, &found)?;
        let lock_path = directory.join(layout::LOCK);
        let lock = disk.lock(&lock_path).map_err(|source| Fault::io("locking", &lock_path, source))?;
        let Some(lock) = lock else { return Err(OpenError::InUse { directory: directory.to_path_buf() }) };
        let lock = Arc::new(lock);
        // Best effort: the directory may belong to somebody who lets us in by group.
        let _ = disk.restrict(directory);
        // Listed again: what was found before the lock may have changed.
        let found = list(&disk, directory)?;
        let names: Vec<(Name, PathBuf)> =
            found.iter().map(|found| (Name::parse(&found.name), directory.join(&found.name))).collect();
        let initialised = names.iter().any(|(name, _)| *name == Name::Stamp);
        if initialised {
            let (store, recovered) = recover(disk, directory, &options, &names, lock)?;
            return Ok(Opened::Existing(store, recovered));
        }
        let interrupted = names.iter().any(|(name, _)| *name == Name::StampTemporary);
        let is_data = |name: &Name| matches!(name, Name::Segment { .. } | Name::Snapshot { .. });
        if let Some((_, path)) = names.iter().find(|(name, _)| is_data(name)).filter(|_| !interrupted) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(OpenError::MissingStamp { directory: directory.to_path_buf(), name });
        }
        let is_leftover = |name: &Name| is_data(name) || *name == Name::Temporary;
        let leftovers = names.into_iter().filter(|(name, _)| is_leftover(name)).map(|(_, path)| path).collect();
        Ok(Opened::Empty(Blank { disk, directory: directory.to_path_buf(), options, leftovers, lock }))
    }

    /// Adds to the log. Entries may replace a suffix of those before. Durable on return if `sync`;
    /// otherwise durable at the latest with the next append that is.
    pub fn append(&mut self, hard_state: Option<HardState>, entries: &[Entry], sync: bool) -> Result<(), Fault> {
        self.log.gather([Group { hard_state, entries }])?;
        if sync { self.log.flush() } else { self.log.flush_if_large() }
    }

    /// All that is waiting as one batch: one write and one sync. Durable on return.
    pub fn append_group<'a>(&mut self, groups: impl IntoIterator<Item = Group<'a>>) -> Result<(), Fault> {
        self.log.gather(groups)?;
        self.log.flush()
    }

    /// Makes everything durable that was appended without `sync`.
    pub fn sync(&mut self) -> Result<(), Fault> {
        self.log.flush()
    }

    /// The handle that other threads read and write snapshots with.
    pub fn snapshots(&self) -> Snapshots<D> {
        self.snapshots.clone()
    }

    /// The handle that other threads ask and tell about other members' directories with.
    pub fn peers(&self) -> Peers<D> {
        self.peers.clone()
    }

    pub fn candidacy(&self) -> Candidacy<D> {
        Candidacy::new(self.disk.clone(), self.directory.clone(), self.peers.directory_lock())
    }

    pub fn addresses(&self) -> Addresses<D> {
        Addresses::new(self.disk.clone(), self.directory.clone(), self.peers.directory_lock())
    }

    pub fn snapshot_reader(&self) -> Result<SnapshotReader<D>, Fault> {
        self.snapshots.reader()
    }

    pub fn snapshot_writer(&self, meta: SnapshotMeta) -> Result<SnapshotWriter<D>, Fault> {
        self.snapshots.writer(meta)
    }

    /// A finished snapshot of this member's own state: what lies wholly before it is removed, in the
    /// background. A failure to remove something is reported by the next call.
    pub fn snapshot_saved(&mut self, meta: SnapshotMeta) -> Result<(), Fault> {
        self.log.check_poison()?;
        if meta.index > self.log.last_index() {
            let reason = format!("a snapshot at {} ends after the log, at {}", meta.index, self.log.last_index());
            return Err(Fault::refused(reason));
        }
        if meta.index < self.snapshots.newest().index {
            return Err(Fault::refused(format!("a snapshot at {} is older than the newest", meta.index)));
        }
        self.build_on(meta)
    }

    /// A finished snapshot, received from another member, takes the place of the log: all entries are
    /// dropped and the next has `meta.index + 1`. Durable on return.
    pub fn install_snapshot(&mut self, meta: SnapshotMeta, hard_state: Option<HardState>) -> Result<(), Fault> {
        self.log.check_poison()?;
        let mut hard_state = hard_state.unwrap_or(self.log.hard_state());
        if hard_state.commit > meta.index {
            let reason = format!("entry {} is committed, after the snapshot at {}", hard_state.commit, meta.index);
            return Err(Fault::refused(reason));
        }
        self.check_named(&meta)?;
        hard_state.commit = meta.index;
        if meta.term > hard_state.term {
            hard_state = HardState { term: meta.term, vote: 0, ..hard_state };
        }
        self.log.gather_reset(meta.index, meta.term, hard_state)?;
        self.log.flush()?;
        self.build_on(meta)
    }

    /// A snapshot that was received and will not be installed. Its file goes: found again, it would take the place
    /// of the log. It stays while somebody else has received the same one, and may install it.
    pub fn discard_snapshot(&mut self, index: u64) -> Result<(), Fault> {
        self.log.check_poison()?;
        self.snapshots.give_up(index)
    }

    /// The last index of the log, appended without `sync` or not.
    pub fn last_index(&self) -> u64 {
        self.log.last_index()
    }

    /// A fault that is yet to come: the next log segment could not be prepared (a full disk, as a rule),
    /// while there is still room in this one.
    pub fn early_warning(&self) -> Option<Fault> {
        self.log.early_warning()
    }

    pub fn free_bytes(&self) -> Result<u64, Fault> {
        self.disk
            .free_bytes(&self.directory)
            .map_err(|source| Fault::io("asking for the free space of", &self.directory, source))
    }

    /// Writes what waits and a last record that vouches for everything before it, so that damage done while
    /// the directory is closed is noticed even in the last batch.
    pub fn close(mut self) -> Result<(), Fault> {
        self.log.flush()?;
        self.log.gather_marker()?;
        self.log.flush()
    }

    fn build_on(&mut self, meta: SnapshotMeta) -> Result<(), Fault> {
        self.check_named(&meta)?;
        let mut obsolete = self.log.forget(meta.index);
        for found in list_names(&self.disk, &self.directory)? {
            if let (Name::Snapshot { index, term }, path) = found
                && (index, term) < (meta.index, meta.term)
            {
                obsolete.push(path);
            }
        }
        self.snapshots.set_newest(meta);
        self.remove(obsolete)?;
        self.log.retry_preparation();
        match self.removal.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Nothing is dropped on the strength of a file that is not there.
    fn check_named(&self, meta: &SnapshotMeta) -> Result<(), Fault> {
        let path = self.directory.join(layout::snapshot_name(meta.index, meta.term));
        self.disk.open(&path).map(drop).map_err(|source| Fault::io("opening", &path, source))
    }

    fn remove(&self, obsolete: Vec<PathBuf>) -> Result<(), Fault> {
        if obsolete.is_empty() {
            return Ok(());
        }
        let (disk, directory, removal) = (self.disk.clone(), self.directory.clone(), Arc::clone(&self.removal));
        let work = move |_: &_| {
            if let Err(fault) = remove_all(&disk, &directory, &obsolete) {
                *removal.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
            }
        };
        let background = self.log.background();
        background.start(work).map_err(|source| Fault::io("starting a thread for", &self.directory, source))
    }
}

impl<D: Disk> Blank<D> {
    /// Can be set before the directory is anybody's.
    pub fn candidacy(&self) -> Candidacy<D> {
        Candidacy::new(self.disk.clone(), self.directory.clone(), self.lock.clone())
    }

    /// Makes the directory a member's: its first snapshot, an empty log behind it, and, last of all, the
    /// stamp. A crash before the end leaves a directory that opens as empty again.
    pub fn initialise<C: AsRef<[u8]>>(
        self,
        identity: Identity,
        meta: SnapshotMeta,
        chunks: impl IntoIterator<Item = C>,
    ) -> Result<(Store<D>, Recovered), Fault> {
        let Self { disk, directory, options, leftovers, lock } = self;
        // The old mark of an interrupted beginning stays until all that it excuses is gone.
        remove_all(&disk, &directory, &leftovers)?;
        stamp::begin(&disk, &directory, &identity)?;

        let peers = Peers::new(disk.clone(), directory.clone(), Default::default(), Arc::clone(&lock));
        let snapshots = Snapshots::new(disk.clone(), directory.clone(), meta.clone(), lock);
        let mut writer = snapshots.writer(meta.clone())?;
        for chunk in chunks {
            writer.write_chunk(chunk.as_ref())?;
        }
        writer.finish()?;

        let hard_state = HardState { term: meta.term, vote: 0, commit: meta.index };
        let position = Position { hard_state, last_index: meta.index, last_term: meta.term };
        let place = place(&disk, &directory, &identity, &options);
        let mut log = Log::new(place, position);
        log.gather_marker()?;
        log.flush()?;
        stamp::complete(&disk, &directory)?;

        let recovered = Recovered {
            identity,
            hard_state,
            snapshot: meta,
            entries: Vec::new(),
            torn_tail: None,
            damaged_snapshots: Vec::new(),
        };
        Ok((Store { log, disk, directory, snapshots, peers, removal: Arc::default() }, recovered))
    }
}

fn recover<D: Disk>(
    disk: D,
    directory: &Path,
    options: &Options,
    names: &[(Name, PathBuf)],
    lock: Arc<D::Lock>,
) -> Result<(Store<D>, Recovered), OpenError> {
    let identity = stamp::read(&disk, directory)?;
    let mut sequences: Vec<u64> = Vec::new();
    let mut found_snapshots = BTreeSet::new();
    for (name, _) in names {
        match *name {
            Name::Segment { sequence } => sequences.push(sequence),
            Name::Snapshot { index, term } => drop(found_snapshots.insert((index, term))),
            _ => {}
        }
    }
    sequences.sort_unstable();
    let known_peers = match names.iter().any(|(name, _)| *name == Name::Peers) {
        true => peers::read(&disk, directory)?,
        false => Default::default(),
    };
    let (snapshot, damaged) = newest_valid(&disk, directory, &found_snapshots)?;
    let place = place(&disk, directory, &identity, options);
    let reading = recovery::read(&place, &sequences, &snapshot)?;
    let last_index = reading.entries.last().map_or(snapshot.index, |entry| entry.index);
    for (index, fault) in &damaged {
        if last_index < *index {
            return Err(fault.clone().into());
        }
    }

    reading.sync(&place)?;
    let mut obsolete = reading.obsolete.clone();
    for (name, path) in names {
        match *name {
            Name::Snapshot { index, term } if (index, term) < (snapshot.index, snapshot.term) => {
                obsolete.push(path.clone());
            }
            Name::Temporary | Name::StampTemporary => obsolete.push(path.clone()),
            _ => {}
        }
    }
    remove_all(&disk, directory, &obsolete)?;
    let log = reading.resume(place, &snapshot)?;

    let recovered = Recovered {
        identity,
        hard_state: reading.hard_state,
        snapshot: snapshot.clone(),
        entries: reading.entries,
        torn_tail: reading.torn_tail,
        damaged_snapshots: damaged.iter().filter_map(|(_, fault)| damaged_file(fault)).collect(),
    };
    let peers = Peers::new(disk.clone(), directory.to_path_buf(), known_peers, Arc::clone(&lock));
    let snapshots = Snapshots::new(disk.clone(), directory.to_path_buf(), snapshot, lock);
    let store = Store { log, disk, directory: directory.to_path_buf(), snapshots, peers, removal: Arc::default() };
    Ok((store, recovered))
}

type Damaged = Vec<(u64, Fault)>;

/// The newest snapshot that verifies, and the newer ones that do not.
fn newest_valid<D: Disk>(
    disk: &D,
    directory: &Path,
    found: &BTreeSet<(u64, u64)>,
) -> Result<(SnapshotMeta, Damaged), OpenError> {
    let mut damaged = Vec::new();
    for &(index, term) in found.iter().rev() {
        let path = directory.join(layout::snapshot_name(index, term));
        match snapshot::verify(disk, &path) {
            Ok(meta) if (meta.index, meta.term) == (index, term) => return Ok((meta, damaged)),
            Ok(_) => damaged.push((index, Fault::corrupt(&path, 0, "the snapshot belongs to another name"))),
            Err(fault @ Fault::Corrupt { .. }) => damaged.push((index, fault)),
            Err(fault) => return Err(fault.into()),
        }
    }
    match damaged.into_iter().next() {
        Some((_, fault)) => Err(fault.into()),
        None => Err(Fault::corrupt(directory, 0, "the directory has no snapshot").into()),
    }
}

fn damaged_file(fault: &Fault) -> Option<PathBuf> {
    match fault {
        Fault::Corrupt { file, .. } => Some(file.clone()),
        _ => None,
    }
}

fn place<D: Disk>(disk: &D, directory: &Path, identity: &Identity, options: &Options) -> Place<D> {
    Place {
        disk: disk.clone(),
        directory: directory.to_path_buf(),
        directory_id: identity.directory_id,
        segment_bytes: options.segment_bytes,
    }
}

fn enter<D: Disk>(disk: &D, directory: &Path) -> Result<Vec<Found>, OpenError> {
    disk.create_directory(directory).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            OpenError::NotADirectory { path: directory.to_path_buf() }
        }
        _ => Fault::io("creating", directory, source).into(),
    })?;
    list(disk, directory)
}

fn list<D: Disk>(disk: &D, directory: &Path) -> Result<Vec<Found>, OpenError> {
    disk.list(directory).map_err(|source| match source.kind() {
        io::ErrorKind::NotADirectory => OpenError::NotADirectory { path: directory.to_path_buf() },
        _ => Fault::io("listing", directory, source).into(),
    })
}

fn list_names<D: Disk>(disk: &D, directory: &Path) -> Result<Vec<(Name, PathBuf)>, Fault> {
    let mut found = disk.list(directory).map_err(|source| Fault::io("listing", directory, source))?;
    found.sort_unstable();
    Ok(found.into_iter().map(|found| (Name::parse(&found.name), directory.join(found.name))).collect())
}

/// Somebody's folder is not ours to fill: without a stamp, everything in it must be of our making.
fn refuse_foreign(directory: &Path, found: &[Found]) -> Result<(), OpenError> {
    if found.iter().any(|found| Name::parse(&found.name) == Name::Stamp) {
        return Ok(());
    }
    let foreign = |found: &&Found| {
        (Name::parse(&found.name) == Name::Foreign || found.is_directory) && found.name != LOST_AND_FOUND
    };
    match found.iter().filter(foreign).min() {
        Some(found) => Err(OpenError::Foreign { directory: directory.to_path_buf(), name: found.name.clone() }),
        None => Ok(()),
    }
}

/// In the order given, then durable. A file that is gone already is no fault.
fn remove_all<D: Disk>(disk: &D, directory: &Path, files: &[PathBuf]) -> Result<(), Fault> {
    for file in files {
        match disk.remove(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Fault::io("removing", file, error)),
            _ => {}
        }
    }
    disk.sync_directory(directory).map_err(|source| Fault::io("syncing", directory, source))
}
