//! Every limit of the replicated state, in one place.
//!
//! Those that apply checks itself are part of what the machine *is*: members that disagreed about
//! them would drift apart, so they are constants and no setting. The others bound what one apply
//! may cost.

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
