//! What a member holds in memory at the moment, for whoever checks that it stays within its limits.

use tenure_machine::MemberId;

use crate::Replica;
use crate::log::entry_bytes;

/// Counted when it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    pub member: MemberId,
    /// Commands that are not proposed yet.
    pub unsent: usize,
    /// Calls that wait for what was proposed here.
    pub proposals: usize,
    /// Commands on their way to the leader.
    pub forwards: usize,
    pub forward_bytes: u64,
    /// Questions on their way to the leader.
    pub questions: usize,
    /// Reads and grants that wait for a confirmation, or for what was confirmed to be applied.
    pub reads: usize,
    /// Calls that wait for their turn.
    pub queued: usize,
    /// Entries of the log that are applied and kept for others, and those that are not applied.
    pub tail_bytes: u64,
    pub unapplied_bytes: u64,
    /// The most that one stream of watches has been given and has not passed on.
    pub stream_bytes: usize,
    pub watches: u64,
}

impl Load {
    /// Everything that waits for something.
    pub fn waiting(&self) -> usize {
        self.unsent + self.proposals + self.forwards + self.questions + self.reads + self.queued
    }
}

impl Replica {
    pub fn load(&self) -> Load {
        let applied = self.machine.applied_index();
        let (mut tail_bytes, mut unapplied_bytes) = (0, 0);
        for entry in self.node.store().kept() {
            match entry.index <= applied {
                true => tail_bytes += entry_bytes(entry),
                false => unapplied_bytes += entry_bytes(entry),
            }
        }
        Load {
            member: self.config.member,
            unsent: self.unsent.len(),
            proposals: self.proposals.awaited(),
            forwards: self.forwards.len(),
            forward_bytes: self.forwards.bytes(),
            questions: self.questions.len(),
            reads: self.reads.len(),
            queued: self.queued.len(),
            tail_bytes,
            unapplied_bytes,
            stream_bytes: self.hub.most_charged(),
            watches: self.hub.watches(),
        }
    }
}
