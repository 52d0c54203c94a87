//! The services: what a client of the cluster sees. All are etcd's but [`tenure_lock`] and its form for
//! browsers and scripts, [`websocket`].
//!
//! Every rpc takes the same walk: decode (tonic), validate ([`convert`]), authorize ([`authorize`]),
//! submit to the [`Member`], encode ([`answer`]). A service never touches state and never decides what
//! a command does; it knows how etcd says things, and nothing else knows that. etcd's clients match
//! the texts of errors and the shape of answers, so both are etcd's to the letter; each such text
//! stands in [`errors`] and nowhere else.
//!
//! Around each generated server stands an [`entry::Entry`]: what all rpcs have in common (the
//! `hasleader` metadata, answers whose bytes were prepared elsewhere) is done once there. The services
//! run on network threads that each serve many connections, so nothing here may take long on one:
//! long reads and large encodings go to blocking threads ([`large`], [`watch`], [`snapshot`]), and a
//! stream produces only as fast as its client reads ([`produced`]). The messages of sessions pass tonic by
//! ([`framed`]).

mod answer;
mod auth;
mod cluster;
pub(crate) mod convert;
mod election;
mod entry;
pub(crate) mod errors;
mod framed;
mod kv;
mod large;
mod leader;
mod lease;
mod lock;
mod maintenance;
mod observe_election;
mod places;
mod produced;
mod read;
mod snapshot;
mod tenure_cluster;
mod tenure_lock;
mod watch;
mod watching;
mod websocket;

pub(crate) use tenure_lock::{asked, request as lock_request};
pub(crate) use websocket::message as websocket_message;

use std::sync::{Arc, OnceLock};

use tenure_api::etcdserverpb::ResponseHeader;
use tenure_api::etcdserverpb::auth_server::AuthServer;
use tenure_api::etcdserverpb::cluster_server::ClusterServer;
use tenure_api::etcdserverpb::kv_server::KvServer;
use tenure_api::etcdserverpb::lease_server::LeaseServer;
use tenure_api::etcdserverpb::maintenance_server::MaintenanceServer;
use tenure_api::etcdserverpb::watch_server::WatchServer;
use tenure_api::tenure::v1::cluster_service_server::ClusterServiceServer;
use tenure_api::tenure::v1::lock_service_server::LockServiceServer;
use tenure_api::v3electionpb::election_server::ElectionServer;
use tenure_api::v3lockpb::lock_server::LockServer;
use tenure_machine::Revision;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::config::Config;
use crate::http::grpc::ServicesBuilder;
use crate::member::{At, Member};
use crate::metrics::Counters;
use crate::peer::leave::Departure;
use entry::Entry;
use leader::{HasLeader, LeaderMonitor};
pub use tenure_lock::Sessions;
pub use watching::Watching;
pub use websocket::{Claims, WebSockets};

/// All services on one member handle: each network runtime has its own.
pub fn services(
    member: Member,
    config: Arc<Config>,
    process_wide: Arc<ProcessWide>,
    counters: Arc<Counters>,
    mut table: ServicesBuilder,
) -> ServicesBuilder {
    let largest = config.limits.message_bytes();
    let shared = Arc::new(Shared::new(member, config, process_wide, counters));
    macro_rules! serve {
        ($server:ident, $service:expr) => {
            let server = $server::new($service(shared.clone())).max_decoding_message_size(largest);
            table = table.add_service(Entry::new(server, shared.has_leader.clone()));
        };
    }
    serve!(KvServer, kv::KvService);
    serve!(WatchServer, watch::WatchService);
    serve!(LeaseServer, lease::LeaseService);
    serve!(LockServer, lock::LockService);
    serve!(ElectionServer, election::ElectionService);
    serve!(ClusterServer, cluster::ClusterService);
    serve!(MaintenanceServer, maintenance::MaintenanceService);
    serve!(AuthServer, auth::AuthService);
    serve!(ClusterServiceServer, tenure_cluster::TenureClusterService);
    serve!(LockServiceServer, tenure_lock::TenureLockService);
    table
}

/// May this caller use this rpc? The one place where that is asked; everybody may, until there are users.
fn authorize(_rpc: &'static str, _metadata: &MetadataMap) -> Result<(), Status> {
    Ok(())
}

/// What all services of one runtime share.
struct Shared {
    member: Member,
    config: Arc<Config>,
    has_leader: HasLeader,
    leader_monitor: LeaderMonitor,
    identity: OnceLock<Identity>,
    process_wide: Arc<ProcessWide>,
    counters: Arc<Counters>,
}

/// What the services of all runtimes share.
pub struct ProcessWide {
    pub sessions: Sessions,
    pub watching: Watching,
    /// What grants are signed with.
    pub keyring: Option<tenure_fence::Keyring>,
    /// How this member goes, if it is asked to.
    pub departure: Departure,
}

#[derive(Clone, Copy)]
struct Identity {
    cluster: u64,
    member: u64,
}

impl Shared {
    fn new(member: Member, config: Arc<Config>, process_wide: Arc<ProcessWide>, counters: Arc<Counters>) -> Shared {
        let asked = member.clone();
        let has_leader: HasLeader = Arc::new(move || asked.status().leader != 0);
        let leader_monitor = LeaderMonitor::new(has_leader.clone(), config.election_max);
        Shared { member, config, has_leader, leader_monitor, identity: OnceLock::new(), process_wide, counters }
    }

    /// The header that speaks of the moment at which a value was read.
    fn header<T>(&self, at: &At<T>) -> Option<ResponseHeader> {
        self.header_at(at.revision, at.term)
    }

    fn header_at(&self, revision: Revision, term: u64) -> Option<ResponseHeader> {
        let Identity { cluster, member } = self.identity();
        Some(ResponseHeader { cluster_id: cluster, member_id: member, revision, raft_term: term })
    }

    /// For answers that read nothing from the state.
    fn header_now(&self) -> Option<ResponseHeader> {
        let status = self.member.status();
        self.header_at(status.revision, status.term)
    }

    /// Asked once: the status is shared with whoever steps the replica, and this does not change.
    fn identity(&self) -> Identity {
        if let Some(identity) = self.identity.get() {
            return *identity;
        }
        let status = self.member.status();
        let identity = Identity { cluster: status.cluster, member: status.member };
        if identity.cluster != 0 {
            let _ = self.identity.set(identity);
        }
        identity
    }
}
