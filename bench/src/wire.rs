//! gRPC over `h2`, in as few steps as a load client can do with.
//!
//! A general client resolves, balances, buffers and retries; each of that costs CPU which the
//! server under test would then lack. Here a [`Connection`] is one TCP connection, a [`Method`] is
//! a request head made once, a message is bytes that were framed once, and a call is one stream.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use prost::Message;
use tokio::net::TcpStream;

const FRAME_HEADER_BYTES: usize = 5;
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
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

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Failure {
        Failure::Transport(error.to_string())
    }
}

/// The head of every request to one rpc.
#[derive(Clone)]
pub struct Method(http::Request<()>);

/// One HTTP/2 connection. Clones share it.
#[derive(Clone)]
pub struct Connection {
    sender: SendRequest<Bytes>,
    authority: Authority,
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
        let (sender, connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .handshake(stream)
            .await
            .map_err(|error| failure(error.to_string()))?;
        // An error of the connection is seen by every call on it; there is nobody else to tell.
        tokio::spawn(connection);
        Ok(Connection { sender, authority })
    }

    /// Names an rpc, as in `/etcdserverpb.KV/Put`.
    pub fn method(&self, path: &'static str) -> Method {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_static(path));
        let mut request = http::Request::new(());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = Uri::from_parts(uri).expect("all three parts are given");
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        Method(request)
    }

    /// A unary call with a framed message; gives the answer's bytes.
    pub async fn call(&self, method: &Method, message: Bytes) -> Result<Bytes, Failure> {
        let mut replies = self.start(method, Some(message)).await?.1;
        let reply = replies.next().await?.ok_or_else(|| Failure::Decode("an empty answer".to_owned()))?;
        match replies.next().await? {
            None => Ok(reply),
            Some(_) => Err(Failure::Decode("two answers to a unary call".to_owned())),
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
        self.start(method, Some(message)).await?.1.count().await
    }

    /// A stream in both directions.
    pub async fn stream(&self, method: &Method) -> Result<(Requests, Replies), Failure> {
        self.start(method, None).await
    }

    async fn start(&self, method: &Method, only: Option<Bytes>) -> Result<(Requests, Replies), Failure> {
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut stream) = sender.send_request(method.0.clone(), false)?;
        if let Some(message) = only {
            stream.send_data(message, true)?;
        }
        Ok((Requests { stream }, Replies { state: State::Waiting(response), buffer: Bytes::new() }))
    }
}

/// The sending half of a stream.
pub struct Requests {
    stream: SendStream<Bytes>,
}

impl Requests {
    pub fn send(&mut self, message: Bytes) -> Result<(), Failure> {
        Ok(self.stream.send_data(message, false)?)
    }
}

enum State {
    Waiting(h2::client::ResponseFuture),
    Open(RecvStream),
    Ended,
}

/// The receiving half of a call or stream.
pub struct Replies {
    state: State,
    /// Come, and not read yet.
    buffer: Bytes,
}

impl Replies {
    /// The next message; None once the server has ended the call with success.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(message) = take_message(&mut self.buffer)? {
                return Ok(Some(message));
            }
            let Some(chunk) = self.chunk().await? else {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(Failure::Decode("the answer ends within a message".to_owned())),
                };
            };
            // Nearly always a chunk is whole messages: they are handed on as they came.
            self.buffer = match std::mem::take(&mut self.buffer) {
                rest if rest.is_empty() => chunk,
                rest => joined(rest, &chunk),
            };
        }
    }

    /// Nothing is left of what has come: the next message needs the network.
    pub fn is_drained(&self) -> bool {
        !matches!(message_length(&self.buffer), Ok(Some(length)) if self.buffer.len() >= FRAME_HEADER_BYTES + length)
    }

    async fn count(&mut self) -> Result<u64, Failure> {
        let mut bytes = 0;
        while let Some(chunk) = self.chunk().await? {
            bytes += chunk.len() as u64;
        }
        Ok(bytes)
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            match &mut self.state {
                State::Ended => return Ok(None),
                State::Waiting(response) => {
                    let (head, body) = response.await?.into_parts();
                    if head.status != http::StatusCode::OK {
                        return Err(Failure::Status { code: head.status.to_string(), message: String::new() });
                    }
                    if head.headers.contains_key("grpc-status") {
                        self.state = State::Ended;
                        check_status(&head.headers)?;
                    } else {
                        self.state = State::Open(body);
                    }
                }
                State::Open(body) => match body.data().await {
                    Some(chunk) => {
                        let chunk = chunk?;
                        body.flow_control().release_capacity(chunk.len())?;
                        return Ok(Some(chunk));
                    }
                    None => {
                        let trailers = body.trailers().await?.unwrap_or_default();
                        self.state = State::Ended;
                        check_status(&trailers)?;
                    }
                },
            }
        }
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

/// Of a message in several pieces: in place from the second time on.
fn joined(rest: Bytes, piece: &[u8]) -> Bytes {
    let mut joined = rest.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    joined.extend_from_slice(piece);
    joined.freeze()
}

fn take_message(buffer: &mut Bytes) -> Result<Option<Bytes>, Failure> {
    match message_length(buffer)? {
        Some(length) if buffer.len() >= FRAME_HEADER_BYTES + length => {
            buffer.advance(FRAME_HEADER_BYTES);
            Ok(Some(buffer.split_to(length)))
        }
        _ => Ok(None),
    }
}

fn check_status(headers: &HeaderMap) -> Result<(), Failure> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    match text("grpc-status").as_str() {
        "0" => Ok(()),
        "" => Err(Failure::Transport("the answer has no status".to_owned())),
        code => Err(Failure::Status { code: format!("code {code}"), message: text("grpc-message") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::mvccpb::KeyValue;

    #[test]
    fn messages_come_whole_out_of_arbitrary_pieces() {
        let sent = KeyValue { key: "k".into(), value: vec![7; 300].into(), ..KeyValue::default() };
        let framed = [frame(&sent), frame(&sent)].concat();
        let (mut buffer, mut received) = (Bytes::new(), Vec::new());
        for piece in framed.chunks(11) {
            buffer = joined(buffer, piece);
            while let Some(message) = take_message(&mut buffer).unwrap() {
                received.push(decode::<KeyValue>(message).unwrap());
            }
        }
        assert_eq!(received, [sent.clone(), sent]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_status_other_than_zero_is_a_failure_with_its_message() {
        let mut headers = HeaderMap::new();
        assert!(check_status(&headers).is_err());
        headers.insert("grpc-status", HeaderValue::from_static("0"));
        assert!(check_status(&headers).is_ok());
        headers.insert("grpc-status", HeaderValue::from_static("14"));
        headers.insert("grpc-message", HeaderValue::from_static("etcdserver: no leader"));
        assert!(check_status(&headers).unwrap_err().to_string().contains("etcdserver: no leader"));
    }
}
