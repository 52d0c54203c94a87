use tenure_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use tenure_api::etcdserverpb::*;
use tonic::Code;

use crate::harness::*;

fn range(key: &'static str, range_end: &'static str) -> RangeRequest {
    RangeRequest { key: key.into(), range_end: range_end.into(), ..Default::default() }
}

fn keys(response: &RangeResponse) -> Vec<&str> {
    response.kvs.iter().map(|kv| text(&kv.key)).collect()
}

#[tokio::test]
async fn headers_tell_cluster_member_revision_and_term() {
    let server = Server::start().await;
    let header = server.kv().range(range("a", "")).await.unwrap().into_inner().header.unwrap();
    assert_eq!(header.revision, 1, "an empty store is at revision 1");
    assert_ne!((header.cluster_id, header.member_id, header.raft_term), (0, 0, 0));
    assert_eq!(server.put("a", "1").await, 2);
    assert_eq!(server.put("a", "2").await, 3);

    let old = RangeRequest { revision: 2, ..range("a", "") };
    let old = server.kv().range(old).await.unwrap().into_inner();
    assert_eq!(old.header.unwrap(), ResponseHeader { revision: 3, ..header }, "the current revision");
    assert_eq!((&old.kvs[0].value[..], old.kvs[0].mod_revision), (&b"1"[..], 2));
}

#[tokio::test]
async fn a_put_answers_with_the_version_before_if_asked() {
    let server = Server::start().await;
    let put = PutRequest { key: "a".into(), value: "1".into(), prev_kv: true, ..Default::default() };
    assert_eq!(server.kv().put(put.clone()).await.unwrap().into_inner().prev_kv, None);
    let prev = server.kv().put(PutRequest { value: "2".into(), ..put }).await.unwrap().into_inner().prev_kv.unwrap();
    assert_eq!((&prev.value[..], prev.create_revision, prev.mod_revision, prev.version), (&b"1"[..], 2, 2, 1));
    let now = server.get("a").await.unwrap();
    assert_eq!((&now.value[..], now.create_revision, now.mod_revision, now.version), (&b"2"[..], 2, 3, 2));
}

#[tokio::test]
async fn puts_can_keep_value_or_lease() {
    let server = Server::start().await;
    let lease = server.grant(60).await;
    let put = PutRequest { key: "a".into(), ..Default::default() };
    let keep_value = PutRequest { ignore_value: true, ..put.clone() };
    let keep_lease = PutRequest { ignore_lease: true, ..put.clone() };
    let mut kv = server.kv();
    let not_found = "etcdserver: key not found";
    assert_refused(kv.put(keep_value.clone()).await, Code::InvalidArgument, not_found);
    assert_refused(kv.put(keep_lease.clone()).await, Code::InvalidArgument, not_found);

    kv.put(PutRequest { value: "v".into(), lease, ..put }).await.unwrap();
    kv.put(PutRequest { value: "w".into(), ..keep_lease.clone() }).await.unwrap();
    assert_eq!(server.get("a").await.unwrap().lease, lease);
    kv.put(keep_value.clone()).await.unwrap();
    let now = server.get("a").await.unwrap();
    assert_eq!((&now.value[..], now.lease), (&b"w"[..], 0));

    let with_value = PutRequest { value: "v".into(), ..keep_value };
    assert_refused(kv.put(with_value).await, Code::InvalidArgument, "etcdserver: value is provided");
    let with_lease = PutRequest { lease, ..keep_lease };
    assert_refused(kv.put(with_lease).await, Code::InvalidArgument, "etcdserver: lease is provided");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_etcds_words() {
    let server = Server::start().await;
    let mut kv = server.kv();
    let empty = "etcdserver: key is not provided";
    assert_refused(kv.range(range("", "")).await, Code::InvalidArgument, empty);
    assert_refused(kv.put(PutRequest::default()).await, Code::InvalidArgument, empty);
    assert_refused(kv.delete_range(DeleteRangeRequest::default()).await, Code::InvalidArgument, empty);
    let unknown_lease = PutRequest { key: "a".into(), lease: 77, ..Default::default() };
    assert_refused(kv.put(unknown_lease).await, Code::NotFound, "etcdserver: requested lease not found");
    let sorted = RangeRequest { sort_order: 9, ..range("a", "") };
    assert_refused(kv.range(sorted).await, Code::InvalidArgument, "etcdserver: invalid sort option");
    let future = RangeRequest { revision: 99, ..range("a", "") };
    let text = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(kv.range(future).await, Code::OutOfRange, text);
}

#[tokio::test]
async fn ranges_end_where_they_are_told_to() {
    let server = Server::start().await;
    for key in ["a", "ab", "b", "c"] {
        server.put(key, "v").await;
    }
    let mut kv = server.kv();
    for (request, expected) in [
        (range("a", ""), vec!["a"]),
        (range("a", "b"), vec!["a", "ab"]),
        (range("ab", "\0"), vec!["ab", "b", "c"]),
        (range("\0", "\0"), vec!["a", "ab", "b", "c"]),
        (range("c", "a"), vec![]),
        (range("x", ""), vec![]),
    ] {
        let response = kv.range(request).await.unwrap().into_inner();
        assert_eq!(keys(&response), expected);
        assert_eq!(response.count, expected.len() as i64);
    }
}

#[tokio::test]
async fn ranges_are_limited_sorted_and_filtered() {
    let server = Server::start().await;
    for (key, value) in [("a", "3"), ("b", "2"), ("c", "1"), ("a", "3")] {
        server.put(key, value).await;
    }
    let mut kv = server.kv();
    let all = || range("\0", "\0");
    let limited = kv.range(RangeRequest { limit: 2, ..all() }).await.unwrap().into_inner();
    assert_eq!((keys(&limited), limited.more, limited.count), (vec!["a", "b"], true, 3));
    let exact = kv.range(RangeRequest { limit: 3, ..all() }).await.unwrap().into_inner();
    assert!(!exact.more);

    let sorted = |order: SortOrder, target: SortTarget| RangeRequest {
        sort_order: order.into(),
        sort_target: target.into(),
        ..all()
    };
    for (request, expected) in [
        (sorted(SortOrder::Descend, SortTarget::Key), ["c", "b", "a"]),
        (sorted(SortOrder::Ascend, SortTarget::Value), ["c", "b", "a"]),
        (sorted(SortOrder::None, SortTarget::Value), ["c", "b", "a"]),
        (sorted(SortOrder::Ascend, SortTarget::Mod), ["b", "c", "a"]),
        (sorted(SortOrder::Descend, SortTarget::Create), ["c", "b", "a"]),
        (sorted(SortOrder::Ascend, SortTarget::Version), ["b", "c", "a"]),
    ] {
        assert_eq!(keys(&kv.range(request).await.unwrap().into_inner()), expected);
    }
    let first = RangeRequest { limit: 1, ..sorted(SortOrder::Descend, SortTarget::Mod) };
    assert_eq!(keys(&kv.range(first).await.unwrap().into_inner()), ["a"]);

    let since = kv.range(RangeRequest { min_mod_revision: 4, ..all() }).await.unwrap().into_inner();
    assert_eq!((keys(&since), since.count), (vec!["a", "c"], 3), "the count knows no filter");
    let old = kv.range(RangeRequest { max_create_revision: 2, ..all() }).await.unwrap().into_inner();
    assert_eq!(keys(&old), ["a"]);

    let only = kv.range(RangeRequest { keys_only: true, ..all() }).await.unwrap().into_inner();
    assert!(only.kvs.len() == 3 && only.kvs.iter().all(|kv| kv.value.is_empty()));
    let counted = kv.range(RangeRequest { count_only: true, ..all() }).await.unwrap().into_inner();
    assert_eq!((counted.kvs.len(), counted.count), (0, 3));
    let local = kv.range(RangeRequest { serializable: true, ..all() }).await.unwrap().into_inner();
    assert_eq!(local.count, 3);
}

#[tokio::test]
async fn deletes_count_and_show_what_was_there() {
    let server = Server::start().await;
    server.put("a", "1").await;
    server.put("b", "2").await;
    let delete = |key: &'static str, range_end: &'static str| DeleteRangeRequest {
        key: key.into(),
        range_end: range_end.into(),
        prev_kv: true,
    };
    let nothing = server.kv().delete_range(delete("x", "")).await.unwrap().into_inner();
    assert_eq!((nothing.deleted, nothing.header.unwrap().revision), (0, 3), "no write, no revision");
    let both = server.kv().delete_range(delete("a", "c")).await.unwrap().into_inner();
    assert_eq!((both.deleted, both.header.unwrap().revision), (2, 4));
    let values: Vec<_> = both.prev_kvs.iter().map(|kv| text(&kv.value)).collect();
    assert_eq!(values, ["1", "2"]);
}

#[tokio::test]
async fn compaction_forgets_what_was_before() {
    let server = Server::start().await;
    for value in ["1", "2", "3"] {
        server.put("a", value).await;
    }
    server.compact(3).await;
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let mut kv = server.kv();
    let at = |revision| RangeRequest { revision, ..range("a", "") };
    assert_refused(kv.range(at(2)).await, Code::OutOfRange, compacted);
    assert_eq!(kv.range(at(3)).await.unwrap().into_inner().kvs[0].value, "2", "still readable at the revision itself");
    for revision in [3, 1, 0, -5] {
        let request = CompactionRequest { revision, physical: true };
        assert_refused(kv.compact(request).await, Code::OutOfRange, compacted);
    }
    let future = CompactionRequest { revision: 99, physical: false };
    let text = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(kv.compact(future).await, Code::OutOfRange, text);
}

#[tokio::test]
async fn large_requests_are_refused_by_name_and_larger_ones_by_grpc() {
    let server = Server::start().await;
    let mut kv = server.kv();
    let put = |length| PutRequest { key: "big".into(), value: vec![0; length].into(), ..Default::default() };
    kv.put(put(1_572_834)).await.unwrap();
    for length in [1_572_839, 2_000_000] {
        assert_refused(kv.put(put(length)).await, Code::InvalidArgument, "etcdserver: request is too large");
    }
    let text = "grpc: received message larger than max (2097162 vs. 2097152)";
    assert_refused(kv.put(put(2_097_152)).await, Code::ResourceExhausted, text);
    // The connection has survived.
    assert_eq!(server.get("big").await.unwrap().value.len(), 1_572_834);
}

/// A range that is too long to be walked by the thread that serves the connection is walked elsewhere.
#[tokio::test]
async fn places_are_protected_behind_ever_so_many_keys() {
    let server = Server::start_with(|config| config.protect_places = true).await;
    for batch in 0..10 {
        let put = |number| {
            let put = PutRequest { key: format!("k/{batch}/{number:03}").into(), ..PutRequest::default() };
            RequestOp { request: Some(request_op::Request::RequestPut(put)) }
        };
        let txn = TxnRequest { success: (0..100).map(put).collect(), ..TxnRequest::default() };
        server.kv().txn(txn).await.unwrap();
    }
    let mut locks = crate::tenure_lock::client(&server);
    let lease = crate::tenure_lock::lease(&mut locks, "ada").await;
    let held = crate::tenure_lock::lock(&mut locks, crate::tenure_lock::ask("z", lease)).await;
    let everything = DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), ..DeleteRangeRequest::default() };
    let refused = server.kv().delete_range(everything.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("a place of the lock \"z\""), "{refused:?}");
    crate::tenure_lock::unlock(&mut locks, "z", held.fencing_token).await.unwrap();
    assert_eq!(server.kv().delete_range(everything).await.unwrap().into_inner().deleted, 1000);
}
