//! Which members are there right now, asked before something that needs them.
//!
//! A member that was heard of a moment ago may be dead, and one that was not heard of may be well: followers do not
//! talk to each other, so a leader that was just elected has not heard of them all. Before it changes the members, or
//! gives its place to another, a leader therefore sends everybody a heartbeat and waits for answers. Only those who
//! have answered count. Those who have not by the end of an election timeout are not there.

use std::collections::BTreeSet;

use tenure_machine::MemberId;

use crate::Replica;

pub(crate) struct RollCall {
    began_ms: u64,
    /// This member, and those who were heard of since it asked.
    present: BTreeSet<MemberId>,
}

/// What a roll call has come to.
pub(crate) enum Attendance {
    /// Those who are there are enough.
    Enough(BTreeSet<MemberId>),
    /// The others were asked. Ask again in the next step.
    Unknown,
    TooFew,
}

impl Replica {
    /// Calls the roll until those who are there are enough. `is_enough` is also told for how long it has been called.
    pub(crate) fn call_roll(&mut self, is_enough: impl Fn(&BTreeSet<MemberId>, u64) -> bool) -> Attendance {
        let (now_ms, patience_ms) = (self.running_ms(), self.pace.slowness() * self.config.election_min_ms);
        let alone = BTreeSet::from([self.config.member]);
        if is_enough(&alone, patience_ms) {
            return Attendance::Enough(alone);
        }
        // One that was begun for something else and forgotten says nothing about now.
        let is_new = |call: &RollCall| now_ms - call.began_ms <= 2 * patience_ms;
        let Some(call) = self.roll_call.take().filter(is_new) else {
            self.roll_call = Some(RollCall { began_ms: now_ms, present: alone });
            self.hand_to_raft();
            self.node.ping();
            return Attendance::Unknown;
        };
        let waited_ms = now_ms - call.began_ms;
        if is_enough(&call.present, waited_ms) {
            return Attendance::Enough(call.present);
        }
        if waited_ms >= patience_ms {
            return Attendance::TooFew;
        }
        self.roll_call = Some(call);
        Attendance::Unknown
    }

    pub(crate) fn note_present(&mut self, member: MemberId) {
        if let Some(call) = &mut self.roll_call {
            call.present.insert(member);
        }
    }
}
