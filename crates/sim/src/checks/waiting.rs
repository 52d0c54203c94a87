//! A Lock call that waits is told at once when one of its places has ended, also one that was granted to it already
//! while it waits for another.
//!
//! What it would not notice: a place that ends between its grant and the confirmation of that grant; a wrong cause; how
//! late the caller of a session reads the answer.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Command, MemberId, Reply, Revision};
use tenure_replica::CallId;

use super::{Check, Context, Seen};
use crate::request::Request;

#[derive(Default)]
pub struct Waiting {
    /// Lock calls that are not answered: their members, and their names in the log.
    open: BTreeMap<CallId, (MemberId, u128)>,
    /// The places that each Lock has taken, by the name of its call.
    taken: BTreeMap<u128, Taken>,
    /// Calls that must be answered in the step under way.
    due: BTreeSet<CallId>,
}

struct Taken {
    index: u64,
    keys: Vec<Vec<u8>>,
    token: Revision,
}

impl Check for Waiting {
    fn name(&self) -> &'static str {
        "L8: a call that waits is told when one of its places ends"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Issued { id, call } => {
                if let Request::Lock(lock) = &call.request {
                    self.open.insert(*id, (call.member, lock.call));
                }
            }
            Seen::Cancelled { id, .. } | Seen::Answered { id, .. } => self.forget(*id),
            Seen::Died { lost, .. } => lost.iter().for_each(|id| self.forget(*id)),
            Seen::Applied { index, command: Some(Command::Lock(lock)), outcome } => {
                if let Ok(Reply::Lock(reply)) = &outcome.reply {
                    let keys = std::iter::once(&reply.key).chain(&reply.more_keys).map(|key| key.to_vec()).collect();
                    self.taken.insert(lock.call, Taken { index: *index, keys, token: reply.token });
                }
            }
            Seen::Advanced { member, from, to } if from < to => {
                let at_member = self.open.iter().filter(|(_, (of, _))| of == member);
                let due = at_member.filter(|(_, (_, joiner))| {
                    self.taken.get(joiner).is_some_and(|taken| taken.ends_within(*from, *to, context))
                });
                self.due.extend(due.map(|(id, _)| *id));
            }
            Seen::Stepped { .. } => {
                if let Some(id) = self.due.pop_first() {
                    return Err(format!("a place of call {id} has ended, and the call still waits"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Waiting {
    fn forget(&mut self, id: CallId) {
        self.open.remove(&id);
        self.due.remove(&id);
    }
}

impl Taken {
    /// Whether a place ended behind `from`, up to `to`, while the call waited for one of them.
    fn ends_within(&self, from: u64, to: u64, context: &Context<'_>) -> bool {
        let stays: Vec<_> = self.keys.iter().filter_map(|key| context.reference.model.stay(key, self.token)).collect();
        let first_end = stays.iter().filter_map(|stay| stay.ended).map(|(index, _)| index).min();
        let Some(ended) = first_end.filter(|ended| from < *ended && *ended <= to) else { return false };
        self.index <= from && stays.iter().any(|stay| stay.granted.is_none_or(|granted| granted > ended))
    }
}
