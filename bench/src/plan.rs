//! What to run, against whom, and for how long: always bounded.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Everything that a run needs to know. Start from the default and fill in servers and workloads.
#[derive(Debug, Clone)]
pub struct Plan {
    pub workloads: Vec<Workload>,
    pub servers: Vec<Server>,
    /// The server that the others are compared with, by name.
    pub baseline: Option<String>,
    pub clients: usize,
    pub connections: usize,
    /// Threads of the load client, each with a runtime and a share of the connections.
    pub threads: usize,
    pub limit: Limit,
    pub warm_up: Duration,
    pub rounds: usize,
    pub value_bytes: usize,
    /// Size of the key space for put and get; number of keys for fill and range.
    pub keys: u64,
    pub serializable: bool,
    /// How many puts the watch workload's writer may be ahead of the slowest watcher; how many cycles of
    /// lock and unlock a session has in flight.
    pub depth: usize,
    /// Leases that renewals and expiry hold at once.
    pub leases: u64,
    /// Their time to live, in whole seconds as etcd's API has it.
    pub ttl: Duration,
    /// How many of them have a key when they expire; None = all.
    pub leased_keys: Option<u64>,
    /// Puts in a second beside the expiry.
    pub rate: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            workloads: Vec::new(),
            servers: Vec::new(),
            baseline: None,
            clients: 64,
            connections: 8,
            threads: 2,
            limit: Limit::Time(Duration::from_secs(5)),
            warm_up: Duration::from_secs(1),
            rounds: 1,
            value_bytes: 256,
            keys: 10_000,
            serializable: false,
            depth: 16,
            leases: 100_000,
            ttl: Duration::from_secs(30),
            leased_keys: None,
            rate: 2_000,
        }
    }
}

impl Plan {
    pub fn validate(&self) -> anyhow::Result<()> {
        ensure!(!self.workloads.is_empty(), "no workload is named");
        ensure!(!self.servers.is_empty(), "no server is named");
        ensure!(
            self.clients > 0 && self.connections > 0 && self.threads > 0,
            "clients, connections and threads start at 1"
        );
        ensure!(self.rounds > 0, "there is at least one round");
        ensure!(self.keys > 0 && self.depth > 0, "keys and depth start at 1");
        ensure!(self.leases > 0 && self.rate > 0, "leases and rate start at 1");
        ensure!(self.leased_keys.is_none_or(|keys| keys <= self.leases), "there are more leased keys than leases");
        ensure!(self.ttl.as_secs() > 0 && self.ttl.subsec_nanos() == 0, "a TTL is a number of whole seconds");
        for (index, server) in self.servers.iter().enumerate() {
            ensure!(!server.endpoints.is_empty(), "{}: no endpoint", server.name);
            let twice = self.servers[..index].iter().any(|other| other.name == server.name);
            ensure!(!twice, "two servers are called {}", server.name);
            for &pid in &server.pids {
                ensure!(crate::process::usage(pid).is_some(), "{}: there is no process {pid}", server.name);
            }
        }
        if let Some(name) = &self.baseline {
            ensure!(self.servers.iter().any(|server| server.name == *name), "no server is called {name}");
        }
        Ok(())
    }
}

/// What ends a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Time(Duration),
    Operations(u64),
}

/// A server to put under load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub name: String,
    pub endpoints: Vec<String>,
    /// Its processes on this machine, if their CPU time and memory are to be reported.
    pub pids: Vec<u32>,
}

/// Reads `NAME=ENDPOINT[,ENDPOINT…][@PID[,PID…]]`.
impl FromStr for Server {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Server> {
        let (name, rest) = text.split_once('=').with_context(|| format!("{text}: expected NAME=ENDPOINT,…[@PID,…]"))?;
        let (endpoints, pids) = rest.rsplit_once('@').unwrap_or((rest, ""));
        let parse = |pid: &str| pid.parse().with_context(|| format!("{pid}: not a process id"));
        let pids: Vec<u32> = match rest.contains('@') {
            true => pids.split(',').map(parse).collect::<anyhow::Result<_>>()?,
            false => Vec::new(),
        };
        if name.is_empty() || endpoints.is_empty() {
            bail!("{text}: expected NAME=ENDPOINT,…[@PID,…]");
        }
        Ok(Server { name: name.to_owned(), endpoints: endpoints.split(',').map(str::to_owned).collect(), pids })
    }
}

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Put,
    Get,
    Lock,
    Native,
    Contend,
    Session,
    Lease,
    KeepAlive,
    Renewals,
    Expiry,
    Watch,
    Waiters,
    Range,
    Fill,
    Phases,
}

impl Workload {
    pub const ALL: [Workload; 15] = [
        Workload::Put,
        Workload::Get,
        Workload::Lock,
        Workload::Native,
        Workload::Contend,
        Workload::Session,
        Workload::Lease,
        Workload::KeepAlive,
        Workload::Renewals,
        Workload::Expiry,
        Workload::Watch,
        Workload::Waiters,
        Workload::Range,
        Workload::Fill,
        Workload::Phases,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Workload::Put => "put",
            Workload::Get => "get",
            Workload::Lock => "lock",
            Workload::Native => "native",
            Workload::Contend => "contend",
            Workload::Session => "session",
            Workload::Lease => "lease",
            Workload::KeepAlive => "keepalive",
            Workload::Renewals => "renewals",
            Workload::Expiry => "expiry",
            Workload::Watch => "watch",
            Workload::Waiters => "waiters",
            Workload::Range => "range",
            Workload::Fill => "fill",
            Workload::Phases => "phases",
        }
    }

    /// What one operation is, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Workload::Put => "each client puts one random key after the other",
            Workload::Get => "each client gets one random key after the other, linearizable unless told otherwise",
            Workload::Lock => "each client locks and unlocks a name of its own: nobody waits",
            Workload::Native => "the same over Tenure's own lock service",
            Workload::Contend => "all clients lock and unlock one name: every operation is a hand-over",
            Workload::Session => {
                "each client is a session stream of Tenure's with --depth cycles of lock and unlock in flight"
            }
            Workload::Lease => "each client grants and revokes leases",
            Workload::KeepAlive => "each client renews its lease over a stream, one renewal at a time",
            Workload::Renewals => {
                "--leases leases, each renewed every third of its TTL, over one stream for each connection"
            }
            Workload::Expiry => "puts at --rate, before and while --leases leases with their keys expire at once",
            Workload::Watch => "every client watches one key that one writer changes: operations are deliveries",
            Workload::Waiters => "all clients wait for one lock, and each passes it on to the next: once for each",
            Workload::Range => "puts, without and then with a client that keeps reading all keys at once",
            Workload::Fill => "writes the given number of keys, each once",
            Workload::Phases => {
                "puts at --rate; each line on standard input begins a phase, the end of it ends the run"
            }
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        let names = || Workload::ALL.map(Workload::name).join(", ");
        Workload::ALL
            .into_iter()
            .find(|workload| workload.name() == text)
            .ok_or_else(|| format!("there is no workload {text:?}: it is one of {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_read_with_and_without_a_process() {
        let server: Server = "etcd=127.0.0.1:2379@42".parse().unwrap();
        assert_eq!((server.name.as_str(), &server.pids[..]), ("etcd", &[42][..]));
        assert_eq!(server.endpoints, ["127.0.0.1:2379"]);
        let server: Server = "tenure=http://a:1,b:2".parse().unwrap();
        assert_eq!((server.endpoints.len(), server.pids.len()), (2, 0));
        let server: Server = "tenure=a:1,b:2,c:3@4,5,6".parse().unwrap();
        assert_eq!((server.endpoints.len(), &server.pids[..]), (3, &[4, 5, 6][..]));
        for wrong in ["etcd", "=a:1", "etcd=", "etcd=a:1@me", "etcd=a:1@", "etcd=a:1@1,"] {
            assert!(wrong.parse::<Server>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_workload_is_found_by_its_name() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
        }
    }

    #[test]
    fn plans_that_cannot_run_are_refused() {
        let server = |name: &str| Server { name: name.into(), endpoints: vec!["a:1".into()], pids: vec![] };
        let plan = Plan { workloads: vec![Workload::Put], servers: vec![server("a"), server("b")], ..Plan::default() };
        assert!(plan.validate().is_ok());
        assert!(Plan { servers: vec![server("a"), server("a")], ..plan.clone() }.validate().is_err());
        assert!(Plan { baseline: Some("c".into()), ..plan.clone() }.validate().is_err());
        assert!(Plan { clients: 0, ..plan.clone() }.validate().is_err());
        assert!(Plan { leases: 0, ..plan.clone() }.validate().is_err());
        assert!(Plan { rate: 0, ..plan.clone() }.validate().is_err());
        assert!(Plan { leases: 10, leased_keys: Some(11), ..plan.clone() }.validate().is_err());
        for ttl in [Duration::ZERO, Duration::from_millis(1500)] {
            assert!(Plan { ttl, ..plan.clone() }.validate().is_err(), "{ttl:?}");
        }
        let dead = Server { pids: vec![u32::MAX], ..server("dead") };
        assert!(Plan { servers: vec![dead], ..plan }.validate().is_err());
    }
}
