//! A session: one lease, kept alive, and the locks that are taken under it.
//!
//! To the server one lease is one owner: asking again with the same lease is answered with the same
//! place and the same token. So the session itself lets its callers take turns at a name, in the
//! order in which they came, and counts how often somebody has re-entered a lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_api::tenure::v1 as proto;
use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::Instant;
use tonic::Status;

use crate::call::Kind;
use crate::error::{Meaning, read_status};
use crate::guard::Place;
use crate::keeper::{HeldLease, Keeper};
use crate::lifecycle::{CancelAt, Cause};
use crate::lock::LockRequest;
use crate::requests::{Names, Ticket};
use crate::session_stream::{Granted, LockOrder, Order, Refused, UnlockOrder};
use crate::{Client, Deadline, Error, LeaseId, Mode, clock};

/// Long enough to outlive a new leader's election and a network that recovers.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);
/// Names are forgotten when nobody is at them, but not after each use.
const NAMES_KEPT: usize = 128;

/// How a session shall be; see [`Client::session`].
#[must_use = "nothing happens before it is opened"]
#[derive(Debug, Clone)]
pub struct SessionRequest {
    client: ClientHandle,
    ttl: Duration,
    client_id: String,
    cancel_at: CancelAt,
}

impl Client {
    /// A session of its own, for many locks at the cost of one lease.
    pub fn session(&self) -> SessionRequest {
        SessionRequest {
            client: ClientHandle(self.clone()),
            ttl: DEFAULT_TTL,
            client_id: default_client_id(),
            cancel_at: CancelAt::default(),
        }
    }
}

impl SessionRequest {
    /// How long the server keeps it without a renewal; 30 s unless told, 500 ms at least.
    pub fn ttl(mut self, ttl: Duration) -> SessionRequest {
        self.ttl = ttl;
        self
    }

    /// Who this is, for people to read; host and process unless told.
    pub fn client_id(mut self, client_id: impl Into<String>) -> SessionRequest {
        self.client_id = client_id.into();
        self
    }

    pub fn cancel_at(mut self, cancel_at: CancelAt) -> SessionRequest {
        self.cancel_at = cancel_at;
        self
    }

    pub async fn open(self) -> Result<Session, Error> {
        let give_up = Instant::now() + self.client.0.connections.settings().timeout;
        self.open_until(give_up).await
    }

    pub(crate) async fn open_until(self, give_up: Instant) -> Result<Session, Error> {
        let SessionRequest { client: ClientHandle(client), ttl, client_id, cancel_at } = self;
        // Sessions that the client keeps for its locks must not keep the client.
        let client = client.without_shared_sessions();
        let keeper = client.keeper()?;
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let request = proto::LeaseGrantRequest { ttl_ms, id: 0, client_id: client_id.clone() };
        let mut sent_ms = 0;
        let call = |channel| {
            sent_ms = clock::now_ms();
            let request = request.clone();
            async move { LockServiceClient::new(channel).lease_grant(request).await }
        };
        // Repeating it leaves at worst a lease behind that nobody knows, and that ends by itself.
        let kind = Kind { name: "lease grant", idempotent: true, unlimited: false };
        let granted = client.connections.call_until(kind, give_up, call).await?;
        let ttl_ms = u64::try_from(granted.ttl_ms).unwrap_or(0);
        let lease = HeldLease::keep(&keeper, granted.id, cancel_at, sent_ms, ttl_ms);
        let ttl = Duration::from_millis(ttl_ms);
        let failover_safe = granted.failover_safe;
        Ok(Session { inner: Arc::new(Inner { client, client_id, lease, ttl, failover_safe, names: Mutex::default() }) })
    }
}

/// A cheap handle; the lease is given back when the last one, and the last guard, is gone.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    client_id: String,
    lease: Arc<HeldLease>,
    ttl: Duration,
    failover_safe: bool,
    names: Mutex<BTreeMap<String, Name>>,
}

/// Who of this session is at a name.
#[derive(Default)]
struct Name {
    turn: Arc<tokio::sync::Mutex<()>>,
    held: Option<HeldHere>,
}

struct HeldHere {
    place: Weak<Place>,
    mode: Mode,
    owner: String,
    is_alone: bool,
}

/// What a session says to somebody who wants a name.
pub(crate) enum Entry {
    /// It is held here already, and may be shared.
    Join(Arc<Place>),
    /// It is this caller's turn to ask the server.
    Turn(Vec<OwnedMutexGuard<()>>),
    /// The same owner holds it in another way.
    Held(String),
}

impl Session {
    /// A lock under this session's lease.
    pub fn lock(&self, name: impl Into<String>) -> LockRequest {
        LockRequest::new(self.inner.client.clone(), Some(self.clone()), name.into())
    }

    pub fn lease(&self) -> LeaseId {
        self.inner.lease.id
    }

    /// Who this is, for people to read.
    pub fn client_id(&self) -> &str {
        &self.inner.client_id
    }

    /// As the server granted it.
    pub fn ttl(&self) -> Duration {
        self.inner.ttl
    }

    /// Whether the lease outlives the election of a new leader without a renewal.
    pub fn is_failover_safe(&self) -> bool {
        self.inner.failover_safe
    }

    pub fn deadline(&self) -> Deadline {
        self.inner.lease.deadline()
    }

    /// Waits until the lease must be taken for gone, and all its locks with it.
    pub async fn lost(&self) -> Cause {
        self.inner.lease.lost().await
    }

    /// Ends the session with all that it holds, at once.
    pub async fn close(self) -> Result<(), Error> {
        let closing = self.inner.begin_close();
        // The stream is gone if it was not open, and drops what was ordered.
        if closing.await.unwrap_or(false) {
            return Ok(());
        }
        match revoke(&self.inner.client, self.inner.lease.id).await {
            Ok(()) | Err(Error::LeaseNotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    pub(crate) fn held_lease(&self) -> &Arc<HeldLease> {
        &self.inner.lease
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        self.inner.lease.keeper()
    }

    /// Asks for a lock on the session's stream. The answer may be waited for as long as the session lasts.
    pub(crate) fn ask_for(
        &self,
        ticket: Ticket,
        request: proto::SessionLock,
        give_up: Option<Instant>,
    ) -> oneshot::Receiver<Result<Granted, Refused>> {
        let (answer, answered) = oneshot::channel();
        self.inner.lease.order(Order::Lock(LockOrder { ticket, request: Box::new(request), give_up, answer }));
        answered
    }

    /// Gives back what the lock request of this ticket has got, or gets, and then frees the turns. Its caller is gone
    /// and has not read the answer.
    pub(crate) fn abandon(&self, ticket: Ticket, turns: Vec<OwnedMutexGuard<()>>) {
        let owed = self.keeper().owed(turns);
        self.inner.lease.order(Order::Abandon { ticket, owed });
    }

    /// Gives locks back. False: they were not held any more.
    pub(crate) async fn unlock(&self, names: &Names, token: i64) -> Result<bool, Error> {
        let (answer, answered) = oneshot::channel();
        let (started, timeout) = (Instant::now(), self.inner.client.connections.settings().timeout);
        let unlock = UnlockOrder { ticket: next_ticket(), names: names.clone(), token, answer };
        self.inner.lease.order(Order::Unlock(unlock));
        let endpoint = || self.keeper().client().connections.current_address();
        match tokio::time::timeout(timeout, answered).await {
            Ok(Ok(Ok(released))) => Ok(released),
            Ok(Ok(Err(status))) => Err(self.read("unlock", &status, started.elapsed())),
            Ok(Err(_)) => Err(Error::LeaseNotFound),
            Err(_) => Err(Error::Timeout {
                endpoint: endpoint(),
                call: "unlock",
                waited: started.elapsed(),
                reason: "no member could be told yet".to_owned(),
                unknown: true,
            }),
        }
    }

    pub(crate) fn read(&self, call: &'static str, status: &Status, waited: Duration) -> Error {
        let endpoint = self.keeper().client().connections.current_address();
        match read_status(&endpoint, call, waited, status, true) {
            Meaning::Final(error) | Meaning::Passing(error) => error,
        }
    }

    /// Whether nobody is at any name.
    pub(crate) fn is_idle(&self) -> bool {
        self.names().values().all(|name| Arc::strong_count(&name.turn) == 1)
    }

    /// The turns at all names, if nobody is at any of them.
    pub(crate) fn try_enter(&self, names: &[String]) -> Option<Vec<OwnedMutexGuard<()>>> {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort();
        sorted.dedup();
        let mut table = self.names();
        if table.len() > NAMES_KEPT {
            table.retain(|_, name| Arc::strong_count(&name.turn) > 1);
        }
        let turn = |name: &String| table.entry(name.clone()).or_default().turn.clone().try_lock_owned().ok();
        sorted.into_iter().map(turn).collect()
    }

    /// Waits for this caller's turn at all names. They are taken in one order, so that callers of
    /// one session do not wait for each other in a circle.
    pub(crate) async fn enter(&self, names: &[String], mode: Mode, owner: &str, may_join: bool) -> Entry {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort();
        sorted.dedup();
        let mut turns = Vec::new();
        for name in sorted {
            let turn = {
                let mut table = self.names();
                if table.len() > NAMES_KEPT {
                    table.retain(|_, name| Arc::strong_count(&name.turn) > 1);
                }
                let entry = table.entry(name.clone()).or_default();
                if let Some(held) = &entry.held
                    && let Some(place) = held.place.upgrade()
                {
                    let same_owner = !owner.is_empty() && held.owner == owner;
                    // Readers do not pass somebody who waits here: the table and the holder have one handle each.
                    let may_share = same_owner || (mode == Mode::Shared && Arc::strong_count(&entry.turn) <= 2);
                    let is_the_same = held.mode == mode && held.is_alone && names.len() == 1;
                    if may_join && may_share && is_the_same && place.held.check().is_ok() {
                        return Entry::Join(place);
                    }
                    if same_owner {
                        return Entry::Held(name.clone());
                    }
                }
                entry.turn.clone()
            };
            turns.push(turn.lock_owned().await);
        }
        Entry::Turn(turns)
    }

    /// Others of this session may join from now on.
    pub(crate) fn entered(&self, place: &Arc<Place>, mode: Mode, owner: &str) {
        let mut table = self.names();
        let names = place.held.names();
        for name in names {
            let is_alone = names.len() == 1;
            let held = HeldHere { place: Arc::downgrade(place), mode, owner: owner.to_owned(), is_alone };
            table.entry(name.clone()).or_default().held = Some(held);
        }
    }

    /// Tells the server until it knows, or until the lease has ended by itself.
    pub(crate) async fn give_back(&self, names: &Names, token: i64) {
        while let Err(error) = self.unlock(names, token).await
            && error.is_passing()
            && self.inner.lease.state().lost.is_none()
        {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Name>> {
        self.inner.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Ends the session on this side, and asks the server over its stream to close it. The answer says whether the server
    /// has done so; without an answer there was no stream.
    fn begin_close(&self) -> oneshot::Receiver<bool> {
        let (closing, closed) = oneshot::channel();
        // The order comes before the end of the lease, which ends the stream without a word.
        self.lease.order(Order::Close(closing));
        self.lease.end(Cause::Released);
        closed
    }

    fn end(&self) {
        if self.lease.state().lost.is_some() {
            return;
        }
        let closing = self.begin_close();
        let (keeper, id) = (self.lease.keeper().clone(), self.lease.id);
        let client = keeper.client().clone();
        keeper.owe(async move {
            if !closing.await.unwrap_or(false) {
                // If it cannot be told, the lease ends by itself: nobody renews it.
                let _ = revoke(&client, id).await;
            }
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

async fn revoke(client: &Client, id: LeaseId) -> Result<(), Error> {
    let call =
        |channel| async move { LockServiceClient::new(channel).lease_revoke(proto::LeaseRevokeRequest { id }).await };
    let kind = Kind { name: "lease revoke", idempotent: true, unlimited: false };
    client.connections.call(kind, call).await.map(drop)
}

/// A ticket that no other order of this process has.
pub(crate) fn next_ticket() -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `host:process`, enough to find who it is.
pub(crate) fn default_client_id() -> String {
    let system = rustix::system::uname();
    format!("{}:{}", system.nodename().to_string_lossy(), std::process::id())
}

#[derive(Clone)]
struct ClientHandle(Client);

impl fmt::Debug for ClientHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.endpoints()).finish()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("lease", &format_args!("{:x}", self.lease())).finish()
    }
}
