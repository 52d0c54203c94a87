//! Watches: one stream for each client, many watches on it.
//!
//! The replica's hub decides what a stream has to be told, and in which order; a [`session::Session`]
//! translates. It narrows each commit down to what the watch wants ([`interest`]), puts whole
//! revisions into responses, and splits those if the client asked for it ([`fragment`]).
//!
//! A session runs only while its client reads, so nothing piles up in it. What the hub has fed is
//! charged to the stream until it is passed on; over its limit the hub feeds no more and the watch goes
//! on from history. History is read on blocking threads, one response's worth at a time, and the view it
//! is read from is let go of before the client is waited for: a client that never reads again costs a
//! cursor, not a copy of the store.

mod fragment;
pub mod interest;
mod session;

use std::sync::Arc;

use tenure_api::etcdserverpb::watch_server::Watch;
use tenure_api::etcdserverpb::{WatchRequest, WatchResponse};
use tonic::transport::server::TcpConnectInfo;
use tonic::{Request, Response, Status, Streaming};

use super::produced::{Produced, produced};
use super::{Shared, authorize};

pub struct WatchService(pub Arc<Shared>);

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Produced<Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        authorize("Watch", request.metadata())?;
        let shared = self.0.clone();
        let leader_loss = shared.leader_monitor.follow(request.metadata());
        let address = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let requests = request.into_inner();
        Ok(Response::new(produced(|emitter| session::run(shared, requests, address, leader_loss, emitter))))
    }
}
