//! `tenure locks`: all locks that are held or waited for.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_client::{Client, LockSummary};

use super::asking::{age, short};
use super::people;
use crate::bytes_text::printable;
use crate::follow::Follow;
use crate::output::{Column, Listing, column, number, wide};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure locks
  tenure locks deploy/ --watch          those whose names begin so, again and again";

/// List locks that are held or waited for
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Locks {
    /// How the names begin
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    follow: Follow,
}

const COLUMNS: &[Column] = &[
    column("NAME"),
    column("HOLDER"),
    number("TOKEN"),
    number("HELD"),
    number("LEASE"),
    number("WAITERS"),
    wide("MODE"),
    wide("LEASE ID"),
    wide("OWNER"),
    wide("METADATA"),
];

impl Locks {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        self.follow.show(format, || list(&client, &self.prefix)).await?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(client: &Client, prefix: &str) -> anyhow::Result<Listing> {
    let found = client.locks(prefix).await?;
    let mut listing = Listing::new("locks", COLUMNS).about("revision", found.header.revision);
    for lock in &found.locks {
        let mut json = json!({ "lock": lock.name, "holders": lock.holders, "waiters": lock.waiting });
        json["holder"] = lock.holder.as_ref().map(|holder| people::holder_json(holder, found.now)).into();
        listing.row(cells(lock, found.now), json);
    }
    Ok(listing)
}

fn cells(lock: &LockSummary, now: Option<std::time::SystemTime>) -> Vec<String> {
    let waiting = lock.waiting.to_string();
    let name = printable(lock.name.as_bytes());
    let Some(holder) = &lock.holder else {
        let mut cells = vec!["-".to_owned(); COLUMNS.len()];
        (cells[0], cells[5], cells[6]) = (name, waiting, people::mode(lock.mode));
        return cells;
    };
    let others = match lock.holders {
        0 | 1 => String::new(),
        holders => format!(" +{}", holders - 1),
    };
    vec![
        name,
        format!("{}{others}", people::name(holder)),
        holder.token.to_string(),
        age(holder.granted, now).unwrap_or_else(|| "-".to_owned()),
        short(holder.lease.remaining_ttl),
        waiting,
        people::mode(holder.mode),
        format!("{:x}", holder.lease.id),
        printable(holder.owner.as_bytes()),
        printable(&holder.metadata),
    ]
}
