//! Many leases held at once: granted by all clients, renewed in turn over one stream for each connection.
//!
//! A round over all leases takes a third of their TTL, and each has its place in it, so renewals are
//! spread evenly however fast the leases were granted. They begin with the first grant: a server may
//! take longer than the TTL to grant them all.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use tenure_api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest};
use tokio::sync::Barrier;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::{key_value, lease, value};
use crate::drive::{bounded, connect, runtime};
use crate::meter::Meter;
use crate::plan::{Plan, Server};
use crate::wire::{Connection, Failure, Replies, Requests, decode, frame};

/// Keys of leases are written beneath it.
pub const KEYS: &str = "bench/expiry/";
/// As fine as timers are.
const TICK: Duration = Duration::from_millis(1);
/// Renewals in one frame when all go out at once.
const AT_ONCE: usize = 512;

/// Which renewals are measured: those sent between two moments, in nanoseconds since the epoch.
pub struct Board {
    epoch: Instant,
    measured_from: AtomicU64,
    measured_until: AtomicU64,
    failed: AtomicBool,
}

impl Board {
    pub fn start_measuring(&self) {
        self.measured_from.store(self.nanos(Instant::now()), Ordering::Relaxed);
    }

    pub fn stop_measuring(&self) {
        self.measured_until.store(self.nanos(Instant::now()), Ordering::Relaxed);
    }

    fn is_measured(&self, sent: Instant) -> bool {
        let (from, until) = (&self.measured_from, &self.measured_until);
        (from.load(Ordering::Relaxed)..until.load(Ordering::Relaxed)).contains(&self.nanos(sent))
    }

    fn nanos(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.epoch).as_nanos() as u64
    }
}

/// How often a lease is renewed: what clients of every kind do by default.
pub fn round(plan: &Plan) -> Duration {
    plan.ttl / 3
}

/// Grants all leases of the plan, the first `keys` of them with a key each, and renews them while
/// `meanwhile` runs; then hands the streams of each thread to `afterwards`, with nothing on its way.
pub fn hold<Meanwhile, Afterwards>(
    plan: &Plan,
    server: &Server,
    keys: u64,
    meanwhile: impl FnOnce(&Board) -> Meanwhile,
    afterwards: impl AsyncFn(Vec<Stream>) -> Result<Afterwards, Failure> + Sync,
) -> anyhow::Result<(Meanwhile, Vec<Afterwards>)>
where
    Afterwards: Send,
{
    let threads = plan.threads.min(plan.connections).min(plan.clients);
    let board = Arc::new(Board {
        epoch: Instant::now(),
        measured_from: AtomicU64::new(u64::MAX),
        measured_until: AtomicU64::new(u64::MAX),
        failed: AtomicBool::new(false),
    });
    // Nobody may block a thread at a gate: its streams have to go on renewing.
    let gate = Barrier::new(threads + 1);
    let thread = |thread: usize| -> anyhow::Result<Afterwards> {
        let outcome = runtime()?.block_on(async {
            let granting = Granting { plan, server, keys, thread, threads, board: &board };
            let held = granting.all().await;
            if held.is_err() {
                board.failed.store(true, Ordering::Relaxed);
            }
            // Whatever happened, every thread passes the gates, or the others would wait forever.
            gate.wait().await;
            gate.wait().await;
            afterwards(held?.let_rest().await?).await
        });
        outcome.with_context(|| format!("{} cannot hold the leases", server.name))
    };
    std::thread::scope(|scope| {
        let thread = &thread;
        let handles: Vec<_> = (0..threads).map(|index| scope.spawn(move || thread(index))).collect();
        let runtime = runtime()?;
        runtime.block_on(gate.wait());
        let meanwhile = (!board.failed.load(Ordering::Relaxed)).then(|| meanwhile(&board));
        runtime.block_on(gate.wait());
        let mut outcomes = Vec::new();
        for handle in handles {
            outcomes.push(handle.join().expect("load threads do not panic")?);
        }
        Ok((meanwhile.context("a thread failed and did not say why")?, outcomes))
    })
}

/// One thread's share of the leases, while they are granted.
struct Granting<'a> {
    plan: &'a Plan,
    server: &'a Server,
    keys: u64,
    thread: usize,
    threads: usize,
    board: &'a Arc<Board>,
}

impl Granting<'_> {
    async fn all(&self) -> Result<Held, Failure> {
        let (plan, thread, threads) = (self.plan, self.thread as u64, self.threads as u64);
        let connections = connect(plan, self.server, self.thread, self.threads).await?;
        let of_thread = plan.leases.saturating_sub(thread).div_ceil(threads);
        let places = of_thread.div_ceil(connections.len() as u64);
        let (mut renewing, mut clients) = (JoinSet::new(), Vec::new());
        for connection in connections {
            let stream = bounded(Stream::open(connection.clone(), plan, places as usize, self.board.clone())).await?;
            let (sender, receiver) = unbounded_channel();
            renewing.spawn(stream.renew(Rounds { places, length: round(plan), next: 0 }, receiver));
            clients.push((connection, sender));
        }
        let next = Arc::new(AtomicU64::new(0));
        let value: Bytes = value(plan.value_bytes, 3).into();
        let (ttl_seconds, keys) = (plan.ttl.as_secs() as i64, self.keys);
        let mut granting = JoinSet::new();
        for _ in (self.thread..plan.clients).step_by(self.threads) {
            let (clients, next, value) = (clients.clone(), next.clone(), value.clone());
            granting.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= of_thread {
                        return Ok::<(), Failure>(());
                    }
                    let place = number / clients.len() as u64;
                    let (connection, sender) = &clients[(number % clients.len() as u64) as usize];
                    let id = bounded(lease::grant_for(connection, ttl_seconds)).await?;
                    // A stream that has failed says so itself, when it is asked to rest.
                    let _ = sender.send((place as usize, Lease { id, renewed: Instant::now(), sent: None }));
                    let number = number * threads + thread;
                    if number < keys {
                        bounded(attach(connection, id, number, value.clone())).await?;
                    }
                }
            });
        }
        while let Some(granted) = granting.join_next().await {
            granted.expect("clients do not panic")?;
        }
        Ok(Held { renewing, granted: clients.into_iter().map(|(_, sender)| sender).collect() })
    }
}

async fn attach(connection: &Connection, lease: i64, number: u64, value: Bytes) -> Result<(), Failure> {
    let put = PutRequest { key: key_value::key(KEYS, number), value, lease, ..PutRequest::default() };
    connection.call(&connection.method("/etcdserverpb.KV/Put"), frame(&put)).await.map(drop)
}

/// One thread's streams, at work as long as somebody could still give them leases.
struct Held {
    renewing: JoinSet<Stream>,
    granted: Vec<UnboundedSender<(usize, Lease)>>,
}

impl Held {
    /// Renews no more; gives the streams once all that was sent is answered.
    async fn let_rest(self) -> Result<Vec<Stream>, Failure> {
        let Held { mut renewing, granted } = self;
        drop(granted);
        let mut streams = Vec::new();
        while let Some(stream) = bounded(async { Ok(renewing.join_next().await) }).await? {
            streams.push(stream.expect("streams do not panic"));
        }
        Ok(streams)
    }
}

struct Lease {
    id: i64,
    /// When it was last answered that it lives.
    renewed: Instant,
    sent: Option<Instant>,
}

/// A keepalive stream and the leases that are renewed over it.
pub struct Stream {
    pub meter: Meter,
    /// Renewals answered later than a TTL after the one before: the lease may have been gone meanwhile.
    pub late: u64,
    /// Renewals answered with no TTL: the lease was gone.
    pub gone: u64,
    connection: Connection,
    requests: Requests,
    replies: Replies,
    ttl: Duration,
    leases: Vec<Option<Lease>>,
    places: HashMap<i64, usize>,
    on_their_way: usize,
    board: Arc<Board>,
}

/// All leases of a stream, renewed as fast as the server answers.
pub struct AllRenewed {
    pub leases: Vec<i64>,
    pub first_sent: Instant,
    pub last_answered: Instant,
    /// As the server has it: it may have raised what was asked for.
    pub ttl_seconds: u64,
}

impl Stream {
    async fn open(connection: Connection, plan: &Plan, places: usize, board: Arc<Board>) -> Result<Stream, Failure> {
        let (requests, replies) = connection.stream(&connection.method(lease::KEEP_ALIVE)).await?;
        Ok(Stream {
            meter: Meter::default(),
            late: 0,
            gone: 0,
            connection,
            requests,
            replies,
            ttl: plan.ttl,
            leases: std::iter::repeat_with(|| None).take(places).collect(),
            places: HashMap::with_capacity(places),
            on_their_way: 0,
            board,
        })
    }

    /// Until nobody can give it leases any more and all that was sent is answered.
    async fn renew(mut self, mut rounds: Rounds, mut granted: UnboundedReceiver<(usize, Lease)>) -> Stream {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        while open || self.on_their_way > 0 {
            let outcome = tokio::select! {
                reply = self.replies.next(), if self.on_their_way > 0 => self.answered(reply).map(drop),
                lease = granted.recv(), if open => {
                    match lease {
                        Some((place, lease)) => self.hold(place, lease),
                        None => open = false,
                    }
                    Ok(())
                }
                _ = tick.tick(), if open => {
                    let due = rounds.due(self.board.epoch.elapsed());
                    self.send(due.map(|turn| (turn % rounds.places) as usize))
                }
            };
            if let Err(failure) = outcome {
                self.meter.record(Err(failure));
                break;
            }
        }
        self
    }

    fn hold(&mut self, place: usize, lease: Lease) {
        self.places.insert(lease.id, place);
        self.leases[place] = Some(lease);
    }

    /// Sends renewals in one frame, except for places that have no lease or one whose renewal is on its way.
    fn send(&mut self, places: impl Iterator<Item = usize>) -> Result<(), Failure> {
        let (now, mut frames) = (Instant::now(), BytesMut::new());
        for place in places {
            if let Some(lease) = self.leases[place].as_mut().filter(|lease| lease.sent.is_none()) {
                lease.sent = Some(now);
                frames.extend_from_slice(&frame(&LeaseKeepAliveRequest { id: lease.id }));
                self.on_their_way += 1;
            }
        }
        if frames.is_empty() { Ok(()) } else { self.requests.send(frames.freeze()) }
    }

    /// Takes an answer and gives the TTL in it.
    fn answered(&mut self, reply: Result<Option<Bytes>, Failure>) -> Result<u64, Failure> {
        let reply = reply?.ok_or_else(|| Failure::Wrong("the stream ended".to_owned()))?;
        let renewed: LeaseKeepAliveResponse = decode(reply)?;
        let unasked = || Failure::Wrong(format!("lease {} is answered and was not asked for", renewed.id));
        let place = self.places.get(&renewed.id).copied().ok_or_else(unasked)?;
        let lease = self.leases[place].as_mut().ok_or_else(unasked)?;
        let sent = lease.sent.take().ok_or_else(unasked)?;
        let now = Instant::now();
        self.on_their_way -= 1;
        if renewed.ttl <= 0 {
            self.leases[place] = None;
            self.gone += 1;
            // Also while nothing is measured: a run with fewer leases than it says is none.
            self.meter.fail(format!("lease {} was gone when it was renewed", renewed.id));
            return Ok(0);
        }
        let is_late = now - lease.renewed > self.ttl;
        lease.renewed = now;
        if self.board.is_measured(sent) {
            self.meter.record(Ok(now - sent));
            self.late += u64::from(is_late);
        }
        Ok(renewed.ttl as u64)
    }

    /// Renews all leases at once, so that they fall due at once.
    pub async fn renew_all(mut self) -> Result<AllRenewed, Failure> {
        let first_sent = Instant::now();
        for start in (0..self.leases.len()).step_by(AT_ONCE) {
            self.send(start..self.leases.len().min(start + AT_ONCE))?;
        }
        let mut ttl_seconds = u64::MAX;
        while self.on_their_way > 0 {
            let reply = bounded(self.replies.next()).await;
            ttl_seconds = ttl_seconds.min(self.answered(reply)?);
        }
        if let Some(failure) = self.meter.first_failure {
            return Err(Failure::Wrong(failure));
        }
        let leases = self.leases.iter().flatten().map(|lease| lease.id).collect();
        Ok(AllRenewed { leases, first_sent, last_answered: Instant::now(), ttl_seconds })
    }

    /// Gives all leases back, some at a time.
    pub async fn revoke_all(self, at_a_time: usize) -> Result<(), Failure> {
        let leases: Arc<[i64]> = self.leases.iter().flatten().map(|lease| lease.id).collect();
        let next = Arc::new(AtomicU64::new(0));
        let mut revoking = JoinSet::new();
        for _ in 0..at_a_time {
            let (connection, leases, next) = (self.connection.clone(), leases.clone(), next.clone());
            revoking.spawn(async move {
                while let Some(lease) = leases.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let revoked = async {
                        lease::revoke(&connection, *lease).await;
                        Ok(())
                    };
                    bounded(revoked).await?;
                }
                Ok::<(), Failure>(())
            });
        }
        while let Some(revoked) = revoking.join_next().await {
            revoked.expect("clients do not panic")?;
        }
        Ok(())
    }
}

/// Whose turn it is: places take equal parts of a round, and round follows on round.
struct Rounds {
    places: u64,
    length: Duration,
    next: u64,
}

impl Rounds {
    /// The turns, counted over all rounds, that have come since the last time this was asked.
    fn due(&mut self, elapsed: Duration) -> Range<u64> {
        let passed = (elapsed.as_nanos() * u128::from(self.places) / self.length.as_nanos()) as u64;
        let due = self.next..passed.max(self.next);
        self.next = due.end;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_evenly_and_none_is_left_out() {
        let mut rounds = Rounds { places: 1000, length: Duration::from_secs(10), next: 0 };
        let mut turns = Vec::new();
        for ms in 0..=20_000 {
            let due = rounds.due(Duration::from_millis(ms));
            assert!(due.end - due.start <= 1, "{due:?} at {ms} ms");
            turns.extend(due);
        }
        assert_eq!(turns, (0..2000).collect::<Vec<u64>>());
    }

    #[test]
    fn whoever_comes_late_is_given_what_it_missed_and_nothing_twice() {
        let mut rounds = Rounds { places: 10, length: Duration::from_secs(1), next: 0 };
        assert_eq!(rounds.due(Duration::from_millis(350)), 0..3);
        assert_eq!(rounds.due(Duration::from_millis(350)), 3..3);
        assert_eq!(rounds.due(Duration::from_millis(1200)), 3..12);
        assert_eq!(rounds.due(Duration::from_millis(1100)), 12..12);
    }

    #[test]
    fn a_round_without_places_has_no_turns() {
        assert!(Rounds { places: 0, length: Duration::from_secs(1), next: 0 }.due(Duration::from_secs(5)).is_empty());
    }

    #[test]
    fn only_what_is_sent_between_the_two_moments_is_measured() {
        let epoch = Instant::now();
        let board = Board {
            epoch,
            measured_from: AtomicU64::new(u64::MAX),
            measured_until: AtomicU64::new(u64::MAX),
            failed: AtomicBool::new(false),
        };
        let sent = |nanos| board.is_measured(epoch + Duration::from_nanos(nanos));
        assert!(!sent(5));
        board.measured_from.store(5, Ordering::Relaxed);
        assert!(!sent(4) && sent(5) && sent(9));
        board.measured_until.store(9, Ordering::Relaxed);
        assert!(sent(8) && !sent(9));
    }
}
