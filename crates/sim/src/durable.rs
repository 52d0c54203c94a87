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
    /// The same before the last batch, of which a damaged disk may lose all: nobody can tell it from a torn one.
    last_before: u64,
    kept_before: State,
    /// What is about to be written makes a batch.
    is_batch: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
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
            let is_empty = persist.snapshot.is_none() && persist.hard_state.is_none() && persist.entries.is_empty();
            self.is_batch |= persist.sync && !is_empty;
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
        // What need not be synced is written with the next that must be.
        if std::mem::take(&mut self.is_batch) {
            (self.last_before, self.kept_before) = (self.last, self.kept);
        }
        self.kept = self.given;
        self.last = self.terms.last_key_value().map_or(0, |(last, _)| *last);
    }

    /// Compares with what came back, and goes on from there.
    pub fn recover(&mut self, recovered: &Recovered) -> Result<(), String> {
        self.compare(recovered)?;
        let (state, base) = (recovered.hard_state, recovered.snapshot.index);
        let terms = terms_of(recovered);
        let last = terms.last_key_value().map_or(0, |(last, _)| *last);
        let kept = State { base, term: state.term, vote: state.vote };
        // A batch that was under way has come through, and is the last one now.
        if last > self.last || kept != self.kept {
            (self.last_before, self.kept_before) = (self.last, self.kept);
        }
        (self.terms, self.last, self.kept, self.given, self.is_batch) = (terms, last, kept, kept, false);
        Ok(())
    }

    pub fn compare(&self, recovered: &Recovered) -> Result<(), String> {
        self.compare_upto(recovered, self.last, self.kept)
    }

    /// As if the last batch had never been written.
    pub fn compare_before(&self, recovered: &Recovered) -> Result<(), String> {
        self.compare_upto(recovered, self.last_before, self.kept_before)
    }

    fn compare_upto(&self, recovered: &Recovered, last: u64, kept: State) -> Result<(), String> {
        let (found, state, base) = (terms_of(recovered), recovered.hard_state, recovered.snapshot.index);
        if base < kept.base {
            return Err(format!("a snapshot at {} was durable, and {base} is the newest that came back", kept.base));
        }
        // A snapshot that had come in when the member died holds what is committed. If the log has another entry at its end,
        // of an earlier term, then that one and all behind it can never be committed.
        let is_replaced = self.terms.get(&base).is_some_and(|term| *term < recovered.snapshot.term);
        let last = if is_replaced { base } else { last };
        for (index, term) in self.terms.iter().filter(|(index, _)| **index > base && **index <= last) {
            if found.get(index) != Some(term) {
                let found = found.get(index);
                return Err(format!("entry {index} of term {term} was durable, and {found:?} came back"));
            }
        }
        if state.term < kept.term || (state.term == kept.term && kept.vote != 0 && state.vote != kept.vote) {
            return Err(format!("a vote for {} in term {} was durable, and {state:?} came back", kept.vote, kept.term));
        }
        Ok(())
    }
}

fn terms_of(recovered: &Recovered) -> BTreeMap<u64, u64> {
    recovered.entries.iter().map(|entry| (entry.index, entry.term)).collect()
}
