//! Circles of owners, found by looking at everything.
//!
//! A place waits for each earlier place of its queue that it cannot stand beside. A place ends only after its owner
//! has got all that it waits for elsewhere, so it is kept by every place in which its owner waits. A request that waits
//! is refused if it comes to wait, by any number of such steps, for a place of its own owner.
//!
//! From level 1 on a place that waits is kept by its own queue whether it has an owner or not. Below level 1 only places
//! with an owner are followed, and waiters for a semaphore with one slot wait for none of the places before them.
//!
//! The machine gives up after 50,000 steps ([`Refusal::DeadlockUnknown`]). No queue of this world is that long, so the
//! model never gives up, and a machine that does differs from it.
//!
//! [`Refusal::DeadlockUnknown`]: tenure_machine::Refusal::DeadlockUnknown

use std::collections::BTreeSet;

use tenure_machine::{Lock, Mode, Revision};

use super::{Model, Place};

/// A place by queue and position in it.
type At<'a> = (&'a [u8], usize);

impl Model {
    /// Whether the request, if it waited, would wait for its own owner.
    pub(super) fn closes_circle(&self, lock: &Lock) -> bool {
        if lock.owner.is_empty() {
            return false;
        }
        let mut reached: BTreeSet<At<'_>> =
            self.asked(lock).flat_map(|name| self.ahead_of_request(name, lock)).collect();
        loop {
            let before = reached.len();
            let kept_by: Vec<At<'_>> = reached.iter().flat_map(|at| self.keeps(*at)).collect();
            reached.extend(kept_by.into_iter().flat_map(|at| self.ahead_of_place(at)));
            if reached.len() == before {
                return reached.into_iter().any(|at| self.place(at).owner == lock.owner);
            }
        }
    }

    /// Whether the sentence of a refusal tells a circle that the request would close: each step is true, each begins
    /// where the one before ended, and no owner but the request's comes twice.
    pub fn tells_circle(&self, lock: &Lock, told: &str) -> Result<(), String> {
        let (mut at, mut met) = (&lock.owner[..], BTreeSet::new());
        for step in told.split(", ") {
            let parts =
                step.split_once(" waits for ").and_then(|(waiter, rest)| Some((waiter, rest.split_once(" behind ")?)));
            let Some((waiter, (name, other))) = parts else {
                return Err(format!("{step:?} is not a step of a circle"));
            };
            if waiter.as_bytes() != at || !met.insert(at) {
                return Err(format!("{step:?} does not go on from the step before it"));
            }
            if !self.stands_behind(lock, waiter.as_bytes(), name.as_bytes(), other.as_bytes()) {
                return Err(format!("{step:?} is not true"));
            }
            at = other.as_bytes();
        }
        if at == &lock.owner[..] { Ok(()) } else { Err(format!("{told:?} does not come back to where it began")) }
    }

    /// Whether this owner waits for a place of the other one in the queue `name`, there and nowhere else.
    fn stands_behind(&self, lock: &Lock, waiter: &[u8], name: &[u8], other: &[u8]) -> bool {
        let is_request = waiter == &lock.owner[..];
        let mut ahead: BTreeSet<At<'_>> = match is_request {
            true if self.asked(lock).any(|asked| asked == name) => self.ahead_of_request(name, lock).collect(),
            true => BTreeSet::new(),
            false => {
                let waits = self.waiting().filter(|at| at.0 == name && self.place(*at).owner == waiter);
                waits.flat_map(|at| self.ahead_of_place(at)).collect()
            }
        };
        // From level 1 on those who are ahead of one that is ahead are meant, too.
        if self.level > 0 {
            let waiting: Vec<At<'_>> = self.waiting().filter(|at| ahead.contains(at)).collect();
            ahead.extend(waiting.into_iter().flat_map(|at| self.ahead_of_place(at)));
        }
        ahead.into_iter().any(|at| self.place(at).owner == other)
    }

    fn asked<'a>(&self, lock: &'a Lock) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        std::iter::once(&lock.name).chain(&lock.more_names).map(|name| &name[..])
    }

    fn place(&self, (name, position): At<'_>) -> &Place {
        &self.queues[name][position]
    }

    /// Every place that is not granted.
    fn waiting(&self) -> impl Iterator<Item = At<'_>> {
        self.queues().flat_map(|(name, places)| (Model::granted(places)..places.len()).map(move |at| (name, at)))
    }

    /// The places that must be granted before this one can end.
    fn keeps<'a>(&'a self, at: At<'a>) -> Vec<At<'a>> {
        let owner = &self.place(at).owner;
        let is_followed = |other: &At<'a>| match owner.is_empty() {
            true => self.level > 0 && *other == at,
            false => self.place(*other).owner == *owner,
        };
        self.waiting().filter(is_followed).collect()
    }

    fn ahead_of_place<'a>(&'a self, at: At<'a>) -> impl Iterator<Item = At<'a>> {
        let place = self.place(at);
        self.ahead(at.0, place.token, place.mode)
    }

    fn ahead_of_request<'a>(&'a self, name: &[u8], lock: &Lock) -> impl Iterator<Item = At<'a>> + use<'a> {
        self.ahead(name, Revision::MAX, lock.mode)
    }

    /// The places of a queue before this token that a place of this mode waits for.
    fn ahead<'a>(&'a self, name: &[u8], token: Revision, mode: Mode) -> impl Iterator<Item = At<'a>> + use<'a> {
        let queue = self.queues.get_key_value(name);
        let places = queue.into_iter().flat_map(move |(name, places)| {
            let granted = Model::granted(places);
            places.iter().enumerate().map(move |(at, place)| (&name[..], at, place, at < granted))
        });
        let level = self.level;
        places
            .filter(move |(_, _, place, is_granted)| {
                let stands_beside = match mode {
                    Mode::Exclusive => false,
                    Mode::Shared => true,
                    // Whichever holder leaves first lets it in, if there are several.
                    Mode::Slots(slots) => slots > 1 || level == 0,
                    // Parties of one round come together, and wait for the round before.
                    Mode::Barrier(_) => !is_granted,
                };
                place.token < token && !(stands_beside && place.mode == mode)
            })
            .map(|(name, at, ..)| (name, at))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenure_machine::{Command, Envelope, LeaseGrant, Reply};

    use super::*;
    use crate::plan::Limits;

    fn apply(model: &mut Model, command: Command) -> Result<Reply, tenure_machine::Refusal> {
        model.apply(model.applied + 1, 1, &Envelope { wall_ms: 0, origin: None, command }).reply
    }

    fn a_lock(model: &mut Model, name: &'static str, owner: &'static str) -> Lock {
        let lease = model.applied as i64 + 1;
        let grant = LeaseGrant { lease, ttl_ms: 1000, client: Bytes::new() };
        apply(model, Command::LeaseGrant(grant)).expect("a new lease");
        let (name, owner) = (Bytes::from(name), Bytes::from(owner));
        Lock { name, owner, lease, call: 1, ..Lock::default() }
    }

    /// Behind bob in `a` stands a place without an owner; bob waits for ada in `b`, and ada comes to ask for `a`.
    fn at_level(level: u32) -> (Model, Lock) {
        let mut model = Model::new(0, Limits::default());
        apply(&mut model, Command::RaiseLevel { level }).expect("a level");
        for (name, owner) in [("a", "bob"), ("a", ""), ("b", "ada"), ("b", "bob")] {
            let lock = a_lock(&mut model, name, owner);
            apply(&mut model, Command::Lock(Box::new(lock))).expect("no circle yet");
        }
        let lock = a_lock(&mut model, "a", "ada");
        (model, lock)
    }

    #[test]
    fn a_circle_is_told_only_in_true_words() {
        let (model, lock) = at_level(1);
        assert!(model.closes_circle(&lock));
        let tells = |told: &str| model.tells_circle(&lock, told).is_ok();
        assert!(tells("ada waits for a behind bob, bob waits for b behind ada"));
        assert!(!tells("ada waits for a behind bob"), "it does not come back");
        assert!(!tells("bob waits for b behind ada, ada waits for a behind bob"), "it begins elsewhere");
        assert!(!tells("ada waits for b behind bob, bob waits for a behind ada"), "neither step is true");
        assert!(!tells("ada waits for a behind ada"), "she has no place there");
        assert!(!tells("a deadlock"));
    }

    #[test]
    fn places_without_an_owner_are_gone_through_from_level_1_on() {
        for (level, is_found) in [(0, false), (1, true)] {
            let (mut model, mut lock) = at_level(level);
            lock.mode = Mode::Shared;
            // Those before the place without an owner share with ada.
            let places = model.queues.get_mut(&b"a"[..]).expect("a queue");
            places[0].mode = Mode::Shared;
            assert_eq!(model.closes_circle(&lock), is_found, "level {level}");
        }
    }
}
