//! One connection to a server, and whether anybody is there at its other end.
//!
//! A channel of the gRPC library connects again by itself, unseen. Here a [`Connection`] is one TCP connection and ends
//! with it: what is asked for after that was certainly not sent. And because the system accepts connections for a
//! process that is stopped, or hangs, a connection is of use only when the server has answered a call on it; and one on
//! which calls wait in silence is asked again.

use std::future::{Future, Ready, ready};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tenure_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tenure_api::etcdserverpb::{StatusRequest, StatusResponse};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::codegen::Service;
use tonic::transport::{Channel, Uri};
use tonic::{Response, Status};

use crate::diagnose::{self, Cause};
use crate::endpoint::Address;

/// Calls that wait for so long, while nothing at all is heard, make the client ask whether the server is there.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a server may take to say that it is there.
pub(crate) const PROOF: Duration = Duration::from_secs(1);
/// For what waits long and says nothing, like a watch. etcd's servers end connections that ping more often than every
/// five seconds.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Connection {
    pub address: Address,
    pub channel: Channel,
    /// What the server said of itself when the connection was new; None if it would not say.
    pub introduction: Option<Introduction>,
    /// It does not leave this machine.
    pub is_local: bool,
    began: Instant,
    heard_ms: AtomicU64,
    is_asked: AtomicBool,
    silent: watch::Sender<bool>,
}

#[derive(Debug, Clone, Copy)]
pub struct Introduction {
    pub cluster: u64,
    pub member: u64,
    pub has_leader: bool,
}

impl Connection {
    /// Connects, and hears the server's first word.
    pub async fn open(address: &Address, connect_timeout: Duration, give_up: Instant) -> Result<Connection, Cause> {
        let connect_by = give_up.min(Instant::now() + connect_timeout);
        let connected = tokio::time::timeout_at(connect_by, connect(&address.text)).await;
        let stream = connected.map_err(|_| Cause::ConnectTimeout)??;
        tokio::time::timeout_at(give_up, Connection::greet(address, stream)).await.map_err(|_| Cause::Silent)?
    }

    async fn greet(address: &Address, stream: TcpStream) -> Result<Connection, Cause> {
        let is_local = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
        let endpoint = Channel::builder(address.uri.clone())
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let channel = endpoint.connect_with_connector(Once(Some(stream))).await;
        let channel = channel.map_err(|error| diagnose::cause_of(&error))?;
        let introduction = match status(&channel).await {
            Ok(status) => introduction(status.into_inner()),
            // Whatever it says, it is there.
            Err(status) if !diagnose::is_transport(&status) => None,
            Err(status) => {
                return Err(match diagnose::probe(&address.text, DIAGNOSIS_TIMEOUT).await {
                    Some(cause @ (Cause::Tls | Cause::NotHttp2(_))) => cause,
                    _ => diagnose::innermost(&status),
                });
            }
        };
        Ok(Connection {
            address: address.clone(),
            channel,
            introduction,
            is_local,
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            silent: watch::Sender::new(false),
        })
    }

    /// Something came from the server.
    pub fn heard(&self) {
        let elapsed_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(elapsed_ms, Ordering::Relaxed);
    }

    pub fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Waits until somebody has found that the server says nothing any more.
    pub async fn fallen_silent(&self) {
        // The sender is ours.
        let _ = self.silent.subscribe().wait_for(|silent| *silent).await;
    }

    /// Waits for an answer, and asks in between whether the server is there; None if it is not.
    pub async fn listen<Answer>(self: &Arc<Self>, answer: impl Future<Output = Answer>) -> Option<Answer> {
        let (mut answer, mut silent) = (pin!(answer), pin!(self.fallen_silent()));
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => {
                    self.heard();
                    return Some(answer);
                }
                () = &mut silent => return None,
                () = tokio::time::sleep(SILENCE) => self.ask(),
            }
        }
    }

    /// Asks whether the server is there, unless it was heard of lately. One question is enough, however many wait.
    pub fn ask(self: &Arc<Self>) {
        let quiet = self.began.elapsed().saturating_sub(Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)));
        if quiet < SILENCE || self.is_asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let connection = self.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(PROOF, status(&connection.channel)).await {
                Ok(_) => connection.heard(),
                Err(_) => drop(connection.silent.send_replace(true)),
            }
            connection.is_asked.store(false, Ordering::Relaxed);
        });
    }
}

/// The one call that any member answers by itself, whatever has become of the others.
async fn status(channel: &Channel) -> Result<Response<StatusResponse>, Status> {
    MaintenanceClient::new(channel.clone()).status(StatusRequest {}).await
}

fn introduction(status: StatusResponse) -> Option<Introduction> {
    let header = status.header?;
    Some(Introduction { cluster: header.cluster_id, member: header.member_id, has_leader: status.leader != 0 })
}

async fn connect(address: &str) -> Result<TcpStream, Cause> {
    let found = tokio::net::lookup_host(address).await.map_err(|error| Cause::Unresolved(error.to_string()))?;
    let mut cause = Cause::Unresolved("the name has no address".to_owned());
    for address in found {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Without it small requests wait for each other; a socket that cannot be tuned serves as well.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => cause = diagnose::cause_of(&error),
        }
    }
    Err(cause)
}

/// A connector that has one connection to give.
struct Once(Option<TcpStream>);

impl Service<Uri> for Once {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Ready<io::Result<TokioIo<TcpStream>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let ended = || io::Error::new(io::ErrorKind::NotConnected, "the connection has ended");
        ready(self.0.take().map(TokioIo::new).ok_or_else(ended))
    }
}
