//! The workloads: what each client does, and how its run becomes figures.
//!
//! Everything is written beneath `bench/`, and nothing but leases is removed afterwards: a fill may
//! take minutes and is there to be used by the next run.

mod expiry;
mod fill;
mod fleet;
mod key_value;
mod lease;
mod lock;
mod native;
mod phases;
mod range;
mod renewals;
mod session;
mod waiters;
mod watch;

use std::sync::Arc;

use crate::Progress;
use crate::drive::{Driven, bounded, drive, runtime};
use crate::meter::Measurement;
use crate::plan::{Plan, Server, Workload};
use crate::wire::{Connection, Failure};

impl Workload {
    pub(crate) fn run(self, plan: &Plan, server: &Server, progress: Progress<'_>) -> anyhow::Result<Vec<Measurement>> {
        let driven = match self {
            Workload::Put => {
                let requests = Arc::new(key_value::puts(plan, "bench/put/"));
                drive(plan, server, plan.warm_up, plan.limit, |connection, number| {
                    key_value::Client::prepare(connection, "/etcdserverpb.KV/Put", requests.clone(), number)
                })?
            }
            Workload::Get => {
                fill::ensure(plan, server, "bench/get/", progress)?;
                let requests = Arc::new(key_value::gets(plan, "bench/get/"));
                drive(plan, server, plan.warm_up, plan.limit, |connection, number| {
                    key_value::Client::prepare(connection, "/etcdserverpb.KV/Range", requests.clone(), number)
                })?
            }
            Workload::Lock => drive(plan, server, plan.warm_up, plan.limit, |connection, number| {
                lock::Client::prepare(connection, format!("bench/lock/{number}"))
            })?,
            Workload::Native => drive(plan, server, plan.warm_up, plan.limit, |connection, number| {
                native::Client::prepare(connection, format!("bench/native/{number}"))
            })?,
            Workload::Contend => drive(plan, server, plan.warm_up, plan.limit, |connection, _| {
                lock::Client::prepare(connection, "bench/contend".to_owned())
            })?,
            Workload::Session => drive(plan, server, plan.warm_up, plan.limit, |connection, number| {
                session::Client::prepare(connection, number, plan.depth)
            })?,
            Workload::Lease => drive(plan, server, plan.warm_up, plan.limit, |connection, _| async move {
                Ok(lease::GrantAndRevoke::prepare(connection))
            })?,
            Workload::KeepAlive => {
                drive(plan, server, plan.warm_up, plan.limit, |connection, _| lease::KeepAlive::prepare(connection))?
            }
            Workload::Renewals => return Ok(vec![renewals::run(plan, server, progress)?]),
            Workload::Expiry => return expiry::run(plan, server, progress),
            Workload::Watch => watch::run(plan, server)?,
            Workload::Waiters => return Ok(vec![waiters::run(plan, server)?]),
            Workload::Range => return range::run(plan, server, progress),
            Workload::Phases => return phases::run(plan, server, progress),
            Workload::Fill => fill::run(plan, server, "bench/fill/", progress)?,
        };
        Ok(vec![measurement(self.name().to_owned(), server, driven)])
    }
}

fn measurement(label: String, server: &Server, driven: Driven) -> Measurement {
    Measurement {
        label,
        server: server.name.clone(),
        meter: driven.meter,
        elapsed: driven.elapsed,
        cpu: driven.cpu,
        resident_bytes: driven.resident_bytes,
        note: None,
    }
}

/// A value of the wanted size that does not compress to nothing.
fn value(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..bytes).map(|_| b'a' + (random.next() % 26) as u8).collect()
}

/// Xorshift: good enough to pick keys, and free.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}

/// Runs something against one server outside of any measurement.
fn aside<Answer>(
    server: &Server,
    call: impl AsyncFnOnce(Connection) -> Result<Answer, Failure>,
) -> anyhow::Result<Answer> {
    runtime()?.block_on(async {
        let connection = Connection::open(&server.endpoints[0]).await?;
        Ok(bounded(call(connection)).await?)
    })
}

fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("prefixes of this crate are not empty") += 1;
    end
}
