//! Looks into a snapshot's file: reads all of it, checks every checksum, and tells what it holds.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use tenure_machine::Machine;
use tenure_machine::snapshot::Restore;
use tenure_storage::SnapshotDecoder;

use super::Status;
use super::save::TrailingChecksum;
use crate::output::{Column, Listing, column, number};
use crate::progress::{Progress, size};
use crate::settings::Global;

const COLUMNS: &[Column] =
    &[column("FILE"), number("REVISION"), number("KEYS"), number("LEASES"), number("SIZE"), column("HASH")];
const MAGIC: &[u8] = b"TENURSNP";
const BUFFER_BYTES: usize = 1 << 20;

impl Status {
    pub fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let format = global.format()?;
        let (machine, bytes) = read(&self.file)?;
        let state = machine.state();
        let (path, hash) = (self.file.display().to_string(), format!("{:016x}", state.hash()));
        let mut listing = Listing::new("snapshots", COLUMNS);
        listing.row(
            vec![
                path.clone(),
                state.revision().to_string(),
                state.keys().to_string(),
                state.lease_count().to_string(),
                size(bytes),
                hash.clone(),
            ],
            json!({
                "file": path,
                "revision": state.revision(),
                "compacted_revision": state.compacted_revision(),
                "keys": state.keys(),
                "leases": state.lease_count(),
                "bytes": bytes,
                "raft_index": machine.applied_index(),
                "raft_term": machine.applied_term(),
                "hash": hash,
            }),
        );
        listing.print(format)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The state that a snapshot's file holds, and the file's size.
pub fn read(path: &Path) -> anyhow::Result<(Machine, u64)> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let bytes = file.metadata().with_context(|| format!("cannot read {}", path.display()))?.len();
    if !is_snapshot(&mut file).with_context(|| format!("cannot read {}", path.display()))? {
        bail!("{} is not a snapshot of Tenure; one of etcd is read by etcd's own tools", path.display());
    }
    let machine = verify(&mut file).and_then(|()| decode(&file, bytes));
    Ok((machine.with_context(|| format!("{} cannot be used", path.display()))?, bytes))
}

/// Whether the file begins as a snapshot does.
fn is_snapshot(file: &mut File) -> io::Result<bool> {
    let mut start = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start == MAGIC)
}

fn verify(file: &mut File) -> anyhow::Result<()> {
    let (mut checksum, mut buffer) = (TrailingChecksum::default(), vec![0; BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            length => checksum.update(&buffer[..length]),
        }
    }
    file.rewind()?;
    checksum.verify()
}

fn decode(file: &File, bytes: u64) -> anyhow::Result<Machine> {
    let progress = Progress::new();
    let mut decoder = SnapshotDecoder::new(BufReader::with_capacity(BUFFER_BYTES, file))?;
    let (mut restore, mut decoded) = (Restore::new(), 0);
    while let Some(chunk) = decoder.next_chunk()? {
        decoded += chunk.len() as u64;
        progress.update(|| format!("read {} (the file has {})", size(decoded), size(bytes)));
        restore.chunk(&chunk)?;
    }
    Ok(restore.finish()?)
}
