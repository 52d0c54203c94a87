//! A disk in memory that is as bad as a disk may be, and always in the same way for the same seed.
//!
//! Each file has an image that survives a power cut and writes that are not yet part of it; each name too.
//! [`MemoryDisk::crash`] keeps a random part of what was never synced: sectors of 512 bytes lost, kept or
//! torn, in any combination, and creations, renames and removals lost in any combination.
//! [`MemoryDisk::kill`] is the other death: the process is gone, the page cache is not, and the next power
//! cut may still take what was never synced. Every changing operation is counted, so that a test can cut
//! the power at each of them in turn.
//!
//! A clone is a handle to the same disk. Background work runs on the spot, so one thread is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile, Found};

const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
pub struct MemoryFile {
    disk: MemoryDisk,
    inode: Shared,
    path: PathBuf,
    boot: u64,
}

#[derive(Debug)]
pub struct MemoryLock {
    disk: MemoryDisk,
    path: PathBuf,
    boot: u64,
}

type Shared = Arc<Mutex<Inode>>;

#[derive(Debug)]
struct State {
    random: Random,
    /// Counts deaths: handles of an earlier life are dead.
    boot: u64,
    directories: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, Shared>,
    durable_names: BTreeMap<PathBuf, Shared>,
    unsynced_names: Vec<NameChange>,
    locks: BTreeSet<PathBuf>,
    operations: u64,
    power_cut_at: Option<u64>,
    failing_write: Option<u64>,
    failing_sync: Option<u64>,
    misdirected_write: Option<(u64, u64)>,
    capacity: Option<u64>,
}

/// One directory operation: all of it or nothing.
#[derive(Debug)]
struct NameChange {
    directory: PathBuf,
    changes: Vec<(PathBuf, Option<Shared>)>,
}

#[derive(Debug, Default)]
struct Inode {
    /// As a running process sees it.
    bytes: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

impl MemoryDisk {
    pub fn new(seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                random: Random(seed),
                boot: 0,
                directories: BTreeSet::new(),
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                unsynced_names: Vec::new(),
                locks: BTreeSet::new(),
                operations: 0,
                power_cut_at: None,
                failing_write: None,
                failing_sync: None,
                misdirected_write: None,
                capacity: None,
            })),
        }
    }

    /// How many changing operations there were.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The power goes at this operation, counted from 1 over the disk's life: it and all after it fail,
    /// until [`crash`](Self::crash) brings the power back.
    pub fn cut_power_at(&self, operation: u64) {
        self.state().power_cut_at = Some(operation);
    }

    /// A power cut and the next boot. What was never synced is kept in part, by chance. Files and locks of
    /// the life before are dead; drop the store and its writers before opening the directory again.
    pub fn crash(&self) {
        let state = &mut *self.state();
        let changes = std::mem::take(&mut state.unsynced_names);
        // Every inode that any name ever led to, in an order that depends on the seed and the workload only.
        let live = std::mem::take(&mut state.names);
        let changed = changes.iter().flat_map(|change| &change.changes).filter_map(|(_, inode)| inode.as_ref());
        for inode in state.durable_names.values().chain(live.values()).chain(changed) {
            lock(inode).crash(&mut state.random);
        }
        let fate = Fate::draw(&mut state.random, changes.len());
        for (position, change) in changes.into_iter().enumerate() {
            if fate.keeps(position, &mut state.random) {
                for (path, inode) in change.changes {
                    assign(&mut state.durable_names, path, inode);
                }
            }
        }
        state.names = state.durable_names.clone();
        state.power_cut_at = None;
        state.reboot();
    }

    /// The process dies; what it wrote stays in the page cache, synced or not.
    pub fn kill(&self) {
        self.state().reboot();
    }

    /// The `nth` write from now (1 is the next) fails.
    pub fn fail_write(&self, nth: u64) {
        self.state().failing_write = Some(nth);
    }

    /// The `nth` sync of a file from now (1 is the next) fails, and the kernel forgets that the pages were
    /// dirty: later syncs succeed and yet save nothing of them.
    pub fn fail_sync(&self, nth: u64) {
        self.state().failing_sync = Some(nth);
    }

    /// The `nth` write from now goes to `offset` instead.
    pub fn misdirect_write(&self, nth: u64, offset: u64) {
        self.state().misdirected_write = Some((nth, offset));
    }

    /// Whether a write that is to go elsewhere is yet to come.
    pub fn is_misdirecting(&self) -> bool {
        self.state().misdirected_write.is_some()
    }

    /// Another disk that holds what this one holds for good, as after a [`crash`](Self::crash), and has none of
    /// its troubles: to be put in the place of this one when it is damaged.
    pub fn duplicate(&self) -> MemoryDisk {
        let state = self.state();
        let copy = |(path, inode): (&PathBuf, &Shared)| {
            let durable = lock(inode).durable.clone();
            let inode = Inode { bytes: durable.clone(), durable, unsynced: Vec::new() };
            (path.clone(), Arc::new(Mutex::new(inode)))
        };
        let names: BTreeMap<PathBuf, Shared> = state.durable_names.iter().map(copy).collect();
        let random = Random(state.random.0);
        let duplicate = State {
            random,
            boot: state.boot,
            directories: state.directories.clone(),
            names: names.clone(),
            durable_names: names,
            unsynced_names: Vec::new(),
            locks: BTreeSet::new(),
            operations: state.operations,
            power_cut_at: None,
            failing_write: None,
            failing_sync: None,
            misdirected_write: None,
            capacity: None,
        };
        MemoryDisk { state: Arc::new(Mutex::new(duplicate)) }
    }

    /// All files together may not grow beyond this.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Damage at rest.
    pub fn flip_bit(&self, file: &Path, offset: u64, bit: u8) {
        let state = self.state();
        let Some(inode) = state.names.get(file) else { return };
        let inode = &mut *lock(inode);
        for image in [&mut inode.bytes, &mut inode.durable] {
            if let Some(byte) = image.get_mut(offset as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// The bytes of a file, as a process sees them.
    pub fn contents(&self, file: &Path) -> Option<Vec<u8>> {
        self.state().names.get(file).map(|inode| lock(inode).bytes.clone())
    }

    /// Puts a file there, durable, or `None` takes it away: somebody else's work.
    pub fn set_contents(&self, file: &Path, bytes: Option<Vec<u8>>) {
        let state = &mut *self.state();
        let inode =
            bytes.map(|bytes| Arc::new(Mutex::new(Inode { durable: bytes.clone(), bytes, ..Inode::default() })));
        assign(&mut state.names, file.to_path_buf(), inode.clone());
        assign(&mut state.durable_names, file.to_path_buf(), inode);
    }

    /// Every file, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        self.state().names.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Disk for MemoryDisk {
    type File = MemoryFile;
    type Lock = MemoryLock;

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        let state = &mut *self.state();
        if state.names.contains_key(directory) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.directories.insert(directory.to_path_buf());
        Ok(())
    }

    fn restrict(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<Found>> {
        let state = self.state();
        state.check_power()?;
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let files = state.names.keys().map(|path| (path, false));
        let directories = state.directories.iter().map(|path| (path, true));
        Ok(files
            .chain(directories)
            .filter(|(path, _)| path.parent() == Some(directory))
            .map(|(path, is_directory)| Found { name: name(path), is_directory })
            .collect())
    }

    fn create(&self, file: &Path) -> io::Result<MemoryFile> {
        let state = &mut *self.state();
        let inode = Shared::default();
        state.change(file, vec![(file.to_path_buf(), Some(Arc::clone(&inode)))])?;
        Ok(MemoryFile { disk: self.clone(), inode, path: file.to_path_buf(), boot: state.boot })
    }

    fn open(&self, file: &Path) -> io::Result<MemoryFile> {
        let state = self.state();
        state.check_power()?;
        let inode = state.names.get(file).ok_or(io::ErrorKind::NotFound)?;
        Ok(MemoryFile { disk: self.clone(), inode: Arc::clone(inode), path: file.to_path_buf(), boot: state.boot })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let state = &mut *self.state();
        let inode = state.names.get(from).cloned().ok_or(io::ErrorKind::NotFound)?;
        state.change(to, vec![(from.to_path_buf(), None), (to.to_path_buf(), Some(inode))])
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        let state = &mut *self.state();
        if !state.names.contains_key(file) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(file, vec![(file.to_path_buf(), None)])
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let state = &mut *self.state();
        state.operate()?;
        let (synced, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.unsynced_names).into_iter().partition(|change| change.directory == directory);
        state.unsynced_names = rest;
        for (path, inode) in synced.into_iter().flat_map(|change| change.changes) {
            assign(&mut state.durable_names, path, inode);
        }
        Ok(())
    }

    fn lock(&self, file: &Path) -> io::Result<Option<MemoryLock>> {
        let state = &mut *self.state();
        if !state.names.contains_key(file) {
            state.change(file, vec![(file.to_path_buf(), Some(Shared::default()))])?;
        }
        if !state.locks.insert(file.to_path_buf()) {
            return Ok(None);
        }
        Ok(Some(MemoryLock { disk: self.clone(), path: file.to_path_buf(), boot: state.boot }))
    }

    fn free_bytes(&self, _directory: &Path) -> io::Result<u64> {
        let state = self.state();
        Ok(state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used_bytes())))
    }

    fn background(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        work();
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        self.disk.state().check_alive(self.boot)?;
        Ok(lock(&self.inode).bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.state().check_alive(self.boot)?;
        let inode = lock(&self.inode);
        let rest = inode.bytes.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let state = &mut *self.disk.state();
        state.check_alive(self.boot)?;
        let operated = state.operate();
        let mut offset = offset as usize;
        if let Some((nth, elsewhere)) = &mut state.misdirected_write {
            *nth -= 1;
            if *nth == 0 {
                offset = *elsewhere as usize;
                state.misdirected_write = None;
            }
        }
        let growth = (offset + bytes.len()).saturating_sub(lock(&self.inode).bytes.len()) as u64;
        if growth > 0 && state.capacity.is_some_and(|capacity| state.used_bytes() + growth > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let failing = count_down(&mut state.failing_write);
        // A write that fails may have happened in part all the same.
        let mut inode = lock(&self.inode);
        put(&mut inode.bytes, offset, bytes);
        inode.unsynced.push((offset, bytes.to_vec()));
        operated?;
        if failing { Err(injected("write", &self.path)) } else { Ok(()) }
    }

    fn sync_data(&mut self) -> io::Result<()> {
        let state = &mut *self.disk.state();
        state.check_alive(self.boot)?;
        state.operate()?;
        let mut inode = lock(&self.inode);
        if count_down(&mut state.failing_sync) {
            inode.forget(&mut state.random);
            return Err(injected("sync", &self.path));
        }
        let Inode { durable, unsynced, .. } = &mut *inode;
        for (offset, bytes) in unsynced.drain(..) {
            put(durable, offset, &bytes);
        }
        Ok(())
    }
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.boot == self.boot {
            state.locks.remove(&self.path);
        }
    }
}

impl State {
    fn reboot(&mut self) {
        self.boot += 1;
        self.locks.clear();
        // A cut that is yet to come still comes.
        self.power_cut_at = self.power_cut_at.filter(|operation| *operation > self.operations);
    }

    fn check_power(&self) -> io::Result<()> {
        match self.power_cut_at {
            Some(operation) if self.operations >= operation => Err(io::Error::other("the power is off")),
            _ => Ok(()),
        }
    }

    fn check_alive(&self, boot: u64) -> io::Result<()> {
        if boot == self.boot { self.check_power() } else { Err(io::Error::other("a handle of an earlier life")) }
    }

    /// Counts an operation; an error if the power goes with it, so that its effect is not yet durable.
    fn operate(&mut self) -> io::Result<()> {
        self.check_power()?;
        self.operations += 1;
        self.check_power()
    }

    fn change(&mut self, path: &Path, changes: Vec<(PathBuf, Option<Shared>)>) -> io::Result<()> {
        self.check_power()?;
        let operated = self.operate();
        for (path, inode) in &changes {
            assign(&mut self.names, path.clone(), inode.clone());
        }
        let directory = path.parent().unwrap_or(Path::new("")).to_path_buf();
        self.unsynced_names.push(NameChange { directory, changes });
        operated
    }

    fn used_bytes(&self) -> u64 {
        self.names.values().map(|inode| lock(inode).bytes.len() as u64).sum()
    }
}

impl Inode {
    fn crash(&mut self, random: &mut Random) {
        self.forget(random);
        self.bytes = self.durable.clone();
    }

    /// Some of the unsynced sectors reach the disk, the rest never will.
    fn forget(&mut self, random: &mut Random) {
        let unsynced = std::mem::take(&mut self.unsynced);
        let sectors: usize = unsynced.iter().map(|(offset, bytes)| sectors(*offset, bytes.len()).count()).sum();
        if sectors == 0 {
            return;
        }
        let fate = Fate::draw(random, sectors);
        let mut position = 0;
        for (offset, bytes) in &unsynced {
            for (begin, end) in sectors_of(*offset, bytes.len()) {
                if fate.keeps(position, random) {
                    let torn = random.below(16) == 0;
                    let length = if torn { random.below((end - begin) as u64) as usize } else { end - begin };
                    put(&mut self.durable, begin, &bytes[begin - offset..begin - offset + length]);
                }
                position += 1;
            }
        }
    }
}

/// What becomes of a list of things that were never synced.
enum Fate {
    Lost,
    Kept,
    KeptUpTo(usize),
    Scattered { kept_in_256: u64 },
}

impl Fate {
    fn draw(random: &mut Random, things: usize) -> Self {
        match random.below(5) {
            0 => Self::Lost,
            1 => Self::Kept,
            2 => Self::KeptUpTo(random.below(things as u64 + 1) as usize),
            _ => Self::Scattered { kept_in_256: 16 + random.below(224) },
        }
    }

    fn keeps(&self, position: usize, random: &mut Random) -> bool {
        match *self {
            Self::Lost => false,
            Self::Kept => true,
            Self::KeptUpTo(end) => position < end,
            Self::Scattered { kept_in_256 } => random.below(256) < kept_in_256,
        }
    }
}

/// splitmix64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }
}

fn sectors(offset: usize, length: usize) -> impl Iterator<Item = usize> {
    offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES)
}

/// The sectors that a write touches, cut to the write.
fn sectors_of(offset: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
    sectors(offset, length)
        .map(move |sector| ((sector * SECTOR_BYTES).max(offset), ((sector + 1) * SECTOR_BYTES).min(offset + length)))
}

fn put(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if image.len() < offset + bytes.len() {
        image.resize(offset + bytes.len(), 0);
    }
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn assign(names: &mut BTreeMap<PathBuf, Shared>, path: PathBuf, inode: Option<Shared>) {
    match inode {
        Some(inode) => drop(names.insert(path, inode)),
        None => drop(names.remove(&path)),
    }
}

fn count_down(counter: &mut Option<u64>) -> bool {
    match counter {
        Some(1) => {
            *counter = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}

fn injected(operation: &str, path: &Path) -> io::Error {
    io::Error::other(format!("injected fault: {operation} {}", path.display()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
