//! Becoming a member of a running cluster, and asking about one.

use std::time::Duration;

use tenure_api::tenure::peer::v1::join_response::Answer;
use tenure_api::tenure::peer::v1::peer_client::PeerClient;
use tenure_api::tenure::peer::v1::{FetchPeersRequest, FetchPeersResponse, JoinRequest, Joined, LeaderHint};
use tokio::time::Instant;
use tonic::Code;

use super::greeting::directory_bytes;
use super::listing::url_of;
use super::{GREETING_TIMEOUT, connect, said};
use crate::config::{Config, TENURE_VERSION};

/// So many members may name another one as the leader.
pub(crate) const HOPS: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
const NO_PEER_PORT: &str = "no member listens for others there (--join takes the address for peers, which is \
    2380 unless it was changed, not the one for clients)";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error("joining the cluster: each of {} names another member as the leader; try again when it has settled", .hops.join(", "))]
    TooManyHops { hops: Vec<String> },
    #[error("joining the cluster: {address} refuses: {text}")]
    Refused { address: String, text: String },
    #[error("joining the cluster: {address}: {reason} (tried for {}s)", .waited.as_secs())]
    GaveUp { address: String, reason: String, waited: Duration },
    #[error(
        "the data directory belongs to cluster {own:x}, but {address} is a member of cluster {other:x}: \
         give another --join, or another --data-dir to join that one as a new member"
    )]
    OtherCluster { address: String, own: u64, other: u64 },
}

/// What this member says of itself when it wants to join.
pub(crate) fn request(config: &Config, directory_id: u128) -> JoinRequest {
    JoinRequest {
        name: config.name.clone(),
        peer_address: config.peer_address(),
        client_address: config.client_address(),
        directory_id: directory_bytes(directory_id),
        highest_level: config.highest_level(),
        release: TENURE_VERSION.to_owned(),
    }
}

/// Asks the member at `address`, and whomever it names as the leader, to be let in. Goes on trying for `patience`
/// while nobody can say who leads.
pub(crate) async fn join(address: &str, request: JoinRequest, patience: Duration) -> Result<Joined, JoinError> {
    let began = Instant::now();
    let mut told = None;
    loop {
        let (address, reason) = match follow_hints(address, &request).await? {
            Followed::Joined(joined) => return Ok(joined),
            Followed::Nowhere { address, reason } => (address, reason),
        };
        let waited = began.elapsed();
        if waited >= patience {
            return Err(JoinError::GaveUp { address, reason, waited });
        }
        if told.as_ref() != Some(&reason) {
            tracing::info!(address, "waiting to join the cluster: {reason}");
            told = Some(reason);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

enum Followed {
    Joined(Joined),
    /// Nobody could say where to go; that may change.
    Nowhere {
        address: String,
        reason: String,
    },
}

async fn follow_hints(first: &str, request: &JoinRequest) -> Result<Followed, JoinError> {
    let mut hops = vec![first.to_owned()];
    while hops.len() <= HOPS {
        let address = hops.last().cloned().unwrap_or_default();
        match ask(&address, request).await {
            Ok(Answer::Joined(joined)) => return Ok(Followed::Joined(joined)),
            Ok(Answer::Elsewhere(LeaderHint { peer_address, .. })) if peer_address.is_empty() => {
                return Ok(Followed::Nowhere { address, reason: "it knows no leader".to_owned() });
            }
            Ok(Answer::Elsewhere(LeaderHint { peer_address, .. })) => hops.push(peer_address),
            Err(Unasked::ForNow(reason)) => return Ok(Followed::Nowhere { address, reason }),
            Err(Unasked::Refused(text)) => return Err(JoinError::Refused { address, text }),
        }
    }
    Err(JoinError::TooManyHops { hops })
}

enum Unasked {
    ForNow(String),
    Refused(String),
}

async fn ask(address: &str, request: &JoinRequest) -> Result<Answer, Unasked> {
    let channel = connect(&url_of(address)).await.map_err(Unasked::ForNow)?;
    match PeerClient::new(channel).join(request.clone()).await {
        Ok(response) => response.into_inner().answer.ok_or_else(|| Unasked::Refused("it gave no answer".to_owned())),
        Err(status) => Err(match status.code() {
            Code::Unimplemented => Unasked::Refused(NO_PEER_PORT.to_owned()),
            Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Cancelled => {
                Unasked::ForNow(said(&status))
            }
            _ => Unasked::Refused(said(&status)),
        }),
    }
}

/// What the member at `address` knows of its cluster.
pub(crate) async fn fetch_peers(address: &str) -> Result<FetchPeersResponse, String> {
    let channel = connect(&url_of(address)).await?;
    let mut client = PeerClient::new(channel);
    match tokio::time::timeout(GREETING_TIMEOUT, client.fetch_peers(FetchPeersRequest {})).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(said(&status)),
        Err(_) => Err(format!("no answer within {GREETING_TIMEOUT:?}")),
    }
}
