//! `tenure del`: deletes keys.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tenure_client::{Client, Get, KeyValue};

use super::lease::parse_lease;
use super::{pairs, people};
use crate::bytes_text::printable;
use crate::output::Record;
use crate::selection::Selection;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure del greeting
  tenure del --prefix app/ --previous   and show what was deleted
  tenure del --prefix deploy/ --force   even the places of locks: their holders lose them";

/// Delete keys
///
/// A lock is a queue of keys beneath its name, one for each holder and waiter. Deleting such a key ends the
/// holder's tenure without a word to it, so keys that are places of others are deleted only with --force; to end one
/// tenure use `tenure unlock --force`. A command under `tenure exec` may delete its own place.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Del {
    #[command(flatten)]
    selection: Selection,
    /// Show what was deleted
    #[arg(long)]
    previous: bool,
    /// Delete even places of locks that are held or waited for
    #[arg(long)]
    force: bool,
    /// Places of this lease are your own
    #[arg(long, env = "TENURE_LEASE", value_name = "ID", value_parser = parse_lease)]
    lease: Option<i64>,
}

/// A refusal names no more locks than this.
const NAMED_LOCKS: usize = 10;

impl Del {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        if !self.force {
            self.refuse_places(&client).await?;
        }
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

    /// Refuses if the keys include places of others in queues of locks.
    async fn refuse_places(&self, client: &Client) -> anyhow::Result<()> {
        let found = client.get(Get::keys(self.selection.keys()).keys_only()).await?;
        let is_other = |pair: &&KeyValue| pair.lease != 0 && Some(pair.lease) != self.lease;
        let names: BTreeSet<String> = found.pairs.iter().filter(is_other).filter_map(lock_of).collect();
        let mut held = Vec::new();
        for name in names.iter().take(NAMED_LOCKS) {
            let lock = client.describe_lock(name).await?;
            let name = printable(name.as_bytes());
            match lock.holders.first() {
                Some(holder) => held.push(format!("{name} ({} holds it)", people::name(holder))),
                None if !lock.waiters.is_empty() => held.push(name),
                None => {}
            }
        }
        if held.is_empty() {
            return Ok(());
        }
        let more = match names.len().saturating_sub(NAMED_LOCKS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        bail!(
            "these keys include places of locks: {}{more}. Their holders would lose them without a word. Use --force to \
             delete them anyway.",
            held.join(", ")
        )
    }

    pub fn request(&self) -> tenure_client::Delete {
        let delete = tenure_client::Delete::keys(self.selection.keys());
        if self.previous { delete.previous() } else { delete }
    }
}

/// The lock whose queue this key may be a place of: its last segment is the lease in hex.
fn lock_of(pair: &KeyValue) -> Option<String> {
    let name = std::str::from_utf8(&pair.key).ok()?.strip_suffix(&format!("/{:x}", pair.lease))?;
    (!name.is_empty()).then(|| name.to_owned())
}
