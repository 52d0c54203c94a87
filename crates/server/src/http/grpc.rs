//! The gRPC services of a runtime, and the shortest way to them.
//!
//! tonic's own router takes a general one's detour: it matches patterns, keeps the pieces of the path
//! and clones boxes. [`Services`] finds the handler with one look-up. It also counts, because here
//! is where every call passes, whether it came as gRPC or through the JSON gateway.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::listen::Stopping;
use crate::metrics::{Call, Concluded, Counters, Rpcs};

type Answer = Result<Response<tonic::body::Body>, Infallible>;
type AnswerFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;
type StopFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

type Handler = Box<dyn Fn(Request<tonic::body::Body>) -> AnswerFuture + Send + Sync>;

/// Built once for each runtime; cheap to clone.
#[derive(Clone)]
pub struct Services {
    table: Arc<Table>,
    stopping: Option<Stopping>,
    counters: Arc<Counters>,
    rpcs: Arc<Rpcs>,
}

struct Table {
    by_name: HashMap<&'static str, Handler>,
}

/// Collects a runtime's services.
#[derive(Default)]
pub struct ServicesBuilder {
    by_name: HashMap<&'static str, Handler>,
    stopping: Option<Stopping>,
}

impl ServicesBuilder {
    /// A generated `…Server`, alone or with something wrapped around it.
    pub fn add_service<S>(mut self, service: S) -> ServicesBuilder
    where
        S: Service<
                Request<tonic::body::Body>,
                Response = Response<tonic::body::Body>,
                Error = Infallible,
                Future: Send + 'static,
            > + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
    {
        let handler = move |request| Box::pin(service.clone().call(request)) as AnswerFuture;
        self.by_name.insert(S::NAME, Box::new(handler));
        self
    }

    /// From then on, streams and calls that wait for their turn end with "server stopped".
    pub fn stopping(mut self, stopping: Stopping) -> ServicesBuilder {
        self.stopping = Some(stopping);
        self
    }

    pub fn build(self, counters: Arc<Counters>, rpcs: Arc<Rpcs>) -> Services {
        let table = Arc::new(Table { by_name: self.by_name });
        Services { table, stopping: self.stopping, counters, rpcs }
    }
}

impl Services {
    pub fn builder() -> ServicesBuilder {
        ServicesBuilder::default()
    }

    pub fn call<B>(&self, request: Request<B>) -> GrpcFuture
    where
        B: Body<Data = Bytes, Error: Into<StdError>> + Send + Unpin + 'static,
    {
        let path = request.uri().path();
        let rpc = self.rpcs.find(path);
        let call = Call::start(self.counters.clone(), rpc);
        let service = service_name(path);
        let counters = self.counters.clone();
        let counted = |body: B| tonic::body::Body::new(RequestBody { body, rpc, counters });
        let answer: AnswerFuture = match self.table.by_name.get(service) {
            Some(handler) => handler(request.map(counted)),
            None => {
                let status = Status::unimplemented(format!("unknown service {service}"));
                Box::pin(async { Ok(status.into_http()) })
            }
        };
        let stopping = self.stopping.as_ref().filter(|_| self.rpcs.is_open_ended(rpc));
        let stop = stopping.map(|stopping| Box::pin(stopping.clone().wait()) as StopFuture);
        GrpcFuture { answer, call: Some(call), stop }
    }
}

/// The middle of `/package.Service/Method`.
fn service_name(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or(path, |(service, _)| service)
}

/// A request's body that counts what comes in.
struct RequestBody<B> {
    body: B,
    rpc: usize,
    counters: Arc<Counters>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.counters.received(self.rpc, data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pub struct GrpcFuture {
    answer: AnswerFuture,
    call: Option<Call>,
    stop: Option<StopFuture>,
}

impl Future for GrpcFuture {
    type Output = Response<ResponseBody>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match self.answer.as_mut().poll(context) {
            Poll::Ready(Ok(response)) => response,
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => {
                ready!(poll_stop(&mut self.stop, context));
                server_stopped().into_http()
            }
        };
        let mut call = self.call.take();
        if let (Some(call), Some(code)) = (&mut call, status_code(response.headers())) {
            call.end(code);
        }
        let stop = self.stop.take();
        let mut response = response;
        let concluded = response.extensions_mut().remove::<Concluded>();
        Poll::Ready(response.map(|body| ResponseBody { body, call, stop, concluded, ended: false }))
    }
}

/// A response's body that counts what goes out and sees how the call ended.
pub struct ResponseBody {
    body: tonic::body::Body,
    call: Option<Call>,
    stop: Option<StopFuture>,
    concluded: Option<Concluded>,
    ended: bool,
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let (Some(call), Some(concluded)) = (&mut self.call, &self.concluded)
            && concluded.is_set()
        {
            call.end(Code::Ok);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(poll_stop(&mut self.stop, context));
                self.ended = true;
                Some(Ok(Frame::trailers(trailers(server_stopped()))))
            }
        };
        if let Some(call) = &mut self.call {
            match &frame {
                Some(Ok(frame)) => match (frame.data_ref(), frame.trailers_ref()) {
                    (Some(data), _) => call.sent(data.len()),
                    (None, Some(trailers)) => call.end(status_code(trailers).unwrap_or(Code::Unknown)),
                    (None, None) => {}
                },
                Some(Err(status)) => call.end(status.code()),
                None => call.end(Code::Unknown),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn poll_stop(stop: &mut Option<StopFuture>, context: &mut Context<'_>) -> Poll<()> {
    match stop {
        Some(stop) => stop.as_mut().poll(context),
        None => Poll::Pending,
    }
}

/// In etcd's words, by which its clients know to go to another member.
fn server_stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

fn trailers(status: Status) -> HeaderMap {
    let mut headers = status.into_http::<()>().into_parts().0.headers;
    headers.remove(http::header::CONTENT_TYPE);
    headers
}

fn status_code(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}
