//! A crowd before one lock: all clients wait for it at once, and each gives it back as soon as it has it.
//!
//! Counts that a release is heard by exactly one of those who wait, and that their turns come in the
//! order in which they came; tells how much memory the server took for them.

use std::time::Instant;

use anyhow::ensure;
use tenure_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tokio::task::JoinSet;

use super::{lease, measurement};
use crate::drive::{Driven, bounded, runtime};
use crate::meter::{Measurement, Meter, UsageProbe};
use crate::plan::{Plan, Server};
use crate::wire::{Connection, Failure, decode, frame};

const NAME: &str = "bench/waiters";
/// Streams of one connection, below what servers allow.
const STREAMS: usize = 200;

pub fn run(plan: &Plan, server: &Server) -> anyhow::Result<Measurement> {
    runtime()?.block_on(crowd(plan, server))
}

async fn crowd(plan: &Plan, server: &Server) -> anyhow::Result<Measurement> {
    let mut connections = Vec::new();
    for number in 0..plan.clients.div_ceil(STREAMS) {
        connections.push(Connection::open(&server.endpoints[number % server.endpoints.len()]).await?);
    }
    let before = UsageProbe::start(&server.pids);
    let mut leases = Vec::new();
    for number in 0..plan.clients {
        leases.push(bounded(lease::grant(&connections[number / STREAMS])).await?);
    }
    let first = bounded(lock(connections[0].clone(), leases[0])).await?;
    let mut waiting = JoinSet::new();
    for (number, lease) in leases.iter().enumerate().skip(1) {
        waiting.spawn(lock(connections[number / STREAMS].clone(), *lease));
        // The next one comes only when this one stands in the queue, so that there is an order to be kept.
        bounded(queued(&connections[0], number + 1)).await?;
    }
    let resident_bytes = before.stop().1;
    let idle_bytes = before.resident_before();

    let probe = UsageProbe::start(&server.pids);
    let started = Instant::now();
    let mut meter = Meter::default();
    let mut held = first;
    let mut early = 0;
    for expected in &leases[1..] {
        let released = Instant::now();
        bounded(unlock(&connections[0], &held)).await?;
        held = match bounded(async { waiting.join_next().await.expect("one still waits").expect("no panic") }).await {
            Ok(held) => held,
            Err(failure) => {
                meter.record(Err(failure));
                break;
            }
        };
        meter.record(Ok(released.elapsed()));
        ensure!(held.ends_with(&format!("/{expected:x}")), "{held} is granted out of turn: it is lease {expected:x}'s");
        early += usize::from(waiting.try_join_next().is_some());
    }
    let elapsed = started.elapsed();
    let (cpu, _) = probe.stop();
    bounded(unlock(&connections[0], &held)).await?;
    for lease in leases {
        lease::revoke(&connections[0], lease).await;
    }
    let grants = meter.latencies.count();
    let mut measured = measurement("waiters".to_owned(), server, Driven { meter, elapsed, cpu, resident_bytes });
    let per_waiter =
        resident_bytes.zip(idle_bytes).map(|(with, without)| with.saturating_sub(without) / plan.clients as u64);
    measured.note = Some(format!(
        "{} waiters: {grants} grants in the order in which they came, {early} besides; {} bytes resident for each",
        plan.clients,
        per_waiter.map_or("unknown".to_owned(), |bytes| bytes.to_string())
    ));
    Ok(measured)
}

async fn lock(connection: Connection, lease: i64) -> Result<String, Failure> {
    let request = frame(&LockRequest { name: NAME.into(), lease });
    let locked: LockResponse = decode(connection.call(&connection.method("/v3lockpb.Lock/Lock"), request).await?)?;
    Ok(String::from_utf8_lossy(&locked.key).into_owned())
}

async fn unlock(connection: &Connection, key: &str) -> Result<(), Failure> {
    let request = UnlockRequest { key: key.to_owned().into() };
    connection.ask::<UnlockResponse>("/v3lockpb.Lock/Unlock", &request).await.map(drop)
}

/// Until so many stand in the queue.
async fn queued(connection: &Connection, count: usize) -> Result<(), Failure> {
    use tenure_api::etcdserverpb::{RangeRequest, RangeResponse};
    let (key, range_end) = (format!("{NAME}/"), super::prefix_end(&format!("{NAME}/")));
    let request = RangeRequest { key: key.into(), range_end: range_end.into(), count_only: true, ..Default::default() };
    loop {
        let found: RangeResponse = connection.ask("/etcdserverpb.KV/Range", &request).await?;
        if found.count as usize >= count {
            return Ok(());
        }
    }
}
