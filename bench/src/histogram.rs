//! A histogram with log-linear buckets: every power of two is cut into 128 equal parts.
//!
//! Recording is an index computation and an increment, the error of a quantile is below one
//! percent whatever its size, and histograms of many clients add up to one. Times are kept in
//! nanoseconds; everything above eighteen minutes falls into the last bucket.

use std::time::Duration;

const PRECISION_BITS: u32 = 7;
const PARTS: usize = 1 << PRECISION_BITS;
const LARGEST: u64 = (1 << 40) - 1;
const BUCKETS: usize = (40 - PRECISION_BITS as usize + 1) * PARTS;

/// How often each time was seen.
#[derive(Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    largest: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], count: 0, largest: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(LARGEST).min(LARGEST);
        self.buckets[bucket_of(nanos)] += 1;
        self.count += 1;
        self.largest = self.largest.max(nanos);
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.largest = self.largest.max(other.largest);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn largest(&self) -> Duration {
        Duration::from_nanos(self.largest)
    }

    /// The time that a share of all recorded ones did not exceed; zero if nothing was recorded.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper_end_of(bucket).min(self.largest));
            }
        }
        Duration::ZERO
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < PARTS as u64 {
        return nanos as usize;
    }
    let shift = 63 - nanos.leading_zeros() - PRECISION_BITS;
    (shift as usize + 1) * PARTS + ((nanos >> shift) as usize - PARTS)
}

fn upper_end_of(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let shift = bucket / PARTS - 1;
    let part = (bucket % PARTS + PARTS) as u64;
    ((part + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_value_without_gap() {
        for bucket in 0..BUCKETS - 1 {
            let end = upper_end_of(bucket);
            assert_eq!(bucket_of(end), bucket);
            assert_eq!(bucket_of(end + 1), bucket + 1);
        }
        assert_eq!(bucket_of(LARGEST), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_one_percent() {
        let mut histogram = Histogram::default();
        for micros in 1..=100_000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (share, micros) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0)] {
            let found = histogram.quantile(share).as_nanos() as f64 / 1_000.0;
            assert!((found - micros).abs() / micros < 0.01, "{share}: {found} instead of {micros}");
        }
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(100_000));
    }

    #[test]
    fn merging_is_recording_everything_in_one() {
        let (mut left, mut right, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for nanos in [3, 900, 77_000] {
            left.record(Duration::from_nanos(nanos));
            both.record(Duration::from_nanos(nanos));
        }
        right.record(Duration::from_secs(4000));
        both.record(Duration::from_secs(4000));
        left.merge(&right);
        assert_eq!(left.count(), 4);
        assert_eq!(left.buckets, both.buckets);
        assert_eq!(left.largest(), both.largest());
    }

    #[test]
    fn an_empty_one_answers_zero() {
        assert_eq!(Histogram::default().quantile(0.99), Duration::ZERO);
    }
}
