//! No owners wait for each other in a circle: the join that would close it is refused. Whether a join is refused, and
//! with which circle, is compared with the model when it is applied. Here it is what stands in the queues of a member,
//! seen from the other end: places are let through and taken away one after the other, as if each client went on as soon
//! as it could, until all are gone or none can move any more.
//!
//! What it would not notice: a circle through a place that joined below feature level 1, where the search finds less; a
//! circle through the round before at a barrier, which closes when the round is granted and not when anybody joins, if
//! owners ask for several things at once; a circle through a semaphore with several slots, which is not searched; a join
//! that is refused without a circle, and a search that gives up after its 50,000 steps: both are for the comparison
//! with the model, whose queues are never long enough for the second; a circle that is broken before a member
//! that has applied everything is next seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_machine::{Command, Level, LockEntry, Mode, Reply, Revision, View};

use super::{Check, Context, Seen};

#[derive(Default)]
pub struct Deadlocks {
    /// The revision at which level 1 was reached.
    since: Option<Revision>,
    /// A place that waits has been added since the last look at a state.
    is_due: bool,
}

/// From this level on every circle is searched for that stands here.
const SEARCHED: Level = 1;

impl Check for Deadlocks {
    fn name(&self) -> &'static str {
        "L9: no owners wait in a circle"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Applied { command: Some(Command::RaiseLevel { level }), outcome, .. }
                if *level >= SEARCHED && outcome.reply.is_ok() =>
            {
                self.since.get_or_insert(outcome.revision);
            }
            Seen::Applied { outcome, .. } => {
                self.is_due |= matches!(&outcome.reply, Ok(Reply::Lock(reply)) if !reply.granted);
            }
            Seen::Stepped { replica, .. } if self.is_due => {
                let view = replica.machine().state();
                if view.applied_index() == context.reference.applied() {
                    self.is_due = false;
                    return self.look(view);
                }
            }
            Seen::Quiet { replica } => return self.look(replica.machine().state()),
            _ => {}
        }
        Ok(())
    }
}

impl Deadlocks {
    fn look(&self, view: &View) -> Result<(), String> {
        let Some(since) = self.since else { return Ok(()) };
        let stuck = stuck(view, since);
        if stuck.is_empty() {
            return Ok(());
        }
        let text = String::from_utf8_lossy;
        let waits = stuck.iter().map(|entry| format!("{} with {}", text(&entry.owner), text(&entry.key)));
        let waits: Vec<String> = waits.collect();
        Err(format!("at entry {} these wait and can never go on: {}", view.applied_index(), waits.join(", ")))
    }
}

/// The waiting places of owners that are left when all that can go on has gone on.
fn stuck(view: &View, since: Revision) -> Vec<Arc<LockEntry>> {
    let mut queues: BTreeMap<Vec<u8>, Vec<Arc<LockEntry>>> = BTreeMap::new();
    for name in view.lock_names(b"") {
        queues.insert(name.to_vec(), view.lock_queue(name).cloned().collect());
    }
    loop {
        // A place is let through when nothing is left in its way.
        let is_kept = |places: &[Arc<LockEntry>], at: usize| {
            let entry = &places[at];
            let is_searched = entry.granted_wall_ms.is_none() && entry.token > since;
            is_searched && places[..at].iter().any(|earlier| !stand_together(earlier.mode, entry.mode))
        };
        let positions = queues.values().flat_map(|places| (0..places.len()).map(move |at| (places, at)));
        let kept: Vec<&Arc<LockEntry>> =
            positions.filter(|(places, at)| is_kept(places, *at)).map(|(places, at)| &places[at]).collect();
        // It is given back when its owner waits for nothing else.
        let busy: BTreeSet<&[u8]> =
            kept.iter().map(|entry| &entry.owner[..]).filter(|owner| !owner.is_empty()).collect();
        let stays = |entry: &Arc<LockEntry>| {
            busy.contains(&entry.owner[..]) || kept.iter().any(|other| Arc::ptr_eq(entry, other))
        };
        let left: BTreeMap<Vec<u8>, Vec<Arc<LockEntry>>> = queues
            .iter()
            .map(|(name, places)| (name.clone(), places.iter().filter(|entry| stays(entry)).cloned().collect()))
            .collect();
        let count = |queues: &BTreeMap<Vec<u8>, Vec<_>>| queues.values().map(Vec::len).sum::<usize>();
        if count(&left) == count(&queues) {
            return kept.into_iter().filter(|entry| !entry.owner.is_empty()).cloned().collect();
        }
        queues = left;
    }
}

/// Whether the later one of these modes does not wait for the earlier one in particular.
fn stand_together(earlier: Mode, later: Mode) -> bool {
    earlier == later && !matches!(later, Mode::Exclusive | Mode::Slots(1))
}

#[cfg(all(test, feature = "planted"))]
mod tests {
    use bytes::Bytes;
    use tenure_machine::planted::{Bug, plant};
    use tenure_machine::{Envelope, LeaseGrant, Lock, Machine, Refusal};

    use super::*;

    fn apply(machine: &mut Machine, command: Command) -> Result<Reply, Refusal> {
        let index = machine.state().applied_index() + 1;
        machine.apply(index, 1, &Envelope { wall_ms: index, origin: None, command }).reply
    }

    fn lock(machine: &mut Machine, name: &'static str, mode: Mode, owner: &'static str) -> Result<Reply, Refusal> {
        let lease = machine.state().applied_index() as i64 + 1;
        apply(machine, Command::LeaseGrant(LeaseGrant { lease, ttl_ms: 1000, client: Bytes::new() }))?;
        let (name, owner) = (Bytes::from(name), Bytes::from(owner));
        apply(machine, Command::Lock(Box::new(Lock { name, lease, mode, owner, call: 1, ..Lock::default() })))
    }

    /// Bob, the second holder of `a`, waits for ada in `b`, and ada asks for `a`.
    fn circle() -> (Machine, Result<Reply, Refusal>) {
        let mut machine = Machine::new();
        apply(&mut machine, Command::RaiseLevel { level: SEARCHED }).expect("a level");
        let before = [
            ("a", Mode::Shared, "carol"),
            ("a", Mode::Shared, "bob"),
            ("b", Mode::Exclusive, "ada"),
            ("b", Mode::Exclusive, "bob"),
        ];
        for (name, mode, owner) in before {
            lock(&mut machine, name, mode, owner).expect("no circle yet");
        }
        let last = lock(&mut machine, "a", Mode::Exclusive, "ada");
        (machine, last)
    }

    #[test]
    fn who_waits_without_a_circle_goes_on() {
        let (machine, last) = circle();
        assert!(matches!(last, Err(Refusal::Deadlock { .. })), "{last:?}");
        assert!(stuck(machine.state(), 0).is_empty());
    }

    #[test]
    fn who_waits_in_a_circle_is_stuck() {
        plant(Some(Bug::MissCircle));
        let (machine, last) = circle();
        plant(None);
        assert!(last.is_ok(), "{last:?}");
        let stuck: Vec<_> = stuck(machine.state(), 0).iter().map(|entry| entry.owner.clone()).collect();
        assert_eq!(stuck, [b"ada"[..].into(), b"bob"[..].into()]);
    }
}
