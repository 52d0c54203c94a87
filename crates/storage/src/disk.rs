//! The small file trait: everything that the store asks of a disk, and nothing else.
//!
//! It exists so that the very code that runs on a real disk also runs on one that loses, tears, reorders
//! and misplaces what it was given. Nothing is durable before the matching sync returned: bytes need
//! `sync_data`, names need `sync_directory`.

use std::io;
use std::path::Path;
use std::time::Duration;

/// A disk: names, and what does not belong to one open file. A clone is a handle to the same disk.
pub trait Disk: Clone + Send + Sync + 'static {
    type File: DiskFile;
    /// Released when dropped.
    type Lock: Send + Sync + 'static;

    /// Creates the directory and its missing parents, durably, readable by its owner only.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Makes an existing directory readable by its owner only.
    fn restrict(&self, directory: &Path) -> io::Result<()>;
    /// Everything in a directory, in any order.
    fn list(&self, directory: &Path) -> io::Result<Vec<Found>>;
    /// A new empty file, in place of any file of that name.
    fn create(&self, file: &Path) -> io::Result<Self::File>;
    /// As `create`, for a file that is written once from its beginning to its end, in whole pages out of whole pages,
    /// and is not read soon.
    fn create_log(&self, file: &Path) -> io::Result<Self::File> {
        self.create(file)
    }
    /// An existing file, to read and to write.
    fn open(&self, file: &Path) -> io::Result<Self::File>;
    /// An existing, pre-written file whose bytes will be overwritten with `write_durably`.
    fn open_log(&self, file: &Path) -> io::Result<Self::File> {
        self.open(file)
    }
    /// Atomic; replaces `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, file: &Path) -> io::Result<()>;
    /// Makes all creations, renames and removals in the directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// `None` if somebody else holds the lock.
    fn lock(&self, file: &Path) -> io::Result<Option<Self::Lock>>;
    /// How much may still be written.
    fn free_bytes(&self, directory: &Path) -> io::Result<u64>;
    /// How long work in the background rests between two pieces, so that others come to their turn at the disk.
    fn rest(&self) -> Duration {
        Duration::ZERO
    }
    /// Runs work that must not hold up its caller; a simulated disk runs it on the spot.
    fn background(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + 'static {
    fn length(&self) -> io::Result<u64>;
    /// Fills the buffer as far as the file reaches; the number of bytes read is less only at its end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of it, or fails.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn sync_data(&mut self) -> io::Result<()>;
    /// Durable on return. Over bytes that were written before, on the alignment of the log.
    fn write_durably(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)?;
        self.sync_data()
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub name: String,
    pub is_directory: bool,
}

/// The whole of a file.
pub(crate) fn read_all(file: &impl DiskFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.length()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
