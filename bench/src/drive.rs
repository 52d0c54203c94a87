//! Runs closed-loop clients: each sends its next operation when the last one is answered.
//!
//! Every thread has a current-thread runtime, its share of the connections and the clients on
//! them; nothing is shared between threads but a count of what is left to do. A run has two parts:
//! a warm-up whose figures are thrown away, and the measured part. All threads pass a gate before
//! and after the latter, and between the gates the server's usage is read.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use crate::meter::{Meter, UsageProbe};
use crate::plan::{Limit, Plan, Server};
use crate::wire::{Connection, Failure};

/// Nothing answered for so long: the server hangs, and the run ends.
const STALLED_AFTER: Duration = Duration::from_secs(30);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(10);
const FAILURES_IN_A_ROW: u32 = 50;

/// One client and what it does again and again.
pub trait Operation: Send + Sized + 'static {
    fn once(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// How long the operation took that `once` has just completed, if that is not how long `once` took.
    fn took(&self) -> Option<Duration> {
        None
    }

    /// Gives back what the client took, when all is measured.
    fn finish(self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// What came out of the measured part.
pub struct Driven {
    pub meter: Meter,
    pub elapsed: Duration,
    pub cpu: Option<Duration>,
    pub resident_bytes: Option<u64>,
}

/// Makes all clients with `prepare` (given a connection and the client's number) and drives them.
pub fn drive<Client, Prepare, Prepared>(
    plan: &Plan,
    server: &Server,
    warm_up: Duration,
    limit: Limit,
    prepare: Prepare,
) -> anyhow::Result<Driven>
where
    Client: Operation,
    Prepare: Fn(Connection, usize) -> Prepared + Sync,
    Prepared: Future<Output = Result<Client, Failure>>,
{
    let threads = plan.threads.min(plan.connections).min(plan.clients);
    let gate = Barrier::new(threads + 1);
    let remaining = match limit {
        Limit::Operations(operations) => Some(Arc::new(AtomicU64::new(operations))),
        Limit::Time(_) => None,
    };
    let measured = |limit: Limit| Bound {
        deadline: match limit {
            Limit::Time(time) => Some(Instant::now() + time),
            Limit::Operations(_) => None,
        },
        remaining: remaining.clone(),
    };
    let thread = |thread: usize| -> anyhow::Result<Meter> {
        let runtime = runtime()?;
        let prepared = runtime.block_on(async {
            let clients = bounded(prepare_clients(plan, server, thread, threads, &prepare)).await?;
            let bound = Bound { deadline: Some(Instant::now() + warm_up), remaining: None };
            Ok::<_, Failure>(loop_all(clients, bound).await.0)
        });
        // Whatever happened, every thread passes the gates, or the others would wait forever.
        gate.wait();
        gate.wait();
        let outcome = prepared.map(|clients| runtime.block_on(loop_all(clients, measured(limit))));
        gate.wait();
        let (clients, meter) = outcome.with_context(|| format!("{} cannot be put under load", server.name))?;
        let finished = runtime.block_on(bounded(async {
            for client in clients {
                client.finish().await;
            }
            Ok(())
        }));
        finished.map(|()| meter).with_context(|| format!("{} cannot be cleaned up", server.name))
    };
    std::thread::scope(|scope| {
        let thread = &thread;
        let handles: Vec<_> = (0..threads).map(|index| scope.spawn(move || thread(index))).collect();
        gate.wait();
        let probe = UsageProbe::start(&server.pids);
        let started = Instant::now();
        gate.wait();
        gate.wait();
        let elapsed = started.elapsed();
        let (cpu, resident_bytes) = probe.stop();
        let mut meter = Meter::default();
        for handle in handles {
            meter.merge(handle.join().expect("load threads do not panic")?);
        }
        Ok(Driven { meter, elapsed, cpu, resident_bytes })
    })
}

/// A runtime for one thread of the load client.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

/// Ends what the server lets hang.
pub async fn bounded<Answer>(work: impl Future<Output = Result<Answer, Failure>>) -> Result<Answer, Failure> {
    let stalled = || Failure::Wrong(format!("nothing was answered for {STALLED_AFTER:?}"));
    tokio::time::timeout(STALLED_AFTER, work).await.unwrap_or_else(|_| Err(stalled()))
}

/// Opens the connections of one thread: those whose number modulo the threads is this one's.
pub async fn connect(plan: &Plan, server: &Server, thread: usize, threads: usize) -> Result<Vec<Connection>, Failure> {
    let mut connections = Vec::new();
    for number in (thread..plan.connections).step_by(threads) {
        connections.push(Connection::open(&server.endpoints[number % server.endpoints.len()]).await?);
    }
    Ok(connections)
}

async fn prepare_clients<Client, Prepared>(
    plan: &Plan,
    server: &Server,
    thread: usize,
    threads: usize,
    prepare: &impl Fn(Connection, usize) -> Prepared,
) -> Result<Vec<Client>, Failure>
where
    Prepared: Future<Output = Result<Client, Failure>>,
{
    let connections = connect(plan, server, thread, threads).await?;
    let mut clients = Vec::new();
    for (place, number) in (thread..plan.clients).step_by(threads).enumerate() {
        clients.push(prepare(connections[place % connections.len()].clone(), number).await?);
    }
    Ok(clients)
}

#[derive(Clone)]
struct Bound {
    deadline: Option<Instant>,
    remaining: Option<Arc<AtomicU64>>,
}

impl Bound {
    /// Whether one more operation may start.
    fn take(&self, now: Instant) -> bool {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return false;
        }
        let Some(remaining) = &self.remaining else { return true };
        remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// Lets all clients work until the bound is reached; gives back those that are not stuck.
async fn loop_all<Client: Operation>(clients: Vec<Client>, bound: Bound) -> (Vec<Client>, Meter) {
    let mut tasks = JoinSet::new();
    let meters: Vec<Arc<Mutex<Meter>>> = clients.iter().map(|_| Arc::default()).collect();
    for (client, meter) in clients.into_iter().zip(&meters) {
        tasks.spawn(loop_one(client, bound.clone(), meter.clone()));
    }
    let total = || {
        let mut total = Meter::default();
        for meter in &meters {
            total.merge(lock(meter).clone());
        }
        total
    };
    let (mut clients, mut before) = (Vec::new(), 0);
    loop {
        match tokio::time::timeout(STALLED_AFTER, tasks.join_next()).await {
            Ok(Some(client)) => clients.push(client.expect("clients do not panic")),
            Ok(None) => return (clients, total()),
            Err(_) => {
                let mut total = total();
                let now = total.latencies.count() + total.failures;
                if now == before {
                    for _ in 0..tasks.len() {
                        total.fail(format!("nothing was answered for {STALLED_AFTER:?}"));
                    }
                    tasks.shutdown().await;
                    return (clients, total);
                }
                before = now;
            }
        }
    }
}

async fn loop_one<Client: Operation>(mut client: Client, bound: Bound, meter: Arc<Mutex<Meter>>) -> Client {
    let mut failures_in_a_row = 0;
    let mut started = Instant::now();
    while failures_in_a_row < FAILURES_IN_A_ROW && bound.take(started) {
        let outcome = client.once().await;
        let ended = Instant::now();
        let failed = outcome.is_err();
        lock(&meter).record(outcome.map(|()| client.took().unwrap_or(ended - started)));
        started = ended;
        if failed {
            failures_in_a_row += 1;
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            started = Instant::now();
        } else {
            failures_in_a_row = 0;
        }
    }
    client
}

fn lock(meter: &Mutex<Meter>) -> std::sync::MutexGuard<'_, Meter> {
    meter.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(Arc<AtomicU64>, bool);

    impl Operation for Counting {
        async fn once(&mut self) -> Result<(), Failure> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if self.1 { Err(Failure::Wrong("always".to_owned())) } else { Ok(()) }
        }
    }

    fn run(count: usize, fails: bool, bound: Bound) -> (u64, Meter) {
        let done = Arc::new(AtomicU64::new(0));
        let clients = (0..count).map(|_| Counting(done.clone(), fails)).collect();
        let (clients, meter) = runtime().unwrap().block_on(loop_all(clients, bound));
        assert_eq!(clients.len(), count);
        (done.load(Ordering::Relaxed), meter)
    }

    #[test]
    fn a_number_of_operations_is_kept_to_the_letter() {
        let bound = Bound { deadline: None, remaining: Some(Arc::new(AtomicU64::new(1001))) };
        let (done, meter) = run(7, false, bound);
        assert_eq!((done, meter.latencies.count(), meter.failures), (1001, 1001, 0));
    }

    #[test]
    fn a_client_that_only_fails_gives_up() {
        let bound = Bound { deadline: None, remaining: Some(Arc::new(AtomicU64::new(u64::MAX))) };
        let (done, meter) = run(2, true, bound);
        assert_eq!((done, meter.failures), (100, 100));
        assert_eq!(meter.first_failure.as_deref(), Some("always"));
    }
}
