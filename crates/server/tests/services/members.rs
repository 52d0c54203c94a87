//! Several members in this process: how one gets in, what one says that has no leader, and where one is found again.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tenure_api::etcdserverpb::kv_client::KvClient;
use tenure_api::etcdserverpb::{MemberAddRequest, MemberListRequest, MemberUpdateRequest, PutRequest};
use tenure_server::config::{Config, Unsaid};
use tenure_server::run::{RunError, run_with};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::harness::*;
use crate::websocket_client::get_http;

/// A member that need not have a leader.
struct Running {
    /// Tells the address once it is ready.
    ready: mpsc::Receiver<SocketAddr>,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Running {
    fn start(config: Config) -> Running {
        let (shutdown, stopped) = oneshot::channel();
        let (announce, ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let announce = move |address| announce.send(address).unwrap_or_default();
            run_with(config, announce, async { drop(stopped.await) })
        });
        Running { ready, shutdown: Some(shutdown), thread: Some(thread) }
    }

    async fn stop(mut self) {
        let _ = self.shutdown.take().unwrap().send(());
        let thread = self.thread.take().unwrap();
        // One that has no leader has not asked for signals yet.
        tokio::task::spawn_blocking(move || thread.join()).await.unwrap().unwrap().unwrap();
    }
}

/// Addresses that nobody listens at, all different.
fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let listeners = std::array::from_fn::<_, N, _>(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

/// One member of three, the others of which are never there.
fn headless(directory: &std::path::Path) -> (Config, SocketAddr) {
    let [client, own, second, third] = free_addresses();
    let config = Config {
        name: "n1".to_owned(),
        listen: client,
        peer_listen: own,
        cluster: Some(format!("n1={own},n2={second},n3={third}")),
        data_dir: directory.join("data"),
        ..quick()
    };
    (config, client)
}

/// Waits until a member answers at this address.
async fn connected(address: SocketAddr) -> KvClient<Channel> {
    let connect = async {
        loop {
            let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
            match endpoint.connect().await {
                Ok(channel) => return KvClient::new(channel),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    timeout(PATIENCE, connect).await.expect("in time")
}

#[tokio::test]
async fn a_voter_added_to_a_single_member_gets_in() {
    let server = Server::start().await;
    server.put("before", "1").await;
    let listed = server.cluster().member_list(MemberListRequest::default()).await.unwrap().into_inner();
    let [client, peer] = free_addresses();
    let add = MemberAddRequest { peer_ur_ls: vec![format!("http://{peer}")], is_learner: false };
    server.cluster().member_add(add).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let second = Running::start(Config {
        name: "n2".to_owned(),
        listen: client,
        peer_listen: peer,
        join: Some(listed.members[0].peer_ur_ls[0].clone()),
        data_dir: directory.path().join("data"),
        ..quick()
    });
    let mut kv = connected(client).await;
    let put = PutRequest { key: "after".into(), ..Default::default() };
    let put = async { while kv.put(put.clone()).await.is_err() {} };
    timeout(PATIENCE, put).await.expect("there is a quorum again");
    assert!(server.get("before").await.is_some() && server.get("after").await.is_some());
    second.stop().await;
}

#[tokio::test]
async fn without_a_leader_a_write_is_not_done_and_a_probe_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (config, address) = headless(directory.path());
    let member = Running::start(Config { call_timeout: Duration::from_millis(1000), ..config });
    let mut kv = connected(address).await;
    let put = PutRequest { key: "a".into(), ..Default::default() };
    let no_leader = "etcdserver: no leader";
    assert_refused(kv.put(put.clone()).await, Code::Unavailable, no_leader);
    let mut impatient = Request::new(put);
    impatient.set_timeout(Duration::from_millis(600));
    assert_refused(kv.put(impatient).await, Code::Unavailable, no_leader);
    let readiness = get_http(address, "/readyz", "").await;
    assert!(readiness.starts_with("HTTP/1.1 503 "), "{readiness}");
    assert!(readiness.contains("[-]leader failed: no leader"), "{readiness}");
    assert!(member.ready.try_recv().is_err(), "it is not ready");
    member.stop().await;
}

#[tokio::test]
async fn a_member_that_never_had_a_leader_comes_back_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let (config, address) = headless(directory.path());
    let member = Running::start(config.clone());
    connected(address).await;
    member.stop().await;
    let told_nothing = Config { data_dir: config.data_dir, unsaid: Unsaid { client: true, peer: true }, ..quick() };
    let member = Running::start(told_nothing);
    connected(address).await;
    member.stop().await;
}

#[tokio::test]
async fn a_member_whose_address_is_changed_goes_on_until_it_moves() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second, nobody] = free_addresses();
    let [first_peer, second_peer] = free_addresses();
    let cluster = Some(format!("n1={first_peer},n2={second_peer}"));
    let member = |name: &str, listen, peer_listen| {
        let (name, data_dir) = (name.to_owned(), directory.path().join(name));
        Running::start(Config { name, listen, peer_listen, cluster: cluster.clone(), data_dir, ..quick() })
    };
    let members = [member("n1", first, first_peer), member("n2", second, second_peer)];
    let (mut one, mut two) = (connected(first).await, connected(second).await);
    let put = |key: &'static str| PutRequest { key: key.into(), ..Default::default() };
    let written = async |kv: &mut KvClient<Channel>, key| while kv.put(put(key)).await.is_err() {};
    timeout(PATIENCE, written(&mut one, "before")).await.expect("there is a leader");
    let channel = Channel::from_shared(format!("http://{first}")).unwrap().connect().await.unwrap();
    let mut cluster = tenure_api::etcdserverpb::cluster_client::ClusterClient::new(channel);
    let listed = cluster.member_list(MemberListRequest::default()).await.unwrap().into_inner().members;
    let id = listed.iter().find(|member| member.name == "n2").unwrap().id;
    let peer_ur_ls = vec![format!("http://{nobody}")];
    cluster.member_update(MemberUpdateRequest { id, peer_ur_ls }).await.unwrap();
    timeout(PATIENCE, written(&mut two, "after")).await.expect("it still has a leader");
    timeout(PATIENCE, written(&mut one, "after")).await.expect("so has the other");
    for member in members {
        member.stop().await;
    }
}
