//! A long answer as JSON, piece by piece.
//!
//! Most answers are short and become JSON in one go. A range over many keys would hold up its network thread for as
//! long as it takes to write them all, and take several times their memory. Its bytes are therefore turned into JSON
//! as they come, one piece at a time, on a blocking thread; the next piece of the answer is asked for when the reader
//! has taken the last one. The JSON is byte for byte that of the short way.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use tokio::task::JoinHandle;
use tokio::time::Sleep;
use tonic::{Code, Status};

use super::deadline_exceeded;
use super::transcode::write_message;
use crate::http::grpc::ResponseBody;
use crate::services::errors::STOPPED;

/// An answer beyond this is written piece by piece.
pub(super) const LONG_BYTES: usize = 64 * 1024;
/// Bytes of protobuf that become one piece of JSON; one large value makes it larger.
pub(super) const PIECE_BYTES: usize = 128 * 1024;

/// Protobuf in, JSON out, as far as what has come allows.
pub(super) struct Transcriber {
    /// The messages that are open, the outermost first.
    levels: Vec<Level>,
    /// What does not make up a whole field yet.
    buffer: BytesMut,
}

/// A message of which a part is written.
struct Level {
    descriptor: MessageDescriptor,
    /// Bytes of it that were not read yet.
    left: usize,
    /// Short fields that wait until all with lower numbers are written.
    kept: BTreeMap<u32, Vec<u8>>,
    /// The repeated field whose elements are being written.
    array: Option<u32>,
    is_empty: bool,
}

/// The head of a field on the wire.
struct Head {
    number: u32,
    /// The field is a string, bytes, or a message.
    is_delimited: bool,
    head_bytes: usize,
    value_bytes: usize,
}

impl Transcriber {
    /// For one message of this kind and length.
    pub(super) fn new(descriptor: MessageDescriptor, length: usize) -> Transcriber {
        Transcriber { levels: vec![Level::new(descriptor, length)], buffer: BytesMut::new() }
    }

    /// Takes the next bytes of the message and appends the JSON that they allow.
    pub(super) fn push(&mut self, bytes: &[u8], json: &mut Vec<u8>) -> Result<(), Status> {
        self.buffer.extend_from_slice(bytes);
        while let Some(level) = self.levels.last_mut() {
            if level.left == 0 {
                level.close(json)?;
                self.levels.pop();
                continue;
            }
            let Some(head) = Head::read(&self.buffer[..self.buffer.len().min(level.left)])? else { break };
            let field = level.descriptor.get_field(head.number);
            let message = field.as_ref().filter(|_| head.is_delimited).and_then(message_of);
            match (field, message) {
                (Some(field), Some(inner)) if head.value_bytes > LONG_BYTES => {
                    self.buffer.advance(head.head_bytes);
                    level.left = level.left.checked_sub(head.bytes()).ok_or_else(garbled)?;
                    level.begin(&field, json)?;
                    self.levels.push(Level::new(inner, head.value_bytes));
                }
                _ if self.buffer.len() < head.bytes() => break,
                (Some(field), Some(inner)) if field.is_list() => {
                    level.left = level.left.checked_sub(head.bytes()).ok_or_else(garbled)?;
                    level.begin(&field, json)?;
                    self.buffer.advance(head.head_bytes);
                    write_message(inner, self.buffer.split_to(head.value_bytes).freeze(), json)?;
                }
                _ => {
                    level.left = level.left.checked_sub(head.bytes()).ok_or_else(garbled)?;
                    let whole = self.buffer.split_to(head.bytes());
                    level.kept.entry(head.number).or_default().extend_from_slice(&whole);
                }
            }
        }
        Ok(())
    }

    /// Whether all of the message was written.
    pub(super) fn is_done(&self) -> bool {
        self.levels.is_empty() && self.buffer.is_empty()
    }

    #[cfg(test)]
    fn buffered(&self) -> usize {
        self.buffer.len()
    }
}

impl Level {
    fn new(descriptor: MessageDescriptor, left: usize) -> Level {
        Level { descriptor, left, kept: BTreeMap::new(), array: None, is_empty: true }
    }

    /// Writes all that comes before the value of a field, or of the next element of it.
    fn begin(&mut self, field: &FieldDescriptor, json: &mut Vec<u8>) -> Result<(), Status> {
        if self.array == Some(field.number()) {
            json.push(b',');
            return Ok(());
        }
        self.end_array(json);
        let later = self.kept.split_off(&field.number());
        self.write_kept(json)?;
        self.kept = later;
        self.separate(json);
        json.push(b'"');
        json.extend_from_slice(field.name().as_bytes());
        json.extend_from_slice(b"\":");
        if field.is_list() {
            json.push(b'[');
            self.array = Some(field.number());
        }
        Ok(())
    }

    fn write_kept(&mut self, json: &mut Vec<u8>) -> Result<(), Status> {
        let kept = std::mem::take(&mut self.kept).into_values().flatten().collect::<Vec<u8>>();
        let mut written = Vec::new();
        write_message(self.descriptor.clone(), kept.into(), &mut written)?;
        // Without its braces; nothing at all if it has only default values.
        if let [b'{', fields @ .., b'}'] = &written[..]
            && !fields.is_empty()
        {
            self.separate(json);
            json.extend_from_slice(fields);
        }
        Ok(())
    }

    fn separate(&mut self, json: &mut Vec<u8>) {
        json.push(if self.is_empty { b'{' } else { b',' });
        self.is_empty = false;
    }

    fn end_array(&mut self, json: &mut Vec<u8>) {
        if self.array.take().is_some() {
            json.push(b']');
        }
    }

    fn close(&mut self, json: &mut Vec<u8>) -> Result<(), Status> {
        self.end_array(json);
        self.write_kept(json)?;
        if self.is_empty {
            json.push(b'{');
        }
        json.push(b'}');
        Ok(())
    }
}

impl Head {
    /// None = more bytes are needed.
    fn read(bytes: &[u8]) -> Result<Option<Head>, Status> {
        let mut rest = bytes;
        let Some(key) = varint(&mut rest)? else { return Ok(None) };
        let number = u32::try_from(key >> 3).map_err(|_| garbled())?;
        let before = rest.len();
        let (is_delimited, value_bytes) = match key & 7 {
            0 => match varint(&mut rest)? {
                Some(_) => (false, 0),
                None => return Ok(None),
            },
            1 => (false, 8),
            2 => match varint(&mut rest)? {
                Some(length) => (true, usize::try_from(length).map_err(|_| garbled())?),
                None => return Ok(None),
            },
            5 => (false, 4),
            _ => return Err(garbled()),
        };
        let head_bytes = bytes.len() - before + (before - rest.len());
        Ok(Some(Head { number, is_delimited, head_bytes, value_bytes }))
    }

    fn bytes(&self) -> usize {
        self.head_bytes.saturating_add(self.value_bytes)
    }
}

fn varint(rest: &mut &[u8]) -> Result<Option<u64>, Status> {
    let mut number = 0;
    for (place, byte) in rest.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            *rest = &rest[place + 1..];
            return Ok(Some(number));
        }
    }
    if rest.len() >= 10 { Err(garbled()) } else { Ok(None) }
}

fn message_of(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(message) if !field.is_map() => Some(message),
        _ => None,
    }
}

fn garbled() -> Status {
    Status::internal("the response has no form in JSON: it cannot be decoded")
}

/// A response body that turns one gRPC message into JSON while it is read.
///
/// Its HTTP status is sent before the call has ended. A call that fails late breaks the body off, so that no client
/// takes a part of the answer for the whole.
pub(super) struct LongAnswer {
    pub(super) body: ResponseBody,
    /// What has come and is not JSON yet.
    pub(super) waiting: BytesMut,
    pub(super) transcriber: Option<Transcriber>,
    pub(super) job: Option<JoinHandle<Result<(Transcriber, Bytes), Status>>>,
    pub(super) deadline: Option<Pin<Box<Sleep>>>,
}

impl LongAnswer {
    /// `waiting` is what has come of the message, without its frame.
    pub(super) fn new(
        body: ResponseBody,
        waiting: BytesMut,
        transcriber: Transcriber,
        deadline: Option<Pin<Box<Sleep>>>,
    ) -> LongAnswer {
        LongAnswer { body, waiting, transcriber: Some(transcriber), job: None, deadline }
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(job) = &mut self.job {
                let done = ready!(Pin::new(job).poll(context));
                self.job = None;
                // Fails only while the runtime is going down.
                let (transcriber, json) = done.unwrap_or_else(|_| Err(STOPPED.into()))?;
                self.transcriber = Some(transcriber);
                if !json.is_empty() {
                    return Poll::Ready(Ok(Some(json)));
                }
            }
            if !self.waiting.is_empty()
                && let Some(transcriber) = self.transcriber.take()
            {
                let piece = self.waiting.split_to(self.waiting.len().min(PIECE_BYTES));
                self.job = Some(transcribe(transcriber, piece));
                continue;
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let ended = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.waiting.extend_from_slice(&data);
                        continue;
                    }
                    Err(frame) => frame.trailers_ref().and_then(Status::from_header_map),
                },
                Some(Err(status)) => Some(status),
                None => None,
            };
            let status = ended.unwrap_or_else(|| Status::unknown("the call ended without a status"));
            let is_done = self.transcriber.as_ref().is_some_and(Transcriber::is_done);
            return Poll::Ready(match status.code() {
                Code::Ok if is_done => Ok(None),
                Code::Ok => Err(garbled()),
                _ => Err(status),
            });
        }
    }
}

fn transcribe(mut transcriber: Transcriber, piece: BytesMut) -> JoinHandle<Result<(Transcriber, Bytes), Status>> {
    tokio::task::spawn_blocking(move || {
        let mut json = Vec::with_capacity(2 * piece.len());
        transcriber.push(&piece, &mut json)?;
        Ok((transcriber, json.into()))
    })
}

impl Body for LongAnswer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(deadline_exceeded())));
        }
        self.poll_piece(context).map(|piece| piece.transpose().map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::transcode::Method;
    use super::*;
    use prost::Message;
    use prost_reflect::DescriptorPool;
    use tenure_api::etcdserverpb::response_op::Response as Op;
    use tenure_api::etcdserverpb::{DeleteRangeResponse, RangeResponse, ResponseHeader, ResponseOp, TxnResponse};
    use tenure_api::mvccpb::KeyValue;

    fn range(keys: usize, value_bytes: usize) -> RangeResponse {
        let kv = |number: usize| KeyValue {
            key: format!("key/{number}").into(),
            value: vec![number as u8; value_bytes].into(),
            mod_revision: number as i64,
            ..Default::default()
        };
        let header = ResponseHeader { cluster_id: 9, member_id: 2, revision: 3, raft_term: 4 };
        RangeResponse { header: Some(header), kvs: (0..keys).map(kv).collect(), more: true, count: keys as i64 }
    }

    /// The message in pieces of this size: its JSON, the longest piece of it, and the most that was ever buffered.
    fn in_pieces(rpc: &str, bytes: &[u8], step: usize) -> (Vec<u8>, usize, usize) {
        let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
        let method = Method::find(&pool, rpc).unwrap();
        let mut transcriber = Transcriber::new(method.output(), bytes.len());
        let (mut json, mut longest, mut buffered) = (Vec::new(), 0, 0);
        for piece in bytes.chunks(step) {
            let before = json.len();
            transcriber.push(piece, &mut json).unwrap();
            longest = longest.max(json.len() - before);
            buffered = buffered.max(transcriber.buffered());
        }
        assert!(transcriber.is_done());
        (json, longest, buffered)
    }

    fn at_once(rpc: &str, bytes: &[u8]) -> Vec<u8> {
        let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
        let mut json = Vec::new();
        let method = Method::find(&pool, rpc).unwrap();
        method.write_response(Bytes::copy_from_slice(bytes), &mut json).unwrap();
        json
    }

    #[test]
    fn pieces_read_as_the_whole_wherever_they_are_cut() {
        let small = range(3, 5);
        let op = |response| ResponseOp { response: Some(response) };
        let txn = TxnResponse {
            header: small.header,
            succeeded: true,
            responses: vec![op(Op::ResponseRange(small.clone())), op(Op::ResponseTxn(TxnResponse::default()))],
        };
        let deleted = DeleteRangeResponse { header: None, deleted: 3, prev_kvs: small.kvs.clone() };
        for (rpc, bytes) in [
            ("etcdserverpb.KV/Range", small.encode_to_vec()),
            ("etcdserverpb.KV/Range", RangeResponse { count: 7, ..Default::default() }.encode_to_vec()),
            ("etcdserverpb.KV/Txn", txn.encode_to_vec()),
            ("etcdserverpb.KV/DeleteRange", deleted.encode_to_vec()),
        ] {
            for step in 1..bytes.len() {
                assert_eq!(in_pieces(rpc, &bytes, step).0, at_once(rpc, &bytes), "{rpc} in pieces of {step}");
            }
        }
    }

    #[test]
    fn short_fields_may_come_before_or_behind_the_keys() {
        let whole = range(10, 5);
        let rest = RangeResponse { kvs: Vec::new(), ..whole.clone() }.encode_to_vec();
        let kvs = RangeResponse { kvs: whole.kvs.clone(), ..Default::default() }.encode_to_vec();
        let bytes = [rest, kvs].concat();
        let rpc = "etcdserverpb.KV/Range";
        assert_eq!(in_pieces(rpc, &bytes, 7).0, at_once(rpc, &whole.encode_to_vec()));
    }

    #[test]
    fn no_piece_is_long_and_little_is_buffered() {
        let long = range(20_000, 100);
        let op = ResponseOp { response: Some(Op::ResponseRange(long.clone())) };
        let txn = TxnResponse { header: None, succeeded: true, responses: vec![op.clone(), op] };
        for (rpc, bytes) in
            [("etcdserverpb.KV/Range", long.encode_to_vec()), ("etcdserverpb.KV/Txn", txn.encode_to_vec())]
        {
            let (json, longest, buffered) = in_pieces(rpc, &bytes, PIECE_BYTES);
            assert_eq!(json, at_once(rpc, &bytes));
            assert!(longest < 4 * PIECE_BYTES, "a piece of {longest} bytes");
            assert!(buffered < LONG_BYTES, "{buffered} bytes buffered");
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
        let method = Method::find(&pool, "etcdserverpb.KV/Range").unwrap();
        for bytes in [&[0xff; 12][..], &[0x0b, 0][..], &[0x12, 9, 1][..]] {
            let mut transcriber = Transcriber::new(method.output(), bytes.len());
            let pushed = transcriber.push(bytes, &mut Vec::new());
            assert!(pushed.is_err() || !transcriber.is_done(), "{bytes:?}");
        }
    }
}
