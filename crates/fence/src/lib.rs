//! What a storage uses to refuse stale holders.
//!
//! A lock alone cannot keep two writers apart. A holder that was paused, or cut off, for longer than its lease does not
//! know that the lock has gone to another holder, and its write arrives late. No clock of the holder and no promptness
//! of the lock service can prevent that: only the storage sees both writes. So every grant carries a *token*, a number
//! that rises from holder to holder of one lock. Every write carries the token of its grant, and the storage keeps for
//! each lock the highest token it has seen (the *bar*) and refuses what is below it. Tokens of different locks cannot be
//! compared: a storage that two locks protect keeps a bar for each of them.
//!
//! ```
//! use tenure_fence::{Equal, Fence, Key, Refusal, Token};
//!
//! let mut fence = Fence::new(Equal::Allow);
//! let orders = Key::name("orders")?;
//! let (paused, next) = (Token::new(100)?, Token::new(101)?);
//! assert!(fence.admit(&orders, next, None).is_ok());
//! assert_eq!(fence.admit(&orders, paused, None), Err(Refusal::Stale { token: paused, highest: next }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Three things make it sound, and each has its place here.
//!
//! **Check and write are one step.** Between a check and a write that comes later, the next holder's write fits in. So
//! [`postgres`] and [`redis`] let the database do both in one transaction or script; [`http`] admits the next request
//! of a key only when the one before it is answered; [`datastore`] writes data and bar as one record.
//!
//! **The bar is not forgotten.** A storage that forgets a bar, by a crash or to save memory, lets the next stale token
//! pass as the first. [`DurableFence`] has the bar on disk before the write that it admits can be acknowledged. Keys
//! can be forgotten only by leaving a *floor* ([`Fence::forget_below`]): unknown keys are judged against it instead.
//!
//! **The token is genuine.** A made-up high token would shut out all true holders. Where clients are not trusted, the
//! lock service signs what it gives out, and the storage verifies it offline before it looks at the bar ([`Keyring`]).
//!
//! A [`Key`] says what a token is for: a lock's name, one slot of a semaphore, or a shared hold. Slots have a bar each.
//! Shared tokens fence no writes; [`Fence::check_reader`] tells a reader that a writer has come after it.
//!
//! The check and the signatures are pure: no IO, no clock. The features: `file` (by default) for what is on disk,
//! `http` for the layer, `datastore` for the data store.
#![forbid(unsafe_code)]

mod bar;
mod claim;
#[cfg(feature = "datastore")]
pub mod datastore;
#[cfg(feature = "file")]
mod durable;
mod fence;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "file")]
mod journal;
mod key;
#[cfg(feature = "file")]
mod key_file;
pub mod postgres;
pub mod redis;
mod sign;
mod token;

pub use bar::{Admitted, Bar, Digest, Equal, NotEqual, Refusal};
pub use claim::{Claim, MAX_CLUSTER_BYTES, MAX_HOLDER_BYTES, NEVER_MS, NotAClaim};
#[cfg(feature = "file")]
pub use durable::{AdmitError, DurableFence, Request};
pub use fence::Fence;
#[cfg(feature = "file")]
pub use journal::{FORMAT_VERSION, OpenError};
pub use key::{Key, MAX_NAME_BYTES, NotAKey, Part};
#[cfg(feature = "file")]
pub use key_file::{KeyFileError, read_keyring};
pub use sign::{
    Expected, Keyring, MAX_KEYS, MAX_TEXT_BYTES, MIN_KEY_BYTES, Malformed, NotAKeyring, SignatureError, SigningKey,
};
pub use token::{NotAToken, Token};
