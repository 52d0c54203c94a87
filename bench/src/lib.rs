//! A load client for any server that speaks etcd's v3 API, and comparisons between servers.
//!
//! The client shares the machine with what it measures, so it has to be light: it speaks gRPC
//! over an HTTP/2 of its own ([`wire`]), with requests that are encoded before the clock starts, on a few
//! threads with a runtime of their own each and the connections dealt out to them ([`drive`]).
//!
//! A [`Plan`] names workloads, servers and bounds. [`run`] takes each workload to every server in
//! turn, round after round, so that a noisy neighbour or a warm disk meets all of them alike, and
//! gives a [`Report`]: operations per second, latency quantiles, and what an operation cost the
//! server in CPU time, which is the figure to trust on a machine where everything is shared.
#![forbid(unsafe_code)]

mod drive;
pub mod histogram;
mod meter;
mod plan;
pub mod process;
mod report;
mod wire;
mod workload;

pub use plan::{Limit, Plan, Server, Workload};
pub use report::{Report, Row};
pub use wire::Failure;

/// Told what is being done, in a few words, whenever that changes.
pub type Progress<'a> = &'a (dyn Fn(&str) + Sync);

/// Runs the plan, every workload against every server in turn, and reports.
///
/// An error means that a workload could not be set up at all; operations that fail while it runs
/// are counted in the report.
pub fn run(plan: &Plan, progress: Progress<'_>) -> anyhow::Result<Report> {
    plan.validate()?;
    let mut report = Report::new(plan);
    for &workload in &plan.workloads {
        for round in 0..plan.rounds {
            // Each round starts with another server: none is always the one after whom the disk is warm.
            for turn in 0..plan.servers.len() {
                let server = &plan.servers[(turn + round) % plan.servers.len()];
                progress(&format!("{workload} on {} (round {} of {})", server.name, round + 1, plan.rounds));
                report.add(workload.run(plan, server, progress)?);
            }
        }
    }
    Ok(report)
}
