//! A backup, as `etcdctl snapshot save` fetches it.
//!
//! The bytes are the snapshot stream of `tenure-storage`: header, chunks, end, each with its
//! checksum. etcd's tools expect the size of a backup to be a multiple of 512 and a SHA-256 of
//! everything behind it, so zeros follow the end of the stream up to that multiple, then the hash.
//! Whoever reads the stream stops at its end and never sees them. The configuration of the cluster
//! is left empty: a backup is restored into a new cluster.
//!
//! Encoding runs on blocking threads, a chunk at a time and only as fast as the client reads.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tenure_api::etcdserverpb::SnapshotResponse;
use tenure_machine::{View, snapshot};
use tenure_storage::{SnapshotEncoder, SnapshotMeta};
use tonic::Status;

use super::errors;
use super::large::DroppedElsewhere;
use super::produced::Emitter;

/// About what a message holds before it is compressed.
const CHUNK_BYTES: usize = 256 * 1024;
/// A backup without its hash is a multiple of this.
const BLOCK_BYTES: u64 = 512;

pub async fn send(view: View, mut emitter: Emitter<Result<SnapshotResponse, Status>>) {
    // The exact size is known only at the end; until then this tells a reader about how far it is.
    let estimate = view.bytes();
    let mut backup = DroppedElsewhere::new(None);
    let mut view = Some(view);
    let mut sent = 0;
    loop {
        let (before, view) = (backup.take(), view.take());
        let step = tokio::task::spawn_blocking(move || {
            let mut backup = match (before, view) {
                (Some(backup), _) => backup,
                (None, Some(view)) => Backup::new(view)?,
                (None, None) => unreachable!("a backup is made from a view"),
            };
            let blob = backup.next()?;
            io::Result::Ok((backup, blob))
        });
        let blob = match step.await {
            Ok(Ok((returned, blob))) => {
                backup = DroppedElsewhere::new(Some(returned));
                blob
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "a backup could not be written");
                return emitter.emit(Err(Status::internal("tenure: the backup could not be written"))).await;
            }
            Err(_) => return emitter.emit(Err(errors::STOPPED.into())).await,
        };
        let Some(blob) = blob else { return };
        sent += blob.bytes.len() as u64;
        let remaining_bytes = if blob.last { 0 } else { estimate.saturating_sub(sent).max(1) };
        let response = SnapshotResponse { remaining_bytes, blob: blob.bytes, ..SnapshotResponse::default() };
        emitter.emit(Ok(response)).await;
    }
}

/// A backup that is being written.
struct Backup {
    chunks: Box<dyn Iterator<Item = Vec<u8>> + Send>,
    /// None = the stream has its end.
    encoder: Option<SnapshotEncoder<Buffer>>,
    buffer: Buffer,
    /// Over all that was handed out. None = it was handed out itself.
    hash: Option<Sha256>,
    written: u64,
}

struct Blob {
    bytes: Bytes,
    /// Nothing but the hash follows.
    last: bool,
}

impl Backup {
    fn new(view: View) -> io::Result<Backup> {
        let meta = SnapshotMeta { index: view.applied_index(), term: view.applied_term(), configuration: Bytes::new() };
        let buffer = Buffer::default();
        let encoder = SnapshotEncoder::new(buffer.clone(), &meta)?;
        let chunks = Box::new(snapshot::chunks(view, CHUNK_BYTES));
        Ok(Backup { chunks, encoder: Some(encoder), buffer, hash: Some(Sha256::new()), written: 0 })
    }

    /// The chunks, the end with its padding, the hash; then None.
    fn next(&mut self) -> io::Result<Option<Blob>> {
        let mut bytes = match (self.chunks.next(), self.encoder.take()) {
            (Some(chunk), Some(mut encoder)) => {
                encoder.write_chunk(&chunk)?;
                self.encoder = Some(encoder);
                self.buffer.take()
            }
            (_, Some(encoder)) => {
                encoder.finish()?;
                self.buffer.take()
            }
            (_, None) => {
                let hash = self.hash.take();
                return Ok(hash.map(|hash| Blob { bytes: hash.finalize().to_vec().into(), last: true }));
            }
        };
        let last = self.encoder.is_none();
        if last {
            let end = self.written + bytes.len() as u64;
            bytes.resize(bytes.len() + (end.next_multiple_of(BLOCK_BYTES) - end) as usize, 0);
        }
        self.written += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(&bytes);
        }
        Ok(Some(Blob { bytes: bytes.into(), last }))
    }
}

/// What the encoder writes to, emptied after every chunk.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().expect("no panic while the buffer is locked"))
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic while the buffer is locked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
