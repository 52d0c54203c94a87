//! etcd's requests, from protobuf to a command.

use prost::Message;
use tenure_api::etcdserverpb as etcd;
use tenure_server::outside;

use crate::command;

/// The first byte chooses the kind of request.
pub fn run(bytes: &[u8]) {
    let Some((kind, request)) = bytes.split_first() else { return };
    if let Some(command) = outside::etcd_request(*kind, request) {
        command::apply(command);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let put = etcd::PutRequest {
        key: b"key".to_vec().into(),
        value: b"value".to_vec().into(),
        lease: 7,
        ..Default::default()
    };
    let range = etcd::RangeRequest {
        key: b"a".to_vec().into(),
        range_end: b"b".to_vec().into(),
        limit: 3,
        ..Default::default()
    };
    let delete = etcd::DeleteRangeRequest { key: b"key".to_vec().into(), prev_kv: true, ..Default::default() };
    let op = etcd::RequestOp { request: Some(etcd::request_op::Request::RequestPut(put.clone())) };
    let compare = etcd::Compare {
        key: b"key".to_vec().into(),
        target_union: Some(etcd::compare::TargetUnion::Version(1)),
        ..Default::default()
    };
    let txn = etcd::TxnRequest { compare: vec![compare], success: vec![op.clone()], failure: vec![op] };
    let nested = etcd::RequestOp { request: Some(etcd::request_op::Request::RequestTxn(txn.clone())) };
    let outer = etcd::TxnRequest { success: vec![nested], ..Default::default() };
    [put.encode_to_vec(), range.encode_to_vec(), delete.encode_to_vec(), txn.encode_to_vec(), outer.encode_to_vec()]
        .into_iter()
        .zip([0, 1, 2, 3, 3])
        .map(|(request, kind)| [vec![kind], request].concat())
        .collect()
}
