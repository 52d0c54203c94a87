//! Keys and transactions as clients saw them, and nothing else: is there an order of all calls, each between its question
//! and its answer, in which every answer is right?
//!
//! All other checks know the log. This one does not. It knows which client asked for what, when, and what came back, and it
//! searches (Wing and Gong's way, remembering what was tried). A call without an answer may have taken effect at any time
//! after it was asked for, or never. Answers name their revision, which rises by one with each change, and show what other
//! revisions wrote, so there is rarely more than one way to go on.
//!
//! It runs only where nothing changes keys behind the clients' backs and nothing is compacted: in seeds with traffic of keys
//! alone.
//!
//! What it would not notice: anything after the first 400 calls of a run, or beyond where the search gives up; leases,
//! locks, compaction and serializable reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_machine::{
    Command, Envelope, KeyValue, OpReply, RangeQuery, RangeReply, Refusal, Reply, Revision, TxnReply,
};
use tenure_replica::{Answer, Answered, CallId, Consistency, FIRST_INDEX, Failure};

use super::shown::Shown;
use super::{Check, Context, Seen};
use crate::model::Model;
use crate::plan::Limits;
use crate::request::Request;
use crate::trace::hash_of;
use crate::world::Report;

/// The first ones are looked at, until the next one after them is asked for.
const MOST: usize = 400;
/// Steps of the search before it gives up without having found anything, and tries half as many calls.
const PATIENCE: usize = 20_000;
/// With fewer it is not worth it.
const LEAST: usize = 25;

#[derive(Default)]
pub struct Linearizability {
    clock: usize,
    operations: Vec<Operation>,
    open: BTreeMap<CallId, usize>,
    verdict: Option<Verdict>,
    in_part: bool,
}

/// What one client asked for, and was told.
struct Operation {
    asked: Asked,
    invoked: usize,
    /// When, what, and at which revision; None = nobody knows whether it took effect.
    told: Option<(usize, Told, Revision)>,
    /// It certainly had no effect.
    is_void: bool,
}

enum Asked {
    Command(Command),
    Range(RangeQuery),
}

#[derive(PartialEq)]
enum Told {
    Reply(Result<Reply, Refusal>),
    Range(Result<RangeReply, Refusal>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Linearizable,
    /// No order was found beyond so many answers.
    Not {
        ordered: usize,
    },
    GivenUp,
}

impl Check for Linearizability {
    fn name(&self) -> &'static str {
        "K1: what clients saw of keys has an order"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        if !context.plan.keys_only {
            return Ok(());
        }
        self.clock += 1;
        match seen {
            Seen::Issued { id, call } => {
                let asked = match &call.request {
                    Request::Propose(command @ (Command::Put(_) | Command::Delete(_) | Command::Txn(_))) => {
                        Asked::Command(command.clone())
                    }
                    Request::Range(query, Consistency::Linearizable) => Asked::Range(query.clone()),
                    _ => return Ok(()),
                };
                // From here on answers may be of what is not looked at: they count as if they never came.
                if self.operations.len() == MOST {
                    self.open.clear();
                    return Ok(());
                }
                self.open.insert(*id, self.operations.len());
                self.operations.push(Operation { asked, invoked: self.clock, told: None, is_void: false });
            }
            Seen::Cancelled { id, .. } => drop(self.open.remove(id)),
            Seen::Answered { id, answer, .. } => {
                if let Some(nth) = self.open.remove(id) {
                    self.operations[nth].take(self.clock, answer);
                }
            }
            Seen::Ended => {
                let mut verdict = search(&self.operations);
                while verdict == Verdict::GivenUp && self.operations.len() >= 2 * LEAST {
                    self.in_part = true;
                    cut(&mut self.operations);
                    verdict = search(&self.operations);
                }
                self.verdict = Some(verdict);
                if let Verdict::Not { ordered } = verdict {
                    let answers = self.operations.iter().filter(|operation| operation.told.is_some()).count();
                    return Err(format!("of {answers} answers no more than {ordered} can be put in order"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&self, report: &mut Report) {
        report.histories += u64::from(self.verdict.is_some());
        let is_given_up = self.verdict == Some(Verdict::GivenUp);
        report.given_up += u64::from(is_given_up);
        report.in_part += u64::from(self.in_part && !is_given_up);
    }
}

impl Operation {
    fn take(&mut self, clock: usize, answer: &Answer) {
        let (told, revision) = match (&self.asked, &answer.result) {
            (Asked::Command(_), Ok(Answered::Reply(reply))) => (Told::Reply(Ok(reply.clone())), answer.revision),
            (Asked::Command(_), Err(Failure::Refused(refusal))) => (Told::Reply(Err(refusal.clone())), answer.revision),
            (Asked::Range(_), Ok(Answered::Range(reply))) => (Told::Range(Ok(reply.clone())), answer.revision),
            (Asked::Range(query), Ok(Answered::View(view))) => (Told::Range(view.range(query)), view.revision()),
            (Asked::Range(_), Err(Failure::Refused(refusal))) => (Told::Range(Err(refusal.clone())), answer.revision),
            (_, Err(Failure::NoLeader | Failure::Overloaded)) => {
                self.is_void = true;
                return;
            }
            _ => return,
        };
        self.told = Some((clock, told, revision));
    }

    fn is_command(&self) -> bool {
        matches!(self.asked, Asked::Command(_))
    }

    fn asks_the_same(&self, other: &Operation) -> bool {
        matches!((&self.asked, &other.asked), (Asked::Command(one), Asked::Command(other)) if one == other)
    }

    /// What it should be told in this state, which it changes; true if it wrote something.
    fn run(&self, model: &mut Model) -> (Told, bool) {
        match &self.asked {
            Asked::Command(command) => {
                let envelope = Envelope { wall_ms: 0, origin: None, command: command.clone() };
                let outcome = model.apply(model.applied + 1, 1, &envelope);
                (Told::Reply(outcome.reply), outcome.wrote)
            }
            Asked::Range(query) => {
                let (asked, current) = (query.revision, model.revision);
                let reply = match asked {
                    asked if asked > current => Err(Refusal::FutureRevision { asked, current }),
                    asked => Ok(model.range(query, if asked > 0 { asked } else { current })),
                };
                (Told::Range(reply), false)
            }
        }
    }
}

impl Told {
    /// Whether it says that something was written.
    fn wrote(&self) -> bool {
        match self {
            Told::Reply(Ok(Reply::Put { .. })) => true,
            Told::Reply(Ok(Reply::Delete { deleted, .. })) => *deleted > 0,
            Told::Reply(Ok(Reply::Txn(txn))) => has_written(txn),
            _ => false,
        }
    }

    /// What it shows of keys.
    fn shows(&self) -> Vec<Arc<KeyValue>> {
        match self {
            Told::Range(Ok(range)) => range.kvs.clone(),
            Told::Reply(Ok(Reply::Put { prev })) => prev.iter().cloned().collect(),
            Told::Reply(Ok(Reply::Delete { prev, .. })) => prev.clone(),
            Told::Reply(Ok(Reply::Txn(txn))) => shown_by(txn),
            _ => Vec::new(),
        }
    }
}

fn has_written(txn: &TxnReply) -> bool {
    txn.responses.iter().any(|response| match response {
        OpReply::Range(_) => false,
        OpReply::Put { .. } => true,
        OpReply::Delete { deleted, .. } => *deleted > 0,
        OpReply::Txn(txn) => has_written(txn),
    })
}

fn shown_by(txn: &TxnReply) -> Vec<Arc<KeyValue>> {
    let shown = txn.responses.iter().flat_map(|response| match response {
        OpReply::Range(range) => range.kvs.clone(),
        OpReply::Put { prev } => prev.iter().cloned().collect(),
        OpReply::Delete { prev, .. } => prev.clone(),
        OpReply::Txn(txn) => shown_by(txn),
    });
    shown.collect()
}

fn shown_by_all(operations: &[Operation]) -> Shown {
    let mut shown = Shown::default();
    for operation in operations {
        let Some((_, told, revision)) = &operation.told else { continue };
        // A transaction may have looked at older revisions.
        let upto = match &operation.asked {
            Asked::Range(query) if query.revision > 0 => Some(query.revision),
            Asked::Range(_) => Some(*revision),
            Asked::Command(Command::Txn(_)) => None,
            Asked::Command(_) => Some(*revision - 1),
        };
        told.shows().iter().for_each(|kv| shown.add(kv, upto));
    }
    shown
}

/// A place in the search.
struct Place {
    model: Model,
    done: BTreeSet<usize>,
    /// What may come next and was not tried yet, the last first.
    untried: Vec<usize>,
}

/// Leaves the earlier half. What was answered after it may be of the other half, and counts as if it never came.
fn cut(operations: &mut Vec<Operation>) {
    let kept = operations.len() / 2;
    let end = operations[kept].invoked;
    operations.truncate(kept);
    operations.iter_mut().for_each(|operation| drop(operation.told.take_if(|(returned, ..)| *returned > end)));
}

fn search(operations: &[Operation]) -> Verdict {
    let answers = operations.iter().filter(|operation| operation.told.is_some()).count();
    let shown = shown_by_all(operations);
    let mut tried = BTreeSet::new();
    let (mut ordered, mut steps) = (0, 0);
    let mut path = vec![arrive(operations, Model::new(FIRST_INDEX, Limits::default()), BTreeSet::new())];
    while let Some(place) = path.last_mut() {
        let told = place.done.iter().filter(|nth| operations[**nth].told.is_some()).count();
        ordered = ordered.max(told);
        if told == answers {
            return Verdict::Linearizable;
        }
        let Some(next) = place.untried.pop() else {
            path.pop();
            continue;
        };
        steps += 1;
        if steps > PATIENCE {
            return Verdict::GivenUp;
        }
        let mut model = place.model.clone();
        let (told, wrote) = operations[next].run(&mut model);
        let is_so = match &operations[next].told {
            Some((_, expected, revision)) => told == *expected && model.revision == *revision,
            None => wrote,
        };
        if is_so
            && (!wrote
                || model.commit(model.revision).is_some_and(|commit| shown.fits(commit.revision, &commit.events)))
        {
            let done: BTreeSet<usize> = place.done.iter().copied().chain([next]).collect();
            if tried.insert((done.clone(), footprint(&model))) {
                path.push(arrive(operations, model, done));
            }
        }
    }
    Verdict::Not { ordered }
}

/// Takes in whatever changes nothing and is right here: it need not be tried elsewhere, because nothing that is still
/// to come can have been over before it began.
fn arrive(operations: &[Operation], mut model: Model, mut done: BTreeSet<usize>) -> Place {
    loop {
        let open =
            || operations.iter().enumerate().filter(|(nth, operation)| !done.contains(nth) && !operation.is_void);
        let answered = || open().filter_map(|(_, operation)| operation.told.as_ref());
        let horizon = answered().map(|(returned, ..)| *returned).min().unwrap_or(usize::MAX);
        let least = answered().map(|(.., revision)| *revision).min().unwrap_or(Revision::MAX);
        // If somebody was told to have written the next revision, nobody else has.
        let is_next = |operation: &Operation| {
            operation.told.as_ref().is_some_and(|(_, told, revision)| *revision == model.revision + 1 && told.wrote())
        };
        let is_claimed = open().any(|(_, operation)| is_next(operation));
        let may_come = open().filter(|(_, operation)| operation.invoked < horizon);
        let (mut sure, mut unsure, mut idle) = (Vec::new(), Vec::new(), None);
        for (nth, operation) in may_come {
            match &operation.told {
                Some((_, told, revision)) if *revision == model.revision => {
                    let mut after = model.clone();
                    let (found, wrote) = operation.run(&mut after);
                    if found == *told && !wrote {
                        idle = Some((nth, after));
                        break;
                    }
                }
                Some(_) if is_next(operation) => sure.push(nth),
                Some(_) => {}
                // What is not told of any more must not push the revision past what was told. Of those who ask for
                // the same the first will do: whatever the others may do, it may, too.
                None if !is_claimed && model.revision < least => {
                    let is_same = |other: &usize| operations[*other].asks_the_same(operation);
                    if operation.is_command() && !unsure.iter().any(is_same) {
                        unsure.push(nth);
                    }
                }
                None => {}
            }
        }
        match idle {
            Some((nth, after)) => {
                done.insert(nth);
                model = after;
            }
            None => {
                // What was asked for first has mostly come first.
                unsure.reverse();
                unsure.extend(sure);
                return Place { model, done, untried: unsure };
            }
        }
    }
}

/// Equal only if nothing that can still be asked, of now or of old, tells two states apart.
fn footprint(model: &Model) -> u64 {
    let commits = (1..=model.revision).filter_map(|revision| model.commit(revision));
    let kvs = commits.flat_map(|commit| commit.events.iter()).map(|event| &event.kv);
    let bytes: Vec<u8> = kvs.flat_map(|kv| [&kv.key[..], &kv.version.to_le_bytes(), &kv.value[..]].concat()).collect();
    hash_of(&bytes)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenure_machine::{Keys, Put};

    use super::*;

    fn put(value: &'static str, invoked: usize, told: Option<(usize, Revision)>) -> Operation {
        let (key, value) = (Bytes::from_static(b"key"), Bytes::from_static(value.as_bytes()));
        let put = Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
        let told = told.map(|(returned, revision)| (returned, Told::Reply(Ok(Reply::Put { prev: None })), revision));
        Operation { asked: Asked::Command(Command::Put(put)), invoked, told, is_void: false }
    }

    /// What a range gives after these puts.
    fn range(after: &[&'static str], invoked: usize, returned: usize) -> Operation {
        let mut model = Model::new(FIRST_INDEX, Limits::default());
        after.iter().for_each(|value| drop(put(value, 0, None).run(&mut model)));
        let asked = Asked::Range(RangeQuery::new(Keys::all()));
        let mut operation = Operation { asked, invoked, told: None, is_void: false };
        let (told, _) = operation.run(&mut model);
        operation.told = Some((returned, told, model.revision));
        operation
    }

    #[test]
    fn one_after_the_other_has_an_order() {
        let history =
            [put("a", 1, Some((2, 2))), range(&["a"], 3, 4), put("b", 5, Some((6, 3))), range(&["a", "b"], 7, 8)];
        assert_eq!(search(&history), Verdict::Linearizable);
    }

    #[test]
    fn a_read_that_misses_what_was_told_before_it_began_has_none() {
        assert_eq!(search(&[put("a", 1, Some((2, 2))), range(&[], 3, 4)]), Verdict::Not { ordered: 1 });
        // At the same time it may.
        assert_eq!(search(&[put("a", 1, Some((4, 2))), range(&[], 2, 3)]), Verdict::Linearizable);
    }

    #[test]
    fn what_was_never_answered_takes_effect_late_or_never_but_once() {
        let unknown = || put("a", 1, None);
        assert_eq!(search(&[unknown(), range(&[], 2, 3), range(&["a"], 4, 5)]), Verdict::Linearizable);
        assert_eq!(search(&[unknown(), range(&[], 2, 3)]), Verdict::Linearizable);
        let again = [unknown(), range(&["a"], 2, 3), range(&["a", "a"], 4, 5)];
        assert_eq!(search(&again), Verdict::Not { ordered: 1 });
        let gone = [unknown(), range(&["a"], 2, 3), range(&[], 4, 5)];
        assert!(matches!(search(&gone), Verdict::Not { .. }));
    }

    #[test]
    fn half_of_a_history_knows_nothing_of_the_other() {
        let mut history = vec![put("a", 1, Some((6, 3))), range(&[], 2, 3), put("b", 4, Some((5, 2)))];
        history.push(range(&["b", "a"], 7, 8));
        assert_eq!(search(&history), Verdict::Linearizable);
        cut(&mut history);
        assert!(history.len() == 2 && history[0].told.is_none() && history[1].told.is_some());
        assert_eq!(search(&history), Verdict::Linearizable);
    }

    #[test]
    fn an_answer_names_its_revision() {
        assert_eq!(search(&[put("a", 1, Some((2, 3)))]), Verdict::Not { ordered: 0 });
        // Somebody else may have been in between.
        assert_eq!(search(&[put("b", 1, None), put("a", 1, Some((2, 3)))]), Verdict::Linearizable);
    }
}
