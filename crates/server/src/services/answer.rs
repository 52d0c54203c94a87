//! What the machine says, in etcd's messages.
//!
//! Short answers become the generated messages; what may be long has a second form, a
//! [`Layout`], that is written elsewhere. Which of the two it is depends on its size alone.

use std::sync::Arc;

use bytes::Bytes;
use tenure_api::etcdserverpb::{
    DeleteRangeResponse, PutResponse, RangeResponse, ResponseHeader, ResponseOp, TxnResponse, response_op,
};
use tenure_api::mvccpb;
use tenure_machine::{Event, EventKind, KeyValue, OpReply, RangeReply, Revision, SharedBytes, TxnReply};
use tonic::{Response, Status};

use super::large::{self, LARGE_BYTES, Layout};

/// Bytes from here on are shared with the store, shorter ones are copied: sharing costs an allocation
/// and two atomic operations, copying so little costs less.
const SHARED_BYTES: usize = 4096;
/// About what a key takes on the wire beside its key and its value.
const KEY_VALUE_OVERHEAD: usize = 32;

pub fn bytes(shared: &SharedBytes) -> Bytes {
    match shared.len() < SHARED_BYTES {
        true => Bytes::copy_from_slice(shared),
        false => Bytes::from_owner(shared.clone()),
    }
}

fn value(kv: &Arc<KeyValue>) -> Bytes {
    match kv.value.len() < SHARED_BYTES {
        true => Bytes::copy_from_slice(&kv.value),
        false => Bytes::from_owner(ValueOf(kv.clone())),
    }
}

/// A version kept alive for its value.
struct ValueOf(Arc<KeyValue>);

impl AsRef<[u8]> for ValueOf {
    fn as_ref(&self) -> &[u8] {
        &self.0.value
    }
}

pub fn key_value(kv: &Arc<KeyValue>, keys_only: bool) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: bytes(&kv.key),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: if keys_only { Bytes::new() } else { value(kv) },
        lease: kv.lease,
    }
}

fn key_values(kvs: &[Arc<KeyValue>], keys_only: bool) -> Vec<mvccpb::KeyValue> {
    kvs.iter().map(|kv| key_value(kv, keys_only)).collect()
}

pub fn event(event: &Event, prev_kv: bool) -> mvccpb::Event {
    let kind = match event.kind() {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    let prev = event.prev.as_ref().filter(|_| prev_kv);
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(key_value(&event.kv, false)),
        prev_kv: prev.map(|kv| key_value(kv, false)),
    }
}

type Header = Option<ResponseHeader>;

pub fn put(header: Header, prev: Option<&Arc<KeyValue>>) -> PutResponse {
    PutResponse { header, prev_kv: prev.map(|kv| key_value(kv, false)) }
}

pub async fn range(header: Header, reply: RangeReply) -> Result<Response<RangeResponse>, Status> {
    match is_small(&reply.kvs) {
        true => Ok(Response::new(range_message(header, &reply))),
        false => large::respond(move || Ok(range_layout(header, reply))).await,
    }
}

pub async fn delete(
    header: Header,
    deleted: i64,
    prev: Vec<Arc<KeyValue>>,
) -> Result<Response<DeleteRangeResponse>, Status> {
    match is_small(&prev) {
        true => Ok(Response::new(delete_message(header, deleted, &prev))),
        false => large::respond(move || Ok(delete_layout(header, deleted, prev))).await,
    }
}

/// `revision`: the store's, after the transaction.
pub async fn txn(header: Header, revision: Revision, reply: TxnReply) -> Result<Response<TxnResponse>, Status> {
    match is_small_txn(&reply) {
        true => Ok(Response::new(txn_message(header, &reply, &mut InnerHeaders::new(revision, &reply)))),
        false => large::respond(move || Ok(txn_layout(header, revision, reply))).await,
    }
}

/// Small enough to be encoded here and now, by a cheap estimate; being off by a little does no harm.
fn is_small(kvs: &[Arc<KeyValue>]) -> bool {
    estimate(kvs).is_some()
}

/// About the encoded size; None = too much, and perhaps too much to even look at each.
fn estimate(kvs: &[Arc<KeyValue>]) -> Option<usize> {
    if kvs.len() > LARGE_BYTES / KEY_VALUE_OVERHEAD {
        return None;
    }
    let bytes = kvs.iter().map(|kv| kv.key.len() + kv.value.len() + KEY_VALUE_OVERHEAD).sum();
    Some(bytes).filter(|bytes| *bytes <= LARGE_BYTES)
}

fn is_small_txn(reply: &TxnReply) -> bool {
    fn estimate_txn(reply: &TxnReply) -> Option<usize> {
        reply.responses.iter().try_fold(0, |total: usize, op| {
            let bytes = match op {
                OpReply::Range(reply) => estimate(&reply.kvs)?,
                OpReply::Delete { prev, .. } => estimate(prev)?,
                OpReply::Put { prev } => estimate(prev.as_slice())?,
                OpReply::Txn(reply) => estimate_txn(reply)?,
            };
            Some(total + bytes).filter(|total| *total <= LARGE_BYTES)
        })
    }
    estimate_txn(reply).is_some()
}

/// The headers of a transaction's inner responses, which carry nothing but a revision: the one before
/// the transaction until its first write, the one that it made from then on.
struct InnerHeaders {
    revision: Revision,
    written: bool,
}

impl InnerHeaders {
    fn new(revision: Revision, reply: &TxnReply) -> InnerHeaders {
        fn writes(reply: &TxnReply) -> bool {
            reply.responses.iter().any(|op| match op {
                OpReply::Txn(reply) => writes(reply),
                op => is_write(op),
            })
        }
        InnerHeaders { revision: if writes(reply) { revision - 1 } else { revision }, written: false }
    }

    fn next(&mut self, op: &OpReply) -> Header {
        if is_write(op) && !self.written {
            self.written = true;
            self.revision += 1;
        }
        Some(ResponseHeader { revision: self.revision, ..ResponseHeader::default() })
    }
}

fn is_write(op: &OpReply) -> bool {
    matches!(op, OpReply::Put { .. } | OpReply::Delete { deleted: 1.., .. })
}

fn range_message(header: Header, reply: &RangeReply) -> RangeResponse {
    let kvs = key_values(&reply.kvs, reply.keys_only);
    RangeResponse { header, kvs, more: reply.more, count: reply.count }
}

fn delete_message(header: Header, deleted: i64, prev: &[Arc<KeyValue>]) -> DeleteRangeResponse {
    DeleteRangeResponse { header, deleted, prev_kvs: key_values(prev, false) }
}

fn txn_message(header: Header, reply: &TxnReply, inner: &mut InnerHeaders) -> TxnResponse {
    use response_op::Response::*;
    let respond = |op: &OpReply| {
        let response = match op {
            OpReply::Range(reply) => ResponseRange(range_message(inner.next(op), reply)),
            OpReply::Put { prev } => ResponsePut(put(inner.next(op), prev.as_ref())),
            OpReply::Delete { deleted, prev } => ResponseDeleteRange(delete_message(inner.next(op), *deleted, prev)),
            OpReply::Txn(reply) => ResponseTxn(txn_message(Some(ResponseHeader::default()), reply, inner)),
        };
        ResponseOp { response: Some(response) }
    };
    let responses = reply.responses.iter().map(respond).collect();
    TxnResponse { header, succeeded: reply.succeeded, responses }
}

// The numbers of the fields that are messages of their own, as etcd's rpc.proto has them.
const RANGE_KVS: u32 = 2;
const PUT_PREV_KV: u32 = 2;
const DELETE_PREV_KVS: u32 = 3;
const TXN_RESPONSES: u32 = 3;
const RESPONSE_RANGE: u32 = 1;
const RESPONSE_PUT: u32 = 2;
const RESPONSE_DELETE_RANGE: u32 = 3;
const RESPONSE_TXN: u32 = 4;

pub fn range_layout(header: Header, reply: RangeReply) -> Layout {
    let RangeReply { kvs, more, count, keys_only } = reply;
    let mut layout = Layout::of(&RangeResponse { header, kvs: Vec::new(), more, count });
    layout.key_values(RANGE_KVS, keys_only, kvs);
    layout
}

fn put_layout(header: Header, prev: Option<Arc<KeyValue>>) -> Layout {
    let mut layout = Layout::of(&PutResponse { header, prev_kv: None });
    layout.key_values(PUT_PREV_KV, false, prev.into_iter().collect());
    layout
}

fn delete_layout(header: Header, deleted: i64, prev: Vec<Arc<KeyValue>>) -> Layout {
    let mut layout = Layout::of(&DeleteRangeResponse { header, deleted, prev_kvs: Vec::new() });
    layout.key_values(DELETE_PREV_KVS, false, prev);
    layout
}

pub fn txn_layout(header: Header, revision: Revision, reply: TxnReply) -> Layout {
    let mut inner = InnerHeaders::new(revision, &reply);
    txn_layout_within(header, reply, &mut inner)
}

fn txn_layout_within(header: Header, reply: TxnReply, inner: &mut InnerHeaders) -> Layout {
    let TxnReply { succeeded, responses } = reply;
    let mut layout = Layout::of(&TxnResponse { header, succeeded, responses: Vec::new() });
    for op in responses {
        let (tag, response) = match op {
            OpReply::Txn(reply) => (RESPONSE_TXN, txn_layout_within(Some(ResponseHeader::default()), reply, inner)),
            op => {
                let header = inner.next(&op);
                match op {
                    OpReply::Range(reply) => (RESPONSE_RANGE, range_layout(header, reply)),
                    OpReply::Put { prev } => (RESPONSE_PUT, put_layout(header, prev)),
                    OpReply::Delete { deleted, prev } => (RESPONSE_DELETE_RANGE, delete_layout(header, deleted, prev)),
                    OpReply::Txn(_) => unreachable!("matched above"),
                }
            }
        };
        let mut op = Layout::default();
        op.message(tag, response);
        layout.message(TXN_RESPONSES, op);
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn kv(key: &str, value: &[u8]) -> Arc<KeyValue> {
        Arc::new(KeyValue {
            key: key.as_bytes().into(),
            value: value.into(),
            create_revision: 2,
            mod_revision: 3,
            version: 2,
            lease: 0,
        })
    }

    fn reply() -> TxnReply {
        let range = |key| OpReply::Range(RangeReply { kvs: vec![kv(key, b"v")], count: 1, ..RangeReply::default() });
        let nothing = OpReply::Delete { deleted: 0, prev: Vec::new() };
        let nested =
            TxnReply { succeeded: true, responses: vec![OpReply::Put { prev: Some(kv("n", b"")) }, range("b")] };
        let deleted = OpReply::Delete { deleted: 2, prev: vec![kv("c", b"1"), kv("d", b"2")] };
        TxnReply {
            succeeded: true,
            responses: vec![range("a"), nothing.clone(), OpReply::Txn(nested), nothing, deleted, range("e")],
        }
    }

    fn revisions(response: &TxnResponse) -> Vec<Option<i64>> {
        use response_op::Response::*;
        let header = |header: Header| header.map(|header| header.revision);
        response
            .responses
            .iter()
            .flat_map(|op| match op.response.as_ref().expect("a response") {
                ResponseRange(response) => vec![header(response.header)],
                ResponsePut(response) => vec![header(response.header)],
                ResponseDeleteRange(response) => vec![header(response.header)],
                ResponseTxn(response) => [vec![header(response.header)], revisions(response)].concat(),
            })
            .collect()
    }

    /// As etcd 3.4.23 answers the same transaction.
    #[test]
    fn inner_headers_carry_the_revision_before_the_first_write_and_after_it() {
        let reply = reply();
        let mut inner = InnerHeaders::new(15, &reply);
        let response = txn_message(None, &reply, &mut inner);
        let expected = [14, 14, 0, 15, 15, 15, 15, 15].map(Some);
        assert_eq!(revisions(&response), expected);
    }

    #[test]
    fn a_transaction_that_wrote_nothing_has_one_revision_throughout() {
        let nothing = || OpReply::Delete { deleted: 0, prev: Vec::new() };
        let reply = TxnReply { succeeded: false, responses: vec![nothing(), nothing()] };
        let response = txn_message(None, &reply, &mut InnerHeaders::new(15, &reply));
        assert_eq!(revisions(&response), [Some(15), Some(15)]);
    }

    #[test]
    fn the_layout_of_a_transaction_reads_as_its_message() {
        let reply = reply();
        let message = txn_message(None, &reply, &mut InnerHeaders::new(15, &reply));
        let layout = txn_layout(None, 15, reply);
        let bytes = layout.written();
        assert_eq!(bytes.len(), message.encoded_len());
        assert_eq!(TxnResponse::decode(&*bytes).expect("decodable"), message);
    }

    #[test]
    fn small_is_a_matter_of_bytes_and_of_count() {
        assert!(is_small(&[]));
        assert!(is_small(&vec![kv("a", &[0; 100]); 100]));
        assert!(!is_small(&[kv("a", &[0; LARGE_BYTES])]));
        assert!(!is_small(&vec![kv("a", b""); LARGE_BYTES]));
        let put = OpReply::Put { prev: Some(kv("a", &[0; 1000])) };
        assert!(is_small_txn(&TxnReply { succeeded: true, responses: vec![put.clone(); 10] }));
        assert!(!is_small_txn(&TxnReply { succeeded: true, responses: vec![put; 100] }));
    }

    #[test]
    fn keys_only_leaves_the_value_out() {
        assert_eq!(key_value(&kv("a", b"value"), false).value, "value");
        assert_eq!(key_value(&kv("a", b"value"), true).value, "");
        let large = vec![1; SHARED_BYTES];
        assert_eq!(key_value(&kv("a", &large), false).value, large);
    }
}
