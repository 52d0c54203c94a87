//! `tenure lease`: leases and what is bound to them.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure_client::Client;

use crate::bytes_text::{printable, to_json};
use crate::follow::Follow;
use crate::output::{Column, Format, Listing, Record, column, note, number};
use crate::settings::{Global, Session};
use tenure_server::units::parse_duration;

const EXAMPLE: &str = "\
Examples:
  tenure lease grant 60s
  tenure lease keep-alive 70c9a1f3
  tenure lease list --watch";

/// Grant, renew, look at and revoke leases
///
/// A lease is a time after which its keys are deleted, unless it is renewed.
#[derive(Args)]
#[command(before_help = EXAMPLE, subcommand_required = true, arg_required_else_help = true)]
pub struct Lease {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Grant(Grant),
    Revoke(Revoke),
    KeepAlive(KeepAlive),
    Ttl(Ttl),
    List(List),
}

/// Grant a lease
#[derive(Args)]
#[command(before_help = "Example:\n  tenure lease grant 60s                answers with the lease's id")]
struct Grant {
    /// How long it lasts without being renewed, as in 10s or 5m
    #[arg(value_parser = parse_duration)]
    ttl: Duration,
    /// Ask for this id; otherwise the server picks one
    #[arg(long, value_parser = parse_lease)]
    id: Option<i64>,
}

/// End a lease and delete its keys
#[derive(Args)]
#[command(before_help = "Example:\n  tenure lease revoke 70c9a1f3")]
struct Revoke {
    #[arg(value_parser = parse_lease)]
    id: i64,
}

/// Renew a lease, again and again until interrupted
#[derive(Args)]
#[command(
    before_help = "Example:\n  tenure lease keep-alive 70c9a1f3      renews at a third of its time\n  tenure lease keep-alive --once 70c9a1f3"
)]
struct KeepAlive {
    #[arg(value_parser = parse_lease)]
    id: i64,
    /// Renew it once and end
    #[arg(long)]
    once: bool,
}

/// Show how long a lease still has
#[derive(Args)]
#[command(before_help = "Example:\n  tenure lease ttl --keys 70c9a1f3      and which keys end with it")]
struct Ttl {
    #[arg(value_parser = parse_lease)]
    id: i64,
    /// Show its keys
    #[arg(long)]
    keys: bool,
}

/// List all leases
#[derive(Args)]
#[command(before_help = "Example:\n  tenure lease list --watch")]
struct List {
    #[command(flatten)]
    follow: Follow,
}

impl Lease {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        match self.action {
            Action::Grant(grant) => {
                let lease = client.grant_lease(grant.ttl, grant.id.unwrap_or(0)).await?;
                if lease.ttl > grant.ttl && grant.ttl.subsec_nanos() == 0 {
                    note(format_args!(
                        "the server raised the time to {} s, the shortest it grants",
                        lease.ttl.as_secs()
                    ));
                }
                let json = json!({ "lease": format!("{:x}", lease.id), "ttl_seconds": lease.ttl.as_secs() });
                let sentence = match format {
                    Format::Wide => format!("{:x}  {} s", lease.id, lease.ttl.as_secs()),
                    _ => format!("{:x}", lease.id),
                };
                Record { sentence, json }.print(format)?;
            }
            Action::Revoke(Revoke { id }) => {
                client.revoke_lease(id).await?;
                let json = json!({ "lease": format!("{id:x}"), "revoked": true });
                Record { sentence: format!("revoked {id:x}"), json }.print(format)?;
            }
            Action::KeepAlive(KeepAlive { id, once }) => keep_alive(&client, format, id, once).await?,
            Action::Ttl(Ttl { id, keys }) => time_to_live(&client, format, id, keys).await?,
            Action::List(List { follow }) => follow.show(format, || list(&client)).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn keep_alive(client: &Client, format: Format, id: i64, once: bool) -> anyhow::Result<()> {
    let mut renewals = client.keep_alive(id);
    loop {
        let ttl = renewals.renew().await?;
        let json = json!({ "lease": format!("{id:x}"), "ttl_seconds": ttl.as_secs() });
        Record { sentence: format!("renewed {id:x} for {} s", ttl.as_secs()), json }.print(format)?;
        if once {
            return Ok(());
        }
        tokio::time::sleep(ttl / 3).await;
    }
}

async fn time_to_live(client: &Client, format: Format, id: i64, keys: bool) -> anyhow::Result<()> {
    let found = client.lease_time_to_live(id, keys).await?;
    let (remaining, granted) = (found.remaining.as_secs(), found.granted.as_secs());
    let mut json = json!({ "lease": format!("{id:x}"), "remaining_seconds": remaining, "granted_seconds": granted });
    let mut sentence = format!("{remaining} s of {granted} s left");
    if keys {
        json["keys"] = found.keys.iter().map(|key| to_json(key)).collect();
        for key in &found.keys {
            sentence.push_str(&format!("\n{}", printable(key)));
        }
    }
    Ok(Record { sentence, json }.print(format)?)
}

const COLUMNS: &[Column] = &[column("LEASE"), number("REMAINING"), number("TTL"), number("KEYS")];

async fn list(client: &Client) -> anyhow::Result<Listing> {
    let mut listing = Listing::new("leases", COLUMNS);
    for id in client.leases().await? {
        // A lease may end between the list and the question.
        let found = match client.lease_time_to_live(id, true).await {
            Ok(found) => found,
            Err(tenure_client::Error::LeaseNotFound) => continue,
            Err(error) => return Err(error.into()),
        };
        let (remaining, granted) = (found.remaining.as_secs(), found.granted.as_secs());
        listing.row(
            vec![format!("{id:x}"), format!("{remaining}s"), format!("{granted}s"), found.keys.len().to_string()],
            json!({
                "lease": format!("{id:x}"),
                "remaining_seconds": remaining,
                "granted_seconds": granted,
                "keys": found.keys.iter().map(|key| to_json(key)).collect::<Vec<_>>(),
            }),
        );
    }
    Ok(listing)
}

/// A lease's id, in hexadecimal as it is shown everywhere.
pub fn parse_lease(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match i64::from_str_radix(digits, 16) {
        Ok(id) if id > 0 => Ok(id),
        _ => Err("a lease's id is hexadecimal, as `tenure lease grant` and `tenure lease list` show it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ids_are_hexadecimal() {
        assert_eq!(parse_lease("70c9a1f3"), Ok(0x70c9_a1f3));
        assert_eq!(parse_lease("0x10"), Ok(16));
        for wrong in ["", "0", "-1", "lease", "fffffffffffffffff"] {
            assert!(parse_lease(wrong).is_err(), "{wrong}");
        }
    }
}
