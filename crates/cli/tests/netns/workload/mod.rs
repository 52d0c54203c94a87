//! Clients at work on both sides of the network, who note down what they did and saw.

mod locks;
mod puts;
mod registers;
pub mod watches;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenure_client::{Client, Error, Settings};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, SIDES};
use crate::history::{Action, Call, History, Outcome, Revision};
use crate::net::within;
use crate::support::until;

const LOCKERS_OF_EACH: usize = 2;

pub struct Workload {
    notes: Arc<Notes>,
    workers: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<()>>,
}

impl Workload {
    /// Starts all clients, and waits until they get on.
    pub fn start(cluster: &Cluster) -> Workload {
        let notes = Arc::new(Notes::new());
        let start = |side: &'static str| {
            let (notes, addresses) = (notes.clone(), cluster.addresses());
            within(&cluster.network.namespace(side), async move || work(side, &notes, &addresses).await)
        };
        let watch = |side: &'static str| {
            let (notes, addresses) = (notes.clone(), cluster.addresses());
            within(&cluster.network.namespace(side), async move || watches::watch(side, &notes, &addresses).await)
        };
        let workload = Workload { workers: SIDES.map(start).into(), watchers: SIDES.map(watch).into(), notes };
        workload.until_acknowledged(20);
        workload.until_granted(5);
        workload
    }

    /// Waits until so many more puts are acknowledged.
    pub fn until_acknowledged(&self, more: u64) {
        self.until_more("more puts are acknowledged", &self.notes.acknowledged, more);
    }

    /// Waits until so many more locks are granted.
    pub fn until_granted(&self, more: u64) {
        self.until_more("more locks are granted", &self.notes.granted, more);
    }

    fn until_more(&self, what: &str, counter: &AtomicU64, more: u64) {
        let before = counter.load(Ordering::Relaxed);
        until(what, || {
            assert!(!self.workers.iter().any(JoinHandle::is_finished), "clients have given up");
            counter.load(Ordering::Relaxed) >= before + more
        });
    }

    /// Ends the work; those who watch go on until they have seen all there is.
    pub fn end(mut self, cluster: &Cluster) -> History {
        self.notes.stop.store(true, Ordering::Relaxed);
        self.workers.drain(..).for_each(join);
        let revision = cluster.until_writable();
        self.notes.last_revision.store(revision, Ordering::Relaxed);
        self.watchers.drain(..).for_each(join);
        let history = std::mem::take(&mut *self.notes.history.lock().unwrap());
        let unknown = |calls: &[Call]| calls.iter().filter(|call| call.outcome == Outcome::Unknown).count();
        eprintln!(
            "{} calls ({} in doubt), {} puts ({} in doubt), {} grants, revision {revision}",
            history.calls.len(),
            unknown(&history.calls),
            history.puts.len(),
            unknown(&history.puts),
            history.holdings.len(),
        );
        history
    }
}

/// After a panic nobody goes on.
impl Drop for Workload {
    fn drop(&mut self) {
        self.notes.stop.store(true, Ordering::Relaxed);
        self.notes.last_revision.store(1, Ordering::Relaxed);
    }
}

fn join(thread: JoinHandle<()>) {
    until("clients end", || thread.is_finished());
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// All clients of one side. Some talk to one member only, others go where they are answered.
async fn work(side: &str, notes: &Arc<Notes>, addresses: &[String]) {
    let mut tasks = JoinSet::new();
    let everywhere = connect(&addresses.join(",")).await;
    for (place, (_, pinned)) in everywhere.each().into_iter().enumerate() {
        tasks.spawn(registers::work(pinned.clone(), notes.clone(), place as u64));
        tasks.spawn(puts::work(pinned, notes.clone(), format!("puts/{side}/at-{place}")));
    }
    tasks.spawn(puts::work(everywhere.clone(), notes.clone(), format!("puts/{side}/anywhere")));
    for (number, lock) in locks::LOCKS.iter().flat_map(|lock| [*lock; LOCKERS_OF_EACH]).enumerate() {
        tasks.spawn(locks::work(everywhere.clone(), notes.clone(), lock, number as u64));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("clients do not panic");
    }
    everywhere.settled().await;
}

async fn connect(endpoints: &str) -> Client {
    let settings = Settings { timeout: Duration::from_secs(2), discover: false, ..Settings::default() };
    Client::connect_with(endpoints, settings).await.unwrap()
}

/// What all clients share.
pub struct Notes {
    began: Instant,
    stop: AtomicBool,
    acknowledged: AtomicU64,
    granted: AtomicU64,
    next_value: AtomicU64,
    /// Watches end when they have seen this one; 0: not known yet.
    last_revision: AtomicI64,
    history: Mutex<History>,
}

impl Notes {
    fn new() -> Notes {
        Notes {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            next_value: AtomicU64::new(1),
            last_revision: AtomicI64::new(0),
            history: Mutex::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("tests are short")
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn next_value(&self) -> u64 {
        self.next_value.fetch_add(1, Ordering::Relaxed)
    }

    fn note(&self, write: impl FnOnce(&mut History)) {
        write(&mut self.history.lock().unwrap());
    }

    fn is_last(&self, revision: Revision) -> bool {
        let last = self.last_revision.load(Ordering::Relaxed);
        last > 0 && revision >= last
    }

    /// Makes a call and says when it began and returned.
    async fn timed(&self, key: &str, action: Action, call: impl Future<Output = Result<Outcome, Error>>) -> Call {
        let invoked = self.now();
        let outcome = call.await.unwrap_or_else(|error| match error.outcome_is_unknown() {
            true => Outcome::Unknown,
            false => Outcome::Refused,
        });
        Call { key: key.to_owned(), invoked, returned: self.now(), action, outcome }
    }
}

/// Enough of randomness for clients that are not to do all the same.
pub struct Dice(u64);

impl Dice {
    /// Other ones every time.
    pub fn from_clock() -> Dice {
        let since = std::time::UNIX_EPOCH.elapsed().expect("it is later than 1970");
        Dice::new(since.as_nanos() as u64)
    }

    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    async fn pause(&mut self, longest_ms: u64) {
        tokio::time::sleep(Duration::from_millis(1 + self.below(longest_ms))).await;
    }
}
