//! Every commit since the compacted revision, in order.
//!
//! Each writing command makes exactly one, so revisions are dense and a revision is an index. That
//! is all a watch needs to catch up: it holds a revision, not a place in some structure.

use std::sync::Arc;

use imbl::Vector;

use crate::{Commit, Event, Revision};

#[derive(Clone)]
pub(crate) struct History {
    /// The events of each commit; its revision is its place.
    commits: Vector<Arc<[Event]>>,
    /// The revision of the first commit, or of the one that is to come.
    first: Revision,
}

impl History {
    pub fn starting_at(first: Revision) -> History {
        History { commits: Vector::new(), first }
    }

    pub fn first(&self) -> Revision {
        self.first
    }

    /// The revision after the last commit.
    pub fn next(&self) -> Revision {
        self.first + self.commits.len() as Revision
    }

    pub fn push(&mut self, commit: Commit) {
        debug_assert_eq!(commit.revision, self.next());
        self.commits.push_back(commit.events);
    }

    pub fn get(&self, revision: Revision) -> Option<Commit> {
        let events = self.commits.get(usize::try_from(revision - self.first).ok()?)?;
        Some(Commit { revision, events: events.clone() })
    }

    /// The commits from `revision` on, found without walking over those before.
    pub fn from(&self, revision: Revision) -> impl Iterator<Item = Commit> + '_ {
        let skipped = usize::try_from(revision.saturating_sub(self.first)).unwrap_or(0).min(self.commits.len());
        let commits = self.commits.focus().narrow(skipped..).into_iter();
        let revisions = self.first + skipped as Revision..;
        revisions.zip(commits).map(|(revision, events)| Commit { revision, events: events.clone() })
    }

    /// Takes the versions before from a commit whose past is gone.
    pub fn forget_previous(&mut self, revision: Revision) {
        let Some(commit) = self.get(revision) else { return };
        if commit.events.iter().all(|event| event.prev.is_none()) {
            return;
        }
        let events = commit.events.iter().map(|event| Event { prev: None, ..event.clone() }).collect();
        let index = (revision - self.first) as usize;
        self.commits.set(index, events);
    }

    pub fn forget_before(&mut self, revision: Revision) {
        while self.first < revision && self.commits.pop_front().is_some() {
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_an_index_while_both_ends_move() {
        let mut history = History::starting_at(2);
        for revision in 2..50_000 {
            history.push(Commit { revision, events: Arc::default() });
            if revision % 3 == 0 {
                history.forget_before(revision / 2);
            }
            if revision % 997 == 0 {
                let view = history.clone();
                assert_eq!(view.get(revision).unwrap().revision, revision);
                assert!(view.get(view.first() - 1).is_none());
                let start = view.first() + revision / 7;
                let seen: Vec<_> = view.from(start).map(|commit| commit.revision).collect();
                assert!(seen.iter().copied().eq(start..=revision), "from {start} to {revision}");
            }
        }
        assert_eq!(history.from(history.next()).count(), 0);
        assert_eq!(history.from(i64::MAX).count(), 0);
        assert_eq!(history.from(i64::MIN).next().unwrap().revision, history.first());
    }
}
