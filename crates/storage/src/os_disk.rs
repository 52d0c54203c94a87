//! The real disk.
//!
//! Log segments can be written in three ways, which `examples/log_writes.rs` measures in turns. On ext4
//! direct writes took 11–22 % less CPU for a batch than a write and `fdatasync`, at every batch size, and
//! were never slower beyond noise, so they are the default. They need aligned buffers, and not every
//! filesystem takes them, or in sectors of 512 bytes: where they are refused, the page cache is used.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, Found};

/// About as long as a piece takes, so that half of the disk is left to others.
const REST: Duration = Duration::from_millis(1);

/// How a batch becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// A write, then `fdatasync`.
    DataSync,
    /// One write to a file opened with `O_DSYNC`.
    SynchronousWrite,
    /// The same past the page cache: `O_DIRECT | O_DSYNC`.
    #[default]
    DirectWrite,
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk {
    log_writes: WriteMode,
}

#[derive(Debug)]
pub struct OsFile {
    file: File,
    is_direct: bool,
    /// What is written is durable without a sync.
    is_synchronous: bool,
}

/// An advisory lock; the kernel releases it with the process.
#[derive(Debug)]
pub struct OsLock(#[expect(dead_code, reason = "held, not read")] File);

impl OsDisk {
    pub fn new(log_writes: WriteMode) -> Self {
        Self { log_writes }
    }

    fn writes_directly(&self) -> bool {
        cfg!(target_os = "linux") && self.log_writes == WriteMode::DirectWrite
    }
}

impl Disk for OsDisk {
    type File = OsFile;
    type Lock = OsLock;

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        let parent = match directory.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        self.create_directory(parent)?;
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.sync_directory(parent),
        }
    }

    fn restrict(&self, directory: &Path) -> io::Result<()> {
        if fs::metadata(directory)?.permissions().mode() & 0o777 == 0o700 {
            return Ok(());
        }
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push(Found { name, is_directory: entry.file_type()?.is_dir() });
        }
        Ok(found)
    }

    fn create(&self, file: &Path) -> io::Result<OsFile> {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(file)?;
        Ok(OsFile { file, is_direct: false, is_synchronous: false })
    }

    /// The log is written past the page cache: what lay there would be in the way of each batch.
    fn create_log(&self, file: &Path) -> io::Result<OsFile> {
        let mut created = self.create(file)?;
        created.is_direct = self.writes_directly() && go_direct(&created.file)?;
        Ok(created)
    }

    fn open(&self, file: &Path) -> io::Result<OsFile> {
        let file = OpenOptions::new().read(true).write(true).open(file)?;
        Ok(OsFile { file, is_direct: false, is_synchronous: false })
    }

    fn open_log(&self, file: &Path) -> io::Result<OsFile> {
        let Some(flags) = open_flags(self.log_writes) else { return self.open(file) };
        match OpenOptions::new().read(true).write(true).custom_flags(flags).open(file) {
            Ok(file) => Ok(OsFile { file, is_direct: self.writes_directly(), is_synchronous: true }),
            Err(error) if refuses_direct(&error) => self.open(file),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn lock(&self, file: &Path) -> io::Result<Option<OsLock>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(file)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(OsLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        let status = statvfs(directory)?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn rest(&self) -> Duration {
        REST
    }

    fn background(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name("tenure-storage".to_string()).spawn(work).map(drop)
    }
}

impl DiskFile for OsFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match self.file.read_at(&mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.file.write_all_at(bytes, offset) {
            // Refused, not failed: the device's sectors are larger than ours.
            Err(error) if self.is_direct && refuses_direct(&error) => {
                leave_direct(&self.file)?;
                self.is_direct = false;
                self.file.write_all_at(bytes, offset)
            }
            written => written,
        }
    }

    fn sync_data(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write_durably(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)?;
        if self.is_synchronous { Ok(()) } else { self.sync_data() }
    }
}

fn open_flags(mode: WriteMode) -> Option<i32> {
    use rustix::fs::OFlags;
    let flags = match mode {
        WriteMode::DataSync => return None,
        WriteMode::SynchronousWrite => OFlags::DSYNC,
        #[cfg(target_os = "linux")]
        WriteMode::DirectWrite => OFlags::DSYNC | OFlags::DIRECT,
        #[cfg(not(target_os = "linux"))]
        WriteMode::DirectWrite => OFlags::DSYNC,
    };
    Some(flags.bits() as i32)
}

/// False = this filesystem has no direct writes.
fn go_direct(file: &File) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        let flags = rustix::fs::fcntl_getfl(file)?;
        match rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::DIRECT) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        Ok(false)
    }
}

/// Back to the page cache; `O_DSYNC` stays.
fn leave_direct(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let flags = rustix::fs::fcntl_getfl(file)?;
        rustix::fs::fcntl_setfl(file, flags - rustix::fs::OFlags::DIRECT)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
    Ok(())
}

fn refuses_direct(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_directly_is_written_all_the_same() {
        let home = tempfile::TempDir::new().unwrap();
        let path = home.path().join("file");
        fs::write(&path, vec![0; 8192]).unwrap();
        let mut file = OsDisk::new(WriteMode::DirectWrite).open_log(&path).unwrap();
        // Neither length nor offset is one that direct writes take.
        file.write_durably(b"odd", 7).unwrap();
        assert_eq!(&fs::read(&path).unwrap()[6..11], b"\0odd\0");
    }

    #[test]
    fn a_new_log_file_holds_what_was_written_whole_pages_and_odd_ends() {
        let home = tempfile::TempDir::new().unwrap();
        let path = home.path().join("file");
        let mut page = crate::aligned::AlignedBuffer::with_capacity(4096);
        page.put(&[7; 4096]);
        for mode in [WriteMode::DirectWrite, WriteMode::SynchronousWrite, WriteMode::DataSync] {
            let mut file = OsDisk::new(mode).create_log(&path).unwrap();
            file.write_at(page.as_slice(), 0).unwrap();
            file.write_at(b"odd", 4096).unwrap();
            file.sync_data().unwrap();
            assert_eq!(fs::read(&path).unwrap(), [page.as_slice(), b"odd"].concat(), "{mode:?}");
        }
    }
}
