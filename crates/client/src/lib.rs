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
//! A lock is held by a guard, which stops work before the lock can be lost:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_client::{Client, Durations};
//!
//! let client = Client::connect("127.0.0.1:2379").await?;
//! let guard = client.lock("deploy/prod").ttl(10.seconds()).wait(30.seconds()).acquire().await?;
//! guard.run(async |held| println!("write with token {}", held.token())).await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Three rules hold for every call:
//! - A call whose outcome is unknown is not repeated unless repeating it changes nothing. Reads are
//!   repeated at the next server until their time is up; writes only if they were certainly not carried out:
//!   never sent, turned away by a server that stops, or refused because there is no leader.
//! - An error names its cause and what can be done about it; see [`Error`].
//! - Nothing connects before the first call needs it, and a lost connection comes back by itself. A server
//!   that accepts connections but says nothing is passed over: no write is sent to it, and what waits there
//!   goes on elsewhere if it can. Only a client that has never reached a server fails at once when no server
//!   can be reached.
//!
//! What the client decides is decided by pure parts, which the simulation runs as well: [`lifecycle`] (what the holder of
//! a lease may believe), [`requests`] (what a session has asked for, holds and owes), [`retry`] (what may be repeated) and
//! [`cursor`] (where a watch is). They do no IO and read no clock; the rest of the crate moves bytes.
#![forbid(unsafe_code)]

mod barrier;
mod call;
pub mod clock;
mod cluster;
mod connection;
mod connections;
pub mod cursor;
mod describe;
mod diagnose;
mod discovery;
mod durations;
mod election;
mod endpoint;
mod error;
mod etcd_lock;
mod guard;
mod keeper;
mod keys;
mod kv;
mod lease;
mod level;
pub mod lifecycle;
mod lock;
mod maintenance;
mod places;
#[cfg(feature = "planted")]
pub mod planted;
pub mod requests;
pub mod retry;
mod session;
mod session_stream;
mod shared_sessions;
mod signed;
mod timed_channel;
mod txn;
mod watch;

/// Compiles the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct Guide;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use barrier::BarrierRequest;
pub use clock::Deadline;
pub use cluster::{Member, Members};
pub use describe::{
    End, Holder, LeaseInfo, LeaseState, LockDescription, LockSummary, Locks, Mode, RecentHolder, SessionSummary,
    Sessions, Waiter,
};
pub use diagnose::Cause;
pub use durations::Durations;
pub use election::{CampaignRequest, Leader, Leadership, Observer};
pub use endpoint::EndpointOrder;
pub use error::{Attempt, Error};
pub use etcd_lock::HeldKey;
pub use guard::{Held, LockGuard, Lost};
pub use keys::Keys;
pub use kv::{Delete, Deleted, Found, Get, KeyValue, Order, Put, SortBy, Written};
pub use lease::{KeepAlive, Lease, LeaseId, LeaseTimeToLive};
pub use level::FeatureLevel;
pub use lifecycle::{CancelAt, Cause as LossCause};
pub use lock::{LockError, LockRequest};
pub use maintenance::{Alarm, AlarmKind, Hash, MemberStatus, SnapshotStream};
pub use session::{Session, SessionRequest};
pub use txn::{Compare, Operation, OperationReply, Relation, Target, Txn, TxnReply};
pub use watch::{Event, EventKind, Events, Watch, Watcher};

use connections::Connections;
use keeper::Keeper;
use shared_sessions::SharedSessions;

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

/// How long things may take, and which servers are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// For a call, all repetitions included. Calls that wait for their turn (lock, campaign) have no limit.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    /// Whether the client asks who else belongs to the cluster, to go there if need be. Members are found where
    /// they say that clients find them; without it, only the endpoints that were given are used.
    pub discover: bool,
    /// In which order the endpoints are tried.
    pub endpoint_order: EndpointOrder,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            discover: true,
            endpoint_order: EndpointOrder::default(),
        }
    }
}

/// A cheap handle; clones share the connections.
#[derive(Clone)]
pub struct Client {
    connections: Arc<Connections>,
    /// Started with the first lease.
    keeper: Arc<OnceLock<Arc<Keeper>>>,
    /// For locks that are asked for without a session.
    shared_sessions: Arc<SharedSessions>,
}

impl Client {
    /// Takes a list of endpoints, `host:port,host:port`. No connection is made yet.
    pub async fn connect(endpoints: &str) -> Result<Client, Error> {
        Client::connect_with(endpoints, Settings::default()).await
    }

    pub async fn connect_with(endpoints: &str, settings: Settings) -> Result<Client, Error> {
        Ok(Client::over(Connections::new(endpoint::parse_list(endpoints)?, settings)))
    }

    fn over(connections: Connections) -> Client {
        Client { connections: Arc::new(connections), keeper: Arc::default(), shared_sessions: Arc::default() }
    }

    fn keeper(&self) -> Result<Arc<Keeper>, Error> {
        match self.keeper.get() {
            Some(keeper) => Ok(keeper.clone()),
            None => {
                let started = Keeper::start(&self.connections)?;
                Ok(self.keeper.get_or_init(|| started).clone())
            }
        }
    }

    /// Waits until all that was dropped has been given back: guards, sessions, places in queues. To
    /// be called before a process ends; without it, what is left over ends with its lease.
    pub async fn settled(&self) {
        let Some(keeper) = self.keeper.get() else { return };
        keeper.settled().await;
        // What was given back has left sessions behind that nobody uses.
        self.shared_sessions.close_idle();
        keeper.settled().await;
    }

    /// The addresses of all endpoints, in the order given.
    pub fn endpoints(&self) -> Vec<String> {
        self.connections.given_addresses()
    }

    /// The endpoints given, and behind them the members that were discovered.
    pub fn known_endpoints(&self) -> Vec<String> {
        self.connections.addresses()
    }

    /// A client with the same settings for other endpoints, and no others.
    pub fn at(&self, endpoints: &str) -> Result<Client, Error> {
        let settings = Settings { discover: false, ..self.connections.settings() };
        Ok(Client::over(Connections::new(endpoint::parse_list(endpoints)?, settings)))
    }

    /// A client for each endpoint that talks to no other, to ask every member the same.
    pub fn each(&self) -> Vec<(String, Client)> {
        self.connections.each().into_iter().map(|(address, connections)| (address, Client::over(connections))).collect()
    }
}
