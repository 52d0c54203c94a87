//! `tenure status`: how each member sees itself and the cluster.

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
  tenure status --watch --endpoints 10.0.0.1:2379";

/// Show the state of every member
///
/// Those that the endpoints do not name are found through the list of members. Fails if one of them cannot be reached, knows no leader, or has an error of its own.
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
    let (mut listing, mut healthy) = (Listing::new("endpoints", COLUMNS), true);
    let mut found = ask(client.each()).await;
    let others = others(client, &found).await;
    found.extend(ask(others).await);
    for (endpoint, status) in found {
        healthy &= status.as_ref().is_ok_and(|status| status.leader != 0 && status.errors.is_empty());
        listing.row(cells(&endpoint, &status), json(&endpoint, &status));
    }
    (listing, healthy)
}

type Found = (String, Result<MemberStatus, Error>);

async fn ask(clients: Vec<(String, Client)>) -> Vec<Found> {
    let ask = |(endpoint, client): (String, Client)| (endpoint, tokio::spawn(async move { client.status().await }));
    let tasks: Vec<_> = clients.into_iter().map(ask).collect();
    let mut found = Vec::new();
    for (endpoint, task) in tasks {
        found.push((endpoint, task.await.expect("asking for a status does not panic")));
    }
    found
}

/// The members that none of the endpoints is, where the list of members says that they are.
async fn others(client: &Client, found: &[Found]) -> Vec<(String, Client)> {
    if found.iter().all(|(_, status)| status.is_err()) {
        return Vec::new();
    }
    let Ok(members) = client.known_members().await else { return Vec::new() };
    let is_asked =
        |id: u64| found.iter().any(|(_, status)| status.as_ref().is_ok_and(|status| status.header.member == id));
    let mut others = Vec::new();
    for member in members.members.into_iter().filter(|member| !is_asked(member.id)) {
        // Whoever has not started has no address yet.
        let Some(url) = member.client_addresses.first() else { continue };
        let address = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest).to_owned();
        if let Ok(client) = client.at(&address)
            && !found.iter().any(|(endpoint, _)| *endpoint == address)
        {
            others.push((address, client));
        }
    }
    others
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
