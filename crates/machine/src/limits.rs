//! Every limit of the replicated state, in one place.
//!
//! Those that apply checks itself are part of what the machine *is*: members that disagreed about
//! them would drift apart, so they are constants and no setting. The others bound what one apply
//! may cost.
//!
//! No simulated world is large enough to reach [`LEASE_KEYS_AT_ONCE`] and [`LOCK_GRANTS_AT_ONCE`]. Apply therefore asks
//! [`lease_keys_at_once`] and [`lock_grants_at_once`], which are these constants in every build but the simulation's.

/// Operations in each of a transaction's three lists; nested transactions share what is left.
pub const TXN_OPERATIONS: usize = 128;
/// Transactions within transactions, the outermost counted.
pub const TXN_NESTING: usize = 8;
/// Entries that one lock's queue may hold.
pub const LOCK_ENTRIES: usize = 100_000;
pub const LOCK_NAME_BYTES: usize = 1024;
/// Names in one request.
pub const LOCK_NAMES: usize = 64;
/// Entries looked at to find out whether a request would wait in a circle, below level 1. What lies beyond is missed.
pub const DEADLOCK_STEPS: usize = 10_000;
/// Holders and waits looked at to find out whether a request would wait in a circle, from level 1 on. A request that
/// needs more is refused.
pub const DEADLOCK_SEARCH: usize = 50_000;
/// Who may meet at one barrier: a round is looked through each time its queue changes, and granted in one apply.
pub const BARRIER_PARTIES: u32 = 10_000;
/// What a caller may say about itself on an entry. Checked by services, before a command is proposed.
pub const LOCK_METADATA_BYTES: usize = 4096;
/// How many ended holders are remembered, over all locks.
pub const RECENT_HOLDERS: usize = 1000;
/// Keys of ended leases that one command deletes, from level 1 on. Up to this many end at one revision.
pub const LEASE_KEYS_AT_ONCE: usize = 4096;
/// Places that one command grants, from level 1 on. A round of a barrier is granted as a whole all the same.
pub const LOCK_GRANTS_AT_ONCE: usize = 4096;
/// etcd's bound of 9,000,000,000 seconds.
pub const LEASE_TTL_MS: u64 = 9_000_000_000_000;
/// Replaced starts of a member that are remembered, so that what they sent late is refused.
pub const RETIRED_BOOTS: usize = 16;
/// History events freed with each applied command after a compaction.
pub const TRIM_EVENTS: usize = 16;

/// How deep the decoder follows nested transactions: beyond what apply accepts, so that it is apply
/// that refuses, with a reply, and not the decoder, which would stop the member.
pub(crate) const DECODE_NESTING: usize = 64;

const _: () = assert!(TXN_NESTING < DECODE_NESTING);
const _: () = assert!(TXN_NESTING <= TXN_OPERATIONS);
// A write adds one event at least: trimming must outrun writing or memory would never come down.
const _: () = assert!(TRIM_EVENTS >= 4);
const _: () = assert!(LOCK_METADATA_BYTES >= LOCK_NAME_BYTES);
// A barrier whose parties do not fit into its queue would never open.
const _: () = assert!(BARRIER_PARTIES as usize <= LOCK_ENTRIES);
// A request for several free locks is granted all of them by its own command.
const _: () = assert!(LOCK_NAMES <= LOCK_GRANTS_AT_ONCE);
const _: () = assert!(LEASE_KEYS_AT_ONCE > 0);

#[cfg(not(feature = "simulated"))]
mod at_once {
    /// [`super::LEASE_KEYS_AT_ONCE`].
    pub fn lease_keys_at_once() -> usize {
        super::LEASE_KEYS_AT_ONCE
    }

    /// [`super::LOCK_GRANTS_AT_ONCE`].
    pub fn lock_grants_at_once() -> usize {
        super::LOCK_GRANTS_AT_ONCE
    }
}

#[cfg(feature = "simulated")]
mod at_once {
    use std::cell::Cell;

    thread_local! {
        static LEASE_KEYS: Cell<usize> = const { Cell::new(super::LEASE_KEYS_AT_ONCE) };
        static LOCK_GRANTS: Cell<usize> = const { Cell::new(super::LOCK_GRANTS_AT_ONCE) };
    }

    /// Sets both limits for all machines of this thread. All members of a simulated cluster run on one thread, so they
    /// agree.
    pub fn set_at_once(lease_keys: usize, lock_grants: usize) {
        assert!(lease_keys > 0 && lock_grants > 0, "no work would ever be done");
        LEASE_KEYS.set(lease_keys);
        LOCK_GRANTS.set(lock_grants);
    }

    /// What [`set_at_once`] chose, or [`super::LEASE_KEYS_AT_ONCE`].
    pub fn lease_keys_at_once() -> usize {
        LEASE_KEYS.get()
    }

    /// What [`set_at_once`] chose, or [`super::LOCK_GRANTS_AT_ONCE`].
    pub fn lock_grants_at_once() -> usize {
        LOCK_GRANTS.get()
    }
}

pub use at_once::*;
