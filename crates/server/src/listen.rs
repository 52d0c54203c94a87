//! Connections: who accepts them, which thread serves them, and how they end.
//!
//! Each network thread is a single-threaded tokio runtime of its own. One accept loop deals the
//! connections out to them, to the thread with the fewest; from then on a connection, its streams
//! and its handlers never leave their thread. Measured against one multi-threaded runtime this
//! saves a quarter of the processor time of a small request: nothing is stolen, no queue is shared.
//!
//! Stopping is orderly and bounded: no new connections, then GOAWAY on the open ones and the end of
//! what would last as long as its client likes ([`Stopping`]), then a wait for the calls under way,
//! then the end for those that did not end by themselves.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tonic::codegen::StdError;
use tonic::transport::server::TcpConnectInfo;

use crate::authority::Named;
use crate::background;
use crate::config::Config;
use crate::limits;
use crate::metrics::{Counters, Metrics};

/// Unanswered probes after which TCP gives a connection up.
const TCP_PROBES: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {source}{}", hint(.source, .setting))]
    Bind { setting: &'static str, address: SocketAddr, source: io::Error },
    #[error("cannot start a network thread: {0}")]
    Thread(io::Error),
}

fn hint(error: &io::Error, setting: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(" (is another member running? choose another port with {setting})"),
        io::ErrorKind::AddrNotAvailable => " (this machine has no such address)".to_owned(),
        io::ErrorKind::PermissionDenied => " (ports below 1024 need a privilege)".to_owned(),
        _ => String::new(),
    }
}

/// What serves one connection.
pub trait ConnectionService:
    hyper::service::Service<
        Request<Incoming>,
        Response = Response<Self::Body>,
        Error = Infallible,
        Future: Send + 'static,
    > + Send
    + 'static
{
    type Body: http_body::Body<Data: Send, Error: Into<StdError>> + Send + 'static;
}

impl<S, B> ConnectionService for S
where
    S: hyper::service::Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send + 'static>
        + Send
        + 'static,
    B: http_body::Body<Data: Send, Error: Into<StdError>> + Send + 'static,
{
    type Body = B;
}

/// The phases of stopping, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Phase {
    Serving,
    /// No new calls; those under way may end.
    Draining,
    Closed,
}

/// Tells that the end has begun.
#[derive(Clone)]
pub struct Stopping(watch::Receiver<Phase>);

impl Stopping {
    pub async fn wait(mut self) {
        reached(&mut self.0, Phase::Draining).await;
    }
}

/// The listening socket. Bound first, so that a port in use is known before anything is started.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Must be called within a tokio runtime: the one that will accept. `setting` is where the address comes from.
    pub fn bind(setting: &'static str, address: SocketAddr) -> Result<Listener, ListenError> {
        let bind = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let listener = socket.listen(1024)?;
            let address = listener.local_addr()?;
            Ok(Listener { listener, address })
        };
        bind().map_err(|source| ListenError::Bind { setting, address, source })
    }

    /// With the port that was chosen, if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The network threads.
pub struct Network {
    threads: Vec<NetworkThread>,
    phase: watch::Sender<Phase>,
    addresses: Arc<Addresses>,
    metrics: Arc<Metrics>,
    keepalive_interval: Duration,
    keepalive_timeout: Duration,
}

struct NetworkThread {
    connections: mpsc::UnboundedSender<Accepted>,
    counters: Arc<Counters>,
    handle: JoinHandle<()>,
}

/// A connection on its way to its thread.
struct Accepted {
    stream: std::net::TcpStream,
    remote: SocketAddr,
    place: Place,
}

impl Network {
    /// Starts threads of this name, one for each of the counters. `serve` is called once in each of
    /// them, with its number and within its runtime, and gives what makes the service of each
    /// connection.
    pub fn start<F, M, S>(
        config: &Config,
        metrics: Arc<Metrics>,
        name: &str,
        counters: Vec<Arc<Counters>>,
        serve: F,
    ) -> Result<Network, ListenError>
    where
        F: Fn(usize, Stopping) -> M + Clone + Send + 'static,
        M: Fn(TcpConnectInfo, OpenConnection) -> S + 'static,
        S: ConnectionService,
    {
        let (phase, _) = watch::channel(Phase::Serving);
        let builder = connection_builder(config);
        let mut started = Vec::new();
        for (index, counters) in counters.into_iter().enumerate() {
            let (connections, accepted) = mpsc::unbounded_channel();
            let runtime = background::runtime().map_err(ListenError::Thread)?;
            let (serve, builder, phase) = (serve.clone(), builder.clone(), phase.subscribe());
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            let runtime_counters = counters.clone();
            let main = move || {
                runtime.block_on(async move {
                    let make = serve(index, Stopping(phase.clone()));
                    run_thread(accepted, make, builder, phase, runtime_counters).await;
                });
                // Whatever is still running has had its time.
                runtime.shutdown_background();
            };
            let handle = thread.spawn(main).map_err(ListenError::Thread)?;
            started.push(NetworkThread { connections, counters, handle });
        }
        Ok(Network {
            threads: started,
            phase,
            addresses: Arc::new(Addresses::new(config.limits.connections_per_address)),
            metrics,
            keepalive_interval: config.keepalive_interval,
            keepalive_timeout: config.keepalive_timeout,
        })
    }

    /// Accepts connections for as long as it is polled.
    pub async fn accept(&self, listener: &Listener) -> Infallible {
        let mut last = 0;
        loop {
            let (stream, remote) = match listener.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, or a client that is gone already. Neither ends by being
                    // asked again at once.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let Some(place) = self.addresses.enter(remote.ip()) else {
                self.metrics.connections_refused().fetch_add(1, Relaxed);
                tracing::debug!(%remote, "too many connections from this address");
                continue;
            };
            self.tune(&stream);
            // The socket leaves this runtime to be watched by its own.
            let Ok(stream) = stream.into_std() else { continue };
            last = self.least_busy(last);
            let thread = &self.threads[last];
            thread.counters.connections_accepted.fetch_add(1, Relaxed);
            thread.counters.connections_open.fetch_add(1, Relaxed);
            if thread.connections.send(Accepted { stream, remote, place }).is_err() {
                thread.counters.connections_open.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Ends all connections: politely at first, after `patience` in any case.
    pub async fn stop(self, patience: Duration) {
        self.phase.send_replace(Phase::Draining);
        let drained = async {
            while self.threads.iter().any(|thread| thread.counters.connections_open.load(Relaxed) > 0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(patience, drained).await.is_err() && !patience.is_zero() {
            tracing::info!("some calls did not end within {patience:?} and are cut off");
        }
        self.phase.send_replace(Phase::Closed);
        let handles = self.threads.into_iter().map(|thread| thread.handle).collect::<Vec<_>>();
        let _ = tokio::task::spawn_blocking(move || handles.into_iter().for_each(|handle| drop(handle.join()))).await;
    }

    /// HTTP/2 pings by itself; on HTTP/1 only TCP can find out that the other side is gone. A socket
    /// that cannot be tuned serves as well.
    fn tune(&self, stream: &TcpStream) {
        use rustix::net::sockopt;
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(stream, true);
        let _ = sockopt::set_tcp_keepidle(stream, self.keepalive_interval);
        let _ = sockopt::set_tcp_keepintvl(stream, self.keepalive_timeout / TCP_PROBES);
        let _ = sockopt::set_tcp_keepcnt(stream, TCP_PROBES);
    }

    /// The thread with the fewest connections; among equals the one after the last.
    fn least_busy(&self, last: usize) -> usize {
        let count = self.threads.len();
        let candidates = (1..=count).map(|step| (last + step) % count);
        candidates.min_by_key(|index| self.threads[*index].counters.connections_open.load(Relaxed)).unwrap_or(0)
    }
}

fn connection_builder(config: &Config) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits::HEADER_TIMEOUT_MS))
        .max_buf_size(config.limits.header_list_bytes.max(64 << 10) as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.limits.streams_per_connection)
        .max_header_list_size(config.limits.header_list_bytes)
        .max_pending_accept_reset_streams(config.limits.pending_resets)
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(limits::STREAM_SEND_BYTES)
        .keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout);
    builder
}

/// Serves what the accept loop sends, until everything is to end.
async fn run_thread<M, S>(
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    make: M,
    builder: Builder<TokioExecutor>,
    mut phase: watch::Receiver<Phase>,
    counters: Arc<Counters>,
) where
    M: Fn(TcpConnectInfo, OpenConnection) -> S,
    S: ConnectionService,
{
    let builder = Arc::new(builder);
    let phases = phase.clone();
    let mut closed = std::pin::pin!(reached(&mut phase, Phase::Closed));
    loop {
        let Accepted { stream, remote, place } = tokio::select! {
            biased;
            () = &mut closed => return,
            next = accepted.recv() => match next {
                Some(accepted) => accepted,
                None => return closed.await,
            },
        };
        let open = OpenConnection(Arc::new(Open { counters: counters.clone(), _place: place }));
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let info = TcpConnectInfo { local_addr: stream.local_addr().ok(), remote_addr: Some(remote) };
        let service = make(info, open.clone());
        tokio::spawn(serve_connection(stream, service, builder.clone(), phases.clone(), open));
    }
}

async fn serve_connection<S: ConnectionService>(
    stream: TcpStream,
    service: S,
    builder: Arc<Builder<TokioExecutor>>,
    mut phase: watch::Receiver<Phase>,
    _open: OpenConnection,
) {
    let first_byte_timeout = Duration::from_millis(limits::FIRST_BYTE_TIMEOUT_MS);
    let mut draining = std::pin::pin!(reached(&mut phase, Phase::Draining));
    tokio::select! {
        biased;
        ready = tokio::time::timeout(first_byte_timeout, stream.readable()) => {
            if !matches!(ready, Ok(Ok(()))) {
                return;
            }
        }
        () = &mut draining => return,
    }
    let mut connection =
        std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(Named::new(stream)), service));
    let result = tokio::select! {
        biased;
        result = connection.as_mut() => result,
        () = &mut draining => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "a connection ended");
    }
}

/// Returns when the phase has come, or when nobody is left to announce it.
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

/// A connection counts as open, and as one of its address, for as long as somebody has this: whoever
/// takes a connection over from HTTP keeps it until that one ends.
#[derive(Clone)]
pub struct OpenConnection(#[expect(dead_code, reason = "held for its end")] Arc<Open>);

/// Counts one open connection.
struct Open {
    counters: Arc<Counters>,
    _place: Place,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.counters.connections_open.fetch_sub(1, Relaxed);
    }
}

/// How many connections each address has. Only the accept loop and the ends of connections come here.
struct Addresses {
    most: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection's place among those of its address.
struct Place {
    address: IpAddr,
    addresses: Arc<Addresses>,
}

impl Addresses {
    fn new(most: usize) -> Addresses {
        Addresses { most, open: Mutex::default() }
    }

    fn enter(self: &Arc<Addresses>, address: IpAddr) -> Option<Place> {
        let address = owner(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place { address, addresses: self.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Whoever has one IPv6 address has the 2⁶⁴ of its network: they count as one.
fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_places_and_gets_them_back() {
        let addresses = Arc::new(Addresses::new(2));
        let enter = |address: &str| addresses.enter(address.parse().unwrap());
        let first = enter("10.0.0.1").unwrap();
        let _second = enter("::ffff:10.0.0.1").unwrap();
        assert!(enter("10.0.0.1").is_none());
        assert!(enter("10.0.0.2").is_some());
        drop(first);
        assert!(enter("10.0.0.1").is_some());
    }

    #[test]
    fn a_network_of_ipv6_addresses_counts_as_one() {
        let addresses = Arc::new(Addresses::new(1));
        let _place = addresses.enter("2001:db8::1".parse().unwrap()).unwrap();
        assert!(addresses.enter("2001:db8::2".parse().unwrap()).is_none());
        assert!(addresses.enter("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    #[test]
    fn nothing_is_kept_of_an_address_that_left() {
        let addresses = Arc::new(Addresses::new(1));
        drop(addresses.enter("10.0.0.1".parse().unwrap()));
        assert!(addresses.open.lock().unwrap().is_empty());
    }
}
