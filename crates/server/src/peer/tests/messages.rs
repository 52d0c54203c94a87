use bytes::{Bytes, BytesMut};
use prost::Message;
use tenure_api::tenure::peer::v1::messages_response::Answer;
use tenure_api::tenure::peer::v1::refusal::Reason;
use tenure_api::tenure::peer::v1::{Hello, MessagesRequest, MessagesResponse};
use tenure_replica::Input;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::side::{Setup, Side, Wire, acquaint, send_until_heard};
use crate::peer::frame::{self, Frames};
use crate::peer::greeting::directory_bytes;

/// A connection on which this was said first.
async fn say(side: &Side, first: &MessagesRequest) -> Frames<TcpStream> {
    let mut stream = TcpStream::connect(side.address).await.unwrap();
    let mut bytes = BytesMut::from(frame::request("a member").as_bytes());
    frame::put(first, &mut bytes);
    stream.write_all(&bytes).await.unwrap();
    let mut frames = Frames::new(stream, 1 << 20);
    assert_eq!(frames.switched().await.unwrap(), "HTTP/1.1 101 Switching Protocols");
    frames
}

/// What a member answers to a greeting.
async fn greet(side: &Side, hello: Hello) -> Answer {
    let mut frames = say(side, &MessagesRequest { hello: Some(hello), messages: Vec::new() }).await;
    let answer = frames.next().await.unwrap().unwrap();
    MessagesResponse::decode(answer).unwrap().answer.unwrap()
}

fn refusal(answer: Answer) -> (Reason, String) {
    match answer {
        Answer::Refusal(refusal) => (refusal.reason(), refusal.text),
        Answer::Welcome(_) => panic!("it was welcome"),
    }
}

#[tokio::test]
async fn messages_arrive_in_order_in_both_directions() {
    let (mut one, mut two) = (Side::new(1).await, Side::new(2).await);
    acquaint(&one, &two);
    for message in ["a", "b", "c"] {
        one.send(2, message);
    }
    two.send(1, "d");
    for message in ["a", "b", "c"] {
        assert_eq!(two.next_message().await, (1, Bytes::from_static(message.as_bytes())));
    }
    assert_eq!(one.next_message().await, (2, Bytes::from_static(b"d")));
    let large = Bytes::from(vec![7; 3 << 20]);
    one.outbox.send([(2, large.clone())]);
    assert_eq!(two.next_message().await, (1, large));
}

#[tokio::test]
async fn a_lost_connection_comes_back() {
    let (one, mut two) = (Side::new(1).await, Side::new(2).await);
    let wire = Wire::to(two.address, Vec::new()).await;
    one.outbox.set_members(vec![one.listed(), two.listed_at(wire.address)]);
    two.outbox.set_members(vec![one.listed(), two.listed()]);
    send_until_heard(&one, &mut two, "before").await;
    wire.cut();
    send_until_heard(&one, &mut two, "after").await;
    // Nobody is there, for a while.
    let mut two = two.restart().await;
    two.outbox.set_members(vec![one.listed(), two.listed()]);
    one.outbox.set_members(vec![one.listed(), two.listed()]);
    send_until_heard(&one, &mut two, "at another address").await;
}

#[tokio::test]
async fn a_member_whose_address_is_changed_is_reached_until_it_moves() {
    let (one, mut two) = (Side::new(1).await, Side::new(2).await);
    let wire = Wire::to(two.address, Vec::new()).await;
    one.outbox.set_members(vec![one.listed(), two.listed_at(wire.address)]);
    two.outbox.set_members(vec![one.listed(), two.listed()]);
    send_until_heard(&one, &mut two, "before").await;
    let passed = wire.passed();
    let nobody = Side::new(3).await.end().await;
    one.outbox.set_members(vec![one.listed(), two.listed_at(nobody)]);
    send_until_heard(&one, &mut two, "over the same connection").await;
    assert!(wire.passed() > passed);
    wire.cut();
    send_until_heard(&one, &mut two, "at the old address").await;
    let moved = Wire::to(two.address, Vec::new()).await;
    one.outbox.set_members(vec![one.listed(), two.listed_at(moved.address)]);
    drop(wire);
    send_until_heard(&one, &mut two, "at the new address").await;
    while moved.passed() == 0 {
        send_until_heard(&one, &mut two, "there").await;
    }
}

#[tokio::test]
async fn another_cluster_is_refused_by_both_sides() {
    let mut one = Side::new(1).await;
    let mut two = Side::with(2, Setup { cluster: 0xc2, ..Setup::default() }).await;
    acquaint(&one, &two);
    for (caller, called) in [(&one, &two), (&two, &one)] {
        let hello = Hello {
            cluster_id: caller.identity.cluster_id,
            from: caller.id(),
            to: called.id(),
            directory_id: directory_bytes(caller.identity.directory_id),
            applied_index: 1,
            ..Default::default()
        };
        let (reason, text) = refusal(greet(called, hello).await);
        assert_eq!(reason, Reason::OtherCluster);
        let (own, other) = (called.identity.cluster_id, caller.identity.cluster_id);
        assert_eq!(text, format!("this is a member of cluster {own:x}, not of {other:x}"));
    }
    one.send(2, "a");
    two.send(1, "b");
    // A third one of the right cluster gets through meanwhile.
    let three = Side::new(3).await;
    one.outbox.set_members(vec![one.listed(), two.listed(), three.listed()]);
    three.outbox.set_members(vec![one.listed(), three.listed()]);
    send_until_heard(&three, &mut one, "c").await;
    assert!(two.heard_nothing());
}

#[tokio::test]
async fn who_is_called_must_be_who_answers() {
    let two = Side::new(2).await;
    two.outbox.set_members(vec![two.listed()]);
    let hello = |from, to| Hello {
        cluster_id: super::side::CLUSTER,
        from,
        to,
        directory_id: directory_bytes(9),
        applied_index: 1,
        ..Default::default()
    };
    assert_eq!(refusal(greet(&two, hello(1, 7)).await).0, Reason::OtherMember);
    assert_eq!(refusal(greet(&two, hello(2, 2)).await).0, Reason::OtherMember);
    let mangled = Hello { directory_id: Bytes::from_static(b"short"), ..hello(1, 2) };
    two.outbox.set_members(vec![two.listed(), super::side::listed(1, two.address)]);
    assert_eq!(refusal(greet(&two, mangled).await).0, Reason::Unknown);
    assert!(matches!(greet(&two, hello(1, 2)).await, Answer::Welcome(welcome)
        if welcome.directory_id == directory_bytes(two.identity.directory_id)));
}

#[tokio::test]
async fn a_member_that_comes_back_with_another_directory_is_refused_and_stops() {
    let (one, mut two) = (Side::new(1).await, Side::new(2).await);
    acquaint(&one, &two);
    send_until_heard(&one, &mut two, "first contact").await;
    drop(one);
    // What was seen once is known after a restart, too.
    let mut two = two.restart().await;
    let wiped = Side::with(1, Setup { directory_id: 0xbad, ..Setup::default() }).await;
    acquaint(&wiped, &two);
    wiped.send(2, "my vote");
    let text = wiped.stopped().await;
    assert!(text.contains("member 1 (n1) came back with another data directory"), "{text}");
    assert!(text.contains("remove it from the cluster"), "{text}");
    assert!(two.heard_nothing());
    assert_eq!(*two.pages.stopped.borrow(), None);
}

#[tokio::test]
async fn nothing_is_sent_to_a_stranger_either() {
    let (one, mut two) = (Side::new(1).await, Side::new(2).await);
    acquaint(&one, &two);
    send_until_heard(&one, &mut two, "first contact").await;
    drop(two);
    let mut wiped = Side::with(2, Setup { directory_id: 0xbad, ..Setup::default() }).await;
    // It does not call by itself, and would take what it gets.
    wiped.outbox.set_members(vec![super::side::listed(1, one.address)]);
    one.outbox.set_members(vec![one.listed(), wiped.listed()]);
    wiped.stopped().await;
    one.send(2, "a secret");
    assert!(wiped.heard_nothing());
}

#[tokio::test]
async fn who_was_removed_is_told_and_who_is_not_known_yet_comes_again() {
    let (mut one, mut two) = (Side::new(1).await, Side::new(2).await);
    one.outbox.set_members(vec![one.listed(), two.listed()]);
    two.outbox.set_members(vec![two.listed()]);
    // What the second has applied may well end before the first was added.
    one.set_applied(100);
    two.set_applied(99);
    let directory_id = directory_bytes(one.identity.directory_id);
    let hello = |applied_index| Hello {
        cluster_id: super::side::CLUSTER,
        from: 1,
        to: 2,
        directory_id: directory_id.clone(),
        applied_index,
        ..Default::default()
    };
    assert_eq!(refusal(greet(&two, hello(100)).await).0, Reason::NotAMember);
    assert_eq!(refusal(greet(&two, hello(0)).await).0, Reason::NotAMember, "it has nothing yet");
    two.outbox.set_members(vec![one.listed(), two.listed()]);
    send_until_heard(&one, &mut two, "now").await;
    assert_eq!(*one.pages.stopped.borrow(), None);
    // Its stream is open when it is removed; the next greeting tells.
    two.set_applied(100);
    two.outbox.set_members(vec![two.listed()]);
    assert!(matches!(one.next().await, Input::PeerLost { member: 2 }));
    assert!(matches!(one.next().await, Input::RefusedAsRemoved { by: 2 }));
    assert_eq!(refusal(greet(&two, hello(100)).await).0, Reason::Removed);
}

#[tokio::test]
async fn a_message_that_is_too_long_is_lost_and_the_next_one_is_not() {
    let one = Side::new(1).await;
    let mut two = Side::with(2, Setup { message_bytes: 1 << 20, ..Setup::default() }).await;
    acquaint(&one, &two);
    send_until_heard(&one, &mut two, "before").await;
    one.outbox.send([(2, Bytes::from(vec![0; 2 << 20]))]);
    send_until_heard(&one, &mut two, "after").await;
}

#[tokio::test]
async fn a_stream_that_does_not_begin_with_a_greeting_is_closed() {
    let mut two = Side::new(2).await;
    let rude = MessagesRequest { hello: None, messages: vec![Bytes::from_static(b"x")] };
    assert_eq!(say(&two, &rude).await.next().await.unwrap(), None);
    let mut stream = TcpStream::connect(two.address).await.unwrap();
    stream.write_all(b"POST /tenure.peer.v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let mut frames = Frames::new(stream, 1 << 20);
    assert_eq!(frames.switched().await.unwrap(), "HTTP/1.1 426 Upgrade Required");
    assert!(two.heard_nothing());
}

#[tokio::test]
async fn what_a_connection_does_not_take_at_once_follows() {
    let (one, mut two) = (Side::new(1).await, Side::new(2).await);
    acquaint(&one, &two);
    send_until_heard(&one, &mut two, "before").await;
    // More than the buffers of both sockets hold, while nobody reads.
    let large = Bytes::from(vec![7; 1 << 20]);
    one.outbox.send((0..24).map(|_| (2, large.clone())));
    one.outbox.send([(2, Bytes::from_static(b"after"))]);
    for _ in 0..24 {
        while two.next_message().await.1 != large {}
    }
    assert_eq!(two.next_message().await.1, "after");
}
