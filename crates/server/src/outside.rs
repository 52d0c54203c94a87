//! What makes sense of bytes from outside, as plain functions: for fuzzers, which have no network.

use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message;
use tenure_api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};
use tenure_api::tenure::v1::{BarrierRequest, CampaignRequest, LockRequest, SessionRequest, UnlockRequest};
use tenure_machine::Command;

use crate::http::gateway::paths::PATHS;
use crate::http::gateway::transcode::{Method, Splitter};
use crate::limits::Limits;
use crate::run::descriptors;
use crate::services::asked::{self, Asked, AskedFor};
use crate::services::websocket_message::Request;
use crate::services::{convert, lock_request as request};

/// Paths of the gateway.
pub const GATEWAY_PATHS: usize = PATHS.len();

/// The command that a request of etcd's KV service becomes, if it is sound: a put, a range (which becomes none), a
/// deletion or a transaction.
pub fn etcd_request(kind: u8, bytes: &[u8]) -> Option<Command> {
    let bytes = Bytes::copy_from_slice(bytes);
    match kind % 4 {
        0 => convert::put(PutRequest::decode(bytes).ok()?).ok().map(Command::Put),
        1 => convert::range(RangeRequest::decode(bytes).ok()?).ok().and(None),
        2 => convert::delete(DeleteRangeRequest::decode(bytes).ok()?).ok().map(Command::Delete),
        _ => convert::txn(TxnRequest::decode(bytes).ok()?, Limits::default().transaction_operations)
            .ok()
            .map(Command::Txn),
    }
}

/// The same of the lock service: a lock, an unlock, a campaign or a barrier.
pub fn lock_request(kind: u8, bytes: &[u8]) -> Option<Command> {
    const CALL: u128 = 1;
    let bytes = Bytes::copy_from_slice(bytes);
    match kind % 4 {
        0 => request::lock(LockRequest::decode(bytes).ok()?, CALL).ok().map(Command::Lock),
        1 => {
            let UnlockRequest { name, more_names, fencing_token, .. } = UnlockRequest::decode(bytes).ok()?;
            request::unlock(name, more_names, fencing_token, 0).ok().map(Command::Unlock)
        }
        2 => request::campaign(CampaignRequest::decode(bytes).ok()?, CALL).ok().map(Command::Lock),
        _ => request::barrier(BarrierRequest::decode(bytes).ok()?, CALL).ok().map(Command::Lock),
    }
}

/// The command that a request on a session becomes, if it is sound and a lock or an unlock: as it is read, and as prost
/// reads it.
pub fn session_request(bytes: &[u8]) -> [Option<Command>; 2] {
    let whole = Bytes::copy_from_slice(bytes);
    let read = asked::decode(&whole, &whole).ok();
    let expected = SessionRequest::decode(bytes).ok().map(Asked::from);
    [read, expected].map(|asked| match asked?.what {
        AskedFor::Lock(mut asked) => {
            asked.lock.lease = 1;
            asked.check().ok().map(Command::Lock)
        }
        AskedFor::Unlock(unlock) => request::check_unlock(unlock).ok().map(Command::Unlock),
        AskedFor::Other(_) => None,
    })
}

/// A body for the JSON gateway, and the message it becomes as if it were the answer.
pub fn gateway(path: u8, body: &[u8]) {
    static METHODS: LazyLock<Vec<std::sync::Arc<Method>>> = LazyLock::new(|| {
        let pool = descriptors();
        PATHS.iter().filter_map(|(_, rpc)| Method::find(&pool, rpc)).collect()
    });
    let method = &METHODS[usize::from(path) % METHODS.len()];
    let mut splitter = Splitter::default();
    splitter.push(body);
    let pieces = std::iter::from_fn(|| splitter.next()).collect::<Vec<_>>();
    for json in pieces.iter().chain(&splitter.rest()) {
        if let Ok(frame) = method.request_frame(json) {
            // Of another type, but bytes are bytes.
            let _ = method.write_response(frame.slice(5..), &mut Vec::new());
        }
    }
}

/// A message on the WebSocket.
pub fn websocket(text: &[u8]) {
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = Request::read(text);
    }
}
