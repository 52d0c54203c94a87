//! A lock has one holder at a time, tokens grow from holder to holder, and nobody is served before those who came
//! earlier and still waited.

use std::collections::BTreeMap;

use crate::history::{Change, Holding, Revision};

/// A place in a queue, from the revision at which it was taken to the one at which it was given up, if it was.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    key: String,
    taken: Revision,
    left: Option<Revision>,
}

pub fn check(holdings: &[Holding], changes: &[Change]) -> Result<(), String> {
    let mut locks: BTreeMap<&str, Vec<&Holding>> = BTreeMap::new();
    for holding in holdings {
        locks.entry(&holding.name).or_default().push(holding);
    }
    for (name, mut holdings) in locks {
        holdings.sort_by_key(|holding| (holding.began_ms, holding.token));
        check_alone(&holdings)?;
        check_turns(&holdings, &places(name, changes))?;
    }
    Ok(())
}

fn check_alone(holdings: &[&Holding]) -> Result<(), String> {
    for pair in holdings.windows(2) {
        if pair[1].began_ms < pair[0].ended_ms {
            return Err(format!("two hold it at a time: {:?} and {:?}", pair[0], pair[1]));
        }
        // One session whose release did not arrive, and which asks again, still has its place: it is the same holder.
        let is_same = pair[1].token == pair[0].token && pair[1].key == pair[0].key;
        if pair[1].token <= pair[0].token && !is_same {
            return Err(format!("the token does not grow: {:?}, then {:?}", pair[0], pair[1]));
        }
    }
    Ok(())
}

/// Every holder had a place under its token, and was not served while an earlier place was taken.
fn check_turns(holdings: &[&Holding], places: &[Place]) -> Result<(), String> {
    for holding in holdings {
        let own = places.iter().find(|place| place.taken == holding.token && place.key == holding.key);
        let Some(own) = own else { return Err(format!("{holding:?} never had a place in the queue")) };
        let end = own.left.unwrap_or(Revision::MAX);
        let earlier = places.iter().filter(|place| place.taken < own.taken);
        if let Some(before) = earlier.into_iter().find(|place| place.left.is_none_or(|left| left >= end)) {
            return Err(format!("{holding:?} was served before {before:?}"));
        }
    }
    Ok(())
}

fn places(name: &str, changes: &[Change]) -> Vec<Place> {
    let prefix = format!("{name}/");
    let mut open: BTreeMap<&str, Revision> = BTreeMap::new();
    let mut places = Vec::new();
    for change in changes.iter().filter(|change| change.key.starts_with(&prefix)) {
        match change.value {
            Some(_) => {
                open.entry(&change.key).or_insert(change.revision);
            }
            None => {
                if let Some(taken) = open.remove(change.key.as_str()) {
                    places.push(Place { key: change.key.clone(), taken, left: Some(change.revision) });
                }
            }
        }
    }
    let still = open.into_iter().map(|(key, taken)| Place { key: key.to_owned(), taken, left: None });
    places.extend(still);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(key: &str, token: Revision, began_ms: u64, ended_ms: u64) -> Holding {
        Holding { name: "l".to_owned(), key: key.to_owned(), token, began_ms, ended_ms }
    }

    fn taken(revision: Revision, key: &str) -> Change {
        Change { revision, key: key.to_owned(), value: Some(vec![]) }
    }

    fn left(revision: Revision, key: &str) -> Change {
        Change { revision, key: key.to_owned(), value: None }
    }

    fn queue() -> Vec<Change> {
        vec![taken(2, "l/a"), taken(3, "l/b"), left(4, "l/a"), taken(5, "l/c"), left(6, "l/b"), left(7, "l/c")]
    }

    #[test]
    fn one_after_the_other_passes() {
        let holdings = [holding("l/a", 2, 0, 10), holding("l/b", 3, 10, 20), holding("l/c", 5, 30, 40)];
        check(&holdings, &queue()).unwrap();
        // Those who gave up or whose lease ended are passed over.
        check(&[holdings[0].clone(), holdings[2].clone()], &queue()).unwrap();
    }

    #[test]
    fn two_at_a_time_are_noticed() {
        let violation = check(&[holding("l/a", 2, 0, 11), holding("l/b", 3, 10, 20)], &queue()).unwrap_err();
        assert!(violation.contains("two hold it"), "{violation}");
    }

    #[test]
    fn a_token_that_falls_is_noticed() {
        let violation = check(&[holding("l/b", 3, 0, 10), holding("l/a", 2, 10, 20)], &queue()).unwrap_err();
        assert!(violation.contains("does not grow"), "{violation}");
    }

    #[test]
    fn one_that_asks_again_before_its_release_has_arrived_is_the_same_holder() {
        let again = [holding("l/a", 2, 0, 10), holding("l/a", 2, 20, 30), holding("l/b", 3, 30, 40)];
        check(&again, &queue()).unwrap();
        // But nobody else has its token, and it does not have it at the same time.
        assert!(check(&[again[0].clone(), holding("l/b", 2, 20, 30)], &queue()).is_err());
        assert!(check(&[again[0].clone(), holding("l/a", 2, 9, 30)], &queue()).is_err());
    }

    #[test]
    fn a_holder_without_a_place_is_noticed() {
        let violation = check(&[holding("l/x", 4, 0, 10)], &queue()).unwrap_err();
        assert!(violation.contains("never had a place"), "{violation}");
    }

    #[test]
    fn one_who_overtakes_is_noticed() {
        let changes = vec![taken(2, "l/a"), taken(3, "l/b"), left(4, "l/b"), left(5, "l/a")];
        let violation = check(&[holding("l/b", 3, 0, 10)], &changes).unwrap_err();
        assert!(violation.contains("was served before"), "{violation}");
        // Also before one who still waits.
        assert!(check(&[holding("l/b", 3, 0, 10)], &changes[..3]).is_err());
    }

    #[test]
    fn other_locks_are_other_queues() {
        let holdings = [holding("l/a", 2, 0, 10), Holding { name: "m".to_owned(), ..holding("m/a", 3, 5, 9) }];
        check(&holdings, &[taken(2, "l/a"), taken(3, "m/a")]).unwrap();
    }
}
