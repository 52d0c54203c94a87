//! What a member's disk must give back, whatever happens: all that was reported durable, and not
//! overwritten since. Others count on it, be it an entry or a vote.

use std::collections::BTreeMap;

use tenure_replica::Persist;
use tenure_storage::Recovered;

#[derive(Default)]
pub struct Durable {
    /// What the log was given, written or not: the term of each entry, by index.
    terms: BTreeMap<u64, u64>,
    given: State,
    /// What is known to be on the disk: of the entries all up to this one.
    last: u64,
    kept: State,
}

#[derive(Default, Clone, Copy)]
struct State {
    /// The entry before the first one.
    base: u64,
    term: u64,
    vote: u64,
}

impl Durable {
    /// These are about to be written.
    pub fn begin<'a>(&mut self, persists: impl Iterator<Item = &'a Persist>) {
        for persist in persists {
            if let Some(snapshot) = persist.snapshot {
                self.terms.clear();
                self.last = 0;
                self.given.base = snapshot.index;
                if snapshot.term > self.given.term {
                    (self.given.term, self.given.vote) = (snapshot.term, 0);
                }
            }
            if let Some(state) = persist.hard_state {
                (self.given.term, self.given.vote) = (state.term, state.vote);
            }
            if let Some(first) = persist.entries.first() {
                // What is to be overwritten may be gone already, and is promised by nobody any more.
                self.terms.split_off(&first.index);
                self.last = self.last.min(first.index - 1);
            }
            self.terms.extend(persist.entries.iter().map(|entry| (entry.index, entry.term)));
        }
    }

    /// They are written, and synced.
    pub fn finish(&mut self) {
        self.kept = self.given;
        self.last = self.terms.last_key_value().map_or(0, |(last, _)| *last);
    }

    /// Compares with what came back, and goes on from there.
    pub fn recover(&mut self, recovered: &Recovered) -> Result<(), String> {
        let found: BTreeMap<u64, u64> = recovered.entries.iter().map(|entry| (entry.index, entry.term)).collect();
        let (state, base, kept) = (recovered.hard_state, recovered.snapshot.index, self.kept);
        if base < kept.base {
            return Err(format!("a snapshot at {} was durable, and {base} is the newest that came back", kept.base));
        }
        for (index, term) in self.terms.iter().filter(|(index, _)| **index > base && **index <= self.last) {
            if found.get(index) != Some(term) {
                let found = found.get(index);
                return Err(format!("entry {index} of term {term} was durable, and {found:?} came back"));
            }
        }
        if state.term < kept.term || (state.term == kept.term && kept.vote != 0 && state.vote != kept.vote) {
            return Err(format!("a vote for {} in term {} was durable, and {state:?} came back", kept.vote, kept.term));
        }
        self.last = found.last_key_value().map_or(0, |(last, _)| *last);
        self.terms = found;
        self.kept = State { base, term: state.term, vote: state.vote };
        self.given = self.kept;
        Ok(())
    }
}
