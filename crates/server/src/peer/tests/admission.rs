use std::time::Duration;

use bytes::Bytes;
use tenure_api::tenure::peer::v1::leave_response::Answer;
use tenure_api::tenure::peer::v1::peer_client::PeerClient;
use tenure_api::tenure::peer::v1::{JoinRequest, LeaveRequest};
use tenure_replica::MemberChange;

use super::side::{CLUSTER, PATIENCE, Side, acquaint, listed, send_until_heard};
use crate::peer::join::{HOPS, JoinError, fetch_peers, join};

fn request(name: &str, port: u16) -> JoinRequest {
    JoinRequest {
        name: name.to_owned(),
        peer_address: format!("127.0.0.1:{port}"),
        client_address: "127.0.0.1:2".to_owned(),
        directory_id: Bytes::from_static(&[7; 16]),
        ..Default::default()
    }
}

/// A cluster in which everybody takes `leads` for the leader.
async fn cluster(size: u64, leads: impl Fn(u64) -> u64) -> Vec<Side> {
    let mut sides = Vec::new();
    for id in 1..=size {
        sides.push(Side::new(id).await);
    }
    let members: Vec<_> = sides.iter().map(Side::listed).collect();
    for side in &sides {
        side.outbox.set_members(members.clone());
        *side.pages.members.lock().unwrap() = members.clone();
        side.pages.status.lock().unwrap().leader = leads(side.id());
    }
    sides
}

fn address(side: &Side) -> String {
    side.address.to_string()
}

#[tokio::test]
async fn who_asks_a_follower_is_added_by_the_leader() {
    let sides = cluster(3, |_| 3).await;
    let joined = join(&address(&sides[0]), request("n4", 9), PATIENCE).await.unwrap();
    assert_eq!((joined.cluster_id, joined.leader_id), (CLUSTER, 3));
    let changes = sides[2].pages.changes.lock().unwrap().clone();
    let [MemberChange::Add { member }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((member.id, member.name.as_str(), member.learner), (joined.member_id, "n4", true));
    assert_eq!(member.peer_urls, ["http://127.0.0.1:9"]);
    assert_eq!(member.client_urls, ["http://127.0.0.1:2"]);
    assert_eq!(joined.members.len(), 4);
    assert!(sides[0].pages.changes.lock().unwrap().is_empty());
    // The answer was lost, and it asks again: it is the same member still.
    let again = join(&address(&sides[2]), request("n4", 9), PATIENCE).await.unwrap();
    assert_eq!(again.member_id, joined.member_id);
    assert_eq!(sides[2].pages.changes.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn hints_that_lead_nowhere_are_named() {
    // Everybody points to the next.
    let sides = cluster(HOPS as u64 + 2, |id| id % (HOPS as u64 + 2) + 1).await;
    let error = join(&address(&sides[0]), request("n9", 9), PATIENCE).await.unwrap_err();
    let JoinError::TooManyHops { hops } = &error else { panic!("{error}") };
    assert_eq!(*hops, sides.iter().take(HOPS + 1).map(address).collect::<Vec<_>>());
    for hop in hops {
        assert!(error.to_string().contains(hop), "{error}");
    }
}

#[tokio::test]
async fn who_finds_nobody_to_join_says_whom_it_asked_and_why_not() {
    let sides = cluster(2, |_| 0).await;
    let error = join(&address(&sides[0]), request("n3", 9), Duration::ZERO).await.unwrap_err();
    assert!(matches!(&error, JoinError::GaveUp { reason, .. } if reason == "it knows no leader"), "{error}");
    let gone = Side::new(3).await.end().await.to_string();
    let error = join(&gone, request("n3", 9), Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains(&gone) && error.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_name_or_an_address_that_is_taken_is_refused() {
    let mut sides = cluster(2, |_| 1).await;
    let leader = address(&sides[0]);
    let refused = async |request| match join(&leader, request, PATIENCE).await.unwrap_err() {
        JoinError::Refused { text, .. } => text,
        other => panic!("{other}"),
    };
    let text = refused(request("n2", 9)).await;
    assert!(text.contains("named n2 exists already"), "{text}");
    // The second member has been seen alive: whoever comes from its address now is another one.
    let (one, two) = sides.split_at_mut(1);
    send_until_heard(&one[0], &mut two[0], "hello").await;
    let text = refused(request("n3", two[0].address.port())).await;
    assert!(text.contains("is the address of member 2 (n2)"), "{text}");
    for bad in [request("a=b", 9), JoinRequest { peer_address: "nowhere".to_owned(), ..request("n3", 9) }] {
        refused(bad).await;
    }
    assert!(sides[0].pages.changes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn who_was_added_beforehand_takes_its_place() {
    let sides = cluster(1, |_| 1).await;
    let operators = listed(77, "127.0.0.1:9".parse().unwrap());
    sides[0].pages.members.lock().unwrap().push(operators);
    let joined = join(&address(&sides[0]), request("n5", 9), PATIENCE).await.unwrap();
    assert_eq!(joined.member_id, 77);
    assert!(sides[0].pages.changes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_second_voter_gets_in_without_a_leader() {
    let mut sides = cluster(1, |_| 0).await;
    let added = listed(77, "127.0.0.1:9".parse().unwrap());
    sides[0].outbox.set_members(vec![sides[0].listed(), added.clone()]);
    let joined = join(&address(&sides[0]), request("n2", 9), Duration::ZERO).await.unwrap();
    assert_eq!((joined.member_id, joined.members.len()), (77, 2));
    // Of three voters the other two can elect a leader, who knows more.
    let third = listed(78, "127.0.0.1:10".parse().unwrap());
    sides[0].outbox.set_members(vec![sides[0].listed(), added, third]);
    let error = join(&address(&sides[0]), request("n2", 9), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, JoinError::GaveUp { .. }), "{error}");
    // One that has been seen is not let in as a new one.
    let mut second = Side::new(2).await;
    acquaint(&sides[0], &second);
    send_until_heard(&sides[0], &mut second, "hello").await;
    let error = join(&address(&sides[0]), request("n2", second.address.port()), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, JoinError::GaveUp { .. }), "{error}");
    sides.clear();
}

#[tokio::test]
async fn anybody_is_told_who_belongs_to_the_cluster() {
    let sides = cluster(3, |_| 2).await;
    let peers = fetch_peers(&address(&sides[0])).await.unwrap();
    assert_eq!((peers.cluster_id, peers.member_id, peers.members.len()), (CLUSTER, 1, 3));
    assert_eq!(peers.leader.unwrap().peer_address, address(&sides[1]));
}

#[tokio::test]
async fn only_a_member_itself_leaves_and_only_the_leader_lets_it_go() {
    let (one, mut two) = (Side::new(1).await, Side::new(2).await);
    acquaint(&one, &two);
    for side in [&one, &two] {
        *side.pages.members.lock().unwrap() = vec![one.listed(), two.listed()];
        side.pages.status.lock().unwrap().leader = 1;
    }
    send_until_heard(&one, &mut two, "hello").await;
    let leave = async |at: &Side, from: &Side, directory_id: u128| {
        let hello = tenure_api::tenure::peer::v1::Hello {
            cluster_id: CLUSTER,
            from: from.id(),
            to: at.id(),
            directory_id: crate::peer::greeting::directory_bytes(directory_id),
            applied_index: 1,
            ..Default::default()
        };
        let mut client = PeerClient::connect(format!("http://{}", at.address)).await.unwrap();
        client.leave(LeaveRequest { hello: Some(hello) }).await.unwrap().into_inner().answer.unwrap()
    };
    assert!(
        matches!(leave(&two, &one, one.identity.directory_id).await, Answer::Elsewhere(hint) if hint.leader_id == 1)
    );
    // Somebody else in its name; the first contact was with the true one or is made by it now.
    two.send(1, "hello");
    let left = leave(&one, &two, two.identity.directory_id).await;
    assert!(matches!(left, Answer::Left(left) if left.members.len() == 1));
    assert!(matches!(leave(&one, &two, 0xbad).await, Answer::Refusal(_)));
    let changes = one.pages.changes.lock().unwrap().clone();
    assert_eq!(changes, [MemberChange::Remove { id: 2, force: false }]);
}
