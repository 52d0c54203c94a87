//! A crowd before one lock: a hand-over costs what it costs when one waits.

use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tenure_api::tenure::v1::{LeaseGrantRequest, ListRequest, LockResponse};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::harness::*;
use crate::tenure_lock::{ask, client, lock, unlock};

const CROWD: usize = 10_000;
/// A connection carries no more than 1,000 calls at a time.
const CONNECTIONS: usize = 20;
const TURNS: usize = 200;

type Client = LockServiceClient<Channel>;

async fn leases(clients: &[Client]) -> Vec<i64> {
    let mut granting = JoinSet::new();
    for client in clients {
        let mut client = client.clone();
        granting.spawn(async move {
            let mut leases = Vec::new();
            for _ in 0..CROWD / CONNECTIONS {
                let request = LeaseGrantRequest { ttl_ms: 3_600_000, ..LeaseGrantRequest::default() };
                leases.push(client.lease_grant(request).await.unwrap().into_inner().id);
            }
            leases
        });
    }
    granting.join_all().await.concat()
}

async fn waiting(client: &mut Client) -> u64 {
    let listed = client.list(ListRequest { prefix: "jobs".to_owned(), ..ListRequest::default() }).await.unwrap();
    listed.into_inner().locks.first().map_or(0, |lock| lock.waiting)
}

async fn until_waiting(client: &mut Client, count: u64) {
    timeout(PATIENCE * 3, async {
        while waiting(client).await != count {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("in time");
}

#[tokio::test]
async fn ten_thousand_wait_for_one_lock_in_order() {
    let server = Server::start().await;
    let mut client = client(&server);
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(LockServiceClient::new(endpoint.connect().await.unwrap()));
    }
    let mut leases = leases(&clients).await;
    leases.push(
        client
            .lease_grant(LeaseGrantRequest { ttl_ms: 3_600_000, ..Default::default() })
            .await
            .unwrap()
            .into_inner()
            .id,
    );
    let mut held = lock(&mut client, ask("jobs", leases[CROWD])).await;
    let mut crowd: JoinSet<Result<LockResponse, Status>> = JoinSet::new();
    for (number, lease) in leases[..CROWD].iter().enumerate() {
        let (mut client, request) = (clients[number % CONNECTIONS].clone(), ask("jobs", *lease));
        crowd.spawn(async move { client.lock(request).await.map(|response| response.into_inner()) });
    }
    until_waiting(&mut client, CROWD as u64).await;
    let began = held.header.unwrap().revision;
    for turn in 1..=TURNS {
        assert!(unlock(&mut client, "jobs", held.fencing_token).await.unwrap());
        let next = timeout(PATIENCE, crowd.join_next()).await.expect("in time").unwrap().unwrap().unwrap();
        assert!(next.acquired && next.fencing_token > held.fencing_token, "first come, first served");
        // Every entry is one write, and every hand-over one more: nobody else was woken, nothing else was written.
        let revision = next.header.unwrap().revision;
        assert_eq!(revision - began, (CROWD + turn) as i64);
        held = next;
    }
    // Those who give up leave, and the lock is free for whoever comes.
    crowd.abort_all();
    until_waiting(&mut client, 0).await;
    assert!(unlock(&mut client, "jobs", held.fencing_token).await.unwrap());
    assert!(lock(&mut client, ask("jobs", leases[0])).await.acquired);
}
