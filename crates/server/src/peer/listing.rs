//! Members as they are told to other members.

use tenure_api::tenure::peer::v1 as proto;
use tenure_machine::{Member, MemberId};

pub(crate) fn to_proto(member: Member) -> proto::Member {
    let Member { id, name, peer_urls, client_urls, learner } = member;
    proto::Member { id, name, peer_urls, client_urls, is_learner: learner }
}

pub(crate) fn from_proto(member: proto::Member) -> Member {
    let proto::Member { id, name, peer_urls, client_urls, is_learner } = member;
    Member { id, name, peer_urls, client_urls, learner: is_learner }
}

/// Where a member's peer port is, as `host:port`; empty if nobody knows.
pub(crate) fn peer_address(members: &[Member], id: MemberId) -> String {
    let member = members.iter().find(|member| member.id == id);
    let url = member.and_then(|member| member.peer_urls.first()).map_or("", String::as_str);
    address_of(url).to_owned()
}

/// `host:port` of a URL.
pub(crate) fn address_of(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest)
}

pub(crate) fn url_of(address: &str) -> String {
    format!("http://{address}")
}
