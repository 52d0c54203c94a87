//! What can go wrong, in words for the person who has to act on it.
//!
//! A [`Fault`] is local: it could make this member differ from the others, so its owner stops. None of
//! them is ever retried here; after a failed write or sync the kernel may have dropped the pages and a
//! second sync would lie.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error("no permission to use {}: {source}", path.display())]
    NoPermission { path: PathBuf, source: Arc<io::Error> },
    #[error("{} is in use by another process", directory.display())]
    InUse { directory: PathBuf },
    #[error(
        "{} was written by a newer version (format {found}; this program reads up to {supported}): \
         use the version that wrote it, or a later one", directory.display()
    )]
    Newer { directory: PathBuf, found: u32, supported: u32 },
    #[error("{} is not a data directory and not empty (it holds {name:?}): choose another directory", directory.display())]
    Foreign { directory: PathBuf, name: String },
    #[error(
        "{} holds {name:?} but no STAMP file, so nobody can say whose data it is: \
         restore the STAMP file, or move the directory away and let this member rejoin as a new one",
        directory.display()
    )]
    MissingStamp { directory: PathBuf, name: String },
    #[error("{} is corrupt at byte {offset}: {reason}", file.display())]
    Corrupt { file: PathBuf, offset: u64, reason: String },
    #[error(transparent)]
    Fault(Fault),
}

/// Why an opened store cannot go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    #[error("disk full: {operation} {}: {source}", file.display())]
    DiskFull { operation: &'static str, file: PathBuf, source: Arc<io::Error> },
    #[error("{operation} {} failed: {source}", file.display())]
    Io { operation: &'static str, file: PathBuf, source: Arc<io::Error> },
    #[error("{} is corrupt at byte {offset}: {reason}", file.display())]
    Corrupt { file: PathBuf, offset: u64, reason: String },
    #[error("the log accepts nothing more after an earlier fault: {cause}")]
    Poisoned { cause: String },
    /// The caller broke a rule of the log; nothing was written, and the store goes on.
    #[error("refused by the log: {reason}")]
    Refused { reason: String },
}

impl Fault {
    pub(crate) fn io(operation: &'static str, file: &Path, source: io::Error) -> Self {
        let file = file.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull { operation, file, source: Arc::new(source) }
            }
            _ => Self::Io { operation, file, source: Arc::new(source) },
        }
    }

    pub(crate) fn corrupt(file: &Path, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_path_buf(), offset, reason: reason.into() }
    }

    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused { reason: reason.into() }
    }
}

impl From<Fault> for OpenError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Corrupt { file, offset, reason } => Self::Corrupt { file, offset, reason },
            Fault::Io { file, source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Self::NoPermission { path: file, source }
            }
            other => Self::Fault(other),
        }
    }
}
