//! The peer port as a whole: everything that runs on the peers' thread.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming as Body;
use tenure_api::tenure::peer::v1::peer_server::PeerServer;
use tenure_storage::{Identity, OsDisk, Peers, Snapshots};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::codegen::{BoxFuture, Service};

use super::greeting::Greeter;
use super::outbox::{Outbox, SnapshotOrder};
use super::receive_snapshot::Arrivals;
use super::service::{Incoming, PeerService};
use super::transport::Transport;
use super::{Host, frame};
use crate::listen::OpenConnection;

pub(crate) struct PeerPortSettings {
    pub(crate) identity: Identity,
    pub(crate) snapshots: Snapshots<OsDisk>,
    pub(crate) known: Peers<OsDisk>,
    pub(crate) outbox: Outbox,
    /// The longest batch of messages that is read.
    pub(crate) message_bytes: usize,
}

/// Sends to all peers, and serves what they send. Dropping it ends both.
pub(crate) struct PeerPort<H: Host> {
    service: PeerService<H>,
    server: PeerServer<PeerService<H>>,
    transport: JoinHandle<()>,
}

impl<H: Host> PeerPort<H> {
    /// Must be called within the runtime of the peers' thread.
    pub(crate) fn open(
        settings: PeerPortSettings,
        host: H,
        orders: mpsc::UnboundedReceiver<SnapshotOrder>,
    ) -> PeerPort<H> {
        let PeerPortSettings { identity, snapshots, known, outbox, message_bytes } = settings;
        let greeter = Greeter { identity, host, known, outbox };
        let arrivals = Arc::new(Arrivals::new(snapshots.clone()));
        let incoming = Arc::new(Incoming::new(arrivals.clone()));
        let transport = Transport::new(greeter.clone(), snapshots, orders, incoming.clone());
        let service = PeerService::new(greeter, arrivals, incoming, message_bytes);
        PeerPort { server: service.clone().server(), service, transport: tokio::spawn(transport.run()) }
    }

    pub(crate) fn connection(&self, open: Option<OpenConnection>) -> PeerConnection<H> {
        PeerConnection { service: self.service.clone(), server: self.server.clone(), open }
    }
}

impl<H: Host> Drop for PeerPort<H> {
    fn drop(&mut self) {
        self.transport.abort();
    }
}

/// What serves one connection.
pub(crate) struct PeerConnection<H: Host> {
    service: PeerService<H>,
    server: PeerServer<PeerService<H>>,
    open: Option<OpenConnection>,
}

impl<H: Host> hyper::service::Service<Request<Body>> for PeerConnection<H> {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn call(&self, request: Request<Body>) -> Self::Future {
        if request.uri().path() == frame::PATH {
            return Box::pin(std::future::ready(Ok(self.service.switch(request, self.open.clone()))));
        }
        self.server.clone().call(request)
    }
}
