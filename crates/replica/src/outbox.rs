//! Things that a member sends to the leader until it knows what became of them.

use std::collections::BTreeMap;

/// In the order of their numbers, which are never used twice.
pub(crate) struct Outbox<T> {
    last: u64,
    pending: BTreeMap<u64, Pending<T>>,
    /// To be sent next, oldest first.
    due: Vec<u64>,
    /// When to look for what has waited for too long.
    scan_ms: u64,
}

struct Pending<T> {
    sent_ms: Option<u64>,
    what: T,
}

impl<T> Default for Outbox<T> {
    fn default() -> Outbox<T> {
        Outbox { last: 0, pending: BTreeMap::new(), due: Vec::new(), scan_ms: 0 }
    }
}

impl<T> Outbox<T> {
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// The number of the next one, and the lowest that is not settled: at most the same.
    pub(crate) fn next_number(&self) -> (u64, u64) {
        let next = self.last + 1;
        (next, self.pending.first_key_value().map_or(next, |(lowest, _)| *lowest))
    }

    /// Gives the number of what it adds.
    pub(crate) fn add(&mut self, what: T) -> u64 {
        self.last += 1;
        self.due.push(self.last);
        self.pending.insert(self.last, Pending { sent_ms: None, what });
        self.last
    }

    /// Like [`Outbox::add`], but it is sent only when it would be sent again.
    pub(crate) fn add_for_later(&mut self, what: T, now_ms: u64) -> u64 {
        self.last += 1;
        self.pending.insert(self.last, Pending { sent_ms: Some(now_ms), what });
        self.last
    }

    pub(crate) fn settle(&mut self, number: u64) -> Option<T> {
        self.pending.remove(&number).map(|pending| pending.what)
    }

    /// Takes out all for which `is_taken`, given the number and whether it was ever sent, says so; with their numbers.
    pub(crate) fn take_where(&mut self, mut is_taken: impl FnMut(u64, bool, &mut T) -> bool) -> Vec<(u64, T)> {
        let taken = |(number, pending): (&u64, &mut Pending<T>)| {
            is_taken(*number, pending.sent_ms.is_some(), &mut pending.what).then_some(*number)
        };
        let numbers: Vec<u64> = self.pending.iter_mut().filter_map(taken).collect();
        numbers.into_iter().filter_map(|number| Some((number, self.settle(number)?))).collect()
    }

    /// Another leader has to be told all of it.
    pub(crate) fn send_all_again(&mut self) {
        self.due = self.pending.keys().copied().collect();
    }

    /// What is to be sent now: for the first time, or because nothing was heard of it for `patience_ms`.
    pub(crate) fn take_due(&mut self, now_ms: u64, patience_ms: u64) -> Vec<(u64, &T)> {
        if now_ms >= self.scan_ms {
            self.scan_ms = now_ms + patience_ms / 4 + 1;
            let is_late = |pending: &Pending<T>| pending.sent_ms.is_some_and(|sent_ms| sent_ms + patience_ms < now_ms);
            self.due.extend(self.pending.iter().filter(|(_, pending)| is_late(pending)).map(|(number, _)| *number));
            self.due.sort_unstable();
            self.due.dedup();
        }
        for number in &self.due {
            if let Some(pending) = self.pending.get_mut(number) {
                pending.sent_ms = Some(now_ms);
            }
        }
        let pending = &self.pending;
        self.due.drain(..).filter_map(|number| Some((number, &pending.get(&number)?.what))).collect()
    }
}
