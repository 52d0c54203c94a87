//! A lock that is held, and the promise that comes with it: work inside [`LockGuard::run`], and work that asks
//! [`Held::check`] before each effect, has stopped before the server can give the lock to another holder, through
//! partitions, pauses of the process and suspended machines.
//!
//! The guard cannot stop work that blocks without asking, and it cannot see that a host has paused its virtual machine.
//! That is what the token is for: a storage that remembers the highest token it has seen refuses the late write.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tenure_api::tenure::v1 as proto;
use tokio::sync::{OwnedMutexGuard, watch};

use crate::keeper::HeldLease;
use crate::lifecycle::Cause;
use crate::requests::Names;
use crate::session::Session;
use crate::session_stream::{Granted, names_of};
use crate::shared_sessions::SharedSessions;
use crate::signed::Signatures;
use crate::{Client, Deadline, Error, LeaseId, LockError};

/// A lock is not held any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the lock {name} (token {token}) is not held any more: {cause}. Stop what it protects; acquire it again to go on"
)]
pub struct Lost {
    pub name: String,
    pub token: i64,
    pub cause: Cause,
}

/// What is known of a lock that was granted. Clones do not keep it held: only its guard does.
#[derive(Clone)]
pub struct Held {
    grant: Arc<Grant>,
}

struct Grant {
    names: Names,
    key: String,
    token: i64,
    slot: u32,
    holder: String,
    signatures: Signatures,
    lease: Arc<HeldLease>,
    ttl: Duration,
    client: Client,
    /// Set when this lock ends and its lease does not.
    ended: Arc<watch::Sender<Option<Cause>>>,
}

impl Held {
    /// Asked for at `asked_ms`, of the clock that counts suspend.
    pub(crate) fn new(asked: &proto::SessionLock, asked_ms: u64, granted: Granted, session: &Session) -> Held {
        let Granted { token, slot, signature, ended } = granted;
        let (lease, ttl, client) = (session.held_lease().clone(), session.ttl(), session.client().clone());
        let names = names_of(asked);
        let (key, holder) = (format!("{}/{:x}", asked.name, lease.id), asked.holder_id.clone());
        let signatures = Signatures::of_grant(&asked.name, signature, asked_ms);
        Held { grant: Arc::new(Grant { names, key, token, slot, holder, signatures, lease, ttl, client, ended }) }
    }

    /// The name of the lock; of several taken together, the first.
    pub fn name(&self) -> &str {
        &self.grant.names[0]
    }

    pub fn names(&self) -> &[String] {
        &self.grant.names
    }

    /// The fencing token. It rises from holder to holder of one lock; tokens of different locks cannot be compared. Send
    /// it with every write to the storage that the lock protects.
    pub fn token(&self) -> i64 {
        self.grant.token
    }

    /// The key that exists for as long as the lock is held, created at the revision that is the
    /// token; of several locks taken together, that of the first. For transactions to compare.
    pub fn key(&self) -> &str {
        &self.grant.key
    }

    pub fn lease(&self) -> LeaseId {
        self.grant.lease.id
    }

    /// Until when the lock is certainly held, if nothing is heard from the server any more.
    pub fn deadline(&self) -> Deadline {
        self.grant.lease.deadline()
    }

    /// To be asked before each effect that the lock protects. Reads the clock, not the network.
    pub fn check(&self) -> Result<(), Lost> {
        let state = self.grant.lease.state();
        let cause = state.lost.or(*self.grant.ended.borrow());
        match cause.or(state.cancelled.then(|| self.unconfirmed())) {
            Some(cause) => Err(self.because(cause)),
            None => Ok(()),
        }
    }

    /// Whether half of the TTL has passed without a confirmation by the server.
    pub fn is_warned(&self) -> bool {
        self.grant.lease.state().warned
    }

    /// Waits until half of the TTL has passed without a confirmation, or the lock is lost.
    pub async fn warned(&self) {
        self.until(|held| held.is_warned() || held.check().is_err()).await;
    }

    /// Waits until work under the lock has to stop: at the deadline, or before it as was asked for.
    pub async fn cancelled(&self) -> Lost {
        self.until(|held| held.check().is_err()).await;
        self.check().expect_err("it was cancelled just now, and that is final")
    }

    /// Waits until a renewal has moved the deadline beyond this one; for ever, once the lock is lost.
    pub async fn renewed_after(&self, deadline: Deadline) -> Deadline {
        self.until(|held| held.deadline() > deadline).await;
        self.deadline()
    }

    /// Of a semaphore, which of its slots, from 0 on. What a slot guards is fenced by name and slot.
    /// Of a barrier, how many of the round came before.
    pub fn slot(&self) -> u32 {
        self.grant.slot
    }

    /// Who holds it, as others read it.
    pub fn holder(&self) -> &str {
        &self.grant.holder
    }

    /// The last signature that the cluster gave for the grant, without asking; empty if it signs none. Good for one
    /// TTL at most after it was made: a client that holds for longer asks for [`Held::signed_token`].
    pub fn signature(&self) -> String {
        self.grant.signatures.newest(self.name())
    }

    pub(crate) fn signatures(&self) -> &Signatures {
        &self.grant.signatures
    }

    pub(crate) fn ttl_ms(&self) -> u64 {
        self.grant.ttl.as_millis() as u64
    }

    pub(crate) fn client(&self) -> &Client {
        &self.grant.client
    }

    /// What the server says of a holder that it does not know as such.
    pub(crate) fn judge_refusal(&self, error: Error) -> LockError {
        match error {
            Error::LeaseNotFound => self.because(Cause::LeaseEnded).into(),
            Error::NotTheHolder => self.because(self.check().err().map_or(Cause::Taken, |lost| lost.cause)).into(),
            error => error.into(),
        }
    }

    /// Waits until the lock must be taken for gone.
    pub async fn lost(&self) -> Lost {
        let cause = |held: &Held| held.grant.lease.state().lost.or(*held.grant.ended.borrow());
        self.until(|held| cause(held).is_some()).await;
        self.because(cause(self).expect("it was lost just now, and that is final"))
    }

    async fn until(&self, done: impl Fn(&Held) -> bool) {
        let (mut state, mut ended) = (self.grant.lease.subscribe(), self.grant.ended.subscribe());
        while !done(self) {
            // Both senders live as long as this does.
            tokio::select! {
                _ = state.changed() => {}
                _ = ended.changed() => {}
            }
        }
    }

    fn unconfirmed(&self) -> Cause {
        Cause::Unconfirmed { for_ms: self.grant.lease.unconfirmed_ms() }
    }

    fn because(&self, cause: Cause) -> Lost {
        Lost { name: self.name().to_owned(), token: self.token(), cause }
    }

    /// The first end is the one that is told.
    pub(crate) fn end(&self, cause: Cause) {
        self.grant.ended.send_if_modified(|ended| match ended {
            None => {
                *ended = Some(cause);
                true
            }
            Some(_) => false,
        });
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Held").field("names", &self.names()).field("token", &self.token()).finish()
    }
}

/// What the last of the guards that share it gives back.
pub(crate) struct Place {
    pub held: Held,
    pub session: Session,
    /// Where the session comes from, if not from the user.
    pub shared_sessions: Option<Weak<SharedSessions>>,
    /// The turns of this session at the names: whoever is next may ask the server only then.
    pub turns: Vec<OwnedMutexGuard<()>>,
    pub given_back: bool,
}

impl Place {
    async fn give_back(&mut self) -> Result<(), LockError> {
        let before = self.held.check();
        self.held.end(Cause::Released);
        let released = self.session.unlock(&self.held.grant.names, self.held.token()).await;
        // What could not be told now is told in the background; see `drop`.
        self.given_back = !matches!(&released, Err(error) if error.is_passing());
        match released {
            Ok(true) => Ok(()),
            // "Not the holder": somebody else has it by now.
            Ok(false) | Err(Error::LeaseNotFound | Error::NotTheHolder) => Err(match before {
                Err(lost) => lost.into(),
                Ok(()) => self.held.because(self.held.grant.lease.state().lost.unwrap_or(Cause::Taken)).into(),
            }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.end(Cause::Released);
        let (session, held, turns) = (self.session.clone(), self.held.clone(), std::mem::take(&mut self.turns));
        let shared_sessions = self.shared_sessions.take();
        let return_session = move |session: &Session| {
            drop(turns);
            if let Some(shared_sessions) = shared_sessions.and_then(|shared_sessions| shared_sessions.upgrade()) {
                shared_sessions.given_back(session);
            }
        };
        if self.given_back {
            return return_session(&session);
        }
        let keeper = session.keeper().clone();
        keeper.owe(async move {
            session.give_back(&held.grant.names, held.token()).await;
            return_session(&session);
        });
    }
}

/// Holds a lock until it is released or dropped.
#[must_use = "a guard that is dropped gives its lock back"]
pub struct LockGuard {
    place: Arc<Place>,
}

impl LockGuard {
    pub(crate) fn new(place: Arc<Place>) -> LockGuard {
        LockGuard { place }
    }

    /// A handle to ask with, for work that is done elsewhere.
    pub fn held(&self) -> &Held {
        &self.place.held
    }

    /// Whether the lease outlives the election of a new leader without a renewal.
    pub fn is_failover_safe(&self) -> bool {
        self.place.session.is_failover_safe()
    }

    /// Works under the lock. The work is dropped where it waits as soon as the lock might be lost;
    /// Ok means that the lock was held from the beginning of the work to its end.
    pub async fn run<Output>(&self, work: impl AsyncFnOnce(&Held) -> Output) -> Result<Output, Lost> {
        let held = self.held();
        let (mut cancelled, mut work) = (pin!(held.cancelled()), pin!(work(held)));
        let output = poll_fn(|context| {
            // After a pause the work may be woken before anybody has looked at the clock.
            held.check()?;
            if let Poll::Ready(lost) = cancelled.as_mut().poll(context) {
                return Poll::Ready(Err(lost));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await?;
        held.check().map(|()| output)
    }

    /// Gives the lock back; as the last of several guards that share it. An error tells that it had
    /// been lost before, or that the server cannot be told now: then it is told in the background,
    /// and the lease ends in any case.
    pub async fn release(self) -> Result<(), LockError> {
        match Arc::into_inner(self.place) {
            Some(mut place) => place.give_back().await,
            None => Ok(()),
        }
    }
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        self.held()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("LockGuard").field(self.held()).finish()
    }
}
