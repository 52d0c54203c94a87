//! Every watcher is told every change of its keys once and in order, over all streams that carry its watch.
//!
//! The check `watches` looks at each stream by itself, as the member speaks on it. This one looks at what the client's
//! cursor passes on: the revision of every event, from the first stream to the last.
//!
//! What it would not notice: what is in an event, which `watches` compares; how late an event is delivered; a message that
//! the server cuts within a revision.

use std::collections::BTreeMap;

use tenure_machine::{Keys, Revision};

use super::{Check, Context, Seen};
use crate::model::Model;
use crate::traffic::Delivery;

#[derive(Default)]
pub struct Deliveries {
    watches: BTreeMap<u64, Watch>,
}

struct Watch {
    keys: Keys,
    /// The first revision that was not delivered; None until the watch is in place.
    next: Option<Revision>,
}

impl Check for Deliveries {
    fn name(&self) -> &'static str {
        "watch: over breaks, no gap and no duplicate"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let model = &context.reference.model;
        match seen {
            Seen::Delivered(delivery) => self.take(delivery, model),
            Seen::Ended => self.watches.iter().try_for_each(|(number, watch)| watch.has_all(*number, model)),
            _ => Ok(()),
        }
    }
}

impl Deliveries {
    fn take(&mut self, delivery: &Delivery, model: &Model) -> Result<(), String> {
        match delivery {
            Delivery::Began { watch, keys, start } => {
                self.watches.insert(*watch, Watch { keys: keys.clone(), next: *start });
            }
            Delivery::Created { watch, revision } => {
                if let Some(found) = self.watches.get_mut(watch) {
                    found.next.get_or_insert(revision + 1);
                }
            }
            Delivery::Events { watch, events } => {
                let Some(found) = self.watches.get_mut(watch) else { return Ok(()) };
                let (Some(next), Some(last)) = (found.next, events.last()) else {
                    return Err(format!("watch {watch} is told {events:?} before it is in place"));
                };
                let expected = found.events(next, *last, model);
                if *events != expected {
                    return Err(format!(
                        "watch {watch} is told of {events:?}, and from {next} on there is {expected:?}"
                    ));
                }
                found.next = Some(last + 1);
            }
            Delivery::Over { watch } => drop(self.watches.remove(watch)),
        }
        Ok(())
    }
}

impl Watch {
    /// The revision of each event of its keys.
    fn events(&self, from: Revision, to: Revision, model: &Model) -> Vec<Revision> {
        let commits = model.commits_in(&self.keys, from, to);
        let events = commits.flat_map(|commit| commit.events.iter().map(move |event| (commit.revision, event)));
        events.filter(|(_, event)| self.keys.contains(&event.kv.key)).map(|(revision, _)| revision).collect()
    }

    fn has_all(&self, number: u64, model: &Model) -> Result<(), String> {
        let missed = self.next.map(|next| self.events(next, model.revision, model)).unwrap_or_default();
        match missed.is_empty() {
            true => Ok(()),
            false => Err(format!("watch {number} was never told of {missed:?}")),
        }
    }
}
