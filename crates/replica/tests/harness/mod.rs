//! What both harnesses share: a member's disk, and the rule that a call is answered at most once.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost011::Message as _;
use raft::eraftpb::ConfState;
use tenure_machine::{Machine, MemberId};
use tenure_replica::{Boot, CallId, Config, FIRST_INDEX, FIRST_TERM, HardState, LogEntry, Persist};

/// What a member has on its disk, and what it was told to write and has not yet.
#[derive(Default)]
pub struct Disk {
    pub voters: Vec<MemberId>,
    pub learners: Vec<MemberId>,
    pub hard_state: HardState,
    pub entries: Vec<LogEntry>,
    pub unwritten: Vec<Persist>,
}

impl Disk {
    pub fn new(voters: &[MemberId], learners: &[MemberId]) -> Disk {
        Disk { voters: voters.to_vec(), learners: learners.to_vec(), ..Disk::default() }
    }

    pub fn configuration(&self) -> Bytes {
        let Disk { voters, learners, .. } = self;
        ConfState { voters: voters.clone(), learners: learners.clone(), ..ConfState::default() }.encode_to_vec().into()
    }

    /// Makes everything up to `number` durable; gives the messages that may leave now.
    pub fn write_upto(&mut self, number: u64) -> Vec<(MemberId, Bytes)> {
        let mut messages = Vec::new();
        while self.unwritten.first().is_some_and(|persist| persist.number <= number) {
            let persist = self.unwritten.remove(0);
            self.hard_state = persist.hard_state.unwrap_or(self.hard_state);
            for entry in persist.entries {
                self.entries.truncate((entry.index - FIRST_INDEX - 1) as usize);
                self.entries.push(entry);
            }
            messages.extend(persist.messages);
        }
        messages
    }

    /// What a member finds that starts again here: only what is durable.
    pub fn boot(&mut self) -> Boot {
        self.unwritten.clear();
        let mut machine = Machine::new();
        machine.skip(FIRST_INDEX, FIRST_TERM);
        Boot {
            machine,
            snapshot_index: FIRST_INDEX,
            snapshot_term: FIRST_TERM,
            configuration: self.configuration(),
            snapshot_bytes: 0,
            hard_state: self.hard_state,
            entries: self.entries.clone(),
        }
    }
}

/// Calls that wait for an answer. A driver relies on this: at most one answer, and none after a cancel.
#[derive(Default)]
pub struct Calls {
    open: BTreeSet<CallId>,
    /// Cancelled, but the replica has not been told yet: an answer may cross the cancel.
    cancelled: BTreeSet<CallId>,
}

impl Calls {
    pub fn open(&mut self, call: CallId) {
        assert!(self.open.insert(call), "call {call} is under way already");
    }

    /// False if the answer crossed a cancel.
    pub fn answered(&mut self, call: CallId) -> bool {
        let crossed = self.cancelled.remove(&call);
        assert!(crossed || self.open.remove(&call), "call {call} was answered twice, or after it was cancelled");
        !crossed
    }

    pub fn cancelled(&mut self, call: CallId) {
        if self.open.remove(&call) {
            self.cancelled.insert(call);
        }
    }

    /// The step that took the cancels is over.
    pub fn stepped(&mut self) {
        self.cancelled.clear();
    }

    pub fn waiting(&self) -> &BTreeSet<CallId> {
        &self.open
    }
}

/// Small bounds, so that a script reaches them.
pub fn config(member: MemberId) -> Config {
    Config { member, boot: 100 + member, seed: member, ..Config::default() }
}
