//! A member to call, and short ways to call it.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tenure_api::etcdserverpb::auth_client::AuthClient;
use tenure_api::etcdserverpb::cluster_client::ClusterClient;
use tenure_api::etcdserverpb::kv_client::KvClient;
use tenure_api::etcdserverpb::lease_client::LeaseClient;
use tenure_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tenure_api::etcdserverpb::watch_client::WatchClient;
use tenure_api::etcdserverpb::*;
use tenure_api::mvccpb::KeyValue;
use tenure_api::v3electionpb::election_client::ElectionClient;
use tenure_api::v3lockpb::lock_client::LockClient;
use tenure_server::config::Config;
use tenure_server::run::{RunError, run_with};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Nothing here takes so long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A member that loses no time.
pub fn quick() -> Config {
    Config {
        network_threads: 1,
        // An election at the start is all that a test would wait for.
        tick: Duration::from_millis(5),
        heartbeat: Duration::from_millis(10),
        election_min: Duration::from_millis(50),
        election_max: Duration::from_millis(100),
        // A test blocks its runtime when it stops its server: its own connections cannot say goodbye.
        drain: Duration::from_millis(20),
        ..Config::default()
    }
}

pub struct Server {
    pub config: Config,
    pub address: SocketAddr,
    channel: Channel,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
    _directory: TempDir,
}

impl Server {
    pub async fn start() -> Server {
        Server::start_with(|_| {}).await
    }

    pub async fn start_with(configure: impl FnOnce(&mut Config)) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            peer_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: directory.path().join("data"),
            ..quick()
        };
        configure(&mut config);
        let (shutdown, stopped) = oneshot::channel();
        let (announce, announced) = mpsc::channel();
        let running = config.clone();
        let thread = std::thread::spawn(move || {
            run_with(running, move |address| announce.send(address).unwrap(), async { drop(stopped.await) })
        });
        let address = announced.recv().expect("the member has started");
        let channel = channel(address).await;
        Server { config, address, channel, shutdown: Some(shutdown), thread: Some(thread), _directory: directory }
    }

    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel()).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
    }

    pub fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel())
    }

    pub fn lock(&self) -> LockClient<Channel> {
        LockClient::new(self.channel())
    }

    pub fn election(&self) -> ElectionClient<Channel> {
        ElectionClient::new(self.channel())
    }

    pub fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel())
    }

    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel())
    }

    pub fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.channel())
    }

    /// Puts a key and gives the revision.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> i64 {
        let request = PutRequest { key: key.into(), value: value.into(), ..Default::default() };
        self.kv().put(request).await.unwrap().into_inner().header.unwrap().revision
    }

    pub async fn put_leased(&self, key: &'static str, lease: i64) -> i64 {
        let request = PutRequest { key: key.into(), lease, ..Default::default() };
        self.kv().put(request).await.unwrap().into_inner().header.unwrap().revision
    }

    pub async fn delete(&self, key: impl Into<Bytes>) -> i64 {
        let request = DeleteRangeRequest { key: key.into(), ..Default::default() };
        self.kv().delete_range(request).await.unwrap().into_inner().header.unwrap().revision
    }

    pub async fn get(&self, key: impl Into<Bytes>) -> Option<KeyValue> {
        let request = RangeRequest { key: key.into(), ..Default::default() };
        self.kv().range(request).await.unwrap().into_inner().kvs.pop()
    }

    /// Waits until so many stand in the queue of a lock or an election.
    pub async fn until_entries(&self, name: &str, count: i64) {
        let (key, range_end) = (format!("{name}/").into(), format!("{name}0").into());
        let entries = RangeRequest { key, range_end, ..Default::default() };
        timeout(PATIENCE, async {
            while self.kv().range(entries.clone()).await.unwrap().into_inner().count != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("in time");
    }

    pub async fn compact(&self, revision: i64) {
        self.kv().compact(CompactionRequest { revision, physical: false }).await.unwrap();
    }

    pub async fn grant(&self, ttl: i64) -> i64 {
        self.lease().lease_grant(LeaseGrantRequest { ttl, id: 0 }).await.unwrap().into_inner().id
    }

    pub async fn revoke(&self, id: i64) {
        self.lease().lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
    }

    pub async fn status(&self) -> StatusResponse {
        self.maintenance().status(StatusRequest {}).await.unwrap().into_inner()
    }

    /// Stops it while its clients look on, and waits for its end.
    pub async fn stop(mut self) {
        let ended = self.begin_to_stop().expect("stopped once");
        let ended = tokio::task::spawn_blocking(|| ended.join()).await.unwrap();
        ended.expect("the member did not panic").expect("the member ended well");
    }

    fn begin_to_stop(&mut self) -> Option<JoinHandle<Result<(), RunError>>> {
        let _ = self.shutdown.take()?.send(());
        self.thread.take()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(ended) = self.begin_to_stop() else { return };
        let ended = ended.join();
        if !std::thread::panicking() {
            ended.expect("the member did not panic").expect("the member ended well");
        }
    }
}

async fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A connection of its own.
pub async fn connect(address: SocketAddr) -> KvClient<Channel> {
    KvClient::new(channel(address).await).max_decoding_message_size(usize::MAX)
}

#[track_caller]
pub fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let status = answer.expect_err("refused");
    assert_eq!((status.code(), status.message()), (code, text));
}

pub fn put_op(key: impl Into<Bytes>, value: impl Into<Bytes>) -> RequestOp {
    let put = PutRequest { key: key.into(), value: value.into(), ..Default::default() };
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

pub fn range_op(key: impl Into<Bytes>) -> RequestOp {
    let range = RangeRequest { key: key.into(), ..Default::default() };
    RequestOp { request: Some(request_op::Request::RequestRange(range)) }
}

pub fn delete_op(key: impl Into<Bytes>) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.into(), ..Default::default() };
    RequestOp { request: Some(request_op::Request::RequestDeleteRange(delete)) }
}

pub fn txn_op(txn: TxnRequest) -> RequestOp {
    RequestOp { request: Some(request_op::Request::RequestTxn(txn)) }
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
