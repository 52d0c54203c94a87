//! The revision rises by one with each command that writes, and no member tells an older revision than it has told in the
//! same life. That a linearizable read never sees it fall is what `reads` checks.
//!
//! What it would not notice: a member that tells an older revision after a restart.

use std::collections::BTreeMap;

use tenure_machine::{MemberId, Revision};
use tenure_replica::Notice;

use super::{Check, Context, Seen};

#[derive(Default)]
pub struct Revisions {
    told: BTreeMap<MemberId, Revision>,
    applied: Revision,
}

impl Check for Revisions {
    fn name(&self) -> &'static str {
        "K2: the revision rises by one and never falls"
    }

    fn see(&mut self, seen: &Seen<'_>, _context: &Context<'_>) -> Result<(), String> {
        let (member, revision) = match seen {
            // What is applied already is applied again, from the snapshot on.
            Seen::Booted { member } => {
                self.told.remove(member);
                return Ok(());
            }
            Seen::Applied { outcome, .. } => {
                let expected = self.applied.max(1) + Revision::from(outcome.wrote);
                if outcome.revision != expected {
                    return Err(format!("revision {} follows {}", outcome.revision, self.applied));
                }
                self.applied = expected;
                return Ok(());
            }
            Seen::Answered { call, answer, .. } => (call.member, answer.revision),
            Seen::Noticed { member, notice, .. } => match notice {
                Notice::Created { revision, .. }
                | Notice::Commits { revision, .. }
                | Notice::Compacted { revision, .. }
                | Notice::Progress { revision, .. } => (*member, *revision),
                Notice::Behind { view, .. } => (*member, view.revision()),
            },
            _ => return Ok(()),
        };
        let told = self.told.entry(member).or_default();
        if revision < *told {
            return Err(format!("member {member} tells revision {revision} after {told}"));
        }
        *told = revision;
        Ok(())
    }
}
