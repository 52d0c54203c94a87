//! Every read shows the key space at the revision that its header names. A linearizable read shows everything that any
//! client was told before it began.
//!
//! What it would not notice: a serializable read that is too old; a read that mixes two revisions and whose result
//! happens to be that of its header; reads that fail for no reason.

use std::ops::RangeInclusive;

use tenure_machine::{RangeQuery, RangeReply, Refusal, Revision};
use tenure_replica::{Answered, Consistency, Failure};

use super::{Check, Context, Seen};
use crate::model::Model;
use crate::request::Request;

pub struct Reads;

impl Check for Reads {
    fn name(&self) -> &'static str {
        "K1/K4: a read is what the log leads to"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let Seen::Answered { call, answer, within, .. } = seen else { return Ok(()) };
        let (query, consistency) = match &call.request {
            Request::Range(query, consistency) => (Some(query), *consistency),
            Request::View => (None, Consistency::Linearizable),
            _ => return Ok(()),
        };
        let revision = answer.revision;
        if !matches!(answer.result, Err(Failure::TimedOut | Failure::NoLeader | Failure::LeaderChanged))
            && consistency == Consistency::Linearizable
            && revision < call.floor
        {
            return Err(format!("a read at revision {revision} began after revision {} was told", call.floor));
        }
        let model = &context.reference.model;
        match (&answer.result, query) {
            (Ok(Answered::Range(reply)), Some(query)) => check(model, query, revision, within, &Ok(reply.clone())),
            (Err(Failure::Refused(refusal)), Some(query)) => {
                check(model, query, revision, within, &Err(refusal.clone()))
            }
            // Too long for the replica's own thread: the caller reads it from the view.
            (Ok(Answered::View(view)), Some(query)) => {
                let index = view.applied_index();
                check(model, query, view.revision(), &(index..=index), &view.range(query))
            }
            (Ok(Answered::View(view)), None) if view.revision() == revision => Ok(()),
            (Err(Failure::TimedOut | Failure::NoLeader | Failure::LeaderChanged), _) => Ok(()),
            (other, _) => Err(format!("a read of {query:?} at revision {revision} was answered {other:?}")),
        }
    }
}

fn check(
    model: &Model,
    query: &RangeQuery,
    current: Revision,
    within: &RangeInclusive<u64>,
    reply: &Result<RangeReply, Refusal>,
) -> Result<(), String> {
    let asked = query.revision;
    match reply {
        Err(Refusal::FutureRevision { asked: named, current: said })
            if asked > current && *named == asked && *said == current =>
        {
            Ok(())
        }
        Err(Refusal::Compacted { asked: named, compacted })
            if asked > 0
                && asked < *compacted
                && *named == asked
                && within.clone().any(|index| model.compacted_at(index) == *compacted) =>
        {
            Ok(())
        }
        Ok(reply) if asked <= current && (asked <= 0 || asked >= model.compacted_at(*within.start())) => {
            let expected = model.range(query, if asked > 0 { asked } else { current });
            if *reply == expected {
                return Ok(());
            }
            Err(format!("{query:?} at revision {current} gave {reply:?}, not {expected:?}"))
        }
        other => Err(format!("{query:?} at revision {current} gave {other:?}")),
    }
}
