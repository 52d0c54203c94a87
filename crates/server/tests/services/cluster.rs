use tenure_api::etcdserverpb::*;
use tonic::Code;

use crate::harness::*;

#[tokio::test]
async fn members_are_listed_with_their_addresses() {
    let server = Server::start().await;
    for linearizable in [false, true] {
        let listed = server.cluster().member_list(MemberListRequest { linearizable }).await.unwrap().into_inner();
        let header = listed.header.unwrap();
        assert_eq!(header.revision, 0, "the cluster service names none");
        assert_ne!((header.cluster_id, header.raft_term), (0, 0));
        let [member] = &listed.members[..] else { panic!("{listed:?}") };
        assert_eq!((member.id, member.is_learner), (header.member_id, false));
        assert_eq!(member.name, "default");
        assert!(member.client_ur_ls.iter().all(|url| url.starts_with("http://127.0.0.1:")), "{member:?}");
        assert!(!member.client_ur_ls.is_empty() && !member.peer_ur_ls.is_empty(), "{member:?}");
    }
}

#[tokio::test]
async fn members_are_refused_in_etcds_words() {
    let server = Server::start().await;
    let mut cluster = server.cluster();
    let listed = cluster.member_list(MemberListRequest::default()).await.unwrap().into_inner();
    let own = &listed.members[0];
    let add = |url: &str| MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner: true };
    let bad = "etcdserver: given member URLs are invalid";
    for request in [MemberAddRequest::default(), add("127.0.0.1:1"), add("http://127.0.0.1"), add("http://a:1/path")] {
        assert_refused(cluster.member_add(request).await, Code::InvalidArgument, bad);
    }
    let taken = "etcdserver: Peer URLs already exists";
    assert_refused(cluster.member_add(add(&own.peer_ur_ls[0])).await, Code::FailedPrecondition, taken);
    let unknown = "etcdserver: member not found";
    assert_refused(cluster.member_remove(MemberRemoveRequest { id: 7 }).await, Code::NotFound, unknown);
    assert_refused(cluster.member_promote(MemberPromoteRequest { id: 7 }).await, Code::NotFound, unknown);
    let update = |id, url: &str| MemberUpdateRequest { id, peer_ur_ls: vec![url.to_owned()] };
    assert_refused(cluster.member_update(update(7, "http://a:1")).await, Code::NotFound, unknown);
    assert_refused(cluster.member_update(update(own.id, "a:1")).await, Code::InvalidArgument, bad);
    let voter = "etcdserver: can only promote a learner member";
    let promote = MemberPromoteRequest { id: own.id };
    assert_refused(cluster.member_promote(promote).await, Code::FailedPrecondition, voter);
}
