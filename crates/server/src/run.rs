//! A member's life, from its configuration to its last answer.
//!
//! The thread that calls [`run`] becomes the control thread: it accepts connections, watches over
//! the health that is reported, and waits for the end. The order of things matters. The ports are
//! bound before the data is touched, so that a second member started by mistake does no harm; it
//! is announced as ready when it can be called and knows a leader. At the end health is taken back first, a leader hands
//! over, then the network drains, and only then the peers are left and the replica stops, so that calls
//! under way still get their answer.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost_reflect::DescriptorPool;
use tenure_machine::MemberId;
use tenure_replica::{Consistency, MemberChange};
use tenure_storage::{Candidacy, Fault, Identity, OpenError, OsDisk};
use tokio::sync::{oneshot, watch};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::alarms;
use crate::background;
use crate::config::{Config, ConfigError, Unsaid, Whereabouts};
use crate::data::{self, Beginning, Data, DataError, Found};
use crate::driver::{Driver, Ending, Writes};
use crate::http::grpc::{Services, ServicesBuilder};
use crate::http::health::Health;
use crate::http::{Connection, Front, leader};
use crate::leadership;
use crate::listen::{ListenError, Listener, Network, Stopping};
use crate::member::{Member, random_u64};
use crate::metrics::{Counters, Metrics};
use crate::peer::counters::PeerMetrics;
use crate::peer::join::{self, JoinError};
use crate::peer::leave::Departure;
use crate::peer::outbox::Outbox;
use crate::peer::{PeerPort, PeerPortSettings};
use crate::publish;
use crate::services;
use crate::steps::StepMetrics;

/// How long the start waits for this member to be listed.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(1);

/// How long it goes on trying to join while nobody can say who leads.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);

/// Between two requests for a vote.
const PROMOTE_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("--signing-key: {0}")]
    SigningKey(#[from] tenure_fence::KeyFileError),
    #[error("the replica cannot start: {0}")]
    Boot(#[from] tenure_replica::BootError),
    #[error("the control thread cannot start: {0}")]
    Control(std::io::Error),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("this member ended while it joined a cluster, and knows nothing of it: start it with --join again")]
    Unjoined,
    #[error("this member was removed from the cluster: its data directory is of no use to it any more")]
    Removed,
    /// In the words of the member that knows it so.
    #[error("this member is known with another data directory: {0}")]
    Stranger(String),
    /// The member has stopped rather than go on with something broken.
    #[error("the member had to stop: {0}")]
    Failed(String),
}

/// Runs a member until `shutdown` resolves, or until it has to stop by itself.
pub fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    run_with(config, |_| {}, shutdown)
}

/// As [`run`]; tells the address of the client port as soon as the member answers there and knows a leader.
pub fn run_with(
    config: Config,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    run_announced(config, |_| {}, ready, shutdown)
}

/// As [`run_with`]; calls `answers` before that, as soon as the member answers. `shutdown` is polled only afterwards.
pub fn run_announced(
    config: Config,
    answers: impl FnOnce(SocketAddr),
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let mut config = config.without_schemes();
    config.validate()?;
    let control = background::runtime().map_err(RunError::Control)?;
    control.block_on(async {
        let found = recall(&mut config)?;
        let listener = Listener::bind("--listen", config.listen)?;
        let peer_listener = Listener::bind("--peer-listen", config.peer_listen);
        // Differs if the configuration left the choice of the port to the system.
        config.listen = listener.address();
        if let Ok(peer_listener) = &peer_listener {
            config.peer_listen = peer_listener.address();
        }
        live(Arc::new(config), found, listener, peer_listener, (answers, ready), shutdown).await
    })
}

/// Opens the data directory before anything else if it has to say where to listen.
fn recall(config: &mut Config) -> Result<Option<Found>, RunError> {
    if config.unsaid == Unsaid::default() {
        return Ok(None);
    }
    let found = data::open(config)?;
    if let Found::Existing(data) = &found {
        config.recall(data.identity.member_id, &data.boot.members(), kept_addresses(data))?;
        config.validate()?;
    }
    Ok(Some(found))
}

/// Where this member was at its last start. A file that cannot be read is done without: the log knows the addresses of
/// all members that ever had a leader.
fn kept_addresses(data: &Data) -> Option<Whereabouts> {
    let kept = data.store.addresses().read().inspect_err(|error| tracing::warn!("{error}")).ok().flatten()?;
    serde_json::from_slice(&kept).ok()
}

/// Keeps the addresses for the next start.
fn keep_addresses(config: &Config, data: &Data) -> Result<(), RunError> {
    let whereabouts = config.whereabouts();
    if kept_addresses(data).as_ref() == Some(&whereabouts) {
        return Ok(());
    }
    let bytes = serde_json::to_vec(&whereabouts).unwrap_or_default();
    data.store.addresses().write(&bytes).map_err(|fault| RunError::Data(fault.into()))
}

async fn live(
    config: Arc<Config>,
    found: Option<Found>,
    listener: Listener,
    peer_listener: Result<Listener, ListenError>,
    (answers, ready): (impl FnOnce(SocketAddr), impl FnOnce(SocketAddr)),
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let keyring = config.signing_key.as_deref().map(tenure_fence::read_keyring).transpose()?;
    let (peer_listener, peer_fault) = judge_peer_port(&config, peer_listener)?;
    let data = open(&config, found).await?;
    keep_addresses(&config, &data)?;
    let identity = data.identity;
    let replica_config = replica_config(&config, &data);
    let threads = config.network_thread_count();
    let candidacy = Arc::new(data.store.candidacy());
    let (outbox, orders) = Outbox::new(identity.member_id, config.limits.peer_message_bytes());
    outbox.set_members(data.boot.machine.state().members());
    let peer_settings = PeerPortSettings {
        identity,
        snapshots: data.store.snapshots(),
        known: data.store.peers(),
        outbox: outbox.clone(),
        message_bytes: config.limits.peer_batch_bytes(),
    };
    // Behind the network threads: the peers' thread, and the control thread, which asks for health.
    let mut driver = Driver::start(replica_config, data.boot, data.store, threads + 2, outbox.clone())?;
    let ended = driver.ended();
    let leader = driver.leader();
    let (member, distribute) = driver.attach(threads + 1, Writes::ByLogThread);
    tokio::spawn(distribute);

    let pool = descriptors();
    let status = member.clone();
    let metrics = Metrics::new(&pool, threads).with_replica(move || status.status()).with_limits(&config.limits);
    let metrics = metrics.with_collector(Box::new(PeerMetrics(outbox.counters().clone())));
    let metrics = metrics.with_collector(Box::new(StepMetrics(driver.step_times())));
    let metrics = Arc::new(metrics);
    let health = Health::new(member.clone(), config.call_timeout);
    let reporter = HealthReporter::new();

    let peer_port = Arc::new(Mutex::new(Some((driver.attach(threads, Writes::Itself), peer_settings, orders))));
    let serve_peers = move |_, _: Stopping| {
        let ((member, distribute), settings, orders) = take(&peer_port);
        tokio::spawn(distribute);
        let port = PeerPort::open(settings, member, orders);
        move |_, open| port.connection(Some(open))
    };
    let peers = Network::start(&config, metrics.clone(), "peers", vec![metrics.peers().clone()], serve_peers)?;

    let departure = Departure {
        identity,
        outbox: outbox.clone(),
        patience: config.call_timeout,
        settling: (config.election_max * 3).min(config.call_timeout),
    };
    let (sessions, watching) = Default::default();
    let shared = Arc::new(services::ProcessWide { sessions, watching, keyring, departure });
    let claims = Arc::<services::Claims>::default();
    let attachments = Arc::new((0..threads).map(|index| attach(&mut driver, index)).collect::<Vec<_>>());
    let serve = {
        let (config, metrics, health, reporter) = (config.clone(), metrics.clone(), health.clone(), reporter.clone());
        move |index: usize, stopping: Stopping| {
            let (member, distribute) = take(&attachments[index]);
            tokio::spawn(distribute);
            let websockets = services::WebSockets {
                member: member.clone(),
                config: config.clone(),
                process_wide: shared.clone(),
                claims: claims.clone(),
                stopping: stopping.clone(),
                counters: metrics.runtime(index).clone(),
            };
            let more = websockets.routes().merge(leader::routes(member.clone()));
            let counters = metrics.runtime(index);
            let services = services_of(&config, member, &shared, counters, &reporter).stopping(stopping);
            let services = services.build(counters.clone(), metrics.rpcs().clone());
            let front = Front::new(&config, &pool, services, health.clone(), metrics.clone(), more);
            let front = Arc::new(front);
            move |info, open| Connection::new(front.clone(), info, open)
        }
    };
    let mut settling = tokio::spawn(settle(member.clone(), config.clone(), candidacy));
    let (network, end) = {
        // Peers come in while the start still waits: they are what it waits for.
        let mut peer_accept = std::pin::pin!(accept_peers(&peers, peer_listener, peer_fault, &outbox, identity));
        let early_fault = tokio::select! {
            _ = tokio::time::timeout(PUBLISH_PATIENCE, &mut settling) => None,
            fault = &mut peer_accept => Some(fault),
        };
        let counters = (0..threads).map(|index| metrics.runtime(index).clone()).collect();
        let network = Network::start(&config, metrics, "network", counters, serve)?;
        let members = outbox.members();
        let own = members.iter().find(|known| known.id == identity.member_id && !known.name.is_empty());
        let name = own.map_or(config.name.as_str(), |own| own.name.as_str());
        tracing::info!(name, address = %listener.address(), threads, "the member answers");
        answers(listener.address());
        let announced = announce(leader.clone(), || ready(listener.address()));
        let end = match early_fault {
            Some(fault) => Err(fault.into()),
            None => tokio::select! {
                never = network.accept(&listener) => match never {},
                never = report_health(&health, &reporter, leader.clone()) => match never {},
                never = announced => match never {},
                never = alarms::tell(&member) => match never {},
                never = leadership::tell(&member, &outbox, &config) => match never {},
                fault = &mut peer_accept => Err(fault.into()),
                () = shutdown => Ok(()),
                ending = ended => Err(ending.map_or_else(|_: oneshot::error::RecvError| gone(), RunError::from)),
            },
        };
        (network, end)
    };
    drop(listener);
    health.stop();
    set_health(&reporter, false).await;
    settling.abort();
    if end.is_ok() {
        hand_over(&member, &config).await;
    }
    // A replica that is gone answers nobody: nothing is worth waiting for, but the leader's word that it may go.
    let patience = if matches!(end, Ok(()) | Err(RunError::Removed)) { config.drain } else { Duration::ZERO };
    network.stop(patience).await;
    peers.stop(Duration::ZERO).await;
    let _ = tokio::task::spawn_blocking(move || driver.stop()).await;
    end
}

/// Serves the peer port. Without it a member can live alone: it fails only when others are listed.
async fn accept_peers(
    peers: &Network,
    listener: Option<Listener>,
    fault: Option<ListenError>,
    outbox: &Outbox,
    identity: Identity,
) -> ListenError {
    if let Some(listener) = listener {
        match peers.accept(&listener).await {}
    }
    let mut members = outbox.watch_members();
    let is_other = |member: &tenure_machine::Member| member.id != identity.member_id;
    match (members.wait_for(|members| members.iter().any(is_other)).await, fault) {
        (Ok(_), Some(fault)) => fault,
        _ => std::future::pending().await,
    }
}

/// Makes this member known, and a voter if it came to be one. Alone this takes one write; without a quorum, or
/// while it catches up, it goes on in the background.
async fn settle(member: Member, config: Arc<Config>, candidacy: Arc<Candidacy<OsDisk>>) {
    publish::publish(member.clone(), &config).await;
    let asks = config.join.is_some() || on_disk(&candidacy, Candidacy::is_set).await;
    if asks && !config.learner {
        promote(&member).await;
    }
    on_disk(&candidacy, |candidacy| candidacy.set(false)).await;
}

/// On a thread that may wait. What fails here fails again where it matters; this can be asked for again.
async fn on_disk<T: Default + Send + 'static>(
    candidacy: &Arc<Candidacy<OsDisk>>,
    work: impl FnOnce(&Candidacy<OsDisk>) -> Result<T, Fault> + Send + 'static,
) -> T {
    let candidacy = candidacy.clone();
    let done = tokio::task::spawn_blocking(move || work(&candidacy)).await;
    done.ok().and_then(|done| done.inspect_err(|fault| tracing::warn!(%fault)).ok()).unwrap_or_default()
}

fn gone() -> RunError {
    RunError::Failed("its thread is gone".to_owned())
}

impl From<Ending> for RunError {
    fn from(ending: Ending) -> RunError {
        match ending {
            Ending::Fault(reason) => RunError::Failed(reason),
            Ending::Removed => RunError::Removed,
            Ending::Stranger(text) => RunError::Stranger(text),
        }
    }
}

/// Without the peer port a member can live alone, but not with others.
fn judge_peer_port(
    config: &Config,
    listener: Result<Listener, ListenError>,
) -> Result<(Option<Listener>, Option<ListenError>), ListenError> {
    match listener {
        Ok(listener) => Ok((Some(listener), None)),
        Err(fault) if config.cluster.is_some() || config.join.is_some() => Err(fault),
        Err(fault) => {
            tracing::warn!("no other member can join this one: {fault}");
            Ok((None, Some(fault)))
        }
    }
}

/// Opens the data directory; an empty one becomes that of a member, alone, of a new cluster, or of a running one.
async fn open(config: &Config, found: Option<Found>) -> Result<Data, RunError> {
    let found = found.map_or_else(|| data::open(config), Ok)?;
    let blank = match found {
        Found::Existing(data) => {
            check_cluster(config, &data).await?;
            return Ok(*data);
        }
        Found::Empty(blank) => *blank,
    };
    note_candidacy(config, &blank.candidacy())?;
    let beginning = match (&config.join, &config.cluster) {
        (Some(address), _) => {
            let directory_id = data::draw_directory_id();
            Beginning::joined(
                join::join(address, join::request(config, directory_id), JOIN_PATIENCE).await?,
                directory_id,
            )
        }
        (None, Some(_)) => Beginning::of_cluster(&config.name, &config.initial_cluster()?),
        (None, None) => Beginning::alone(),
    };
    Ok(data::begin(blank, beginning)?)
}

/// Before it joins, so that it is known however it ends.
fn note_candidacy(config: &Config, candidacy: &Candidacy<OsDisk>) -> Result<(), RunError> {
    let failed = |fault| RunError::from(DataError::from(OpenError::from(fault)));
    if config.join.is_none() && config.cluster.is_none() && candidacy.is_set().map_err(failed)? {
        return Err(RunError::Unjoined);
    }
    candidacy.set(config.join.is_some() && !config.learner).map_err(failed)
}

/// A member that starts again knows its cluster; flags that name another one are a mistake.
async fn check_cluster(config: &Config, data: &Data) -> Result<(), RunError> {
    let own = data.identity.cluster_id;
    if config.cluster.is_some() && data::cluster_id(&config.initial_cluster()?) != own {
        tracing::warn!(
            "the data directory belongs to cluster {own:x}, which began with other members: --cluster is not used"
        );
    }
    if let Some(address) = &config.join {
        match join::fetch_peers(address).await {
            Ok(peers) if peers.cluster_id != own => {
                let (address, other) = (address.clone(), peers.cluster_id);
                return Err(JoinError::OtherCluster { address, own, other }.into());
            }
            Ok(_) => {}
            Err(reason) => tracing::info!(address, "the member named by --join does not answer: {reason}"),
        }
    }
    Ok(())
}

/// Asks to become a voter until it is one: it is refused while it has not caught up.
async fn promote(member: &Member) {
    while member.status().learner {
        let id = member.status().member;
        match member.change_members(MemberChange::Promote { id }).await {
            Ok(_) => return tracing::info!("this member votes from now on"),
            Err(failure) => tracing::debug!(%failure, "this member cannot vote yet"),
        }
        tokio::time::sleep(PROMOTE_PAUSE).await;
    }
}

/// A leader that stops in order leaves nobody without one for an election timeout.
async fn hand_over(member: &Member, config: &Config) {
    let status = member.status();
    let is_alone =
        async || member.view(Consistency::Serializable).await.is_ok_and(|view| view.value.members().len() < 2);
    if status.leader == status.member && !is_alone().await {
        let _ = tokio::time::timeout(config.election_max, member.transfer_leader(None)).await;
    }
}

type Attachment = (Member, Pin<Box<dyn Future<Output = ()> + Send>>);

/// Taken by its network thread when that has started.
fn attach(driver: &mut Driver, index: usize) -> Mutex<Option<Attachment>> {
    let (member, distribute) = driver.attach(index, Writes::Itself);
    Mutex::new(Some((member, Box::pin(distribute))))
}

fn take<T>(attachment: &Mutex<Option<T>>) -> T {
    let mut attachment = attachment.lock().unwrap_or_else(PoisonError::into_inner);
    attachment.take().expect("each network thread starts once")
}

/// The gRPC services of one network thread.
fn services_of(
    config: &Arc<Config>,
    member: Member,
    shared: &Arc<services::ProcessWide>,
    counters: &Arc<Counters>,
    reporter: &HealthReporter,
) -> ServicesBuilder {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tenure_api::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    services::services(member, config.clone(), shared.clone(), counters.clone(), Services::builder())
        .add_service(HealthServer::new(HealthService::from_health_reporter(reporter.clone())))
        .add_service(reflection().build_v1().expect("our own descriptors are sound"))
        .add_service(reflection().build_v1alpha().expect("our own descriptors are sound"))
}

/// What the gateway, the metrics and reflection know of the API.
pub(crate) fn descriptors() -> DescriptorPool {
    let mut pool = DescriptorPool::new();
    let sets = [
        tenure_api::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    for set in sets {
        pool.decode_file_descriptor_set(set).expect("the descriptors are compiled in");
    }
    pool
}

/// Says that the member is ready, once it knows a leader: without one it answers, but does nothing.
async fn announce(mut leader: watch::Receiver<MemberId>, ready: impl FnOnce()) -> Infallible {
    if leader.wait_for(|leader| *leader != 0).await.is_ok() {
        ready();
    }
    std::future::pending().await
}

/// Reports health as soon as a leader is known or lost.
async fn report_health(
    health: &Health,
    reporter: &HealthReporter,
    mut leader: watch::Receiver<MemberId>,
) -> Infallible {
    let mut reported = None;
    loop {
        let ready = health.looks_ready();
        if reported != Some(ready) {
            set_health(reporter, ready).await;
            reported = Some(ready);
        }
        if leader.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Under the name of each service, and under the empty one for the whole.
async fn set_health(reporter: &HealthReporter, ready: bool) {
    let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in descriptors().services() {
        reporter.set_service_status(service.full_name(), status).await;
    }
    reporter.set_service_status("", status).await;
}

fn replica_config(config: &Config, data: &Data) -> tenure_replica::Config {
    let ms = |duration: Duration| duration.as_millis() as u64;
    tenure_replica::Config {
        cluster: data.identity.cluster_id,
        member: data.identity.member_id,
        boot: random_u64(),
        seed: random_u64(),
        tick_ms: ms(config.tick),
        heartbeat_ms: ms(config.heartbeat),
        election_min_ms: ms(config.election_min),
        election_max_ms: ms(config.election_max),
        call_timeout_ms: ms(config.call_timeout),
        snapshot_floor_bytes: config.snapshot_floor,
        inflight_bytes: config.limits.inflight_bytes,
        watch_buffer_bytes: config.limits.watch_buffer_bytes,
        quota_bytes: config.quota,
        history_age_ms: ms(config.history_age),
        history_bytes: config.history_size,
        highest_level: config.highest_level(),
        compare_interval_ms: ms(config.compare_interval),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread::JoinHandle;

    use tokio_stream::StreamExt;
    use tonic::transport::Channel;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus as Reported;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    struct Running {
        address: SocketAddr,
        shutdown: oneshot::Sender<()>,
        thread: JoinHandle<Result<(), RunError>>,
    }

    fn start(directory: &std::path::Path) -> Running {
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: directory.join("data"),
            network_threads: 2,
            ..Config::default()
        };
        let (shutdown, stopped) = oneshot::channel();
        let (announce, announced) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let shutdown = async { drop(stopped.await) };
            run_with(config, move |address| announce.send(address).unwrap(), shutdown)
        });
        let address = announced.recv().expect("the member has started");
        Running { address, shutdown, thread }
    }

    impl Running {
        async fn channel(&self) -> Channel {
            Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
        }

        async fn stop(self) {
            self.shutdown.send(()).unwrap();
            tokio::task::spawn_blocking(|| self.thread.join()).await.unwrap().unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_member_lives_and_ends() {
        let directory = tempfile::tempdir().unwrap();
        let running = start(directory.path());
        let channel = running.channel().await;

        let mut health = HealthClient::new(channel.clone());
        let mut statuses = health.watch(HealthCheckRequest { service: String::new() }).await.unwrap().into_inner();
        while statuses.next().await.unwrap().unwrap().status() != Reported::Serving {}
        let request = HealthCheckRequest { service: "etcdserverpb.KV".to_owned() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status(), Reported::Serving);

        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut reflection = ServerReflectionClient::new(channel);
        let answers = reflection.server_reflection_info(tokio_stream::once(request)).await.unwrap();
        let answer = answers.into_inner().next().await.unwrap().unwrap().message_response.unwrap();
        let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
        for service in ["etcdserverpb.KV", "v3lockpb.Lock", "v3electionpb.Election", "grpc.health.v1.Health"] {
            assert!(list.service.iter().any(|known| known.name == service), "{service} is not in {list:?}");
        }

        let began = std::time::Instant::now();
        running.stop().await;
        assert!(began.elapsed() < Config::default().drain, "an open stream does not delay the end");
        assert_eq!(statuses.next().await.unwrap().unwrap().status(), Reported::NotServing, "told before the end");
        start(directory.path()).stop().await;
    }

    #[test]
    fn a_bad_configuration_does_nothing() {
        let config = Config { name: String::new(), ..Config::default() };
        assert!(matches!(run(config, std::future::pending()), Err(RunError::Config(_))));
    }
}
