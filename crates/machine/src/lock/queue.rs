//! The queue of one lock: its entries in order, and where the granted ones end.
//!
//! Queues may be long, so nothing that happens to one may walk all of it. What would have to be
//! found by walking is kept beside the entries ([`Aids`]) and follows from them alone: members that
//! restored the queue from a snapshot keep the same. Most locks have one entry and need none of it.

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use smallvec::SmallVec;

use super::LockEntry;
use crate::{LockChange, LockChanges, Mode, Refusal, Revision, limits};

#[derive(Clone)]
pub(crate) struct Queue {
    entries: Entries,
    /// The token of the last entry that is granted; 0 if none is.
    last_granted: Revision,
    granted: usize,
    aids: Option<Arc<Aids>>,
}

/// By token. Most locks have a holder and nobody waiting, and a tree for one entry would take half a kilobyte.
#[derive(Clone)]
enum Entries {
    One(Arc<LockEntry>),
    Many(OrdMap<Revision, Arc<LockEntry>>),
}

/// What is kept of a queue so that it need not be walked.
#[derive(Clone, Default)]
struct Aids {
    /// No holder has a slot from this one on. Of those before it, `slots_free` are free.
    slots_used: u32,
    slots_free: OrdSet<u32>,
    /// The entries behind one of another mode.
    turns: OrdSet<Revision>,
    /// Waiting entries whose owner has, or had, another place in which it waits.
    entangled: OrdSet<Revision>,
    /// How many entries stand from each of these tokens on, up to the next. What stands before the first of them is
    /// not counted.
    counts: OrdMap<Revision, usize>,
    counted: usize,
}

/// Entries that are counted together.
const STRIDE: usize = 256;

impl Queue {
    /// A queue of one entry.
    pub fn new(entry: Arc<LockEntry>) -> Queue {
        let is_granted = entry.granted_wall_ms.is_some();
        let (last_granted, granted) = if is_granted { (entry.token, 1) } else { (0, 0) };
        let mut queue = Queue { entries: Entries::One(entry.clone()), last_granted, granted, aids: None };
        if is_granted {
            queue.take_slot(&entry);
        }
        queue
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn granted(&self) -> usize {
        self.granted
    }

    /// All entries in order: the granted ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        self.entries.after(0)
    }

    /// The entry with this token.
    pub fn get(&self, token: Revision) -> Option<&Arc<LockEntry>> {
        self.entries.get(token)
    }

    pub fn get_mut(&mut self, token: Revision) -> Option<&mut Arc<LockEntry>> {
        self.entries.get_mut(token)
    }

    pub fn last_token(&self) -> Revision {
        self.entries.last_token()
    }

    /// Adds an entry that waits, at the end.
    pub fn join(&mut self, entry: Arc<LockEntry>) {
        let (token, mode) = (entry.token, entry.mode);
        let is_turn = self.entries.before(token).is_some_and(|last| last.mode != mode);
        self.entries.insert(entry);
        let is_long = self.len() > STRIDE || self.aids.as_ref().is_some_and(|aids| aids.counted > 0);
        if is_turn || is_long {
            let aids = self.aids_mut();
            if is_turn {
                aids.turns.insert(token);
            }
            if is_long {
                aids.count(token);
            }
        }
    }

    /// Puts the last entry back, as it comes from a snapshot: it is granted.
    pub fn restore_granted(&mut self, entry: LockEntry) {
        self.last_granted = entry.token;
        self.granted += 1;
        self.take_slot(&entry);
        self.disentangle(entry.token);
        if let Some(last) = self.entries.get_mut(entry.token) {
            *last = Arc::new(entry);
        }
    }

    /// Whether the next entry of a snapshot, which was just added, may be granted, or may wait.
    pub fn is_in_turn(&self, mode: Mode, is_granted: bool) -> bool {
        match is_granted {
            true => self.granted + 1 == self.len() && self.goes_with_last(mode),
            false => self.due() == 0,
        }
    }

    /// Notes that the owner of a waiting entry waits elsewhere, too.
    pub fn entangle(&mut self, token: Revision) {
        self.aids_mut().entangled.insert(token);
    }

    fn disentangle(&mut self, token: Revision) {
        // Looked up first without intent to write: most are not.
        if self.aids.as_ref().is_some_and(|aids| aids.entangled.contains(&token)) {
            self.aids_mut().entangled.remove(&token);
        }
    }

    /// The holders behind the entry with the token `after`, up to `upto`, and those who wait there and are entangled.
    pub fn holders_and_entangled(&self, after: Revision, upto: Revision) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        let holders_upto = upto.min(self.last_granted);
        let holders = self.entries.after(after).take_while(move |entry| entry.token <= holders_upto);
        let waiting = self.aids.as_deref().map(|aids| {
            let from = after.max(self.last_granted);
            aids.entangled.range((Bound::Excluded(from), Bound::Unbounded))
        });
        let waiting = waiting.into_iter().flatten().take_while(move |token| **token <= upto);
        holders.chain(waiting.filter_map(|token| self.entries.get(*token)))
    }

    /// The last of the earlier entries that an entry of this mode with this token waits for, directly or because one
    /// that it waits for does. It waits for all before that one, too.
    ///
    /// An entry waits for the earlier ones that it does not go with, and one that goes with it does not go with those
    /// that it waits for: so either none is left out, up to the last one that it does not go with, or it waits for
    /// none. An entry that waits for one of several slots does not wait for any particular one of those who have them.
    pub fn waits_up_to(&self, token: Revision, mode: Mode) -> Option<Revision> {
        let before = self.entries.before(token)?;
        #[cfg(feature = "planted")]
        if matches!(mode, Mode::Slots(_)) && crate::planted::is(crate::planted::Bug::RefuseWithoutCircle) {
            return Some(before.token);
        }
        if before.mode != mode || matches!(mode, Mode::Exclusive | Mode::Slots(1)) {
            return Some(before.token);
        }
        let turn = self.aids.as_deref().and_then(|aids| aids.turns.range(..=before.token).next_back());
        let upto = turn.and_then(|turn| self.entries.before(*turn)).map(|other| other.token);
        // Who waits at a barrier waits for all of the round before.
        let round = Some(self.last_granted).filter(|last| *last > 0 && matches!(mode, Mode::Barrier(_)));
        upto.max(round)
    }

    /// The entries behind the one with this token.
    pub fn after(&self, token: Revision) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        self.entries.after(token)
    }

    /// How many stand before the entry with this token.
    pub fn ahead(&self, token: Revision) -> usize {
        if token >= self.entries.last_token() {
            return self.len() - 1;
        }
        let counts = self.aids.as_deref().and_then(|aids| {
            let (from, _) = aids.counts.range(..=token).next_back()?;
            let before: usize = aids.counts.range(..*from).map(|(_, count)| count).sum();
            Some((*from, self.len() - aids.counted + before))
        });
        let (from, before) = counts.unwrap_or_default();
        before + self.entries.after(from - 1).take_while(|entry| entry.token < token).count()
    }

    /// Whether one more entry fits.
    pub fn check_room(&self) -> Result<(), Refusal> {
        if self.len() >= limits::LOCK_ENTRIES { Err(Refusal::TooManyWaiters) } else { Ok(()) }
    }

    /// Grants what is due until nothing is, until `room` is used up, or until something is due that may not hold: gives
    /// that. A round of a barrier is granted as a whole or not at all.
    pub fn grant_due(
        &mut self,
        wall_ms: u64,
        room: &mut usize,
        may_hold: impl Fn(&LockEntry) -> bool,
        changes: &mut LockChanges,
    ) -> SmallVec<[Arc<LockEntry>; 1]> {
        loop {
            let due = if *room == 0 { 0 } else { self.due() };
            let next = self.entries.after(self.last_granted).take(due);
            let ending: SmallVec<[_; 1]> = next.filter(|entry| !may_hold(entry)).cloned().collect();
            if due == 0 || !ending.is_empty() {
                return ending;
            }
            *room = room.saturating_sub(due);
            for entry in (0..due).map_while(|_| self.grant_next(wall_ms)) {
                changes.push(LockChange::Granted(entry));
            }
        }
    }

    /// Whether something could be granted, as far as its leases live.
    pub fn has_due(&self) -> bool {
        self.due() > 0
    }

    /// How many of the first waiting entries are to be granted together now.
    fn due(&self) -> usize {
        let Some(next) = self.entries.after(self.last_granted).next() else { return 0 };
        let Mode::Barrier(parties) = next.mode else { return usize::from(self.goes_with_last(next.mode)) };
        let parties = parties as usize;
        let is_complete = self.granted == 0
            && self.len() >= parties
            && self.iter().take(parties).all(|entry| entry.mode == next.mode);
        if is_complete { parties } else { 0 }
    }

    /// Whether one more of this mode may stand beside those that are granted.
    fn goes_with_last(&self, mode: Mode) -> bool {
        self.entries.get(self.last_granted).is_none_or(|last| fits(last.mode, mode, self.granted))
    }

    /// The entry with this token, if it is granted.
    pub fn holder(&self, token: Revision) -> Option<&Arc<LockEntry>> {
        self.entries.get(token).filter(|entry| entry.granted_wall_ms.is_some())
    }

    /// The first slot that no holder has.
    fn free_slot(&self) -> u32 {
        self.aids.as_deref().map_or(0, |aids| aids.slots_free.get_min().copied().unwrap_or(aids.slots_used))
    }

    /// Notes the slot of an entry that is granted, if it has one.
    fn take_slot(&mut self, entry: &LockEntry) {
        if !matches!(entry.mode, Mode::Slots(_)) {
            return;
        }
        let aids = self.aids_mut();
        aids.slots_free.remove(&entry.slot);
        while aids.slots_used <= entry.slot {
            if aids.slots_used < entry.slot {
                aids.slots_free.insert(aids.slots_used);
            }
            aids.slots_used += 1;
        }
    }

    fn aids_mut(&mut self) -> &mut Aids {
        Arc::make_mut(self.aids.get_or_insert_default())
    }

    fn grant_next(&mut self, wall_ms: u64) -> Option<Arc<LockEntry>> {
        let next = self.entries.after(self.last_granted).next()?;
        let token = next.token;
        let slot = match next.mode {
            Mode::Slots(_) => self.free_slot(),
            // A round is granted in one go, to a queue without holders.
            Mode::Barrier(_) => self.granted as u32,
            Mode::Exclusive | Mode::Shared => 0,
        };
        let entry = self.entries.get_mut(token)?;
        let granted = Arc::make_mut(entry);
        (granted.granted_wall_ms, granted.slot) = (Some(wall_ms), slot);
        let entry = entry.clone();
        self.last_granted = token;
        self.granted += 1;
        self.take_slot(&entry);
        self.disentangle(token);
        Some(entry)
    }

    /// Not for the last one: its queue goes with it.
    pub fn remove(&mut self, entry: &LockEntry) {
        self.entries.remove(entry.token);
        if entry.granted_wall_ms.is_some() {
            self.granted -= 1;
            if entry.token == self.last_granted {
                self.last_granted = self.entries.before(entry.token).map_or(0, |before| before.token);
            }
        }
        if self.aids.is_some() {
            self.forget(entry);
        }
    }

    /// Takes an entry that was just removed out of what is kept beside the entries.
    fn forget(&mut self, entry: &LockEntry) {
        let before = self.entries.before(entry.token).map(|before| before.mode);
        let behind = self.entries.after(entry.token).next().map(|behind| (behind.token, behind.mode));
        let is_free = self.granted == 0;
        let aids = self.aids_mut();
        if entry.granted_wall_ms.is_none() {
            aids.entangled.remove(&entry.token);
        } else if is_free {
            (aids.slots_used, aids.slots_free) = (0, OrdSet::new());
        } else if let Mode::Slots(_) = entry.mode {
            aids.slots_free.insert(entry.slot);
        }
        if !aids.turns.is_empty() {
            aids.turns.remove(&entry.token);
            if let Some((token, mode)) = behind {
                match before.is_some_and(|before| before != mode) {
                    true => aids.turns.insert(token),
                    false => aids.turns.remove(&token),
                };
            }
        }
        aids.discount(entry.token);
    }
}

/// Whether an entry of this mode would be granted as soon as it is made.
pub(crate) fn would_grant(queue: Option<&Queue>, mode: Mode, may_hold: impl Fn(&LockEntry) -> bool) -> bool {
    if let Mode::Barrier(parties) = mode {
        let is_last = queue.map_or(0, Queue::len) + 1 == parties as usize;
        let is_party = |entry: &Arc<LockEntry>| entry.mode == mode && may_hold(entry);
        let meets = |queue: &Queue| queue.granted == 0 && queue.iter().all(is_party);
        return is_last && queue.is_none_or(meets);
    }
    queue.is_none_or(|queue| queue.granted == queue.len() && queue.goes_with_last(mode))
}

/// Whether an entry goes with the last one that is granted, being one of so many.
fn fits(last: Mode, next: Mode, granted: usize) -> bool {
    match (last, next) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots(slots), Mode::Slots(wanted)) | (Mode::Barrier(slots), Mode::Barrier(wanted)) => {
            slots == wanted && granted < slots as usize
        }
        _ => false,
    }
}

impl Aids {
    /// Counts an entry that was added at the end.
    fn count(&mut self, token: Revision) {
        let last = self.counts.get_max().filter(|(_, count)| *count < STRIDE).map(|(from, _)| *from);
        *self.counts.entry(last.unwrap_or(token)).or_default() += 1;
        self.counted += 1;
    }

    fn discount(&mut self, token: Revision) {
        let Some((from, count)) = self.counts.range(..=token).next_back().map(|(from, count)| (*from, *count)) else {
            return;
        };
        self.counted -= 1;
        match count {
            1 => self.counts.remove(&from),
            count => self.counts.insert(from, count - 1),
        };
    }
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Entries::One(_) => 1,
            Entries::Many(entries) => entries.len(),
        }
    }

    fn get(&self, token: Revision) -> Option<&Arc<LockEntry>> {
        match self {
            Entries::One(entry) => (entry.token == token).then_some(entry),
            Entries::Many(entries) => entries.get(&token),
        }
    }

    fn get_mut(&mut self, token: Revision) -> Option<&mut Arc<LockEntry>> {
        match self {
            Entries::One(entry) => (entry.token == token).then_some(entry),
            Entries::Many(entries) => entries.get_mut(&token),
        }
    }

    fn last_token(&self) -> Revision {
        match self {
            Entries::One(entry) => entry.token,
            Entries::Many(entries) => entries.get_max().map_or(0, |(token, _)| *token),
        }
    }

    fn after(&self, token: Revision) -> impl Iterator<Item = &Arc<LockEntry>> + '_ {
        let (one, many) = match self {
            Entries::One(entry) => ((entry.token > token).then_some(entry), None),
            Entries::Many(entries) => (None, Some(entries.range((Bound::Excluded(token), Bound::Unbounded)))),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(_, entry)| entry))
    }

    fn before(&self, token: Revision) -> Option<&Arc<LockEntry>> {
        match self {
            Entries::One(entry) => (entry.token < token).then_some(entry),
            Entries::Many(entries) => entries.range(..token).next_back().map(|(_, entry)| entry),
        }
    }

    fn insert(&mut self, entry: Arc<LockEntry>) {
        match self {
            Entries::One(first) => {
                let mut entries = OrdMap::unit(first.token, first.clone());
                entries.insert(entry.token, entry);
                *self = Entries::Many(entries);
            }
            Entries::Many(entries) => {
                entries.insert(entry.token, entry);
            }
        }
    }

    fn remove(&mut self, token: Revision) {
        if let Entries::Many(entries) = self {
            entries.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SharedBytes, lock};

    /// Small numbers that look random.
    struct Draws(u64);

    impl Draws {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }
    }

    fn entry(token: Revision, mode: Mode) -> Arc<LockEntry> {
        Arc::new(LockEntry {
            key: lock::entry_key(b"l", token).into(),
            token,
            lease: token,
            mode,
            last_joiner: None,
            owner: SharedBytes::default(),
            holder: SharedBytes::default(),
            metadata: SharedBytes::default(),
            together: Arc::default(),
            joined_wall_ms: 0,
            granted_wall_ms: None,
            slot: 0,
        })
    }

    /// All earlier entries that an entry waits for, found by walking: those that it does not go with, and what they
    /// wait for.
    fn waited_for(queue: &Queue, token: Revision, mode: Mode) -> Vec<Revision> {
        let goes_with = |other: &LockEntry, mode: Mode| match mode {
            Mode::Exclusive | Mode::Slots(1) => false,
            Mode::Shared | Mode::Slots(_) => other.mode == mode,
            Mode::Barrier(_) => other.mode == mode && other.granted_wall_ms.is_none(),
        };
        let mut found: Vec<Revision> = Vec::new();
        let mut next = vec![(token, mode)];
        while let Some((token, mode)) = next.pop() {
            for other in queue.iter().take_while(|other| other.token < token) {
                if !goes_with(other, mode) && !found.contains(&other.token) {
                    found.push(other.token);
                    if other.granted_wall_ms.is_none() {
                        next.push((other.token, other.mode));
                    }
                }
            }
        }
        found.sort_unstable();
        found
    }

    fn check(queue: &Queue) {
        let tokens: Vec<_> = queue.iter().map(|entry| entry.token).collect();
        for (position, entry) in queue.iter().enumerate().step_by(1 + queue.len() / 40) {
            assert_eq!(queue.ahead(entry.token), position);
            if entry.granted_wall_ms.is_none() && queue.len() < 60 {
                let upto = queue.waits_up_to(entry.token, entry.mode).unwrap_or(0);
                let expected: Vec<_> = tokens.iter().copied().filter(|token| *token <= upto).collect();
                assert_eq!(waited_for(queue, entry.token, entry.mode), expected, "{:?}", entry.mode);
            }
        }
        let holders = queue.iter().take(queue.granted());
        let taken: Vec<u32> =
            holders.filter(|entry| matches!(entry.mode, Mode::Slots(_))).map(|entry| entry.slot).collect();
        if queue.iter().next().is_some_and(|first| matches!(first.mode, Mode::Slots(_))) {
            assert_eq!(Some(queue.free_slot()), (0..).find(|slot| !taken.contains(slot)));
        }
    }

    #[test]
    fn what_is_kept_beside_the_entries_is_what_walking_finds() {
        const MODES: [Mode; 6] =
            [Mode::Exclusive, Mode::Shared, Mode::Slots(1), Mode::Slots(30), Mode::Barrier(3), Mode::Slots(400)];
        for seed in 0..60 {
            let mut draws = Draws(seed);
            // Some queues are of a few modes, some grow long.
            let (modes, longest) = (1 + draws.below(MODES.len()), [8, 30, 2000][draws.below(3)]);
            let first = MODES[draws.below(MODES.len())];
            let mut queue = Queue::new(entry(2, first));
            let mut changes = LockChanges::new();
            for token in 3..(3 + 3 * longest as Revision) {
                let grows = queue.len() < 2 || (queue.len() < longest && draws.below(5) > 1);
                if grows {
                    queue.join(entry(token, MODES[(draws.below(modes) + seed as usize) % MODES.len()]));
                } else {
                    let position = if draws.below(2) == 0 { 0 } else { draws.below(queue.len()) };
                    let ended = queue.iter().nth(position).cloned();
                    ended.iter().for_each(|entry| queue.remove(entry));
                }
                let mut room = usize::MAX;
                queue.grant_due(0, &mut room, |_| true, &mut changes);
                changes.clear();
                if longest < 100 || token % 97 == 0 {
                    check(&queue);
                }
            }
        }
    }
}
