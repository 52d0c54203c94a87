use std::time::Duration;

use tenure_api::etcdserverpb::*;
use tenure_server::config::Config;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::harness::*;

#[tokio::test]
async fn a_lease_is_granted_looked_at_and_revoked() {
    let server = Server::start().await;
    let granted = server.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap().into_inner();
    assert_eq!((granted.id, granted.ttl, granted.error.as_str()), (77, 60, ""));
    assert_eq!(granted.header.unwrap().revision, 1, "a lease writes no key");
    let drawn = server.grant(60).await;
    assert!(drawn > 0 && drawn != 77);
    server.put_leased("b", 77).await;
    server.put_leased("a", 77).await;

    let look = |id, keys| LeaseTimeToLiveRequest { id, keys };
    let left = server.lease().lease_time_to_live(look(77, true)).await.unwrap().into_inner();
    assert_eq!((left.id, left.granted_ttl), (77, 60));
    assert!((55..=60).contains(&left.ttl), "{}", left.ttl);
    assert_eq!(left.keys, ["a", "b"]);
    assert_eq!(left.header.unwrap().revision, 3);
    assert!(server.lease().lease_time_to_live(look(77, false)).await.unwrap().into_inner().keys.is_empty());

    let revoked = server.lease().lease_revoke(LeaseRevokeRequest { id: 77 }).await.unwrap().into_inner();
    assert_eq!(revoked.header.unwrap().revision, 4, "all its keys in one revision");
    assert!(server.get("a").await.is_none() && server.get("b").await.is_none());
    let gone = server.lease().lease_time_to_live(look(77, true)).await.unwrap().into_inner();
    let expected = LeaseTimeToLiveResponse { header: gone.header, id: 77, ttl: -1, ..Default::default() };
    assert_eq!(gone, expected);
    assert_eq!(gone.header.unwrap().revision, 4);
}

#[tokio::test]
async fn leases_that_make_no_sense_are_refused_or_raised() {
    let server = Server::start_with(|config| {
        let Config { tick, heartbeat, election_min, election_max, .. } = Config::default();
        (config.tick, config.heartbeat) = (tick, heartbeat);
        (config.election_min, config.election_max) = (election_min, election_max);
    })
    .await;
    let mut lease = server.lease();
    for ttl in [0, 1, -5] {
        let granted = lease.lease_grant(LeaseGrantRequest { ttl, id: 0 }).await.unwrap().into_inner();
        assert_eq!(granted.ttl, 2, "one and a half elections, in whole seconds");
    }
    let largest = LeaseGrantRequest { ttl: 9_000_000_000, id: 5 };
    assert_eq!(lease.lease_grant(largest).await.unwrap().into_inner().ttl, 9_000_000_000);
    let larger = LeaseGrantRequest { ttl: 9_000_000_001, id: 0 };
    assert_refused(lease.lease_grant(larger).await, Code::OutOfRange, "etcdserver: too large lease TTL");
    let again = LeaseGrantRequest { ttl: 10, id: 5 };
    assert_refused(lease.lease_grant(again).await, Code::FailedPrecondition, "etcdserver: lease already exists");
    let unknown = LeaseRevokeRequest { id: 99 };
    assert_refused(lease.lease_revoke(unknown).await, Code::NotFound, "etcdserver: requested lease not found");
}

#[tokio::test]
async fn all_leases_are_listed_soonest_first() {
    let server = Server::start().await;
    for (id, ttl) in [(1, 300), (2, 100), (3, 200)] {
        server.lease().lease_grant(LeaseGrantRequest { ttl, id }).await.unwrap();
    }
    let listed = server.lease().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    let ids: Vec<i64> = listed.leases.iter().map(|lease| lease.id).collect();
    assert_eq!(ids, [2, 3, 1]);
    assert_eq!(listed.header.unwrap().revision, 1);
}

#[tokio::test]
async fn keepalives_are_pipelined_and_answered_in_order() {
    let server = Server::start().await;
    let lease = server.grant(60).await;
    let (requests, receiver) = mpsc::channel(5000);
    // All of them before the first answer is read.
    for number in 0..3000 {
        let id = if number % 3 == 0 { number + 1_000_000 } else { lease };
        requests.send(LeaseKeepAliveRequest { id }).await.unwrap();
    }
    drop(requests);
    let answers = server.lease().lease_keep_alive(ReceiverStream::new(receiver)).await.unwrap();
    let mut answers = answers.into_inner();
    for number in 0..3000 {
        let answer = timeout(PATIENCE, answers.message()).await.unwrap().unwrap().unwrap();
        let expected = if number % 3 == 0 { (number + 1_000_000, 0) } else { (lease, 60) };
        assert_eq!((answer.id, answer.ttl), expected, "an unknown lease has a TTL of 0");
        assert_eq!(answer.header.unwrap().revision, 1);
    }
    assert!(answers.message().await.unwrap().is_none(), "ends when the client has ended");
}

#[tokio::test]
async fn a_lease_lives_while_it_is_renewed_and_takes_its_keys_with_it() {
    let server = Server::start().await;
    let lease = server.grant(1).await;
    server.put_leased("a", lease).await;
    let (requests, receiver) = mpsc::channel(1);
    let answers = server.lease().lease_keep_alive(ReceiverStream::new(receiver)).await.unwrap();
    let mut answers = answers.into_inner();
    for _ in 0..8 {
        requests.send(LeaseKeepAliveRequest { id: lease }).await.unwrap();
        assert_eq!(timeout(PATIENCE, answers.message()).await.unwrap().unwrap().unwrap().ttl, 1);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert!(server.get("a").await.is_some());
    timeout(PATIENCE, async {
        while server.get("a").await.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("it ends when nobody renews it");
    requests.send(LeaseKeepAliveRequest { id: lease }).await.unwrap();
    assert_eq!(timeout(PATIENCE, answers.message()).await.unwrap().unwrap().unwrap().ttl, 0);
}
