//! A watch delivers what was changed: all of it, in order, once, and revisions whole.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Change, Revision, Watched};

/// A watch of everything has seen the beginning of history, and nothing else.
pub fn check(watched: &Watched, history: &[Change]) -> Result<(), String> {
    let seen = &watched.changes;
    if let Some(difference) = difference(seen, &history[..seen.len().min(history.len())]) {
        return Err(format!("the watch {}: {difference}", watched.by));
    }
    let is_split = match (seen.last(), history.get(seen.len())) {
        (Some(last), Some(next)) => last.revision == next.revision,
        _ => false,
    };
    match is_split {
        true => Err(format!("the watch {} ends within revision {}", watched.by, seen[seen.len() - 1].revision)),
        false => Ok(()),
    }
}

/// The first place where two histories part.
pub fn difference(one: &[Change], other: &[Change]) -> Option<String> {
    if let Some((place, (one, other))) = one.iter().zip(other).enumerate().find(|(_, (one, other))| one != other) {
        return Some(format!("change {place} is {one:?}, not {other:?}"));
    }
    (one.len() != other.len()).then(|| format!("{} changes, not {}", one.len(), other.len()))
}

/// Revisions grow, and no key changes twice at one.
pub fn check_order(changes: &[Change]) -> Result<(), String> {
    let mut keys: BTreeSet<&str> = BTreeSet::new();
    let mut revision = 0;
    for change in changes {
        if change.revision < revision {
            return Err(format!("{change:?} comes after revision {revision}"));
        }
        if change.revision > revision {
            keys.clear();
            revision = change.revision;
        }
        if !keys.insert(&change.key) {
            return Err(format!("{change:?} is there twice"));
        }
    }
    Ok(())
}

/// The keys that a history leaves behind, with the revision of their last change.
pub fn replay(changes: &[Change]) -> BTreeMap<String, Revision> {
    let mut keys = BTreeMap::new();
    for change in changes {
        match change.value {
            Some(_) => keys.insert(change.key.clone(), change.revision),
            None => keys.remove(&change.key),
        };
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: Revision, key: &str) -> Change {
        Change { revision, key: key.to_owned(), value: Some(vec![]) }
    }

    fn history() -> Vec<Change> {
        vec![change(2, "a"), change(3, "a"), change(3, "b"), change(4, "a")]
    }

    fn judged(changes: Vec<Change>) -> Result<(), String> {
        check(&Watched { by: "w".to_owned(), changes }, &history())
    }

    #[test]
    fn the_beginning_of_history_passes() {
        judged(vec![]).unwrap();
        judged(history()[..3].to_vec()).unwrap();
        judged(history()).unwrap();
    }

    #[test]
    fn a_gap_a_repetition_and_disorder_are_noticed() {
        assert!(judged([&history()[..1], &history()[3..]].concat()).is_err(), "a gap");
        assert!(judged([&history()[..1], &history()[..]].concat()).is_err(), "a repetition");
        assert!(judged([&history()[..], &history()[3..]].concat()).is_err(), "a repetition at the end");
        assert!(judged(vec![history()[0].clone(), history()[2].clone(), history()[1].clone()]).is_err(), "disorder");
    }

    #[test]
    fn half_a_revision_is_noticed() {
        assert!(judged(history()[..2].to_vec()).unwrap_err().contains("within revision 3"));
    }

    #[test]
    fn a_history_that_goes_back_or_repeats_itself_is_noticed() {
        check_order(&history()).unwrap();
        assert!(check_order(&[change(3, "a"), change(2, "b")]).is_err());
        assert!(check_order(&[change(3, "a"), change(3, "a")]).is_err());
    }

    #[test]
    fn what_is_left_is_what_was_not_deleted() {
        let mut changes = history();
        changes.push(Change { revision: 5, key: "b".to_owned(), value: None });
        assert_eq!(replay(&changes), BTreeMap::from([("a".to_owned(), 4)]));
    }
}
