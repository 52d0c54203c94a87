//! Revisions never fall: a call that begins when another has returned is answered at no older revision, and a write at
//! a newer one.

use crate::history::{Call, Outcome, Revision};

pub fn check(calls: &[&Call]) -> Result<(), String> {
    let mut answered: Vec<(&Call, Revision)> =
        calls.iter().filter_map(|call| Some((*call, call.outcome.revision()?))).collect();
    answered.sort_by_key(|(call, _)| call.returned);
    let mut beginning = answered.clone();
    beginning.sort_by_key(|(call, _)| call.invoked);
    let mut returned = answered.into_iter().peekable();
    let mut newest: Option<(&Call, Revision)> = None;
    for (call, revision) in beginning {
        while let Some((before, at)) = returned.next_if(|(before, _)| before.returned < call.invoked) {
            if newest.is_none_or(|(_, newest)| at > newest) {
                newest = Some((before, at));
            }
        }
        let Some((before, at)) = newest else { continue };
        let writes = matches!(call.outcome, Outcome::Written { .. });
        if revision < at || (writes && revision == at) {
            return Err(format!("the revision fell: {call:?} began when {before:?} had returned"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Action;

    fn read(invoked: u64, returned: u64, revision: Revision) -> Call {
        let outcome = Outcome::Found { value: None, revision };
        Call { key: "k".to_owned(), invoked, returned, action: Action::Read, outcome }
    }

    fn write(invoked: u64, returned: u64, revision: Revision) -> Call {
        Call { action: Action::Write(1), outcome: Outcome::Written { revision }, ..read(invoked, returned, revision) }
    }

    fn judged(calls: &[Call]) -> Result<(), String> {
        check(&calls.iter().collect::<Vec<_>>())
    }

    #[test]
    fn calls_at_the_same_time_may_be_answered_at_any_revision() {
        judged(&[write(0, 9, 5), read(1, 8, 4), read(10, 11, 5)]).unwrap();
    }

    #[test]
    fn an_older_revision_after_a_newer_one_is_noticed() {
        assert!(judged(&[write(0, 1, 5), read(2, 3, 4)]).is_err());
        // Also when the newer one was not the last to return.
        assert!(judged(&[write(0, 1, 5), read(0, 2, 3), read(3, 4, 4)]).is_err());
    }

    #[test]
    fn two_writes_at_one_revision_are_noticed() {
        assert!(judged(&[write(0, 1, 5), write(2, 3, 5)]).is_err());
        judged(&[write(0, 1, 5), read(2, 3, 5)]).unwrap();
    }
}
