//! Which server a client talks to: one, for as long as it is there, then another.
//!
//! A server that could not be reached, or fell silent, is tried again after the others for a while. One that knows of no
//! leader is taken only if the others do not know better.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::connection::{Connection, PROOF};
use crate::diagnose::Cause;
use crate::endpoint::Address;
use crate::error::Attempt;
use crate::places::{Place, Places};
use crate::{Settings, discovery};

pub struct Connections {
    places: Arc<Places>,
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
    discovered: Option<Instant>,
}

struct Failed {
    ended: Instant,
    attempts: Vec<Attempt>,
}

impl Connections {
    pub fn new(addresses: Vec<Address>, settings: Settings) -> Connections {
        Connections::over(Arc::new(Places::given(addresses, settings.endpoint_order)), settings)
    }

    fn over(places: Arc<Places>, settings: Settings) -> Connections {
        let (current, search) = (Mutex::default(), tokio::sync::Mutex::default());
        Connections { places, current, search, reached: AtomicBool::new(false), settings }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.places.list().iter().map(|place| place.address.text.clone()).collect()
    }

    pub fn given_addresses(&self) -> Vec<String> {
        self.given().into_iter().map(|address| address.text).collect()
    }

    fn given(&self) -> Vec<Address> {
        let places = self.places.list();
        places.iter().filter(|place| place.named_by.is_none()).map(|place| place.address.clone()).collect()
    }

    pub fn each(&self) -> Vec<(String, Connections)> {
        let settings = Settings { discover: false, ..self.settings };
        let single = |address: Address| (address.text.clone(), Connections::new(vec![address], settings));
        self.given().into_iter().map(single).collect()
    }

    /// Connections of their own to the same servers, for another runtime.
    pub fn anew(&self) -> Connections {
        Connections::over(self.places.clone(), self.settings)
    }

    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Whether there is more than one server to try.
    pub fn has_others(&self) -> bool {
        self.places.list().len() > 1
    }

    /// Whether any server has ever answered.
    pub fn has_reached_any(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Where calls go at present, for errors to name.
    pub fn current_address(&self) -> String {
        let first = || self.places.candidates(None, Instant::now()).into_iter().next();
        let last = self.current_lock().last.clone().or_else(first);
        last.map_or_else(String::new, |place| place.address.text.clone())
    }

    /// The connection that calls go over, made if there is none. Must be called on the runtime that it is to live on.
    pub async fn connection(&self, give_up: Instant) -> Result<Arc<Connection>, Vec<Attempt>> {
        if let Some(connection) = self.current() {
            self.discover(&connection, false);
            return Ok(connection);
        }
        let began = Instant::now();
        let Ok(mut search) = tokio::time::timeout_at(give_up, self.search.lock()).await else {
            return Err(self.places.attempts(&Cause::Silent));
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
                {
                    let mut current = self.current_lock();
                    (current.connection, current.last) = (Some(connection.clone()), Some(place));
                }
                self.discover(&connection, true);
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
        let candidates = self.places.candidates(self.current_lock().last.as_ref(), Instant::now());
        let count = candidates.len();
        for (number, place) in candidates.into_iter().enumerate() {
            // The last one has all the time there is: nobody is left who could answer in it.
            let (now, left) = (Instant::now(), count - number);
            let share = give_up.saturating_duration_since(now) / u32::try_from(left).unwrap_or(u32::MAX);
            let is_last = left == 1 && leaderless.is_none();
            let patience = if is_last { give_up } else { now + PROOF.min(share) };
            let cause = match Connection::open(&place.address, self.settings.connect_timeout, patience).await {
                Ok(connection) if !is_of(&connection, place.named_by) => Cause::OtherCluster,
                Ok(connection) => {
                    place.is_well();
                    if connection.introduction.is_none_or(|said| said.has_leader) {
                        return Ok((place, connection));
                    }
                    leaderless.get_or_insert((place, connection));
                    continue;
                }
                Err(cause) => cause,
            };
            place.is_in_trouble();
            attempts.push(place.attempt(cause));
        }
        leaderless.ok_or(attempts)
    }

    /// Asks who else is there, over a connection that is new, and now and then.
    fn discover(&self, connection: &Connection, is_new: bool) {
        if !self.settings.discover {
            return;
        }
        {
            let mut current = self.current_lock();
            if !is_new && current.discovered.is_some_and(|asked| asked.elapsed() < discovery::INTERVAL) {
                return;
            }
            current.discovered = Some(Instant::now());
        }
        discovery::ask(self.places.clone(), connection);
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
        if let Some(place) = self.places.at(&connection.address) {
            place.is_in_trouble();
        }
    }

    fn current_lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server is of the cluster that named it. What the user has named is the user's choice.
fn is_of(connection: &Connection, named_by: Option<u64>) -> bool {
    let cluster = connection.introduction.map(|said| said.cluster);
    named_by.is_none() || named_by == cluster
}
