//! The calls of one session stream that the replica has not answered.
//!
//! A Lock may wait in its queue for long, and a Lock that was given up is left by commands of their own. Neither counts
//! towards the requests in flight: behind ever so many of them, renewals must still be read.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use bytes::Bytes;
use tenure_machine::{LockReply, Mode};
use tenure_replica::CallId;
use tokio::time::Instant;
use tonic::Code;

#[derive(Default)]
pub struct Calls {
    under_way: HashMap<CallId, UnderWay, BuildHasherDefault<NumberHasher>>,
    /// Those of them that are locks in their queues, by their numbers.
    queued: HashMap<u64, CallId>,
    timeouts: BTreeSet<(Instant, CallId)>,
    /// Locks that were given up, by their numbers, until all their places are left.
    given_up: HashMap<u64, GivenUp>,
    /// How many of the calls leave places.
    leaves: usize,
}

struct UnderWay {
    number: u64,
    what: What,
}

pub enum What {
    Lock(Waiting),
    /// Leaves one place of a Lock that was given up.
    Leave,
    Unlock,
    Renew {
        came: Instant,
    },
    /// A grant whose entries are looked up before it is signed and told.
    Sign {
        name: Bytes,
        reply: LockReply,
    },
    Close,
}

pub struct Waiting {
    pub name: Bytes,
    pub more_names: Vec<Bytes>,
    pub mode: Mode,
    pub holder: Bytes,
    pub joiner: u128,
    pub timeout: Option<Instant>,
}

impl Waiting {
    /// What waits for long must not keep all in memory that came along with it.
    fn let_go_of_request(&mut self) {
        let kept = [&mut self.name, &mut self.holder].into_iter().chain(&mut self.more_names);
        kept.for_each(|bytes| *bytes = Bytes::copy_from_slice(bytes));
    }
}

/// A Lock was given up. Its caller is told so when all its places are left, and not before.
pub struct GivenUp {
    pub name: Bytes,
    pub code: Code,
    pub why: &'static str,
    /// Places that are not left yet.
    pub places: usize,
}

impl Calls {
    /// Requests that were read and wait for nothing but the replica.
    pub fn in_flight(&self) -> usize {
        self.under_way.len() - self.queued.len() - self.leaves
    }

    /// All that is kept for them.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    pub fn begin(&mut self, call: CallId, number: u64, what: What) {
        match &what {
            What::Lock(Waiting { timeout: Some(timeout), .. }) => drop(self.timeouts.insert((*timeout, call))),
            What::Leave => self.leaves += 1,
            _ => {}
        }
        self.under_way.insert(call, UnderWay { number, what });
    }

    /// A Lock stands in its queue. Gives its number.
    pub fn queue(&mut self, call: CallId) -> Option<u64> {
        let UnderWay { number, what } = self.under_way.get_mut(&call)?;
        if let What::Lock(waiting) = what {
            waiting.let_go_of_request();
            self.queued.insert(*number, call);
        }
        Some(*number)
    }

    pub fn end(&mut self, call: CallId) -> Option<(u64, What)> {
        let UnderWay { number, what } = self.under_way.remove(&call)?;
        match &what {
            What::Lock(waiting) => {
                if !self.queued.is_empty() {
                    self.queued.remove(&number);
                }
                if let Some(timeout) = waiting.timeout {
                    self.timeouts.remove(&(timeout, call));
                }
            }
            What::Leave => self.leaves -= 1,
            _ => {}
        }
        Some((number, what))
    }

    /// As [`Calls::end`], for a Lock.
    pub fn end_lock(&mut self, call: CallId) -> Option<(u64, Waiting)> {
        if !matches!(self.under_way.get(&call), Some(UnderWay { what: What::Lock(_), .. })) {
            return None;
        }
        match self.end(call) {
            Some((number, What::Lock(waiting))) => Some((number, waiting)),
            _ => None,
        }
    }

    /// The Lock of this number is told to be over when [`Calls::left`] has been called for each of its places.
    pub fn give_up(&mut self, number: u64, given_up: GivenUp) {
        self.given_up.insert(number, given_up);
    }

    /// One more place is left. Gives the Lock if it was the last.
    pub fn left(&mut self, number: u64) -> Option<GivenUp> {
        let given_up = self.given_up.get_mut(&number)?;
        given_up.places -= 1;
        match given_up.places {
            0 => self.given_up.remove(&number),
            _ => None,
        }
    }

    /// It is not known whether a place is left. Gives the Lock, once.
    pub fn not_left(&mut self, number: u64) -> Option<GivenUp> {
        self.given_up.remove(&number)
    }

    /// The call of the request of this number.
    pub fn of(&self, number: u64) -> Option<CallId> {
        // Those that are in no queue are few.
        let among_all =
            || self.under_way.iter().find(|(_, under_way)| under_way.number == number).map(|(call, _)| *call);
        self.queued.get(&number).copied().or_else(among_all)
    }

    /// A Lock whose time is up.
    pub fn due(&self, now: Instant) -> Option<CallId> {
        self.timeouts.first().filter(|(due, _)| *due <= now).map(|(_, call)| *call)
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.timeouts.first().map(|(due, _)| *due)
    }
}

/// For calls, which are counted.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Numbers in a row differ in their low bits, and the table looks at the high ones, too.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The time that a request waits in its queue.
pub fn timeout(timeout_ms: Option<i64>) -> Option<Instant> {
    let timeout_ms = timeout_ms.filter(|timeout_ms| *timeout_ms > 0)?;
    Some(Instant::now() + Duration::from_millis(timeout_ms as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> What {
        let (name, holder) = (Bytes::from_static(b"a"), Bytes::new());
        let (mode, joiner, timeout) = (Mode::Exclusive, 0, None);
        What::Lock(Waiting { name, more_names: vec![Bytes::from_static(b"b")], mode, holder, joiner, timeout })
    }

    /// Gives up the Lock of this call, with leaves from the call `first` on.
    fn give_up(calls: &mut Calls, call: CallId, first: CallId) {
        let (number, waiting) = calls.end_lock(call).expect("a Lock");
        let places = 1 + waiting.more_names.len();
        calls.give_up(number, GivenUp { name: waiting.name, code: Code::Cancelled, why: "", places });
        (first..).take(places).for_each(|call| calls.begin(call, number, What::Leave));
    }

    /// Many locks that time out at once must not keep the next renewal from being read.
    #[test]
    fn neither_locks_in_their_queues_nor_leaves_are_in_flight() {
        let mut calls = Calls::default();
        for call in 0..10 {
            calls.begin(call, call + 1, lock());
        }
        assert_eq!((calls.in_flight(), calls.len()), (10, 10));
        for call in 0..9 {
            assert_eq!(calls.queue(call), Some(call + 1));
        }
        assert_eq!((calls.in_flight(), calls.len()), (1, 10));
        for call in 0..10 {
            give_up(&mut calls, call, 10 + 2 * call);
        }
        assert_eq!((calls.in_flight(), calls.len()), (0, 20), "they are kept, and do not count");
        calls.begin(100, 50, What::Unlock);
        assert_eq!(calls.in_flight(), 1);
        for call in 10..30 {
            assert!(matches!(calls.end(call), Some((_, What::Leave))));
        }
        assert_eq!((calls.in_flight(), calls.len()), (1, 1));
    }

    #[test]
    fn a_lock_is_over_when_its_last_place_is_left() {
        let mut calls = Calls::default();
        calls.begin(1, 7, lock());
        calls.queue(1);
        give_up(&mut calls, 1, 2);
        assert!(calls.left(7).is_none(), "b is not left yet");
        assert!(calls.left(7).is_some());
        assert!(calls.left(7).is_none() && calls.not_left(7).is_none(), "it is told once");
    }

    #[test]
    fn a_place_that_may_not_be_left_is_told_once() {
        let mut calls = Calls::default();
        calls.begin(1, 7, lock());
        give_up(&mut calls, 1, 2);
        assert!(calls.not_left(7).is_some());
        assert!(calls.left(7).is_none() && calls.not_left(7).is_none());
    }
}
