//! What clients and servers did during the measured part of a run.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::process::{self, Usage};
use crate::wire::Failure;

/// What one client saw, or many of them together.
#[derive(Clone, Default)]
pub struct Meter {
    pub latencies: Histogram,
    pub failures: u64,
    pub first_failure: Option<String>,
}

impl Meter {
    pub fn record(&mut self, outcome: Result<Duration, Failure>) {
        match outcome {
            Ok(time) => self.latencies.record(time),
            Err(failure) => self.fail(failure.to_string()),
        }
    }

    pub fn fail(&mut self, failure: String) {
        self.failures += 1;
        self.first_failure.get_or_insert(failure);
    }

    pub fn merge(&mut self, other: Meter) {
        self.latencies.merge(&other.latencies);
        self.failures += other.failures;
        if self.first_failure.is_none() {
            self.first_failure = other.first_failure;
        }
    }
}

/// One measured run of one workload against one server.
pub struct Measurement {
    pub label: String,
    pub server: String,
    pub meter: Meter,
    pub elapsed: Duration,
    pub cpu: Option<Duration>,
    pub resident_bytes: Option<u64>,
    /// What else there is to say about this run, for a note beneath the table.
    pub note: Option<String>,
}

/// Reads a server's usage at the two ends of a measurement.
#[derive(Clone, Copy)]
pub struct UsageProbe<'a> {
    pids: &'a [u32],
    before: Option<Usage>,
}

impl<'a> UsageProbe<'a> {
    pub fn start(pids: &'a [u32]) -> UsageProbe<'a> {
        UsageProbe { pids, before: process::usage_of_all(pids) }
    }

    /// The memory that was resident at the start.
    pub fn resident_before(self) -> Option<u64> {
        self.before.map(|before| before.resident_bytes)
    }

    /// CPU time since the start, and the memory resident now.
    pub fn stop(self) -> (Option<Duration>, Option<u64>) {
        let after = process::usage_of_all(self.pids);
        let cpu = self.before.zip(after).map(|(before, after)| after.cpu.saturating_sub(before.cpu));
        (cpu, after.map(|usage| usage.resident_bytes))
    }
}
