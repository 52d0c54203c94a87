//! How members reach each other: raft's messages, snapshots, and those who join and leave.
//!
//! It has one thread of its own, beside the network threads that serve clients. A turn at the replica puts its messages
//! into the [`outbox`], a bounded queue for each peer, and its thread writes them to the peers' connections as it leaves, in
//! batches, as far as those take them; it never waits. Whatever does not fit, or finds nobody there, is dropped, because raft
//! repeats what matters. One task for each peer ([`stream`]) opens the connection, writes what it did not take at once, and
//! comes back with a pause when it is lost. What other members send arrives in [`frame`]s at the [`service`] on the peer port
//! and goes to the replica as it is: only replicas know what is in a message.
//!
//! Snapshots travel apart ([`send_snapshot`], [`receive_snapshot`]), on connections of their own, so that
//! gigabytes never hold up a heartbeat; they go on where they were cut.
//!
//! Every stream begins with a [`greeting`]: both sides must belong to one cluster, be who the other took them
//! for, and live in the data directory in which they were first met.

mod admission;
pub(crate) mod counters;
mod frame;
mod greeting;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod listing;
pub(crate) mod outbox;
mod port;
mod receive_snapshot;
mod send_snapshot;
mod service;
mod stream;
mod transport;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::time::Duration;

pub(crate) use port::{PeerPort, PeerPortSettings};
use tenure_machine::Member;
use tenure_replica::{Failure, Input, MemberChange, Status};
use tonic::transport::{Channel, Endpoint};

/// How long a peer may take to accept a connection, and to answer a greeting.
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection on which nothing moves is pinged, and given up if the ping is not answered: a peer that vanished
/// without a word must not keep messages waiting in its buffers.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Whoever takes messages says so often that it is alive, and is given up after such a silence.
const SIGN_OF_LIFE: Duration = PING_INTERVAL;
const SILENCE: Duration = PING_INTERVAL.saturating_add(PING_TIMEOUT);

/// What the transport asks of the member that it carries messages for.
pub(crate) trait Host: Clone + Send + Sync + 'static {
    fn deliver(&self, input: Input);

    /// All that came together, in order; leaves none.
    fn deliver_all(&self, inputs: &mut Vec<Input>);

    fn status(&self) -> Status;

    /// The members as all who answer to the leader see them.
    fn members(&self) -> impl Future<Output = Result<Vec<Member>, Failure>> + Send;

    fn change_members(&self, change: MemberChange) -> impl Future<Output = Result<Vec<Member>, Failure>> + Send;

    /// Ends the member: others know it with another data directory; in the words of who knows.
    fn stop_as_stranger(&self, text: String);
}

/// Connects to a member's peer port, at `http://host:port`.
async fn connect(url: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| error.to_string())?;
    let endpoint = endpoint
        .connect_timeout(GREETING_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    endpoint.connect().await.map_err(|error| why(&error))
}

/// The cause at the bottom says most.
fn why(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// What a status says, for people.
fn said(status: &tonic::Status) -> String {
    match status.message() {
        "" => format!("{:?}", status.code()),
        text => text.to_owned(),
    }
}
