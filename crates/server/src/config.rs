//! The configuration of a member.
//!
//! One struct with a default for everything, so that `tenure serve` with no flag at all is a working
//! member on loopback. The command line fills it (flag before environment before TOML file); the
//! keys of the file are the names of the flags. [`Config::validate`] is the only judge of whether
//! settings fit together, and each of its errors says what to do about it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_machine::{Level, Member, MemberId, level};

use crate::limits::{self, Limits};

/// What etcd clients are told: Kubernetes and others ask for 3.5.13 or later.
pub const ETCD_VERSION: &str = "3.5.21";
pub const ETCD_CLUSTER_VERSION: &str = "3.5.0";
pub const TENURE_VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    pub name: String,
    pub data_dir: PathBuf,
    /// Clients: gRPC, JSON, metrics.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
    #[serde(deserialize_with = "listen_address")]
    pub peer_listen: SocketAddr,
    /// Where clients and peers find this member, as `host:port`, if not at the addresses above.
    pub advertise: Option<String>,
    pub peer_advertise: Option<String>,
    /// The members of a new cluster: `n1=host:port,n2=host:port,…`. None = this member alone.
    pub cluster: Option<String>,
    /// A member of a running cluster to be added to.
    pub join: Option<String>,
    /// Stay a learner when joining: reads and watches, no vote.
    pub learner: bool,
    /// Listen beyond loopback without TLS.
    pub insecure: bool,
    /// Web pages whose scripts may call this member, as `https://host[:port]`, or `*` for any.
    pub web_origins: Vec<String>,

    #[serde(with = "crate::units::duration")]
    pub tick: Duration,
    #[serde(with = "crate::units::duration")]
    pub heartbeat: Duration,
    /// Drawn at random between these two.
    #[serde(with = "crate::units::duration")]
    pub election_min: Duration,
    #[serde(with = "crate::units::duration")]
    pub election_max: Duration,
    /// A call that could not be answered for so long is told that it timed out.
    #[serde(with = "crate::units::duration")]
    pub call_timeout: Duration,

    /// No snapshot before the log has grown by this much, however small the data.
    #[serde(with = "crate::units::size_u64")]
    pub snapshot_floor: u64,
    /// Older history is compacted. 0 = kept.
    #[serde(with = "crate::units::duration")]
    pub history_age: Duration,
    /// History beyond this is compacted. 0 = kept.
    #[serde(with = "crate::units::size_u64")]
    pub history_size: u64,
    /// Over it the store raises the alarm and takes no more. 0 = no quota.
    #[serde(with = "crate::units::size_u64")]
    pub quota: u64,

    /// How often the members' states are compared. 0 = never.
    #[serde(with = "crate::units::duration")]
    pub compare_interval: Duration,
    /// The latest feature level that this member takes part in, to keep a way back to an earlier release.
    pub max_level: Option<u32>,
    /// Whether deletes of keys that are places of locks are refused.
    pub protect_places: bool,

    /// How often an idle watch that asked for it is told the revision.
    #[serde(with = "crate::units::duration")]
    pub watch_progress_interval: Duration,
    #[serde(with = "crate::units::duration")]
    pub keepalive_interval: Duration,
    #[serde(with = "crate::units::duration")]
    pub keepalive_timeout: Duration,
    /// How long calls may still run once the member was told to stop.
    #[serde(with = "crate::units::duration")]
    pub drain: Duration,
    /// Threads that serve connections. 0 = as many as the machine has processors, 8 at most.
    pub network_threads: usize,
    /// A file with the keys that grants are signed with, shared with the storages that verify them.
    pub signing_key: Option<PathBuf>,

    pub limits: Limits,

    /// Which addresses are as above only because nobody said anything.
    #[serde(skip)]
    pub unsaid: Unsaid,
}

/// Addresses that were left open: a member that starts again keeps those it had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsaid {
    pub client: bool,
    pub peer: bool,
}

/// Where a member listens and where it is found, as its data directory keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Whereabouts {
    listen: SocketAddr,
    advertise: String,
    peer_listen: SocketAddr,
    peer_advertise: String,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "default".to_owned(),
            data_dir: PathBuf::from("tenure-data"),
            listen: SocketAddr::from(([127, 0, 0, 1], 2379)),
            peer_listen: SocketAddr::from(([127, 0, 0, 1], 2380)),
            advertise: None,
            peer_advertise: None,
            cluster: None,
            join: None,
            learner: false,
            insecure: false,
            web_origins: Vec::new(),
            tick: Duration::from_millis(10),
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(1000),
            call_timeout: Duration::from_secs(7),
            snapshot_floor: 64 << 20,
            history_age: Duration::from_secs(3600),
            history_size: 1 << 30,
            quota: 8 << 30,
            compare_interval: Duration::from_secs(60),
            max_level: None,
            protect_places: false,
            watch_progress_interval: Duration::from_secs(600),
            keepalive_interval: Duration::from_millis(limits::KEEPALIVE_INTERVAL_MS),
            keepalive_timeout: Duration::from_millis(limits::KEEPALIVE_TIMEOUT_MS),
            drain: Duration::from_millis(limits::DRAIN_MS),
            network_threads: 0,
            signing_key: None,
            limits: Limits::default(),
            unsaid: Unsaid::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("the configuration is not readable: {0}")]
    Syntax(String),
    #[error("{setting} is empty: give it a value or leave it out")]
    Empty { setting: &'static str },
    #[error("name {0:?} holds one of the characters , = / or a space: it could not be told apart in --cluster")]
    Name(String),
    #[error(
        "{setting} {address} can be reached by other machines and TLS is not set up: \
         listen on 127.0.0.1, or accept plain text with --insecure"
    )]
    Insecure { setting: &'static str, address: SocketAddr },
    #[error("{listen} means all addresses of this machine: say with {advertise} HOST:PORT at which one it is found")]
    Unadvertised { listen: &'static str, advertise: &'static str },
    #[error("{setting} {value} means all addresses of a machine: name one at which it is found")]
    Everywhere { setting: &'static str, value: String },
    #[error(
        "--cluster says that this member is at {address}, but it listens at {listen}: set --peer-listen to its address, \
         or say --peer-advertise {address} if that is where others reach it"
    )]
    OwnAddress { address: String, listen: SocketAddr },
    #[error("the others know this member at {address}: say with {setting} where it listens")]
    Whereabouts { setting: &'static str, address: String },
    #[error("{setting} = {value:?}: {reason}")]
    Address { setting: &'static str, value: String, reason: String },
    #[error("--listen and --peer-listen are both {0}: give them different ports")]
    SameAddress(SocketAddr),
    #[error("--cluster = {0:?}: expected NAME=HOST:PORT,NAME=HOST:PORT,…")]
    Cluster(String),
    #[error("--cluster does not name this member, {name:?}: add {name}=HOST:PORT, or set --name to one of {names:?}")]
    NotInCluster { name: String, names: Vec<String> },
    #[error("--cluster names {0:?} twice")]
    TwiceInCluster(String),
    #[error("--cluster starts a new cluster and --join enters a running one: give one of them")]
    ClusterAndJoin,
    #[error("--learner is for a member that enters a running cluster: it goes with --join")]
    LearnerAlone,
    #[error("{lower} ({lower_value:?}) must be {relation} {upper} ({upper_value:?}): {reason}")]
    Times {
        lower: &'static str,
        lower_value: Duration,
        relation: &'static str,
        upper: &'static str,
        upper_value: Duration,
        reason: &'static str,
    },
    #[error("{setting} is {value}, but must be from {least} to {most}")]
    Range { setting: &'static str, value: u64, least: u64, most: u64 },
    #[error("web origin {0:?} is neither * nor like https://host or https://host:port")]
    Origin(String),
}

impl Config {
    /// Reads a TOML file's text. What it does not mention has its default. Not yet validated.
    pub fn from_toml(text: &str) -> Result<Config, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))
    }

    /// With addresses for which a URL was given, as etcd's flags have them, reduced to what counts.
    #[must_use]
    pub fn without_schemes(mut self) -> Config {
        let bare = |address: &str| address.strip_prefix("http://").unwrap_or(address).to_owned();
        for address in [&mut self.advertise, &mut self.peer_advertise, &mut self.join].into_iter().flatten() {
            *address = bare(address);
        }
        if let Some(cluster) = &mut self.cluster {
            let entries = cluster.split(',').map(|entry| match entry.split_once('=') {
                Some((name, address)) => format!("{name}={}", bare(address)),
                None => entry.to_owned(),
            });
            *cluster = entries.collect::<Vec<_>>().join(",");
        }
        self
    }

    /// What the data directory keeps for the next start.
    pub(crate) fn whereabouts(&self) -> Whereabouts {
        Whereabouts {
            listen: self.listen,
            advertise: self.client_address(),
            peer_listen: self.peer_listen,
            peer_advertise: self.peer_address(),
        }
    }

    /// A member of several starts again where it was, unless it is told otherwise: the others look for it there. The
    /// log says where that is. What the directory keeps says where it listened for that, and is all there is before a
    /// first leader.
    pub(crate) fn recall(
        &mut self,
        own: MemberId,
        members: &[Member],
        kept: Option<Whereabouts>,
    ) -> Result<(), ConfigError> {
        let known = members.iter().find(|member| member.id == own).filter(|_| members.len() > 1);
        let Some(known) = known else { return Ok(()) };
        let is_meant = |advertise: &str, urls: &[String]| urls.first().is_none_or(|url| address_in(url) == advertise);
        if self.unsaid.client {
            match (&kept, known.client_urls.first()) {
                (Some(kept), _) if is_meant(&kept.advertise, &known.client_urls) => {
                    self.listen = kept.listen;
                    self.advertise = Some(kept.advertise.clone()).filter(|address| *address != kept.listen.to_string());
                }
                (_, Some(url)) => self.listen = recalled("--listen", url)?,
                (_, None) => {}
            }
        }
        if self.unsaid.peer {
            match (&kept, known.peer_urls.first()) {
                (Some(kept), _) if is_meant(&kept.peer_advertise, &known.peer_urls) => {
                    let (listen, advertise) = (kept.peer_listen, &kept.peer_advertise);
                    self.peer_listen = listen;
                    self.peer_advertise = Some(advertise.clone()).filter(|address| *address != listen.to_string());
                }
                (_, Some(url)) => self.peer_listen = recalled("--peer-listen", url)?,
                (_, None) => {}
            }
        }
        Ok(())
    }

    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_names()?;
        self.validate_addresses()?;
        self.validate_times()?;
        self.validate_limits()
    }

    /// Where clients find this member.
    pub fn client_address(&self) -> String {
        self.advertise.clone().unwrap_or_else(|| self.listen.to_string())
    }

    /// Where peers find this member.
    pub fn peer_address(&self) -> String {
        let advertised = self.peer_advertise.clone().or_else(|| self.address_in_cluster());
        advertised.unwrap_or_else(|| self.peer_listen.to_string())
    }

    /// Where the list of a new cluster says that this member is.
    fn address_in_cluster(&self) -> Option<String> {
        let mut entries = self.cluster.as_ref()?.split(',').filter_map(|entry| entry.trim().split_once('='));
        let own = entries.find(|(name, address)| *name == self.name && is_host_and_port(address));
        own.map(|(_, address)| address.to_owned())
    }

    /// As etcd's member list gives it.
    pub fn client_url(&self) -> String {
        format!("http://{}", self.client_address())
    }

    pub fn peer_url(&self) -> String {
        format!("http://{}", self.peer_address())
    }

    /// The voters of a new cluster, name and peer address; this member alone if none are configured.
    pub fn initial_cluster(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let Some(cluster) = &self.cluster else { return Ok(vec![(self.name.clone(), self.peer_address())]) };
        let mut members = Vec::new();
        for entry in cluster.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, address) = entry.split_once('=').ok_or_else(|| ConfigError::Cluster(cluster.clone()))?;
            if name.is_empty() || !is_host_and_port(address) {
                return Err(ConfigError::Cluster(cluster.clone()));
            }
            if members.iter().any(|(known, _)| known == name) {
                return Err(ConfigError::TwiceInCluster(name.to_owned()));
            }
            members.push((name.to_owned(), address.to_owned()));
        }
        if !members.iter().any(|(name, _)| *name == self.name) {
            let names = members.into_iter().map(|(name, _)| name).collect();
            return Err(ConfigError::NotInCluster { name: self.name.clone(), names });
        }
        Ok(members)
    }

    /// The shortest TTL on etcd's API: one and a half of the longest election, as etcd has it.
    pub fn lease_ttl_min_seconds(&self) -> i64 {
        (self.election_max.as_millis() as u64 * 3).div_ceil(2 * 1000).max(1) as i64
    }

    /// The latest feature level that this member supports.
    pub fn highest_level(&self) -> Level {
        self.max_level.map_or(level::HIGHEST, |most| most.min(level::HIGHEST))
    }

    pub fn network_thread_count(&self) -> usize {
        match self.network_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(8),
            count => count,
        }
    }

    fn validate_names(&self) -> Result<(), ConfigError> {
        if self.name.is_empty() {
            return Err(ConfigError::Empty { setting: "--name" });
        }
        if !is_member_name(&self.name) {
            return Err(ConfigError::Name(self.name.clone()));
        }
        if self.data_dir.as_os_str().is_empty() {
            return Err(ConfigError::Empty { setting: "--data-dir" });
        }
        for origin in &self.web_origins {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            if origin != "*" && !host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '*', ' '])) {
                return Err(ConfigError::Origin(origin.clone()));
            }
        }
        Ok(())
    }

    fn validate_addresses(&self) -> Result<(), ConfigError> {
        for (setting, address) in [("--listen", self.listen), ("--peer-listen", self.peer_listen)] {
            if !address.ip().to_canonical().is_loopback() && !self.insecure {
                return Err(ConfigError::Insecure { setting, address });
            }
        }
        if self.listen == self.peer_listen && self.listen.port() != 0 {
            return Err(ConfigError::SameAddress(self.listen));
        }
        let peer_advertise = self.peer_advertise.clone().or_else(|| self.address_in_cluster());
        let advertised = [
            ("--listen", self.listen, "--advertise", &self.advertise),
            ("--peer-listen", self.peer_listen, "--peer-advertise", &peer_advertise),
        ];
        for (listen, address, advertise, value) in advertised {
            match value {
                Some(value) if !is_host_and_port(value) => return Err(address_error(advertise, value)),
                Some(value) if is_everywhere(value) => {
                    return Err(ConfigError::Everywhere { setting: advertise, value: value.clone() });
                }
                None if address.ip().is_unspecified() => return Err(ConfigError::Unadvertised { listen, advertise }),
                _ => {}
            }
        }
        if self.cluster.is_some() && self.join.is_some() {
            return Err(ConfigError::ClusterAndJoin);
        }
        if let Some(value) = self.join.as_ref().filter(|value| !is_host_and_port(value)) {
            return Err(address_error("--join", value));
        }
        if self.learner && self.join.is_none() {
            return Err(ConfigError::LearnerAlone);
        }
        self.initial_cluster()?;
        match self.address_in_cluster().filter(|address| !self.is_at(address)) {
            Some(address) => Err(ConfigError::OwnAddress { address, listen: self.peer_listen }),
            None => Ok(()),
        }
    }

    /// Whether others that look for this member at an address can find it there, as far as it can tell.
    fn is_at(&self, address: &str) -> bool {
        if self.peer_advertise.is_some() || self.peer_listen.port() == 0 {
            return true;
        }
        match address.parse::<SocketAddr>() {
            Ok(address) if self.peer_listen.ip().is_unspecified() => address.port() == self.peer_listen.port(),
            Ok(address) => address == self.peer_listen,
            // A name may be anywhere, but a port is a port.
            Err(_) => address.ends_with(&format!(":{}", self.peer_listen.port())),
        }
    }

    fn validate_times(&self) -> Result<(), ConfigError> {
        let millisecond = Duration::from_millis(1);
        let second = Duration::from_secs(1);
        at_most("1ms", millisecond, "tick", self.tick, "time is counted in ticks of whole milliseconds")?;
        at_most("tick", self.tick, "heartbeat", self.heartbeat, "a heartbeat takes at least one tick")?;
        at_most(
            "four heartbeats",
            self.heartbeat * 4,
            "election-min",
            self.election_min,
            "a lost heartbeat or two must not start an election",
        )?;
        at_most(
            "election-min plus a tenth",
            self.election_min + self.election_min / 10,
            "election-max",
            self.election_max,
            "members that all wait equally long split the vote",
        )?;
        at_most("election-max", self.election_max, "60s", second * 60, "a dead leader would go unnoticed for minutes")?;
        at_most(
            "election-max",
            self.election_max,
            "call-timeout",
            self.call_timeout,
            "a call must be able to outlast the election of a new leader",
        )?;
        at_most("1s", second, "watch-progress-interval", self.watch_progress_interval, "more often is noise")?;
        at_most(
            "5s",
            Duration::from_millis(limits::KEEPALIVE_INTERVAL_MIN_MS),
            "keepalive-interval",
            self.keepalive_interval,
            "idle connections would cost more than busy ones",
        )?;
        at_most("1s", second, "keepalive-timeout", self.keepalive_timeout, "a busy network is not a dead one")
    }

    fn validate_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let within = |setting, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(ConfigError::Range { setting, value, least, most }),
        };
        within("network-threads", self.network_threads as u64, 0, 1024)?;
        within("limits.request-bytes", limits.request_bytes as u64, 1 << 10, 64 << 20)?;
        within(
            "limits.transaction-operations",
            limits.transaction_operations as u64,
            1,
            limits::TRANSACTION_OPERATIONS as u64,
        )?;
        within("limits.streams-per-connection", limits.streams_per_connection.into(), 1, 1 << 20)?;
        within("limits.header-list-bytes", limits.header_list_bytes.into(), 4 << 10, 1 << 20)?;
        within("limits.pending-resets", limits.pending_resets as u64, 1, 10_000)?;
        within("limits.connections-per-address", limits.connections_per_address as u64, 1, 1 << 20)?;
        within("limits.leases-per-client", limits.leases_per_client as u64, 1, u32::MAX.into())?;
        within("limits.watch-buffer-bytes", limits.watch_buffer_bytes as u64, 64 << 10, 1 << 30)?;
        within("limits.inflight-bytes", limits.inflight_bytes, 2 * limits.request_bytes as u64, 16 << 30)
    }
}

fn at_most(
    lower: &'static str,
    lower_value: Duration,
    upper: &'static str,
    upper_value: Duration,
    reason: &'static str,
) -> Result<(), ConfigError> {
    if lower_value <= upper_value {
        return Ok(());
    }
    Err(ConfigError::Times { lower, lower_value, relation: "at most", upper, upper_value, reason })
}

/// A name that can be told apart in `--cluster`.
pub(crate) fn is_member_name(name: &str) -> bool {
    !name.is_empty() && !name.contains([',', '=', '/', ' '])
}

pub(crate) fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host_is_plain = !host.is_empty() && !host.contains(['/', '@', ' ', ',']);
    let bracketed_if_v6 = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
    host_is_plain && bracketed_if_v6 && port.parse::<u16>().is_ok()
}

fn address_error(setting: &'static str, value: &str) -> ConfigError {
    let reason = address_fault(value).unwrap_or_default();
    ConfigError::Address { setting, value: value.to_owned(), reason }
}

/// What is wrong with an address that is to be `HOST:PORT`, for people to read.
pub fn address_fault(text: &str) -> Option<String> {
    if is_host_and_port(text) {
        return None;
    }
    let port = text.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.is_empty());
    match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_err() => {
            Some(format!("port {port} is out of range: expected HOST:PORT with a port up to 65535"))
        }
        _ => Some("expected HOST:PORT, for example 127.0.0.1:2379".to_owned()),
    }
}

/// A listener has an IP address: a name could mean several.
fn listen_address<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let address = text.parse::<SocketAddr>();
    address.map_err(|_| {
        let fault = address_fault(&text);
        serde::de::Error::custom(fault.unwrap_or_else(|| {
            "expected an IP address and a port, for example 127.0.0.1:2379; --advertise takes a host's name".to_owned()
        }))
    })
}

fn address_in(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, address)| address)
}

fn recalled(setting: &'static str, url: &str) -> Result<SocketAddr, ConfigError> {
    let address = address_in(url);
    address.parse().map_err(|_| ConfigError::Whereabouts { setting, address: address.to_owned() })
}

fn is_everywhere(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().to_canonical().is_unspecified())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
