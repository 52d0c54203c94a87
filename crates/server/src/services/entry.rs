//! What every rpc passes, around the server that tonic generated.
//!
//! Before the handler: a caller that demands a leader is refused where none is known. During it: a caller whose time
//! is almost up is told that there is no leader, if that is what it waits for. After it: an
//! answer whose bytes were prepared elsewhere takes the place of the empty one that tonic would
//! encode ([`super::large`]), and a request that was too long to be read is refused in etcd's words.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use super::errors;
use super::large::LargeAnswer;
use super::leader::{self, HasLeader};

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
        let patience = time_left(request.headers()).map(|left| Patience {
            almost_up: Box::pin(tokio::time::sleep(left - left / 10)),
            has_leader: self.has_leader.clone(),
        });
        Passing::Handled { answer: self.server.call(request), patience }
    }
}

/// An rpc on its way through the server.
pub enum Passing<F> {
    Refused,
    Handled { answer: F, patience: Option<Patience> },
}

/// Of a caller that has said how long it waits. When its time is up it knows nothing but that: why, it can only be told
/// before.
pub struct Patience {
    almost_up: Pin<Box<Sleep>>,
    has_leader: HasLeader,
}

impl Patience {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.almost_up.as_mut().poll(context).map(|()| (self.has_leader)())
    }
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
        let passing = self.get_mut();
        if let Passing::Handled { answer, patience } = passing {
            if let Poll::Ready(answered) = Pin::new(answer).poll(context) {
                return Poll::Ready(answered.map(finish));
            }
            match patience.as_mut().map(|patience| patience.poll(context)) {
                None | Some(Poll::Pending) => return Poll::Pending,
                Some(Poll::Ready(true)) => {
                    *patience = None;
                    return Poll::Pending;
                }
                // What it waits for is given up with it.
                Some(Poll::Ready(false)) => *passing = Passing::Refused,
            }
        }
        Poll::Ready(Ok(Status::from(errors::NO_LEADER).into_http()))
    }
}

fn finish(mut response: Response<Body>) -> Response<Body> {
    // tonic leaves the status of a call that failed among the extensions.
    if let Some(unread) = response.extensions().get::<Status>().and_then(errors::unread) {
        return unread.into_http();
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
    async fn who_waits_for_a_leader_is_told_before_its_time_is_up() {
        let call = |has_leader: bool, timeout: &str| {
            let server = service_fn(|_: Request<Body>| Box::pin(std::future::pending::<Result<_, Infallible>>()));
            let mut request = Request::new(Body::empty());
            request.headers_mut().insert("grpc-timeout", timeout.parse().expect("ascii"));
            let entry = Entry::new(server, Arc::new(move || has_leader));
            async move { tokio::time::timeout(Duration::from_secs(3600), entry.oneshot(request)).await }
        };
        for (timeout, told_ms) in [("2S", 1800), ("500m", 450), ("1M", 54_000), ("900000u", 810)] {
            let began = tokio::time::Instant::now();
            let response = call(false, timeout).await.expect("answered in time").expect("infallible");
            assert_eq!(status(&response), (Code::Unavailable, "etcdserver: no leader".to_owned()));
            assert_eq!(began.elapsed(), Duration::from_millis(told_ms), "{timeout}");
        }
        // With a leader it is not that; and what is no time limit is none.
        for (has_leader, timeout) in [(true, "2S"), (false, "2"), (false, "S"), (false, "-2S"), (false, "123456789S")] {
            assert!(call(has_leader, timeout).await.is_err(), "{timeout}");
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
