//! Fan-out: every client watches one key, one writer changes it.
//!
//! The value carries the number of the put and the time it was sent at, so a watcher knows how old
//! an event is and whether one is missing, repeated or out of order. The writer may be a few puts
//! ahead of the slowest watcher and not more: a delivery is counted only if it was asked for, and
//! nobody measures how well a server buffers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use tenure_api::etcdserverpb::watch_request::RequestUnion;
use tenure_api::etcdserverpb::{PutRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use tokio::sync::Semaphore;

use crate::drive::{Driven, bounded, connect, runtime};
use crate::meter::{Meter, UsageProbe};
use crate::plan::{Limit, Plan, Server};
use crate::wire::{Connection, Failure, Replies, Requests, decode, frame};

const KEY: &str = "bench/watch";
const HEADER_BYTES: usize = 16;
const LATE_AFTER: Duration = Duration::from_secs(30);

/// What the writer and all watchers share.
struct Board {
    epoch: Instant,
    watchers: usize,
    depth: usize,
    ready: Semaphore,
    /// Puts that the writer may send before it has to wait for watchers.
    window: Semaphore,
    /// For each put in flight: how many watchers have seen it.
    seen: Vec<AtomicU64>,
    /// Events sent before this moment (in nanoseconds since the epoch) belong to the warm-up.
    measured_from: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Board {
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn fail(&self, failure: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        // Whoever waits is woken and finds the failure.
        self.ready.close();
        self.window.close();
    }

    fn delivered(&self, number: u64) {
        let seen = &self.seen[number as usize % self.depth];
        if seen.fetch_add(1, Ordering::AcqRel) + 1 == self.watchers as u64 {
            seen.store(0, Ordering::Release);
            self.window.add_permits(1);
        }
    }
}

pub fn run(plan: &Plan, server: &Server) -> anyhow::Result<Driven> {
    let board = Arc::new(Board {
        epoch: Instant::now(),
        watchers: plan.clients,
        depth: plan.depth,
        ready: Semaphore::new(0),
        window: Semaphore::new(plan.depth),
        seen: (0..plan.depth).map(|_| AtomicU64::new(0)).collect(),
        measured_from: AtomicU64::new(u64::MAX),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
    });
    let threads = plan.threads.min(plan.connections).min(plan.clients);
    let meters: Vec<Arc<Mutex<Meter>>> = (0..plan.clients).map(|_| Arc::default()).collect();
    let mut driven = std::thread::scope(|scope| {
        for thread in 0..threads {
            let (board, meters) = (&board, &meters);
            scope.spawn(move || {
                if let Err(failure) = watch_thread(plan, server, thread, threads, board, meters) {
                    board.fail(format!("{failure:#}"));
                }
            });
        }
        let written = runtime().and_then(|runtime| runtime.block_on(write(plan, server, &board)));
        board.stop.store(true, Ordering::Relaxed);
        written
    })?;
    for meter in &meters {
        driven.meter.merge(meter.lock().unwrap_or_else(PoisonError::into_inner).clone());
    }
    Ok(driven)
}

/// Runs the watchers of one thread until the run is over.
fn watch_thread(
    plan: &Plan,
    server: &Server,
    thread: usize,
    threads: usize,
    board: &Arc<Board>,
    meters: &[Arc<Mutex<Meter>>],
) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let connections = connect(plan, server, thread, threads).await?;
        for (place, number) in (thread..plan.clients).step_by(threads).enumerate() {
            let stream = bounded(open_watch(&connections[place % connections.len()])).await?;
            let (board, meter) = (board.clone(), meters[number].clone());
            tokio::spawn(async move {
                if let Err(failure) = watch(stream, &board, &meter).await {
                    board.fail(failure.to_string());
                }
            });
        }
        while !board.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
}

async fn open_watch(connection: &Connection) -> Result<(Requests, Replies), Failure> {
    let (mut requests, mut replies) = connection.stream(&connection.method("/etcdserverpb.Watch/Watch")).await?;
    let create = WatchCreateRequest { key: KEY.into(), ..WatchCreateRequest::default() };
    requests.send(frame(&WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }))?;
    match replies.next().await?.map(decode::<WatchResponse>).transpose()? {
        Some(created) if created.created && !created.canceled => Ok((requests, replies)),
        other => Err(Failure::Wrong(format!("the watch was not created: {other:?}"))),
    }
}

async fn watch(stream: (Requests, Replies), board: &Board, meter: &Mutex<Meter>) -> Result<(), Failure> {
    // The sending half stays open as long as the watch is wanted.
    let (_requests, mut replies) = stream;
    board.ready.add_permits(1);
    let mut expected = 0;
    loop {
        let reply = replies.next().await?.ok_or_else(|| Failure::Wrong("the watch ended".to_owned()))?;
        let response: WatchResponse = decode(reply)?;
        if response.canceled {
            return Err(Failure::Wrong(format!("the watch was cancelled: {}", response.cancel_reason)));
        }
        for event in response.events {
            let (number, sent) = event.kv.as_ref().and_then(|kv| read_value(&kv.value)).unwrap_or_default();
            if number != expected {
                return Err(Failure::Wrong(format!("a watcher waited for put {expected} and got {number}")));
            }
            expected += 1;
            if sent >= board.measured_from.load(Ordering::Relaxed) {
                let age = Duration::from_nanos(board.now().saturating_sub(sent));
                meter.lock().unwrap_or_else(PoisonError::into_inner).record(Ok(age));
            }
            board.delivered(number);
        }
    }
}

/// Puts until the limit is reached, and waits until the last put is everywhere.
async fn write(plan: &Plan, server: &Server, board: &Arc<Board>) -> anyhow::Result<Driven> {
    let connection = Connection::open(&server.endpoints[0]).await?;
    let mut writer = Writer { connection, board: board.clone(), number: 0, value_bytes: plan.value_bytes };
    wait(board, &board.ready, plan.clients).await.context("the watches could not be opened")?;
    writer.put_until(Some(Instant::now() + plan.warm_up), u64::MAX).await?;
    writer.settle(plan.depth).await?;
    board.measured_from.store(board.now(), Ordering::Relaxed);
    let (probe, started) = (UsageProbe::start(&server.pids), Instant::now());
    match plan.limit {
        Limit::Time(time) => writer.put_until(Some(started + time), u64::MAX).await?,
        Limit::Operations(operations) => writer.put_until(None, operations.div_ceil(plan.clients as u64)).await?,
    }
    writer.settle(plan.depth).await?;
    let elapsed = started.elapsed();
    let (cpu, resident_bytes) = probe.stop();
    Ok(Driven { meter: Meter::default(), elapsed, cpu, resident_bytes })
}

struct Writer {
    connection: Connection,
    board: Arc<Board>,
    number: u64,
    value_bytes: usize,
}

impl Writer {
    async fn put_until(&mut self, deadline: Option<Instant>, mut left: u64) -> anyhow::Result<()> {
        let method = self.connection.method("/etcdserverpb.KV/Put");
        while left > 0 && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            wait(&self.board, &self.board.window, 1).await?;
            let value = write_value(self.number, self.board.now(), self.value_bytes);
            let request = frame(&PutRequest { key: KEY.into(), value, ..PutRequest::default() });
            // One put after the other keeps them in order; the watchers may still be on earlier ones.
            bounded(self.connection.call(&method, request)).await?;
            self.number += 1;
            left -= 1;
        }
        Ok(())
    }

    /// Waits until every put has reached every watcher.
    async fn settle(&self, depth: usize) -> anyhow::Result<()> {
        wait(&self.board, &self.board.window, depth).await?;
        self.board.window.add_permits(depth);
        Ok(())
    }
}

async fn wait(board: &Board, semaphore: &Semaphore, permits: usize) -> anyhow::Result<()> {
    let failure = || board.failure.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    match tokio::time::timeout(LATE_AFTER, semaphore.acquire_many(permits as u32)).await {
        Ok(Ok(permit)) => permit.forget(),
        Ok(Err(_)) => bail!(failure()),
        Err(_) => bail!("watchers still wait for an event after {LATE_AFTER:?}"),
    }
    Ok(())
}

fn write_value(number: u64, sent: u64, bytes: usize) -> Bytes {
    let mut value = Vec::with_capacity(bytes.max(HEADER_BYTES));
    value.extend_from_slice(&number.to_be_bytes());
    value.extend_from_slice(&sent.to_be_bytes());
    value.resize(bytes.max(HEADER_BYTES), b'.');
    value.into()
}

fn read_value(value: &[u8]) -> Option<(u64, u64)> {
    let number = value.get(..8)?.try_into().ok()?;
    let sent = value.get(8..HEADER_BYTES)?.try_into().ok()?;
    Some((u64::from_be_bytes(number), u64::from_be_bytes(sent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_carry_number_and_time() {
        assert_eq!(read_value(&write_value(7, 9, 256)), Some((7, 9)));
        assert_eq!(write_value(7, 9, 256).len(), 256);
        assert_eq!(read_value(&write_value(7, 9, 0)), Some((7, 9)));
        assert_eq!(read_value(b"short"), None);
    }
}
