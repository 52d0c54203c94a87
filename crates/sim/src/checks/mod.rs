//! What must hold, each rule in a file of its own. A check is shown everything that happens, and says
//! what is wrong in a sentence.
//!
//! To add one: write it, and name it in [`all`].

mod bounds;
mod deadlocks;
mod deliveries;
mod fencing;
mod holders;
mod leases;
mod linearizability;
mod liveness;
mod lock_watches;
mod locks;
mod places;
mod reads;
mod repeats;
mod revisions;
mod sessions;
mod shown;
mod state;
mod streams;
mod turns;
mod waiting;
mod watches;
mod work;

use std::ops::RangeInclusive;

use tenure_client::requests;
use tenure_machine::{Command, Envelope, LeaseId, MemberId};
use tenure_replica::{
    Answer, CallId, LockNotice, LockWatchRequest, Notice, Replica, SessionNotice, StreamId, WatchRequest,
};

use crate::fates::Fates;
use crate::model::Outcome;
use crate::plan::Plan;
use crate::reference::Reference;
use crate::request::{Call, Request};
use crate::traffic::Delivery;
use crate::world::Report;

pub trait Check {
    fn name(&self) -> &'static str;
    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String>;
    /// What it has looked at, for the summary.
    fn count(&self, _report: &mut Report) {}
}

pub fn all() -> Vec<Box<dyn Check>> {
    vec![
        // First, because a place that is left behind keeps others waiting.
        Box::new(places::Places),
        Box::new(reads::Reads),
        Box::new(revisions::Revisions::default()),
        Box::new(watches::Watches::default()),
        Box::new(deliveries::Deliveries::default()),
        Box::new(repeats::Repeats::default()),
        Box::new(leases::Leases::default()),
        Box::new(holders::Holders::default()),
        Box::new(locks::Locks::default()),
        Box::new(deadlocks::Deadlocks::default()),
        Box::new(lock_watches::LockWatches::default()),
        Box::new(sessions::Sessions::default()),
        Box::new(streams::Streams::default()),
        Box::new(waiting::Waiting::default()),
        Box::new(fencing::Fencing::default()),
        Box::new(state::State::default()),
        Box::new(liveness::Liveness::default()),
        Box::new(bounds::Bounds::default()),
        Box::new(work::Work::default()),
        Box::new(linearizability::Linearizability::default()),
    ]
}

/// Everything that can be seen from outside the members.
pub enum Seen<'a> {
    Booted {
        member: MemberId,
    },
    /// With these calls, whose outcome nobody knows, and these streams of watches.
    Died {
        member: MemberId,
        lost: &'a [CallId],
        cut_off: &'a [StreamId],
    },
    Issued {
        id: CallId,
        call: &'a Call,
    },
    Cancelled {
        id: CallId,
        call: &'a Call,
    },
    /// A client gives up a Lock call whose answer is on its way, and asks for the place to be left.
    Disowned {
        call: u128,
    },
    /// A member has given this entry to its log, and no other member had it before. It has applied all up to `applied`.
    Proposed {
        member: MemberId,
        index: u64,
        term: u64,
        envelope: &'a Envelope,
        applied: u64,
    },
    /// An entry took effect for the first time anywhere.
    Applied {
        index: u64,
        command: Option<&'a Command>,
        outcome: &'a Outcome,
    },
    /// A member has entries from `first` to `last` that it did not have, or has others in their place.
    Received {
        member: MemberId,
        first: u64,
        last: u64,
    },
    /// A member has applied all behind `from` up to `to`; what comes out of the same step follows.
    Advanced {
        member: MemberId,
        from: u64,
        to: u64,
    },
    /// The member's state that the answer speaks of was current somewhere within these log indexes.
    Answered {
        id: CallId,
        call: &'a Call,
        answer: &'a Answer,
        within: RangeInclusive<u64>,
    },
    /// From now on a client works under this lease as its lifecycle lets it, or does not.
    Believed {
        client: usize,
        lease: LeaseId,
        holds: bool,
    },
    WatchAsked {
        stream: StreamId,
        request: &'a WatchRequest,
    },
    Noticed {
        member: MemberId,
        stream: StreamId,
        notice: &'a Notice,
        within: RangeInclusive<u64>,
    },
    /// The client's cursor passes something on.
    Delivered(&'a Delivery),
    LockWatchAsked {
        stream: StreamId,
        request: &'a LockWatchRequest,
    },
    LockNoticed {
        stream: StreamId,
        notice: &'a LockNotice,
    },
    /// A stream carries the session of a lease at this member from now on, or does no more.
    SessionAsked {
        member: MemberId,
        stream: StreamId,
        lease: LeaseId,
        is_open: bool,
    },
    SessionNoticed {
        stream: StreamId,
        notice: &'a SessionNotice,
    },
    /// The requests of a client's session took a step.
    SessionStepped {
        lease: LeaseId,
        input: &'a requests::Input,
        effects: &'a [requests::Effect],
    },
    Stepped {
        member: MemberId,
        replica: &'a Replica,
    },
    /// All is silent, and this is what a member comes to rest with.
    Quiet {
        replica: &'a Replica,
    },
    /// Faults are over. Clients have had time to be answered; nobody keeps any lease alive any more.
    Settled,
    Ended,
}

/// What was promised for so long may end so much earlier: clocks are read in whole milliseconds, and the leader's
/// may run faster than the client's.
pub(crate) fn slack_us(span_us: u64, plan: &Plan) -> u64 {
    2_000 + span_us * 2 * plan.drift_ppm / 1_000_000
}

/// Whether a renewal was asked for when the lease was the one that is there now. An id may be used again.
pub(crate) fn is_of_this_life(call: &Call, lease: LeaseId, context: &Context<'_>) -> bool {
    let life = context.reference.model.lease(lease);
    !matches!(call.request, Request::KeepAlive { .. }) || life.is_some_and(|life| life.granted <= call.floor_index)
}

pub struct Context<'a> {
    pub now_us: u64,
    pub reference: &'a Reference,
    pub plan: &'a Plan,
    pub fates: &'a Fates,
}
