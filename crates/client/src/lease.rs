//! Leases: granted for a time, renewed, revoked; keys bound to one end with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_api::etcdserverpb as proto;
use tenure_api::etcdserverpb::lease_client::LeaseClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::call::Kind;
use crate::connection::Connection;
use crate::timed_channel::TimedChannel;
use crate::{Client, Error};

/// Names a lease; people see it in hexadecimal.
pub type LeaseId = i64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    /// As the server granted it: it may have raised what was asked for.
    pub ttl: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseTimeToLive {
    pub remaining: Duration,
    pub granted: Duration,
    pub keys: Vec<Bytes>,
}

impl Client {
    /// Grants a lease. `id` 0: the server picks one. Parts of a second are rounded up.
    pub async fn grant_lease(&self, ttl: Duration, id: LeaseId) -> Result<Lease, Error> {
        let request = proto::LeaseGrantRequest { ttl: whole_seconds(ttl), id };
        let call = |channel| async move { LeaseClient::new(channel).lease_grant(request).await };
        let granted = self.connections.call(Kind::write("lease grant"), call).await?;
        match granted.error.is_empty() {
            true => Ok(Lease { id: granted.id, ttl: seconds(granted.ttl) }),
            false => Err(Error::Refused { code: tonic::Code::Unknown, message: granted.error }),
        }
    }

    /// Ends a lease and deletes its keys.
    pub async fn revoke_lease(&self, id: LeaseId) -> Result<(), Error> {
        let request = proto::LeaseRevokeRequest { id };
        let call = |channel| async move { LeaseClient::new(channel).lease_revoke(request).await };
        self.connections.call(Kind::write("lease revoke"), call).await.map(drop)
    }

    /// Renewals of one lease. Nothing is sent before [`KeepAlive::renew`].
    pub fn keep_alive(&self, id: LeaseId) -> KeepAlive {
        KeepAlive { client: self.clone(), id, stream: None }
    }

    pub async fn lease_time_to_live(&self, id: LeaseId, keys: bool) -> Result<LeaseTimeToLive, Error> {
        let request = proto::LeaseTimeToLiveRequest { id, keys };
        let call = |channel| async move {
            LeaseClient::new(channel).max_decoding_message_size(usize::MAX).lease_time_to_live(request).await
        };
        let found = self.connections.call(Kind::read("lease time to live"), call).await?;
        match found.ttl {
            ..0 => Err(Error::LeaseNotFound),
            ttl => {
                Ok(LeaseTimeToLive { remaining: seconds(ttl), granted: seconds(found.granted_ttl), keys: found.keys })
            }
        }
    }

    pub async fn leases(&self) -> Result<Vec<LeaseId>, Error> {
        let call = |channel: TimedChannel| async move {
            let mut client = LeaseClient::new(channel).max_decoding_message_size(usize::MAX);
            client.lease_leases(proto::LeaseLeasesRequest {}).await
        };
        let found = self.connections.call(Kind::read("lease list"), call).await?;
        Ok(found.leases.into_iter().map(|lease| lease.id).collect())
    }
}

/// Renews one lease over a stream that is opened again when it breaks.
pub struct KeepAlive {
    client: Client,
    id: LeaseId,
    stream: Option<RenewalStream>,
}

struct RenewalStream {
    connection: Arc<Connection>,
    requests: mpsc::Sender<proto::LeaseKeepAliveRequest>,
    replies: Streaming<proto::LeaseKeepAliveResponse>,
}

impl KeepAlive {
    /// Renews the lease now; gives the time it has from here on.
    pub async fn renew(&mut self) -> Result<Duration, Error> {
        let timeout = self.client.connections.settings().timeout;
        let started = tokio::time::Instant::now();
        let mut last = None;
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            match tokio::time::timeout(left, self.renew_once()).await {
                Ok(Ok(ttl)) => return Ok(ttl),
                Ok(Err(Renewal::Ended(error))) => return Err(error),
                Ok(Err(Renewal::Broken(error))) => last = Some(error),
                Err(_) => {
                    let silent = || Error::Timeout {
                        endpoint: self.client.connections.current_address(),
                        call: "lease keep-alive",
                        waited: started.elapsed(),
                        reason: "the renewal was sent and not answered".to_owned(),
                        unknown: false,
                    };
                    let error = last.take().unwrap_or_else(silent);
                    self.stream = None;
                    return Err(error);
                }
            }
            self.stream = None;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn renew_once(&mut self) -> Result<Duration, Renewal> {
        let request = proto::LeaseKeepAliveRequest { id: self.id };
        let started = tokio::time::Instant::now();
        let stream = match &mut self.stream {
            Some(stream) => {
                if stream.requests.send(request).await.is_err() {
                    self.stream = None;
                    return Box::pin(self.renew_once()).await;
                }
                stream
            }
            // The first request goes out with the stream: servers answer the opening with the first reply.
            None => {
                let opened = open(&self.client, request).await.map_err(Renewal::Ended)?;
                self.stream.insert(opened)
            }
        };
        loop {
            let connections = &self.client.connections;
            let reply = match stream.connection.listen(stream.replies.message()).await {
                Some(Ok(Some(reply))) => reply,
                None => {
                    let silence = connections.judge_silence(&stream.connection, KIND, started.elapsed());
                    return Err(Renewal::Broken(silence));
                }
                Some(Ok(None)) => {
                    return Err(Renewal::Broken(Error::Lost {
                        endpoint: stream.connection.address.text.clone(),
                        call: "lease keep-alive",
                        cause: crate::Cause::Closed,
                        unknown: false,
                    }));
                }
                Some(Err(status)) => {
                    let judged = connections.judge_stream(&stream.connection, KIND, &status);
                    return Err(judged.map_or_else(Renewal::Ended, Renewal::Broken));
                }
            };
            match reply.ttl {
                _ if reply.id != self.id => continue,
                ..=0 => return Err(Renewal::Ended(Error::LeaseNotFound)),
                ttl => return Ok(seconds(ttl)),
            }
        }
    }
}

const KIND: Kind = Kind { name: "lease keep-alive", idempotent: true, unlimited: false };

enum Renewal {
    Ended(Error),
    Broken(Error),
}

async fn open(client: &Client, request: proto::LeaseKeepAliveRequest) -> Result<RenewalStream, Error> {
    let mut sender = None;
    let call = |channel| {
        let (requests, outgoing) = mpsc::channel(1);
        requests.try_send(request).expect("a new channel has room for one");
        sender = Some(requests);
        async move { LeaseClient::new(channel).lease_keep_alive(ReceiverStream::new(outgoing)).await }
    };
    let (connection, replies) = client.connections.call_somewhere(KIND, call).await?;
    let requests = sender.expect("a call that succeeded was made");
    Ok(RenewalStream { connection, requests, replies })
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds.max(0) as u64)
}

fn whole_seconds(time: Duration) -> i64 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_second_are_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(500)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(10)), 10);
        assert_eq!(whole_seconds(Duration::from_millis(10_001)), 11);
        assert_eq!(whole_seconds(Duration::MAX), i64::MAX);
    }
}
