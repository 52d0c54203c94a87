//! Clients whose calls are repeated by the real client's rule, and by nothing else.
//!
//! A read is repeated until its time is up. A write is repeated only while it was certainly not carried out. These clients
//! never ask again by themselves, so a write of theirs that takes effect twice was repeated against the rule.

use std::collections::BTreeMap;

use tenure_client::retry::{Failure as Failed, Next, Retry};
use tenure_machine::Command;
use tenure_replica::{Answer, CallId, Failure};

use super::{Doing, Mood, Traffic};
use crate::planted::Planted;
use crate::request::{Call, Request};

/// How long a caller waits for its call in all.
const PATIENCE_MS: u64 = 3_000;

#[derive(Default)]
pub(super) struct Repeats {
    open: BTreeMap<CallId, Attempt>,
    /// Attempts whose pause is not over, with when it is.
    due: Vec<(u64, Attempt)>,
    /// The one that goes out now.
    sending: Option<Retry>,
    /// A bug put in on purpose: see [`Planted::RepeatInDoubt`].
    repeats_all: bool,
}

struct Attempt {
    client: usize,
    request: Request,
    retry: Retry,
    ends_ms: u64,
}

impl Repeats {
    pub(super) fn new(planted: Option<Planted>) -> Repeats {
        Repeats { repeats_all: planted == Some(Planted::RepeatInDoubt), ..Repeats::default() }
    }

    fn failed(&mut self, attempt: Attempt, failure: Failed, now_us: u64) {
        let Attempt { client, request, mut retry, .. } = attempt;
        if let Next::Retry { pause_ms } = retry.next(now_us / 1000, failure, true) {
            self.due.push((now_us + pause_ms * 1000, Attempt { client, request, retry, ends_ms: 0 }));
        }
    }
}

impl Traffic {
    pub(super) fn repeat_issued(&mut self, id: CallId, call: &Call) {
        let Some(is_idempotent) = is_idempotent(&call.request) else { return };
        if !self.clients[call.client].is_careful {
            return;
        }
        let now_ms = call.issued_us / 1000;
        let is_idempotent = is_idempotent || self.repeats.repeats_all;
        let new = || Retry::new(is_idempotent, now_ms, now_ms + PATIENCE_MS);
        let retry = self.repeats.sending.take().unwrap_or_else(new);
        let ends_ms = retry.attempt_ends_ms(now_ms, true);
        let attempt = Attempt { client: call.client, request: call.request.clone(), retry, ends_ms };
        self.repeats.open.insert(id, attempt);
    }

    /// The next attempt of a call goes out, or finds no member that is there.
    pub fn go_again(&mut self, client: usize, request: &Request, retry: Retry, is_met: bool, now_us: u64) {
        match is_met {
            true => self.repeats.sending = Some(retry),
            false => {
                let attempt = Attempt { client, request: request.clone(), retry, ends_ms: 0 };
                self.repeats.failed(attempt, Failed::Unreachable, now_us);
            }
        }
    }

    pub(super) fn repeat_answered(&mut self, id: CallId, answer: &Answer, now_us: u64) {
        let Some(attempt) = self.repeats.open.remove(&id) else { return };
        let failure = match &answer.result {
            Ok(_) => return,
            Err(Failure::NoLeader) => Failed::NotDone,
            Err(Failure::LeaderChanged | Failure::TimedOut | Failure::OutcomeUnknown) => Failed::InDoubt,
            Err(_) => Failed::Verdict,
        };
        self.repeats.failed(attempt, failure, now_us);
    }

    /// The connection broke, with these calls under way.
    pub(super) fn repeats_lost(&mut self, lost: &[CallId], now_us: u64) {
        for id in lost {
            if let Some(attempt) = self.repeats.open.remove(id) {
                self.repeats.failed(attempt, Failed::InDoubt, now_us);
            }
        }
    }

    /// The caller waits no longer.
    pub(super) fn repeat_cancelled(&mut self, id: CallId) {
        self.repeats.open.remove(&id);
    }

    /// Gives up the attempts that take too long, and makes those whose pause is over.
    pub(super) fn repeat(&mut self, client: usize, now_us: u64) -> Vec<Doing> {
        if self.mood != Mood::Busy {
            self.repeats.due.clear();
            return Vec::new();
        }
        let is_late = |attempt: &Attempt| attempt.client == client && attempt.ends_ms <= now_us / 1000;
        let late: Vec<CallId> =
            self.repeats.open.iter().filter(|(_, attempt)| is_late(attempt)).map(|(id, _)| *id).collect();
        self.repeats_lost(&late, now_us);
        let mut doing: Vec<Doing> = late.into_iter().map(Doing::Cancel).collect();
        let is_due = |(due_us, attempt): &(u64, Attempt)| attempt.client == client && *due_us <= now_us;
        let (due, later) = std::mem::take(&mut self.repeats.due).into_iter().partition(is_due);
        self.repeats.due = later;
        let due: Vec<(u64, Attempt)> = due;
        doing.extend(due.into_iter().map(|(_, attempt)| Doing::Again(attempt.request, attempt.retry)));
        doing
    }
}

/// Whether repeating a call changes nothing, as the real client sees it; None for calls that this rule is not for.
fn is_idempotent(request: &Request) -> Option<bool> {
    match request {
        Request::Range(..) | Request::View | Request::TimeToLive(_) | Request::LeaseTimes(_) => Some(true),
        Request::Propose(Command::Put(_) | Command::Delete(_) | Command::Txn(_) | Command::Compact { .. }) => {
            Some(false)
        }
        _ => None,
    }
}
