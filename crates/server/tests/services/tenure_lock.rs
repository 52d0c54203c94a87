//! Tenure's own lock service.

use std::time::Duration;

use tenure_api::tenure::v1::lease::State;
use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tenure_api::tenure::v1::recent_holder::End;
use tenure_api::tenure::v1::watch_request::Request as AskedWatch;
use tenure_api::tenure::v1::{
    BarrierRequest, CampaignRequest, DeleteRequest, DescribeRequest, DescribeResponse, ForceReleaseRequest, Holder,
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, ListRequest, ListSessionsRequest, LockRequest,
    LockResponse, Mode, SignRequest, UnlockRequest, WatchCreate, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::harness::*;

type Client = LockServiceClient<Channel>;

pub fn client(server: &Server) -> Client {
    LockServiceClient::new(server.channel())
}

pub async fn lease(client: &mut Client, client_id: &str) -> i64 {
    let request = LeaseGrantRequest { ttl_ms: 60_000, id: 0, client_id: client_id.to_owned() };
    client.lease_grant(request).await.unwrap().into_inner().id
}

pub fn ask(name: &str, lease_id: i64) -> LockRequest {
    LockRequest { name: name.to_owned(), lease_id, ..LockRequest::default() }
}

pub async fn lock(client: &mut Client, request: LockRequest) -> LockResponse {
    timeout(PATIENCE, client.lock(request)).await.expect("in time").unwrap().into_inner()
}

async fn refused(client: &mut Client, request: LockRequest) -> (Code, String) {
    let status = timeout(PATIENCE, client.lock(request)).await.expect("in time").unwrap_err();
    (status.code(), status.message().to_owned())
}

pub fn waits(client: &Client, request: LockRequest) -> JoinHandle<Result<LockResponse, Status>> {
    let mut client = client.clone();
    tokio::spawn(async move { client.lock(request).await.map(|response| response.into_inner()) })
}

pub async fn unlock(client: &mut Client, name: &str, fencing_token: i64) -> Result<bool, Status> {
    let request = UnlockRequest { name: name.to_owned(), fencing_token, ..UnlockRequest::default() };
    client.unlock(request).await.map(|response| response.into_inner().released)
}

pub async fn describe(client: &mut Client, name: &str) -> DescribeResponse {
    client.describe(DescribeRequest { name: name.to_owned() }).await.unwrap().into_inner()
}

/// Waits until so many wait for the lock.
pub async fn waiting(client: &mut Client, name: &str, count: usize) {
    timeout(PATIENCE, async { while describe(client, name).await.waiters.len() != count {} }).await.expect("in time");
}

#[tokio::test]
async fn a_lock_is_taken_seen_and_given_back() {
    let server = Server::start().await;
    let mut client = client(&server);
    let lease = lease(&mut client, "ada").await;
    let request = LockRequest { metadata: "deploy 7".into(), ..ask("jobs", lease) };
    let held = lock(&mut client, request.clone()).await;
    assert!(held.acquired && !held.renewed);
    assert_eq!(held.key, format!("jobs/{lease:x}"));
    let again = lock(&mut client, request).await;
    assert!(again.acquired && again.renewed);
    assert_eq!(again.fencing_token, held.fencing_token, "the same place, the same token");

    let found = describe(&mut client, "jobs").await;
    let [holder] = &found.holders[..] else { panic!("{found:?}") };
    assert_eq!((holder.holder_id.as_str(), holder.fencing_token), ("ada", held.fencing_token));
    assert_eq!(holder.metadata, "deploy 7");
    assert_eq!(
        (holder.create_revision, holder.mod_revision, holder.version),
        (held.fencing_token, held.fencing_token, 1)
    );
    let known = holder.lease.as_ref().unwrap();
    assert_eq!((known.id, known.client_id.as_str(), known.granted_ttl_ms), (lease, "ada", 60_000));
    assert!(known.remaining_ttl_ms > 0 && known.expiry_unix_ms > found.now_unix_ms);
    assert_eq!(known.keys, std::slice::from_ref(&held.key));

    assert!(unlock(&mut client, "jobs", held.fencing_token).await.unwrap());
    assert!(!unlock(&mut client, "jobs", held.fencing_token).await.unwrap(), "it is free already");
    let found = describe(&mut client, "jobs").await;
    assert!(found.holders.is_empty());
    let [recent] = &found.recent[..] else { panic!("{found:?}") };
    assert_eq!((recent.end(), recent.holder.as_ref().unwrap().fencing_token), (End::Released, held.fencing_token));
    let forgotten = client.delete(DeleteRequest { name: "jobs".to_owned() }).await.unwrap().into_inner().forgotten;
    assert_eq!((forgotten, describe(&mut client, "jobs").await.recent.len()), (1, 0));
}

#[tokio::test]
async fn who_cannot_wait_is_told_who_is_in_the_way() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let held = lock(&mut client, LockRequest { holder_id: "ada's job".to_owned(), ..ask("jobs", ada) }).await;
    let busy = client.try_lock(ask("jobs", bob)).await.unwrap().into_inner();
    assert!(!busy.acquired && busy.fencing_token == 0 && busy.key.is_empty());
    let holder = busy.holder.unwrap();
    assert_eq!((holder.holder_id.as_str(), holder.fencing_token), ("ada's job", held.fencing_token));
    let late = lock(&mut client, LockRequest { timeout_ms: Some(30), ..ask("jobs", bob) }).await;
    assert!(!late.acquired && late.holder.is_some());
    waiting(&mut client, "jobs", 0).await;
    // Nor does it wait for its turn where another call of the same lease does, which keeps its place.
    let mut other = client.clone();
    let patient = tokio::spawn(async move { lock(&mut other, ask("jobs", bob)).await });
    waiting(&mut client, "jobs", 1).await;
    assert!(!client.try_lock(ask("jobs", bob)).await.unwrap().into_inner().acquired);
    assert!(unlock(&mut client, "jobs", held.fencing_token).await.unwrap());
    assert!(patient.await.unwrap().acquired);
}

#[tokio::test]
async fn the_next_in_line_gets_it_and_nobody_else() {
    let server = Server::start().await;
    let mut client = client(&server);
    let mut leases = Vec::new();
    for name in ["ada", "bob", "cleo", "dan"] {
        leases.push(lease(&mut client, name).await);
    }
    let first = lock(&mut client, ask("jobs", leases[0])).await;
    let mut queue = Vec::new();
    for (index, lease) in leases[1..].iter().enumerate() {
        queue.push(waits(&client, ask("jobs", *lease)));
        waiting(&mut client, "jobs", index + 1).await;
    }
    let found = describe(&mut client, "jobs").await;
    let ids: Vec<_> = found.waiters.iter().map(|waiter| waiter.entry.as_ref().unwrap().holder_id.clone()).collect();
    assert_eq!(ids, ["bob", "cleo", "dan"]);
    assert_eq!(found.waiters[0].predecessor_key, first.key);
    assert_eq!(found.waiters[1].predecessor_key, found.waiters[0].entry.as_ref().unwrap().key);
    assert!(found.waiters.iter().all(|waiter| waiter.entry.as_ref().unwrap().fencing_token == 0), "not disclosed yet");

    // Cancelling the call gives the place up.
    queue.remove(1).abort();
    waiting(&mut client, "jobs", 2).await;
    assert!(unlock(&mut client, "jobs", first.fencing_token).await.unwrap());
    let second = timeout(PATIENCE, queue.remove(0)).await.unwrap().unwrap().unwrap();
    assert!(second.fencing_token > first.fencing_token);
    assert_eq!(describe(&mut client, "jobs").await.waiters.len(), 1, "one release grants to one");
    let status = unlock(&mut client, "jobs", first.fencing_token).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "not the holder"));
}

#[tokio::test]
async fn etcds_clients_stand_in_the_same_queue() {
    let server = Server::start().await;
    let mut client = client(&server);
    let etcd_lease = server.grant(60).await;
    let mut etcd = server.lock();
    let request = tenure_api::v3lockpb::LockRequest { name: "jobs".into(), lease: etcd_lease };
    let first = etcd.lock(request).await.unwrap().into_inner();
    let native = lease(&mut client, "native").await;
    let waiter = waits(&client, ask("jobs", native));
    waiting(&mut client, "jobs", 1).await;
    etcd.unlock(tenure_api::v3lockpb::UnlockRequest { key: first.key }).await.unwrap();
    let second = timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap();
    let request = tenure_api::v3lockpb::LockRequest { name: "jobs".into(), lease: etcd_lease };
    let third = tokio::spawn(async move { etcd.lock(request).await });
    waiting(&mut client, "jobs", 1).await;
    assert!(unlock(&mut client, "jobs", second.fencing_token).await.unwrap());
    timeout(PATIENCE, third).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn readers_share_and_slots_are_counted() {
    let server = Server::start().await;
    let mut client = client(&server);
    let mut leases = Vec::new();
    for name in ["a", "b", "c"] {
        leases.push(lease(&mut client, name).await);
    }
    let shared = |lease| LockRequest { mode: Mode::Shared.into(), timeout_ms: Some(0), ..ask("book", lease) };
    assert!(lock(&mut client, shared(leases[0])).await.acquired);
    assert!(lock(&mut client, shared(leases[1])).await.acquired);
    assert!(!client.try_lock(ask("book", leases[2])).await.unwrap().into_inner().acquired);
    let slot =
        |lease| LockRequest { mode: Mode::Semaphore.into(), slots: 2, timeout_ms: Some(0), ..ask("pool", lease) };
    let (first, second) = (lock(&mut client, slot(leases[0])).await, lock(&mut client, slot(leases[1])).await);
    assert_eq!((first.slot, second.slot), (0, 1));
    assert!(!lock(&mut client, slot(leases[2])).await.acquired);
    assert!(unlock(&mut client, "pool", first.fencing_token).await.unwrap());
    assert_eq!(lock(&mut client, slot(leases[2])).await.slot, 0);
}

#[tokio::test]
async fn several_at_once_or_none() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let b = lock(&mut client, ask("b", ada)).await;
    let request = LockRequest { more_names: vec!["b".to_owned(), "c".to_owned()], ..ask("a", bob) };
    let busy = client.try_lock(request.clone()).await.unwrap().into_inner();
    assert!(!busy.acquired);
    assert!(client.try_lock(ask("a", ada)).await.unwrap().into_inner().acquired, "nothing of it was kept");
    let all = waits(&client, request);
    waiting(&mut client, "c", 0).await;
    let a = lock(&mut client, ask("a", ada)).await;
    assert!(unlock(&mut client, "b", b.fencing_token).await.unwrap());
    assert!(unlock(&mut client, "a", a.fencing_token).await.unwrap());
    let all = timeout(PATIENCE, all).await.unwrap().unwrap().unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(describe(&mut client, name).await.holders[0].fencing_token, all.fencing_token);
    }
    let (code, text) = refused(&mut client, LockRequest { more_names: vec!["d".to_owned()], ..ask("a", bob) }).await;
    assert_eq!((code, text.as_str()), (Code::FailedPrecondition, "lock is held already by the same lease"));
}

#[tokio::test]
async fn a_circle_of_owners_is_refused_and_spelled_out() {
    let server = Server::start().await;
    let mut client = client(&server);
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(lease(&mut client, "").await);
    }
    let of = |owner: &str, name: &str, lease| LockRequest { owner: owner.to_owned(), ..ask(name, lease) };
    lock(&mut client, of("ada", "left", leases[0])).await;
    lock(&mut client, of("bob", "right", leases[1])).await;
    let waiter = waits(&client, of("ada", "right", leases[2]));
    waiting(&mut client, "right", 1).await;
    let (code, text) = refused(&mut client, of("bob", "left", leases[3])).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert_eq!(text, "deadlock: bob waits for left behind ada, ada waits for right behind bob");
    waiter.abort();
}

#[tokio::test]
async fn an_operator_can_take_a_lock_away() {
    let server = Server::start().await;
    let mut client = client(&server);
    let lease = lease(&mut client, "stuck").await;
    let held = lock(&mut client, ask("jobs", lease)).await;
    let force = |fencing_token| ForceReleaseRequest { name: "jobs".to_owned(), fencing_token };
    let status = client.force_release(force(held.fencing_token + 1)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "not the holder"));
    let released = client.force_release(force(held.fencing_token)).await.unwrap().into_inner().released.unwrap();
    assert_eq!(released.key, held.key);
    let found = describe(&mut client, "jobs").await;
    assert_eq!((found.holders.len(), found.recent[0].end()), (0, End::Forced));
    let status = client.force_release(force(held.fencing_token)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "not held"));
}

/// A watch of one lock that has been created, with the sender that keeps it open.
async fn watched(client: &mut Client, key: &str) -> (mpsc::Sender<WatchRequest>, Streaming<WatchResponse>) {
    let (requests, receiver) = mpsc::channel(10);
    let create = WatchCreate { key: key.to_owned(), watch_id: 1, prev: true, ..Default::default() };
    requests.send(WatchRequest { request: Some(AskedWatch::Create(create)) }).await.unwrap();
    let mut watch = client.watch(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    assert!(timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap().created);
    (requests, watch)
}

#[tokio::test]
async fn a_holder_that_lives_is_never_described_as_expired() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let (_requests, mut watch) = watched(&mut client, "jobs").await;
    let held = lock(&mut client, ask("jobs", ada)).await;
    let state = |holder: &Holder| holder.lease.as_ref().unwrap().state();

    // A refusal has asked for the lease, and knows the key.
    let late = LockRequest { timeout_ms: Some(20), ..ask("jobs", bob) };
    for refused in [client.try_lock(ask("jobs", bob)).await.unwrap().into_inner(), lock(&mut client, late).await] {
        let holder = refused.holder.unwrap();
        assert!(matches!(state(&holder), State::Created | State::Active), "{holder:?}");
        assert_eq!(holder.lease.as_ref().unwrap().granted_ttl_ms, 60_000);
        assert_eq!((holder.mod_revision, holder.version), (held.fencing_token, 1));
        assert_eq!(holder.holder_id, "ada");
    }
    // A watch has not: it says nothing about either.
    let event = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap().events.remove(0);
    let holder = event.holder.unwrap();
    assert_eq!((holder.lease.as_ref().unwrap().id, state(&holder)), (ada, State::Unknown));

    let force = ForceReleaseRequest { name: "jobs".to_owned(), fencing_token: held.fencing_token };
    let released = client.force_release(force).await.unwrap().into_inner().released.unwrap();
    assert!(matches!(state(&released), State::Created | State::Active), "{released:?}");
    let event = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap().events.remove(0);
    assert_eq!(state(&event.prev.unwrap()), State::Unknown);
}

#[tokio::test]
async fn a_lease_is_active_from_its_first_renewal_on() {
    let server = Server::start().await;
    let mut client = client(&server);
    let ada = lease(&mut client, "ada").await;
    async fn state(client: &mut Client) -> State {
        let request = ListSessionsRequest::default();
        let sessions = client.list_sessions(request).await.unwrap().into_inner().sessions;
        sessions[0].lease.as_ref().unwrap().state()
    }
    assert_eq!(state(&mut client).await, State::Created);
    let renewals = tokio_stream::once(LeaseKeepAliveRequest { id: ada });
    let mut renewed = client.lease_keep_alive(renewals).await.unwrap().into_inner();
    timeout(PATIENCE, renewed.message()).await.unwrap().unwrap().expect("an answer");
    assert_eq!(state(&mut client).await, State::Active);
    // Keys that come and go change nothing about that.
    let held = lock(&mut client, ask("jobs", ada)).await;
    assert_eq!(state(&mut client).await, State::Active);
    assert!(unlock(&mut client, "jobs", held.fencing_token).await.unwrap());
    assert_eq!(state(&mut client).await, State::Active);
}

#[tokio::test]
async fn an_unlock_that_names_its_lease_ends_no_other_tenure() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let held = lock(&mut client, ask("jobs", ada)).await;
    let release = |lease| UnlockRequest {
        name: "jobs".to_owned(),
        fencing_token: held.fencing_token,
        lease_id: Some(lease),
        ..UnlockRequest::default()
    };
    assert_refused(client.unlock(release(bob)).await, Code::FailedPrecondition, "not the holder");
    assert_eq!(describe(&mut client, "jobs").await.holders.len(), 1);
    assert!(client.unlock(release(ada)).await.unwrap().into_inner().released);
    assert!(!client.unlock(release(bob)).await.unwrap().into_inner().released, "it is free already");
}

#[tokio::test]
async fn a_waiter_discloses_no_revision_before_it_is_granted() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let held = lock(&mut client, ask("jobs", ada)).await;
    let waiter = waits(&client, ask("jobs", bob));
    waiting(&mut client, "jobs", 1).await;
    let entry = describe(&mut client, "jobs").await.waiters.remove(0).entry.unwrap();
    assert_eq!((entry.fencing_token, entry.create_revision), (0, 0));
    assert_eq!((entry.mod_revision, entry.version), (0, 0), "its mod revision is its token");
    assert!(unlock(&mut client, "jobs", held.fencing_token).await.unwrap());
    let granted = timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap();
    let holder = describe(&mut client, "jobs").await.holders.remove(0);
    assert_eq!((holder.mod_revision, holder.version), (granted.fencing_token, 1));
}

#[tokio::test]
async fn a_lock_ends_with_its_lease() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    lock(&mut client, ask("jobs", ada)).await;
    let waiter = waits(&client, ask("jobs", bob));
    waiting(&mut client, "jobs", 1).await;
    client.lease_revoke(LeaseRevokeRequest { id: ada }).await.unwrap();
    assert!(timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap().acquired);
    assert_eq!(describe(&mut client, "jobs").await.recent[0].end(), End::Revoked);
    let gone = (Code::NotFound, "etcdserver: requested lease not found".to_owned());
    assert_eq!(refused(&mut client, ask("jobs", ada)).await, gone);
    let grant = LeaseGrantRequest { ttl_ms: 500, ..LeaseGrantRequest::default() };
    let cleo = client.lease_grant(grant).await.unwrap().into_inner().id;
    lock(&mut client, ask("brief", cleo)).await;
    timeout(PATIENCE, async {
        while describe(&mut client, "brief").await.recent.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it expires");
    assert_eq!(describe(&mut client, "brief").await.recent[0].end(), End::Expired);
    assert_eq!(refused(&mut client, ask("brief", cleo)).await, gone);

    let requests = tokio_stream::iter([bob, ada].map(|id| LeaseKeepAliveRequest { id }));
    let mut renewals = client.lease_keep_alive(requests).await.unwrap().into_inner();
    let renewed = renewals.message().await.unwrap().unwrap();
    assert_eq!((renewed.id, renewed.ttl_ms), (bob, 60_000));
    let status = renewals.message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "etcdserver: requested lease not found"));
}

#[tokio::test]
async fn locks_and_sessions_are_listed_in_pages() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    for name in ["a/1", "a/2", "a/3", "b/1"] {
        lock(&mut client, ask(name, ada)).await;
    }
    let waiter = waits(&client, ask("a/2", bob));
    waiting(&mut client, "a/2", 1).await;
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRequest { prefix: "a/".to_owned(), limit: 2, page_token };
        let page = client.list(request).await.unwrap().into_inner();
        assert!(page.locks.len() <= 2);
        names.extend(page.locks.iter().map(|lock| (lock.name.clone(), lock.waiting)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, [("a/1".to_owned(), 0), ("a/2".to_owned(), 1), ("a/3".to_owned(), 0)]);

    let all = client.list_sessions(ListSessionsRequest::default()).await.unwrap().into_inner().sessions;
    let mut seen: Vec<_> =
        all.iter().map(|session| (session.client_id.as_str(), session.locks_held, session.locks_awaited)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [("ada", 4, 0), ("bob", 0, 1)]);
    let first =
        client.list_sessions(ListSessionsRequest { limit: 1, ..Default::default() }).await.unwrap().into_inner();
    let rest = ListSessionsRequest { limit: 1, page_token: first.next_page_token };
    let second = client.list_sessions(rest).await.unwrap().into_inner();
    assert_ne!(first.sessions[0].client_id, second.sessions[0].client_id);
    assert!(second.next_page_token.is_empty());
    waiter.abort();
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_reason() {
    let server = Server::start().await;
    let mut client = client(&server);
    let lease = lease(&mut client, "").await;
    let long = "x".repeat(1025);
    let cases = [
        (ask("", lease), "name is missing"),
        (ask(&long, lease), "name is longer than 1024 bytes"),
        (ask("a", 0), "lease_id is missing: grant a lease first"),
        (LockRequest { mode: 7, ..ask("a", lease) }, "unknown mode 7"),
        (LockRequest { mode: Mode::Semaphore.into(), ..ask("a", lease) }, "a semaphore needs slots"),
        (LockRequest { slots: 2, ..ask("a", lease) }, "only a semaphore has slots"),
        (LockRequest { mode: Mode::Barrier.into(), ..ask("a", lease) }, "a barrier has 1 to 10000 parties"),
        (
            LockRequest { mode: Mode::Barrier.into(), slots: 2, more_names: vec!["b".to_owned()], ..ask("a", lease) },
            "a barrier has one name",
        ),
        (LockRequest { timeout_ms: Some(-1), ..ask("a", lease) }, "timeout_ms must not be negative"),
        (LockRequest { metadata: vec![0; 4097].into(), ..ask("a", lease) }, "metadata is longer than 4096 bytes"),
        (LockRequest { owner: long.clone(), ..ask("a", lease) }, "owner is longer than 1024 bytes"),
        (LockRequest { more_names: vec!["b".to_owned(); 64], ..ask("a", lease) }, "more than 64 names"),
    ];
    for (request, text) in cases {
        assert_eq!(refused(&mut client, request).await, (Code::InvalidArgument, text.to_owned()));
    }
    let status = client.lease_grant(LeaseGrantRequest { ttl_ms: 499, ..Default::default() }).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, "ttl_ms must be at least 500"));
    let status = unlock(&mut client, "a", 0).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "fencing_token is missing"));
}

#[tokio::test]
async fn who_waits_is_told_of_the_end() {
    // Whoever were waited for would be waited for longer than this test does.
    let server = Server::start_with(|config| config.drain = PATIENCE * 60).await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let cleo = lease(&mut client, "cleo").await;
    lock(&mut client, ask("jobs", ada)).await;
    let (mut candidate, mut party) = (client.clone(), client.clone());
    let campaign = CampaignRequest { name: "jobs".to_owned(), lease_id: cleo, ..Default::default() };
    let barrier = BarrierRequest { name: "gate".to_owned(), lease_id: bob, parties: 2, ..Default::default() };
    let waiters = [
        waits(&client, ask("jobs", bob)),
        tokio::spawn(async move { candidate.campaign(campaign).await.map(|response| response.into_inner()) }),
        tokio::spawn(async move { party.barrier(barrier).await.map(|response| response.into_inner()) }),
    ];
    waiting(&mut client, "jobs", 2).await;
    waiting(&mut client, "gate", 1).await;
    let stopped = tokio::spawn(server.stop());
    for waiter in waiters {
        let answer = timeout(PATIENCE, waiter).await.expect("in time").unwrap();
        assert_refused(answer, Code::Unavailable, "etcdserver: server stopped");
    }
    timeout(PATIENCE, stopped).await.expect("in time").unwrap();
}

#[tokio::test]
async fn a_cluster_with_a_key_signs_its_grants() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("signing.key");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef0123456789ab").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start_with(|config| config.signing_key = Some(file.clone())).await;
    let mut client = client(&server);
    let lease = lease(&mut client, "ada").await;
    let held = lock(&mut client, ask("jobs", lease)).await;
    let keyring = tenure_fence::read_keyring(&file).unwrap();
    let cluster = format!("{:x}", held.header.unwrap().cluster_id);
    let claim = keyring.open(&held.signature).unwrap();
    assert_eq!((claim.cluster(), claim.key().as_str(), claim.holder()), (cluster.as_str(), "jobs", "ada"));
    assert_eq!(claim.token().get(), held.fencing_token as u64);
    let slot =
        LockRequest { mode: Mode::Semaphore.into(), slots: 2, holder_id: "bob".to_owned(), ..ask("pool", lease) };
    let held = lock(&mut client, slot).await;
    let claim = keyring.open(&held.signature).unwrap();
    assert_eq!((claim.key().as_str(), claim.holder()), ("pool#0", "bob"));
    let shared = lock(&mut client, LockRequest { mode: Mode::Shared.into(), ..ask("book", lease) }).await;
    assert_eq!(shared.signature, "", "it fences no writes");
    let again = sign(&mut client, "book", lease, shared.fencing_token).await.unwrap();
    assert_eq!(again, "", "nor is it signed later");
    let barrier = lock(&mut client, LockRequest { mode: Mode::Barrier.into(), slots: 1, ..ask("gate", lease) }).await;
    assert_eq!(barrier.signature, "", "nor does it");
}

/// A member that signs its grants, with its key.
pub async fn signing_server() -> (Server, tenure_fence::Keyring, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("signing.key");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef0123456789ab").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start_with(|config| config.signing_key = Some(file.clone())).await;
    (server, tenure_fence::read_keyring(&file).unwrap(), directory)
}

#[tokio::test]
async fn a_signature_never_says_more_than_the_entry() {
    let (server, _, _directory) = signing_server().await;
    let mut client = client(&server);
    let ada = lease(&mut client, "ada").await;
    lock(&mut client, LockRequest { mode: Mode::Shared.into(), ..ask("book", ada) }).await;
    // A reader that asks for the lock alone is refused, or is told of the lock that it has.
    match client.lock(ask("book", ada)).await {
        Ok(response) => assert_eq!(response.into_inner().signature, "", "a shared lock fences no writes"),
        Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}"),
    }
}

#[tokio::test]
async fn a_signature_expires_with_the_lease() {
    let (server, keyring, _directory) = signing_server().await;
    let mut client = client(&server);
    let grant = LeaseGrantRequest { ttl_ms: 5000, id: 0, client_id: "ada".to_owned() };
    let ada = client.lease_grant(grant).await.unwrap().into_inner().id;
    let held = lock(&mut client, ask("jobs", ada)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let again = lock(&mut client, ask("jobs", ada)).await;
    assert!(again.renewed);
    let signed_again = sign(&mut client, "jobs", ada, held.fencing_token).await.unwrap();
    let described = describe(&mut client, "jobs").await;
    let ends = described.holders[0].lease.as_ref().unwrap().expiry_unix_ms as u64;
    for signature in [held.signature, again.signature, signed_again] {
        let claim = keyring.open(&signature).unwrap();
        assert!(claim.expires_at_ms() <= ends, "{} after {ends}", claim.expires_at_ms());
    }
}

async fn sign(client: &mut Client, name: &str, lease_id: i64, fencing_token: i64) -> Result<String, Status> {
    let request = SignRequest { name: name.to_owned(), lease_id, fencing_token };
    client.sign(request).await.map(|response| response.into_inner().signature)
}

#[tokio::test]
async fn a_grant_that_stands_is_signed_again_and_one_that_does_not_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("signing.key");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef0123456789ab").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start_with(|config| config.signing_key = Some(file.clone())).await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let both = LockRequest { more_names: vec!["more".to_owned()], holder_id: "ada's".to_owned(), ..ask("jobs", ada) };
    let held = lock(&mut client, both).await;
    let waiter = waits(&client, ask("jobs", bob));
    waiting(&mut client, "jobs", 1).await;
    let keyring = tenure_fence::read_keyring(&file).unwrap();
    let first = keyring.open(&held.signature).unwrap();
    for name in ["jobs", "more"] {
        let claim = keyring.open(&sign(&mut client, name, ada, held.fencing_token).await.unwrap()).unwrap();
        assert_eq!((claim.key().as_str(), claim.holder()), (name, "ada's"));
        assert_eq!((claim.token(), claim.cluster()), (first.token(), first.cluster()));
    }
    // The token of somebody else, a place that waits, a lease that there is not.
    for (lease, token) in [(bob, held.fencing_token), (bob, held.fencing_token + 1), (7, held.fencing_token), (ada, 1)]
    {
        assert_refused(sign(&mut client, "jobs", lease, token).await, Code::FailedPrecondition, "not the holder");
    }
    assert_refused(sign(&mut client, "jobs", ada, 0).await, Code::InvalidArgument, "fencing_token is missing");
    let release = UnlockRequest {
        name: "jobs".to_owned(),
        more_names: vec!["more".to_owned()],
        fencing_token: held.fencing_token,
        lease_id: None,
    };
    assert!(client.unlock(release).await.unwrap().into_inner().released);
    let refused = sign(&mut client, "jobs", ada, held.fencing_token).await;
    assert_refused(refused, Code::FailedPrecondition, "not the holder");
    let next = timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap();
    let claim = keyring.open(&sign(&mut client, "jobs", bob, next.fencing_token).await.unwrap()).unwrap();
    assert_eq!(claim.holder(), "bob", "who names no holder is known by its lease's client");
}

#[tokio::test]
async fn who_holds_a_lock_can_be_watched() {
    use tenure_api::tenure::v1::lock_event::Type;
    use tenure_api::tenure::v1::watch_request::Request as Asked;
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let (requests, receiver) = tokio::sync::mpsc::channel(10);
    let create = |watch_id, key: &str, prefix, start_revision| {
        let create =
            WatchCreate { key: key.to_owned(), prefix, watch_id, start_revision, prev: true, ..Default::default() };
        WatchRequest { request: Some(Asked::Create(create)) }
    };
    requests.send(create(7, "jobs/", true, 0)).await.unwrap();
    let mut watch = client.watch(tokio_stream::wrappers::ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let created = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
    assert!(created.created && !created.canceled && created.watch_id == 7);

    let first = lock(&mut client, LockRequest { holder_id: "ada".to_owned(), ..ask("jobs/a", ada) }).await;
    let waiter = waits(&client, LockRequest { holder_id: "bob".to_owned(), ..ask("jobs/a", bob) });
    waiting(&mut client, "jobs/a", 1).await;
    lock(&mut client, ask("elsewhere", ada)).await;
    assert!(unlock(&mut client, "jobs/a", first.fencing_token).await.unwrap());
    let second = timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap();
    assert!(unlock(&mut client, "jobs/a", second.fencing_token).await.unwrap());
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let response = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
        for event in response.events {
            let name = |holder: Option<tenure_api::tenure::v1::Holder>| {
                holder.map_or(String::new(), |holder| holder.holder_id)
            };
            seen.push((event.r#type(), event.name.clone(), name(event.holder), name(event.prev)));
        }
    }
    let told = |kind, holder: &str, prev: &str| (kind, "jobs/a".to_owned(), holder.to_owned(), prev.to_owned());
    assert_eq!(seen, [told(Type::Put, "ada", ""), told(Type::Put, "bob", "ada"), told(Type::Delete, "", "bob")]);

    // From the past on, and from a past that nobody remembers.
    requests.send(create(8, "jobs/a", false, second.fencing_token)).await.unwrap();
    let created = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
    assert!(created.created && !created.canceled, "{created:?}");
    let past = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
    let kinds: Vec<_> = past.events.iter().map(|event| (event.r#type(), event.revision)).collect();
    let handed_over = kinds.first().unwrap().1;
    assert_eq!(kinds, [(Type::Put, handed_over), (Type::Delete, handed_over + 1)]);
    requests.send(create(9, "jobs/a", false, -1)).await.unwrap();
    let refused = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
    assert!(refused.created && refused.canceled, "{refused:?}");
    requests.send(create(7, "x", false, 0)).await.unwrap();
    assert!(timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap().canceled, "the id is taken");
}
