//! What was acknowledged is there, at the revision that was named and once; what is in doubt is there at most once; what
//! was refused is not there.

use std::collections::BTreeMap;

use crate::history::{Action, Call, Change, Outcome, Revision};

/// Every call writes a value of its own, so a value is enough to know whose a change is.
pub fn check(calls: &[Call], changes: &[Change]) -> Result<(), String> {
    let mut written: BTreeMap<(&str, &[u8]), Vec<Revision>> = BTreeMap::new();
    for change in changes {
        if let Some(value) = &change.value {
            written.entry((&change.key, value)).or_default().push(change.revision);
        }
    }
    for call in calls {
        let (Action::Write(value) | Action::Replace { value, .. }) = call.action else { continue };
        let text = value.to_string();
        let revisions = written.get(&(call.key.as_str(), text.as_bytes())).map_or(&[][..], Vec::as_slice);
        let right = match call.outcome {
            Outcome::Written { revision } => revisions == [revision],
            Outcome::Unknown => revisions.len() <= 1,
            Outcome::Found { .. } | Outcome::Refused => revisions.is_empty(),
        };
        if !right {
            return Err(format!("{call:?} was carried out at the revisions {revisions:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: u64, outcome: Outcome) -> Call {
        Call { key: "k".to_owned(), invoked: 0, returned: 1, action: Action::Write(value), outcome }
    }

    fn changes(written: &[(Revision, u64)]) -> Vec<Change> {
        let change = |(revision, value): &(Revision, u64)| Change {
            revision: *revision,
            key: "k".to_owned(),
            value: Some(value.to_string().into_bytes()),
        };
        written.iter().map(change).collect()
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_noticed() {
        let acknowledged = put(1, Outcome::Written { revision: 5 });
        check(std::slice::from_ref(&acknowledged), &changes(&[(5, 1)])).unwrap();
        assert!(check(std::slice::from_ref(&acknowledged), &changes(&[])).is_err());
        assert!(check(&[acknowledged], &changes(&[(6, 1)])).is_err(), "at another revision");
    }

    #[test]
    fn a_write_that_is_carried_out_twice_is_noticed() {
        for outcome in [Outcome::Written { revision: 5 }, Outcome::Unknown] {
            assert!(check(&[put(1, outcome)], &changes(&[(5, 1), (7, 1)])).is_err(), "{outcome:?}");
        }
    }

    #[test]
    fn an_unknown_outcome_may_be_either() {
        for written in [&[][..], &[(5, 1)]] {
            check(&[put(1, Outcome::Unknown)], &changes(written)).unwrap();
        }
    }

    #[test]
    fn a_refused_write_that_is_carried_out_is_noticed() {
        assert!(check(&[put(1, Outcome::Refused)], &changes(&[(5, 1)])).is_err());
    }
}
