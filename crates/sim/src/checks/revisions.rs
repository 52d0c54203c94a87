//! The revision rises by one with each command that writes, never falls within a life, and never
//! falls for anybody who asks for the newest, deaths or not.

use tenure_machine::Revision;
use tenure_replica::Notice;

use super::{Check, Context, Seen};

#[derive(Default)]
pub struct Revisions {
    told: Revision,
    applied: Revision,
}

impl Check for Revisions {
    fn name(&self) -> &'static str {
        "K2: the revision rises by one and never falls"
    }

    fn see(&mut self, seen: &Seen<'_>, _context: &Context<'_>) -> Result<(), String> {
        let revision = match seen {
            // What is applied already is applied again, from the snapshot on.
            Seen::Booted => {
                self.told = 0;
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
            Seen::Answered { answer, .. } => answer.revision,
            Seen::Noticed { notice, .. } => match notice {
                Notice::Created { revision, .. }
                | Notice::Commits { revision, .. }
                | Notice::Compacted { revision, .. }
                | Notice::Progress { revision, .. } => *revision,
                Notice::Behind { view, .. } => view.revision(),
            },
            _ => return Ok(()),
        };
        if revision < self.told {
            return Err(format!("revision {revision} was told after {}", self.told));
        }
        self.told = revision;
        Ok(())
    }
}
