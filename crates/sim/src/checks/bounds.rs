//! What a member keeps in memory stays within its limits: the log behind what is applied, what watchers have not read,
//! commands on their way to the leader. When no client asks for anything any more, nothing waits, and no work is left to
//! `Continue`.
//!
//! What it would not notice: a limit that is exceeded between two looks (one step of 32 is looked at); memory that
//! `Replica::load` does not count, such as queues of lock watches, sessions and the machine's own indexes; how much work
//! one step does (`work` looks at each command); how long work is left to `Continue` before all is silent.

use std::collections::BTreeMap;

use tenure_machine::MemberId;
use tenure_replica::{Load, Replica};

use super::{Check, Context, Seen};

/// Looked at after one of so many steps: to count costs time.
const EVERY: u64 = 32;
/// Of commands that are forwarded whatever else is under way: who leaves a queue must be able to.
const LEAVES_BYTES: u64 = 32 << 10;

#[derive(Default)]
pub struct Bounds {
    steps: BTreeMap<MemberId, u64>,
    largest_commit: usize,
}

impl Check for Bounds {
    fn name(&self) -> &'static str {
        "memory: nothing outgrows its limit"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Applied { outcome, .. } if outcome.wrote => {
                if let Some(commit) = context.reference.model.commit(outcome.revision) {
                    let bytes = commit.events.iter().map(|event| event.kv.key.len() + event.kv.value.len() + 64).sum();
                    self.largest_commit = self.largest_commit.max(bytes);
                }
                Ok(())
            }
            Seen::Stepped { member, replica } => {
                let steps = self.steps.entry(*member).or_default();
                *steps += 1;
                if steps.is_multiple_of(EVERY) { self.check(replica, context).map(drop) } else { Ok(()) }
            }
            Seen::Quiet { replica } => {
                let load = self.check(replica, context)?;
                let (ending, due) = context.reference.model.unfinished();
                if !ending.is_empty() || !due.is_empty() {
                    let due: Vec<_> = due.iter().map(|name| String::from_utf8_lossy(name)).collect();
                    return Err(format!(
                        "leases {ending:x?} still have keys, places are due in {due:?}: no member goes on"
                    ));
                }
                match load.waiting() == 0 && load.unapplied_bytes == 0 {
                    true => Ok(()),
                    false => Err(format!("nobody asks for anything, and yet something waits: {load:?}")),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Bounds {
    fn check(&self, replica: &Replica, context: &Context<'_>) -> Result<Load, String> {
        let (load, config) = (replica.load(), &context.plan.replica);
        let limits = [
            ("the log behind what is applied", load.tail_bytes, config.log_tail_bytes.max(config.catch_up_bytes)),
            ("commands for the leader", load.forward_bytes, config.inflight_bytes + LEAVES_BYTES),
            // The last one that fits may be as large as it likes.
            (
                "what watchers have not read",
                load.stream_bytes as u64,
                (config.watch_buffer_bytes + self.largest_commit) as u64,
            ),
        ];
        match limits.into_iter().find(|(_, bytes, most)| bytes > most) {
            Some((what, bytes, most)) => Err(format!("{what}: {bytes} bytes of at most {most}: {load:?}")),
            None => Ok(load),
        }
    }
}
