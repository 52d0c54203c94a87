//! Why a directory cannot be used, in words for the person who has to act on it.

use std::io;
use std::path::{Path, PathBuf};

use tenure_storage::Fault;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} cannot be used: {source}", directory.display())]
    Unusable { directory: PathBuf, source: io::Error },
    #[error("{} is in use by another process", directory.display())]
    InUse { directory: PathBuf },
    #[error(
        "{} was written by a newer version (format {found}; this program reads up to {supported}): \
         use the version that wrote it, or a later one", directory.display()
    )]
    Newer { directory: PathBuf, found: u32, supported: u32 },
    #[error("{} holds something else: bars and a data store do not share a directory", directory.display())]
    OtherKind { directory: PathBuf },
    #[error("{} is not empty (it holds {name:?}): choose another directory", directory.display())]
    Foreign { directory: PathBuf, name: String },
    #[error(
        "{} holds {name:?} but no STAMP file: restore it from where the directory was copied, because beginning \
         anew would forget every bar", directory.display()
    )]
    MissingStamp { directory: PathBuf, name: String },
    #[error("{} is corrupt at byte {offset}: {reason}", file.display())]
    Corrupt { file: PathBuf, offset: u64, reason: String },
    #[error(transparent)]
    Fault(#[from] Fault),
}

pub(super) fn unusable(directory: &Path, source: io::Error) -> OpenError {
    OpenError::Unusable { directory: directory.to_path_buf(), source }
}
