//! The JSON gateway: `POST /v3/…` for every rpc, as etcd offers it.
//!
//! A request is turned into the very gRPC call that a gRPC client would have made and handed to the
//! same [`Services`], so that limits, authorization and metrics hold here with no further code. A
//! stream of requests is a body with one JSON object after another; a stream of responses is lines of
//! `{"result": …}`, and of `{"error": …}` if it breaks off. As in etcd, the HTTP status of a stream is
//! sent with its first line, so that a call that fails at once has a status that says so. A long answer becomes JSON
//! piece by piece ([`long`]).

mod errors;
mod long;
pub(crate) mod paths;
pub(crate) mod transcode;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body as HttpBody;
use bytes::{Buf, Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, TE};
use http::{HeaderMap, Method as HttpMethod, Request, Response, StatusCode, Version, request};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use prost_reflect::DescriptorPool;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::{Code, Status};

use self::long::{LONG_BYTES, LongAnswer, Transcriber};
use self::transcode::{FRAME_HEADER_BYTES, Method, Splitter, message_length, take_message, too_large};
use super::grpc::{ResponseBody, Services};
use super::plain_text;
use crate::limits::Limits;

const METADATA_PREFIX: &str = "grpc-metadata-";

pub struct Gateway {
    by_path: HashMap<&'static str, Arc<Method>>,
    services: Services,
    json_bytes: usize,
}

impl Gateway {
    pub fn new(pool: &DescriptorPool, services: Services, limits: &Limits) -> Gateway {
        let by_path = paths::PATHS.iter().filter_map(|(path, rpc)| Some((*path, Method::find(pool, rpc)?)));
        Gateway { by_path: by_path.collect(), services, json_bytes: limits.json_bytes() }
    }

    /// Answers any request to a path beneath `/v3/`.
    pub async fn call(&self, request: Request<HttpBody>) -> Response<HttpBody> {
        let Some(method) = self.by_path.get(request.uri().path()) else {
            return plain_text(StatusCode::NOT_FOUND, "Not Found\n");
        };
        if request.method() != HttpMethod::POST {
            return plain_text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
        }
        let (parts, body) = request.into_parts();
        let deadline = match deadline(&parts.headers) {
            Ok(deadline) => deadline,
            Err(status) => return failed_call(&status),
        };
        let answer = async {
            match method.request_is_stream || method.response_is_stream {
                true => self.stream(method.clone(), parts, body, deadline).await,
                false => self.unary(method, parts, body, deadline).await,
            }
        };
        let answer = match deadline {
            Some(deadline) => timeout_at(deadline, answer).await.unwrap_or_else(|_| Err(deadline_exceeded())),
            None => answer.await,
        };
        answer.unwrap_or_else(|status| failed_call(&status))
    }

    async fn unary(
        &self,
        method: &Method,
        parts: request::Parts,
        body: HttpBody,
        deadline: Option<Instant>,
    ) -> Result<Response<HttpBody>, Status> {
        let frame = method.request_frame(&self.read(body).await?)?;
        let request = grpc_request(method, parts, tonic::body::Body::new(Full::new(frame)));
        let (headers, mut messages) = Messages::of(self.services.call(request).await);
        if let Some(length) = messages.length().await
            && length > LONG_BYTES
        {
            let transcriber = Transcriber::new(method.output(), length);
            let deadline = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
            let answer = LongAnswer::new(messages.body, messages.buffer, transcriber, deadline);
            return Ok(json_response(StatusCode::OK, &headers, HttpBody::new(answer)));
        }
        let message = messages.next().await?.ok_or_else(|| Status::internal("the call gave no answer"))?;
        let mut json = Vec::new();
        method.write_response(message, &mut json)?;
        // The status comes after the message: one that failed late has not succeeded.
        messages.next().await?;
        Ok(json_response(StatusCode::OK, &headers, HttpBody::from(json)))
    }

    async fn stream(
        &self,
        method: Arc<Method>,
        parts: request::Parts,
        body: HttpBody,
        deadline: Option<Instant>,
    ) -> Result<Response<HttpBody>, Status> {
        let frames = match method.request_is_stream {
            true => {
                let mut requests = Requests::new(method.clone(), body, self.json_bytes);
                // A client whose first words make no sense is told so by the HTTP status.
                requests.read_first().await?;
                tonic::body::Body::new(requests)
            }
            false => tonic::body::Body::new(Full::new(method.request_frame(&self.read(body).await?)?)),
        };
        let request = grpc_request(&method, parts, frames);
        let (headers, mut messages) = Messages::of(self.services.call(request).await);
        let first = match messages.next().await {
            Ok(first) => first,
            Err(status) => {
                let line = HttpBody::from(errors::stream_error(&status));
                return Ok(json_response(errors::http_status(status.code()), &headers, line));
            }
        };
        let deadline = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
        let lines = Lines { ended: first.is_none(), method, first, messages, deadline };
        Ok(json_response(StatusCode::OK, &headers, HttpBody::new(lines)))
    }

    async fn read(&self, body: HttpBody) -> Result<Bytes, Status> {
        match Limited::new(body, self.json_bytes).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
            Err(error) => Err(Status::cancelled(error.to_string())),
        }
    }
}

/// The call that a gRPC client would have made.
fn grpc_request(method: &Method, parts: request::Parts, body: tonic::body::Body) -> Request<tonic::body::Body> {
    let mut request = Request::new(body);
    *request.method_mut() = HttpMethod::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = method.path.clone().into();
    *request.extensions_mut() = parts.extensions;
    let headers = request.headers_mut();
    for (name, value) in &parts.headers {
        if let Some(name) = metadata_name(name) {
            headers.append(name, value.clone());
        }
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    request
}

/// Under what name a header of the HTTP request is passed on, if it is.
fn metadata_name(name: &HeaderName) -> Option<HeaderName> {
    if name == AUTHORIZATION {
        return Some(AUTHORIZATION);
    }
    let name = name.as_str().strip_prefix(METADATA_PREFIX)?;
    let reserved = name.starts_with("grpc-") || matches!(name, "content-type" | "te" | "content-length");
    if reserved { None } else { HeaderName::try_from(name).ok() }
}

/// What the client's `Grpc-Timeout` allows.
fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Status> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let timeout = parse_timeout(text);
    let timeout = timeout.ok_or_else(|| Status::invalid_argument(format!("invalid grpc-timeout: {text}")))?;
    Ok(Instant::now().checked_add(timeout))
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

fn failed_call(status: &Status) -> Response<HttpBody> {
    let body = HttpBody::from(errors::call_error(status));
    json_response(errors::http_status(status.code()), &HeaderMap::new(), body)
}

/// With the call's metadata as `Grpc-Metadata-…` headers.
fn json_response(status: StatusCode, metadata: &HeaderMap, body: HttpBody) -> Response<HttpBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in metadata {
        if let Ok(name) = HeaderName::try_from(format!("{METADATA_PREFIX}{name}")) {
            response.headers_mut().append(name, value.clone());
        }
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The messages of a response, and at their end its status.
struct Messages {
    body: ResponseBody,
    buffer: BytesMut,
    /// Set as soon as it is known.
    status: Option<Status>,
}

impl Messages {
    fn of(response: Response<ResponseBody>) -> (HeaderMap, Messages) {
        let (parts, body) = response.into_parts();
        let status = Status::from_header_map(&parts.headers);
        (parts.headers, Messages { body, buffer: BytesMut::new(), status })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The length of the first message, whose frame is taken off if it is long; `None` if the call ends before it.
    async fn length(&mut self) -> Option<usize> {
        poll_fn(|context| {
            while self.status.is_none() && message_length(&self.buffer).is_none() {
                ready!(self.poll_more(context));
            }
            Poll::Ready(())
        })
        .await;
        let length = message_length(&self.buffer)?;
        if length > LONG_BYTES {
            self.buffer.advance(FRAME_HEADER_BYTES);
        }
        Some(length)
    }

    /// Takes what comes next of the body: bytes or the status.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => self.status = frame.trailers_ref().and_then(Status::from_header_map),
            },
            Some(Err(status)) => self.status = Some(status),
            None => self.status = Some(Status::unknown("the call ended without a status")),
        }
        Poll::Ready(())
    }

    /// None = the call has succeeded.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(message) = take_message(&mut self.buffer) {
                return Poll::Ready(Ok(Some(message)));
            }
            if let Some(status) = &self.status {
                return Poll::Ready(if status.code() == Code::Ok { Ok(None) } else { Err(status.clone()) });
            }
            ready!(self.poll_more(context));
        }
    }
}

/// A stream of responses as lines of JSON.
struct Lines {
    method: Arc<Method>,
    first: Option<Bytes>,
    messages: Messages,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl Lines {
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if let Some(message) = self.first.take() {
            return Poll::Ready(Ok(Some(message)));
        }
        if let Poll::Ready(message) = self.messages.poll_next(context) {
            return Poll::Ready(message);
        }
        match &mut self.deadline {
            Some(deadline) => deadline.as_mut().poll(context).map(|()| Err(deadline_exceeded())),
            None => Poll::Pending,
        }
    }

    fn line(&self, message: Bytes) -> Result<Vec<u8>, Status> {
        let mut line = b"{\"result\":".to_vec();
        self.method.write_response(message, &mut line)?;
        line.extend_from_slice(b"}\n");
        Ok(line)
    }
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let line = match ready!(self.poll_message(context)) {
            Ok(Some(message)) => self.line(message),
            Ok(None) => {
                self.ended = true;
                return Poll::Ready(None);
            }
            Err(status) => Err(status),
        };
        let line = line.unwrap_or_else(|status| {
            self.ended = true;
            let mut line = errors::stream_error(&status);
            line.push(b'\n');
            line
        });
        Poll::Ready(Some(Ok(Frame::data(line.into()))))
    }
}

/// A stream of requests: JSON objects of the body as gRPC frames.
struct Requests {
    method: Arc<Method>,
    body: HttpBody,
    splitter: Splitter,
    json_bytes: usize,
    first: Option<Bytes>,
    ended: bool,
}

impl Requests {
    fn new(method: Arc<Method>, body: HttpBody, json_bytes: usize) -> Requests {
        Requests { method, body, splitter: Splitter::default(), json_bytes, first: None, ended: false }
    }

    async fn read_first(&mut self) -> Result<(), Status> {
        self.first = poll_fn(|context| self.poll_request(context)).await?;
        Ok(())
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(json) = self.splitter.next() {
                let fits = json.len() <= self.json_bytes;
                let frame = if fits { self.method.request_frame(&json) } else { Err(too_large()) };
                return Poll::Ready(frame.map(Some));
            }
            if self.ended {
                let rest = self.splitter.rest();
                return Poll::Ready(rest.map(|json| self.method.request_frame(&json)).transpose());
            }
            if self.splitter.pending() > self.json_bytes {
                return Poll::Ready(Err(too_large()));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.splitter.push(data);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(Status::cancelled(error.to_string()))),
                None => self.ended = true,
            }
        }
    }
}

impl Body for Requests {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(frame) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        let request = ready!(self.poll_request(context));
        if request.is_err() {
            self.ended = true;
            self.splitter = Splitter::default();
        }
        Poll::Ready(request.transpose().map(|frame| frame.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests;
