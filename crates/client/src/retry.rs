//! The retry rule: what a client may do after an attempt of a call has failed. Pure: no IO, no clock. Time is an argument,
//! in milliseconds of any clock that never goes back.
//!
//! A call that changes nothing when it is repeated is repeated until its time is up. Any other call is repeated only
//! while it was certainly not carried out: after the first attempt in doubt, its caller has to look.

/// The pause after the first failure. It doubles with each further one.
const FIRST_PAUSE_MS: u64 = 20;
const LONGEST_PAUSE_MS: u64 = 500;
/// The least part of the whole time that an attempt of a write must have. One with hardly any time left would most
/// likely end in doubt.
const LEAST_SHARE: u64 = 10;

/// What is known of a call after an attempt has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No server could be reached.
    Unreachable,
    /// The request did not leave this machine, or the server turned it away unread.
    Unsent,
    /// The server says that it has done nothing: it has no leader.
    NotDone,
    /// The request may have been carried out, or may still be.
    InDoubt,
    /// The server's answer.
    Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Tell the caller.
    Fail,
    /// Try again, after a pause.
    Retry { pause_ms: u64 },
}

/// The attempts of one call.
#[derive(Debug, Clone)]
pub struct Retry {
    is_idempotent: bool,
    started_ms: u64,
    give_up_ms: u64,
    pause_ms: u64,
}

impl Retry {
    /// `is_idempotent`: repeating the call changes nothing.
    pub fn new(is_idempotent: bool, started_ms: u64, give_up_ms: u64) -> Retry {
        Retry { is_idempotent, started_ms, give_up_ms, pause_ms: FIRST_PAUSE_MS }
    }

    /// By when an attempt that begins now must be answered. A member that hangs must not use up the time in which
    /// another one could answer.
    pub fn attempt_ends_ms(&self, now_ms: u64, has_others: bool) -> u64 {
        match self.is_idempotent && has_others {
            true => now_ms + self.give_up_ms.saturating_sub(now_ms) / 2,
            false => self.give_up_ms,
        }
    }

    /// What to do after a failure. `has_reached_any`: this client has been answered by some server before. A client
    /// that has never been answered was probably given a wrong address, so it does not try for long.
    pub fn next(&mut self, now_ms: u64, failure: Failure, has_reached_any: bool) -> Next {
        let may_repeat = match failure {
            Failure::Verdict => false,
            Failure::InDoubt => self.is_idempotent,
            Failure::Unreachable => has_reached_any,
            Failure::Unsent | Failure::NotDone => true,
        };
        let pause_ms = self.pause_ms;
        let least_ms = match self.is_idempotent {
            true => 1,
            false => ((self.give_up_ms - self.started_ms) / LEAST_SHARE).max(1),
        };
        if !may_repeat || now_ms.saturating_add(pause_ms + least_ms) > self.give_up_ms {
            return Next::Fail;
        }
        self.pause_ms = (pause_ms * 2).min(LONGEST_PAUSE_MS);
        Next::Retry { pause_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Failure; 5] =
        [Failure::Unreachable, Failure::Unsent, Failure::NotDone, Failure::InDoubt, Failure::Verdict];

    #[test]
    fn nothing_in_doubt_is_repeated_unless_that_changes_nothing() {
        for (failure, read, write) in [
            (Failure::Unreachable, true, true),
            (Failure::Unsent, true, true),
            (Failure::NotDone, true, true),
            (Failure::InDoubt, true, false),
            (Failure::Verdict, false, false),
        ] {
            for (is_idempotent, is_repeated) in [(true, read), (false, write)] {
                let next = Retry::new(is_idempotent, 0, 5_000).next(0, failure, true);
                assert_eq!(next != Next::Fail, is_repeated, "{failure:?}");
            }
        }
        assert_eq!(Retry::new(true, 0, 5_000).next(0, Failure::Unreachable, false), Next::Fail);
    }

    /// Every sequence of failures, each as long as it takes: a write goes on only while it was certainly not done.
    #[test]
    fn a_write_is_sent_again_only_while_it_was_certainly_not_done() {
        let mut open = vec![(Retry::new(false, 0, 400), 0, false)];
        let mut ends = 0;
        while let Some((retry, now_ms, is_in_doubt)) = open.pop() {
            assert!(!is_in_doubt, "sent again in doubt");
            assert!(now_ms + 40 <= 400, "with hardly any time left");
            for failure in ALL {
                for took_ms in [0, 150] {
                    let (mut retry, now_ms) = (retry.clone(), now_ms + took_ms);
                    match retry.next(now_ms, failure, true) {
                        Next::Fail => ends += 1,
                        Next::Retry { pause_ms } => open.push((retry, now_ms + pause_ms, failure == Failure::InDoubt)),
                    }
                }
            }
        }
        assert!(ends > 100, "{ends}");
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_end_with_the_time() {
        let mut retry = Retry::new(true, 1_000, 6_000);
        let (mut now_ms, mut pauses) = (1_000, Vec::new());
        while let Next::Retry { pause_ms } = retry.next(now_ms, Failure::NotDone, true) {
            pauses.push(pause_ms);
            now_ms += pause_ms;
        }
        assert_eq!(pauses[..6], [20, 40, 80, 160, 320, 500]);
        assert!(pauses[6..].iter().all(|pause_ms| *pause_ms == 500) && now_ms < 6_000);
    }

    #[test]
    fn an_attempt_leaves_time_for_another_member() {
        let retry = |is_idempotent| Retry::new(is_idempotent, 0, 5_000);
        assert_eq!(retry(true).attempt_ends_ms(1_000, true), 3_000);
        assert_eq!(retry(true).attempt_ends_ms(1_000, false), 5_000);
        assert_eq!(retry(false).attempt_ends_ms(1_000, true), 5_000, "what is sent once has all the time");
        assert_eq!(retry(true).attempt_ends_ms(9_000, true), 9_000);
    }
}
