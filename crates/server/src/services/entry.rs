//! What every rpc passes, around the server that tonic generated.
//!
//! Before the handler: a caller that demands a leader is refused where none is known. For it: until when the caller
//! waits ([`crate::member`]); and the body of a stream that the handler reads itself is kept from tonic
//! ([`super::framed`]). After it: an answer whose bytes were prepared elsewhere takes the place of the empty one
//! that tonic would encode ([`super::large`]), and a request that was too long to be read is refused in etcd's words.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use super::errors;
use super::framed;
use super::large::LargeAnswer;
use super::leader::{self, HasLeader};
use super::tenure_lock::SESSION_PATH;
use crate::member::ALMOST_UP;

#[derive(Clone)]
pub struct Entry<S> {
    server: S,
    has_leader: HasLeader,
}

impl<S> Entry<S> {
    pub fn new(server: S, has_leader: HasLeader) -> Entry<S> {
        Entry { server, has_leader }
    }
}

impl<S: NamedService> NamedService for Entry<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Entry<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Passing<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.server.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Passing<S::Future> {
        if leader::is_required(request.headers()) && !(self.has_leader)() {
            return Passing::Refused;
        }
        let almost_up = time_left(request.headers()).map(|left| Instant::now() + (left - left / 10));
        let request = if request.uri().path() == SESSION_PATH { framed::set_aside(request) } else { request };
        Passing::Handled { answer: self.server.call(request), almost_up }
    }
}

/// An rpc on its way through the server.
pub enum Passing<F> {
    Refused,
    Handled { answer: F, almost_up: Option<Instant> },
}

/// What gRPC's header says of the caller's deadline.
fn time_left(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    // As much as the protocol allows.
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

impl<F> Future for Passing<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (answer, almost_up) = match self.get_mut() {
            Passing::Refused => return Poll::Ready(Ok(Status::from(errors::NO_LEADER).into_http())),
            Passing::Handled { answer, almost_up } => (answer, almost_up),
        };
        let poll = || Pin::new(answer).poll(context).map_ok(finish);
        match almost_up {
            Some(almost_up) => ALMOST_UP.sync_scope(*almost_up, poll),
            None => poll(),
        }
    }
}

fn finish(mut response: Response<Body>) -> Response<Body> {
    // tonic leaves the status of a call that failed among the extensions.
    if let Some(unread) = response.extensions().get::<Status>().and_then(errors::unread) {
        return unread.into_http();
    }
    if let Some(body) = framed::taken_from(&mut response) {
        return response.map(|_| Body::new(body));
    }
    match response.extensions_mut().remove::<LargeAnswer>().and_then(|large| large.take()) {
        Some(body) => response.map(|_| Body::new(body)),
        None => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::Arc;
    use tonic::Code;
    use tower::{ServiceExt, service_fn};

    async fn through(has_leader: bool, header: &str, response: Response<Body>) -> Response<Body> {
        let mut response = Some(response);
        let server = service_fn(move |_: Request<Body>| {
            std::future::ready(Ok::<_, Infallible>(response.take().expect("called once")))
        });
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert("hasleader", header.parse().expect("ascii"));
        let entry = Entry::new(server, Arc::new(move || has_leader));
        entry.oneshot(request).await.expect("infallible")
    }

    fn status(response: &Response<Body>) -> (Code, String) {
        let header = |name| response.headers().get(name).map_or("", |value| value.to_str().expect("ascii")).to_owned();
        (Code::from_bytes(header("grpc-status").as_bytes()), header("grpc-message").replace("%20", " "))
    }

    #[tokio::test]
    async fn who_demands_a_leader_is_refused_without_one() {
        let answer = || Response::new(Body::new("answer".to_owned()));
        let refused = through(false, "true", answer()).await;
        assert_eq!(status(&refused), (Code::Unavailable, "etcdserver: no leader".to_owned()));
        for (has_leader, header) in [(true, "true"), (false, "false"), (false, "")] {
            let response = through(has_leader, header, answer()).await;
            assert_eq!(response.into_body().collect().await.expect("read").to_bytes(), "answer");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_knows_when_the_callers_time_is_almost_up() {
        let known_ms = async |timeout: &str| {
            let server = service_fn(|_: Request<Body>| {
                Box::pin(async {
                    let left = ALMOST_UP.try_with(|almost_up| almost_up.duration_since(Instant::now()).as_millis());
                    Ok::<_, Infallible>(Response::new(Body::new(format!("{left:?}"))))
                })
            });
            let mut request = Request::new(Body::empty());
            request.headers_mut().insert("grpc-timeout", timeout.parse().expect("ascii"));
            let response = Entry::new(server, Arc::new(|| true)).oneshot(request).await.expect("infallible");
            let told = response.into_body().collect().await.expect("read").to_bytes();
            String::from_utf8_lossy(&told).into_owned()
        };
        for (timeout, left) in [("2S", "Ok(1800)"), ("500m", "Ok(450)"), ("1M", "Ok(54000)"), ("900000u", "Ok(810)")] {
            assert_eq!(known_ms(timeout).await, left, "{timeout}");
        }
        for nonsense in ["2", "S", "-2S", "123456789S", "2s", ""] {
            assert!(known_ms(nonsense).await.starts_with("Err"), "{nonsense}");
        }
    }

    #[tokio::test]
    async fn what_could_not_be_read_is_told_in_etcds_words() {
        let text = "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes";
        let response = through(true, "", Status::out_of_range(text).into_http()).await;
        let expected = "grpc: received message larger than max (9 vs. 8)".to_owned();
        assert_eq!(status(&response), (Code::ResourceExhausted, expected));
    }
}
