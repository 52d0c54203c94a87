use sha2::{Digest, Sha256};
use tenure_api::etcdserverpb::alarm_request::AlarmAction;
use tenure_api::etcdserverpb::*;
use tenure_machine::snapshot::Restore;
use tenure_storage::SnapshotDecoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;

use crate::harness::*;

#[tokio::test]
async fn the_status_tells_how_the_member_is() {
    let server = Server::start().await;
    server.put("a", "1").await;
    let status = server.status().await;
    let header = status.header.unwrap();
    assert_eq!((header.revision, header.raft_term), (2, status.raft_term));
    assert_eq!(status.leader, header.member_id);
    let version: Vec<u32> = status.version.split('.').map(|part| part.parse().unwrap()).collect();
    assert!(version >= vec![3, 5, 13], "Kubernetes asks for it");
    assert!(status.raft_index > 1 && status.raft_applied_index <= status.raft_index);
    assert!(status.db_size > 0 && status.db_size_in_use > 0 && status.db_size_in_use <= status.db_size);
    assert_eq!((status.errors.len(), status.is_learner), (0, false));
    assert_eq!(status.db_size_quota, server.config.quota as i64);
}

#[tokio::test]
async fn alarms_are_raised_listed_and_cleared() {
    let server = Server::start().await;
    let lease = server.grant(60).await;
    server.put_leased("a", lease).await;
    let change =
        |action: AlarmAction| AlarmRequest { action: action.into(), member_id: 7, alarm: AlarmType::Nospace.into() };
    let alarm = AlarmMember { member_id: 7, alarm: AlarmType::Nospace.into() };
    let mut maintenance = server.maintenance();
    for _ in 0..2 {
        let raised = maintenance.alarm(change(AlarmAction::Activate)).await.unwrap().into_inner();
        assert_eq!(raised.alarms, [alarm]);
        assert!(raised.header.is_some());
    }
    let listed = maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.alarms, [alarm]);
    let corrupt = AlarmRequest { alarm: AlarmType::Corrupt.into(), ..Default::default() };
    assert_eq!(maintenance.alarm(corrupt).await.unwrap().into_inner().alarms, []);
    assert_eq!(server.status().await.errors, ["memberID:7 alarm:NOSPACE "]);

    let put = PutRequest { key: "b".into(), ..Default::default() };
    let no_space = "etcdserver: mvcc: database space exceeded";
    assert_refused(server.kv().put(put.clone()).await, Code::ResourceExhausted, no_space);
    let grant = LeaseGrantRequest { ttl: 60, id: 0 };
    assert_refused(server.lease().lease_grant(grant).await, Code::ResourceExhausted, no_space);
    server.delete("a").await;
    server.revoke(lease).await;

    let cleared = maintenance.alarm(change(AlarmAction::Deactivate)).await.unwrap().into_inner();
    assert_eq!(cleared.alarms, [alarm]);
    assert_eq!(maintenance.alarm(change(AlarmAction::Deactivate)).await.unwrap().into_inner().alarms, []);
    server.kv().put(put).await.unwrap();
}

#[tokio::test]
async fn hashes_follow_the_keys() {
    let server = Server::start().await;
    let mut maintenance = server.maintenance();
    let hash_at = |revision| HashKvRequest { revision };
    server.put("a", "1").await;
    let first = maintenance.hash_kv(hash_at(0)).await.unwrap().into_inner();
    assert_eq!((first.compact_revision, first.header.unwrap().revision, first.hash_revision), (-1, 2, 2));
    server.put("a", "2").await;
    assert_eq!(maintenance.hash_kv(hash_at(2)).await.unwrap().into_inner().hash, first.hash);
    assert_ne!(maintenance.hash_kv(hash_at(0)).await.unwrap().into_inner().hash, first.hash);
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(maintenance.hash_kv(hash_at(9)).await, Code::OutOfRange, future);
    server.compact(3).await;
    assert_eq!(maintenance.hash_kv(hash_at(0)).await.unwrap().into_inner().compact_revision, 3);
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    assert_refused(maintenance.hash_kv(hash_at(2)).await, Code::OutOfRange, compacted);

    let hash = maintenance.hash(HashRequest {}).await.unwrap().into_inner();
    assert_eq!(hash.header.unwrap().revision, 3);
    assert_eq!(maintenance.hash(HashRequest {}).await.unwrap().into_inner().hash, hash.hash);
}

#[tokio::test]
async fn a_backup_can_be_checked_and_read() {
    let server = Server::start().await;
    let value: Vec<u8> = (0..100_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for number in 0..20 {
        server.put(format!("key{number}"), value.clone()).await;
    }
    let mut stream = server.maintenance().snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut backup = Vec::new();
    let mut remaining = Vec::new();
    while let Some(response) = stream.message().await.unwrap() {
        assert!(response.blob.len() < 1 << 20, "in pieces that every client takes");
        backup.extend_from_slice(&response.blob);
        remaining.push(response.remaining_bytes);
    }
    assert!(remaining.len() > 3 && remaining[0] > 0 && remaining.last() == Some(&0), "{remaining:?}");
    assert_eq!(backup.len() % 512, 32, "as etcd's tools tell a backup with a hash");
    let (content, hash) = backup.split_at(backup.len() - 32);
    assert_eq!(Sha256::digest(content)[..], *hash);

    let mut decoder = SnapshotDecoder::new(content).unwrap();
    let mut restore = Restore::new();
    while let Some(chunk) = decoder.next_chunk().unwrap() {
        restore.chunk(&chunk).unwrap();
    }
    let machine = restore.finish().unwrap();
    assert_eq!(machine.state().revision(), 21);
    assert_eq!(machine.state().get(b"key7").unwrap().value[..], value);
}

#[tokio::test]
async fn leadership_goes_to_members_only() {
    let server = Server::start().await;
    let leader = server.status().await.leader;
    let mut maintenance = server.maintenance();
    let stay = MoveLeaderRequest { target_id: leader };
    assert_eq!(maintenance.move_leader(stay).await.unwrap().into_inner(), MoveLeaderResponse::default());
    let stranger = MoveLeaderRequest { target_id: 5 };
    let text = "etcdserver: bad leader transferee";
    assert_refused(maintenance.move_leader(stranger).await, Code::FailedPrecondition, text);
}

#[tokio::test]
async fn there_is_nothing_to_defragment_and_no_way_back() {
    let server = Server::start().await;
    let answer = server.maintenance().defragment(DefragmentRequest {}).await.unwrap().into_inner();
    assert_eq!(answer, DefragmentResponse::default(), "without a header, as etcd has it");
    let text = "unknown method Downgrade for service etcdserverpb.Maintenance";
    assert_refused(server.maintenance().downgrade(DowngradeRequest::default()).await, Code::Unimplemented, text);
}

/// As `etcdctl endpoint status --cluster` of etcd 3.4 does: the authority that it sends is a URL.
#[tokio::test]
async fn a_client_that_names_the_server_by_a_url_is_answered() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let header = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        [&header[..], payload].concat()
    };
    let field = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    // POST over http; then fields whose names stand in HPACK's table, and one that does not.
    let fields = [
        vec![0x83, 0x86],
        field(&[0x44], "/etcdserverpb.Maintenance/Status"),
        field(&[0x41], "http://127.0.0.1:2379"),
        field(&[0x5f], "application/grpc"),
        field(&[0x40, 2, b't', b'e'], "trailers"),
    ];
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(HEADERS, 4, 1, &fields.concat()),
        frame(0, 1, 1, &[0; 5]),
    ];
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&sent.concat()).await.unwrap();
    let answered = async {
        loop {
            let mut header = [0; 9];
            stream.read_exact(&mut header).await.unwrap();
            let length = usize::from(header[1]) << 8 | usize::from(header[2]);
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            match header[3] {
                HEADERS => return,
                RST_STREAM => panic!("the call was refused"),
                _ => {}
            }
        }
    };
    timeout(PATIENCE, answered).await.unwrap();
}
