use tenure_api::etcdserverpb::LeaseLeasesRequest;
use tenure_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::harness::*;

fn lock(server: &Server, lease: i64) -> JoinHandle<Result<LockResponse, Status>> {
    let mut client = server.lock();
    let request = LockRequest { name: "jobs".into(), lease };
    tokio::spawn(async move { client.lock(request).await.map(|response| response.into_inner()) })
}

async fn held(lock: JoinHandle<Result<LockResponse, Status>>) -> LockResponse {
    timeout(PATIENCE, lock).await.expect("in time").unwrap().unwrap()
}

async fn unlock(server: &Server, key: impl Into<bytes::Bytes>) -> i64 {
    let request = UnlockRequest { key: key.into() };
    server.lock().unlock(request).await.unwrap().into_inner().header.unwrap().revision
}

#[tokio::test]
async fn the_key_is_the_name_and_the_lease_in_hex() {
    let server = Server::start().await;
    let lease = server.grant(60).await;
    let first = held(lock(&server, lease)).await;
    assert_eq!(text(&first.key), format!("jobs/{lease:x}"));
    assert_eq!(first.header.unwrap().revision, 2);
    let entry = server.get(first.key.clone()).await.unwrap();
    assert_eq!((entry.lease, entry.value.len()), (lease, 0));
    let again = held(lock(&server, lease)).await;
    assert_eq!((again.key.clone(), again.header.unwrap().revision), (first.key, 2), "at once, and nothing was written");
    assert_eq!(unlock(&server, again.key).await, 3);
    assert_eq!(unlock(&server, "jobs/none").await, 3, "what is not there is unlocked already");
}

#[tokio::test]
async fn first_come_first_served() {
    let server = Server::start().await;
    let mut leases = Vec::new();
    let mut waiting = Vec::new();
    for number in 1..=4 {
        let lease = server.grant(60).await;
        leases.push(lease);
        waiting.push(lock(&server, lease));
        server.until_entries("jobs", number).await;
    }
    let mut revision = 5;
    for (lease, lock) in leases.into_iter().zip(waiting) {
        let got = held(lock).await;
        assert_eq!(text(&got.key), format!("jobs/{lease:x}"));
        revision = unlock(&server, got.key).await.max(revision);
    }
    assert_eq!(revision, 9, "four entries and four releases, and not a write more");
}

#[tokio::test]
async fn a_cancelled_call_leaves_the_queue() {
    let server = Server::start().await;
    let leases = [server.grant(60).await, server.grant(60).await, server.grant(60).await];
    let first = held(lock(&server, leases[0])).await;
    let second = lock(&server, leases[1]);
    server.until_entries("jobs", 2).await;
    let third = lock(&server, leases[2]);
    server.until_entries("jobs", 3).await;
    second.abort();
    server.until_entries("jobs", 2).await;
    unlock(&server, first.key).await;
    assert_eq!(text(&held(third).await.key), format!("jobs/{:x}", leases[2]));
}

#[tokio::test]
async fn a_waiter_whose_lease_ends_is_told() {
    let server = Server::start().await;
    let leases = [server.grant(60).await, server.grant(60).await];
    held(lock(&server, leases[0])).await;
    let second = lock(&server, leases[1]);
    server.until_entries("jobs", 2).await;
    server.revoke(leases[1]).await;
    let answer = timeout(PATIENCE, second).await.unwrap().unwrap();
    assert_refused(answer, Code::Unknown, "mutex: session is expired");
}

#[tokio::test]
async fn a_lease_that_ends_hands_the_lock_on() {
    let server = Server::start().await;
    let leases = [server.grant(60).await, server.grant(60).await];
    held(lock(&server, leases[0])).await;
    let second = lock(&server, leases[1]);
    server.until_entries("jobs", 2).await;
    server.revoke(leases[0]).await;
    let got = held(second).await;
    assert_eq!(got.header.unwrap().revision, 4, "at the revision of the hand-over");
}

#[tokio::test]
async fn who_brings_no_lease_is_given_one() {
    let server = Server::start().await;
    let got = held(lock(&server, 0)).await;
    let leases = server.lease().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner().leases;
    assert_eq!(leases.len(), 1);
    assert_eq!(text(&got.key), format!("jobs/{:x}", leases[0].id));
    let left = tenure_api::etcdserverpb::LeaseTimeToLiveRequest { id: leases[0].id, keys: false };
    assert_eq!(server.lease().lease_time_to_live(left).await.unwrap().into_inner().granted_ttl, 60);
}

#[tokio::test]
async fn errors_have_etcds_text_and_no_code() {
    let server = Server::start().await;
    let answer = timeout(PATIENCE, lock(&server, 999)).await.unwrap().unwrap();
    assert_refused(answer, Code::Unknown, "etcdserver: requested lease not found");
    let keyless = server.lock().unlock(UnlockRequest::default()).await;
    assert_refused(keyless, Code::Unknown, "etcdserver: key is not provided");
}
