//! Grants with a signature that a storage can verify by itself.

use tenure_fence::{Claim, Key, Keyring, Token};

use super::describe;

/// The cluster as a signature names it; a storage that verifies is told the same text.
pub fn cluster_text(cluster: u64) -> String {
    format!("{cluster:016x}")
}

/// What is granted to whom.
pub struct Grant<'a> {
    pub cluster: u64,
    pub name: &'a [u8],
    /// Of a semaphore.
    pub slot: Option<u32>,
    pub token: i64,
    pub holder: &'a [u8],
    /// The lease's: for how long the signature is good. Asking again for what one has gives a new one.
    pub ttl_ms: u64,
}

/// Empty if there is nothing to vouch for: nobody said who holds it, or its name is no key that a fence takes.
pub fn sign(keyring: &Keyring, grant: &Grant<'_>) -> String {
    let name = describe::text(grant.name);
    let key = match grant.slot {
        Some(slot) => Key::slot(&name, slot),
        None => Key::name(&name),
    };
    let expires_at_ms = (describe::now_unix_ms() as u64).saturating_add(grant.ttl_ms);
    let (Ok(key), Ok(token)) = (key, Token::new(grant.token as u64)) else { return String::new() };
    let holder = describe::text(grant.holder);
    match Claim::new(&cluster_text(grant.cluster), key, token, &holder, expires_at_ms) {
        Ok(claim) => keyring.sign(&claim),
        Err(_) => String::new(),
    }
}
