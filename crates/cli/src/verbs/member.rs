//! `tenure member`: who belongs to the cluster.

use std::cell::Cell;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_client::{Client, Error, Member as Listed, Members};

use crate::follow::Follow;
use crate::output::{Column, Format, Listing, Record, column, note};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure member list
  tenure member remove n3
  tenure member transfer n2             n2 leads from now on
  tenure member leave                   the member at the endpoint leaves the cluster";

/// List, add, remove and promote members, and say who leads
///
/// Members are named by their name or their id. A new one is easiest added by itself, with `tenure serve --join`.
#[derive(Args)]
#[command(before_help = EXAMPLE, subcommand_required = true, arg_required_else_help = true)]
pub struct Member {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    Add(Add),
    Remove(Remove),
    Update(Update),
    Promote(Promote),
    Leave(Leave),
    Transfer(Transfer),
}

/// List all members
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member list --watch")]
struct List {
    #[command(flatten)]
    follow: Follow,
}

/// Make room for a member that has not started yet
///
/// It takes its place when it is started with --join. As a voter it counts at once, started or not.
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member add --learner 10.0.0.4:2380")]
struct Add {
    /// Where the other members will find it
    #[arg(value_name = "HOST:PORT", value_parser = peer_url)]
    peer: String,
    /// Without a vote, until it is promoted
    #[arg(long)]
    learner: bool,
}

/// Take a member out of the cluster, whether it runs or not
///
/// It takes a majority of the members to agree. A cluster that has lost it for good goes on as a new one: see `tenure snapshot restore`.
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member remove n3")]
struct Remove {
    #[arg(value_name = "NAME|ID")]
    member: String,
    /// Even if those who are left and can be reached are too few to go on
    #[arg(long)]
    force: bool,
}

/// Tell the other members where to find one
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member update n3 10.0.0.7:2380")]
struct Update {
    #[arg(value_name = "NAME|ID")]
    member: String,
    /// Where the other members will find it
    #[arg(value_name = "HOST:PORT", value_parser = peer_url)]
    peer: String,
}

/// Make a learner a voter
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member promote n4")]
struct Promote {
    #[arg(value_name = "NAME|ID")]
    member: String,
}

/// Take the member at the first endpoint out of the cluster; a leader hands over first
///
/// It stops, and its data directory is of no use any more.
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member leave --endpoints 10.0.0.3:2379")]
struct Leave {}

/// Have another member lead
#[derive(Args)]
#[command(
    before_help = "Example:\n  tenure member transfer n2\n  tenure member transfer                any other voter"
)]
struct Transfer {
    #[arg(value_name = "NAME|ID")]
    to: Option<String>,
}

impl Member {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        match self.action {
            Action::List(List { follow }) => {
                let is_told = Cell::new(false);
                follow.show(format, || list(&client, &is_told)).await?;
            }
            Action::Add(add) => add.run(&client, format).await?,
            Action::Remove(Remove { member, force }) => {
                let member = find(&client, &member).await?;
                let removed = client.remove_member(member.id, force).await;
                removed.map_err(|error| advise(error, if force { LAST_VOTE } else { TOO_FEW }))?;
                tell("removed", &member, format)?;
            }
            Action::Update(Update { member, peer }) => {
                let member = find(&client, &member).await?;
                client.update_member(member.id, vec![peer]).await?;
                tell("updated", &member, format)?;
            }
            Action::Promote(Promote { member }) => {
                let member = find(&client, &member).await?;
                client.promote_member(member.id).await?;
                tell("promoted", &member, format)?;
            }
            Action::Leave(Leave {}) => leave(&client, format).await?,
            Action::Transfer(Transfer { to }) => transfer(&client, to.as_deref(), format).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Add {
    async fn run(self, client: &Client, format: Format) -> anyhow::Result<()> {
        let Add { peer, learner } = self;
        let before = client.members().await?;
        let after = client.add_member(vec![peer.clone()], learner).await?;
        let is_new = |member: &&Listed| !before.members.iter().any(|known| known.id == member.id);
        let added = after.members.iter().find(is_new).ok_or_else(|| anyhow!("the new member is not listed"))?;
        let vote = if learner { "as a learner" } else { "as a voter" };
        let address = bare(&peer);
        let sentence = format!(
            "added {:x} {vote}; start it with tenure serve --peer-listen {address} --join {}",
            added.id,
            before.members.iter().flat_map(|member| &member.peer_addresses).next().map_or("HOST:PORT", |url| bare(url)),
        );
        Ok(Record { sentence, json: member_json(added, None) }.print(format)?)
    }
}

const COLUMNS: &[Column] =
    &[column("ID"), column("NAME"), column("ROLE"), column("PEER ADDRESS"), column("CLIENT ADDRESS")];

async fn list(client: &Client, is_told: &Cell<bool>) -> anyhow::Result<Listing> {
    let leader = client.status().await.map_or(0, |status| status.leader);
    let found = match leader {
        0 => last_known(client, is_told).await?,
        _ => match client.members().await {
            Err(Error::NoLeader { .. }) => last_known(client, is_told).await?,
            found => found?,
        },
    };
    let mut listing = Listing::new("members", COLUMNS).about("cluster", format!("{:x}", found.header.cluster));
    for member in &found.members {
        let addresses = |urls: &[String]| match urls {
            [] => "-".to_owned(),
            urls => urls.iter().map(|url| bare(url)).collect::<Vec<_>>().join(","),
        };
        let name = if member.name.is_empty() { "-" } else { &member.name };
        listing.row(
            vec![
                format!("{:x}", member.id),
                name.to_owned(),
                role(member, Some(leader)).to_owned(),
                addresses(&member.peer_addresses),
                addresses(&member.client_addresses),
            ],
            member_json(member, Some(leader)),
        );
    }
    Ok(listing)
}

/// Whoever looks for the reason why nobody leads wants to know who belongs to the cluster.
async fn last_known(client: &Client, is_told: &Cell<bool>) -> anyhow::Result<Members> {
    let known = client.known_members().await?;
    if !is_told.replace(true) {
        note(format_args!("nobody leads: these are the members as one of them knew them last"));
    }
    Ok(known)
}

const TOO_FEW: &str =
    "too few of those who stay can be reached; start one of them first, or say --force if it is to be so all the same";
const LAST_VOTE: &str = "nobody would be left who votes";
const TOO_FEW_TO_LEAVE: &str = "too few of those who stay can be reached; start one of them first, or take this one out with tenure member remove --force";

/// etcd's words for it do not say what to do.
fn advise(error: Error, advice: &str) -> anyhow::Error {
    match &error {
        Error::Refused { message, .. } if message.contains("not enough started members") => {
            anyhow!("{error}: {advice}")
        }
        _ => error.into(),
    }
}

fn role(member: &Listed, leader: Option<u64>) -> &'static str {
    match member {
        member if member.name.is_empty() => "not started",
        member if member.is_learner => "learner",
        member if leader == Some(member.id) => "leader",
        _ => "voter",
    }
}

fn member_json(member: &Listed, leader: Option<u64>) -> Value {
    let addresses = |urls: &[String]| urls.iter().map(|url| bare(url).to_owned()).collect::<Vec<_>>();
    json!({
        "id": format!("{:x}", member.id),
        "name": member.name,
        "role": role(member, leader),
        "is_learner": member.is_learner,
        "peer_addresses": addresses(&member.peer_addresses),
        "client_addresses": addresses(&member.client_addresses),
    })
}

async fn leave(client: &Client, format: Format) -> anyhow::Result<()> {
    // Only the first: whoever names several endpoints does not mean all of them.
    let Some((_, client)) = client.each().into_iter().next() else { bail!("no endpoint is given") };
    let id = client.status().await?.header.member;
    let members = client.members().await?.members;
    let Some(own) = members.into_iter().find(|member| member.id == id) else {
        bail!("the member at the endpoint is not listed");
    };
    client.remove_member(id, false).await.map_err(|error| advise(error, TOO_FEW_TO_LEAVE))?;
    tell("left", &own, format)
}

/// Only the leader can hand over, so it is asked at its own address.
async fn transfer(client: &Client, to: Option<&str>, format: Format) -> anyhow::Result<()> {
    let members = client.members().await?.members;
    let leader = client.status().await?.leader;
    let target = match to {
        Some(text) => pick(&members, text)?,
        None => match members.iter().find(|member| member.id != leader && !member.is_learner) {
            Some(other) => other.clone(),
            None => bail!("there is no other voter"),
        },
    };
    let addresses = members.iter().find(|member| member.id == leader).map(|member| member.client_addresses.join(","));
    let at_leader = match addresses.filter(|addresses| !addresses.is_empty()) {
        Some(addresses) => client.at(&addresses)?,
        None => bail!("nobody knows where the leader, {leader:x}, is reached"),
    };
    at_leader.move_leader(target.id).await?;
    tell("leads", &target, format)
}

async fn find(client: &Client, text: &str) -> anyhow::Result<Listed> {
    pick(&client.members().await?.members, text)
}

/// By name or id. A name that reads like an id is a name.
fn pick(members: &[Listed], text: &str) -> anyhow::Result<Listed> {
    let named: Vec<_> = members.iter().filter(|member| member.name == text).collect();
    let id = u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    match (&named[..], members.iter().find(|member| Some(member.id) == id)) {
        ([one], _) => Ok((*one).clone()),
        ([], Some(one)) => Ok(one.clone()),
        ([], None) => bail!("there is no member {text}; tenure member list shows all"),
        _ => bail!("several members are called {text}: name one by its id, as tenure member list shows it"),
    }
}

fn tell(what: &str, member: &Listed, format: Format) -> anyhow::Result<()> {
    let name = if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() };
    let json = json!({ "id": format!("{:x}", member.id), "name": member.name, "result": what });
    Ok(Record { sentence: format!("{name} {what}"), json }.print(format)?)
}

/// As it is kept: with its scheme.
fn peer_url(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("http://").unwrap_or(text);
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(format!("http://{address}")),
        _ => Err("a member is found at HOST:PORT, as in 10.0.0.4:2380".to_owned()),
    }
}

fn bare(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str) -> Listed {
        let name = name.to_owned();
        Listed { id, name, peer_addresses: Vec::new(), client_addresses: Vec::new(), is_learner: false }
    }

    #[test]
    fn a_member_is_named_by_name_or_id() {
        let members =
            [member(0xa1, "n1"), member(0xb2, "n2"), member(0xc3, "a1"), member(0xd4, "x"), member(0xe5, "x")];
        assert_eq!(pick(&members, "n2").unwrap().id, 0xb2);
        assert_eq!(pick(&members, "0xa1").unwrap().id, 0xa1);
        assert_eq!(pick(&members, "a1").unwrap().id, 0xc3, "a name before an id");
        assert!(pick(&members, "x").unwrap_err().to_string().contains("several"));
        assert!(pick(&members, "n9").unwrap_err().to_string().contains("no member n9"));
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(peer_url("10.0.0.4:2380").unwrap(), "http://10.0.0.4:2380");
        assert_eq!(peer_url("http://a:1").unwrap(), "http://a:1");
        for bad in ["a", ":1", "a:port", ""] {
            assert!(peer_url(bad).is_err(), "{bad}");
        }
    }
}
