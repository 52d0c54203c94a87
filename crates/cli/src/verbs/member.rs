//! `tenure member`: who belongs to the cluster.

mod level;
mod reseed;

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_client::{Client, Error, Member as Listed, Members};

use self::level::Level;
use self::reseed::Reseed;
use super::serving::impossible_port;
use crate::follow::Follow;
use crate::output::{Column, Format, Listing, Record, column, note};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure member list
  tenure member remove n3
  tenure member transfer n2             n2 leads from now on
  tenure member leave                   the member at the endpoint leaves the cluster
  tenure member level                   what all members have agreed that commands mean
  tenure member reseed n3               n3 takes the leader's state";

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
    Level(Level),
    Reseed(Reseed),
}

/// List all members
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member list --watch")]
struct List {
    #[command(flatten)]
    follow: Follow,
}

/// Make room for a member that has not started yet, and print the command that starts it
///
/// It is added as a learner, which does not count for the quorum, and asks for its vote itself when it has started
/// and caught up. So the cluster keeps its quorum if the new member never comes.
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member add 10.0.0.4:2380")]
struct Add {
    /// Where the other members will find it
    #[arg(value_name = "HOST:PORT", value_parser = peer_url)]
    peer: String,
    /// Name of the new member [default: n with the next free number]
    #[arg(long)]
    name: Option<String>,
    /// It stays a learner when it has caught up, until `tenure member promote`
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
    /// Remove it even if too few of the others can be reached: the cluster may lose its quorum
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
                let members = client.members().await?.members;
                let member = pick(&members, &member)?;
                refuse_last_voter(&members, member.id)?;
                let removed = client.remove_member(member.id, force).await;
                removed.map_err(|error| advise(error, if force { LAST_VOTER } else { TOO_FEW }))?;
                tell("removed", &member, format)?;
            }
            Action::Update(Update { member, peer }) => {
                let member = find(&client, &member).await?;
                client.update_member(member.id, vec![peer]).await?;
                tell("updated", &member, format)?;
            }
            Action::Promote(Promote { member }) => {
                let member = find(&client, &member).await?;
                if !member.is_learner {
                    bail!("{} is a voter already", name_of(&member));
                }
                client.promote_member(member.id).await?;
                tell("promoted", &member, format)?;
            }
            Action::Leave(Leave {}) => leave(&client, format).await?,
            Action::Level(level) => level.run(&client, format).await?,
            Action::Reseed(reseed) => reseed.run(&client, format).await?,
            Action::Transfer(Transfer { to }) => transfer(&client, to.as_deref(), format).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Add {
    async fn run(self, client: &Client, format: Format) -> anyhow::Result<()> {
        let Add { peer, name, learner } = self;
        let before = client.members().await?.members;
        let name = name.unwrap_or_else(|| free_name(&before));
        if before.iter().any(|member| member.name == name) {
            bail!("a member named {name} exists already: choose another --name");
        }
        let after = client.add_member(vec![peer.clone()], true).await?;
        let is_new = |member: &&Listed| !before.iter().any(|known| known.id == member.id);
        let added = after.members.iter().find(is_new).ok_or_else(|| anyhow!("the new member is not listed"))?;
        let command = start_command(&name, bare(&peer), &before, learner);
        let becomes = if learner { "" } else { "; it becomes a voter when it has started and caught up" };
        let sentence = format!("added {:x} as a learner{becomes}. Start it with\n  {command}", added.id);
        let mut json = member_json(added, None);
        json["command"] = command.into();
        Ok(Record { sentence, json }.print(format)?)
    }
}

fn free_name(members: &[Listed]) -> String {
    let is_free = |name: &String| !members.iter().any(|member| member.name == *name);
    let first = members.len() + 1;
    (first..).map(|number| format!("n{number}")).find(is_free).expect("numbers do not end")
}

/// The command that starts a new member. It works on a machine where other members run, too: it shares neither a
/// port nor a directory with them.
fn start_command(name: &str, peer: &str, members: &[Listed], learner: bool) -> String {
    let (host, port) = peer.rsplit_once(':').unwrap_or((peer, "2380"));
    let port: u16 = port.parse().unwrap_or(2380);
    let is_taken = |address: &str| {
        let listed = |member: &Listed| {
            let mut urls = member.peer_addresses.iter().chain(&member.client_addresses);
            urls.any(|url| bare(url) == address)
        };
        address == peer || members.iter().any(listed)
    };
    let client_ports = std::iter::once(port.saturating_sub(1)).chain(port.saturating_add(1)..u16::MAX);
    let addresses = client_ports.filter(|port| *port != 0).map(|port| format!("{host}:{port}"));
    let listen = addresses.filter(|address| !is_taken(address)).find(|address| is_bindable(address));
    let listen = listen.unwrap_or_else(|| format!("{host}:2379"));
    let join =
        members.iter().flat_map(|member| &member.peer_addresses).map(|url| bare(url)).next().unwrap_or("HOST:PORT");
    let mut command = format!(
        "tenure serve --name {name} --data-dir tenure-data-{name} --listen {listen} --peer-listen {peer} --join {join}"
    );
    if learner {
        command.push_str(" --learner");
    }
    let is_local = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !is_local {
        command.push_str(" --insecure");
    }
    command
}

/// Whether this machine could listen there. Addresses of other machines cannot be tried, and count.
fn is_bindable(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => TcpListener::bind(address).is_ok(),
        _ => true,
    }
}

const COLUMNS: &[Column] =
    &[column("ID"), column("NAME"), column("ROLE"), column("PEER ADDRESS"), column("CLIENT ADDRESS")];

async fn list(client: &Client, is_told: &Cell<bool>) -> anyhow::Result<Listing> {
    let known_leader = client.status().await.map_or(0, |status| status.leader);
    let confirmed = match known_leader {
        0 => None,
        _ => match client.members().await {
            // The member that answered has not noticed yet that it cannot lead any more.
            Err(Error::NoLeader { .. } | Error::Timeout { .. } | Error::Unreachable { .. } | Error::Lost { .. }) => {
                None
            }
            found => Some(found?),
        },
    };
    let leader = confirmed.is_some().then_some(known_leader);
    let mut found = match confirmed {
        Some(found) => found,
        None => last_known(client, is_told).await?,
    };
    found.members.sort_by(|a, b| (a.name.is_empty(), &a.name, a.id).cmp(&(b.name.is_empty(), &b.name, b.id)));
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
                role(member, leader).to_owned(),
                addresses(&member.peer_addresses),
                addresses(&member.client_addresses),
            ],
            member_json(member, leader),
        );
    }
    Ok(listing)
}

/// The members as one of them knows them: without a leader that is all there is, and it helps to find out why.
async fn last_known(client: &Client, is_told: &Cell<bool>) -> anyhow::Result<Members> {
    let known = client.known_members().await?;
    if !is_told.replace(true) {
        note("the cluster has no leader: these are the members as one of them knew them last");
    }
    Ok(known)
}

const TOO_FEW: &str = "too few of the other members can be reached: the cluster would lose its quorum. Start one of them first. Use --force to do it anyway.";
const LAST_VOTER: &str = "the cluster would have no voter left";
const TOO_FEW_TO_LEAVE: &str = "too few of the other members can be reached: the cluster would lose its quorum. Start one of them first. Use tenure member remove --force to do it anyway.";

fn refuse_last_voter(members: &[Listed], id: u64) -> anyhow::Result<()> {
    let is_learner = members.iter().any(|member| member.id == id && member.is_learner);
    match is_learner || members.iter().any(|member| member.id != id && !member.is_learner) {
        true => Ok(()),
        false => bail!(LAST_VOTER),
    }
}

/// Replaces etcd's words for a change that would lose the quorum by what to do.
fn advise(error: Error, advice: &'static str) -> anyhow::Error {
    match &error {
        Error::Refused { message, .. }
            if message.contains("not enough started members") || message.contains("unhealthy cluster") =>
        {
            anyhow!(advice)
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
    // Only the first: several endpoints do not mean that all of them leave.
    let Some((_, client)) = client.each().into_iter().next() else { bail!("no endpoint is given") };
    let id = client.status().await?.header.member;
    let members = client.members().await?.members;
    refuse_last_voter(&members, id)?;
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
        None => bail!("the leader, {leader:x}, has no known client address"),
    };
    at_leader.move_leader(target.id).await.map_err(|error| match &error {
        Error::Timeout { .. } => {
            let name = name_of(&target);
            anyhow!("{name} has not taken over: it may not run, or be far behind; `tenure status` shows who leads")
        }
        Error::Refused { message, .. } if message.contains("bad leader transferee") => {
            anyhow!("{} cannot take over: it does not run, is far behind, or has no vote", name_of(&target))
        }
        _ => error.into(),
    })?;
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
    let json = json!({ "id": format!("{:x}", member.id), "name": member.name, "result": what });
    Ok(Record { sentence: format!("{} {what}", name_of(member)), json }.print(format)?)
}

/// The name of a member, or its id before it has one.
fn name_of(member: &Listed) -> String {
    if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() }
}

/// The URL under which the cluster keeps an address.
fn peer_url(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("http://").unwrap_or(text);
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(format!("http://{address}")),
        _ => {
            Err(impossible_port(address).unwrap_or_else(|| "expected HOST:PORT, for example 10.0.0.4:2380".to_owned()))
        }
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
    fn the_command_for_a_new_member_shares_nothing_with_the_others() {
        let url = |text: &str| vec![format!("http://{text}")];
        let first = Listed {
            peer_addresses: url("10.0.0.1:2380"),
            client_addresses: url("10.0.0.1:2379"),
            ..member(0xa1, "n2")
        };
        assert_eq!(free_name(std::slice::from_ref(&first)), "n3");
        let command = |peer: &str, learner| start_command("n3", peer, std::slice::from_ref(&first), learner);
        assert_eq!(
            command("10.0.0.2:2380", false),
            "tenure serve --name n3 --data-dir tenure-data-n3 --listen 10.0.0.2:2379 --peer-listen 10.0.0.2:2380 --join 10.0.0.1:2380 --insecure"
        );
        assert!(command("10.0.0.1:2381", true).contains("--listen 10.0.0.1:2382 "), "2380 is taken");
        assert!(command("127.0.0.1:2381", true).ends_with("--join 10.0.0.1:2380 --learner"));
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
