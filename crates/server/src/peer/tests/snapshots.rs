use bytes::Bytes;
use tenure_api::tenure::peer::v1::peer_client::PeerClient;
use tenure_api::tenure::peer::v1::snapshot_request::Part;
use tenure_api::tenure::peer::v1::snapshot_response::Answer;
use tenure_api::tenure::peer::v1::{Hello, SnapshotChunk, SnapshotOffer, SnapshotRequest, SnapshotResponse};
use tenure_machine::{Command, Envelope, Machine, Put};
use tenure_replica::Input;
use tenure_storage::SnapshotMeta;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::side::{CLUSTER, Setup, Side, Wire, acquaint};
use crate::limits::PEER_CHUNK_BYTES;
use crate::member::random_u64;
use crate::peer::greeting::directory_bytes;
use crate::peer::outbox::SnapshotOrder;

const INDEX: u64 = 40;
const TERM: u64 = 3;

/// A state of about so many bytes that do not compress.
fn machine(bytes: usize) -> Machine {
    let mut machine = Machine::new();
    for number in 0..bytes.div_ceil(64 << 10).max(1) {
        let value: Vec<u8> = (0..8 << 10).flat_map(|_| random_u64().to_ne_bytes()).collect();
        let put = Put {
            key: format!("key {number}").into(),
            value: value.into(),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        };
        machine.apply(INDEX, TERM, &Envelope { wall_ms: 0, origin: None, command: Command::Put(put) });
    }
    machine
}

async fn sender(bytes: usize) -> (Side, u64) {
    let machine = machine(bytes);
    let hash = machine.state().hash();
    let side = Side::with(1, Setup { machine, snapshot: (INDEX, TERM), ..Setup::default() }).await;
    side.set_applied(INDEX);
    (side, hash)
}

fn order(index: u64) -> SnapshotOrder {
    SnapshotOrder { to: 2, index, message: Bytes::from_static(b"goes along") }
}

/// The snapshot is here, as it was there.
async fn assert_received(two: &mut Side, hash: u64) {
    match two.next().await {
        Input::SnapshotReceived { from, message, machine, configuration, bytes } => {
            assert_eq!((from, &message[..], &configuration[..]), (1, &b"goes along"[..], &b"who votes"[..]));
            assert_eq!(machine.state().hash(), hash);
            assert!(bytes > 0);
        }
        other => panic!("{other:?}"),
    }
    // Before the replica hears of it, it is on disk.
    let reader = two.store.snapshots().reader_of(INDEX, TERM).unwrap();
    assert_eq!((reader.meta().index, reader.meta().term), (INDEX, TERM));
}

async fn assert_sent(one: &mut Side, wanted: u64, was_delivered: bool) {
    let mut next = one.next().await;
    // Of the messages' own connection, which is apart.
    while matches!(next, Input::PeerLost { .. }) {
        next = one.next().await;
    }
    match next {
        Input::SnapshotSent { to, index, delivered } => assert_eq!((to, index, delivered), (2, wanted, was_delivered)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_snapshot_arrives_verified_and_durable() {
    let ((mut one, hash), mut two) = (sender(3 * PEER_CHUNK_BYTES).await, Side::new(2).await);
    acquaint(&one, &two);
    one.outbox.send_snapshot(order(INDEX));
    assert_received(&mut two, hash).await;
    assert_sent(&mut one, INDEX, true).await;
    // Once more: it has it already. Raft hears of the offer, and answers how far it is; the file stays away.
    two.set_applied(INDEX);
    one.outbox.send_snapshot(order(INDEX));
    assert_sent(&mut one, INDEX, true).await;
    assert_eq!(two.next_message().await, (1, Bytes::from_static(b"goes along")));
    assert!(two.heard_nothing());
}

#[tokio::test]
async fn a_snapshot_that_was_cut_goes_on_where_it_was() {
    let size = 12 * PEER_CHUNK_BYTES;
    let ((mut one, hash), mut two) = (sender(size).await, Side::new(2).await);
    // Messages and the snapshot each have a connection; whichever is first, both break once.
    let wire = Wire::to(two.address, vec![size / 2, size / 2]).await;
    one.outbox.set_members(vec![one.listed(), two.listed_at(wire.address)]);
    two.outbox.set_members(vec![one.listed(), two.listed()]);
    one.outbox.send_snapshot(order(INDEX));
    assert_received(&mut two, hash).await;
    assert_sent(&mut one, INDEX, true).await;
    // What was in flight when it broke is sent again, but not what had arrived.
    assert!(wire.passed() < size + size / 4, "{} of {size}", wire.passed());
}

#[tokio::test]
async fn an_order_that_cannot_be_carried_out_is_reported() {
    let ((mut one, _), two) = (sender(1).await, Side::new(2).await);
    acquaint(&one, &two);
    // There is no such snapshot any more.
    one.outbox.send_snapshot(order(INDEX - 1));
    assert_sent(&mut one, INDEX - 1, false).await;
    // Nobody answers there, nor where it was before.
    let address = Side::new(2).await.end().await;
    let elsewhere = two.listed_at(address);
    two.end().await;
    one.outbox.set_members(vec![one.listed(), elsewhere]);
    one.outbox.send_snapshot(order(INDEX));
    assert_sent(&mut one, INDEX, false).await;
    // Nor is anybody known by that name.
    one.outbox.set_members(vec![one.listed()]);
    one.outbox.send_snapshot(order(INDEX));
    assert_sent(&mut one, INDEX, false).await;
}

#[tokio::test]
async fn there_is_one_snapshot_to_a_peer_at_a_time() {
    let ((mut one, hash), mut two) = (sender(6 * PEER_CHUNK_BYTES).await, Side::new(2).await);
    acquaint(&one, &two);
    one.outbox.send_snapshot(order(INDEX));
    one.outbox.send_snapshot(order(INDEX));
    assert_sent(&mut one, INDEX, false).await;
    assert_received(&mut two, hash).await;
    assert_sent(&mut one, INDEX, true).await;
}

/// A sender that does as the test says.
struct Hand {
    requests: mpsc::Sender<SnapshotRequest>,
    answers: Streaming<SnapshotResponse>,
}

impl Hand {
    async fn offer(two: &Side, meta: &SnapshotMeta, bytes: u64) -> Hand {
        let (requests, stream) = mpsc::channel(8);
        let hello = Hello {
            cluster_id: CLUSTER,
            from: 1,
            to: 2,
            directory_id: directory_bytes(u128::from(1u64) << 64 | 1),
            applied_index: meta.index,
            ..Default::default()
        };
        let (index, term) = (meta.index, meta.term);
        let offer =
            SnapshotOffer { hello: Some(hello), index, term, bytes, message: Bytes::from_static(b"goes along") };
        requests.try_send(SnapshotRequest { part: Some(Part::Offer(offer)) }).unwrap();
        let mut client = PeerClient::connect(format!("http://{}", two.address)).await.unwrap();
        let answers = client.snapshot(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Hand { requests, answers }
    }

    async fn offset(&mut self) -> u64 {
        match self.answers.message().await.unwrap().unwrap().answer {
            Some(Answer::Resume(resume)) => resume.offset,
            other => panic!("{other:?}"),
        }
    }

    async fn chunk(&mut self, offset: u64, data: &[u8], checksum: u32) {
        let chunk = SnapshotChunk { offset, data: Bytes::copy_from_slice(data), checksum };
        self.requests.send(SnapshotRequest { part: Some(Part::Chunk(chunk)) }).await.unwrap();
    }

    async fn sound_chunk(&mut self, offset: u64, data: &[u8]) {
        self.chunk(offset, data, crc32c::crc32c(data)).await;
    }
}

#[tokio::test]
async fn nothing_is_taken_in_that_does_not_fit() {
    let mut two = Side::new(2).await;
    two.outbox.set_members(vec![super::side::listed(1, two.address), two.listed()]);
    let machine = machine(1);
    let meta = SnapshotMeta { index: INDEX, term: TERM, configuration: Bytes::from_static(b"who votes") };
    let mut encoder = tenure_storage::SnapshotEncoder::new(Vec::new(), &meta).unwrap();
    for chunk in tenure_machine::snapshot::chunks(machine.view(), 1 << 20) {
        encoder.write_chunk(&chunk).unwrap();
    }
    let bytes = encoder.finish().unwrap();
    let length = bytes.len() as u64;

    let mut hand = Hand::offer(&two, &meta, length).await;
    assert_eq!(hand.offset().await, 0);
    hand.sound_chunk(0, &bytes[..100]).await;
    hand.chunk(100, &bytes[100..200], 0).await;
    assert_eq!(hand.answers.message().await.unwrap_err().code(), tonic::Code::DataLoss, "a wrong checksum");

    let mut hand = Hand::offer(&two, &meta, length).await;
    assert_eq!(hand.offset().await, 100, "what was right is kept");
    hand.sound_chunk(300, &bytes[300..]).await;
    assert_eq!(hand.answers.message().await.unwrap_err().code(), tonic::Code::InvalidArgument, "a gap");

    let other = SnapshotMeta { index: INDEX + 1, ..meta.clone() };
    let mut hand = Hand::offer(&two, &other, length).await;
    assert_eq!(hand.offset().await, 0, "another snapshot begins anew");
    // Right in every piece, but not what was offered.
    hand.sound_chunk(0, &bytes).await;
    assert_eq!(hand.answers.message().await.unwrap_err().code(), tonic::Code::DataLoss);
    assert!(two.heard_nothing());

    let mut hand = Hand::offer(&two, &meta, length).await;
    assert_eq!(hand.offset().await, 0, "what cannot be used is not kept");
    hand.sound_chunk(0, &bytes).await;
    assert_received(&mut two, machine.state().hash()).await;
    assert!(matches!(hand.answers.message().await.unwrap().unwrap().answer, Some(Answer::Received(_))));
}

#[tokio::test]
async fn what_a_cut_snapshot_left_goes_with_the_member_that_sent_it() {
    let two = Side::new(2).await;
    two.outbox.set_members(vec![super::side::listed(1, two.address), two.listed()]);
    let meta = SnapshotMeta { index: INDEX, term: TERM, configuration: Bytes::new() };
    let files = || {
        let names =
            std::fs::read_dir(two.directory.path().join("data")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("snapshot-")).count()
    };
    let before = files();
    let mut hand = Hand::offer(&two, &meta, 1000).await;
    assert_eq!(hand.offset().await, 0);
    hand.sound_chunk(0, &[7; 10]).await;
    let mut again = Hand::offer(&two, &meta, 1000).await;
    // The one before has ended, whether or not its piece had arrived.
    assert!(again.offset().await <= 10);
    assert!(files() > before);
    drop((hand, again));
    two.outbox.set_members(vec![two.listed()]);
    while files() > before {
        tokio::task::yield_now().await;
    }
}
