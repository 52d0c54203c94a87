//! The whole front on a real port, with a service behind it that says which thread it ran on.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prost_reflect::DescriptorPool;
use tenure_api::etcdserverpb::kv_client::KvClient;
use tenure_api::etcdserverpb::kv_server::{Kv, KvServer};
use tenure_api::etcdserverpb::watch_client::WatchClient;
use tenure_api::etcdserverpb::watch_server::{Watch, WatchServer};
use tenure_api::etcdserverpb::*;
use tenure_machine::AlarmKind;
use tenure_replica::{Consistency, Status as ReplicaStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request as Call, Response as Answer, Status, Streaming};

use super::grpc::Services;
use super::health::{Health, Vitals};
use super::{Connection, Front};
use crate::config::Config;
use crate::listen::{Listener, Network};
use crate::metrics::Metrics;

/// Says in `count` on which runtime it ran, and in `more` whether it saw the caller's address.
#[derive(Clone)]
struct Where(usize);

#[tonic::async_trait]
impl Kv for Where {
    async fn range(&self, call: Call<RangeRequest>) -> Result<Answer<RangeResponse>, Status> {
        let more = call.remote_addr().is_some();
        tokio::time::sleep(Duration::from_millis(call.get_ref().limit as u64)).await;
        Ok(Answer::new(RangeResponse { count: self.0 as i64, more, ..Default::default() }))
    }
    async fn put(&self, _: Call<PutRequest>) -> Result<Answer<PutResponse>, Status> {
        Err(Status::resource_exhausted("etcdserver: mvcc: database space exceeded"))
    }
    async fn delete_range(&self, _: Call<DeleteRangeRequest>) -> Result<Answer<DeleteRangeResponse>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn txn(&self, _: Call<TxnRequest>) -> Result<Answer<TxnResponse>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn compact(&self, _: Call<CompactionRequest>) -> Result<Answer<CompactionResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A stream that never ends by itself.
#[tonic::async_trait]
impl Watch for Where {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;
    async fn watch(&self, call: Call<Streaming<WatchRequest>>) -> Result<Answer<Self::WatchStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let _requests = call.into_inner();
            let _ = sender.send(Ok(WatchResponse { created: true, ..Default::default() })).await;
            sender.closed().await;
        });
        Ok(Answer::new(ReceiverStream::new(receiver)))
    }
}

impl Vitals for Where {
    fn status(&self) -> ReplicaStatus {
        ReplicaStatus { leader: 1, member: 1, ..Default::default() }
    }
    fn read(&self, _: Consistency) -> Pin<Box<dyn Future<Output = Result<Vec<AlarmKind>, String>> + Send + '_>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

struct Server {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: oneshot::Sender<Duration>,
    stopped: tokio::task::JoinHandle<()>,
}

fn start(change: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), network_threads: 2, ..Config::default() };
    change(&mut config);
    let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
    let threads = config.network_thread_count();
    let metrics = Arc::new(Metrics::new(&pool, threads));
    let listener = Listener::bind("--listen", config.listen).unwrap();
    let address = listener.address();
    let serve = {
        let (config, metrics) = (config.clone(), metrics.clone());
        move |index, stopping| {
            let services = Services::builder()
                .add_service(KvServer::new(Where(index)))
                .add_service(WatchServer::new(Where(index)));
            let services = services.stopping(stopping);
            let services = services.build(metrics.runtime(index).clone(), metrics.rpcs().clone());
            let health = Health::new(Where(index), Duration::from_secs(1));
            let front = Arc::new(Front::new(&config, &pool, services, health, metrics.clone(), Router::new()));
            move |info, open| Connection::new(front.clone(), info, open)
        }
    };
    let counters = (0..threads).map(|index| metrics.runtime(index).clone()).collect();
    let network = Network::start(&config, metrics.clone(), "network", counters, serve).unwrap();
    let (stop, stopping) = oneshot::channel();
    let stopped = tokio::spawn(async move {
        let patience = tokio::select! {
            never = network.accept(&listener) => match never {},
            patience = stopping => patience.unwrap_or_default(),
        };
        drop(listener);
        network.stop(patience).await;
    });
    Server { address, metrics, stop, stopped }
}

impl Server {
    async fn grpc(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// Sends an HTTP/1.1 request on a connection that stays open, and reads the answer.
async fn http(stream: &mut TcpStream, request: &str, body: &str) -> String {
    let text = format!("{request} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.unwrap();
        assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
    }
}

#[tokio::test]
async fn one_port_serves_grpc_json_and_plain_http() {
    let server = start(|_| {});
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    let mut kv = KvClient::new(server.grpc().await);

    let version = http(&mut first, "GET /version", "").await;
    assert!(version.starts_with("HTTP/1.1 200 OK\r\n"), "{version}");
    assert!(version.contains(r#"{"etcdserver":"3.5.21","etcdcluster":"3.5.0","tenure":""#), "{version}");
    let json = http(&mut second, "POST /v3/kv/range", r#"{"key":"Zm9v"}"#).await;
    let grpc = kv.range(RangeRequest::default()).await.unwrap().into_inner();
    assert!(grpc.more, "the service sees the caller's address");
    let json_again = http(&mut second, "POST /v3/kv/range", r#"{"key":"Zm9v"}"#).await;
    assert_eq!(json.lines().last(), json_again.lines().last(), "a connection stays on its thread");
    assert!(json.contains(r#""more":true"#), "{json}");
    assert_eq!(kv.put(PutRequest::default()).await.unwrap_err().code(), Code::ResourceExhausted);

    assert!(http(&mut first, "GET /health", "").await.ends_with(r#"{"health":"true","reason":""}"#));
    assert!(http(&mut first, "GET /readyz", "").await.ends_with("ok\n"));
    assert!(http(&mut first, "POST /health", "").await.starts_with("HTTP/1.1 405"));
    let lost = http(&mut first, "GET /nothing", "").await;
    assert!(lost.starts_with("HTTP/1.1 404") && lost.contains("This is Tenure"), "{lost}");
    let lost = http(&mut first, "POST /etcdserverpb.KV/Range", "").await;
    assert!(lost.starts_with("HTTP/1.1 404"), "gRPC needs HTTP/2: {lost}");

    let metrics = http(&mut first, "GET /metrics", "").await;
    for line in [
        r#"tenure_rpc_requests_total{rpc="etcdserverpb.KV/Range",code="OK"} 3"#,
        r#"tenure_rpc_requests_total{rpc="etcdserverpb.KV/Put",code="ResourceExhausted"} 1"#,
        "tenure_connections_open 3",
        "tenure_connections_accepted_total 3",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[tokio::test]
async fn connections_are_dealt_out_evenly() {
    let server = start(|config| config.network_threads = 3);
    let mut runtimes = Vec::new();
    let mut channels = Vec::new();
    for _ in 0..6 {
        let channel = server.grpc().await;
        runtimes.push(KvClient::new(channel.clone()).range(RangeRequest::default()).await.unwrap().into_inner().count);
        channels.push(channel);
    }
    runtimes.sort();
    assert_eq!(runtimes, [0, 0, 1, 1, 2, 2]);
}

#[tokio::test]
async fn an_unknown_service_is_unimplemented() {
    let server = start(|_| {});
    let mut leases = lease_client::LeaseClient::new(server.grpc().await);
    let status = leases.lease_grant(LeaseGrantRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unimplemented, "unknown service etcdserverpb.Lease"));
}

#[tokio::test]
async fn an_address_with_too_many_connections_is_turned_away() {
    let server = start(|config| config.limits.connections_per_address = 1);
    let mut first = server.connect().await;
    assert!(http(&mut first, "GET /version", "").await.contains("200 OK"));
    let mut second = server.connect().await;
    assert_eq!(second.read(&mut [0; 16]).await.unwrap_or(0), 0, "closed at once");
    assert!(http(&mut first, "GET /metrics", "").await.contains("tenure_connections_refused_total 1"));
    drop(first);
    while server.metrics.render().contains("tenure_connections_open 1") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut third = server.connect().await;
    assert!(http(&mut third, "GET /version", "").await.contains("200 OK"));
}

#[tokio::test]
async fn a_call_under_way_is_answered_before_the_end() {
    let server = start(|_| {});
    let mut idle = server.connect().await;
    http(&mut idle, "GET /version", "").await;
    let mut kv = KvClient::new(server.grpc().await);
    kv.range(RangeRequest::default()).await.unwrap();
    let call = tokio::spawn(async move { kv.range(RangeRequest { limit: 100, ..Default::default() }).await });
    tokio::time::sleep(Duration::from_millis(30)).await;
    server.stop.send(Duration::from_secs(10)).unwrap();
    assert!(call.await.unwrap().is_ok());
    server.stopped.await.unwrap();
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap_or(0), 0);
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_stream_is_told_of_the_end() {
    let server = start(|_| {});
    let mut watch = WatchClient::new(server.grpc().await);
    let mut stream = watch.watch(tokio_stream::pending()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().unwrap().created);
    let began = std::time::Instant::now();
    server.stop.send(Duration::from_secs(60)).unwrap();
    let status = stream.message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: server stopped"));
    server.stopped.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "nothing is waited for that does not end by itself");
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cut_off() {
    let server = start(|_| {});
    let mut kv = KvClient::new(server.grpc().await);
    let call = tokio::spawn(async move { kv.range(RangeRequest { limit: 60_000, ..Default::default() }).await });
    tokio::time::sleep(Duration::from_millis(30)).await;
    server.stop.send(Duration::from_millis(50)).unwrap();
    assert!(call.await.unwrap().is_err());
    server.stopped.await.unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_said_to_be() {
    let server = start(|_| {});
    let error = Listener::bind("--listen", server.address).err().unwrap().to_string();
    assert!(error.contains("is another member running?"), "{error}");
}
