//! Judges a history. Pure: what it says follows from what was noted down, and each check can fail.

mod locks;
mod puts;
mod registers;
mod revisions;
mod watches;

use crate::history::{Aftermath, Change, History};

/// Panics with what is wrong.
#[track_caller]
pub fn check(history: &History, aftermath: &Aftermath) {
    if let Err(violation) = judge(history, aftermath) {
        panic!("{violation}");
    }
}

fn judge(history: &History, aftermath: &Aftermath) -> Result<(), String> {
    let changes = agreed(aftermath)?;
    registers::check(&history.calls)?;
    let all_calls: Vec<_> = history.calls.iter().chain(&history.puts).collect();
    revisions::check(&all_calls)?;
    puts::check(&history.puts, changes)?;
    puts::check(&history.calls, changes)?;
    locks::check(&history.holdings, changes)?;
    history.watched.iter().try_for_each(|watched| watches::check(watched, changes))
}

/// Every member tells the same history, reads what follows from it, and computes the same hash.
fn agreed(aftermath: &Aftermath) -> Result<&[Change], String> {
    let Some((first, changes)) = aftermath.changes.first_key_value() else {
        return Err("no member told its history".to_owned());
    };
    for (member, others) in &aftermath.changes {
        if let Some(difference) = watches::difference(others, changes) {
            return Err(format!("{member} and {first} tell different histories: {difference}"));
        }
    }
    watches::check_order(changes)?;
    let expected = watches::replay(changes);
    for (member, keys) in &aftermath.keys {
        if *keys != expected {
            return Err(format!("{member} does not have the keys that follow from its history"));
        }
    }
    let mut hashes = aftermath.hashes.values();
    let hash = hashes.next();
    if !hashes.all(|other| Some(other) == hash) {
        return Err(format!("the members' hashes differ: {:?}", aftermath.hashes));
    }
    if aftermath.states.len() != aftermath.changes.len() {
        return Err(format!("not every member told its state: {:?}", aftermath.states));
    }
    let mut states = aftermath.states.values();
    let state = states.next();
    match states.all(|other| Some(other) == state) {
        true => Ok(changes),
        false => Err(format!("the members' states differ: {:?}", aftermath.states)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::support::state::State;

    fn told(revisions: &[i64]) -> Vec<Change> {
        let change = |revision: &i64| Change { revision: *revision, key: format!("k{revision}"), value: Some(vec![]) };
        revisions.iter().map(change).collect()
    }

    fn aftermath() -> Aftermath {
        let keys: BTreeMap<String, i64> = [("k2".to_owned(), 2), ("k3".to_owned(), 3)].into();
        let members = ["m1", "m2"].map(str::to_owned);
        Aftermath {
            changes: members.clone().map(|name| (name, told(&[2, 3]))).into(),
            keys: members.clone().map(|name| (name, keys.clone())).into(),
            hashes: members.clone().map(|name| (name, 7)).into(),
            states: members.map(|name| (name, State { applied: 9, hash: 7 })).into(),
        }
    }

    #[test]
    fn members_that_agree_pass() {
        assert_eq!(agreed(&aftermath()).unwrap().len(), 2);
    }

    #[test]
    fn another_history_is_noticed() {
        let mut aftermath = aftermath();
        aftermath.changes.insert("m2".to_owned(), told(&[2, 4]));
        assert!(agreed(&aftermath).unwrap_err().contains("different histories"));
    }

    #[test]
    fn a_key_that_does_not_follow_from_history_is_noticed() {
        let mut aftermath = aftermath();
        aftermath.keys.get_mut("m1").unwrap().insert("k9".to_owned(), 3);
        assert!(agreed(&aftermath).unwrap_err().contains("does not have the keys"));
    }

    #[test]
    fn another_hash_is_noticed() {
        let mut aftermath = aftermath();
        aftermath.hashes.insert("m2".to_owned(), 8);
        assert!(agreed(&aftermath).unwrap_err().contains("hashes differ"));
    }

    #[test]
    fn another_state_is_noticed_and_one_that_is_not_told() {
        for other in [State { applied: 9, hash: 8 }, State { applied: 10, hash: 7 }] {
            let mut aftermath = aftermath();
            aftermath.states.insert("m2".to_owned(), other);
            assert!(agreed(&aftermath).unwrap_err().contains("states differ"));
        }
        let mut aftermath = aftermath();
        aftermath.states.remove("m1");
        assert!(agreed(&aftermath).unwrap_err().contains("not every member"));
    }
}
