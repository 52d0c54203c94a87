//! Bugs put back on purpose: a simulation that finds nothing must first show that it would. Here only with the
//! feature `planted`, which nothing but a build of tests turns on.

use std::cell::Cell;

/// One for each way in which others, or earlier drafts, went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A place that waits outlives its lease, and is granted.
    GrantTheDead,
    /// A restored state whose history was compacted is a revision behind.
    RevisionFalls,
    /// A leave ends a place whoever joined it last.
    LeaveAnybody,
    /// A put that hangs an entry's key on another lease ends the place.
    PutEndsPlace,
    /// A forwarded command that comes twice takes effect twice.
    ForgetOrigins,
    /// A leader answers renewals without asking whether it still leads.
    RenewUnconfirmed,
    /// Reads that come while a confirmation is under way share it.
    ShareContext,
    /// A watch that is behind what was compacted goes on behind that, and is told nothing.
    SkipCompacted,
    /// Watches are not looked at when a snapshot is installed.
    SilentAfterInstall,
    /// A new leader takes the silence during the election for the clients'.
    FreeTheLiving,
    /// A renewal does not wait for an expiry that is in flight.
    RenewTheExpiring,
    /// Those who wait for a lock are not looked at when a snapshot is installed.
    ForgetWaiters,
    /// A grant is told without asking whether it still stands.
    GrantUnconfirmed,
    /// A state made of a backup goes on with the revisions of the backup.
    RebornTooEarly,
    /// That a change of members is committed is not made durable.
    ForgetChange,
    /// Who has little time is told that nobody leads, whatever became of its command.
    SayNoLeader,
    /// A place whose lease has ended, under a key that was overwritten, is granted all the same.
    GrantOutlived,
    /// A lease that asks again with another mode is told that it has the lock in that mode.
    RenewOtherMode,
    /// A lease that asks again for a lock that it has is told that it is renewed, and is not.
    RenewInName,
    /// A grant is told without looking whether its lease lives.
    TellTheDead,
    /// A place is not left whose call was given up and whose entry a snapshot skipped.
    ForgetGivenUp,
    /// What watches were fed before a snapshot came in mid-step is given out after what follows it.
    NoticesOutOfOrder,
    /// A call for several locks is not told that one of them has ended which it was granted already.
    EndAwaitedOnly,
    /// A member whose every step is late takes each of them for the end of a pause.
    StopLeaseClock,
    /// The end of a lease looks at every key of the store, not only at its own.
    UnboundedApply,
    /// A circle is not found if it leads through a holder that shares its lock with an earlier one.
    MissCircle,
    /// A waiter for one of several slots is taken to wait for each of those who have them.
    RefuseWithoutCircle,
    /// A restored state does not know which places are due.
    ForgetDue,
    /// The first `Continue` for a lease is taken for the last one, and keys of the lease stay.
    ForgetRest,
    /// A leader proposes `Continue` once in its term.
    ContinueOnce,
    /// A leader does not wait for its `Continue` to be applied before it proposes the next.
    ContinueAgain,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// For everything that runs on this thread from now on.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
