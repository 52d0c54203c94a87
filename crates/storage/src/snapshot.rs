//! Snapshots as files: written beside the log by another thread, under a temporary name until every byte
//! is durable and read back, and only then renamed. A snapshot that has its name is therefore whole.

use std::collections::BTreeMap;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::disk::{Disk, DiskFile};
use crate::error::Fault;
use crate::layout;
use crate::snapshot_stream::{SnapshotDecoder, SnapshotEncoder, SnapshotError};
use crate::types::SnapshotMeta;

const BUFFER_BYTES: usize = 1 << 16;

/// The snapshots of a store, for other threads: a handle that can be cloned. It keeps the directory's lock.
pub struct Snapshots<D: Disk> {
    shared: Arc<Shared<D>>,
}

struct Shared<D: Disk> {
    disk: D,
    directory: PathBuf,
    newest: Mutex<SnapshotMeta>,
    /// How often each name was given out to a snapshot on which nothing builds yet. Two members may send the same one,
    /// and what is refused of the first must not take the file from under the second.
    finished: Mutex<BTreeMap<(u64, u64), u64>>,
    temporaries: AtomicU64,
    _lock: Arc<D::Lock>,
}

impl<D: Disk> Clone for Snapshots<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Disk> Snapshots<D> {
    pub(crate) fn new(disk: D, directory: PathBuf, newest: SnapshotMeta, lock: Arc<D::Lock>) -> Self {
        let temporaries = AtomicU64::new(0);
        let (newest, finished) = (Mutex::new(newest), Mutex::default());
        Self { shared: Arc::new(Shared { disk, directory, newest, finished, temporaries, _lock: lock }) }
    }

    /// The newest snapshot that the log builds on.
    pub fn newest(&self) -> SnapshotMeta {
        self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the newest snapshot. Goes on reading it even if it is replaced meanwhile.
    pub fn reader(&self) -> Result<SnapshotReader<D>, Fault> {
        read_from(self.source()?)
    }

    /// Reads the snapshot of this name, whether the log builds on it or not.
    pub fn reader_of(&self, index: u64, term: u64) -> Result<SnapshotReader<D>, Fault> {
        let path = self.shared.directory.join(layout::snapshot_name(index, term));
        let reader = read_from(open_source(&self.shared.disk, path)?)?;
        match (reader.meta().index, reader.meta().term) {
            found if found == (index, term) => Ok(reader),
            _ => Err(Fault::corrupt(&reader.path, 0, "the snapshot belongs to another name")),
        }
    }

    /// The newest snapshot as the bytes of its stream, to be sent somewhere.
    pub fn source(&self) -> Result<SnapshotSource<D>, Fault> {
        // The newest may be replaced and removed between the question and the opening.
        loop {
            let newest = self.newest();
            let path = self.shared.directory.join(layout::snapshot_name(newest.index, newest.term));
            match open_source(&self.shared.disk, path) {
                Err(Fault::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && self.newest() != newest => {}
                result => return result,
            }
        }
    }

    /// As [`source`](Self::source), if the newest snapshot is still the one at this index.
    pub fn source_at(&self, index: u64) -> Result<Option<(SnapshotMeta, SnapshotSource<D>)>, Fault> {
        let meta = self.newest();
        if meta.index != index {
            return Ok(None);
        }
        let path = self.shared.directory.join(layout::snapshot_name(meta.index, meta.term));
        match open_source(&self.shared.disk, path) {
            // Replaced and removed between the question and the opening.
            Err(Fault::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && self.newest() != meta => {
                Ok(None)
            }
            result => result.map(|source| Some((meta, source))),
        }
    }

    /// Begins to take in a snapshot of another member, as the bytes of its stream.
    pub fn receiver(&self, index: u64, term: u64) -> Result<SnapshotReceiver<D>, Fault> {
        let (temporary, file) = self.begin(index, term)?;
        Ok(SnapshotReceiver {
            snapshots: self.clone(),
            index,
            term,
            temporary,
            output: Some(Output { file, offset: 0 }),
        })
    }

    /// Begins a snapshot. Several can be written at once, while the log goes on.
    pub fn writer(&self, meta: SnapshotMeta) -> Result<SnapshotWriter<D>, Fault> {
        let (temporary, file) = self.begin(meta.index, meta.term)?;
        let output = BufWriter::with_capacity(BUFFER_BYTES, Output { file, offset: 0 });
        let encoder =
            SnapshotEncoder::new(output, &meta).map_err(|source| Fault::io("writing snapshot", &temporary, source))?;
        Ok(SnapshotWriter { snapshots: self.clone(), meta, temporary, encoder: Some(encoder) })
    }

    /// A file of its own for a snapshot that has no name yet.
    fn begin(&self, index: u64, term: u64) -> Result<(PathBuf, D::File), Fault> {
        let number = self.shared.temporaries.fetch_add(1, Ordering::Relaxed);
        let temporary = self.shared.directory.join(layout::snapshot_temporary_name(index, term, number));
        let file = self.shared.disk.create(&temporary);
        let file = file.map_err(|source| Fault::io("writing snapshot", &temporary, source))?;
        Ok((temporary, file))
    }

    /// Syncs a written snapshot, reads every byte back, gives it its name and syncs the directory.
    fn complete(&self, mut file: D::File, temporary: &Path, index: u64, term: u64) -> Result<SnapshotMeta, Fault> {
        let Shared { disk, directory, .. } = &*self.shared;
        let failed = |source| Fault::io("writing snapshot", temporary, source);
        #[cfg(feature = "planted")]
        let is_synced = !crate::planted::is(crate::planted::Bug::NameUnsynced);
        #[cfg(not(feature = "planted"))]
        let is_synced = true;
        if is_synced {
            file.sync_data().map_err(failed)?;
        }
        drop(file);
        let meta = verify(disk, temporary)?;
        if (meta.index, meta.term) != (index, term) {
            let reason = format!("it is a snapshot at {} of term {}, not {index} of {term}", meta.index, meta.term);
            return Err(Fault::corrupt(temporary, 0, reason));
        }
        let mut finished = self.finished();
        disk.rename(temporary, &directory.join(layout::snapshot_name(index, term))).map_err(failed)?;
        *finished.entry((index, term)).or_default() += 1;
        disk.sync_directory(directory).map_err(failed)?;
        Ok(meta)
    }

    /// Leaves nothing behind of a snapshot that got no name; if that fails, opening the store does it.
    fn discard(&self, temporary: &Path) {
        let disk = &self.shared.disk;
        if disk.open(temporary).is_ok() {
            let _ = disk.remove(temporary);
        }
    }

    /// One who had a snapshot at this index has no use for it. The file goes with the last of them, unless the log
    /// builds on it.
    pub(crate) fn give_up(&self, index: u64) -> Result<(), Fault> {
        let Shared { disk, directory, .. } = &*self.shared;
        let mut finished = self.finished();
        let Some((&(index, term), count)) = finished.range_mut((index, 0)..=(index, u64::MAX)).next_back() else {
            return Ok(());
        };
        *count -= 1;
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::TakeFile) {
            *count = 0;
        }
        if *count > 0 {
            return Ok(());
        }
        finished.remove(&(index, term));
        let newest = self.newest();
        if (newest.index, newest.term) == (index, term) {
            return Ok(());
        }
        // While nobody can give out the name again.
        let path = directory.join(layout::snapshot_name(index, term));
        match disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Fault::io("removing", &path, error)),
            _ => {}
        }
        disk.sync_directory(directory).map_err(|source| Fault::io("syncing", directory, source))
    }

    fn finished(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), u64>> {
        self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_newest(&self, meta: SnapshotMeta) {
        // What is not newer is removed, or stays for good.
        self.finished().retain(|name, _| *name > (meta.index, meta.term));
        *self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner) = meta;
    }
}

/// Writes one snapshot. Dropped before [`finish`](Self::finish), it leaves nothing behind.
pub struct SnapshotWriter<D: Disk> {
    snapshots: Snapshots<D>,
    meta: SnapshotMeta,
    temporary: PathBuf,
    encoder: Option<SnapshotEncoder<BufWriter<Output<D::File>>>>,
}

impl<D: Disk> SnapshotWriter<D> {
    pub fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    pub fn write_chunk(&mut self, chunk: &[u8]) -> Result<(), Fault> {
        let Some(encoder) = self.encoder.as_mut() else { return Err(Fault::refused("the snapshot is finished")) };
        encoder.write_chunk(chunk).map_err(|source| Fault::io("writing snapshot", &self.temporary, source))
    }

    /// Syncs, reads every byte back, gives the file its name and syncs the directory. Until the store is
    /// told ([`Store::snapshot_saved`](crate::Store::snapshot_saved),
    /// [`Store::install_snapshot`](crate::Store::install_snapshot)) nothing builds on it.
    pub fn finish(mut self) -> Result<SnapshotMeta, Fault> {
        let Some(encoder) = self.encoder.take() else { return Err(Fault::refused("the snapshot is finished")) };
        let failed = |source| Fault::io("writing snapshot", &self.temporary, source);
        let output = encoder.finish().map_err(failed)?;
        let file = output.into_inner().map_err(|error| failed(error.into_error()))?.file;
        self.snapshots.complete(file, &self.temporary, self.meta.index, self.meta.term)
    }
}

impl<D: Disk> Drop for SnapshotWriter<D> {
    fn drop(&mut self) {
        // After `finish` there is no such file.
        drop(self.encoder.take());
        self.snapshots.discard(&self.temporary);
    }
}

/// Takes in one snapshot of another member, from its first byte to its last. Nothing of it is believed before
/// [`finish`](Self::finish); dropped earlier, it leaves nothing behind.
pub struct SnapshotReceiver<D: Disk> {
    snapshots: Snapshots<D>,
    index: u64,
    term: u64,
    temporary: PathBuf,
    output: Option<Output<D::File>>,
}

impl<D: Disk> SnapshotReceiver<D> {
    /// How much has been taken in.
    pub fn offset(&self) -> u64 {
        self.output.as_ref().map_or(0, |output| output.offset)
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(output) = self.output.as_mut() else { return Err(Fault::refused("the snapshot is finished")) };
        output.write_all(bytes).map_err(|source| Fault::io("writing snapshot", &self.temporary, source))
    }

    /// As [`SnapshotWriter::finish`]. What does not verify gets no name.
    pub fn finish(mut self) -> Result<SnapshotMeta, Fault> {
        let Some(output) = self.output.take() else { return Err(Fault::refused("the snapshot is finished")) };
        self.snapshots.complete(output.file, &self.temporary, self.index, self.term)
    }
}

impl<D: Disk> Drop for SnapshotReceiver<D> {
    fn drop(&mut self) {
        drop(self.output.take());
        self.snapshots.discard(&self.temporary);
    }
}

/// Chunks of a snapshot, each verified before it is given out.
pub struct SnapshotReader<D: Disk> {
    decoder: SnapshotDecoder<BufReader<SnapshotSource<D>>>,
    path: PathBuf,
}

impl<D: Disk> SnapshotReader<D> {
    pub fn meta(&self) -> &SnapshotMeta {
        self.decoder.meta()
    }

    /// `None` after the verified end.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, Fault> {
        self.decoder.next_chunk().map_err(|error| into_fault(error, &self.path))
    }
}

impl<D: Disk> Iterator for SnapshotReader<D> {
    type Item = Result<Bytes, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_chunk().transpose()
    }
}

/// The bytes of a snapshot's file.
pub struct SnapshotSource<D: Disk> {
    file: D::File,
    path: PathBuf,
    offset: u64,
    length: u64,
}

impl<D: Disk> SnapshotSource<D> {
    /// In all, from the first byte.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads on from this byte.
    pub fn resume_at(&mut self, offset: u64) {
        self.offset = offset;
    }
}

impl<D: Disk> Read for SnapshotSource<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Reads a snapshot's file to its end.
pub(crate) fn verify<D: Disk>(disk: &D, path: &Path) -> Result<SnapshotMeta, Fault> {
    let source = open_source(disk, path.to_path_buf())?;
    SnapshotDecoder::new(BufReader::with_capacity(BUFFER_BYTES, source))
        .and_then(SnapshotDecoder::verify)
        .map_err(|error| into_fault(error, path))
}

fn read_from<D: Disk>(source: SnapshotSource<D>) -> Result<SnapshotReader<D>, Fault> {
    let path = source.path.clone();
    let decoder = SnapshotDecoder::new(BufReader::with_capacity(BUFFER_BYTES, source))
        .map_err(|error| into_fault(error, &path))?;
    Ok(SnapshotReader { decoder, path })
}

fn open_source<D: Disk>(disk: &D, path: PathBuf) -> Result<SnapshotSource<D>, Fault> {
    let failed = |source| Fault::io("opening", &path, source);
    let file = disk.open(&path).map_err(failed)?;
    let length = file.length().map_err(failed)?;
    Ok(SnapshotSource { file, path, offset: 0, length })
}

fn into_fault(error: SnapshotError, path: &Path) -> Fault {
    match error {
        SnapshotError::Corrupt { offset, reason } => Fault::corrupt(path, offset, reason),
        SnapshotError::Io(source) => Fault::io("reading", path, source),
        newer @ SnapshotError::Newer { .. } => Fault::corrupt(path, 0, newer.to_string()),
    }
}

/// A file that is written from its beginning to its end.
struct Output<F> {
    file: F,
    offset: u64,
}

impl<F: DiskFile> Write for Output<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
