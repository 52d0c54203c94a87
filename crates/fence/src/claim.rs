//! What a signature is over: who got which token for what, from whom, and until when. Pure.
//!
//! The encoding is unambiguous: a label that no other use of the key shares, then every field with its length before
//! it or of fixed length, in one order. So no two claims have the same bytes, and no bytes have two readings.

use crate::{Key, NotAKey, Token};

/// The most bytes of a cluster's id.
pub const MAX_CLUSTER_BYTES: usize = 128;
/// The most bytes of a holder's id.
pub const MAX_HOLDER_BYTES: usize = 1024;
/// The expiry of a claim that does not expire.
pub const NEVER_MS: u64 = u64::MAX;

const LABEL: &[u8] = b"tenure fencing token, version 1";

/// A grant, as the lock service vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    cluster: String,
    key: Key,
    token: Token,
    holder: String,
    expires_at_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAClaim {
    #[error("the {field} of a claim has from 1 to {limit} bytes, not {bytes}")]
    Length { field: &'static str, limit: usize, bytes: usize },
    #[error(transparent)]
    Key(#[from] NotAKey),
    #[error(transparent)]
    Token(#[from] crate::NotAToken),
    #[error("its bytes end too early, or go on too long")]
    Bytes,
    #[error("its {field} is no text")]
    Text { field: &'static str },
}

impl Claim {
    /// `expires_at_ms` is wall time, in milliseconds since 1970; [`NEVER_MS`] is never. It limits for how long a
    /// signature that leaked is of use. That a stale holder is refused does not depend on it, nor on any clock.
    pub fn new(cluster: &str, key: Key, token: Token, holder: &str, expires_at_ms: u64) -> Result<Claim, NotAClaim> {
        check_length("cluster", cluster, MAX_CLUSTER_BYTES)?;
        check_length("holder", holder, MAX_HOLDER_BYTES)?;
        Ok(Claim { cluster: cluster.to_owned(), key, token, holder: holder.to_owned(), expires_at_ms })
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    pub fn token(&self) -> Token {
        self.token
    }

    pub fn holder(&self) -> &str {
        &self.holder
    }

    pub fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    /// The fields, one after the other.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in [self.cluster.as_str(), self.key.as_str(), self.holder.as_str()] {
            put(&mut bytes, text.as_bytes());
        }
        bytes.extend_from_slice(&self.token.get().to_le_bytes());
        bytes.extend_from_slice(&self.expires_at_ms.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Claim, NotAClaim> {
        let cluster = take_text(&mut bytes, "cluster")?;
        let key = take_text(&mut bytes, "key")?;
        let holder = take_text(&mut bytes, "holder")?;
        let token = take_number(&mut bytes)?;
        let expires_at_ms = take_number(&mut bytes)?;
        if !bytes.is_empty() {
            return Err(NotAClaim::Bytes);
        }
        Claim::new(cluster, Key::parse(key)?, Token::new(token)?, holder, expires_at_ms)
    }
}

/// What is signed for these bytes of a claim: they, behind the label.
pub(crate) fn label() -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, LABEL);
    bytes
}

fn check_length(field: &'static str, text: &str, limit: usize) -> Result<(), NotAClaim> {
    let bytes = text.len();
    if (1..=limit).contains(&bytes) { Ok(()) } else { Err(NotAClaim::Length { field, limit, bytes }) }
}

fn put(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(&(field.len() as u32).to_le_bytes());
    bytes.extend_from_slice(field);
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], NotAClaim> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(NotAClaim::Bytes)?;
    *bytes = rest;
    Ok(taken)
}

fn take_text<'a>(bytes: &mut &'a [u8], field: &'static str) -> Result<&'a str, NotAClaim> {
    let length = take(bytes, 4)?.try_into().map(u32::from_le_bytes).map_err(|_| NotAClaim::Bytes)?;
    let text = take(bytes, length as usize)?;
    std::str::from_utf8(text).map_err(|_| NotAClaim::Text { field })
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, NotAClaim> {
    take(bytes, 8)?.try_into().map(u64::from_le_bytes).map_err(|_| NotAClaim::Bytes)
}
