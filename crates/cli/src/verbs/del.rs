//! `tenure del`: deletes keys.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::pairs;
use crate::output::Record;
use crate::selection::Selection;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure del greeting
  tenure del --prefix app/ --previous   and show what was deleted";

/// Delete keys
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Del {
    #[command(flatten)]
    selection: Selection,
    /// Show what was deleted
    #[arg(long)]
    previous: bool,
}

impl Del {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let deleted = client.delete(self.request()).await?;
        if !deleted.previous.is_empty() && !format.is_json() {
            pairs::listing(&deleted.previous).print(format)?;
        }
        let mut json = json!({ "revision": deleted.header.revision, "deleted": deleted.count });
        if self.previous {
            json["previous"] = pairs::json_list(&deleted.previous).into();
        }
        Record { sentence: format!("deleted {}, revision {}", deleted.count, deleted.header.revision), json }
            .print(format)?;
        Ok(ExitCode::SUCCESS)
    }

    pub fn request(&self) -> tenure_client::Delete {
        let delete = tenure_client::Delete::keys(self.selection.keys());
        if self.previous { delete.previous() } else { delete }
    }
}
