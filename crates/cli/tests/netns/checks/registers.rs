//! Linearizability of registers, by values alone: revisions, which the server itself hands out, are not believed here.
//!
//! All orders that the times allow are followed at once, one call after the other. A configuration is the set of
//! calls that have taken effect and the value they leave behind; as few calls overlap at any time, there are few.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Action, Call, Outcome, Value};

/// What a call did to the register, for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Saw(Option<Value>),
    Wrote(Value),
    Replaced { expected: Option<Value>, value: Value },
}

/// A call that took effect between these times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    from: u64,
    to: u64,
    effect: Effect,
}

pub fn check(calls: &[Call]) -> Result<(), String> {
    let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        keys.entry(&call.key).or_default().push(call);
    }
    keys.into_iter().try_for_each(|(key, calls)| {
        linearize(&steps(&calls)).map_err(|step| format!("{key} is not linearizable: nothing explains {step:?}"))
    })
}

/// The calls that took effect, in the order in which they began. One whose outcome is unknown counts if somebody saw
/// what it wrote, and then it took effect before that one returned; otherwise it may as well not have been.
fn steps(calls: &[&Call]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut doubtful: Vec<(Step, Value)> = Vec::new();
    for call in calls {
        let (from, to) = (call.invoked, call.returned);
        match (call.action, call.outcome) {
            (_, Outcome::Refused) | (Action::Read, Outcome::Unknown | Outcome::Written { .. }) => {}
            (_, Outcome::Found { value, .. }) => steps.push(Step { from, to, effect: Effect::Saw(value) }),
            (Action::Write(value), outcome) => {
                keep(&mut steps, &mut doubtful, Step { from, to, effect: Effect::Wrote(value) }, value, outcome);
            }
            (Action::Replace { expected, value }, outcome) => {
                let step = Step { from, to, effect: Effect::Replaced { expected, value } };
                keep(&mut steps, &mut doubtful, step, value, outcome);
            }
        }
    }
    // One that was seen may itself have seen another.
    loop {
        let seen = |value: Value| steps.iter().filter(|step| saw(step.effect) == Some(value)).map(|step| step.to).min();
        let found = doubtful.iter().position(|(_, value)| seen(*value).is_some());
        let Some(place) = found else { break };
        let (step, value) = doubtful.remove(place);
        let to = seen(value).expect("it was found by this");
        steps.push(Step { to, ..step });
    }
    steps.sort_by_key(|step| step.from);
    steps
}

fn keep(steps: &mut Vec<Step>, doubtful: &mut Vec<(Step, Value)>, step: Step, value: Value, outcome: Outcome) {
    match outcome {
        Outcome::Unknown => doubtful.push((step, value)),
        _ => steps.push(step),
    }
}

fn saw(effect: Effect) -> Option<Value> {
    match effect {
        Effect::Saw(value) => value,
        Effect::Replaced { expected, .. } => expected,
        Effect::Wrote(_) => None,
    }
}

/// Those before `first` and these have taken effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    first: usize,
    beyond: BTreeSet<usize>,
    value: Option<Value>,
}

/// Err: the step that has to take effect next, and cannot.
fn linearize(steps: &[Step]) -> Result<(), Step> {
    let start = Configuration { first: 0, beyond: BTreeSet::new(), value: None };
    let mut configurations = BTreeSet::from([start]);
    for _ in steps {
        let next: BTreeSet<Configuration> =
            configurations.iter().flat_map(|configuration| configuration.next(steps)).collect();
        if next.is_empty() {
            let stuck = configurations.iter().map(|configuration| configuration.first).max().unwrap_or(0);
            return Err(steps[stuck]);
        }
        configurations = next;
    }
    Ok(())
}

impl Configuration {
    fn next(&self, steps: &[Step]) -> Vec<Configuration> {
        let mut possible = Vec::new();
        let mut latest = u64::MAX;
        for (place, step) in steps.iter().enumerate().skip(self.first) {
            // Whatever begins after another has returned comes after it.
            if step.from > latest {
                break;
            }
            if self.beyond.contains(&place) {
                continue;
            }
            latest = latest.min(step.to);
            if let Some(value) = after(self.value, step.effect) {
                possible.push(self.with(place, value));
            }
        }
        possible
    }

    fn with(&self, place: usize, value: Option<Value>) -> Configuration {
        let mut configuration = Configuration { value, ..self.clone() };
        configuration.beyond.insert(place);
        while configuration.beyond.remove(&configuration.first) {
            configuration.first += 1;
        }
        configuration
    }
}

/// None: the effect cannot be had on this value.
fn after(value: Option<Value>, effect: Effect) -> Option<Option<Value>> {
    match effect {
        Effect::Saw(seen) => (seen == value).then_some(value),
        Effect::Wrote(written) => Some(Some(written)),
        Effect::Replaced { expected, value: written } => (expected == value).then_some(Some(written)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVISION: i64 = 1;

    fn call(times: (u64, u64), action: Action, outcome: Outcome) -> Call {
        Call { key: "r".to_owned(), invoked: times.0, returned: times.1, action, outcome }
    }

    fn write(times: (u64, u64), value: Value) -> Call {
        call(times, Action::Write(value), Outcome::Written { revision: REVISION })
    }

    fn lost_write(times: (u64, u64), value: Value) -> Call {
        call(times, Action::Write(value), Outcome::Unknown)
    }

    fn read(times: (u64, u64), value: Option<Value>) -> Call {
        call(times, Action::Read, Outcome::Found { value, revision: REVISION })
    }

    fn replace(times: (u64, u64), expected: Option<Value>, value: Value) -> Call {
        call(times, Action::Replace { expected, value }, Outcome::Written { revision: REVISION })
    }

    #[test]
    fn calls_one_after_the_other_pass() {
        check(&[read((0, 1), None), write((2, 3), 7), read((4, 5), Some(7)), replace((6, 7), Some(7), 8)]).unwrap();
    }

    #[test]
    fn a_stale_read_does_not() {
        assert!(check(&[write((0, 1), 7), write((2, 3), 8), read((4, 5), Some(7))]).is_err());
    }

    #[test]
    fn overlapping_calls_take_effect_in_any_order_that_explains_them() {
        check(&[write((0, 9), 7), write((0, 9), 8), read((1, 2), Some(8)), read((3, 4), Some(7))]).unwrap();
        // But not in one for each reader.
        let readers = [read((1, 2), Some(8)), read((3, 4), Some(7)), read((5, 6), Some(8))];
        assert!(check(&[&[write((0, 9), 7), write((0, 9), 8)], &readers[..]].concat()).is_err());
    }

    #[test]
    fn two_replacements_of_one_value_do_not_both_succeed() {
        assert!(check(&[write((0, 1), 7), replace((2, 9), Some(7), 8), replace((2, 9), Some(7), 9)]).is_err());
        check(&[write((0, 1), 7), replace((2, 9), Some(7), 8), replace((2, 9), Some(8), 9)]).unwrap();
    }

    #[test]
    fn what_was_acknowledged_and_then_lost_is_noticed() {
        assert!(check(&[write((0, 1), 7), read((2, 3), None)]).is_err());
    }

    #[test]
    fn an_unknown_outcome_may_be_either_but_not_both() {
        check(&[write((0, 1), 7), lost_write((2, 3), 8), read((4, 5), Some(7))]).unwrap();
        // It may take effect long after its caller gave up.
        check(&[write((0, 1), 7), lost_write((2, 3), 8), read((4, 5), Some(7)), read((6, 7), Some(8))]).unwrap();
        let applied_twice = [write((4, 5), 9), read((6, 7), Some(8))];
        let history = [&[lost_write((2, 3), 8), read((3, 3), Some(8))], &applied_twice[..]].concat();
        assert!(check(&history).is_err(), "seen, overwritten and seen again");
    }

    #[test]
    fn an_unknown_outcome_seen_through_another_counts() {
        let lost_replace = call((3, 4), Action::Replace { expected: Some(8), value: 9 }, Outcome::Unknown);
        let history = [lost_write((1, 2), 8), lost_replace, read((5, 6), Some(9))];
        check(&history).unwrap();
        assert!(check(&history[1..]).is_err(), "nobody wrote what it replaced");
    }

    #[test]
    fn what_was_refused_must_not_be_seen() {
        let refused = call((0, 1), Action::Write(7), Outcome::Refused);
        assert!(check(&[refused, read((2, 3), Some(7))]).is_err());
    }
}
