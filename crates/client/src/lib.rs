//! The Rust client of Tenure, and of any server that speaks etcd's v3 API.
//!
//! ```no_run
//! # async fn example() -> Result<(), tenure_client::Error> {
//! use tenure_client::{Client, Get, Put};
//!
//! let client = Client::connect("127.0.0.1:2379,127.0.0.1:22379").await?;
//! client.put(("greeting", "hello")).await?;
//! for pair in client.get(Get::prefix("gre").limit(10)).await?.pairs {
//!     println!("{:?} was written at revision {}", pair.key, pair.mod_revision);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Three rules hold for every call:
//! - A call whose outcome is unknown is not repeated unless repeating it changes nothing. Reads are
//!   repeated at the next endpoint until their time is up; writes only if they were certainly not sent.
//! - An error names its cause and what can be done about it; see [`Error`].
//! - Nothing connects before the first call needs it, and a lost connection comes back by itself.
//!   Only a client that has never reached anybody fails at once when all endpoints refuse it.
#![forbid(unsafe_code)]

mod call;
mod cluster;
mod diagnose;
mod election;
mod endpoint;
mod error;
mod etcd_lock;
mod keys;
mod kv;
mod lease;
pub mod lifecycle;
mod maintenance;
mod txn;
mod watch;

use std::sync::Arc;
use std::time::Duration;

pub use cluster::{Member, Members};
pub use diagnose::Cause;
pub use election::{Candidacy, Observer};
pub use error::{Attempt, Error};
pub use etcd_lock::HeldKey;
pub use keys::Keys;
pub use kv::{Delete, Deleted, Found, Get, KeyValue, Order, Put, SortBy, Written};
pub use lease::{KeepAlive, Lease, LeaseId, LeaseTimeToLive};
pub use maintenance::{Alarm, AlarmKind, Hash, MemberStatus, SnapshotStream};
pub use txn::{Compare, Operation, OperationReply, Relation, Target, Txn, TxnReply};
pub use watch::{Event, EventKind, Events, Watch, Watcher};

use call::Connections;

/// The store's logical clock: one more with every change.
pub type Revision = i64;

/// Where and when an answer was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    pub cluster: u64,
    pub member: u64,
    pub revision: Revision,
    pub term: u64,
}

impl From<Option<tenure_api::etcdserverpb::ResponseHeader>> for Header {
    fn from(header: Option<tenure_api::etcdserverpb::ResponseHeader>) -> Header {
        let header = header.unwrap_or_default();
        Header {
            cluster: header.cluster_id,
            member: header.member_id,
            revision: header.revision,
            term: header.raft_term,
        }
    }
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// For a call, all repetitions included. Calls that wait for their turn (lock, campaign) have no limit.
    pub timeout: Duration,
    pub connect_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout: Duration::from_secs(5), connect_timeout: Duration::from_secs(2) }
    }
}

/// A cheap handle; clones share the connections.
#[derive(Clone)]
pub struct Client {
    connections: Arc<Connections>,
}

impl Client {
    /// Takes a list of endpoints, `host:port,host:port`. No connection is made yet.
    pub async fn connect(endpoints: &str) -> Result<Client, Error> {
        Client::connect_with(endpoints, Settings::default()).await
    }

    pub async fn connect_with(endpoints: &str, settings: Settings) -> Result<Client, Error> {
        Ok(Client { connections: Arc::new(Connections::new(endpoint::parse_list(endpoints)?, settings)) })
    }

    /// The addresses of all endpoints, in the order given.
    pub fn endpoints(&self) -> Vec<String> {
        self.connections.addresses()
    }

    /// A client for each endpoint that talks to no other, to ask every member the same.
    pub fn each(&self) -> Vec<(String, Client)> {
        let single = |connections| Client { connections: Arc::new(connections) };
        self.connections.each().into_iter().map(|(address, connections)| (address, single(connections))).collect()
    }
}
