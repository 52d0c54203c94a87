//! What answers on the client port: gRPC, the JSON gateway, and a few plain HTTP endpoints.
//!
//! [`Front`] is built once for each network runtime. It decides by as little as possible: HTTP/2
//! with a gRPC content type goes straight to the [`grpc::Services`]; only what is neither that nor
//! the gateway sees the router.

pub mod gateway;
pub mod grpc;
pub mod health;
pub mod leader;
mod origin;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body as HttpBody;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use prost_reflect::DescriptorPool;
use tonic::codegen::{Service, StdError};
use tonic::transport::server::TcpConnectInfo;

use self::gateway::Gateway;
use self::grpc::{GrpcFuture, ResponseBody, Services};
use self::health::Health;
use self::origin::{Origins, Verdict};
use crate::config::{Config, ETCD_CLUSTER_VERSION, ETCD_VERSION, TENURE_VERSION};
use crate::listen::OpenConnection;
use crate::metrics::Metrics;
use crate::metrics::text::Form;

/// Everything that one network runtime serves.
pub struct Front {
    services: Services,
    gateway: Arc<Gateway>,
    router: Router,
    origins: Origins,
}

impl Front {
    /// `more` are further HTTP routes, such as the WebSocket session.
    pub fn new(
        config: &Config,
        pool: &DescriptorPool,
        services: Services,
        health: Arc<Health>,
        metrics: Arc<Metrics>,
        more: Router,
    ) -> Front {
        let render = move |headers: HeaderMap| async move {
            let form = Form::accepted(&headers);
            ([(CONTENT_TYPE, form.content_type())], metrics.render_in(form))
        };
        let router = Router::new()
            .route("/version", get(version))
            .route("/metrics", get(render))
            .merge(health.routes())
            .merge(more)
            .method_not_allowed_fallback(method_not_allowed)
            .fallback(not_found);
        Front {
            gateway: Arc::new(Gateway::new(pool, services.clone(), &config.limits)),
            services,
            router,
            origins: Origins::new(config),
        }
    }

    fn answer(&self, request: Request<HttpBody>) -> HttpFuture {
        let verdict = self.origins.judge(request.method(), request.headers());
        if let Verdict::Answer(response) = verdict {
            return Box::pin(std::future::ready(response));
        }
        let answer: HttpFuture = if request.uri().path().starts_with("/v3/") {
            let gateway = self.gateway.clone();
            Box::pin(async move { gateway.call(request).await })
        } else {
            let mut router = self.router.clone();
            Box::pin(async move { router.call(request).await.unwrap_or_else(|never: Infallible| match never {}) })
        };
        match verdict {
            Verdict::Share(origin) => Box::pin(async move { origin::share(answer.await, origin) }),
            _ => answer,
        }
    }
}

/// A [`Front`] as one connection sees it.
#[derive(Clone)]
pub struct Connection {
    front: Arc<Front>,
    info: TcpConnectInfo,
    open: OpenConnection,
}

impl Connection {
    pub fn new(front: Arc<Front>, info: TcpConnectInfo, open: OpenConnection) -> Connection {
        Connection { front, info, open }
    }
}

impl hyper::service::Service<Request<Incoming>> for Connection {
    type Response = Response<FrontBody>;
    type Error = Infallible;
    type Future = FrontFuture;

    fn call(&self, mut request: Request<Incoming>) -> FrontFuture {
        request.extensions_mut().insert(self.info.clone());
        if is_grpc(&request) {
            FrontFuture::Grpc(self.front.services.call(request))
        } else {
            // For what goes on after HTTP, a WebSocket.
            request.extensions_mut().insert(self.open.clone());
            FrontFuture::Http(self.front.answer(request.map(HttpBody::new)))
        }
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    request.version() == Version::HTTP_2
        && content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

type HttpFuture = Pin<Box<dyn Future<Output = Response<HttpBody>> + Send>>;

pub enum FrontFuture {
    Grpc(GrpcFuture),
    Http(HttpFuture),
}

impl Future for FrontFuture {
    type Output = Result<Response<FrontBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match self.get_mut() {
            FrontFuture::Grpc(future) => ready!(Pin::new(future).poll(context)).map(FrontBody::Grpc),
            FrontFuture::Http(future) => ready!(future.as_mut().poll(context)).map(FrontBody::Http),
        };
        Poll::Ready(Ok(response))
    }
}

pub enum FrontBody {
    Grpc(ResponseBody),
    Http(HttpBody),
}

impl Body for FrontBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        match self.get_mut() {
            FrontBody::Grpc(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            FrontBody::Http(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            FrontBody::Grpc(body) => body.is_end_stream(),
            FrontBody::Http(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            FrontBody::Grpc(body) => body.size_hint(),
            FrontBody::Http(body) => body.size_hint(),
        }
    }
}

async fn version() -> Response<HttpBody> {
    let body = format!(
        r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{ETCD_CLUSTER_VERSION}","tenure":"{TENURE_VERSION}"}}"#
    );
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

async fn method_not_allowed() -> Response<HttpBody> {
    let mut response = plain_text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    response
}

pub(crate) async fn not_found() -> Response<HttpBody> {
    const HELP: &str = "404 page not found\n\n\
        This is Tenure. Here are gRPC (etcd v3), its JSON form at POST /v3/…, and\n\
        /health /livez /readyz?verbose /version /metrics; locks by WebSocket at /v1/session,\n\
        and who leads the cluster at /v1/leader\n";
    plain_text(StatusCode::NOT_FOUND, HELP)
}

pub(crate) fn plain_text(status: StatusCode, text: impl Into<HttpBody>) -> Response<HttpBody> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests;
