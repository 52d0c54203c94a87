//! `tenure snapshot`: the whole state as one file, saved, looked at, and made a new cluster of.

mod restore;
mod save;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::block_on;
use crate::settings::Global;

const EXAMPLE: &str = "\
Examples:
  tenure snapshot save backup.snapshot
  tenure snapshot status backup.snapshot
  tenure snapshot restore backup.snapshot --data-dir new-data --new-cluster";

/// Save the whole state to a file, look at one, begin a new cluster with one
#[derive(Args)]
#[command(before_help = EXAMPLE, subcommand_required = true, arg_required_else_help = true)]
pub struct Snapshot {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Save(Save),
    Status(Status),
    Restore(Restore),
}

/// Save the state of the member that answers
///
/// The file appears under its name only when it is whole, checked against the server's checksum
/// and on disk. With `-` the snapshot is written to standard output: use it only if the exit code is 0.
#[derive(Args)]
#[command(
    before_help = "Examples:\n  tenure snapshot save backup.snapshot\n  tenure snapshot save - | gzip > backup.snapshot.gz"
)]
pub struct Save {
    /// The file to write, or - for standard output
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Check a snapshot's file and show what it holds
#[derive(Args)]
#[command(before_help = "Example:\n  tenure snapshot status backup.snapshot")]
pub struct Status {
    file: PathBuf,
}

/// Begin a new cluster with what a backup, or the directory of a stopped member, holds
///
/// For a cluster that is lost, or has lost most of its members. No lease and no lock of the old cluster
/// lives on, and revisions, which are the fencing tokens, go on from beyond all that it can have issued:
/// a holder of then is refused by whatever checks tokens.
#[derive(Args)]
#[command(before_help = "\
Examples:
  tenure snapshot restore backup.snapshot --data-dir new-data --new-cluster
  tenure snapshot restore old-data --data-dir new-data --new-cluster")]
pub struct Restore {
    /// A file that `snapshot save` wrote, or the data directory of a stopped member
    #[arg(value_name = "FILE|DIRECTORY")]
    from: PathBuf,
    /// Where the new member's data go; must be empty or not there
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: PathBuf,
    /// It begins a new cluster, which members of the old one cannot join
    #[arg(long)]
    new_cluster: bool,
    /// How far beyond the old revision the new ones begin; what was issued after the backup must lie below
    #[arg(long, value_name = "COUNT", default_value_t = tenure_server::restore::REVISIONS_BEYOND, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    revisions_beyond: u64,
}

impl Snapshot {
    pub fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Save(save) => block_on(save.run(global)),
            Action::Status(status) => status.run(&global),
            Action::Restore(restore) => restore.run(&global),
        }
    }
}
