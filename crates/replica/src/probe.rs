//! What a follower may lack, sent to it once.
//!
//! A leader that does not know where a follower's log ends sends it all that it may lack, up to a limit, and waits for a
//! word. Raft takes every answer to a heartbeat for such a word, and sends it all again. Every batch of reads makes a
//! heartbeat, so under load a member that comes back would be sent the same entries hundreds of times a second: it would
//! drown in them, and the leader with it. Messages may be lost, so those that say nothing new are.

use std::collections::BTreeMap;

use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};
use tenure_machine::MemberId;

use crate::Replica;

/// What was sent last to those who have not said where their log ends.
#[derive(Default)]
pub(crate) struct Probes(BTreeMap<MemberId, Probe>);

struct Probe {
    term: u64,
    /// The entries that were sent begin behind this one.
    behind: u64,
    sent_ms: u64,
}

impl Replica {
    /// Whether a follower has been sent these entries, and has had no time to say a word.
    pub(crate) fn is_said_already(&mut self, message: &Message) -> bool {
        if message.msg_type() != MessageType::MsgAppend || message.entries.is_empty() {
            return false;
        }
        let (to, now_ms) = (message.to, self.running_ms());
        let progress = self.node.raft.prs().get(to);
        if progress.is_none_or(|progress| progress.state != ProgressState::Probe) {
            self.probes.0.remove(&to);
            return false;
        }
        let is_same = |probe: &Probe| (probe.term, probe.behind) == (message.term, message.index);
        if self.probes.0.get(&to).is_some_and(|probe| is_same(probe) && now_ms < probe.sent_ms + self.patience_ms()) {
            return true;
        }
        self.probes.0.insert(to, Probe { term: message.term, behind: message.index, sent_ms: now_ms });
        false
    }

    /// Whether the leader was told a moment ago that this member has all up to there: it asks with every commit index
    /// that it tells. An answer may be lost, so it is given again to one who still asks a little later.
    pub(crate) fn is_acknowledged_already(&mut self, message: &Message) -> bool {
        if message.reject {
            self.acknowledged = None;
            return false;
        }
        let acknowledged = Acknowledged { to: message.to, term: message.term, index: message.index };
        let now_ms = self.running_ms();
        if self
            .acknowledged
            .is_some_and(|(last, at_ms)| last == acknowledged && now_ms < at_ms + self.config.heartbeat_ms)
        {
            return true;
        }
        self.acknowledged = Some((acknowledged, now_ms));
        false
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    to: MemberId,
    term: u64,
    index: u64,
}
