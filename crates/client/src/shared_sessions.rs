//! The sessions that a client keeps for locks that are asked for without one.
//!
//! To the server one lease is one owner, and everybody who asks for a lock has a place of its own in the queue. So locks of
//! different names share a session, its lease and its stream, and whoever asks for a name that is in use here gets another
//! session. One that nobody uses any more is kept for a while for the next who comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::lifecycle::CancelAt;
use crate::{Client, Error, Session};

/// How long a session is kept that nobody uses.
const KEPT: Duration = Duration::from_secs(10);
/// How many of them are.
const KEPT_AT_MOST: usize = 4;

#[derive(Default)]
pub(crate) struct SharedSessions {
    sessions: Mutex<Vec<SharedSession>>,
    /// Somebody looks now and then which of them are not used any more.
    is_watched: AtomicBool,
}

struct SharedSession {
    kind: SessionKind,
    session: Session,
    used: Instant,
}

/// Sessions of one kind can stand for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionKind {
    pub ttl: Duration,
    pub cancel_at: CancelAt,
    /// None: as clients are named unless told.
    pub client_id: Option<String>,
}

impl Client {
    pub(crate) fn without_shared_sessions(&self) -> Client {
        Client { shared_sessions: Arc::default(), ..self.clone() }
    }

    /// A session in which no caller is at any of these names, and the turns at them. If none is free, one is opened.
    pub(crate) async fn shared_session(
        &self,
        kind: SessionKind,
        names: &[String],
        give_up: Instant,
    ) -> Result<(Session, Vec<OwnedMutexGuard<()>>), Error> {
        if let Some(found) = self.shared_sessions.find(&kind, names) {
            return Ok(found);
        }
        let mut request = self.session().ttl(kind.ttl).cancel_at(kind.cancel_at);
        if let Some(client_id) = &kind.client_id {
            request = request.client_id(client_id.clone());
        }
        let session = request.open_until(give_up).await?;
        let turns = session.try_enter(names).expect("nobody else knows the session yet");
        self.shared_sessions.lock().push(SharedSession { kind, session: session.clone(), used: Instant::now() });
        Ok((session, turns))
    }
}

impl SharedSessions {
    fn find(&self, kind: &SessionKind, names: &[String]) -> Option<(Session, Vec<OwnedMutexGuard<()>>)> {
        let mut sessions = self.lock();
        let ended = sessions.extract_if(.., |shared| shared.session.held_lease().state().lost.is_some());
        let _ended: Vec<SharedSession> = ended.collect();
        sessions.iter_mut().filter(|shared| shared.kind == *kind).find_map(|shared| {
            let state = shared.session.held_lease().state();
            if state.warned || state.cancelled {
                return None;
            }
            let turns = shared.session.try_enter(names)?;
            shared.used = Instant::now();
            Some((shared.session.clone(), turns))
        })
    }

    /// A lock was given back: ends the sessions that are not needed any more, now or after a while.
    pub fn given_back(self: &Arc<SharedSessions>, session: &Session) {
        let mut sessions = self.lock();
        let returned = sessions.iter_mut().find(|shared| shared.session.lease() == session.lease());
        returned.into_iter().for_each(|shared| shared.used = Instant::now());
        let idle = sessions.iter().filter(|shared| shared.session.is_idle()).count();
        let mut surplus = idle.saturating_sub(KEPT_AT_MOST);
        let is_surplus = |shared: &mut SharedSession| {
            let is_surplus = surplus > 0 && shared.session.is_idle();
            surplus -= usize::from(is_surplus);
            is_surplus
        };
        let _closing: Vec<SharedSession> = sessions.extract_if(.., is_surplus).collect();
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            session.keeper().spawn(watch_over(Arc::downgrade(self)));
        }
    }

    pub fn close_idle(&self) {
        self.close_idle_for(Duration::ZERO);
    }

    /// Gives whether any is left.
    fn close_idle_for(&self, time: Duration) -> bool {
        let mut sessions = self.lock();
        let is_over = |shared: &mut SharedSession| shared.session.is_idle() && shared.used.elapsed() >= time;
        let _closing: Vec<SharedSession> = sessions.extract_if(.., is_over).collect();
        !sessions.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SharedSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until there is none.
async fn watch_over(shared_sessions: Weak<SharedSessions>) {
    loop {
        tokio::time::sleep(KEPT).await;
        let Some(shared_sessions) = shared_sessions.upgrade() else { return };
        // Whoever comes meanwhile starts another watch.
        shared_sessions.is_watched.store(false, Ordering::Relaxed);
        if !shared_sessions.close_idle_for(KEPT) || shared_sessions.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
    }
}
