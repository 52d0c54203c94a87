//! Writes a number of keys, each once, with as many puts in flight as there are clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tenure_api::etcdserverpb::{RangeRequest, RangeResponse};

use super::{aside, key_value, prefix_end, value};
use crate::Progress;
use crate::drive::{Driven, Operation, drive};
use crate::plan::{Limit, Plan, Server};
use crate::wire::{Connection, Failure, Method};

/// Writes all keys beneath the prefix.
pub fn run(plan: &Plan, server: &Server, prefix: &'static str, progress: Progress<'_>) -> anyhow::Result<Driven> {
    let next = Arc::new(AtomicU64::new(0));
    let value: Bytes = value(plan.value_bytes, 2).into();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let driven = scope.spawn(|| {
            let driven = drive(plan, server, Duration::ZERO, Limit::Operations(plan.keys), |connection, _| {
                let method = connection.method("/etcdserverpb.KV/Put");
                let client = Client { connection, method, prefix, value: value.clone(), next: next.clone() };
                async move { Ok(client) }
            });
            done.store(1, Ordering::Relaxed);
            driven
        });
        let mut told = 0;
        while done.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(100));
            let percent = next.load(Ordering::Relaxed) * 100 / plan.keys;
            if percent > told && plan.keys > 50_000 {
                told = percent;
                progress(&format!("filling {} with {} keys: {percent} %", server.name, plan.keys));
            }
        }
        driven.join().expect("load threads do not panic")
    })
}

/// Writes the keys unless they are there already.
pub fn ensure(plan: &Plan, server: &Server, prefix: &'static str, progress: Progress<'_>) -> anyhow::Result<()> {
    let request = RangeRequest {
        key: prefix.into(),
        range_end: prefix_end(prefix).into(),
        count_only: true,
        ..RangeRequest::default()
    };
    let found: RangeResponse =
        aside(server, async |connection| connection.ask("/etcdserverpb.KV/Range", &request).await)?;
    if (found.count as u64) < plan.keys {
        let filled = run(plan, server, prefix, progress)?;
        let first = filled.meter.first_failure.unwrap_or_default();
        anyhow::ensure!(filled.meter.failures == 0, "{}: cannot be filled: {first}", server.name);
    }
    Ok(())
}

struct Client {
    connection: Connection,
    method: Method,
    prefix: &'static str,
    value: Bytes,
    next: Arc<AtomicU64>,
}

impl Operation for Client {
    async fn once(&mut self) -> Result<(), Failure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let request = key_value::put(self.prefix, number, self.value.clone());
        self.connection.call(&self.method, request).await.map(drop)
    }
}
