//! `tenure compact`: forgets history.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::output::Record;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Example:
  tenure compact 1000                   forget all history before revision 1000; present values stay";

/// Forget the history before a revision
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Compact {
    /// The first revision to keep
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    revision: i64,
    /// Answer only when the space has been given back
    #[arg(long)]
    physical: bool,
}

impl Compact {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let header = client.compact(self.revision, self.physical).await?;
        let json = json!({ "revision": header.revision, "compacted": self.revision });
        Record { sentence: format!("OK, history begins at revision {}", self.revision), json }.print(format)?;
        Ok(ExitCode::SUCCESS)
    }
}
