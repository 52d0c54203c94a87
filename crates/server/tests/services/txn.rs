use tenure_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tenure_api::etcdserverpb::response_op::Response;
use tenure_api::etcdserverpb::*;
use tonic::Code;

use crate::harness::*;

fn txn(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { success, ..Default::default() }
}

fn compare(key: &'static str, result: CompareResult, target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        result: result.into(),
        target: target.into(),
        key: key.into(),
        range_end: Default::default(),
        target_union: Some(union),
    }
}

/// The revisions of the inner headers; of a nested transaction its own, then those within.
fn revisions(response: &TxnResponse) -> Vec<i64> {
    let inner = |op: &ResponseOp| match op.response.as_ref().unwrap() {
        Response::ResponseRange(response) => vec![response.header.unwrap()],
        Response::ResponsePut(response) => vec![response.header.unwrap()],
        Response::ResponseDeleteRange(response) => vec![response.header.unwrap()],
        Response::ResponseTxn(response) => {
            let within =
                revisions(response).into_iter().map(|revision| ResponseHeader { revision, ..Default::default() });
            [vec![response.header.unwrap()], within.collect()].concat()
        }
    };
    let headers: Vec<ResponseHeader> = response.responses.iter().flat_map(inner).collect();
    assert!(headers.iter().all(|header| header.cluster_id == 0 && header.member_id == 0 && header.raft_term == 0));
    headers.into_iter().map(|header| header.revision).collect()
}

#[tokio::test]
async fn all_writes_share_a_revision_that_shows_from_the_first_on() {
    let server = Server::start().await;
    server.put("a", "v").await;
    let nested = txn_op(txn(vec![put_op("z", "v"), range_op("a")]));
    let request = txn(vec![range_op("a"), delete_op("none"), nested, delete_op("none"), range_op("z")]);
    let response = server.kv().txn(request).await.unwrap().into_inner();
    assert!(response.succeeded);
    assert_eq!(response.header.unwrap().revision, 3);
    assert_ne!(response.header.unwrap().cluster_id, 0);
    assert_eq!(revisions(&response), [2, 2, 0, 3, 3, 3, 3]);
    let Some(Response::ResponseRange(seen)) = &response.responses[4].response else { panic!("{response:?}") };
    assert_eq!(seen.count, 1, "a range sees what was put before it");
}

#[tokio::test]
async fn compares_choose_the_branch() {
    let server = Server::start().await;
    server.put("a", "v").await;
    use CompareResult::*;
    let version = |result, version| compare("a", result, CompareTarget::Version, TargetUnion::Version(version));
    let missing_value = |result| compare("x", result, CompareTarget::Value, TargetUnion::Value("".into()));
    let missing_version = compare("x", Equal, CompareTarget::Version, TargetUnion::Version(0));
    let mut all = version(Equal, 1);
    (all.key, all.range_end) = ("\0".into(), "\0".into());
    for (compare, holds) in [
        (version(Equal, 1), true),
        (version(Greater, 1), false),
        (version(Less, 2), true),
        (version(NotEqual, 1), false),
        (missing_value(Equal), false),
        (missing_value(NotEqual), false),
        (missing_version, true),
        (all, true),
    ] {
        // Once as a transaction that writes, once as one that only reads.
        for op in [delete_op("none"), range_op("a")] {
            let request = TxnRequest { compare: vec![compare.clone()], success: vec![op], failure: vec![] };
            let response = server.kv().txn(request).await.unwrap().into_inner();
            assert_eq!(response.succeeded, holds, "{compare:?}");
            assert_eq!(response.responses.len(), usize::from(holds));
        }
    }
}

#[tokio::test]
async fn a_transaction_that_only_reads_takes_no_place_in_the_log() {
    let server = Server::start().await;
    server.put("a", "v").await;
    let before = server.status().await.raft_index;
    let reads = txn(vec![range_op("a"), txn_op(txn(vec![range_op("a")]))]);
    let response = server.kv().txn(reads).await.unwrap().into_inner();
    assert_eq!((response.header.unwrap().revision, revisions(&response)), (2, vec![2, 0, 2]));
    assert!(server.kv().txn(TxnRequest::default()).await.unwrap().into_inner().succeeded);
    assert_eq!(server.status().await.raft_index, before);
}

#[tokio::test]
async fn revisions_of_inner_ranges_are_checked() {
    let server = Server::start().await;
    for value in ["1", "2", "3"] {
        server.put("a", value).await;
    }
    server.compact(3).await;
    let at = |revision| {
        let range = RangeRequest { key: "a".into(), revision, ..Default::default() };
        RequestOp { request: Some(request_op::Request::RequestRange(range)) }
    };
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let future = "etcdserver: mvcc: required revision is a future revision";
    for (revision, text) in [(2, compacted), (-2, compacted), (9, future)] {
        for ops in [vec![at(revision)], vec![at(revision), put_op("b", "v")]] {
            assert_refused(server.kv().txn(txn(ops)).await, Code::OutOfRange, text);
        }
    }
    assert!(server.get("b").await.is_none(), "nothing of it was done");
    server.kv().txn(txn(vec![at(3)])).await.unwrap();
}

#[tokio::test]
async fn transactions_that_make_no_sense_are_refused() {
    let server = Server::start().await;
    let mut kv = server.kv();
    let duplicate = "etcdserver: duplicate key given in txn request";
    for ops in [
        vec![put_op("a", ""), put_op("a", "")],
        vec![put_op("a", ""), delete_op("a")],
        vec![delete_op("a"), txn_op(txn(vec![put_op("a", "")]))],
        vec![put_op("a", ""), txn_op(txn(vec![put_op("a", "")]))],
    ] {
        assert_refused(kv.txn(txn(ops)).await, Code::InvalidArgument, duplicate);
    }
    kv.txn(txn(vec![delete_op("a"), delete_op("a")])).await.unwrap();
    let branches = TxnRequest { success: vec![put_op("a", "")], failure: vec![put_op("a", "")], ..Default::default() };
    kv.txn(branches).await.unwrap();

    let many = |count| txn((0..count).map(|number| put_op(format!("k{number}"), "")).collect());
    let too_many = "etcdserver: too many operations in txn request";
    kv.txn(many(128)).await.unwrap();
    assert_refused(kv.txn(many(129)).await, Code::InvalidArgument, too_many);
    assert_refused(kv.txn(txn(vec![txn_op(many(128))])).await, Code::InvalidArgument, too_many);
    kv.txn(txn(vec![txn_op(many(127))])).await.unwrap();

    let empty = txn(vec![RequestOp::default()]);
    assert_refused(kv.txn(empty).await, Code::InvalidArgument, "etcdserver: key not found");
    let keyless = TxnRequest { compare: vec![Compare::default()], ..Default::default() };
    assert_refused(kv.txn(keyless).await, Code::InvalidArgument, "etcdserver: key is not provided");
    let leased = PutRequest { key: "b".into(), lease: 99, ..Default::default() };
    let leased = RequestOp { request: Some(request_op::Request::RequestPut(leased)) };
    let text = "etcdserver: requested lease not found";
    assert_refused(kv.txn(txn(vec![put_op("c", ""), leased])).await, Code::NotFound, text);
    assert!(server.get("c").await.is_none(), "the whole transaction has failed");
}
