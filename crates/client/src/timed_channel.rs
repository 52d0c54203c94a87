//! A channel that tells the server for how long its caller waits.
//!
//! A member without a leader keeps a write until it has one. When the time of the caller is nearly up it says that it has
//! done nothing, if that is so, and the caller need not be left in doubt.

use std::task::{Context, Poll};
use std::time::Duration;

use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;

const HEADER: &str = "grpc-timeout";

#[derive(Clone)]
pub struct TimedChannel {
    channel: Channel,
    timeout: Option<http::HeaderValue>,
}

impl TimedChannel {
    /// `timeout`: None for streams, and for calls that wait for their turn.
    pub fn new(channel: Channel, timeout: Option<Duration>) -> TimedChannel {
        TimedChannel { channel, timeout: timeout.and_then(|timeout| header(timeout).parse().ok()) }
    }
}

/// gRPC allows eight digits and a unit. The channel gives up by this header, too: a little more than the caller's own
/// time, so that the caller is the first to do so and knows why.
fn header(timeout: Duration) -> String {
    let ms = (timeout + timeout / 20).as_millis().max(1);
    match ms {
        0..=99_999_999 => format!("{ms}m"),
        _ => format!("{}S", (ms / 1_000).min(99_999_999)),
    }
}

impl Service<http::Request<Body>> for TimedChannel {
    type Response = <Channel as Service<http::Request<Body>>>::Response;
    type Error = <Channel as Service<http::Request<Body>>>::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(timeout) = &self.timeout {
            request.headers_mut().insert(HEADER, timeout.clone());
        }
        Service::call(&mut self.channel, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_written_as_grpc_has_them() {
        for (ms, text) in [(0, "1m"), (100, "105m"), (5_000, "5250m"), (200_000_000, "210000S")] {
            assert_eq!(header(Duration::from_millis(ms)), text);
        }
    }
}
