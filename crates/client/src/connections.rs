//! Which server a client talks to: one, for as long as it is there, then another.
//!
//! A server that could not be reached, or fell silent, is tried again after the others for a while. One that knows of no
//! leader is taken only if the others do not know better.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::Settings;
use crate::connection::{Connection, PROOF};
use crate::diagnose::Cause;
use crate::endpoint::Address;
use crate::error::Attempt;

/// For how long a server that was in trouble is tried after the others.
const TROUBLE: Duration = Duration::from_secs(5);

pub struct Connections {
    places: RwLock<Vec<Arc<Place>>>,
    current: Mutex<Current>,
    /// One search at a time, for all who need a connection.
    search: tokio::sync::Mutex<Option<Failed>>,
    reached: AtomicBool,
    settings: Settings,
}

#[derive(Default)]
struct Current {
    connection: Option<Arc<Connection>>,
    /// Where it was, or is.
    last: Option<Arc<Place>>,
}

/// Where a server is, or should be.
struct Place {
    address: Address,
    trouble_until: Mutex<Option<Instant>>,
}

struct Failed {
    ended: Instant,
    attempts: Vec<Attempt>,
}

impl Connections {
    pub fn new(addresses: Vec<Address>, settings: Settings) -> Connections {
        Connections {
            places: RwLock::new(addresses.into_iter().map(|address| Arc::new(Place::new(address))).collect()),
            current: Mutex::default(),
            search: tokio::sync::Mutex::default(),
            reached: AtomicBool::new(false),
            settings,
        }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.places().iter().map(|place| place.address.text.clone()).collect()
    }

    pub fn each(&self) -> Vec<(String, Connections)> {
        let single = |place: &Arc<Place>| {
            (place.address.text.clone(), Connections::new(vec![place.address.clone()], self.settings))
        };
        self.places().iter().map(single).collect()
    }

    /// Connections of their own to the same servers, for another runtime.
    pub fn anew(&self) -> Connections {
        Connections::new(self.places().iter().map(|place| place.address.clone()).collect(), self.settings)
    }

    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Whether there is more than one server to try.
    pub fn has_others(&self) -> bool {
        self.places().len() > 1
    }

    /// Whether any server has ever answered.
    pub fn has_reached_any(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Where calls go at present, for errors to name.
    pub fn current_address(&self) -> String {
        let last = self.current_lock().last.clone();
        last.or_else(|| self.places().first().cloned()).map_or_else(String::new, |place| place.address.text.clone())
    }

    /// The connection that calls go over, made if there is none. Must be called on the runtime that it is to live on.
    pub async fn connection(&self, give_up: Instant) -> Result<Arc<Connection>, Vec<Attempt>> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let began = Instant::now();
        let Ok(mut search) = tokio::time::timeout_at(give_up, self.search.lock()).await else {
            return Err(self.attempts(Cause::Silent));
        };
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if let Some(failed) = search.as_ref().filter(|failed| failed.ended >= began) {
            return Err(failed.attempts.clone());
        }
        match self.find(give_up).await {
            Ok((place, connection)) => {
                let connection = Arc::new(connection);
                self.reached.store(true, Ordering::Relaxed);
                *self.current_lock() = Current { connection: Some(connection.clone()), last: Some(place) };
                Ok(connection)
            }
            Err(attempts) => {
                *search = Some(Failed { ended: Instant::now(), attempts: attempts.clone() });
                Err(attempts)
            }
        }
    }

    /// The connection that calls go over, if there is one.
    pub fn current(&self) -> Option<Arc<Connection>> {
        let connection = self.current_lock().connection.clone()?;
        if connection.is_silent() {
            self.leave(&connection);
            return None;
        }
        Some(connection)
    }

    async fn find(&self, give_up: Instant) -> Result<(Arc<Place>, Connection), Vec<Attempt>> {
        let mut attempts = Vec::new();
        let mut leaderless = None;
        let candidates = self.candidates();
        let count = candidates.len();
        for (number, place) in candidates.into_iter().enumerate() {
            // The last one has all the time there is: nobody is left who could answer in it.
            let (now, left) = (Instant::now(), count - number);
            let share = give_up.saturating_duration_since(now) / u32::try_from(left).unwrap_or(u32::MAX);
            let is_last = left == 1 && leaderless.is_none();
            let patience = if is_last { give_up } else { now + PROOF.min(share) };
            let cause = match Connection::open(&place.address, self.settings.connect_timeout, patience).await {
                Ok(connection) => {
                    place.set_trouble(None);
                    if connection.introduction.is_none_or(|said| said.has_leader) {
                        return Ok((place, connection));
                    }
                    leaderless.get_or_insert((place, connection));
                    continue;
                }
                Err(cause) => cause,
            };
            place.set_trouble(Some(Instant::now() + TROUBLE));
            attempts.push(Attempt { endpoint: place.address.text.clone(), cause });
        }
        leaderless.ok_or(attempts)
    }

    /// In the order in which they are tried: the last one that worked, then as they were given, then those in trouble.
    fn candidates(&self) -> Vec<Arc<Place>> {
        let (now, last) = (Instant::now(), self.current_lock().last.clone());
        let mut candidates = self.places().clone();
        candidates.sort_by_key(|place| {
            let trouble_until = place.trouble_until().filter(|until| *until > now);
            (trouble_until, !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, place)))
        });
        candidates
    }

    /// The connection has ended without a fault of the server: it may be asked for another one.
    pub fn forget(&self, connection: &Arc<Connection>) {
        let mut current = self.current_lock();
        if current.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            current.connection = None;
        }
    }

    /// The server is of no use at present: the others come first.
    pub fn leave(&self, connection: &Arc<Connection>) {
        self.forget(connection);
        let places = self.places();
        let place = places.iter().find(|place| place.address == connection.address);
        place.into_iter().for_each(|place| place.set_trouble(Some(Instant::now() + TROUBLE)));
    }

    fn attempts(&self, cause: Cause) -> Vec<Attempt> {
        let attempt = |place: &Arc<Place>| Attempt { endpoint: place.address.text.clone(), cause: cause.clone() };
        self.places().iter().map(attempt).collect()
    }

    fn places(&self) -> std::sync::RwLockReadGuard<'_, Vec<Arc<Place>>> {
        self.places.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn current_lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn new(address: Address) -> Place {
        Place { address, trouble_until: Mutex::default() }
    }

    fn trouble_until(&self) -> Option<Instant> {
        *self.trouble_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_trouble(&self, until: Option<Instant>) {
        *self.trouble_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}
