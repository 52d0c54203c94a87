//! What one client has to do with one lock on one connection.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_machine::{LeaseId, Revision};
use tenure_replica::CallId;
use tokio::time::Instant;

use super::claims::Pair;
use super::message::{Request, RequestId};

/// Counts up over the connection: answers that come late for a place that is gone find nothing.
pub type PlaceId = u64;

pub struct Place {
    pub pair: Pair,
    pub lease: LeaseId,
    /// What an older connection still has under way is void: see [`tenure_machine::Command::ResumeSession`].
    pub epoch: u64,
    pub ttl_ms: u64,
    /// The entry was there before this connection.
    pub is_adopted: bool,
    /// When it stops to wait for its turn.
    pub give_up_at: Option<Instant>,
    /// How often the way from the lease to the queue was begun.
    pub attempts: u32,
    /// Events go to a client that gave one.
    pub request_id: Option<RequestId>,
    /// What the place was made for.
    pub first: Request,
    /// Requests that came while it could not be said yet what they mean.
    pub deferred: VecDeque<Request>,
    pub stage: Stage,
    pub due: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Another connection spoke for this client a moment ago.
    Claiming,
    /// The lease is being granted, or found.
    Entering,
    /// The queue was asked for a place.
    Asking { call: CallId },
    /// The connection keeps the lease alive.
    Queued { call: CallId },
    /// Granted; its full time begins before it is told.
    Confirming { token: Revision },
    /// Nothing but a renewal keeps the lease alive.
    Held { token: Revision, renewed_at: Instant, is_renewing: bool },
    /// It is being given back.
    Releasing,
}

impl Place {
    pub fn new(request: Request) -> Place {
        Place {
            lease: request.pair.lease(),
            pair: request.pair.clone(),
            epoch: 0,
            ttl_ms: request.ttl_ms.unwrap_or(0),
            is_adopted: false,
            give_up_at: request.timeout_ms.map(|timeout_ms| Instant::now() + Duration::from_millis(timeout_ms)),
            attempts: 0,
            request_id: request.id.clone(),
            first: request,
            deferred: VecDeque::new(),
            stage: Stage::Entering,
            due: None,
        }
    }

    /// Whether it can be said now what a request for it means: they are taken one at a time.
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Queued { .. } | Stage::Held { is_renewing: false, .. })
    }

    /// While it waits: when there is something to do, at `at` at the latest.
    pub fn due_by(&self, at: Instant) -> Instant {
        self.give_up_at.map_or(at, |give_up_at| give_up_at.min(at))
    }

    /// Once granted.
    pub fn token(&self) -> Option<Revision> {
        match self.stage {
            Stage::Confirming { token } | Stage::Held { token, .. } => Some(token),
            _ => None,
        }
    }

    /// When the renewal that the server confirmed last was sent.
    pub fn renewed_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Held { renewed_at, .. } => Some(renewed_at),
            _ => None,
        }
    }

    /// A renewal in time leaves two more tries.
    pub fn third(&self) -> Duration {
        Duration::from_millis(self.ttl_ms / 3)
    }
}
