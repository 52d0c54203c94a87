//! Meeting at a barrier: nobody goes on before all are there.

use std::time::Duration;

use bytes::Bytes;

use crate::lifecycle::CancelAt;
use crate::lock::LockRequest;
use crate::{Client, LockError, LockGuard, Mode};

/// What is asked for; see [`Client::barrier`].
#[must_use = "nothing happens before it is passed"]
pub struct BarrierRequest(LockRequest);

impl Client {
    /// A place before a barrier, with a lease of its own: each call is one of the `parties`, and all
    /// of them must name the same number. Waits for the others, as long as it takes, unless told
    /// otherwise.
    pub fn barrier(&self, name: impl Into<String>, parties: u32) -> BarrierRequest {
        BarrierRequest(LockRequest::new(self.clone(), None, name.into()).mode(Mode::Barrier { parties }))
    }
}

impl BarrierRequest {
    /// How long the server keeps the place without a renewal; 30 s unless told, 500 ms at least.
    pub fn ttl(self, ttl: Duration) -> BarrierRequest {
        BarrierRequest(self.0.ttl(ttl))
    }

    /// Wait for so long at most.
    pub fn wait(self, time: Duration) -> BarrierRequest {
        BarrierRequest(self.0.wait(time))
    }

    /// Do not wait at all: pass only as the last of the round.
    pub fn try_once(self) -> BarrierRequest {
        BarrierRequest(self.0.try_once())
    }

    /// Who stands there, for people to read; host and process unless told.
    pub fn holder(self, holder: impl Into<String>) -> BarrierRequest {
        BarrierRequest(self.0.holder(holder))
    }

    /// For people to read.
    pub fn metadata(self, metadata: impl Into<Bytes>) -> BarrierRequest {
        BarrierRequest(self.0.metadata(metadata))
    }

    /// When work is cancelled that the server does not confirm any more.
    pub fn cancel_at(self, cancel_at: CancelAt) -> BarrierRequest {
        BarrierRequest(self.0.cancel_at(cancel_at))
    }

    /// Waits until all parties are there. Dropping the future leaves: it does not count any more.
    ///
    /// The next round can begin when all of this one have released or dropped their guards. Its
    /// [`slot`](crate::Held::slot) tells how many of the round came before.
    pub async fn pass(self) -> Result<LockGuard, LockError> {
        self.0.acquire().await
    }
}
