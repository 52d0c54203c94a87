//! Locks over a WebSocket, in JSON: for browsers, scripts, and whoever has no gRPC at hand.
//!
//! `GET /v1/session` becomes a WebSocket, as do `/ws` and `/` for clients that ask for one there. Its client sends `{commandType, key, clientId, ttl}` and is
//! told `{success, fencingToken: {key, value}}`; `docs/websocket.md` has every field. The same queues
//! stand behind it as behind the other lock services. Each client and lock has a lease of its own:
//! while it waits the connection keeps it alive, its full time begins at the grant, and then nothing
//! but a renewal extends it.
//!
//! The way of a request: [`handshake`] once, then [`socket`] (frames), [`message`] (JSON), [`session`]
//! (what it means for which [`place`]), and the member. [`claims`] knows which connection speaks for
//! whom.

mod claims;
mod handshake;
pub(crate) mod message;
mod place;
mod session;
mod socket;

use std::sync::Arc;

use axum::Router;
use axum::body::Body as HttpBody;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpConnectInfo;

use self::session::Session;
use self::socket::Patience;
use super::ProcessWide;
use super::authorize;
use crate::config::Config;
use crate::http::{not_found, plain_text};
use crate::listen::{OpenConnection, Stopping};
use crate::member::Member;
use crate::metrics::Counters;
pub use claims::Claims;

/// What the WebSockets of one network runtime share.
#[derive(Clone)]
pub struct WebSockets {
    pub member: Member,
    pub config: Arc<Config>,
    pub process_wide: Arc<ProcessWide>,
    pub claims: Arc<Claims>,
    pub stopping: Stopping,
    pub counters: Arc<Counters>,
}

impl WebSockets {
    pub fn routes(self) -> Router {
        let (session, short, root) = (self.clone(), self.clone(), self);
        Router::new()
            .route("/v1/session", get(async move |request: Request<HttpBody>| session.open(request)))
            .route("/ws", get(async move |request: Request<HttpBody>| short.open(request)))
            .route("/", get(async move |request: Request<HttpBody>| root.open_if_asked(request).await))
    }

    /// A client of the plain protocol knows a host and a port, and no path.
    async fn open_if_asked(&self, request: Request<HttpBody>) -> Response<HttpBody> {
        match handshake::is_asked(request.headers()) {
            true => self.open(request),
            false => not_found().await,
        }
    }

    /// Which pages may come here was judged before, as for every request.
    fn open(&self, mut request: Request<HttpBody>) -> Response<HttpBody> {
        let metadata = MetadataMap::from_headers(request.headers().clone());
        if let Err(status) = authorize("Session", &metadata) {
            return plain_text(StatusCode::FORBIDDEN, format!("{}\n", status.message()));
        }
        let response = match handshake::switch(&request) {
            Ok(response) => response,
            Err(unfit) => return unfit.response(),
        };
        let address = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        // The connection is one of its address until the WebSocket ends, and stopping waits for it.
        let open = request.extensions_mut().remove::<OpenConnection>();
        let upgrade = hyper::upgrade::on(&mut request);
        let WebSockets { member, config, process_wide, claims, stopping, counters } = self.clone();
        tokio::spawn(async move {
            let upgraded = match upgrade.await {
                Ok(upgraded) => upgraded,
                Err(error) => return tracing::debug!(%error, "a WebSocket did not come about"),
            };
            let most_places = config.limits.leases_per_client;
            let Ok(session) = Session::new(member, process_wide, claims, counters, address, most_places) else {
                return;
            };
            let patience = Patience { interval: config.keepalive_interval, timeout: config.keepalive_timeout };
            socket::serve(upgraded, session, patience, stopping).await;
            drop(open);
        });
        response
    }
}
