//! What must hold, each rule in a file of its own. A check is shown everything that happens, and says
//! what is wrong in a sentence.
//!
//! To add one: write it, and name it in [`all`].

mod leases;
mod liveness;
mod locks;
mod reads;
mod replies;
mod revisions;
mod state;
mod watches;

use std::ops::RangeInclusive;

use tenure_machine::Command;
use tenure_replica::{Answer, CallId, Notice, Replica, StreamId, WatchRequest};

use crate::model::Outcome;
use crate::plan::Plan;
use crate::reference::Reference;
use crate::request::Call;

pub trait Check {
    fn name(&self) -> &'static str;
    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String>;
}

pub fn all() -> Vec<Box<dyn Check>> {
    vec![
        Box::new(replies::Replies),
        Box::new(reads::Reads),
        Box::new(revisions::Revisions::default()),
        Box::new(watches::Watches::default()),
        Box::new(leases::Leases::default()),
        Box::new(locks::Locks::default()),
        Box::new(state::State::default()),
        Box::new(liveness::Liveness::default()),
    ]
}

/// Everything that can be seen from outside a member.
pub enum Seen<'a> {
    Booted,
    Died,
    Issued {
        id: CallId,
        call: &'a Call,
    },
    Cancelled {
        id: CallId,
        call: &'a Call,
    },
    /// A command went to the log.
    Logged {
        command: &'a Command,
    },
    /// A command took effect for the first time.
    Applied {
        command: Option<&'a Command>,
        outcome: &'a Outcome,
    },
    /// The state that the answer speaks of was current somewhere within these log indexes.
    Answered {
        id: CallId,
        call: &'a Call,
        answer: &'a Answer,
        within: RangeInclusive<u64>,
    },
    WatchAsked {
        stream: StreamId,
        request: &'a WatchRequest,
    },
    Noticed {
        stream: StreamId,
        notice: &'a Notice,
        within: RangeInclusive<u64>,
    },
    Stepped {
        replica: &'a Replica,
    },
    /// Faults are over. Clients have had time to be answered; nobody keeps any lease alive any more.
    Settled,
    Ended,
}

pub struct Context<'a> {
    pub now_us: u64,
    pub reference: &'a Reference,
    pub plan: &'a Plan,
}
