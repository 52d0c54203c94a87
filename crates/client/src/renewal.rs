//! Sends the renewals of one lease, over a stream that is opened again when it breaks.
//!
//! When and how often is the lifecycle's business; here is only the way to the server and back.
//! Each answer is paired with the renewal that it answers: there is one at a time on a stream, and
//! a stream on which one was given up is closed.

use std::sync::{Arc, Weak};

use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tenure_api::tenure::v1::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::connection::Connection;
use crate::diagnose;
use crate::keeper::HeldLease;
use crate::lifecycle::{Cause, Input};
use crate::{Client, LeaseId};

struct Open {
    connection: Arc<Connection>,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
    replies: Streaming<LeaseKeepAliveResponse>,
}

/// Ends with the lease.
pub(crate) async fn run(
    client: Client,
    lease: Weak<HeldLease>,
    id: LeaseId,
    mut numbers: mpsc::UnboundedReceiver<u64>,
) {
    let mut stream: Option<Open> = None;
    let mut next = numbers.recv().await;
    while let Some(number) = next {
        let outcome = tokio::select! {
            outcome = renew(&client, &mut stream, id) => outcome,
            newer = numbers.recv() => {
                // The lifecycle has lost its patience with this member, or with the way to it.
                let silent = stream.take().map(|open| open.connection).or_else(|| client.connections.current());
                silent.iter().for_each(|connection| client.connections.leave(connection));
                next = newer;
                continue;
            }
        };
        let input = match outcome {
            Ok(ttl_ms) => Input::Answered { number, ttl_ms },
            Err(status) if is_verdict(&status) => Input::Ended(Cause::LeaseEnded),
            Err(status) => {
                let broken = stream.take().map(|open| open.connection).or_else(|| client.connections.current());
                match diagnose::is_unsent(&status) {
                    true => broken.iter().for_each(|connection| client.connections.forget(connection)),
                    false => broken.iter().for_each(|connection| client.connections.leave(connection)),
                }
                Input::Failed { number }
            }
        };
        match lease.upgrade() {
            Some(lease) => lease.step(input),
            None => return,
        }
        next = numbers.recv().await;
    }
}

/// Whether the server itself says that there is no such lease.
fn is_verdict(status: &Status) -> bool {
    status.code() == Code::NotFound && std::error::Error::source(status).is_none()
}

async fn renew(client: &Client, stream: &mut Option<Open>, id: LeaseId) -> Result<u64, Status> {
    let request = LeaseKeepAliveRequest { id };
    let open = match stream {
        Some(open) => {
            if open.requests.send(request).await.is_err() {
                return Err(Status::unavailable("the stream is closed"));
            }
            open
        }
        None => {
            let (requests, outgoing) = mpsc::channel(1);
            requests.try_send(request).expect("a new channel has room for one");
            let give_up = Instant::now() + client.connections.settings().timeout;
            let connection = client.connections.connection(give_up).await;
            let connection = connection.map_err(|_| Status::unavailable("no server can be reached"))?;
            let mut service = LockServiceClient::new(connection.channel.clone());
            let opened = connection.listen(service.lease_keep_alive(ReceiverStream::new(outgoing))).await;
            let replies = opened.ok_or_else(silent)??.into_inner();
            stream.insert(Open { connection, requests, replies })
        }
    };
    loop {
        match open.connection.listen(open.replies.message()).await.ok_or_else(silent)?? {
            Some(reply) if reply.id == id => return Ok(u64::try_from(reply.ttl_ms).unwrap_or(0)),
            Some(_) => {}
            None => return Err(Status::unavailable("the stream has ended")),
        }
    }
}

fn silent() -> Status {
    Status::unavailable("the server says nothing any more")
}
