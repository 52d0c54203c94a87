//! Lock and unlock over Tenure's own lock service, one call each: what a session is measured against.

use bytes::Bytes;
use tenure_api::tenure::v1::{LockRequest, LockResponse, UnlockRequest};

use super::lease;
use crate::drive::Operation;
use crate::wire::{Connection, Failure, Method, decode, frame};

pub struct Client {
    connection: Connection,
    lease: i64,
    lock: Method,
    unlock: Method,
    name: String,
    request: Bytes,
}

impl Client {
    pub async fn prepare(connection: Connection, name: String) -> Result<Client, Failure> {
        let lease_id = lease::grant(&connection).await?;
        Ok(Client {
            lease: lease_id,
            lock: connection.method("/tenure.v1.LockService/Lock"),
            unlock: connection.method("/tenure.v1.LockService/Unlock"),
            request: frame(&LockRequest { name: name.clone(), lease_id, ..LockRequest::default() }),
            name,
            connection,
        })
    }
}

impl Operation for Client {
    async fn once(&mut self) -> Result<(), Failure> {
        let locked: LockResponse = decode(self.connection.call(&self.lock, self.request.clone()).await?)?;
        if !locked.acquired {
            return Err(Failure::Wrong(format!("{} was not granted", self.name)));
        }
        let fencing_token = locked.fencing_token;
        let release = UnlockRequest { name: self.name.clone(), fencing_token, ..UnlockRequest::default() };
        self.connection.call(&self.unlock, frame(&release)).await.map(drop)
    }

    async fn finish(self) {
        lease::revoke(&self.connection, self.lease).await;
    }
}
