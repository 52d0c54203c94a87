//! Bugs put back on purpose, for a simulation to find. Here only with the feature `planted`, which nothing but a
//! build of tests turns on.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A batch is believed by its header, whether its pages are there or not.
    BelieveTornBatch,
    /// A snapshot is given its name before it is synced.
    NameUnsynced,
    /// A received snapshot that is refused takes the file of another that is the same.
    TakeFile,
    /// A chunk of a snapshot is believed whatever its checksum says.
    BelieveChunk,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// For everything that runs on this thread from now on.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
