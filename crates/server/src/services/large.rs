//! Answers too large to be encoded on a network thread.
//!
//! tonic encodes an answer in one go, on the thread that serves the connection and many others: 300
//! MB of keys would hold up every put for a second. An answer beyond [`LARGE_BYTES`] is therefore
//! never given to tonic. It is laid out as a [`Layout`] (literal bytes, and lists of keys that are
//! still shared with the store), whose exact length is known before a byte of it is written, as the
//! gRPC frame demands; then a [`LargeBody`] has blocking threads write it in chunks, the next one
//! while the last is being sent. So an answer takes the memory of two chunks beside the store's
//! own, however large it is and however slowly it is read, and no thread waits for the reader.
//!
//! The handler leaves the body among the extensions of an empty response, where
//! [`super::entry`] finds it. Only who calls a service without its entry would see the empty one.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tenure_machine::KeyValue;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tonic::{Response, Status};

use super::errors;

/// Beyond this an answer is written elsewhere, in chunks. Encoding so much takes some 20 µs.
pub const LARGE_BYTES: usize = 64 * 1024;
/// About the size of a chunk; one large value makes it larger.
const CHUNK_BYTES: usize = 128 * 1024;
/// gRPC's frame: a flag for compression, and the length in four bytes.
const FRAME_BYTES: usize = 5;

/// A protobuf message that is not yet written.
#[derive(Default)]
pub struct Layout {
    pieces: VecDeque<Piece>,
    length: usize,
}

enum Piece {
    Literal(Vec<u8>),
    /// A repeated field of keys.
    KeyValues {
        tag: u32,
        keys_only: bool,
        kvs: Vec<Arc<KeyValue>>,
    },
}

impl Layout {
    /// Starts with all that `message` holds.
    pub fn of(message: &impl Message) -> Layout {
        let mut layout = Layout::default();
        layout.literal(message.encode_to_vec());
        layout
    }

    #[cfg(test)]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Adds a repeated field of keys.
    pub fn key_values(&mut self, tag: u32, keys_only: bool, kvs: Vec<Arc<KeyValue>>) {
        let field = |kv: &Arc<KeyValue>| {
            let length = key_value_length(kv, keys_only);
            key_len(tag) + encoded_len_varint(length as u64) + length
        };
        self.length += kvs.iter().map(field).sum::<usize>();
        self.pieces.push_back(Piece::KeyValues { tag, keys_only, kvs });
    }

    /// Adds a field that is a message of its own.
    pub fn message(&mut self, tag: u32, inner: Layout) {
        let mut prefix = Vec::with_capacity(8);
        encode_key(tag, WireType::LengthDelimited, &mut prefix);
        encode_varint(inner.length as u64, &mut prefix);
        self.literal(prefix);
        self.length += inner.length;
        for piece in inner.pieces {
            self.push(piece);
        }
    }

    fn literal(&mut self, bytes: Vec<u8>) {
        self.length += bytes.len();
        self.push(Piece::Literal(bytes));
    }

    fn push(&mut self, piece: Piece) {
        match (self.pieces.back_mut(), piece) {
            (Some(Piece::Literal(before)), Piece::Literal(bytes)) => before.extend_from_slice(&bytes),
            (_, piece) => self.pieces.push_back(piece),
        }
    }

    #[cfg(test)]
    pub fn written(self) -> Vec<u8> {
        let mut writer = Writer::new(self);
        let mut bytes = Vec::new();
        while !writer.is_done() {
            bytes.extend_from_slice(&writer.chunk());
        }
        bytes.split_off(FRAME_BYTES)
    }
}

/// Lays an answer out on a blocking thread and gives a response whose body writes it there.
pub async fn respond<T: Default + Send + 'static>(
    layout: impl FnOnce() -> Result<Layout, Status> + Send + 'static,
) -> Result<Response<T>, Status> {
    let respond = move || {
        let layout = layout()?;
        if layout.length > i32::MAX as usize {
            return Err(errors::unsendable(layout.length));
        }
        let mut response = Response::new(T::default());
        response.extensions_mut().insert(LargeAnswer::new(LargeBody::new(layout)));
        Ok(response)
    };
    // Fails only while the runtime is going down.
    tokio::task::spawn_blocking(respond).await.unwrap_or_else(|_| Err(errors::STOPPED.into()))
}

/// Writes a layout chunk by chunk, and lets go of each piece when it is written.
struct Writer {
    layout: Layout,
    framed: bool,
    /// How far the list of keys in front is written.
    next_key: usize,
}

impl Writer {
    fn new(layout: Layout) -> Writer {
        Writer { layout, framed: false, next_key: 0 }
    }

    fn is_done(&self) -> bool {
        self.framed && self.layout.pieces.is_empty()
    }

    fn chunk(&mut self) -> Bytes {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES.min(self.layout.length) + FRAME_BYTES);
        if !self.framed {
            self.framed = true;
            chunk.put_u8(0);
            // Checked when the answer was made.
            chunk.put_u32(self.layout.length as u32);
        }
        while chunk.len() < CHUNK_BYTES
            && let Some(piece) = self.layout.pieces.front()
        {
            match piece {
                Piece::Literal(bytes) => chunk.extend_from_slice(bytes),
                Piece::KeyValues { tag, keys_only, kvs } => {
                    while self.next_key < kvs.len() && chunk.len() < CHUNK_BYTES {
                        write_key_value(*tag, &kvs[self.next_key], *keys_only, &mut chunk);
                        self.next_key += 1;
                    }
                    if self.next_key < kvs.len() {
                        break;
                    }
                    self.next_key = 0;
                }
            }
            self.layout.pieces.pop_front();
        }
        chunk.into()
    }
}

// The fields of mvccpb.KeyValue, written from the store's own bytes.
const KEY: u32 = 1;
const CREATE_REVISION: u32 = 2;
const MOD_REVISION: u32 = 3;
const VERSION: u32 = 4;
const VALUE: u32 = 5;
const LEASE: u32 = 6;

fn numbers(kv: &KeyValue) -> [(u32, i64); 4] {
    let KeyValue { create_revision, mod_revision, version, lease, .. } = kv;
    [(CREATE_REVISION, *create_revision), (MOD_REVISION, *mod_revision), (VERSION, *version), (LEASE, *lease)]
}

fn strings(kv: &KeyValue, keys_only: bool) -> [(u32, &[u8]); 2] {
    [(KEY, &kv.key), (VALUE, if keys_only { &[] } else { &kv.value })]
}

fn key_value_length(kv: &KeyValue, keys_only: bool) -> usize {
    let numbers = numbers(kv).into_iter().filter(|(_, number)| *number != 0);
    let strings = strings(kv, keys_only).into_iter().filter(|(_, bytes)| !bytes.is_empty());
    numbers.map(|(tag, number)| key_len(tag) + encoded_len_varint(number as u64)).sum::<usize>()
        + strings.map(|(tag, bytes)| key_len(tag) + encoded_len_varint(bytes.len() as u64) + bytes.len()).sum::<usize>()
}

fn write_key_value(tag: u32, kv: &KeyValue, keys_only: bool, chunk: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, chunk);
    encode_varint(key_value_length(kv, keys_only) as u64, chunk);
    for (tag, bytes) in strings(kv, keys_only) {
        if !bytes.is_empty() {
            encode_key(tag, WireType::LengthDelimited, chunk);
            encode_varint(bytes.len() as u64, chunk);
            chunk.extend_from_slice(bytes);
        }
    }
    for (tag, number) in numbers(kv) {
        if number != 0 {
            encode_key(tag, WireType::Varint, chunk);
            encode_varint(number as u64, chunk);
        }
    }
}

/// A gRPC response body of one message, written by blocking threads.
pub struct LargeBody {
    /// Writes the next chunk. None = all is written.
    job: Option<JoinHandle<(Writer, Bytes)>>,
    ended: bool,
}

impl LargeBody {
    fn new(layout: Layout) -> LargeBody {
        LargeBody { job: Some(write_chunk(Writer::new(layout))), ended: false }
    }
}

fn write_chunk(mut writer: Writer) -> JoinHandle<(Writer, Bytes)> {
    tokio::task::spawn_blocking(move || {
        let chunk = writer.chunk();
        (writer, chunk)
    })
}

impl http_body::Body for LargeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(job) = &mut self.job else {
            if std::mem::replace(&mut self.ended, true) {
                return Poll::Ready(None);
            }
            let mut trailers = HeaderMap::with_capacity(1);
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        };
        let written = match Pin::new(job).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(written) => written,
        };
        self.job = None;
        match written {
            Ok((writer, chunk)) => {
                if !writer.is_done() {
                    self.job = Some(write_chunk(writer));
                }
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            // The runtime is going down.
            Err(_) => {
                self.ended = true;
                Poll::Ready(Some(Err(errors::STOPPED.into())))
            }
        }
    }
}

impl Drop for LargeBody {
    /// The reader went away: what is left may be a million keys to let go of.
    fn drop(&mut self) {
        if let (Some(job), Ok(runtime)) = (self.job.take(), Handle::try_current()) {
            runtime.spawn(async move { drop_elsewhere(job.await) });
        }
    }
}

/// Frees what may be large on a thread that nobody waits for.
pub fn drop_elsewhere<T: Send + 'static>(value: T) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn_blocking(move || drop(value));
    }
}

/// Holds something that may be large to free, for code that can be dropped at any point.
pub struct DroppedElsewhere<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> DroppedElsewhere<T> {
    pub fn new(value: Option<T>) -> DroppedElsewhere<T> {
        DroppedElsewhere(value)
    }

    pub fn take(&mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Send + 'static> Drop for DroppedElsewhere<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_elsewhere(value);
        }
    }
}

/// A body among a response's extensions, which must be possible to clone.
#[derive(Clone)]
pub struct LargeAnswer(Arc<Mutex<Option<LargeBody>>>);

impl LargeAnswer {
    fn new(body: LargeBody) -> LargeAnswer {
        LargeAnswer(Arc::new(Mutex::new(Some(body))))
    }

    pub fn take(self) -> Option<LargeBody> {
        self.0.lock().expect("no panic while the answer is locked").take()
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer;
    use super::*;
    use http_body_util::BodyExt;
    use tenure_api::etcdserverpb::{RangeResponse, ResponseHeader, ResponseOp, TxnResponse, response_op};

    fn key_value(number: usize, value: &[u8], lease: i64) -> Arc<KeyValue> {
        Arc::new(KeyValue {
            key: format!("key {number}").into_bytes().into(),
            value: value.into(),
            create_revision: 5,
            mod_revision: number as i64,
            version: 1,
            lease,
        })
    }

    async fn message(layout: Layout) -> (Vec<usize>, Vec<u8>) {
        let length = layout.length();
        let mut body = LargeBody::new(layout);
        let (mut sizes, mut bytes, mut status) = (Vec::new(), Vec::new(), None);
        while let Some(frame) = body.frame().await {
            match frame.expect("written").into_data() {
                Ok(chunk) => {
                    sizes.push(chunk.len());
                    bytes.extend_from_slice(&chunk);
                }
                Err(frame) => status = frame.into_trailers().expect("trailers").remove("grpc-status"),
            }
        }
        assert_eq!(status.expect("a status at the end"), "0");
        assert_eq!(bytes[0], 0);
        assert_eq!(bytes[1..FRAME_BYTES], (length as u32).to_be_bytes());
        bytes.drain(..FRAME_BYTES);
        assert_eq!(bytes.len(), length);
        (sizes, bytes)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_range_in_chunks_reads_as_if_encoded_at_once() {
        let header = ResponseHeader { cluster_id: 1, member_id: 2, revision: 3, raft_term: 4 };
        for keys_only in [false, true] {
            let kvs: Vec<_> = (0..5000).map(|number| key_value(number, &[7; 300], number as i64 % 3 - 1)).collect();
            let whole = RangeResponse {
                header: Some(header),
                kvs: kvs.iter().map(|kv| answer::key_value(kv, keys_only)).collect(),
                more: true,
                count: 9,
            };
            let mut layout = Layout::of(&RangeResponse { kvs: Vec::new(), ..whole.clone() });
            layout.key_values(2, keys_only, kvs);
            assert_eq!(layout.length(), whole.encoded_len());
            let (sizes, bytes) = message(layout).await;
            assert!(sizes.iter().all(|size| *size < CHUNK_BYTES + 1024), "{sizes:?}");
            assert_eq!(RangeResponse::decode(&*bytes).expect("decodable"), whole);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn messages_within_messages_have_the_right_lengths() {
        let kvs: Vec<_> = (0..1000).map(|number| key_value(number, b"value", 0)).collect();
        let range = RangeResponse {
            kvs: kvs.iter().map(|kv| answer::key_value(kv, false)).collect(),
            ..RangeResponse::default()
        };
        let op = ResponseOp { response: Some(response_op::Response::ResponseRange(range)) };
        let whole = TxnResponse { header: None, succeeded: true, responses: vec![op.clone(), op] };

        let mut layout = Layout::of(&TxnResponse { responses: Vec::new(), ..whole.clone() });
        for _ in 0..2 {
            let mut range = Layout::default();
            range.key_values(2, false, kvs.clone());
            let mut op = Layout::default();
            op.message(1, range);
            layout.message(3, op);
        }
        let (_, bytes) = message(layout).await;
        assert_eq!(TxnResponse::decode(&*bytes).expect("decodable"), whole);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_message_of_nothing_is_still_framed() {
        let (sizes, bytes) = message(Layout::default()).await;
        assert_eq!((sizes, bytes.len()), (vec![FRAME_BYTES], 0));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_reader_that_goes_away_frees_the_keys() {
        let kv = key_value(1, &[1; 100_000], 0);
        let mut layout = Layout::default();
        layout.key_values(2, false, vec![kv.clone(); 100]);
        let mut body = LargeBody::new(layout);
        body.frame().await.expect("a frame").expect("written");
        drop(body);
        while Arc::strong_count(&kv) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
