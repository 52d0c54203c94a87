//! How long the steps of the replica take, told by the member itself.
//!
//! A step runs on one thread at a time and everything else waits for it: a long one is what a client sees as a stall.
//! Only the thread that has the turn writes here, so counting costs a few nanoseconds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// Upper bounds in microseconds; what is slower falls into one more bucket.
const BOUNDS_US: [u64; 14] =
    [10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000];

/// The durations of all steps since the start.
#[derive(Debug, Default)]
pub(crate) struct StepTimes {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl StepTimes {
    /// For the one thread that has the turn.
    pub(crate) fn record(&self, took: Duration) {
        let took_ns = took.as_nanos() as u64;
        let bucket = BOUNDS_US.iter().position(|bound| took_ns <= bound * 1000).unwrap_or(BOUNDS_US.len());
        add(&self.counts[bucket], 1);
        add(&self.sum_ns, took_ns);
        if took_ns > self.longest_ns.load(Relaxed) {
            self.longest_ns.store(took_ns, Relaxed);
        }
    }
}

/// There is one writer, so nothing can come between.
fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Relaxed) + number, Relaxed);
}

/// [`StepTimes`] for `/metrics`.
#[derive(Debug)]
pub(crate) struct StepMetrics(pub(crate) Arc<StepTimes>);

impl Collector for StepMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let times = &self.0;
        let counts = times.counts.iter().map(|count| count.load(Relaxed));
        let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::MAX]);
        let buckets: Vec<_> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = times.sum_ns.load(Relaxed) as f64 / 1e9;
        let help = "How long a step of the replica took";
        let mut histogram = encoder.encode_descriptor("replica_step_seconds", help, None, MetricType::Histogram)?;
        histogram.encode_histogram::<[(&str, &str); 0]>(seconds, count, &buckets, None)?;
        let help = "The longest step of the replica since the start";
        let gauge = encoder.encode_descriptor("replica_step_max_seconds", help, None, MetricType::Gauge)?;
        ConstGauge::new(times.longest_ns.load(Relaxed) as f64 / 1e9).encode(gauge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    #[test]
    fn steps_are_counted_and_the_longest_is_kept() {
        let times = Arc::new(StepTimes::default());
        for took_us in [5, 10, 60_000, 15] {
            times.record(Duration::from_micros(took_us));
        }
        let mut registry = Registry::with_prefix("tenure");
        registry.register_collector(Box::new(StepMetrics(times)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"tenure_replica_step_seconds_bucket{le="0.00001"} 2"#,
            r#"tenure_replica_step_seconds_bucket{le="0.05"} 3"#,
            r#"tenure_replica_step_seconds_bucket{le="0.1"} 4"#,
            "tenure_replica_step_seconds_count 4",
            "tenure_replica_step_max_seconds 0.06",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
