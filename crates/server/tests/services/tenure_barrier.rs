//! Tenure's own barriers.

use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tenure_api::tenure::v1::{BarrierRequest, LeaseRevokeRequest, ListRequest, LockRequest, LockResponse, Mode};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::harness::*;
use crate::tenure_lock::{ask, client, describe, lease, lock, unlock, waiting, waits};

type Client = LockServiceClient<Channel>;

pub fn arrive(name: &str, lease_id: i64, parties: u32) -> BarrierRequest {
    BarrierRequest { name: name.to_owned(), lease_id, parties, ..BarrierRequest::default() }
}

pub fn arrives(client: &Client, request: BarrierRequest) -> JoinHandle<Result<LockResponse, Status>> {
    let mut client = client.clone();
    tokio::spawn(async move { client.barrier(request).await.map(|response| response.into_inner()) })
}

pub async fn passed(party: JoinHandle<Result<LockResponse, Status>>) -> LockResponse {
    let response = timeout(PATIENCE, party).await.expect("in time").unwrap().unwrap();
    assert!(response.acquired);
    response
}

async fn leases(client: &mut Client, count: usize) -> Vec<i64> {
    let mut leases = Vec::new();
    for index in 0..count {
        leases.push(lease(client, &format!("party {index}")).await);
    }
    leases
}

#[tokio::test]
async fn three_pass_at_once_and_none_before() {
    let server = Server::start().await;
    let mut client = client(&server);
    let leases = leases(&mut client, 3).await;
    let mut parties = Vec::new();
    for (index, lease) in leases.iter().enumerate() {
        assert!(parties.iter().all(|party: &JoinHandle<_>| !party.is_finished()));
        let request = BarrierRequest { metadata: "phase 1".into(), ..arrive("gate", *lease, 3) };
        parties.push(arrives(&client, request));
        if index < 2 {
            waiting(&mut client, "gate", index + 1).await;
            let found = describe(&mut client, "gate").await;
            assert!(found.holders.is_empty(), "nobody has passed");
            let entry = found.waiters[index].entry.as_ref().unwrap();
            assert_eq!((entry.mode(), entry.slots), (Mode::Barrier, 3));
            assert_eq!((entry.fencing_token, &entry.metadata[..]), (0, &b"phase 1"[..]));
        }
    }
    let listed = client.list(ListRequest::default()).await.unwrap().into_inner().locks;
    assert_eq!((listed[0].mode(), listed[0].slots), (Mode::Barrier, 3));
    let mut passes = Vec::new();
    for party in parties {
        passes.push(passed(party).await);
    }
    let slots: Vec<_> = passes.iter().map(|pass| pass.slot).collect();
    assert_eq!(slots, [0, 1, 2], "in the order in which they came");
    let revisions: Vec<_> = passes.iter().map(|pass| pass.header.as_ref().unwrap().revision).collect();
    assert_eq!(revisions, [passes[2].fencing_token; 3], "all at the revision of the last to come");
    let holders = describe(&mut client, "gate").await.holders;
    assert_eq!(holders.len(), 3);
    assert!(holders.iter().all(|holder| holder.granted_unix_ms == holders[0].granted_unix_ms));
}

#[tokio::test]
async fn who_leaves_does_not_count_any_more() {
    let server = Server::start().await;
    let mut client = client(&server);
    let leases = leases(&mut client, 4).await;
    // One hangs up, one has no time, one loses its lease.
    let hangs_up = arrives(&client, arrive("gate", leases[0], 2));
    waiting(&mut client, "gate", 1).await;
    hangs_up.abort();
    waiting(&mut client, "gate", 0).await;
    for timeout_ms in [0, 30] {
        let hasty = BarrierRequest { timeout_ms: Some(timeout_ms), ..arrive("gate", leases[1], 2) };
        let alone = timeout(PATIENCE, arrives(&client, hasty)).await.unwrap().unwrap().unwrap();
        assert!(!alone.acquired && alone.holder.is_none() && alone.fencing_token == 0);
        assert_eq!(alone.waiting, 0, "nobody but itself was there");
        waiting(&mut client, "gate", 0).await;
    }
    let ends = arrives(&client, arrive("gate", leases[2], 2));
    waiting(&mut client, "gate", 1).await;
    client.lease_revoke(LeaseRevokeRequest { id: leases[2] }).await.unwrap();
    let text = "the place in the queue is gone: its lease was revoked";
    assert_refused(timeout(PATIENCE, ends).await.unwrap().unwrap(), Code::FailedPrecondition, text);

    let first = arrives(&client, arrive("gate", leases[0], 2));
    waiting(&mut client, "gate", 1).await;
    // As the last of the round, one passes that would not wait.
    let last = BarrierRequest { timeout_ms: Some(0), ..arrive("gate", leases[3], 2) };
    assert_eq!(passed(arrives(&client, last)).await.slot, 1);
    assert_eq!(passed(first).await.slot, 0);
}

#[tokio::test]
async fn the_next_round_begins_when_the_last_of_this_one_has_left() {
    let server = Server::start().await;
    let mut client = client(&server);
    let leases = leases(&mut client, 4).await;
    let round = [0, 1].map(|index: usize| arrives(&client, arrive("gate", leases[index], 2)));
    let mut tokens = Vec::new();
    for party in round {
        tokens.push(passed(party).await.fencing_token);
    }
    let mut next = Vec::new();
    for index in [2, 3] {
        next.push(arrives(&client, arrive("gate", leases[index], 2)));
        waiting(&mut client, "gate", index - 1).await;
    }
    let again = passed(arrives(&client, arrive("gate", leases[0], 2))).await;
    assert!(again.renewed && tokens.contains(&again.fencing_token), "it is through already");
    assert!(unlock(&mut client, "gate", tokens[0]).await.unwrap());
    let found = describe(&mut client, "gate").await;
    assert_eq!((found.holders.len(), found.waiters.len()), (1, 2), "one is still there");
    client.lease_revoke(LeaseRevokeRequest { id: leases[0] }).await.unwrap();
    client.lease_revoke(LeaseRevokeRequest { id: leases[1] }).await.unwrap();
    for (slot, party) in (0..).zip(next) {
        let pass = passed(party).await;
        assert_eq!(pass.slot, slot);
        assert!(tokens.iter().all(|token| pass.fencing_token > *token));
    }
}

#[tokio::test]
async fn a_lock_in_the_same_queue_waits_its_turn() {
    let server = Server::start().await;
    let mut client = client(&server);
    let leases = leases(&mut client, 4).await;
    let held = lock(&mut client, ask("gate", leases[0])).await;
    let round: Vec<_> = [1, 2].iter().map(|index| arrives(&client, arrive("gate", leases[*index], 2))).collect();
    waiting(&mut client, "gate", 2).await;
    let next = waits(&client, ask("gate", leases[3]));
    waiting(&mut client, "gate", 3).await;
    assert!(unlock(&mut client, "gate", held.fencing_token).await.unwrap());
    let mut tokens = Vec::new();
    for party in round {
        tokens.push(passed(party).await.fencing_token);
    }
    assert!(!next.is_finished());
    for token in tokens {
        assert!(unlock(&mut client, "gate", token).await.unwrap());
    }
    assert!(timeout(PATIENCE, next).await.unwrap().unwrap().unwrap().acquired);
}

#[tokio::test]
async fn lock_and_barrier_say_the_same() {
    let server = Server::start().await;
    let mut client = client(&server);
    let leases = leases(&mut client, 2).await;
    let first = arrives(&client, arrive("gate", leases[0], 2));
    waiting(&mut client, "gate", 1).await;
    let by_lock = LockRequest { mode: Mode::Barrier.into(), slots: 2, ..ask("gate", leases[1]) };
    assert_eq!(lock(&mut client, by_lock).await.slot, 1);
    passed(first).await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_reason() {
    let server = Server::start().await;
    let mut client = client(&server);
    let lease = lease(&mut client, "").await;
    let long = "x".repeat(1025);
    let cases = [
        (arrive("", lease, 2), Code::InvalidArgument, "name is missing"),
        (arrive(&long, lease, 2), Code::InvalidArgument, "name is longer than 1024 bytes"),
        (arrive("gate", 0, 2), Code::InvalidArgument, "lease_id is missing: grant a lease first"),
        (arrive("gate", 999, 2), Code::NotFound, "etcdserver: requested lease not found"),
        (arrive("gate", lease, 0), Code::InvalidArgument, "a barrier has 1 to 10000 parties"),
        (arrive("gate", lease, 10_001), Code::InvalidArgument, "a barrier has 1 to 10000 parties"),
        (
            BarrierRequest { timeout_ms: Some(-1), ..arrive("gate", lease, 2) },
            Code::InvalidArgument,
            "timeout_ms must not be negative",
        ),
        (
            BarrierRequest { metadata: vec![0; 4097].into(), ..arrive("gate", lease, 2) },
            Code::InvalidArgument,
            "metadata is longer than 4096 bytes",
        ),
    ];
    for (request, code, text) in cases {
        assert_refused(client.barrier(request).await, code, text);
    }
    assert!(describe(&mut client, "gate").await.waiters.is_empty());
}
