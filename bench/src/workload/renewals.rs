//! What it costs a server to hold many leases: all of them renewed, each every third of its TTL.
//!
//! The load is given, so operations per second say only whether the server kept up. What counts is
//! its CPU time and memory, and that no lease was answered too late.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{fleet, measurement};
use crate::Progress;
use crate::drive::Driven;
use crate::meter::{Measurement, Meter, UsageProbe};
use crate::plan::{Limit, Plan, Server};

pub fn run(plan: &Plan, server: &Server, progress: Progress<'_>) -> anyhow::Result<Measurement> {
    progress(&format!("renewals on {}: granting {} leases", server.name, plan.leases));
    let empty = UsageProbe::start(&server.pids);
    let measured = |board: &fleet::Board| {
        progress(&format!("renewals on {}: {} leases", server.name, plan.leases));
        std::thread::sleep(plan.warm_up);
        board.start_measuring();
        let (probe, started) = (UsageProbe::start(&server.pids), Instant::now());
        std::thread::sleep(length(plan));
        board.stop_measuring();
        let elapsed = started.elapsed();
        let (cpu, resident_bytes) = probe.stop();
        progress(&format!("renewals on {}: giving {} leases back", server.name, plan.leases));
        Driven { meter: Meter::default(), elapsed, cpu, resident_bytes }
    };
    let at_a_time = plan.clients.div_ceil(plan.connections);
    let (mut driven, threads) = fleet::hold(plan, server, 0, measured, async |streams| {
        let mut seen = (Meter::default(), 0, 0);
        let mut revoking = JoinSet::new();
        for mut stream in streams {
            seen.0.merge(std::mem::take(&mut stream.meter));
            seen.1 += stream.late;
            seen.2 += stream.gone;
            revoking.spawn(stream.revoke_all(at_a_time));
        }
        while let Some(revoked) = revoking.join_next().await {
            revoked.expect("clients do not panic")?;
        }
        Ok(seen)
    })?;
    let (mut late, mut gone) = (0, 0);
    for (meter, late_on_thread, gone_on_thread) in threads {
        driven.meter.merge(meter);
        late += late_on_thread;
        gone += gone_on_thread;
    }
    let cores = driven.cpu.map(|cpu| cpu.as_secs_f64() / driven.elapsed.as_secs_f64());
    let per_lease = driven
        .resident_bytes
        .zip(empty.resident_before())
        .map(|(with, without)| with.saturating_sub(without) / plan.leases);
    let largest = driven.meter.latencies.largest();
    let mut measured = measurement("renewals".to_owned(), server, driven);
    measured.note = Some(format!(
        "{} leases of {} s: {late} answered late, {gone} gone, {:.1} ms at most; {} of one processor, {} bytes resident for each",
        plan.leases,
        plan.ttl.as_secs(),
        largest.as_secs_f64() * 1e3,
        cores.map_or("unknown part".to_owned(), |cores| format!("{:.1} %", cores * 100.0)),
        per_lease.map_or("unknown".to_owned(), |bytes| bytes.to_string()),
    ));
    Ok(measured)
}

/// The renewals come by the clock, so a number of them is a time, too.
fn length(plan: &Plan) -> Duration {
    match plan.limit {
        Limit::Time(time) => time,
        Limit::Operations(operations) => fleet::round(plan).mul_f64(operations as f64 / plan.leases as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_renewals_is_a_part_of_the_round() {
        let plan = Plan { leases: 1000, ttl: Duration::from_secs(30), ..Plan::default() };
        assert_eq!(length(&Plan { limit: Limit::Operations(500), ..plan.clone() }), Duration::from_secs(5));
        assert_eq!(length(&Plan { limit: Limit::Operations(3000), ..plan.clone() }), Duration::from_secs(30));
        let time = Duration::from_secs(7);
        assert_eq!(length(&Plan { limit: Limit::Time(time), ..plan }), time);
    }
}
