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
async fn the_cluster_cannot_be_changed_yet() {
    let server = Server::start().await;
    let text = "tenure: the members of a running cluster cannot be changed yet";
    let mut cluster = server.cluster();
    assert_refused(cluster.member_add(MemberAddRequest::default()).await, Code::Unimplemented, text);
    assert_refused(cluster.member_remove(MemberRemoveRequest::default()).await, Code::Unimplemented, text);
    assert_refused(cluster.member_update(MemberUpdateRequest::default()).await, Code::Unimplemented, text);
    assert_refused(cluster.member_promote(MemberPromoteRequest::default()).await, Code::Unimplemented, text);
}
