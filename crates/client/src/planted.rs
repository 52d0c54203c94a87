//! Bugs put back on purpose: a simulation that finds nothing must first show that it would. Here only with the feature
//! `planted`, which only builds of tests turn on.

use std::cell::Cell;

/// A bug of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A grant that is delivered and never read is not given back.
    KeepUnread,
    /// A lock request that a broken stream has left unanswered is not sent over the next one.
    ForgetAsked,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug for everything that runs on this thread from now on.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
