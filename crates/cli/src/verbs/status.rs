//! `tenure status`: how each member sees itself and the cluster.

use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tenure_client::{Client, Error, FeatureLevel, Member, MemberStatus};

use crate::follow::Follow;
use crate::output::{Column, Listing, column, number, wide};
use crate::progress::size;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure status
  tenure status --watch --endpoints 10.0.0.1:2379
  tenure status -o wide                 with versions, log indexes and ids";

/// Show the state of every member
///
/// Those that the endpoints do not name are found through the list of members. All are asked at the same time, and a
/// member that does not answer within a second (--timeout) is unreachable. Fails if one of them cannot be reached,
/// knows no leader, or has an alarm.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Status {
    #[command(flatten)]
    follow: Follow,
}

const COLUMNS: &[Column] = &[
    column("NAME"),
    column("ENDPOINT"),
    column("ROLE"),
    number("TERM"),
    number("REVISION"),
    number("LAG"),
    number("SIZE"),
    number("LEVEL"),
    wide("MEMBER"),
    wide("INDEX"),
    wide("APPLIED"),
    wide("LEADER"),
    wide("VERSION"),
    wide("ETCD API"),
    column("HEALTH"),
];

/// How long a member may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

impl Status {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session_within(ANSWER_WITHIN).await?;
        let within = global.given_timeout()?.unwrap_or(ANSWER_WITHIN);
        let healthy = Cell::new(true);
        self.follow
            .show(format, || async {
                let (listing, all_healthy) = listing(&client, within).await;
                healthy.set(all_healthy);
                Ok(listing)
            })
            .await?;
        Ok(if healthy.get() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn listing(client: &Client, within: Duration) -> (Listing, bool) {
    let mut found = ask(client.each(), within).await;
    // Of a member that has just answered: another one may be asleep.
    let members = match found.iter().find(|found| found.status.is_ok()) {
        Some(found) => found.client.known_members().await.map_or(Vec::new(), |known| known.members),
        None => Vec::new(),
    };
    found.extend(ask(others(client, &members, &found), within).await);
    let newest = found.iter().filter_map(|found| Some(found.status.as_ref().ok()?.raft_index)).max().unwrap_or(0);
    let row = |found| Row { within, ..Row::new(found, &members, newest) };
    let mut rows: Vec<Row> = found.into_iter().map(row).collect();
    let is_there = |id: u64| rows.iter().any(|row| row.member == Some(id));
    let absent: Vec<Row> = members.iter().filter(|member| !is_there(member.id)).map(Row::absent).collect();
    rows.extend(absent);
    rows.sort_by(|a, b| (a.name.is_empty(), &a.name, &a.endpoint).cmp(&(b.name.is_empty(), &b.name, &b.endpoint)));
    let mut listing = Listing::new("endpoints", COLUMNS);
    for row in &rows {
        listing.row(row.cells(), row.json());
    }
    (listing, rows.iter().all(|row| row.health == HEALTHY))
}

const HEALTHY: &str = "healthy";

struct Found {
    endpoint: String,
    client: Client,
    status: Result<MemberStatus, Error>,
    /// `None` for a member that does not say it, as etcd's do not.
    level: Option<FeatureLevel>,
}

/// Asks all at the same time.
async fn ask(clients: Vec<(String, Client)>, within: Duration) -> Vec<Found> {
    let ask = |(endpoint, client): (String, Client)| {
        tokio::spawn(async move {
            let level = tokio::time::timeout(within, client.level());
            let (status, level) = tokio::join!(client.status(), level);
            Found { endpoint, client, status, level: level.ok().and_then(Result::ok) }
        })
    };
    let tasks: Vec<_> = clients.into_iter().map(ask).collect();
    let mut found = Vec::new();
    for task in tasks {
        found.push(task.await.expect("asking for a status does not panic"));
    }
    found
}

/// The members that none of the endpoints is, where the list of members says that they are.
fn others(client: &Client, members: &[Member], found: &[Found]) -> Vec<(String, Client)> {
    let is_asked =
        |id: u64| found.iter().any(|found| found.status.as_ref().is_ok_and(|status| status.header.member == id));
    let mut others = Vec::new();
    for member in members.iter().filter(|member| !is_asked(member.id)) {
        // A member that has not started has no address yet.
        let Some(address) = address_of(member) else { continue };
        if let Ok(client) = client.at(&address)
            && !found.iter().any(|found| found.endpoint == address)
        {
            others.push((address, client));
        }
    }
    others
}

fn address_of(member: &Member) -> Option<String> {
    let url = member.client_addresses.first()?;
    Some(url.split_once("://").map_or(url.as_str(), |(_, rest)| rest).to_owned())
}

/// What is said of one member.
struct Row {
    name: String,
    endpoint: String,
    /// None = it cannot be told which one answers there.
    member: Option<u64>,
    health: String,
    /// Entries of the log that it has not applied, of all that are known.
    lag: u64,
    status: Option<MemberStatus>,
    level: Option<FeatureLevel>,
    /// How long it had to answer.
    within: Duration,
}

impl Row {
    fn new(Found { endpoint, status, level, .. }: Found, members: &[Member], newest: u64) -> Row {
        let is_listed_at = |member: &&Member| address_of(member).is_some_and(|address| address == endpoint);
        let listed = match &status {
            Ok(status) => members.iter().find(|member| member.id == status.header.member),
            Err(_) => members.iter().find(is_listed_at),
        };
        let health = match &status {
            Ok(status) if status.leader == 0 => "no leader".to_owned(),
            Ok(status) if status.errors.is_empty() => HEALTHY.to_owned(),
            Ok(status) => status.errors.iter().map(|error| alarm_text(error, members)).collect::<Vec<_>>().join("; "),
            Err(error) => short(error),
        };
        let status = status.ok();
        Row {
            name: listed.map_or(String::new(), |member| member.name.clone()),
            member: listed.map(|member| member.id),
            lag: status.as_ref().map_or(0, |status| newest.saturating_sub(status.raft_applied_index)),
            endpoint,
            health,
            status,
            level,
            within: ANSWER_WITHIN,
        }
    }

    fn absent(member: &Member) -> Row {
        let expected =
            member.peer_addresses.first().map_or("", |url| url.split_once("://").map_or(url, |(_, rest)| rest));
        Row {
            name: member.name.clone(),
            endpoint: address_of(member).unwrap_or_default(),
            member: Some(member.id),
            health: format!("has not started, expected at {expected}"),
            lag: 0,
            status: None,
            level: None,
            within: ANSWER_WITHIN,
        }
    }

    fn cells(&self) -> Vec<String> {
        let member = self.member.map_or(String::new(), |member| format!("{member:x}"));
        let mut cells = vec![self.name.clone(), self.endpoint.clone()];
        match &self.status {
            Some(status) => cells.extend([
                role(status).to_owned(),
                status.header.term.to_string(),
                status.header.revision.to_string(),
                self.lag.to_string(),
                size(status.size_bytes.max(0) as u64),
                self.level.as_ref().map_or(String::new(), level_text),
                format!("{:x}", status.header.member),
                status.raft_index.to_string(),
                status.raft_applied_index.to_string(),
                format!("{:x}", status.leader),
                self.level.as_ref().map_or(String::new(), |level| level.release.clone()),
                status.version.clone(),
            ]),
            None => {
                cells.extend(std::iter::repeat_n(String::new(), 6));
                cells.push(member);
                cells.extend(std::iter::repeat_n(String::new(), 5));
            }
        }
        cells.push(self.health.clone());
        cells.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }).collect()
    }

    fn json(&self) -> Value {
        let (name, endpoint, health) = (&self.name, &self.endpoint, &self.health);
        let Some(status) = &self.status else {
            return json!({
                "name": name,
                "endpoint": endpoint,
                "role": "unreachable",
                "timeout_ms": self.within.as_millis() as u64,
                "health": health,
                "errors": [health],
            });
        };
        json!({
            "name": name,
            "endpoint": endpoint,
            "cluster": format!("{:x}", status.header.cluster),
            "member": format!("{:x}", status.header.member),
            "role": role(status),
            "leader": format!("{:x}", status.leader),
            "term": status.header.term,
            "revision": status.header.revision,
            "lag": self.lag,
            "raft_index": status.raft_index,
            "raft_applied_index": status.raft_applied_index,
            "size_bytes": status.size_bytes,
            "size_in_use_bytes": status.size_in_use_bytes,
            "version": status.version,
            "tenure_version": self.level.as_ref().map(|level| &level.release),
            "level": self.level.as_ref().map(|level| level.level),
            "highest_level": self.level.as_ref().map(|level| level.highest),
            "health": health,
            "alarms": status.errors.iter().filter_map(|error| Some(alarm_of(error)?.1)).collect::<Vec<_>>(),
            "errors": status.errors,
        })
    }
}

/// The cluster's level, and the one that the member supports if that is later.
fn level_text(level: &FeatureLevel) -> String {
    match level.highest > level.level {
        true => format!("{}/{}", level.level, level.highest),
        false => level.level.to_string(),
    }
}

fn role(status: &MemberStatus) -> &'static str {
    match status {
        status if status.is_learner => "learner",
        status if status.is_leader() => "leader",
        status if status.leader == 0 => "no leader",
        _ => "follower",
    }
}

/// etcd's form of an alarm names the member by a number that nothing else shows.
fn alarm_text(error: &str, members: &[Member]) -> String {
    let Some((id, kind)) = alarm_of(error) else { return error.to_owned() };
    let named = members.iter().find(|member| member.id == id && !member.name.is_empty());
    let by = named.map_or_else(|| format!("{id:x}"), |member| member.name.clone());
    format!("alarm {kind}, raised by {by}")
}

/// The member and the kind of an alarm, as etcd writes them among the errors of a status.
fn alarm_of(error: &str) -> Option<(u64, &str)> {
    let (id, kind) = error.trim().strip_prefix("memberID:")?.split_once(" alarm:")?;
    Some((id.parse().ok()?, kind))
}

/// The endpoint stands in the row already.
fn short(error: &Error) -> String {
    match error {
        Error::Unreachable { attempts } => attempts.iter().map(|attempt| attempt.cause.to_string()).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_name_the_member() {
        let (peer_addresses, client_addresses) = (Vec::new(), Vec::new());
        let members = [Member { id: 7, name: "n2".to_owned(), peer_addresses, client_addresses, is_learner: false }];
        assert_eq!(alarm_text("memberID:7 alarm:NOSPACE ", &members), "alarm NOSPACE, raised by n2");
        assert_eq!(alarm_text("memberID:255 alarm:CORRUPT ", &members), "alarm CORRUPT, raised by ff");
        assert_eq!(alarm_text("etcdserver: no leader", &members), "etcdserver: no leader");
    }
}
