//! What a long read does to short writes: puts alone, then puts beside a client that reads all keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_api::etcdserverpb::RangeRequest;

use super::{fill, key_value, measurement, prefix_end};
use crate::Progress;
use crate::drive::{Driven, drive, runtime};
use crate::meter::Measurement;
use crate::plan::{Plan, Server};
use crate::wire::{Connection, Failure, frame};

const PREFIX: &str = "bench/fill/";

pub fn run(plan: &Plan, server: &Server, progress: Progress<'_>) -> anyhow::Result<Vec<Measurement>> {
    fill::ensure(plan, server, PREFIX, progress)?;
    progress(&format!("range on {}: puts alone", server.name));
    let alone = measurement("range: put alone".to_owned(), server, puts(plan, server)?);
    progress(&format!("range on {}: puts while all keys are read", server.name));
    let stop = AtomicBool::new(false);
    let (beside, reads) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(server, &stop));
        let beside = puts(plan, server);
        stop.store(true, Ordering::Relaxed);
        (beside, reader.join().expect("load threads do not panic"))
    });
    let (mut beside, reads) = (measurement("range: put beside".to_owned(), server, beside?), reads?);
    if reads.count == 0 {
        beside.meter.fail("no range was answered while the puts ran".to_owned());
    }
    beside.note = Some(format!(
        "{} ranges over all keys, {:.1} MB each, {:.2} s each",
        reads.count,
        reads.bytes as f64 / reads.count.max(1) as f64 / 1e6,
        reads.elapsed.as_secs_f64() / reads.count.max(1) as f64,
    ));
    Ok(vec![alone, beside])
}

fn puts(plan: &Plan, server: &Server) -> anyhow::Result<Driven> {
    let requests = Arc::new(key_value::puts(plan, "bench/put/"));
    drive(plan, server, plan.warm_up, plan.limit, |connection, number| {
        key_value::Client::prepare(connection, "/etcdserverpb.KV/Put", requests.clone(), number)
    })
}

struct Reads {
    count: u64,
    bytes: u64,
    elapsed: Duration,
}

fn read_all(server: &Server, stop: &AtomicBool) -> anyhow::Result<Reads> {
    let request =
        frame(&RangeRequest { key: PREFIX.into(), range_end: prefix_end(PREFIX).into(), ..RangeRequest::default() });
    runtime()?.block_on(async {
        let connection = Connection::open(&server.endpoints[0]).await?;
        let method = connection.method("/etcdserverpb.KV/Range");
        let (started, mut reads) = (Instant::now(), Reads { count: 0, bytes: 0, elapsed: Duration::ZERO });
        // The first read runs to its end whatever happens: without it there is nothing to report.
        while !stop.load(Ordering::Relaxed) {
            let read =
                tokio::time::timeout(Duration::from_secs(120), connection.call_and_count(&method, request.clone()));
            let bytes = read.await.map_err(|_| Failure::Wrong("a range took over two minutes".to_owned()))??;
            reads.count += 1;
            reads.bytes += bytes;
            reads.elapsed = started.elapsed();
        }
        Ok(reads)
    })
}
