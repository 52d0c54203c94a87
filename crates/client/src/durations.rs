//! `10.seconds()`, because that is how people say it.

use std::time::Duration;

pub trait Durations {
    fn milliseconds(self) -> Duration;
    fn seconds(self) -> Duration;
    fn minutes(self) -> Duration;
}

impl Durations for u64 {
    fn milliseconds(self) -> Duration {
        Duration::from_millis(self)
    }

    fn seconds(self) -> Duration {
        Duration::from_secs(self)
    }

    fn minutes(self) -> Duration {
        Duration::from_secs(self.saturating_mul(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_durations() {
        assert_eq!(1_500.milliseconds(), Duration::from_millis(1_500));
        assert_eq!(10.seconds(), Duration::from_secs(10));
        assert_eq!(5.minutes(), Duration::from_secs(300));
    }
}
