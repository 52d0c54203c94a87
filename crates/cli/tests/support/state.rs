//! Whether members are the same: their whole state, at one and the same applied index.

use std::time::{Duration, Instant};

use tenure_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tenure_api::etcdserverpb::{HashRequest, StatusRequest};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::PATIENCE;

/// The state of a member: keys with their history, leases, queues, members, all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    pub applied: u64,
    pub hash: u32,
}

/// What each of these members has, as soon as all of them have applied equally much; what they have at last if they
/// never do.
pub async fn of_all(addresses: &[String]) -> Vec<State> {
    let began = Instant::now();
    loop {
        let mut states = Vec::new();
        for address in addresses {
            if let Some(state) = of(address).await {
                states.push(state);
            }
        }
        let is_equally_far = states.iter().all(|state| state.applied == states[0].applied);
        if (states.len() == addresses.len() && is_equally_far) || began.elapsed() > PATIENCE {
            return states;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Panics unless all of these members have the same.
pub async fn assert_equal(addresses: &[String]) {
    let states = of_all(addresses).await;
    assert_eq!(states.len(), addresses.len(), "a member does not answer, or does not come to rest: {states:?}");
    assert!(states.iter().all(|state| *state == states[0]), "members differ: {states:?}");
}

/// None: it does not answer, or something was applied while it was asked.
async fn of(address: &str) -> Option<State> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    let mut client = MaintenanceClient::new(endpoint.connect().await.ok()?);
    let before = applied(&mut client).await.ok()?;
    let hash = client.hash(HashRequest {}).await.ok()?.into_inner().hash;
    (applied(&mut client).await.ok()? == before).then_some(State { applied: before, hash })
}

async fn applied(client: &mut MaintenanceClient<Channel>) -> Result<u64, Status> {
    Ok(client.status(StatusRequest {}).await?.into_inner().raft_applied_index)
}
