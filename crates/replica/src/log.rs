//! The tail of the log in memory, as raft reads it.
//!
//! The whole log since the last snapshot is on disk; here stands what raft may still ask for: what
//! is not yet applied, and a bounded tail behind it for members that lag a little. A member that
//! lags more is sent a snapshot.

use std::cell::Cell;
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

pub(crate) struct Log {
    hard_state: HardState,
    configuration: ConfState,
    /// Index and term of the entry before the first one kept.
    before_index: u64,
    before_term: u64,
    entries: VecDeque<Entry>,
    bytes: u64,
    /// The newest snapshot on this member's disk.
    saved: SavedSnapshot,
    /// Somebody needs one that is newer.
    wanted: Cell<bool>,
}

#[derive(Clone)]
pub(crate) struct SavedSnapshot {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) configuration: ConfState,
}

impl Log {
    pub(crate) fn new(
        hard_state: HardState,
        configuration: ConfState,
        before_index: u64,
        before_term: u64,
        entries: Vec<Entry>,
    ) -> Log {
        let bytes = entries.iter().map(entry_bytes).sum();
        let saved = SavedSnapshot { index: before_index, term: before_term, configuration: configuration.clone() };
        let wanted = Cell::new(false);
        Log { hard_state, configuration, before_index, before_term, entries: entries.into(), bytes, saved, wanted }
    }

    pub(crate) fn set_configuration(&mut self, configuration: ConfState) {
        self.configuration = configuration;
    }

    pub(crate) fn configuration(&self) -> &ConfState {
        &self.configuration
    }

    /// Appends; entries that stood at or behind the first of these are replaced.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let keep = first.index.saturating_sub(self.before_index + 1) as usize;
        while self.entries.len() > keep {
            let dropped = self.entries.pop_back().expect("longer than what is kept");
            self.bytes -= entry_bytes(&dropped);
        }
        for entry in entries {
            self.bytes += entry_bytes(entry);
            self.entries.push_back(entry.clone());
        }
    }

    /// Drops the oldest entries up to `applied` until no more than `keep_bytes` remain. Those behind `needed`
    /// a member that catches up still has to be sent: they stay until there are more than `most_bytes`.
    pub(crate) fn trim(&mut self, applied: u64, keep_bytes: u64, needed: u64, most_bytes: u64) {
        while self.before_index < applied {
            let keep_bytes = if self.before_index < needed { keep_bytes } else { most_bytes.max(keep_bytes) };
            if self.bytes <= keep_bytes {
                return;
            }
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry_bytes(&entry);
            self.before_index = entry.index;
            self.before_term = entry.term;
        }
    }

    pub(crate) fn saved(&self) -> &SavedSnapshot {
        &self.saved
    }

    pub(crate) fn snapshot_saved(&mut self, saved: SavedSnapshot) {
        self.saved = saved;
        self.wanted.set(false);
    }

    pub(crate) fn is_snapshot_wanted(&self) -> bool {
        self.wanted.get()
    }

    /// The log begins anew behind a snapshot that came from another member.
    pub(crate) fn install(&mut self, snapshot: SavedSnapshot) {
        self.configuration = snapshot.configuration.clone();
        (self.before_index, self.before_term) = (snapshot.index, snapshot.term);
        self.entries.clear();
        self.bytes = 0;
        self.snapshot_saved(snapshot);
    }

    /// What is kept in memory, the oldest first.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    fn last(&self) -> u64 {
        self.before_index + self.entries.len() as u64
    }
}

pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len() + 64) as u64
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state: self.configuration.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.before_index {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let (from, to) = ((low - self.before_index - 1) as usize, (high - self.before_index - 1) as usize);
        let mut size = 0;
        let mut entries = Vec::with_capacity((to - from).min(1024));
        for entry in self.entries.range(from..to) {
            size += entry_bytes(entry);
            if size > max_size && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before_index {
            return Ok(self.before_term);
        }
        if index < self.before_index {
            return Err(StorageError::Compacted.into());
        }
        match self.entries.get((index - self.before_index - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// What travels in raft's message speaks of the snapshot; the snapshot itself travels beside it.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let SavedSnapshot { index, term, configuration } = &self.saved;
        // It must lead to where the log begins, and to a state that knows the member it is for.
        let knows = |members: &Vec<u64>| members.contains(&to);
        let ConfState { voters, learners, voters_outgoing, .. } = configuration;
        let would_do = *index >= self.before_index.max(request_index)
            && [voters, learners, voters_outgoing].into_iter().any(knows);
        if !would_do {
            self.wanted.set(true);
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (*index, *term);
        *metadata.mut_conf_state() = configuration.clone();
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, data: vec![0; 36].into(), ..Default::default() }
    }

    fn log(upto: u64) -> Log {
        let entries = (2..=upto).map(|index| entry(index, 1)).collect();
        Log::new(HardState::default(), ConfState::default(), 1, 1, entries)
    }

    #[test]
    fn a_later_append_replaces_the_suffix() {
        let mut log = log(6);
        log.append(&[entry(4, 2), entry(5, 2)]);
        assert_eq!(log.last_index().unwrap(), 5);
        assert_eq!([log.term(3).unwrap(), log.term(4).unwrap(), log.term(5).unwrap()], [1, 2, 2]);
        assert_eq!(log.bytes, 400);
    }

    #[test]
    fn trimming_stops_at_what_is_applied() {
        let mut log = log(10);
        log.trim(5, 0, 10, 0);
        assert_eq!(log.first_index().unwrap(), 6);
        assert_eq!(log.term(5).unwrap(), 1);
        assert!(log.term(4).is_err());
        assert!(log.entries(5, 7, None, GetEntriesContext::empty(false)).is_err());
        assert_eq!(log.entries(6, 8, None, GetEntriesContext::empty(false)).unwrap().len(), 2);
    }

    #[test]
    fn what_somebody_needs_stays_within_bounds() {
        let mut log = log(10);
        log.trim(8, 100, 4, 500);
        assert_eq!((log.first_index().unwrap(), log.bytes), (6, 500), "no more than the most");
        log.trim(8, 100, 5, 500);
        assert_eq!(log.first_index().unwrap(), 6);
        log.trim(8, 100, 10, 500);
        assert_eq!(log.first_index().unwrap(), 9);
    }

    #[test]
    fn a_snapshot_must_lead_to_the_log_and_know_whom_it_is_for() {
        let mut log = log(10);
        let saved = |index, voters: &[u64]| SavedSnapshot {
            index,
            term: 1,
            configuration: ConfState { voters: voters.to_vec(), ..ConfState::default() },
        };
        log.snapshot_saved(saved(4, &[1, 2]));
        assert_eq!(log.snapshot(0, 2).unwrap().get_metadata().index, 4);
        assert!(!log.is_snapshot_wanted());
        assert!(log.snapshot(0, 3).is_err());
        assert!(log.is_snapshot_wanted());
        log.snapshot_saved(saved(6, &[1, 2, 3]));
        assert!(log.snapshot(0, 3).is_ok() && !log.is_snapshot_wanted());
        log.trim(8, 0, 10, 0);
        assert!(log.snapshot(0, 3).is_err() && log.is_snapshot_wanted());
    }

    #[test]
    fn a_size_limit_still_gives_one_entry() {
        let entries = log(10).entries(2, 8, 1, GetEntriesContext::empty(false)).unwrap();
        assert_eq!(entries.len(), 1);
    }
}
