//! That this member came to vote and does not yet: a file that is there or not, so that a member which ends before it is
//! promoted goes on to ask for it when it starts again, whatever it is started with.

use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::error::Fault;
use crate::layout;

/// For any thread. Keeps the directory's lock.
pub struct Candidacy<D: Disk> {
    disk: D,
    directory: PathBuf,
    _lock: Arc<D::Lock>,
}

impl<D: Disk> Candidacy<D> {
    pub(crate) fn new(disk: D, directory: PathBuf, lock: Arc<D::Lock>) -> Self {
        Self { disk, directory, _lock: lock }
    }

    pub fn is_set(&self) -> Result<bool, Fault> {
        let found = self.disk.list(&self.directory);
        let found = found.map_err(|source| Fault::io("listing", &self.directory, source))?;
        Ok(found.iter().any(|found| found.name == layout::CANDIDATE))
    }

    /// Durable on return. To say again what is so already costs nothing.
    pub fn set(&self, is_candidate: bool) -> Result<(), Fault> {
        if self.is_set()? == is_candidate {
            return Ok(());
        }
        let path = self.directory.join(layout::CANDIDATE);
        let changed = match is_candidate {
            true => self.disk.create(&path).and_then(|mut file| file.sync_data()),
            false => self.disk.remove(&path),
        };
        changed
            .and_then(|()| self.disk.sync_directory(&self.directory))
            .map_err(|source| Fault::io("changing", &path, source))
    }
}
