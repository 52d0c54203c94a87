//! Circles of owners who wait for each other.
//!
//! Only requests that name an *owner*, one sequential flow of work, take part: the server cannot
//! know otherwise that who waits here is who holds there. An owner that waits in a queue waits for
//! the owners of all earlier entries that do not go with its own. Everything that decides this is
//! fixed when an entry is made (its mode, its owner, its place), and an entry waits only for earlier
//! ones; so a circle can close only at the moment when an entry is added, and it is the newcomer,
//! the youngest of the circle, that is refused. Looking again later would find nothing new. At a
//! barrier one waits for the round before only once that is granted; but its owners, each a sequential
//! flow of work, can wait elsewhere only after that, and are newcomers there.
//!
//! **What is searched.** Circles through locks that are exclusive or shared, through barriers, through
//! semaphores with one slot, and through any number of names that are asked for together. A waiter for
//! one of several slots waits for whichever holder leaves first, so no single holder keeps it waiting:
//! circles that lead through such a wait are not searched.
//!
//! **What it costs.** What an entry waits for is always the whole queue up to some place
//! ([`super::Queue::waits_up_to`]). So a search goes through each queue at most once, and looks only at
//! those entries by which a path can leave the queue: the holders, and who waits in several queues.
//! Owners without another place, and owners behind whom nobody waits, close no circle and cost nothing. A
//! search that takes more than [`limits::DEADLOCK_SEARCH`] steps refuses the request
//! ([`Refusal::DeadlockUnknown`]), because a circle that was missed would last until a lease ends. Steps
//! are counted so that every member counts the same.
//!
//! Below level 1 the search is that of earlier releases: it goes through every earlier entry and gives up
//! silently after [`limits::DEADLOCK_STEPS`] of them.

use std::collections::{BTreeMap, VecDeque};

use super::owners::Owner;
use super::{LockEntry, LockName, Locks};
use crate::{Lock, Mode, Refusal, Revision, SharedBytes, limits};

/// One step of a circle: somebody waits for a lock that another is in the way of.
struct Step {
    waiter: SharedBytes,
    name: SharedBytes,
}

/// Refuses a request that would close a circle.
pub(super) fn check(locks: &Locks, lock: &Lock, work: &mut u64) -> Result<(), Refusal> {
    // An owner that has no other place, or behind whose places nobody stands or comes to stand, is waited for by nobody.
    let Some(me) = locks.owners.get(&lock.owner).filter(|me| may_be_waited_for(locks, me, lock)) else {
        return Ok(());
    };
    let mut search = Search {
        locks,
        me,
        owner: lock.owner[..].into(),
        reached: BTreeMap::new(),
        explored: BTreeMap::new(),
        next: VecDeque::new(),
        budget: limits::DEADLOCK_SEARCH,
    };
    let result = search.run(lock);
    *work += (limits::DEADLOCK_SEARCH - search.budget) as u64;
    result
}

/// Whether anybody stands behind a place of this owner, or will with this request. With very many places that is not
/// looked for.
fn may_be_waited_for(locks: &Locks, owner: &Owner, lock: &Lock) -> bool {
    const MANY: usize = 1000;
    let is_alone = |(name, token): &(LockName, Revision)| {
        let is_asked_for = lock.name == name[..] || lock.more_names.iter().any(|other| *other == name[..]);
        !is_asked_for && locks.queue(name).is_none_or(|queue| queue.last_token() == *token)
    };
    owner.held.len() + owner.waiting.len() > MANY || !owner.held.iter().chain(owner.waiting.iter()).all(is_alone)
}

struct Search<'a> {
    locks: &'a Locks,
    /// Who asks, and the places that it has.
    owner: SharedBytes,
    me: &'a Owner,
    /// How each owner was reached first.
    reached: BTreeMap<SharedBytes, Step>,
    /// How far each queue was gone through.
    explored: BTreeMap<LockName, Revision>,
    /// Owners whose own waits are to be followed.
    next: VecDeque<SharedBytes>,
    budget: usize,
}

impl Search<'_> {
    fn run(&mut self, lock: &Lock) -> Result<(), Refusal> {
        let (locks, owner) = (self.locks, self.owner.clone());
        for name in std::iter::once(&lock.name).chain(&lock.more_names) {
            let Some((name, queue)) = locks.queues.get_key_value(&name[..]) else { continue };
            let Some(upto) = queue.waits_up_to(Revision::MAX, lock.mode.sane()) else { continue };
            self.explore(&owner, name, upto)?;
        }
        while let Some(waiter) = self.next.pop_front() {
            let places = locks.owners.get(&waiter).into_iter().flat_map(|owner| owner.waiting.iter());
            for (name, token) in places {
                self.spend()?;
                let Some(queue) = locks.queue(name) else { continue };
                let Some(mode) = queue.get(*token).map(|entry| entry.mode) else { continue };
                if let Some(upto) = queue.waits_up_to(*token, mode) {
                    self.explore(&waiter, name, upto)?;
                }
            }
        }
        Ok(())
    }

    fn spend(&mut self) -> Result<(), Refusal> {
        self.budget = self.budget.checked_sub(1).ok_or(Refusal::DeadlockUnknown)?;
        Ok(())
    }

    /// Goes through the queue `name` up to a token, for one who waits there.
    fn explore(&mut self, waiter: &SharedBytes, name: &LockName, upto: Revision) -> Result<(), Refusal> {
        let after = self.explored.get(name).copied().unwrap_or(0);
        if upto <= after {
            return Ok(());
        }
        self.explored.insert(name.clone(), upto);
        let step = || Step { waiter: waiter.clone(), name: name[..].into() };
        // One that holds what it asks for is told so elsewhere; two leases of one owner are a circle of one.
        if self.me.has_place(name, after, upto) {
            self.reached.insert(self.owner.clone(), step());
            return Err(Refusal::Deadlock { cycle: in_words(&self.reached, &self.owner) });
        }
        let Some(queue) = self.locks.queue(name) else { return Ok(()) };
        for entry in queue.holders_and_entangled(after, upto).filter(|entry| !entry.owner.is_empty()) {
            #[cfg(feature = "planted")]
            if crate::planted::is(crate::planted::Bug::MissCircle)
                && entry.granted_wall_ms.is_some()
                && queue.iter().next().is_some_and(|first| first.token < entry.token)
            {
                continue;
            }
            let waits = self.locks.owners.get(&entry.owner).map_or(0, |owner| owner.waiting.len());
            // A path leaves this queue only by another place in which the owner waits.
            let waits_here = usize::from(entry.granted_wall_ms.is_none());
            if waits_here == 0 || waits > waits_here {
                self.spend()?;
            }
            if waits > waits_here && !self.reached.contains_key(&entry.owner) {
                self.reached.insert(entry.owner.clone(), step());
                self.next.push_back(entry.owner.clone());
            }
        }
        Ok(())
    }
}

/// The circle that `lock` would close, in words, as releases without levels looked for it.
pub(super) fn cycle(locks: &Locks, lock: &Lock) -> Option<String> {
    let me: SharedBytes = lock.owner[..].into();
    // How each owner was reached first: shortest circles are found, and each owner is looked at once.
    let mut reached: BTreeMap<SharedBytes, Step> = BTreeMap::new();
    let mut next = VecDeque::new();
    let mut budget = limits::DEADLOCK_STEPS;
    for name in std::iter::once(&lock.name).chain(&lock.more_names) {
        for blocker in blockers(locks, name, Revision::MAX, lock.mode, &mut budget) {
            // One that holds what it asks for is told so elsewhere; two leases of one owner are a circle of one.
            if reached.insert(blocker.clone(), Step { waiter: me.clone(), name: name[..].into() }).is_none() {
                next.push_back(blocker);
            }
        }
    }
    while let Some(owner) = next.pop_front() {
        if owner == me {
            return Some(in_words(&reached, &me));
        }
        for (name, token) in locks.owners.get(&owner).into_iter().flat_map(|owner| owner.waiting.iter()) {
            let Some(entry) = locks.queue(name).and_then(|queue| queue.get(*token)) else { continue };
            for blocker in blockers(locks, name, entry.token, entry.mode, &mut budget) {
                if !reached.contains_key(&blocker) {
                    reached.insert(blocker.clone(), Step { waiter: owner.clone(), name: name[..].into() });
                    next.push_back(blocker);
                }
            }
        }
    }
    None
}

/// The owners that an entry of this mode, with this token, waits for in the queue `name`.
fn blockers(locks: &Locks, name: &[u8], token: Revision, mode: Mode, budget: &mut usize) -> Vec<SharedBytes> {
    let mut found = Vec::new();
    let entries = locks.queue(name).into_iter().flat_map(|queue| queue.iter());
    for entry in entries.take_while(|entry| entry.token < token) {
        if *budget == 0 {
            break;
        }
        *budget -= 1;
        if !entry.owner.is_empty() && !goes_with(entry, mode) {
            found.push(entry.owner.clone());
        }
    }
    found
}

/// Whoever waits for a slot of a semaphore waits for any one of its holders, not for each of them. Who waits at a
/// barrier waits for nobody who waits there too, but for each of the round before.
fn goes_with(entry: &LockEntry, mode: Mode) -> bool {
    let shares = match mode {
        Mode::Exclusive => false,
        Mode::Shared | Mode::Slots(_) => true,
        Mode::Barrier(_) => entry.granted_wall_ms.is_none(),
    };
    shares && entry.mode == mode
}

fn in_words(reached: &BTreeMap<SharedBytes, Step>, me: &SharedBytes) -> String {
    let mut steps = Vec::new();
    let mut at = me.clone();
    while let Some(step) = reached.get(&at) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        steps.push(format!("{} waits for {} behind {}", text(&step.waiter), text(&step.name), text(&at)));
        at = step.waiter.clone();
        if at == *me {
            break;
        }
    }
    steps.reverse();
    steps.join(", ")
}
