//! Asking for a lock: what is asked for, and what comes of it.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tenure_api::tenure::v1 as proto;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tonic::Code;

use crate::describe::time;
use crate::guard::{Held, LockGuard, Lost, Place};
use crate::lifecycle::{CancelAt, Cause};
use crate::requests::Ticket;
use crate::session::{DEFAULT_TTL, Entry, Session, next_ticket};
use crate::session_stream::{Granted, Refused};
use crate::shared_sessions::{SessionKind, SharedSessions};
use crate::{Client, Error, Mode, Waiter, clock};

/// How much longer than the caller wants to wait the answer may take.
const SLACK: Duration = Duration::from_secs(1);

/// Why a lock was not acquired, or could not be given back.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another holder has it, and the request does not wait.
    #[error("{name} is busy: {}; wait for it, or see `tenure why {name}`", holder_text(holder, *since, *waiting))]
    Busy { name: String, holder: String, since: Option<SystemTime>, waiting: u64 },
    /// The wait is over, and the lock was not granted. `unanswered` says why if the server could not be asked;
    /// otherwise another holder had it.
    #[error("{}", timeout_text(name, *waited, &holder_text(holder, *since, *waiting), unanswered.as_deref()))]
    Timeout {
        name: String,
        waited: Duration,
        holder: String,
        since: Option<SystemTime>,
        waiting: u64,
        unanswered: Option<Box<Error>>,
    },
    /// Requests that name an owner would wait for each other in a circle.
    #[error(
        "waiting for {name} would never end, a deadlock: {cycle}. Give back what is held and begin again; to take several locks at once, name them in one request"
    )]
    Deadlock { name: String, cycle: String },
    /// The same session holds it in another way.
    #[error("{name} is held by this session already; give it back first")]
    AlreadyHeld { name: String },
    #[error("this cannot be asked for: {reason}")]
    Unusable { reason: String },
    /// The place in the queue is gone with its lease.
    #[error("the wait for {name} is over, its lease has ended: {cause}; ask again")]
    LeaseLost { name: String, cause: Cause },
    #[error(
        "{name} is held, but nobody signs it: start all members with --signing-key; shared locks and barriers are never signed"
    )]
    Unsigned { name: String },
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error(transparent)]
    Call(#[from] Error),
}

fn timeout_text(name: &str, waited: Duration, holder: &str, unanswered: Option<&Error>) -> String {
    let waited = match waited.as_millis() {
        ms @ 0..100 => format!("{ms} ms"),
        _ => format!("{:.1} s", waited.as_secs_f64()),
    };
    match unanswered {
        Some(error) => format!("{name} was not granted within {waited}, because the server did not answer: {error}"),
        None => format!("{name} was not free within {waited}: {holder}; wait longer, or see `tenure why {name}`"),
    }
}

fn holder_text(holder: &str, since: Option<SystemTime>, waiting: u64) -> String {
    // Those who wait at a barrier hold nothing yet.
    if holder.is_empty() && since.is_none() {
        return match waiting {
            0 => "nobody has it now".to_owned(),
            1 => "nobody has it yet, and one waits".to_owned(),
            _ => format!("nobody has it yet, and {waiting} wait"),
        };
    }
    let holder = if holder.is_empty() { "somebody" } else { holder };
    let held = since.and_then(|since| since.elapsed().ok());
    let held = held.map_or_else(String::new, |held| format!(" for {} s", held.as_secs()));
    match waiting {
        0 => format!("{holder} has held it{held}"),
        1 => format!("{holder} has held it{held}, and one waits"),
        _ => format!("{holder} has held it{held}, and {waiting} wait"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    Unlimited,
    AtMost(Duration),
    None,
}

/// What is asked for; see [`Client::lock`] and [`Session::lock`].
#[must_use = "nothing happens before it is acquired"]
pub struct LockRequest {
    client: Client,
    session: Option<Session>,
    names: Vec<String>,
    ttl: Duration,
    cancel_at: CancelAt,
    patience: Patience,
    mode: Mode,
    owner: String,
    holder: String,
    metadata: Bytes,
    /// Of a candidate in an election.
    value: Option<Bytes>,
}

impl Client {
    /// A lock with a lease of its own. Waits for its turn, as long as it takes, unless told otherwise.
    pub fn lock(&self, name: impl Into<String>) -> LockRequest {
        LockRequest::new(self.clone(), None, name.into())
    }
}

impl LockRequest {
    pub(crate) fn new(client: Client, session: Option<Session>, name: String) -> LockRequest {
        LockRequest {
            client,
            session,
            names: vec![name],
            ttl: DEFAULT_TTL,
            cancel_at: CancelAt::default(),
            patience: Patience::Unlimited,
            mode: Mode::Exclusive,
            owner: String::new(),
            holder: String::new(),
            metadata: Bytes::new(),
            value: None,
        }
    }

    pub(crate) fn value(mut self, value: Bytes) -> LockRequest {
        self.value = Some(value);
        self
    }

    /// How long the server keeps the lock without a renewal; 30 s unless told, 500 ms at least.
    /// Under a session it is the session's that counts.
    pub fn ttl(mut self, ttl: Duration) -> LockRequest {
        self.ttl = ttl;
        self
    }

    /// Waits for at most this long, also if the server cannot be asked.
    pub fn wait(mut self, time: Duration) -> LockRequest {
        self.patience = Patience::AtMost(time);
        self
    }

    /// Does not wait for another holder.
    pub fn try_once(mut self) -> LockRequest {
        self.patience = Patience::None;
        self
    }

    /// Together with others who ask for the same.
    pub fn shared(mut self) -> LockRequest {
        self.mode = Mode::Shared;
        self
    }

    /// One of so many slots. Within one session a name gives one slot.
    pub fn slots(mut self, slots: u32) -> LockRequest {
        self.mode = Mode::Semaphore { slots };
        self
    }

    pub(crate) fn mode(mut self, mode: Mode) -> LockRequest {
        self.mode = mode;
        self
    }

    /// And this one: all are granted together or none is, with one token.
    pub fn also(mut self, name: impl Into<String>) -> LockRequest {
        self.names.push(name.into());
        self
    }

    /// Names the sequential flow of work that asks. Only those who do are protected from deadlocks,
    /// and within a session the same owner may enter a lock again.
    pub fn owner(mut self, owner: impl Into<String>) -> LockRequest {
        self.owner = owner.into();
        self
    }

    /// Who holds it, for people to read; host and process unless told.
    pub fn holder(mut self, holder: impl Into<String>) -> LockRequest {
        self.holder = holder.into();
        self
    }

    /// For people to read.
    pub fn metadata(mut self, metadata: impl Into<Bytes>) -> LockRequest {
        self.metadata = metadata.into();
        self
    }

    /// When work is cancelled that the server does not confirm any more. Under a session it is the
    /// session's that counts.
    pub fn cancel_at(mut self, cancel_at: CancelAt) -> LockRequest {
        self.cancel_at = cancel_at;
        self
    }

    /// Waits for the lock. Dropping the future leaves the queue, or gives the lock back if it was granted meanwhile.
    pub async fn acquire(self) -> Result<LockGuard, LockError> {
        self.check()?;
        let started = Instant::now();
        let (session, turns) = match &self.session {
            None => {
                let opening = self.client.shared_session(self.session_kind(), &self.names, self.answer_by(started));
                opening.await.map_err(|error| self.unanswered(error, started))?
            }
            Some(session) => match self.enter(session, started).await? {
                Entry::Turn(turns) => (session.clone(), turns),
                Entry::Join(place) => return Ok(LockGuard::new(place)),
                Entry::Held(name) => return Err(LockError::AlreadyHeld { name }),
            },
        };
        let shared_sessions = self.session.is_none().then(|| Arc::downgrade(&self.client.shared_sessions));
        let request = self.request(&session);
        let asked_ms = clock::now_ms();
        let ticket = next_ticket();
        let mut asking = Asking { session: session.clone(), ticket, turns, shared_sessions, is_settled: false };
        let answer = tokio::select! {
            answer = self.ask(&session, ticket, &request, started) => answer,
            cause = session.lost() => Err(self.lease_lost(cause)),
        };
        match answer? {
            Ok(granted) => {
                let place = asking.into_place(Held::new(&request, asked_ms, granted, &session));
                session.entered(&place, self.mode, &self.owner);
                Ok(LockGuard::new(place))
            }
            Err(refused) => {
                asking.is_settled = true;
                drop(asking);
                Err(self.refused(&session, refused, started).await)
            }
        }
    }

    fn session_kind(&self) -> SessionKind {
        let client_id = (!self.holder.is_empty()).then(|| self.holder.clone());
        SessionKind { ttl: self.ttl, cancel_at: self.cancel_at, client_id }
    }

    fn check(&self) -> Result<(), LockError> {
        let unusable = |reason: &str| Err(LockError::Unusable { reason: reason.to_owned() });
        if self.names.iter().any(String::is_empty) {
            return unusable("a lock has a name");
        }
        if let Some((_, name)) = self.names.iter().enumerate().find(|(index, name)| self.names[..*index].contains(name))
        {
            return unusable(&format!("{name} is named twice"));
        }
        match self.mode {
            Mode::Semaphore { slots: 0 } => unusable("a semaphore has one slot at least"),
            Mode::Barrier { parties: 0 } => unusable("a barrier has one party at least"),
            _ => Ok(()),
        }
    }

    /// When the wait is over.
    fn give_up(&self, started: Instant) -> Option<Instant> {
        match self.patience {
            Patience::Unlimited => None,
            Patience::AtMost(time) => started.checked_add(time),
            Patience::None => Some(started),
        }
    }

    /// When an answer of the server is not waited for any more, if there is to be one at all.
    fn answer_by(&self, started: Instant) -> Instant {
        let timeout = self.client.connections.settings().timeout;
        match self.patience {
            Patience::AtMost(time) => started.checked_add(time.max(SLACK)).unwrap_or(started + timeout),
            Patience::Unlimited | Patience::None => started + timeout,
        }
    }

    /// When an answer on the session's stream is not waited for any more. It may come a little after the wait is over.
    fn stream_answer_by(&self, started: Instant) -> Instant {
        self.answer_by(started).max(self.give_up(started).unwrap_or(started) + SLACK)
    }

    /// How long the caller has waited, without the time that an answer was late.
    fn waited(&self, started: Instant) -> Duration {
        match self.patience {
            Patience::AtMost(time) => started.elapsed().min(time),
            Patience::Unlimited | Patience::None => started.elapsed(),
        }
    }

    /// What it means that the server could not be asked: to a caller that waits for some time, that this time is over.
    fn unanswered(&self, error: Error, started: Instant) -> LockError {
        let is_silence = matches!(error, Error::NoLeader { .. } | Error::Timeout { .. } | Error::Lost { .. });
        match self.patience {
            Patience::AtMost(_) if is_silence => LockError::Timeout {
                name: self.names[0].clone(),
                waited: self.waited(started),
                holder: String::new(),
                since: None,
                waiting: 0,
                unanswered: Some(Box::new(error)),
            },
            _ => error.into(),
        }
    }

    async fn enter(&self, session: &Session, started: Instant) -> Result<Entry, LockError> {
        // A value of its own cannot be shared.
        let entering = session.enter(&self.names, self.mode, &self.owner, self.value.is_none());
        match self.give_up(started) {
            None => Ok(entering.await),
            Some(give_up) => match tokio::time::timeout_at(give_up, entering).await {
                Ok(entry) => Ok(entry),
                // Another caller of this very session has it.
                Err(_) => Err(self.busy(String::from("another caller of this session"), None, 0, started)),
            },
        }
    }

    /// Asks on the session's stream, which sees to it that there is an answer.
    async fn ask(
        &self,
        session: &Session,
        ticket: Ticket,
        request: &proto::SessionLock,
        started: Instant,
    ) -> Result<Result<Granted, Refused>, LockError> {
        let answered = session.ask_for(ticket, request.clone(), self.give_up(started));
        let answer = match self.patience {
            Patience::Unlimited => answered.await,
            Patience::AtMost(_) | Patience::None => {
                match tokio::time::timeout_at(self.stream_answer_by(started), answered).await {
                    Ok(answer) => answer,
                    Err(_) => return Err(self.unanswered(silence(session, started), started)),
                }
            }
        };
        // A stream that is gone has found the session to be over.
        answer.map_err(|_| self.lease_lost(session.held_lease().state().lost.unwrap_or(Cause::LeaseEnded)))
    }

    fn lease_lost(&self, cause: Cause) -> LockError {
        LockError::LeaseLost { name: self.names[0].clone(), cause }
    }

    async fn refused(&self, session: &Session, refused: Refused, started: Instant) -> LockError {
        let Refused { status, holder, waiting } = refused;
        match status.code() {
            // Busy.
            Code::Aborted => {
                let holder = holder.unwrap_or_default();
                self.busy(holder.holder_id, time(holder.granted_unix_ms), waiting, started)
            }
            // Time is up; who is in the way has to be asked for.
            Code::DeadlineExceeded => {
                let describing = self.client.describe_lock(self.names[0].clone());
                let described = tokio::time::timeout_at(self.stream_answer_by(started), describing).await;
                let described = described.ok().and_then(Result::ok);
                // What was given up just now may still be there, on its way out.
                let is_other = |waiter: &&Waiter| waiter.entry.lease.id != session.lease();
                let waiting =
                    described.as_ref().map_or(0, |described| described.waiters.iter().filter(is_other).count());
                let holder = described.and_then(|described| described.holders.into_iter().next());
                let (id, since) = holder.map_or_else(Default::default, |holder| (holder.id, holder.granted));
                self.busy(id, since, waiting as u64, started)
            }
            Code::FailedPrecondition if status.message().starts_with("deadlock:") => {
                let cycle = status.message().trim_start_matches("deadlock:").trim().to_owned();
                LockError::Deadlock { name: self.names[0].clone(), cycle }
            }
            _ => LockError::Call(session.read("lock", &status, started.elapsed())),
        }
    }

    fn busy(&self, holder: String, since: Option<SystemTime>, waiting: u64, started: Instant) -> LockError {
        let name = self.names[0].clone();
        match self.patience {
            Patience::None => LockError::Busy { name, holder, since, waiting },
            _ => LockError::Timeout { name, waited: self.waited(started), holder, since, waiting, unanswered: None },
        }
    }

    fn request(&self, session: &Session) -> proto::SessionLock {
        // Named in any case: the lease's client is forgotten with the lease, the holder is not.
        let holder = if self.holder.is_empty() { session.client_id() } else { &self.holder };
        let (mode, slots) = self.mode.to_proto();
        proto::SessionLock {
            name: self.names[0].clone(),
            more_names: self.names[1..].to_vec(),
            metadata: self.metadata.clone(),
            timeout_ms: None,
            mode: mode.into(),
            slots,
            holder_id: holder.to_owned(),
            owner: self.owner.clone(),
            value: self.value.clone(),
        }
    }
}

fn silence(session: &Session, started: Instant) -> Error {
    Error::Timeout {
        endpoint: session.keeper().client().connections.current_address(),
        call: "lock",
        waited: started.elapsed(),
        reason: "no member has answered".to_owned(),
        unknown: true,
    }
}

/// A lock request whose answer is not known to its caller yet. Dropped before that, it gives back what the session has
/// got for it: a place in the queue, or the lock itself if the grant was delivered and not read.
struct Asking {
    session: Session,
    ticket: Ticket,
    turns: Vec<OwnedMutexGuard<()>>,
    shared_sessions: Option<Weak<SharedSessions>>,
    is_settled: bool,
}

impl Asking {
    /// From here on the place gives the lock back when it is dropped.
    fn into_place(mut self, held: Held) -> Arc<Place> {
        let (turns, shared_sessions) = (std::mem::take(&mut self.turns), self.shared_sessions.take());
        self.is_settled = true;
        Arc::new(Place { held, session: self.session.clone(), shared_sessions, turns, given_back: false })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let turns = std::mem::take(&mut self.turns);
        match self.is_settled {
            true => drop(turns),
            false => self.session.abandon(self.ticket, turns),
        }
        if let Some(shared_sessions) = self.shared_sessions.take().and_then(|weak| weak.upgrade()) {
            shared_sessions.given_back(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_who_is_in_the_way_and_what_to_do() {
        let since = SystemTime::now() - Duration::from_secs(38);
        let busy = LockError::Busy { name: "a".into(), holder: "ci-7".into(), since: Some(since), waiting: 2 };
        let text = busy.to_string();
        assert!(text.starts_with("a is busy: ci-7 has held it for 38 s, and 2 wait"), "{text}");
        assert!(text.contains("tenure why a"), "{text}");
        let timeout = |ms| timeout_text("a", Duration::from_millis(ms), "ci-7 has held it", None);
        assert!(timeout(500).starts_with("a was not free within 0.5 s: ci-7"), "{}", timeout(500));
        assert!(timeout(50).starts_with("a was not free within 50 ms: ci-7"), "{}", timeout(50));
        let deadlock = LockError::Deadlock { name: "a".into(), cycle: "x waits for y".into() };
        assert!(deadlock.to_string().contains("x waits for y"), "{deadlock}");
    }
}
