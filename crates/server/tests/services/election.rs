use std::time::Duration;

use tenure_api::v3electionpb::*;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use crate::harness::*;

fn campaign(server: &Server, lease: i64, value: &'static str) -> JoinHandle<Result<CampaignResponse, Status>> {
    let mut client = server.election();
    let request = CampaignRequest { name: "boss".into(), lease, value: value.into() };
    tokio::spawn(async move { client.campaign(request).await.map(|response| response.into_inner()) })
}

async fn won(campaign: JoinHandle<Result<CampaignResponse, Status>>) -> (i64, LeaderKey) {
    let response = timeout(PATIENCE, campaign).await.expect("in time").unwrap().unwrap();
    (response.header.unwrap().revision, response.leader.unwrap())
}

async fn proclaim(server: &Server, leader: &LeaderKey, value: &'static str) -> Result<i64, Status> {
    let request = ProclaimRequest { leader: Some(leader.clone()), value: value.into() };
    Ok(server.election().proclaim(request).await?.into_inner().header.unwrap().revision)
}

async fn resign(server: &Server, leader: &LeaderKey) -> i64 {
    let request = ResignRequest { leader: Some(leader.clone()) };
    server.election().resign(request).await.unwrap().into_inner().header.unwrap().revision
}

fn election() -> LeaderRequest {
    LeaderRequest { name: "boss".into() }
}

async fn observed(stream: &mut Streaming<LeaderResponse>) -> (String, i64) {
    let response = timeout(PATIENCE, stream.message()).await.expect("in time").unwrap().expect("it goes on");
    (text(&response.kv.unwrap().value).to_owned(), response.header.unwrap().revision)
}

#[tokio::test]
async fn a_leader_is_elected_proclaims_and_resigns() {
    let server = Server::start().await;
    let mut client = server.election();
    assert_refused(client.leader(election()).await, Code::Unknown, "election: no leader");

    let leases = [server.grant(60).await, server.grant(60).await];
    let (revision, first) = won(campaign(&server, leases[0], "one")).await;
    assert_eq!(revision, 2);
    let expected =
        LeaderKey { name: "boss".into(), key: format!("boss/{:x}", leases[0]).into(), rev: 2, lease: leases[0] };
    assert_eq!(first, expected);
    let leader = client.leader(election()).await.unwrap().into_inner();
    let kv = leader.kv.unwrap();
    assert_eq!((kv.key, &kv.value[..], kv.lease, kv.create_revision), (first.key.clone(), &b"one"[..], leases[0], 2));
    assert_eq!(leader.header.unwrap().revision, 2);

    let second = campaign(&server, leases[1], "two");
    server.until_entries("boss", 2).await;
    assert_eq!(proclaim(&server, &first, "uno").await.unwrap(), 4);
    assert_eq!(client.leader(election()).await.unwrap().into_inner().kv.unwrap().value, "uno");
    assert_eq!(resign(&server, &first).await, 5);
    let (revision, second) = won(second).await;
    assert_eq!((revision, second.rev), (3, 3), "the revision of its candidacy, though it won later");
    assert_refused(proclaim(&server, &first, "x").await, Code::Unknown, "election: not leader");
    assert_eq!(resign(&server, &first).await, 5, "nothing to give up");
    assert_eq!(client.leader(election()).await.unwrap().into_inner().kv.unwrap().value, "two");
}

#[tokio::test]
async fn campaigning_again_proclaims() {
    let server = Server::start().await;
    let lease = server.grant(60).await;
    let (_, first) = won(campaign(&server, lease, "one")).await;
    let (revision, again) = won(campaign(&server, lease, "one")).await;
    assert_eq!((revision, &again), (2, &first));
    let (revision, again) = won(campaign(&server, lease, "two")).await;
    assert_eq!((revision, &again), (2, &first), "the revision before the new value was written");
    let kv = server.election().leader(election()).await.unwrap().into_inner().kv.unwrap();
    assert_eq!((&kv.value[..], kv.mod_revision, kv.version), (&b"two"[..], 3, 2));
}

#[tokio::test]
async fn a_candidate_that_hangs_up_is_none_any_more() {
    let server = Server::start().await;
    let leases = [server.grant(60).await, server.grant(60).await];
    won(campaign(&server, leases[0], "one")).await;
    let second = campaign(&server, leases[1], "two");
    server.until_entries("boss", 2).await;
    second.abort();
    server.until_entries("boss", 1).await;
}

#[tokio::test]
async fn who_brings_no_lease_is_given_one() {
    let server = Server::start().await;
    let (_, leader) = won(campaign(&server, 0, "one")).await;
    assert_eq!(text(&leader.key), format!("boss/{:x}", leader.lease));
    assert_eq!(server.get(leader.key).await.unwrap().lease, leader.lease);
}

#[tokio::test]
async fn errors_have_etcds_text_and_no_code() {
    let server = Server::start().await;
    let answer = timeout(PATIENCE, campaign(&server, 999, "x")).await.unwrap().unwrap();
    assert_refused(answer, Code::Unknown, "etcdserver: requested lease not found");
    let missing = "\"leader\" field must be provided";
    let mut client = server.election();
    assert_refused(client.proclaim(ProclaimRequest::default()).await, Code::Unknown, missing);
    assert_refused(client.resign(ResignRequest::default()).await, Code::Unknown, missing);
    let keyless = ResignRequest { leader: Some(LeaderKey::default()) };
    assert_refused(client.resign(keyless).await, Code::Unknown, "etcdserver: key is not provided");
}

#[tokio::test]
async fn observers_see_every_leader_and_every_value() {
    let server = Server::start().await;
    let mut early = server.election().observe(election()).await.unwrap().into_inner();
    // A key beneath the name that is no candidate.
    server.put("boss/other", "x").await;
    let leases = [server.grant(60).await, server.grant(60).await, server.grant(60).await];
    let (_, first) = won(campaign(&server, leases[0], "one")).await;
    assert_eq!(observed(&mut early).await, ("one".to_owned(), 3));

    let mut late = server.election().observe(election()).await.unwrap().into_inner();
    assert_eq!(observed(&mut late).await, ("one".to_owned(), 3));
    let second = campaign(&server, leases[1], "two");
    server.until_entries("boss", 3).await;
    proclaim(&server, &first, "uno").await.unwrap();
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await, ("uno".to_owned(), 5));
    }
    resign(&server, &first).await;
    won(second).await;
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await.0, "two");
    }
    server.revoke(leases[1]).await;
    let (_, third) = won(campaign(&server, leases[2], "three")).await;
    for stream in [&mut early, &mut late] {
        assert_eq!(observed(stream).await.0, "three");
    }
    resign(&server, &third).await;
    assert!(timeout(Duration::from_millis(100), early.message()).await.is_err(), "nobody leads, nothing to say");
}

/// Many short reigns: an observer may skip some, but never gets stuck before the last.
#[tokio::test]
async fn an_observer_always_reaches_the_last_leader() {
    let server = Server::start().await;
    let mut stream = server.election().observe(election()).await.unwrap().into_inner();
    for _ in 0..30 {
        let (_, leader) = won(campaign(&server, 0, "short")).await;
        resign(&server, &leader).await;
    }
    won(campaign(&server, 0, "last")).await;
    while observed(&mut stream).await.0 != "last" {}
}
