//! What a member's disk must give back, whatever happens: all that was reported durable, and not
//! overwritten since. Others count on it, be it an entry or a vote.

use std::collections::BTreeMap;

use tenure_replica::Persist;
use tenure_storage::Recovered;

#[derive(Default)]
pub struct Durable {
    kept: Kept,
    /// What the log is writing: of where it differs nobody knows which of both a crash leaves.
    next: Option<Kept>,
}

#[derive(Default, Clone)]
struct Kept {
    /// The entry before the first one.
    base: u64,
    /// By index.
    terms: BTreeMap<u64, u64>,
    term: u64,
    vote: u64,
}

impl Durable {
    /// These are about to be written.
    pub fn begin<'a>(&mut self, persists: impl Iterator<Item = &'a Persist>) {
        let mut next = self.next.clone().unwrap_or_else(|| self.kept.clone());
        for persist in persists {
            if let Some(snapshot) = persist.snapshot {
                next.base = snapshot.index;
                next.terms.clear();
                if snapshot.term > next.term {
                    (next.term, next.vote) = (snapshot.term, 0);
                }
            }
            if let Some(state) = persist.hard_state {
                (next.term, next.vote) = (state.term, state.vote);
            }
            if let Some(first) = persist.entries.first() {
                next.terms.split_off(&first.index);
            }
            next.terms.extend(persist.entries.iter().map(|entry| (entry.index, entry.term)));
        }
        // What is to be overwritten may be gone already, and is promised by nobody any more.
        let stays = |index: &u64, term: &mut u64| next.terms.get(index) == Some(term);
        self.kept.terms.retain(stays);
        self.next = Some(next);
    }

    /// They are written, and synced.
    pub fn finish(&mut self) {
        if let Some(next) = self.next.take() {
            self.kept = next;
        }
    }

    /// Compares with what came back, and goes on from there.
    pub fn recover(&mut self, recovered: &Recovered) -> Result<(), String> {
        let found: BTreeMap<u64, u64> = recovered.entries.iter().map(|entry| (entry.index, entry.term)).collect();
        let (state, base) = (recovered.hard_state, recovered.snapshot.index);
        if base < self.kept.base {
            return Err(format!(
                "a snapshot at {} was durable, and {base} is the newest that came back",
                self.kept.base
            ));
        }
        for (index, term) in self.kept.terms.iter().filter(|(index, _)| **index > base) {
            if found.get(index) != Some(term) {
                let found = found.get(index);
                return Err(format!("entry {index} of term {term} was durable, and {found:?} came back"));
            }
        }
        let kept = &self.kept;
        if state.term < kept.term || (state.term == kept.term && kept.vote != 0 && state.vote != kept.vote) {
            return Err(format!("a vote for {} in term {} was durable, and {state:?} came back", kept.vote, kept.term));
        }
        self.kept = Kept { base, terms: found, term: state.term, vote: state.vote };
        self.next = None;
        Ok(())
    }
}
