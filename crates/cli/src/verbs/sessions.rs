//! `tenure sessions`: clients with leases, and what they hold and wait for.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_client::Client;

use super::asking::{age, short};
use super::people;
use crate::bytes_text::printable;
use crate::follow::Follow;
use crate::output::{Column, Listing, column, number, wide};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure sessions
  tenure sessions -o wide --watch";

/// List clients with leases, and what they hold and wait for
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Sessions {
    #[command(flatten)]
    follow: Follow,
}

const COLUMNS: &[Column] = &[
    column("CLIENT"),
    column("LEASE"),
    column("STATE"),
    number("TTL"),
    number("LEFT"),
    number("HELD"),
    number("AWAITED"),
    column("ADDRESS"),
    wide("CONNECTED"),
    wide("LAST SEEN"),
    wide("WATCHES"),
];

impl Sessions {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        self.follow.show(format, || list(&client)).await?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(client: &Client) -> anyhow::Result<Listing> {
    let found = client.sessions().await?;
    let mut listing = Listing::new("sessions", COLUMNS).about("revision", found.header.revision);
    for session in &found.sessions {
        let or_dash = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        let lease = &session.lease;
        listing.row(
            vec![
                or_dash(Some(printable(session.client.as_bytes()))),
                format!("{:x}", lease.id),
                people::lease_state(lease.state).to_owned(),
                short(lease.granted_ttl),
                short(lease.remaining_ttl),
                session.locks_held.to_string(),
                session.locks_awaited.to_string(),
                or_dash(Some(session.address.clone())),
                or_dash(age(session.connected_since, found.now)),
                or_dash(age(session.last_seen, found.now)),
                session.watches.to_string(),
            ],
            json!({
                "client": session.client,
                "lease": format!("{:x}", lease.id),
                "state": people::lease_state(lease.state),
                "granted_ms": lease.granted_ttl.as_millis() as u64,
                "remaining_ms": lease.remaining_ttl.as_millis() as u64,
                "keys": lease.keys,
                "locks_held": session.locks_held,
                "locks_awaited": session.locks_awaited,
                "watches": session.watches,
                "address": (!session.address.is_empty()).then_some(&session.address),
                "connected_since_unix_ms": people::unix_ms(session.connected_since),
                "last_seen_unix_ms": people::unix_ms(session.last_seen),
            }),
        );
    }
    Ok(listing)
}
