//! Lock and unlock over etcd's lock service, with a lease for each client.
//!
//! Alone on its name, a client measures what a lock costs; together on one name, clients measure
//! hand-overs: every operation then is one client's turn, from asking to having given back.

use bytes::Bytes;
use tenure_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest};

use super::lease;
use crate::drive::Operation;
use crate::wire::{Connection, Failure, Method, decode, frame};

pub struct Client {
    connection: Connection,
    lease: i64,
    lock: Method,
    unlock: Method,
    request: Bytes,
    /// With one lease and one name the key is always the same, so this is encoded once, too.
    release: Option<(Bytes, Bytes)>,
}

impl Client {
    pub async fn prepare(connection: Connection, name: String) -> Result<Client, Failure> {
        let lease = lease::grant(&connection).await?;
        Ok(Client {
            lease,
            lock: connection.method("/v3lockpb.Lock/Lock"),
            unlock: connection.method("/v3lockpb.Lock/Unlock"),
            request: frame(&LockRequest { name: name.into(), lease }),
            connection,
            release: None,
        })
    }
}

impl Operation for Client {
    async fn once(&mut self) -> Result<(), Failure> {
        let locked: LockResponse = decode(self.connection.call(&self.lock, self.request.clone()).await?)?;
        let release = match &self.release {
            Some((key, release)) if *key == locked.key => release.clone(),
            _ => {
                let release = frame(&UnlockRequest { key: locked.key.clone() });
                self.release.insert((locked.key, release)).1.clone()
            }
        };
        self.connection.call(&self.unlock, release).await.map(drop)
    }

    async fn finish(self) {
        lease::revoke(&self.connection, self.lease).await;
    }
}
