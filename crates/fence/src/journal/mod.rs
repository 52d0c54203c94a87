//! An append-only file that survives a crash at any instruction, under a directory that one process has.
//!
//! It holds frames of bytes and does not know what they mean. [`Journal::append`] returns when the frame is durable;
//! [`Journal::rewrite`] replaces all frames by fewer that mean the same, in a new file that takes its name only when
//! it is complete. What `frame` cannot read is an error with file and offset; a torn last frame is dropped.
//!
//! `LOCK` is held for as long as the journal is open; `STAMP` says that the directory is initialised, so that a
//! journal that is gone is not taken for one that never was; `journal-<sequence>` with the highest sequence counts.

mod error;
mod frame;

use std::io;
use std::path::{Path, PathBuf};

use tenure_storage::{Disk, DiskFile, Fault, TornTail};

pub use error::OpenError;
use frame::{FILE_HEADER_BYTES, FileHeader, MAX_BODY_BYTES};

/// The format that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

const LOCK: &str = "LOCK";
const STAMP: &str = "STAMP";
const STAMP_TEMPORARY: &str = "STAMP.tmp";
const STAMP_MAGIC: &[u8; 8] = b"TENUFENC";
const PREFIX: &str = "journal-";
const TEMPORARY: &str = ".tmp";
/// A journal is not rewritten before it has grown by this much.
const REWRITE_FLOOR_BYTES: u64 = 1 << 20;

/// What the frames of a directory are, so that no program reads another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bars = 1,
    #[cfg_attr(not(feature = "datastore"), allow(dead_code))]
    Data = 2,
}

pub(crate) struct Journal<D: Disk> {
    place: Place<D>,
    header: FileHeader,
    file: D::File,
    path: PathBuf,
    end: u64,
    next_number: u64,
    /// Set by the first failure: nobody knows what the disk holds from then on.
    poisoned: Option<String>,
    _lock: D::Lock,
}

/// What a directory held.
pub(crate) struct Recovered {
    pub frames: Vec<Vec<u8>>,
    pub torn_tail: Option<TornTail>,
}

impl<D: Disk> Journal<D> {
    /// Opens a directory, or initialises an empty one.
    pub(crate) fn open(disk: D, directory: &Path, kind: Kind) -> Result<(Journal<D>, Recovered), OpenError> {
        let refused = |source: io::Error| error::unusable(directory, source);
        disk.create_directory(directory).map_err(refused)?;
        disk.restrict(directory).map_err(refused)?;
        let lock = disk.lock(&directory.join(LOCK)).map_err(refused)?;
        let lock = lock.ok_or_else(|| OpenError::InUse { directory: directory.to_path_buf() })?;
        let place = Place { disk, directory: directory.to_path_buf(), kind };
        let found = place.find()?;
        if !found.stamped {
            place.initialise(&found)?;
        }
        let directory_id = place.read_stamp()?;
        let sequence = place.find()?.newest().ok_or_else(|| {
            let reason = "it is missing, though the directory was initialised".to_owned();
            OpenError::Corrupt { file: place.file(1), offset: 0, reason }
        })?;
        place.resume(directory_id, sequence, lock)
    }

    /// One write, one sync: the frame is durable on return. After a failure nothing more is accepted.
    pub(crate) fn append(&mut self, body: &[u8]) -> Result<(), Fault> {
        self.check_usable(body)?;
        let bytes = frame::encode(self.header.salt(), self.end, self.next_number, body);
        let written = self.file.write_at(&bytes, self.end).and_then(|()| self.file.sync_data());
        self.keep_fault(written.map_err(|source| fault("writing", &self.path, source)))?;
        self.end += bytes.len() as u64;
        self.next_number += 1;
        Ok(())
    }

    /// Whether the file has outgrown what is alive in it.
    pub(crate) fn is_worth_rewriting(&self, live_bytes: u64) -> bool {
        self.end > live_bytes.saturating_mul(2).saturating_add(REWRITE_FLOOR_BYTES)
    }

    /// Replaces all frames. Until the new file is complete and durable, the old one counts.
    pub(crate) fn rewrite(&mut self, bodies: impl IntoIterator<Item = Vec<u8>>) -> Result<(), Fault> {
        self.check_usable(&[])?;
        let rewritten = self.write_anew(bodies);
        self.keep_fault(rewritten)
    }

    /// A frame that is whole, and yet not what this program writes: named by its number.
    pub(crate) fn unreadable(&self, position: usize, reason: &str) -> OpenError {
        let reason = format!("frame {} is whole, but {reason}", position + 1);
        OpenError::Corrupt { file: self.path.clone(), offset: FILE_HEADER_BYTES as u64, reason }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.place.directory
    }

    fn write_anew(&mut self, bodies: impl IntoIterator<Item = Vec<u8>>) -> Result<(), Fault> {
        let header = FileHeader { sequence: self.header.sequence + 1, ..self.header };
        let written = self.place.write_file(header, bodies)?;
        let old = std::mem::replace(&mut self.path, self.place.file(header.sequence));
        (self.file, self.header, self.end, self.next_number) =
            (written.file, written.header, written.end, written.next_number);
        // The old file is worth nothing now; that it stays for a while does no harm.
        self.place.disk.remove(&old).map_err(|source| fault("removing", &old, source))
    }

    fn check_usable(&self, body: &[u8]) -> Result<(), Fault> {
        if let Some(cause) = &self.poisoned {
            return Err(Fault::Poisoned { cause: cause.clone() });
        }
        match body.len() > MAX_BODY_BYTES {
            true => Err(Fault::Refused { reason: format!("{} bytes do not fit into a frame", body.len()) }),
            false => Ok(()),
        }
    }

    fn keep_fault(&mut self, result: Result<(), Fault>) -> Result<(), Fault> {
        if let Err(fault) = &result {
            self.poisoned = Some(fault.to_string());
        }
        result
    }
}

struct Place<D: Disk> {
    disk: D,
    directory: PathBuf,
    kind: Kind,
}

/// A journal file that has its name.
struct Written<F> {
    file: F,
    header: FileHeader,
    end: u64,
    next_number: u64,
}

/// The names in a directory, as far as they are ours.
#[derive(Default)]
struct Names {
    stamped: bool,
    sequences: Vec<u64>,
    temporary: Vec<String>,
    foreign: Option<String>,
}

impl Names {
    fn newest(&self) -> Option<u64> {
        self.sequences.iter().max().copied()
    }
}

impl<D: Disk> Place<D> {
    fn file(&self, sequence: u64) -> PathBuf {
        self.directory.join(format!("{PREFIX}{sequence:016x}"))
    }

    fn find(&self) -> Result<Names, OpenError> {
        let mut names = Names::default();
        for found in self.disk.list(&self.directory).map_err(|source| error::unusable(&self.directory, source))? {
            let sequence = found.name.strip_prefix(PREFIX).filter(|digits| digits.len() == 16);
            match (found.name.as_str(), sequence.and_then(|digits| u64::from_str_radix(digits, 16).ok())) {
                (LOCK | "lost+found", _) => {}
                (STAMP, _) => names.stamped = true,
                (_, Some(sequence)) => names.sequences.push(sequence),
                (STAMP_TEMPORARY, _) => names.temporary.push(found.name),
                (name, _) if name.starts_with(PREFIX) && name.ends_with(TEMPORARY) => names.temporary.push(found.name),
                _ => names.foreign = Some(found.name),
            }
        }
        Ok(names)
    }

    /// Nothing was ever acknowledged before the stamp was there, so what an interrupted attempt left can go.
    fn initialise(&self, found: &Names) -> Result<(), OpenError> {
        let directory = self.directory.clone();
        if let Some(name) = found.foreign.clone() {
            return Err(OpenError::Foreign { directory, name });
        }
        let leftover = found.sequences.iter().find(|sequence| **sequence != 1 || !self.is_blank(1));
        if let Some(sequence) = leftover {
            let name = format!("{PREFIX}{sequence:016x}");
            return Err(OpenError::MissingStamp { directory, name });
        }
        let directory_id = random_id().map_err(|source| error::unusable(&self.directory, source))?;
        let header = self.header(directory_id, 1);
        self.write_file(header, [])?;
        let mut stamp = STAMP_MAGIC.to_vec();
        stamp.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        stamp.extend_from_slice(&(self.kind as u32).to_le_bytes());
        stamp.extend_from_slice(&directory_id.to_le_bytes());
        stamp.extend_from_slice(&crc32c::crc32c(&stamp).to_le_bytes());
        let (temporary, path) = (self.directory.join(STAMP_TEMPORARY), self.directory.join(STAMP));
        let failed = |source| fault("writing", &temporary, source);
        let mut file = self.disk.create(&temporary).map_err(failed)?;
        file.write_at(&stamp, 0).and_then(|()| file.sync_data()).map_err(failed)?;
        self.disk.rename(&temporary, &path).map_err(failed)?;
        self.disk.sync_directory(&self.directory).map_err(failed)?;
        Ok(())
    }

    /// Whether a file holds nothing but, at most, its header.
    fn is_blank(&self, sequence: u64) -> bool {
        let length = self.disk.open(&self.file(sequence)).and_then(|file| file.length());
        length.is_ok_and(|length| length <= FILE_HEADER_BYTES as u64)
    }

    fn read_stamp(&self) -> Result<u64, OpenError> {
        let path = self.directory.join(STAMP);
        let bytes = self.read(&path)?;
        let corrupt = |reason: &str| OpenError::Corrupt { file: path.clone(), offset: 0, reason: reason.to_owned() };
        if bytes.len() < 12 || &bytes[..8] != STAMP_MAGIC {
            return Err(corrupt("it is not the stamp of a fence"));
        }
        let number = |offset: usize| u32::from_le_bytes(std::array::from_fn(|position| bytes[offset + position]));
        if number(8) > FORMAT_VERSION {
            return Err(self.newer(number(8)));
        }
        if bytes.len() != 28 || number(24) != crc32c::crc32c(&bytes[..24]) {
            return Err(corrupt("its checksum does not match"));
        }
        if number(12) != self.kind as u32 {
            return Err(OpenError::OtherKind { directory: self.directory.clone() });
        }
        Ok(u64::from(number(16)) | u64::from(number(20)) << 32)
    }

    fn resume(self, directory_id: u64, sequence: u64, lock: D::Lock) -> Result<(Journal<D>, Recovered), OpenError> {
        let path = self.file(sequence);
        let bytes = self.read(&path)?;
        let corrupt = |damage: frame::Damage| OpenError::Corrupt {
            file: path.clone(),
            offset: damage.offset as u64,
            reason: damage.reason,
        };
        let header = FileHeader::decode(&bytes, FORMAT_VERSION).map_err(|error| match error {
            Ok(version) => self.newer(version),
            Err(damage) => corrupt(damage),
        })?;
        let expected = FileHeader { sealed_bytes: header.sealed_bytes, ..self.header(directory_id, sequence) };
        if header != expected {
            return Err(corrupt(frame::Damage { offset: 0, reason: "it belongs to another directory".to_owned() }));
        }
        let reading = frame::read(&bytes, &header).map_err(corrupt)?;
        let frames: Vec<Vec<u8>> = reading.bodies.iter().map(|body| bytes[body.clone()].to_vec()).collect();
        let torn_tail = (reading.torn_bytes > 0).then(|| TornTail {
            file: path.clone(),
            offset: reading.end as u64,
            bytes: reading.torn_bytes as u64,
        });
        let failed = |source| OpenError::Fault(fault("opening", &path, source));
        let mut file = self.disk.open(&path).map_err(failed)?;
        // The last frame may be in the page cache only, left by a process that was killed before its sync or whose
        // sync failed; in that case another sync would do nothing, so its bytes are written again.
        let begin = reading.bodies.last().map_or(0, |body| body.start - frame::FRAME_HEADER_BYTES);
        file.write_at(&bytes[begin..reading.end], begin as u64).and_then(|()| file.sync_data()).map_err(failed)?;
        self.disk.sync_directory(&self.directory).map_err(failed)?;
        self.remove_leftovers(sequence)?;
        let mut journal = Journal {
            place: self,
            header,
            file,
            path: path.clone(),
            end: reading.end as u64,
            next_number: frames.len() as u64 + 1,
            poisoned: None,
            _lock: lock,
        };
        // Behind a torn tail nothing may be appended: what it left would be taken for damage later.
        if torn_tail.is_some() {
            journal.rewrite(frames.iter().cloned()).map_err(OpenError::Fault)?;
        }
        Ok((journal, Recovered { frames, torn_tail }))
    }

    fn remove_leftovers(&self, newest: u64) -> Result<(), OpenError> {
        let names = self.find()?;
        let old = names.sequences.iter().filter(|sequence| **sequence < newest).map(|sequence| self.file(*sequence));
        for path in old.chain(names.temporary.iter().map(|name| self.directory.join(name))) {
            self.disk.remove(&path).map_err(|source| fault("removing", &path, source))?;
        }
        Ok(())
    }

    /// Writes a file under its temporary name, and gives it its own when it is durable.
    fn write_file(
        &self,
        header: FileHeader,
        bodies: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Written<D::File>, Fault> {
        let path = self.file(header.sequence);
        let temporary = self.directory.join(format!("{PREFIX}{:016x}{TEMPORARY}", header.sequence));
        let failed = |source| fault("writing", &temporary, source);
        let mut file = self.disk.create(&temporary).map_err(failed)?;
        let (mut end, mut next_number) = (FILE_HEADER_BYTES as u64, 1);
        for body in bodies {
            let bytes = frame::encode(header.salt(), end, next_number, &body);
            file.write_at(&bytes, end).map_err(failed)?;
            end += bytes.len() as u64;
            next_number += 1;
        }
        let header = FileHeader { sealed_bytes: end, ..header };
        file.write_at(&header.encode(), 0).and_then(|()| file.sync_data()).map_err(failed)?;
        self.disk.rename(&temporary, &path).map_err(failed)?;
        self.disk.sync_directory(&self.directory).map_err(failed)?;
        Ok(Written { file, header, end, next_number })
    }

    fn header(&self, directory_id: u64, sequence: u64) -> FileHeader {
        FileHeader { version: FORMAT_VERSION, kind: self.kind as u32, directory_id, sequence, sealed_bytes: 0 }
    }

    fn newer(&self, found: u32) -> OpenError {
        OpenError::Newer { directory: self.directory.clone(), found, supported: FORMAT_VERSION }
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, OpenError> {
        let read = || {
            let file = self.disk.open(path)?;
            let length = usize::try_from(file.length()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
            let mut bytes = vec![0; length];
            let read = file.read_at(&mut bytes, 0)?;
            bytes.truncate(read);
            Ok(bytes)
        };
        read().map_err(|source| OpenError::Fault(fault("reading", path, source)))
    }
}

fn random_id() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn fault(operation: &'static str, file: &Path, source: io::Error) -> Fault {
    let (file, kind, source) = (file.to_path_buf(), source.kind(), source.into());
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Fault::DiskFull { operation, file, source }
        }
        _ => Fault::Io { operation, file, source },
    }
}

#[cfg(test)]
mod tests;
