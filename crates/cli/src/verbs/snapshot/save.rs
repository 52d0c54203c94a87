//! Streams a snapshot into a temporary file, checks it, and gives it its name.
//!
//! The stream ends with the SHA-256 of all before it. etcd's files keep that checksum, and tools
//! that read them expect it, so it stays in ours.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use tenure_client::SnapshotStream;

use super::Save;
use crate::output::{self, Record, note};
use crate::progress::{Progress, size};
use crate::settings::{Global, Session};

pub const CHECKSUM_BYTES: usize = 32;

impl Save {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        if self.file == Path::new("-") {
            return save_to_stdout(&global).await;
        }
        if self.file.exists() && !self.force {
            bail!("{} exists already: choose another name. Use --force to replace it.", self.file.display());
        }
        let Session { client, format } = global.session().await?;
        let stream = client.snapshot().await?;
        let endpoint = stream.endpoint().to_owned();
        let partial = Partial::create(&self.file)?;
        let bytes = receive(stream, |piece| {
            (&partial.file).write_all(piece).with_context(|| format!("cannot write {}", partial.path.display()))
        });
        let bytes = bytes.await?;
        partial.finish(&self.file)?;
        let path = self.file.display().to_string();
        let json = json!({ "file": path, "bytes": bytes, "endpoint": endpoint });
        Record { sentence: format!("saved {path}, {} from {endpoint}", size(bytes)), json }.print(format)?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn save_to_stdout(global: &Global) -> anyhow::Result<ExitCode> {
    if io::stdout().is_terminal() {
        bail!("a snapshot is not for a terminal: send it to a file or a pipe, as in tenure snapshot save - > FILE");
    }
    let Session { client, format } = global.session().await?;
    let stream = client.snapshot().await?;
    let endpoint = stream.endpoint().to_owned();
    let bytes = receive(stream, |piece| output::print_bytes(piece).context("cannot write to standard output")).await?;
    if !format.is_json() {
        note(format_args!("saved {} from {endpoint}", size(bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Hands on every piece of the snapshot, and verifies the checksum at its end.
async fn receive(mut stream: SnapshotStream, write: impl Fn(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<u64> {
    let progress = Progress::new();
    let (mut checksum, mut bytes) = (TrailingChecksum::default(), 0);
    while let Some(piece) = stream.next().await? {
        write(&piece)?;
        checksum.update(&piece);
        bytes += piece.len() as u64;
        let remaining = stream.remaining().unwrap_or(0);
        progress.update(|| format!("saved {}, {} to go", size(bytes), size(remaining)));
    }
    checksum.verify()?;
    Ok(bytes)
}

/// A file that is removed unless it is finished.
struct Partial {
    path: PathBuf,
    file: File,
}

impl Partial {
    fn create(target: &Path) -> anyhow::Result<Partial> {
        let mut name = target.file_name().context("the snapshot's file has no name")?.to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let path = target.with_file_name(name);
        let file = File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Partial { path, file })
    }

    fn finish(self, target: &Path) -> anyhow::Result<()> {
        let renamed = || -> std::io::Result<()> {
            self.file.sync_all()?;
            std::fs::rename(&self.path, target)?;
            let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        };
        renamed().with_context(|| format!("cannot finish {}", target.display()))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After a success the file has its final name and this finds nothing.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Hashes all but the last 32 bytes of what passes, which should be that hash.
#[derive(Default)]
pub struct TrailingChecksum {
    hasher: Sha256,
    tail: Vec<u8>,
}

impl TrailingChecksum {
    pub fn update(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece);
        if self.tail.len() > CHECKSUM_BYTES {
            let known = self.tail.len() - CHECKSUM_BYTES;
            self.hasher.update(&self.tail[..known]);
            self.tail.drain(..known);
        }
    }

    pub fn verify(self) -> anyhow::Result<()> {
        if self.tail.len() < CHECKSUM_BYTES {
            bail!("the snapshot is incomplete: not even its checksum is there");
        }
        if self.tail[..] != self.hasher.finalize()[..] {
            bail!("the snapshot is damaged: it does not match its checksum");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(bytes: &[u8], piece: usize) -> anyhow::Result<()> {
        let mut checksum = TrailingChecksum::default();
        for piece in bytes.chunks(piece) {
            checksum.update(piece);
        }
        checksum.verify()
    }

    #[test]
    fn the_checksum_is_found_however_the_bytes_are_cut() {
        let data = vec![7; 1000];
        let whole = [&data[..], &Sha256::digest(&data)[..]].concat();
        for piece in [1, 31, 32, 33, 500, 5000] {
            assert!(verify(&whole, piece).is_ok(), "{piece}");
            assert!(verify(&whole[..whole.len() - 1], piece).is_err(), "{piece}");
            assert!(verify(&[&whole[..], b"x"].concat(), piece).is_err(), "{piece}");
        }
        assert!(verify(b"short", 5).is_err());
    }
}
