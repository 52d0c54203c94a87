//! Three members, each on a machine of its own, clients on two others, and an operator whom no fault reaches.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tempfile::TempDir;
use tenure_client::{Client, Get, Keys, MemberStatus};

use crate::history::{Aftermath, Revision};
use crate::member::Member;
use crate::net::{Network, PREFIX, Rule, within};
use crate::support::{PATIENCE, state};
use crate::workload::watches;

pub const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// Where clients are.
pub const SIDES: [&str; 2] = ["east", "west"];
const OPERATOR: &str = "operator";

pub struct Cluster {
    pub members: Vec<Member>,
    pub network: Network,
    _directory: TempDir,
}

impl Cluster {
    /// Started, with a leader.
    pub fn start() -> Cluster {
        let mut cluster = Cluster::prepare();
        cluster.members.iter_mut().for_each(Member::start);
        cluster.until_ready();
        cluster
    }

    /// Nobody runs yet.
    pub fn prepare() -> Cluster {
        let mut network = Network::new();
        let hosts = MEMBERS.map(|name| network.attach(name));
        for place in SIDES.into_iter().chain([OPERATOR]) {
            network.attach(place);
        }
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let entries: Vec<String> =
            MEMBERS.iter().zip(&hosts).map(|(name, host)| format!("{name}={host}:2380")).collect();
        let member = |(name, host): (&&str, &String)| {
            Member::new(name, host, network.namespace(name), directory.path().join(name), &entries.join(","))
        };
        let members = MEMBERS.iter().zip(&hosts).map(member).collect();
        Cluster { members, network, _directory: directory }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|member| member.address.clone()).collect()
    }

    /// Runs where the operator is.
    pub fn operate<Output: Send + 'static>(&self, work: impl AsyncFnOnce() -> Output + Send + 'static) -> Output {
        let bounded = async || tokio::time::timeout(PATIENCE, work()).await.expect("it comes to an end");
        let done = within(&self.network.namespace(OPERATOR), bounded).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    pub fn until_ready(&self) {
        let addresses = self.addresses();
        self.operate(async move || {
            for address in addresses {
                while !is_ready(&address) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }

    /// The leader's name and those of the others, once somebody says that it leads.
    pub fn roles(&self) -> (&'static str, [&'static str; 2]) {
        let leader = self.until_one_of(&MEMBERS, MemberStatus::is_leader);
        (MEMBERS[leader], [MEMBERS[(leader + 1) % 3], MEMBERS[(leader + 2) % 3]])
    }

    /// Waits until one of these leads.
    pub fn until_led_by(&self, members: &[&str]) {
        self.until_one_of(members, MemberStatus::is_leader);
    }

    /// Waits until this one knows of no leader.
    pub fn until_leaderless(&self, member: &str) {
        self.until_one_of(&[member], |status| status.leader == 0);
    }

    /// Asks these members for their status until one says the right thing, and gives its place in the list.
    fn until_one_of(&self, members: &[&str], is_right: fn(&MemberStatus) -> bool) -> usize {
        let asked = self.members.iter().filter(|member| members.contains(&member.name.as_str()));
        let addresses: Vec<String> = asked.map(|member| member.address.clone()).collect();
        self.operate(async move || {
            loop {
                for (place, address) in addresses.iter().enumerate() {
                    let client = at(address).await;
                    let status = tokio::time::timeout(Duration::from_secs(1), client.status()).await;
                    if status.is_ok_and(|status| status.is_ok_and(|status| is_right(&status))) {
                        return place;
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }

    pub fn member(&mut self, name: &str) -> &mut Member {
        self.members.iter_mut().find(|member| member.name == name).expect("a member's name")
    }

    pub fn set(&self, rules: &[Rule]) {
        self.network.set(rules);
    }

    pub fn heal(&self) {
        self.network.set(&[]);
    }

    /// Waits until every member takes a write again, and gives the revision of the last one.
    pub fn until_writable(&self) -> Revision {
        let addresses = self.addresses();
        self.operate(async move || {
            let mut revision = 0;
            for address in addresses {
                let client = at(&address).await;
                revision = loop {
                    match client.put(("healed", address.clone())).await {
                        Ok(written) => break written.header.revision,
                        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                };
            }
            revision
        })
    }

    /// What every member has to say of all that happened. Nobody writes any more.
    pub fn aftermath(&self) -> Aftermath {
        let members: Vec<(String, String)> =
            self.members.iter().map(|member| (member.name.clone(), member.address.clone())).collect();
        self.operate(async move || {
            let mut aftermath = Aftermath::default();
            let mut revision = 0;
            for (name, address) in &members {
                let client = at(address).await;
                let found = client.get(Get::keys(Keys::all())).await.unwrap();
                revision = found.header.revision;
                let pairs = found.pairs.into_iter();
                let keys = pairs.map(|pair| (String::from_utf8_lossy(&pair.key).into_owned(), pair.mod_revision));
                aftermath.keys.insert(name.clone(), keys.collect::<BTreeMap<_, _>>());
                aftermath.changes.insert(name.clone(), watches::everything(address, revision).await);
            }
            for (name, address) in &members {
                let client = at(address).await;
                aftermath.hashes.insert(name.clone(), client.hash(revision).await.unwrap().hash);
            }
            let (names, addresses): (Vec<String>, Vec<String>) = members.into_iter().unzip();
            aftermath.states = names.into_iter().zip(state::of_all(&addresses).await).collect();
            aftermath
        })
    }
}

/// A client that asks this member and no other.
async fn at(address: &str) -> Client {
    Client::connect(address).await.unwrap().each().remove(0).1
}

fn is_ready(address: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: member\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    ask().is_ok_and(|response| response.starts_with("HTTP/1.1 200"))
}
