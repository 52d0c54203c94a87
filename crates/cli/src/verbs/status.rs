//! `tenure status`: how each endpoint sees itself and the cluster.

use std::cell::Cell;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tenure_client::{Client, Error, MemberStatus};

use crate::follow::Follow;
use crate::output::{Column, Listing, column, number, wide};
use crate::progress::size;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure status
  tenure status --watch --endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379";

/// Show the state of every endpoint
///
/// Fails if one of them cannot be reached, knows no leader, or has an error of its own.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Status {
    #[command(flatten)]
    follow: Follow,
}

const COLUMNS: &[Column] = &[
    column("ENDPOINT"),
    column("MEMBER"),
    column("ROLE"),
    number("TERM"),
    number("REVISION"),
    number("SIZE"),
    column("VERSION"),
    wide("INDEX"),
    wide("APPLIED"),
    wide("LEADER"),
    column("ERRORS"),
];

impl Status {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let healthy = Cell::new(true);
        self.follow
            .show(format, || async {
                let (listing, all_healthy) = listing(&client).await;
                healthy.set(all_healthy);
                Ok(listing)
            })
            .await?;
        Ok(if healthy.get() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn listing(client: &Client) -> (Listing, bool) {
    let mut tasks = Vec::new();
    for (endpoint, client) in client.each() {
        tasks.push((endpoint, tokio::spawn(async move { client.status().await })));
    }
    let (mut listing, mut healthy) = (Listing::new("endpoints", COLUMNS), true);
    for (endpoint, task) in tasks {
        let status = task.await.expect("asking for a status does not panic");
        healthy &= status.as_ref().is_ok_and(|status| status.leader != 0 && status.errors.is_empty());
        listing.row(cells(&endpoint, &status), json(&endpoint, &status));
    }
    (listing, healthy)
}

fn role(status: &MemberStatus) -> &'static str {
    match status {
        status if status.is_learner => "learner",
        status if status.is_leader() => "leader",
        status if status.leader == 0 => "no leader",
        _ => "follower",
    }
}

fn cells(endpoint: &str, status: &Result<MemberStatus, Error>) -> Vec<String> {
    match status {
        Ok(status) => vec![
            endpoint.to_owned(),
            format!("{:x}", status.header.member),
            role(status).to_owned(),
            status.header.term.to_string(),
            status.header.revision.to_string(),
            size(status.size_bytes.max(0) as u64),
            status.version.clone(),
            status.raft_index.to_string(),
            status.raft_applied_index.to_string(),
            format!("{:x}", status.leader),
            status.errors.join("; "),
        ],
        Err(error) => {
            let mut cells = vec!["-".to_owned(); COLUMNS.len()];
            cells[0] = endpoint.to_owned();
            cells[COLUMNS.len() - 1] = short(error);
            cells
        }
    }
}

fn json(endpoint: &str, status: &Result<MemberStatus, Error>) -> Value {
    match status {
        Ok(status) => json!({
            "endpoint": endpoint,
            "cluster": format!("{:x}", status.header.cluster),
            "member": format!("{:x}", status.header.member),
            "role": role(status),
            "leader": format!("{:x}", status.leader),
            "term": status.header.term,
            "revision": status.header.revision,
            "raft_index": status.raft_index,
            "raft_applied_index": status.raft_applied_index,
            "size_bytes": status.size_bytes,
            "size_in_use_bytes": status.size_in_use_bytes,
            "version": status.version,
            "errors": status.errors,
        }),
        Err(error) => json!({ "endpoint": endpoint, "role": "unreachable", "errors": [short(error)] }),
    }
}

/// The endpoint stands in the row already.
fn short(error: &Error) -> String {
    match error {
        Error::Unreachable { attempts } => attempts.iter().map(|attempt| attempt.cause.to_string()).collect(),
        other => other.to_string(),
    }
}
