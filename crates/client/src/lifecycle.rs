//! The life of a lease as its holder must see it. Pure: no IO, no clock, no thread; time is an
//! argument, in milliseconds of a clock that never goes back and counts suspend, and effects go out
//! as values. So the client runs it on real time, and a simulation on time of its own.
//!
//! The holder may rely on nothing but what the server has confirmed, and a confirmation counts from
//! the moment the renewal was *sent*: the server cannot have received it earlier, so it cannot end
//! the lease earlier than that moment plus the TTL that its answer names. From this follows the
//! deadline, less a margin for clocks that run at different speeds and for the time it takes to act.
//!
//! ```text
//! sent      T/3             T/2             cancel       deadline   T
//!  |---------|---------------|-----------------|------------|-------|
//!            renew           warn              stop work    lost    the server may give it away
//! ```
//!
//! Work is cancelled at the deadline, or before it if it needs time to end ([`CancelAt`]). A lease
//! whose work was cancelled is still renewed, to cover the winding up; one that is lost stays lost.
//!
//! No clock of a virtual machine counts the time for which its host has paused it. A wall clock that is
//! set right afterwards jumps ahead, which [`WallClock`] notices. The lifecycle takes that for a doubt:
//! it believes no answer to an older renewal, asks the server at once, and cancels the work if no answer
//! comes soon.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// When the work under a lease is cancelled that the server does not confirm any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CancelAt {
    /// At the last moment at which the lease certainly still holds.
    #[default]
    Deadline,
    /// So long before it, but not before half of the TTL: for work that needs time to end.
    Before(Duration),
    /// At half of the TTL, when the holder is warned too.
    HalfTtl,
}

/// Why a lease, or a lock that depends on it, is not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// No renewal was confirmed for so long.
    Unconfirmed { for_ms: u64 },
    /// The process was stopped, or the machine suspended, for so long.
    Asleep { for_ms: u64 },
    /// The server says that the lease has expired or was revoked.
    LeaseEnded,
    /// The lease lives, but its place in the queue is gone: released by an operator, or deleted.
    Taken,
    /// Given back by the holder itself.
    Released,
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Unconfirmed { for_ms } => {
                write!(formatter, "no renewal of its lease was confirmed for {}", seconds(*for_ms))
            }
            Cause::Asleep { for_ms } => {
                write!(formatter, "this process was stopped or suspended for {}", seconds(*for_ms))
            }
            Cause::LeaseEnded => write!(formatter, "its lease has expired or was revoked"),
            Cause::Taken => write!(formatter, "an operator released it, or its key was deleted"),
            Cause::Released => write!(formatter, "it was given back"),
        }
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// The server confirmed the renewal of this number, and named the TTL.
    Answered { number: u64, ttl_ms: u64 },
    /// The renewal of this number will not be answered: the connection failed.
    Failed { number: u64 },
    /// More time may have passed than the clock has counted.
    Doubt,
    /// The server, or the holder, ended it.
    Ended(Cause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// To be sent now: the deadline counts from this step. Whatever was sent before is given up.
    SendRenewal { number: u64 },
    /// There is a later deadline; a warning is void.
    Confirmed,
    /// Half of the TTL has passed without a confirmation.
    Warn,
    /// Whoever works under the lease has to stop.
    Cancel,
    /// It must be taken for gone. Nothing follows.
    Lost(Cause),
}

#[derive(Debug, Clone)]
pub struct Lifecycle {
    cancel_at: CancelAt,
    confirmed: Confirmation,
    /// Sent and not answered, the oldest first; only the last one is still waited for.
    unanswered: VecDeque<Renewal>,
    waiting: bool,
    next_number: u64,
    /// When the next one goes out, unless one is waited for.
    next_send_ms: u64,
    failures: u32,
    warned: bool,
    /// When it became doubtful whether the clock has counted all the time since the last confirmation.
    doubted_ms: Option<u64>,
    phase: Phase,
    last_step_ms: u64,
}

/// Compares the wall clock with the clock of the lifecycle. Both run at the same speed, so a wall clock that gains
/// more than a tolerance from one look to the next was set. That may be an operator's doing, or set right what a pause
/// of the whole machine has hidden from the other clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallClock {
    /// By how much it is ahead of the other clock.
    ahead_ms: i64,
}

impl WallClock {
    pub fn new(now_ms: u64, wall_ms: u64) -> WallClock {
        WallClock { ahead_ms: ahead_ms(now_ms, wall_ms) }
    }

    /// Whether it has jumped ahead since the last look, under a lease of this TTL.
    pub fn has_jumped(&mut self, now_ms: u64, wall_ms: u64, ttl_ms: u64) -> bool {
        let before_ms = std::mem::replace(&mut self.ahead_ms, ahead_ms(now_ms, wall_ms));
        u64::try_from(self.ahead_ms.saturating_sub(before_ms)).is_ok_and(|gained_ms| gained_ms > margin_ms(ttl_ms))
    }
}

fn ahead_ms(now_ms: u64, wall_ms: u64) -> i64 {
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    signed(wall_ms).saturating_sub(signed(now_ms))
}

#[derive(Debug, Clone, Copy)]
struct Confirmation {
    sent_ms: u64,
    ttl_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Renewal {
    number: u64,
    sent_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    Cancelled,
    Lost(Cause),
}

/// What clocks may drift apart in one TTL, and what it may take to act: 2 % and 20 ms.
fn margin_ms(ttl_ms: u64) -> u64 {
    ttl_ms / 50 + 20
}

impl Lifecycle {
    /// A lease that was asked for at `sent_ms` and granted for `ttl_ms`.
    pub fn new(cancel_at: CancelAt, sent_ms: u64, ttl_ms: u64) -> Lifecycle {
        Lifecycle {
            cancel_at,
            confirmed: Confirmation { sent_ms, ttl_ms },
            unanswered: VecDeque::new(),
            waiting: false,
            next_number: 1,
            next_send_ms: sent_ms.saturating_add(ttl_ms / 3),
            failures: 0,
            warned: false,
            doubted_ms: None,
            phase: Phase::Held,
            last_step_ms: sent_ms,
        }
    }

    /// From here on the server may end the lease. Moves with every confirmation.
    pub fn deadline_ms(&self) -> u64 {
        let Confirmation { sent_ms, ttl_ms } = self.confirmed;
        sent_ms.saturating_add(ttl_ms).saturating_sub(margin_ms(ttl_ms)).max(sent_ms)
    }

    /// When work is cancelled, unless a renewal is confirmed before.
    pub fn cancel_ms(&self) -> u64 {
        let cancel_ms = match self.cancel_at {
            CancelAt::Deadline => self.deadline_ms(),
            CancelAt::HalfTtl => self.half_ms().min(self.deadline_ms()),
            CancelAt::Before(time) => {
                let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                self.deadline_ms().saturating_sub(time_ms).max(self.half_ms()).min(self.deadline_ms())
            }
        };
        let doubt_ends_ms = self.doubted_ms.map(|doubted_ms| doubted_ms.saturating_add(self.patience_ms()));
        doubt_ends_ms.map_or(cancel_ms, |doubt_ends_ms| cancel_ms.min(doubt_ends_ms))
    }

    /// The TTL that the server named last.
    pub fn ttl_ms(&self) -> u64 {
        self.confirmed.ttl_ms
    }

    /// When the last renewal that was confirmed has been sent.
    pub fn confirmed_ms(&self) -> u64 {
        self.confirmed.sent_ms
    }

    pub fn is_warned(&self) -> bool {
        self.warned
    }

    /// Why work under it must have stopped; None while it may go on.
    pub fn lost(&self) -> Option<Cause> {
        match self.phase {
            Phase::Lost(cause) => Some(cause),
            Phase::Held | Phase::Cancelled => None,
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.phase != Phase::Held
    }

    /// When [`Lifecycle::step`] has to be called next, if nothing comes in before.
    pub fn next_step_ms(&self) -> Option<u64> {
        if matches!(self.phase, Phase::Lost(_)) {
            return None;
        }
        let mut next = self.deadline_ms().min(match (self.waiting, self.unanswered.back()) {
            (true, Some(renewal)) => renewal.sent_ms.saturating_add(self.patience_ms()),
            _ => self.next_send_ms,
        });
        if !self.warned {
            next = next.min(self.half_ms());
        }
        if self.phase == Phase::Held {
            next = next.min(self.cancel_ms());
        }
        Some(next)
    }

    pub fn step(&mut self, now_ms: u64, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.lost().is_some() {
            return effects;
        }
        let now_ms = now_ms.max(self.last_step_ms);
        // Time comes first: an answer that is read after the deadline is too late, whatever it says.
        self.watch_time(now_ms, &mut effects);
        if self.lost().is_none() {
            self.take(now_ms, input, &mut effects);
        }
        if self.lost().is_none() {
            self.watch_time(now_ms, &mut effects);
        }
        if self.lost().is_none() {
            self.send_if_due(now_ms, &mut effects);
        }
        self.last_step_ms = now_ms;
        effects
    }

    fn take(&mut self, now_ms: u64, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Tick => {}
            Input::Answered { ttl_ms: 0, .. } => self.lose(Cause::LeaseEnded, effects),
            Input::Answered { number, ttl_ms } => self.confirm(number, ttl_ms, effects),
            Input::Failed { number } => {
                let is_last = self.unanswered.back().is_some_and(|renewal| renewal.number == number);
                self.unanswered.retain(|renewal| renewal.number != number);
                if is_last && self.waiting {
                    self.waiting = false;
                    self.failures += 1;
                    self.next_send_ms = now_ms.saturating_add(self.pause_ms());
                }
            }
            Input::Doubt => self.doubt(now_ms, effects),
            Input::Ended(cause) => self.lose(cause, effects),
        }
    }

    /// Asks the server at once. Answers to what was sent before are not believed any more: they count from a moment that
    /// may be longer ago than the clock says.
    fn doubt(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        self.doubted_ms = Some(self.doubted_ms.unwrap_or(now_ms));
        self.unanswered.clear();
        (self.waiting, self.next_send_ms) = (false, now_ms);
        if !self.warned {
            self.warned = true;
            effects.push(Effect::Warn);
        }
    }

    /// An answer counts once, and never for less than a later renewal has already been promised.
    fn confirm(&mut self, number: u64, ttl_ms: u64, effects: &mut Vec<Effect>) {
        let Some(renewal) = self.unanswered.iter().find(|renewal| renewal.number == number).copied() else { return };
        let is_last = self.unanswered.back().is_some_and(|last| last.number == number);
        self.unanswered.retain(|renewal| renewal.number > number);
        self.confirmed = Confirmation { sent_ms: renewal.sent_ms, ttl_ms };
        (self.warned, self.doubted_ms) = (false, None);
        if is_last || !self.waiting {
            self.waiting = false;
            self.failures = 0;
            self.next_send_ms = renewal.sent_ms.saturating_add(ttl_ms / 3);
        }
        effects.push(Effect::Confirmed);
    }

    fn watch_time(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        if now_ms >= self.deadline_ms() {
            let (asleep_ms, silent_ms) = (now_ms - self.last_step_ms, now_ms - self.confirmed.sent_ms);
            let cause = match asleep_ms >= self.confirmed.ttl_ms / 2 {
                true => Cause::Asleep { for_ms: asleep_ms },
                false => Cause::Unconfirmed { for_ms: silent_ms },
            };
            return self.lose(cause, effects);
        }
        if !self.warned && now_ms >= self.half_ms() {
            self.warned = true;
            effects.push(Effect::Warn);
        }
        if self.phase == Phase::Held && now_ms >= self.cancel_ms() {
            self.phase = Phase::Cancelled;
            effects.push(Effect::Cancel);
        }
    }

    fn send_if_due(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        if let (true, Some(renewal)) = (self.waiting, self.unanswered.back())
            && now_ms >= renewal.sent_ms.saturating_add(self.patience_ms())
        {
            self.waiting = false;
            self.next_send_ms = now_ms;
        }
        if !self.waiting && now_ms >= self.next_send_ms {
            let number = self.next_number;
            self.next_number += 1;
            self.unanswered.push_back(Renewal { number, sent_ms: now_ms });
            self.waiting = true;
            effects.push(Effect::SendRenewal { number });
        }
    }

    fn lose(&mut self, cause: Cause, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Held {
            effects.push(Effect::Cancel);
        }
        self.phase = Phase::Lost(cause);
        self.unanswered.clear();
        effects.push(Effect::Lost(cause));
    }

    fn half_ms(&self) -> u64 {
        self.confirmed.sent_ms.saturating_add(self.confirmed.ttl_ms / 2)
    }

    /// How long a renewal may go unanswered before another is sent: so that the second one, elsewhere,
    /// has its chance before the holder is warned.
    fn patience_ms(&self) -> u64 {
        (self.confirmed.ttl_ms / 6).max(1)
    }

    /// Before the next attempt, after some have failed.
    fn pause_ms(&self) -> u64 {
        let ttl_ms = self.confirmed.ttl_ms;
        let first_ms = (ttl_ms / 60).clamp(1, 100);
        let doublings = self.failures.saturating_sub(1).min(20);
        (first_ms << doublings).min((ttl_ms / 12).max(1))
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
