//! `tenure snapshot`: the whole state as one file, saved and looked at.

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
  tenure snapshot status backup.snapshot";

/// Save the whole state to a file, look at one
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
}

/// Save the state of the member that answers
///
/// The file appears under its name only when it is whole, checked against the server's checksum
/// and on disk.
#[derive(Args)]
#[command(before_help = "Example:\n  tenure snapshot save backup.snapshot")]
pub struct Save {
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

impl Snapshot {
    pub fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Save(save) => block_on(save.run(global)),
            Action::Status(status) => status.run(&global),
        }
    }
}
