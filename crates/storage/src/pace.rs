//! How fast the next segment is written with zeroes.
//!
//! Slowly, so that the log's own syncs find the disk free; but it must be there when this one is full. So it is written
//! in step with the log, to be whole when three quarters of this one are used, and where the log is quiet at a leisurely
//! rate of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the log is quiet.
const LEISURELY_BYTES_PER_SECOND: f64 = (2 << 20) as f64;
/// The next segment is begun when so much of this one is used, and should be whole when it is so much.
pub(crate) const BEGIN: f64 = 0.25;
const WHOLE: f64 = 0.75;

/// How much of the segment in use is used, of a thousand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn set(&self, used: u64, capacity: u64) {
        self.0.store(used.saturating_mul(1000) / capacity.max(1), Ordering::Relaxed);
    }

    fn fraction(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1000.0
    }
}

pub(crate) struct Pace {
    bytes: u64,
    progress: Progress,
    began: Instant,
}

impl Pace {
    /// For a segment of so many bytes that is begun now.
    pub(crate) fn new(bytes: u64, progress: Progress) -> Pace {
        Pace { bytes, progress, began: Instant::now() }
    }

    /// Whether more than this should have been written by now.
    pub(crate) fn is_behind(&self, written: u64) -> bool {
        self.wants(written, self.began.elapsed())
    }

    fn wants(&self, written: u64, elapsed: Duration) -> bool {
        let in_step = (self.progress.fraction() - BEGIN) / (WHOLE - BEGIN) * self.bytes as f64;
        let leisurely = elapsed.as_secs_f64() * LEISURELY_BYTES_PER_SECOND;
        (written as f64) < in_step.max(leisurely)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_keep_up_with_the_log_and_do_not_run_ahead() {
        let progress = Progress::default();
        let pace = Pace::new(64 << 20, progress.clone());
        let at_once = Duration::ZERO;
        progress.set(250, 1000);
        assert!(!pace.wants(0, at_once), "it begins here");
        progress.set(500, 1000);
        assert!(pace.wants(31 << 20, at_once) && !pace.wants(33 << 20, at_once), "half of the way, half of the zeroes");
        progress.set(750, 1000);
        assert!(pace.wants((64 << 20) - 1, at_once), "whole by now");
    }

    #[test]
    fn where_the_log_is_quiet_they_are_whole_after_a_while() {
        let pace = Pace::new(64 << 20, Progress::default());
        assert!(pace.wants(0, Duration::from_millis(1)));
        assert!(!pace.wants(3 << 20, Duration::from_secs(1)));
        assert!(pace.wants((64 << 20) - 1, Duration::from_secs(32)));
    }
}
