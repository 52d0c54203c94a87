//! etcd's lock service: Lock and Unlock.
//!
//! etcd runs its client's recipe inside the server; here a lock is a command, and waiting for it is a
//! call that the replica answers when its turn comes. The keys are the same, so that whoever uses
//! the recipe stands in the same queue.

use std::sync::Arc;

use bytes::Bytes;
use tenure_api::v3lockpb::lock_server::Lock;
use tenure_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tenure_machine::{self as machine, Command, Delete, Keys, LeaseId, LockReply, Mode};
use tonic::{Request, Response, Status};

use super::errors::{self, within};
use super::{Shared, answer, authorize, lease};
use crate::member::{At, Locked};

/// Who brings no lease is given one that lasts so long, as by etcd.
const SESSION_TTL_MS: u64 = 60_000;

pub struct LockService(pub Arc<Shared>);

#[tonic::async_trait]
impl Lock for LockService {
    /// Returns when the lock is held. A call that is cancelled drops this future, and with it its
    /// place in the queue.
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        authorize("Lock", request.metadata())?;
        let LockRequest { name, lease } = request.into_inner();
        let lease = session(&self.0, lease).await?;
        let at = take_place(&self.0, Place { name, lease, value: Bytes::new(), overwrite: false }).await?;
        Ok(Response::new(LockResponse { header: self.0.header(&at), key: answer::bytes(&at.value.key) }))
    }

    /// Deleting the key is all there is to it.
    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        authorize("Unlock", request.metadata())?;
        let key = request.into_inner().key;
        if key.is_empty() {
            return Err(within(errors::EMPTY_KEY));
        }
        let delete = Delete { keys: Keys::One(key), prev_kv: false };
        let at = self.0.member.submit(Command::Delete(delete)).await.map_err(errors::failed_within)?;
        Ok(Response::new(UnlockResponse { header: self.0.header(&at) }))
    }
}

/// What the lock and the election service ask of a queue.
pub struct Place {
    pub name: Bytes,
    pub lease: LeaseId,
    pub value: Bytes,
    pub overwrite: bool,
}

/// Waits until the entry is the first of its queue.
pub async fn take_place(shared: &Shared, place: Place) -> Result<At<LockReply>, Status> {
    let Place { name, lease, value, overwrite } = place;
    let lock = Box::new(machine::Lock {
        name,
        lease,
        call: shared.member.draw_call(),
        mode: Mode::Exclusive,
        value,
        overwrite,
        ..Default::default()
    });
    let at = shared.member.lock(lock).await.map_err(errors::failed_within)?;
    let At { value, revision, term } = at;
    match value {
        Locked::Held(value) => Ok(At { value, revision, term }),
        Locked::Busy(busy) => unreachable!("a lock that waits was answered with {busy:?}"),
    }
}

/// The lease that was named, or a new one if none was.
pub async fn session(shared: &Shared, lease: LeaseId) -> Result<LeaseId, Status> {
    if lease != 0 {
        return Ok(lease);
    }
    let lease = shared.member.draw_lease_id();
    lease::grant(shared, lease, SESSION_TTL_MS).await?;
    Ok(lease)
}
