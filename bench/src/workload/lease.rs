//! Leases: granted and revoked, or renewed.

use bytes::Bytes;
use tenure_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse,
};

use crate::drive::Operation;
use crate::wire::{Connection, Failure, Method, Replies, Requests, decode, frame};

/// Longer than any run, so that no client has to renew beside its work.
const TTL_SECONDS: i64 = 3600;
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

pub async fn grant(connection: &Connection) -> Result<i64, Failure> {
    grant_for(connection, TTL_SECONDS).await
}

pub async fn grant_for(connection: &Connection, ttl_seconds: i64) -> Result<i64, Failure> {
    let granted: LeaseGrantResponse =
        connection.ask(GRANT, &LeaseGrantRequest { ttl: ttl_seconds, ..LeaseGrantRequest::default() }).await?;
    Ok(granted.id)
}

/// Best effort: a lease that cannot be revoked ends by itself.
pub async fn revoke(connection: &Connection, lease: i64) {
    let _ = connection.ask::<LeaseRevokeResponse>(REVOKE, &LeaseRevokeRequest { id: lease }).await;
}

/// One operation is a grant and the revoke of the same lease.
pub struct GrantAndRevoke {
    connection: Connection,
    grant: Method,
    revoke: Method,
    request: Bytes,
}

impl GrantAndRevoke {
    pub fn prepare(connection: Connection) -> GrantAndRevoke {
        let request = frame(&LeaseGrantRequest { ttl: TTL_SECONDS, ..LeaseGrantRequest::default() });
        GrantAndRevoke { grant: connection.method(GRANT), revoke: connection.method(REVOKE), connection, request }
    }
}

impl Operation for GrantAndRevoke {
    async fn once(&mut self) -> Result<(), Failure> {
        let granted: LeaseGrantResponse = decode(self.connection.call(&self.grant, self.request.clone()).await?)?;
        let revoke = frame(&LeaseRevokeRequest { id: granted.id });
        self.connection.call(&self.revoke, revoke).await.map(drop)
    }
}

/// One operation is a renewal and its answer, on a stream of this client's own.
pub struct KeepAlive {
    connection: Connection,
    lease: i64,
    request: Bytes,
    requests: Requests,
    replies: Replies,
}

impl KeepAlive {
    pub async fn prepare(connection: Connection) -> Result<KeepAlive, Failure> {
        let lease = grant(&connection).await?;
        let method = connection.method(KEEP_ALIVE);
        let (requests, replies) = connection.stream(&method).await?;
        let request = frame(&LeaseKeepAliveRequest { id: lease });
        Ok(KeepAlive { connection, lease, request, requests, replies })
    }
}

impl Operation for KeepAlive {
    async fn once(&mut self) -> Result<(), Failure> {
        self.requests.send(self.request.clone())?;
        let reply = self.replies.next().await?.ok_or_else(|| Failure::Wrong("the stream ended".to_owned()))?;
        let renewed: LeaseKeepAliveResponse = decode(reply)?;
        if renewed.id != self.lease || renewed.ttl <= 0 {
            return Err(Failure::Wrong(format!("lease {} renewed to {} s", renewed.id, renewed.ttl)));
        }
        Ok(())
    }

    async fn finish(self) {
        revoke(&self.connection, self.lease).await;
    }
}
