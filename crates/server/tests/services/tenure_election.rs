//! Tenure's own election rpcs, and etcd's clients in the same elections.

use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tenure_api::tenure::v1::{
    CampaignRequest, LeaderRequest, LeaderResponse, LeaseRevokeRequest, LockResponse, ObserveRequest, ProclaimRequest,
    ResignRequest,
};
use tenure_api::v3electionpb as etcd;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::harness::*;
use crate::tenure_barrier::{arrive, arrives, passed};
use crate::tenure_lock::{ask, client, describe, lease, lock, unlock, waiting};

type Client = LockServiceClient<Channel>;

fn stand(lease_id: i64, value: &str) -> CampaignRequest {
    let value = value.to_owned().into();
    CampaignRequest { name: "boss".to_owned(), lease_id, value, ..CampaignRequest::default() }
}

fn campaigns(client: &Client, request: CampaignRequest) -> JoinHandle<Result<LockResponse, Status>> {
    let mut client = client.clone();
    tokio::spawn(async move { client.campaign(request).await.map(|response| response.into_inner()) })
}

async fn campaign(client: &Client, request: CampaignRequest) -> LockResponse {
    timeout(PATIENCE, campaigns(client, request)).await.expect("in time").unwrap().unwrap()
}

async fn won(campaign: JoinHandle<Result<LockResponse, Status>>) -> i64 {
    let elected = timeout(PATIENCE, campaign).await.expect("in time").unwrap().unwrap();
    assert!(elected.acquired);
    elected.fencing_token
}

async fn proclaim(client: &mut Client, fencing_token: i64, value: &str) -> Result<i64, Status> {
    let request = ProclaimRequest { name: "boss".to_owned(), fencing_token, value: value.to_owned().into() };
    Ok(client.proclaim(request).await?.into_inner().header.unwrap().revision)
}

async fn resign(client: &mut Client, fencing_token: i64) -> bool {
    let request = ResignRequest { name: "boss".to_owned(), fencing_token };
    client.resign(request).await.unwrap().into_inner().released
}

async fn leader(client: &mut Client) -> Result<LeaderResponse, Status> {
    client.leader(LeaderRequest { name: "boss".to_owned() }).await.map(|response| response.into_inner())
}

async fn observe(client: &mut Client) -> Streaming<LeaderResponse> {
    client.observe(ObserveRequest { name: "boss".to_owned() }).await.unwrap().into_inner()
}

/// Who, which value, which token.
fn told(response: LeaderResponse) -> (String, String, i64) {
    let leader = response.leader.unwrap();
    (leader.holder_id, text(&response.value).to_owned(), leader.fencing_token)
}

async fn observed(stream: &mut Streaming<LeaderResponse>) -> (String, String, i64) {
    told(timeout(PATIENCE, stream.message()).await.expect("in time").unwrap().expect("it goes on"))
}

fn by(holder: &str, value: &str, token: i64) -> (String, String, i64) {
    (holder.to_owned(), value.to_owned(), token)
}

#[tokio::test]
async fn a_leader_is_elected_proclaims_and_resigns() {
    let server = Server::start().await;
    let mut client = client(&server);
    assert_refused(leader(&mut client).await, Code::NotFound, "election: no leader");
    let ada = lease(&mut client, "ada").await;
    let elected = campaign(&client, stand(ada, "one")).await;
    assert!(elected.acquired && !elected.renewed);
    assert_eq!(elected.key, format!("boss/{ada:x}"));
    let token = elected.fencing_token;
    let found = leader(&mut client).await.unwrap();
    let known = found.leader.as_ref().unwrap().lease.as_ref().unwrap();
    assert_eq!((known.id, known.granted_ttl_ms), (ada, 60_000));
    assert_eq!(told(found), by("ada", "one", token), "who gives no name has its lease's");

    let again = campaign(&client, stand(ada, "uno")).await;
    assert!(again.acquired && again.renewed);
    assert_eq!(again.fencing_token, token, "the same place, the same token");
    assert_eq!(told(leader(&mut client).await.unwrap()), by("ada", "uno", token));
    proclaim(&mut client, token, "eins").await.unwrap();
    assert_eq!(told(leader(&mut client).await.unwrap()), by("ada", "eins", token));

    assert!(resign(&mut client, token).await);
    assert!(!resign(&mut client, token).await, "there is nothing to give up any more");
    assert_refused(leader(&mut client).await, Code::NotFound, "election: no leader");
}

#[tokio::test]
async fn a_candidate_that_cannot_wait_is_told_who_leads() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let elected = campaign(&client, CampaignRequest { holder_id: "ada's".to_owned(), ..stand(ada, "one") }).await;
    for timeout_ms in [0, 30] {
        let late = CampaignRequest { timeout_ms: Some(timeout_ms), ..stand(bob, "two") };
        let refused = campaign(&client, late).await;
        assert!(!refused.acquired && refused.fencing_token == 0 && refused.key.is_empty());
        let holder = refused.holder.unwrap();
        assert_eq!((holder.holder_id.as_str(), holder.fencing_token), ("ada's", elected.fencing_token));
        waiting(&mut client, "boss", 0).await;
    }
    let waiter = campaigns(&client, stand(bob, "two"));
    waiting(&mut client, "boss", 1).await;
    waiter.abort();
    waiting(&mut client, "boss", 0).await;
}

#[tokio::test]
async fn etcds_candidates_stand_in_the_same_election() {
    let server = Server::start().await;
    let mut client = client(&server);
    let first = lease(&mut client, "first").await;
    let first = campaign(&client, stand(first, "one")).await.fencing_token;
    let (second, third) = (server.grant(60).await, lease(&mut client, "third").await);
    let mut election = server.election();
    let request = etcd::CampaignRequest { name: "boss".into(), lease: second, value: "two".into() };
    let second = tokio::spawn(async move { election.campaign(request).await.map(|response| response.into_inner()) });
    waiting(&mut client, "boss", 1).await;
    let third = campaigns(&client, stand(third, "three"));
    waiting(&mut client, "boss", 2).await;

    let of_etcd = || async {
        let kv = server.election().leader(etcd::LeaderRequest { name: "boss".into() }).await.unwrap().into_inner().kv;
        let kv = kv.unwrap();
        (text(&kv.value).to_owned(), kv.create_revision)
    };
    proclaim(&mut client, first, "uno").await.unwrap();
    assert_eq!(of_etcd().await, ("uno".to_owned(), first));
    assert!(resign(&mut client, first).await);
    let second = timeout(PATIENCE, second).await.unwrap().unwrap().unwrap().leader.unwrap();
    assert!(second.rev > first);
    let (_, value, token) = told(leader(&mut client).await.unwrap());
    assert_eq!((value.as_str(), token), ("two", second.rev));
    let request = etcd::ProclaimRequest { leader: Some(second.clone()), value: "due".into() };
    server.election().proclaim(request).await.unwrap();
    assert_eq!(told(leader(&mut client).await.unwrap()).1, "due");
    let request = etcd::ResignRequest { leader: Some(second.clone()) };
    server.election().resign(request).await.unwrap();
    let third = won(third).await;
    assert!(third > second.rev);
    assert_eq!(of_etcd().await, ("three".to_owned(), third));
}

#[tokio::test]
async fn a_leader_of_the_past_speaks_for_nobody() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let old = campaign(&client, stand(ada, "one")).await.fencing_token;
    let next = campaigns(&client, stand(bob, "two"));
    waiting(&mut client, "boss", 1).await;
    client.lease_revoke(LeaseRevokeRequest { id: ada }).await.unwrap();
    let next = won(next).await;
    assert_refused(proclaim(&mut client, old, "still me").await, Code::FailedPrecondition, "election: not leader");
    assert!(!resign(&mut client, old).await, "it would take the leadership from another");
    assert_eq!(told(leader(&mut client).await.unwrap()), by("bob", "two", next));
    // Nor does a candidate, whose token it could only guess.
    let cleo = lease(&mut client, "cleo").await;
    let waiter = campaigns(&client, stand(cleo, "three"));
    waiting(&mut client, "boss", 1).await;
    assert_refused(proclaim(&mut client, next + 1, "me").await, Code::FailedPrecondition, "election: not leader");
    assert!(!resign(&mut client, next + 1).await);
    assert_eq!(describe(&mut client, "boss").await.waiters.len(), 1);
    waiter.abort();
}

#[tokio::test]
async fn observers_are_told_of_each_leader_and_each_value_once() {
    let server = Server::start().await;
    let mut client = client(&server);
    let mut early = observe(&mut client).await;
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let first =
        campaign(&client, CampaignRequest { holder_id: "a".to_owned(), ..stand(ada, "one") }).await.fencing_token;
    assert_eq!(observed(&mut early).await, by("a", "one", first));
    let mut late = observe(&mut client).await;
    assert_eq!(observed(&mut late).await, by("a", "one", first), "who leads comes first");
    let next = campaigns(&client, stand(bob, "two"));
    waiting(&mut client, "boss", 1).await;
    for value in ["uno", "eins"] {
        proclaim(&mut client, first, value).await.unwrap();
    }
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await, by("a", "uno", first));
        assert_eq!(observed(stream).await, by("a", "eins", first));
    }
    assert!(resign(&mut client, first).await);
    let second = won(next).await;
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await, by("bob", "two", second));
    }
    // A while without a leader, and then an etcd client, which has no name.
    assert!(resign(&mut client, second).await);
    let request = etcd::CampaignRequest { name: "boss".into(), lease: server.grant(60).await, value: "three".into() };
    let third = server.election().campaign(request).await.unwrap().into_inner().leader.unwrap();
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await, by("", "three", third.rev));
    }
}

#[tokio::test]
async fn an_election_is_a_lock_and_a_lock_an_election() {
    let server = Server::start().await;
    let mut client = client(&server);
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let held = lock(&mut client, ask("boss", ada)).await;
    assert_eq!(told(leader(&mut client).await.unwrap()), by("ada", "", held.fencing_token));
    let next = campaigns(&client, stand(bob, "two"));
    waiting(&mut client, "boss", 1).await;
    assert!(unlock(&mut client, "boss", held.fencing_token).await.unwrap());
    let next = won(next).await;
    assert!(unlock(&mut client, "boss", next).await.unwrap());
}

#[tokio::test]
async fn those_who_meet_at_a_barrier_lead_nothing_before_they_have_met() {
    let server = Server::start().await;
    let mut client = client(&server);
    let mut stream = observe(&mut client).await;
    let (ada, bob) = (lease(&mut client, "ada").await, lease(&mut client, "bob").await);
    let early = arrives(&client, arrive("boss", ada, 2));
    waiting(&mut client, "boss", 1).await;
    assert_refused(leader(&mut client).await, Code::NotFound, "election: no leader");
    let mut other = observe(&mut client).await;
    passed(arrives(&client, arrive("boss", bob, 2))).await;
    let first = passed(early).await.fencing_token;
    for stream in [&mut stream, &mut other] {
        assert_eq!(observed(stream).await, by("ada", "", first));
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_reason() {
    let server = Server::start().await;
    let mut client = client(&server);
    let lease = lease(&mut client, "").await;
    let long = "x".repeat(1025);
    let named = |name: &str| CampaignRequest { name: name.to_owned(), ..stand(lease, "") };
    let cases = [
        (named(""), Code::InvalidArgument, "name is missing"),
        (named(&long), Code::InvalidArgument, "name is longer than 1024 bytes"),
        (stand(0, ""), Code::InvalidArgument, "lease_id is missing: grant a lease first"),
        (stand(999, ""), Code::NotFound, "etcdserver: requested lease not found"),
        (
            CampaignRequest { timeout_ms: Some(-1), ..named("a") },
            Code::InvalidArgument,
            "timeout_ms must not be negative",
        ),
        (
            CampaignRequest { owner: long.clone(), ..named("a") },
            Code::InvalidArgument,
            "owner is longer than 1024 bytes",
        ),
    ];
    for (request, code, text) in cases {
        assert_refused(client.campaign(request).await, code, text);
    }
    let missing = "fencing_token is missing";
    assert_refused(proclaim(&mut client, 0, "x").await, Code::InvalidArgument, missing);
    let request = ResignRequest { name: "boss".to_owned(), fencing_token: -1 };
    assert_refused(client.resign(request).await, Code::InvalidArgument, missing);
    assert_refused(client.leader(LeaderRequest::default()).await, Code::InvalidArgument, "name is missing");
    let status = client.observe(ObserveRequest { name: long }).await.map(drop);
    assert_refused(status, Code::InvalidArgument, "name is longer than 1024 bytes");
}
