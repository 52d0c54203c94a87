//! Locks over etcd's lock service: the bare calls.
//!
//! Whoever uses these keeps the lease alive and stops working before it ends. The guard of the
//! native lock service does both by itself.

use bytes::Bytes;
use tenure_api::v3lockpb::lock_client::LockClient;
use tenure_api::v3lockpb::{LockRequest, UnlockRequest};

use crate::call::Kind;
use crate::{Client, Error, Header, LeaseId};

/// A lock that was granted: its key exists for as long as it is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKey {
    pub key: Bytes,
    pub header: Header,
}

impl Client {
    /// Waits until the lock is granted to this lease. Dropping the future leaves the queue, unless the grant is on its
    /// way already: then the key stays until it is unlocked or its lease ends. [`Client::lock`] has no such gap.
    ///
    /// Asking again with the same lease gives the same key. A lost connection is an error: the
    /// server takes the waiter out of the queue, so the call would have to start at its end.
    pub async fn etcd_lock(&self, name: impl Into<Bytes>, lease: LeaseId) -> Result<HeldKey, Error> {
        let request = LockRequest { name: name.into(), lease };
        let call = |channel| {
            let request = request.clone();
            async move { LockClient::new(channel).lock(request).await }
        };
        let locked = self.connections.call(Kind::waiting("lock"), call).await?;
        Ok(HeldKey { key: locked.key, header: locked.header.into() })
    }

    /// Gives back a lock of [`Client::etcd_lock`].
    pub async fn etcd_unlock(&self, key: impl Into<Bytes>) -> Result<Header, Error> {
        let request = UnlockRequest { key: key.into() };
        let call = |channel| {
            let request = request.clone();
            async move { LockClient::new(channel).unlock(request).await }
        };
        Ok(self.connections.call(Kind::write("unlock"), call).await?.header.into())
    }
}
