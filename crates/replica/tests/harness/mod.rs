//! What both harnesses share: a member's disk, and the rule that a call is answered at most once.
#![allow(dead_code)]

use std::collections::BTreeSet;

use bytes::Bytes;
use prost011::Message as _;
use raft::eraftpb::ConfState;
use tenure_machine::snapshot::{Restore, chunks};
use tenure_machine::{Machine, MemberId};
use tenure_replica::{
    Boot, CallId, Config, FIRST_INDEX, FIRST_TERM, HardState, InstalledSnapshot, LogEntry, Persist, SaveSnapshot,
};

/// What a member has on its disk, and what it was told to write and has not yet.
#[derive(Default)]
pub struct Disk {
    pub voters: Vec<MemberId>,
    pub learners: Vec<MemberId>,
    pub hard_state: HardState,
    /// None = what a new cluster starts from.
    pub snapshot: Option<Snapshot>,
    /// Received from others, and not known to be wanted.
    pub received: Vec<Snapshot>,
    /// The log begins behind this.
    pub before: u64,
    pub entries: Vec<LogEntry>,
    pub unwritten: Vec<Persist>,
    pub joins: bool,
    /// What a member that joins was told of the others.
    pub machine: Option<Machine>,
}

#[derive(Clone)]
pub struct Snapshot {
    pub index: u64,
    pub term: u64,
    pub configuration: Bytes,
    pub chunks: Vec<Vec<u8>>,
}

impl Snapshot {
    pub fn of(save: SaveSnapshot) -> Snapshot {
        let SaveSnapshot { index, term, configuration, view } = save;
        Snapshot { index, term, configuration, chunks: chunks(view, 1000).collect() }
    }

    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    pub fn machine(&self) -> Machine {
        let mut restore = Restore::new();
        for chunk in &self.chunks {
            restore.chunk(chunk).expect("a sound snapshot");
        }
        restore.finish().expect("a whole snapshot")
    }
}

impl Disk {
    pub fn new(voters: &[MemberId], learners: &[MemberId]) -> Disk {
        Disk { voters: voters.to_vec(), learners: learners.to_vec(), before: FIRST_INDEX, ..Disk::default() }
    }

    /// Of a member that is to join a cluster.
    pub fn joining() -> Disk {
        Disk { joins: true, ..Disk::default() }
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
            if let Some(InstalledSnapshot { index, term }) = persist.snapshot {
                let position =
                    self.received.iter().position(|received| (received.index, received.term) == (index, term));
                self.snapshot = Some(self.received.remove(position.expect("only what was received is installed")));
                self.before = index;
                self.entries.clear();
            }
            self.hard_state = persist.hard_state.unwrap_or(self.hard_state);
            for entry in persist.entries {
                self.entries.truncate((entry.index - self.before - 1) as usize);
                self.entries.push(entry);
                assert_eq!(self.last_index(), self.entries.last().expect("just pushed").index, "no gap in the log");
            }
            messages.extend(persist.messages);
        }
        messages
    }

    pub fn last_index(&self) -> u64 {
        self.before + self.entries.len() as u64
    }

    /// What a member finds that starts again here: only what is durable.
    pub fn boot(&mut self) -> Boot {
        self.unwritten.clear();
        self.received.clear();
        if self.joins && self.snapshot.is_none() {
            let machine = self.machine.take().unwrap_or_default();
            return Boot { hard_state: self.hard_state, machine, ..Boot::joining() };
        }
        let first = Boot {
            machine: {
                let mut machine = Machine::new();
                machine.skip(FIRST_INDEX, FIRST_TERM);
                machine
            },
            snapshot_index: FIRST_INDEX,
            snapshot_term: FIRST_TERM,
            configuration: self.configuration(),
            snapshot_bytes: 0,
            hard_state: self.hard_state,
            entries: self.entries.clone(),
        };
        let Some(snapshot) = &self.snapshot else { return first };
        Boot {
            machine: snapshot.machine(),
            snapshot_index: snapshot.index,
            snapshot_term: snapshot.term,
            configuration: snapshot.configuration.clone(),
            snapshot_bytes: snapshot.bytes(),
            entries: self.entries.iter().filter(|entry| entry.index > snapshot.index).cloned().collect(),
            ..first
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
    // Scripts show every entry of the log. The level is not raised in them unless they ask for it.
    Config { member, boot: 100 + member, seed: member, highest_level: 0, ..Config::default() }
}
