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

use std::collections::{BTreeMap, VecDeque};

use super::{LockEntry, Locks};
use crate::{Lock, Mode, Revision, SharedBytes, limits};

/// One step of a circle: somebody waits for a lock that another is in the way of.
struct Step {
    waiter: SharedBytes,
    name: SharedBytes,
}

/// The circle that `lock` would close, in words.
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
        for (name, token) in locks.places_of_owner(&owner) {
            let entry = locks.queue(name).and_then(|queue| queue.entries.get(*token));
            let Some(entry) = entry.filter(|entry| entry.granted_wall_ms.is_none()) else { continue };
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
