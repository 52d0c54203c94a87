//! What the end of many leases at once does to everybody else: puts at a steady rate, before it and during it.
//!
//! The leases are kept alive until all have their keys, and are then all renewed as fast as the
//! server answers: so they fall due within as short a time, one TTL later.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use tenure_api::etcdserverpb::{LeaseLeasesRequest, LeaseLeasesResponse, RangeRequest, RangeResponse};
use tokio::task::JoinSet;

use super::fleet::{self, AllRenewed};
use super::{Random, key_value, measurement, prefix_end};
use crate::Progress;
use crate::drive::{Driven, bounded, connect, runtime};
use crate::meter::{Measurement, Meter, UsageProbe};
use crate::plan::{Limit, Plan, Server};
use crate::wire::{Connection, Failure};

/// How often it is asked what is left, unless the answer takes long: then it is asked for a tenth of the time.
const ASK_EVERY: Duration = Duration::from_millis(20);
const ANSWERS_APART: u32 = 10;
/// No lease ended for so long, although all were due: the server does not expire them.
const STUCK_AFTER: Duration = Duration::from_secs(30);

pub fn run(plan: &Plan, server: &Server, progress: Progress<'_>) -> anyhow::Result<Vec<Measurement>> {
    let keys = plan.leased_keys.unwrap_or(plan.leases);
    progress(&format!("expiry on {}: granting {} leases, {keys} with a key", server.name, plan.leases));
    let renewed = renew_all(plan, server, keys, progress)?;
    let spread = renewed.last_answered - renewed.first_sent;
    let first_due = renewed.first_sent + Duration::from_secs(renewed.ttl_seconds);
    ensure!(
        Instant::now() < first_due,
        "{}: renewing all leases took {spread:?}, longer than they live: give them a longer --ttl",
        server.name
    );
    let timeline = Arc::new(Timeline::new(plan, first_due));
    progress(&format!("expiry on {}: waiting until {} leases fall due", server.name, plan.leases));
    let leases: HashSet<i64> = renewed.leases.into_iter().collect();
    let (watched, seen) = std::thread::scope(|scope| {
        let putting = scope.spawn(|| put_all(plan, server, &timeline));
        let watched = runtime().and_then(|runtime| runtime.block_on(watch(server, &timeline, keys, &leases)));
        timeline.end(Instant::now());
        (watched, putting.join().expect("load threads do not panic"))
    });
    let (watched, [before, during]) = (watched?, seen?);
    let took = watched.gone - first_due;
    let cpu_before = watched.before.cpu.map(|cpu| cpu.as_secs_f64() / watched.before.elapsed.as_secs_f64());
    let cpu_expiry =
        watched.during.cpu.zip(cpu_before).map(|(cpu, share)| cpu.as_secs_f64() - share * took.as_secs_f64());
    let pauses = |seen: &Seen| {
        let (largest, pause) = (seen.meter.latencies.largest(), seen.pause);
        format!("a put took {:.1} ms at most, and {:.1} ms passed at most without an answer", ms(largest), ms(pause))
    };
    let before_note = pauses(&before);
    let during_note = format!(
        "{} leases with {keys} keys fell due within {:.2} s and were gone {:.2} s after the first was due; {}; {} CPU of the server for each lease",
        plan.leases,
        spread.as_secs_f64(),
        took.as_secs_f64(),
        pauses(&during),
        cpu_expiry.map_or("unknown".to_owned(), |cpu| format!("{:.1} µs", cpu.max(0.0) * 1e6 / plan.leases as f64)),
    );
    let phase = |label: &str, seen: Seen, driven: Driven, note: String| Measurement {
        meter: seen.meter,
        note: Some(note),
        ..measurement(format!("expiry: put {label}"), server, driven)
    };
    Ok(vec![phase("before", before, watched.before, before_note), phase("during", during, watched.during, during_note)])
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn renew_all(plan: &Plan, server: &Server, keys: u64, progress: Progress<'_>) -> anyhow::Result<AllRenewed> {
    let all_granted = |_: &fleet::Board| progress(&format!("expiry on {}: renewing all leases", server.name));
    let ((), threads) = fleet::hold(plan, server, keys, all_granted, async |streams| {
        let mut renewing = JoinSet::new();
        for stream in streams {
            renewing.spawn(stream.renew_all());
        }
        let mut all = Vec::new();
        while let Some(renewed) = renewing.join_next().await {
            all.push(renewed.expect("streams do not panic")?);
        }
        Ok(all)
    })?;
    let together = |mut left: AllRenewed, right: AllRenewed| {
        left.leases.extend(right.leases);
        left.first_sent = left.first_sent.min(right.first_sent);
        left.last_answered = left.last_answered.max(right.last_answered);
        left.ttl_seconds = left.ttl_seconds.min(right.ttl_seconds);
        left
    };
    threads.into_iter().flatten().reduce(together).context("there are no streams")
}

/// When the puts begin, when they are measured, and when they end, which is known only when it has come.
struct Timeline {
    started: Instant,
    measured_from: Instant,
    first_due: Instant,
    /// In nanoseconds since the start.
    end: AtomicU64,
    last_answer: AtomicU64,
}

#[derive(Clone, Copy)]
enum Phase {
    Before,
    During,
}

impl Timeline {
    fn new(plan: &Plan, first_due: Instant) -> Timeline {
        let before = match plan.limit {
            Limit::Time(time) => time,
            Limit::Operations(puts) => Duration::from_secs_f64(puts as f64 / plan.rate as f64),
        };
        let now = Instant::now();
        let earlier = |than: Instant, by: Duration| than.checked_sub(by).map_or(now, |moment| moment.max(now));
        let started = earlier(first_due, before + plan.warm_up);
        Timeline {
            started,
            measured_from: (started + plan.warm_up).min(first_due),
            first_due,
            end: AtomicU64::new(u64::MAX),
            last_answer: AtomicU64::new(0),
        }
    }

    fn end(&self, now: Instant) {
        self.end.store(self.nanos(now), Ordering::Relaxed);
    }

    fn is_over(&self, moment: Instant) -> bool {
        self.nanos(moment) >= self.end.load(Ordering::Relaxed)
    }

    fn nanos(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.started).as_nanos() as u64
    }

    /// None during the warm-up.
    fn phase(&self, moment: Instant) -> Option<Phase> {
        match moment {
            moment if moment < self.measured_from => None,
            moment if moment < self.first_due => Some(Phase::Before),
            _ => Some(Phase::During),
        }
    }

    /// How long nobody at all had been answered.
    fn answered(&self, now: Instant) -> Duration {
        let nanos = self.nanos(now);
        Duration::from_nanos(nanos.saturating_sub(self.last_answer.fetch_max(nanos, Ordering::Relaxed)))
    }
}

/// What the puts of one phase met with.
#[derive(Default)]
struct Seen {
    meter: Meter,
    /// The longest time in which no put at all was answered.
    pause: Duration,
}

impl Seen {
    fn merge(&mut self, other: Seen) {
        self.meter.merge(other.meter);
        self.pause = self.pause.max(other.pause);
    }
}

fn put_all(plan: &Plan, server: &Server, timeline: &Arc<Timeline>) -> anyhow::Result<[Seen; 2]> {
    let requests = Arc::new(key_value::puts(plan, "bench/put/"));
    let threads = plan.threads.min(plan.connections).min(plan.clients);
    let thread = |thread: usize| -> anyhow::Result<[Seen; 2]> {
        runtime()?.block_on(async {
            let connections = bounded(connect(plan, server, thread, threads)).await?;
            let mut putting = JoinSet::new();
            for (place, number) in (thread..plan.clients).step_by(threads).enumerate() {
                let putter = Putter {
                    connection: connections[place % connections.len()].clone(),
                    requests: requests.clone(),
                    number: number as u64,
                    clients: plan.clients as u64,
                    rate: plan.rate,
                };
                putting.spawn(putter.put_at_rate(timeline.clone()));
            }
            let mut seen = [Seen::default(), Seen::default()];
            while let Some(of_client) = putting.join_next().await {
                for (seen, of_client) in seen.iter_mut().zip(of_client.expect("clients do not panic")) {
                    seen.merge(of_client);
                }
            }
            Ok(seen)
        })
    };
    std::thread::scope(|scope| {
        let thread = &thread;
        let handles: Vec<_> = (0..threads).map(|index| scope.spawn(move || thread(index))).collect();
        let mut seen = [Seen::default(), Seen::default()];
        for handle in handles {
            let of_thread = handle.join().expect("load threads do not panic")?;
            for (seen, of_thread) in seen.iter_mut().zip(of_thread) {
                seen.merge(of_thread);
            }
        }
        Ok(seen)
    })
}

struct Putter {
    connection: Connection,
    requests: Arc<Vec<Bytes>>,
    number: u64,
    clients: u64,
    rate: u64,
}

impl Putter {
    /// Puts when it is due, whatever became of the put before: a put that had to wait for that one
    /// has waited for the server, and its latency counts from when it was due.
    async fn put_at_rate(self, timeline: Arc<Timeline>) -> [Seen; 2] {
        let method = self.connection.method("/etcdserverpb.KV/Put");
        let mut random = Random::new(self.number + 1);
        let mut seen = [Seen::default(), Seen::default()];
        for turn in 0.. {
            let due = timeline.started + due(turn * self.clients + self.number, self.rate);
            let is_free = Instant::now() < due;
            tokio::time::sleep_until(due.into()).await;
            // Being woken late is this client's own doing.
            let began = if is_free { Instant::now() } else { due };
            if timeline.is_over(due) {
                break;
            }
            let request = &self.requests[(random.next() % self.requests.len() as u64) as usize];
            let outcome = bounded(self.connection.call(&method, request.clone())).await;
            let now = Instant::now();
            let pause = timeline.answered(now);
            let failed = outcome.is_err();
            if let Some(phase) = timeline.phase(due) {
                seen[phase as usize].meter.record(outcome.map(|_| now - began));
            }
            // A pause belongs to the phase in which it ended.
            if let Some(phase) = timeline.phase(now) {
                let seen = &mut seen[phase as usize];
                seen.pause = seen.pause.max(pause);
            }
            // One failure is enough to have failed, and more would only keep a broken server busy.
            if failed {
                break;
            }
        }
        seen
    }
}

/// When the put of this number is due, counted over all clients.
pub fn due(number: u64, rate: u64) -> Duration {
    Duration::from_nanos((u128::from(number) * 1_000_000_000 / u128::from(rate)) as u64)
}

struct Watched {
    before: Driven,
    during: Driven,
    gone: Instant,
}

/// Sees the leases end, and reads what the server used before and meanwhile.
async fn watch(server: &Server, timeline: &Timeline, keys: u64, leases: &HashSet<i64>) -> anyhow::Result<Watched> {
    let connection = Connection::open(&server.endpoints[0]).await?;
    tokio::time::sleep_until(timeline.measured_from.into()).await;
    let probe = UsageProbe::start(&server.pids);
    tokio::time::sleep_until(timeline.first_due.into()).await;
    let before = driven(probe, timeline.first_due - timeline.measured_from);
    let probe = UsageProbe::start(&server.pids);
    if keys > 0 {
        until_none(async || count_keys(&connection).await).await?;
    }
    until_none(async || count_leases(&connection, leases).await).await?;
    let gone = Instant::now();
    Ok(Watched { before, during: driven(probe, gone - timeline.first_due), gone })
}

fn driven(probe: UsageProbe<'_>, elapsed: Duration) -> Driven {
    let (cpu, resident_bytes) = probe.stop();
    Driven { meter: Meter::default(), elapsed, cpu, resident_bytes }
}

/// Asks until the answer is none, and rarely enough to be no load itself.
async fn until_none(ask: impl AsyncFn() -> Result<u64, Failure>) -> anyhow::Result<()> {
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        let asked = Instant::now();
        let left = bounded(ask()).await?;
        if left == 0 {
            return Ok(());
        }
        if left < least {
            (least, since) = (left, Instant::now());
        }
        ensure!(since.elapsed() < STUCK_AFTER, "{left} leases are due and none has ended for {STUCK_AFTER:?}");
        tokio::time::sleep(ASK_EVERY.max(asked.elapsed() * ANSWERS_APART)).await;
    }
}

async fn count_keys(connection: &Connection) -> Result<u64, Failure> {
    let request = RangeRequest {
        key: fleet::KEYS.into(),
        range_end: prefix_end(fleet::KEYS).into(),
        count_only: true,
        ..RangeRequest::default()
    };
    let found: RangeResponse = connection.ask("/etcdserverpb.KV/Range", &request).await?;
    Ok(found.count as u64)
}

/// Others may hold leases, too.
async fn count_leases(connection: &Connection, leases: &HashSet<i64>) -> Result<u64, Failure> {
    let listed: LeaseLeasesResponse = connection.ask("/etcdserverpb.Lease/LeaseLeases", &LeaseLeasesRequest {}).await?;
    Ok(listed.leases.iter().filter(|lease| leases.contains(&lease.id)).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_of_all_clients_together_come_at_the_rate() {
        assert_eq!(due(0, 2_000), Duration::ZERO);
        assert_eq!(due(3, 2_000), Duration::from_micros(1_500));
        assert_eq!(due(2_000 * 3_600, 2_000), Duration::from_secs(3_600));
    }

    #[test]
    fn puts_are_measured_before_the_first_lease_is_due_and_from_then_on() {
        let plan = Plan { warm_up: Duration::from_secs(1), limit: Limit::Operations(4_000), ..Plan::default() };
        let first_due = Instant::now() + Duration::from_secs(2000);
        let timeline = Timeline::new(&plan, first_due);
        assert_eq!(first_due - timeline.started, Duration::from_secs(3));
        assert_eq!(first_due - timeline.measured_from, Duration::from_secs(2));
        assert!(timeline.phase(timeline.started).is_none());
        assert!(matches!(timeline.phase(timeline.measured_from), Some(Phase::Before)));
        assert!(matches!(timeline.phase(first_due), Some(Phase::During)));
        assert!(!timeline.is_over(first_due + Duration::from_secs(1000)));
        timeline.end(first_due);
        assert!(timeline.is_over(first_due));
    }

    #[test]
    fn a_lease_that_is_due_soon_shortens_what_is_measured_before() {
        let plan = Plan { warm_up: Duration::from_secs(6000), ..Plan::default() };
        let first_due = Instant::now() + Duration::from_secs(2000);
        let timeline = Timeline::new(&plan, first_due);
        assert!(timeline.started <= first_due && timeline.measured_from == first_due);
    }

    #[test]
    fn a_pause_is_as_long_as_nobody_was_answered() {
        let timeline = Timeline::new(&Plan::default(), Instant::now() + Duration::from_secs(2000));
        let at = |ms| timeline.started + Duration::from_millis(ms);
        assert_eq!(timeline.answered(at(5)), Duration::from_millis(5));
        assert_eq!(timeline.answered(at(45)), Duration::from_millis(40));
        assert_eq!(timeline.answered(at(44)), Duration::ZERO);
        assert_eq!(timeline.answered(at(46)), Duration::from_millis(1));
    }
}
