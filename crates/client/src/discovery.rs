//! Who else is there: a client that was given one endpoint learns the others from the cluster.
//!
//! It asks over every new connection, and now and then. An address is worth nothing before somebody answers there, so it
//! is only tried when it is needed; and then whoever answers must be of the cluster that named it.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::etcdserverpb::cluster_client::ClusterClient;
use tenure_api::etcdserverpb::{Member, MemberListRequest};

use crate::connection::{Connection, Introduction};
use crate::endpoint::{self, Address};
use crate::places::Places;

/// How often it is asked over one connection.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);
/// When it is asked again where those are who have not said it yet, the first time; then after twice as long, and so on.
const UNTOLD_PAUSE: Duration = Duration::from_millis(100);
const UNTOLD_TRIES: u32 = 8;

/// Asks over this connection, in the background.
pub(crate) fn ask(places: Arc<Places>, connection: &Connection) {
    let Some(introduction) = connection.introduction else { return };
    let (address, is_local) = (connection.address.clone(), connection.is_local);
    let mut cluster = ClusterClient::new(connection.channel.clone());
    tokio::spawn(async move {
        for pause in (0..UNTOLD_TRIES).map(|tries| UNTOLD_PAUSE * 2_u32.pow(tries)) {
            let listing = cluster.member_list(MemberListRequest { linearizable: false });
            // If it cannot be said now, it will be another time.
            let Ok(Ok(listed)) = tokio::time::timeout(TIMEOUT, listing).await else { return };
            let members = listed.into_inner().members;
            places.learn(&address, usable(&members, introduction, is_local), introduction.cluster);
            // In a cluster that has just begun they are known before they say where they serve clients.
            if members.iter().all(|member| !member.client_ur_ls.is_empty()) {
                return;
            }
            tokio::time::sleep(pause).await;
            // Nobody else wants to know any more.
            if Arc::strong_count(&places) == 1 {
                return;
            }
        }
    });
}

/// Where the other members can be found from here.
fn usable(members: &[Member], introduction: Introduction, is_local: bool) -> Vec<Address> {
    // Learners of etcd answer next to nothing, and who is asked is known by the address that it was asked at.
    let others = members.iter().filter(|member| member.id != introduction.member && !member.is_learner);
    let addresses = others.flat_map(|member| &member.client_ur_ls).filter_map(|url| endpoint::parse(url).ok());
    let is_usable = |address: &Address| match address.ip() {
        // On another machine "localhost" is somebody else.
        Some(ip) => !ip.is_unspecified() && (is_local || !ip.to_canonical().is_loopback()),
        None => is_local || address.uri.host() != Some("localhost"),
    };
    addresses.filter(is_usable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, urls: &[&str]) -> Member {
        Member { id, client_ur_ls: urls.iter().map(|url| url.to_string()).collect(), ..Member::default() }
    }

    #[test]
    fn addresses_that_mean_nothing_here_are_left_out() {
        let members = [
            member(1, &["http://10.0.0.1:2379"]),
            member(2, &["http://10.0.0.2:2379", "https://10.0.0.2:2380"]),
            member(3, &["http://127.0.0.1:2379", "http://localhost:2379", "http://0.0.0.0:2379"]),
            member(4, &["http://node-4.example:2379", "unix://somewhere"]),
            Member { is_learner: true, ..member(5, &["http://10.0.0.5:2379"]) },
            member(6, &[]),
        ];
        let introduction = Introduction { cluster: 7, member: 1, has_leader: true };
        let texts = |is_local| {
            let usable = usable(&members, introduction, is_local);
            usable.into_iter().map(|address| address.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(false), ["10.0.0.2:2379", "node-4.example:2379"]);
        let local = ["10.0.0.2:2379", "127.0.0.1:2379", "localhost:2379", "node-4.example:2379"];
        assert_eq!(texts(true), local);
    }
}
