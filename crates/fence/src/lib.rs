//! What a storage uses to refuse stale holders.
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
