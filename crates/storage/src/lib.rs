//! The only room that touches files.
//!
//! A [`Store`] is one opened data directory. It keeps five things and understands none of them: an
//! identity, a hard state, a sequence of log entries, snapshots made of opaque chunks, and the
//! identities of other members' directories. It knows
//! nothing of locks, of raft's types or of tokio: it is synchronous code, called by the thread that
//! owns the log and by the thread that writes snapshots.
//!
//! What it promises: an `append` that returned `Ok` with `sync` survives a crash at any instruction; a
//! tail torn by a crash is cut off in silence; a damaged record that a later one proves to have been
//! durable stops the process with its file and byte offset; and after one failed write nothing more is
//! accepted, because nobody knows what the disk holds. `docs/format.md` has every byte and the reason
//! for each rule.
//!
//! The way of an entry: [`store`] (what callers see) → `log` (gathers records into a batch, one write
//! and one sync for each) → `batch` and `segment` (the bytes) → [`disk`] (the small file trait). The
//! way back, when a directory is opened, is `recovery`.

#![forbid(unsafe_code)]

mod addresses;
mod aligned;
mod background;
mod batch;
mod candidacy;
mod disk;
mod error;
mod layout;
mod log;
mod memory_disk;
mod os_disk;
mod pace;
mod peers;
#[cfg(feature = "planted")]
pub mod planted;
mod recovery;
mod segment;
mod snapshot;
mod snapshot_stream;
mod stamp;
mod store;
mod types;

pub use addresses::Addresses;
pub use candidacy::Candidacy;
pub use disk::{Disk, DiskFile, Found};
pub use error::{Fault, OpenError};
pub use memory_disk::{MemoryDisk, MemoryFile, MemoryLock};
pub use os_disk::{OsDisk, OsFile, OsLock, WriteMode};
pub use peers::{Meeting, Peers};
pub use snapshot::{SnapshotReader, SnapshotReceiver, SnapshotSource, SnapshotWriter, Snapshots};
pub use snapshot_stream::{MAX_CHUNK_BYTES, SnapshotDecoder, SnapshotEncoder, SnapshotError};
pub use store::{Blank, Opened, Options, Recovered, Store};
pub use types::{Entry, Group, HardState, Identity, SnapshotMeta, TornTail};

/// The format that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
