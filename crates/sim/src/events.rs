//! What is going to happen, in order: by time, and at the same time in the order of asking.

use std::collections::BTreeMap;

pub struct Events<E> {
    waiting: BTreeMap<(u64, u64), E>,
    asked: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Events { waiting: BTreeMap::new(), asked: 0 }
    }
}

impl<E> Events<E> {
    pub fn at(&mut self, time_us: u64, event: E) {
        self.asked += 1;
        self.waiting.insert((time_us, self.asked), event);
    }

    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.waiting.pop_first().map(|((time_us, _), event)| (time_us, event))
    }
}
