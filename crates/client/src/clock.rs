//! The clock that leases are held by: it never goes back, and it counts the time that the machine
//! was suspended, because the server's clock goes on meanwhile.

use std::time::{Duration, SystemTime};

pub use platform::{Alarm, now_ms};

/// Milliseconds since 1970 by the wall clock, which is set now and then. Leases do not depend on it.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// A moment of this clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64);

impl Deadline {
    pub fn at_ms(at_ms: u64) -> Deadline {
        Deadline(at_ms)
    }

    /// In the milliseconds of [`now_ms`].
    pub fn as_ms(self) -> u64 {
        self.0
    }

    /// Zero if it has passed.
    pub fn remaining(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now_ms()))
    }

    pub fn has_passed(self) -> bool {
        now_ms() >= self.0
    }
}

#[cfg(target_os = "linux")]
mod platform {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
        timerfd_settime,
    };

    /// Milliseconds since some moment in the past, the same for every process on this machine.
    pub fn now_ms() -> u64 {
        let now = clock_gettime(ClockId::Boottime);
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
    }

    /// Wakes one thread at a time of [`now_ms`], at once after a suspend too: a timer of the system,
    /// because ordinary waits do not count the time that the machine slept.
    pub struct Alarm(OwnedFd);

    impl Alarm {
        pub fn new() -> io::Result<Alarm> {
            Ok(Alarm(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?))
        }

        /// Replaces the time it was set to before; None: never.
        pub fn set(&self, at_ms: Option<u64>) {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let at = match at_ms {
                // All zeros would switch it off.
                Some(ms) if ms < i64::MAX as u64 => {
                    Timespec { tv_sec: (ms / 1_000) as i64, tv_nsec: ((ms % 1_000) * 1_000_000).max(1) as _ }
                }
                _ => zero,
            };
            let setting = Itimerspec { it_interval: zero, it_value: at };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &setting).expect("a valid time for a timer of ours");
        }

        /// Waits for the time that is set, also if it is set anew meanwhile.
        pub fn wait(&self) {
            let mut expirations = [0_u8; 8];
            while rustix::io::read(&self.0, &mut expirations) == Err(rustix::io::Errno::INTR) {}
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::io;
    use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
    use std::time::{Duration, Instant};

    /// How much later than its time an alarm may go off after a suspend.
    const LOOK_AGAIN: Duration = Duration::from_millis(50);

    /// Milliseconds since this was first asked.
    pub fn now_ms() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_millis() as u64
    }

    /// Wakes one thread at a time of [`now_ms`].
    #[derive(Default)]
    pub struct Alarm {
        at_ms: Mutex<Option<u64>>,
        changed: Condvar,
    }

    impl Alarm {
        pub fn new() -> io::Result<Alarm> {
            Ok(Alarm::default())
        }

        /// Replaces the time it was set to before; None: never.
        pub fn set(&self, at_ms: Option<u64>) {
            *self.at_ms.lock().unwrap_or_else(PoisonError::into_inner) = at_ms;
            self.changed.notify_all();
        }

        /// Waits for the time that is set, also if it is set anew meanwhile.
        pub fn wait(&self) {
            let mut at_ms = self.at_ms.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                if at_ms.is_some_and(|at_ms| now_ms() >= at_ms) {
                    *at_ms = None;
                    return;
                }
                at_ms = self.changed.wait_timeout(at_ms, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn an_alarm_goes_off_at_its_time_or_when_it_is_moved() {
        let alarm = Arc::new(Alarm::new().unwrap());
        let at_ms = now_ms() + 20;
        alarm.set(Some(at_ms));
        alarm.wait();
        assert!(now_ms() >= at_ms, "not before its time");
        alarm.set(Some(0));
        alarm.wait();
        // Far in the future, then moved to the past by somebody else while it is waited for.
        alarm.set(Some(now_ms() + 3_600_000));
        let waiting = std::thread::spawn({
            let alarm = alarm.clone();
            move || alarm.wait()
        });
        alarm.set(Some(1));
        waiting.join().unwrap();
    }
}
