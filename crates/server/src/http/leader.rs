//! `GET /v1/leader`: who leads, and where the members are, for clients that want to be close to the leader.

use axum::Router;
use axum::body::Body as HttpBody;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use serde::Serialize;
use tenure_machine::MemberId;
use tenure_replica::{Consistency, Failure};

use super::plain_text;
use crate::member::Member;

pub fn routes(member: Member) -> Router {
    Router::new().route("/v1/leader", get(async move || answer(&member).await))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    /// None = not known at this member.
    leader: Option<Leader>,
    term: u64,
    members: Vec<Listed>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Leader {
    id: String,
    name: String,
    client_addresses: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    id: String,
    name: String,
    client_addresses: Vec<String>,
    peer_addresses: Vec<String>,
    is_learner: bool,
}

/// What this member knows is better than nothing while there is no leader to ask.
async fn answer(member: &Member) -> Response<HttpBody> {
    let view = match member.view(Consistency::Linearizable).await {
        Err(Failure::NoLeader | Failure::TimedOut | Failure::LeaderChanged) => {
            member.view(Consistency::Serializable).await
        }
        view => view,
    };
    let view = match view {
        Ok(view) => view.value,
        Err(failure) => return plain_text(StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n")),
    };
    let status = member.status();
    let members: Vec<_> = view.members().into_iter().map(|known| (known.id, listed(known))).collect();
    let leader = (status.leader != 0).then(|| {
        let known = members.iter().find(|(id, _)| *id == status.leader).map(|(_, known)| known);
        Leader {
            id: id_text(status.leader),
            name: known.map_or_else(String::new, |known| known.name.clone()),
            client_addresses: known.map_or_else(Vec::new, |known| known.client_addresses.clone()),
        }
    });
    let members = members.into_iter().map(|(_, known)| known).collect();
    let cluster = Cluster { leader, term: status.term, members };
    match serde_json::to_string(&cluster) {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn listed(member: tenure_machine::Member) -> Listed {
    let addresses = |urls: Vec<String>| urls.iter().map(|url| address(url).to_owned()).collect();
    Listed {
        id: id_text(member.id),
        name: member.name,
        client_addresses: addresses(member.client_urls),
        peer_addresses: addresses(member.peer_urls),
        is_learner: member.learner,
    }
}

/// As text, in hex: JSON's numbers do not hold 64 bits everywhere.
fn id_text(id: MemberId) -> String {
    format!("{id:x}")
}

/// `host:port`, which goes into a ws:// address as well as into any other.
fn address(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest)
}
