//! gRPC over HTTP/2, in as few steps as a load client can do with.
//!
//! A general client resolves, balances, buffers and retries; each of that costs CPU which the
//! server under test would then lack. Here a [`Connection`] is one TCP connection, a [`Method`] is
//! the name of an rpc, a message is bytes that were framed once, and a call is one stream. HTTP/2
//! is spoken by hand ([`connection`]), because that takes a fraction of what a library for servers
//! and clients of all kinds takes: nobody here needs priorities, pushes or headers as a map.

mod connection;
mod frame;
mod hpack;
mod huffman;
mod reader;
mod stream;
mod streams;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::uri::Authority;
use prost::Message;
use tokio::net::TcpStream;

use connection::{Call, Link};
use reader::Fields;
use stream::Delivery;

const FRAME_HEADER_BYTES: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    #[error("{endpoint}: cannot connect: {cause}")]
    Connect { endpoint: String, cause: String },
    #[error("the connection broke: {0}")]
    Transport(String),
    #[error("the server answered {code}: {message}")]
    Status { code: String, message: String },
    #[error("an answer could not be decoded: {0}")]
    Decode(String),
    #[error("{0}")]
    Wrong(String),
}

/// Names an rpc.
#[derive(Clone)]
pub struct Method(&'static str);

/// One HTTP/2 connection. Clones share it, and it closes with the last of them and of the calls on it.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
}

impl Connection {
    /// Connects to `host:port`, with or without `http://`, and serves the connection on this runtime.
    pub async fn open(endpoint: &str) -> Result<Connection, Failure> {
        let failure = |cause: String| Failure::Connect { endpoint: endpoint.to_owned(), cause };
        let address = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
        let authority: Authority = address.parse().map_err(|error| failure(format!("not an address: {error}")))?;
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .map_err(|_| failure(format!("no answer within {CONNECT_TIMEOUT:?}")))?
            .map_err(|error| failure(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| failure(error.to_string()))?;
        // An error of the connection is seen by every call on it; there is nobody else to tell.
        Ok(Connection { link: Arc::new(Link::open(stream, authority.as_str())) })
    }

    /// Names an rpc, as in `/etcdserverpb.KV/Put`.
    pub fn method(&self, path: &'static str) -> Method {
        Method(path)
    }

    /// A unary call with a framed message; gives the answer's bytes.
    pub async fn call(&self, method: &Method, message: Bytes) -> Result<Bytes, Failure> {
        let call = Call::start(&self.link, method.0, Delivery::Whole, Some(message)).await?;
        let (mut answer, _) = call.whole().await?;
        let reply = take_message(&mut answer)?;
        match (reply, take_message(&mut answer)?) {
            (Some(reply), None) if answer.is_empty() => Ok(reply),
            (Some(_), Some(_)) => Err(Failure::Decode("two answers to a unary call".to_owned())),
            (None, _) if answer.is_empty() => Err(Failure::Decode("an empty answer".to_owned())),
            _ => Err(cut_off()),
        }
    }

    /// A unary call that encodes and decodes, for what is done outside the measured loop.
    pub async fn ask<Reply: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<Reply, Failure> {
        decode(self.call(&self.method(path), frame(request)).await?)
    }

    /// A unary call whose answer is only counted: gives the number of its bytes.
    pub async fn call_and_count(&self, method: &Method, message: Bytes) -> Result<u64, Failure> {
        let call = Call::start(&self.link, method.0, Delivery::Count, Some(message)).await?;
        Ok(call.whole().await?.1)
    }

    /// A stream in both directions.
    pub async fn stream(&self, method: &Method) -> Result<(Requests, Replies), Failure> {
        let call = Arc::new(Call::start(&self.link, method.0, Delivery::Pieces, None).await?);
        Ok((Requests { call: call.clone() }, Replies { call }))
    }
}

/// The sending half of a stream.
pub struct Requests {
    call: Arc<Call>,
}

impl Requests {
    pub fn send(&mut self, message: Bytes) -> Result<(), Failure> {
        self.call.send(message)
    }
}

/// The receiving half of a stream.
pub struct Replies {
    call: Arc<Call>,
}

impl Replies {
    /// The next message; None once the server has ended the call with success.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        self.call.message().await
    }

    /// Nothing is left of what has come: the next message needs the network.
    pub fn is_drained(&self) -> bool {
        self.call.is_drained()
    }
}

/// A message with the five bytes that gRPC puts before it.
pub fn frame(message: &impl Message) -> Bytes {
    let mut buffer = BytesMut::new();
    frame_into(&mut buffer, message);
    buffer.freeze()
}

/// The same, behind others that go out with it.
pub fn frame_into(buffer: &mut BytesMut, message: &impl Message) {
    let length = message.encoded_len();
    buffer.reserve(FRAME_HEADER_BYTES + length);
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(length).expect("requests are small"));
    message.encode(buffer).expect("a buffer grows as needed");
}

pub fn decode<Reply: Message + Default>(bytes: Bytes) -> Result<Reply, Failure> {
    Reply::decode(bytes).map_err(|error| Failure::Decode(error.to_string()))
}

fn message_length(buffer: &[u8]) -> Result<Option<usize>, Failure> {
    match buffer {
        [0, a, b, c, d, ..] => Ok(Some(u32::from_be_bytes([*a, *b, *c, *d]) as usize)),
        [flag, ..] if *flag != 0 => Err(Failure::Decode("a compressed answer".to_owned())),
        _ => Ok(None),
    }
}

/// Whether a message is there whole.
fn has_message(buffer: &[u8]) -> bool {
    matches!(message_length(buffer), Ok(Some(length)) if buffer.len() >= FRAME_HEADER_BYTES + length)
}

fn take_message(buffer: &mut BytesMut) -> Result<Option<Bytes>, Failure> {
    match message_length(buffer)? {
        // Nearly always that is all there is, and it is handed on as it came.
        Some(length) if buffer.len() == FRAME_HEADER_BYTES + length => {
            let mut message = std::mem::take(buffer).freeze();
            message.advance(FRAME_HEADER_BYTES);
            Ok(Some(message))
        }
        Some(length) if buffer.len() > FRAME_HEADER_BYTES + length => {
            buffer.advance(FRAME_HEADER_BYTES);
            Ok(Some(buffer.split_to(length).freeze()))
        }
        _ => Ok(None),
    }
}

fn cut_off() -> Failure {
    Failure::Decode("the answer ends within a message".to_owned())
}

fn check_status(fields: &Fields) -> Result<(), Failure> {
    match fields.code.as_deref() {
        Some("0") => Ok(()),
        None | Some("") => Err(Failure::Transport("the answer has no status".to_owned())),
        Some(code) => Err(Failure::Status { code: format!("code {code}"), message: fields.message.clone() }),
    }
}
