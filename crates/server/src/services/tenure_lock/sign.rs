//! Grants with a signature that a storage can verify by itself.
//!
//! A signature says what the lock's entry records, whatever the request asked for, and it expires no later than the
//! lease has time left: a storage that believes it never believes it for longer than the grant can last unrenewed.

use std::time::Duration;

use tenure_api::tenure::v1::{Header, SignRequest, SignResponse};
use tenure_fence::{Claim, Key, Keyring, Token};
use tenure_machine::lock::entry_key;
use tenure_machine::{LeaseId, LockEntry, Mode, Revision};
use tenure_replica::{Consistency, LeaseStatus};
use tonic::Status;

use super::{describe, failed, header, request};
use crate::services::{Shared, errors};

/// Signs a grant that still stands once more.
pub async fn sign_again(shared: &Shared, asked: SignRequest) -> Result<SignResponse, Status> {
    let SignRequest { name, lease_id, fencing_token } = asked;
    let (name, token) = (request::name(name)?, request::token(fencing_token)?);
    let signed = sign_standing(shared, &name, lease_id, token).await?;
    let (header, signature) = signed.ok_or(errors::NOT_THE_HOLDER)?;
    Ok(SignResponse { header, signature })
}

/// Signs what the entry of this lease and token records; `None` if the lease does not hold the lock with that token.
/// The signature is empty where there is nothing to vouch for.
pub async fn sign_standing(
    shared: &Shared,
    name: &[u8],
    lease: LeaseId,
    token: Revision,
) -> Result<Option<(Option<Header>, String)>, Status> {
    let asked_unix_ms = describe::now_unix_ms();
    let view = shared.member.view(Consistency::Linearizable);
    let (at, times) = tokio::try_join!(view, shared.member.lease_times(vec![lease])).map_err(failed)?;
    let Some(entry) = at.value.lock_grant(&entry_key(name, lease), token) else { return Ok(None) };
    let Some(time) = times.value.first().copied().flatten() else { return Ok(None) };
    let header = header(shared, &at);
    let Some(keyring) = shared.process_wide.keyring.as_ref() else { return Ok(Some((header, String::new()))) };
    let client = at.value.lease_client(lease).map_or(&b""[..], |client| client);
    let cluster = shared.identity().cluster;
    let grant = Grant::of_entry(cluster, name, entry, client, expires_at_ms(asked_unix_ms, &time));
    Ok(Some((header, sign(keyring, &grant))))
}

/// When a lease ends at the earliest. What the leader said counts from when it was asked.
fn expires_at_ms(asked_unix_ms: i64, time: &LeaseStatus) -> u64 {
    (asked_unix_ms as u64).saturating_add(time.remaining_ms.min(time.ttl_ms))
}

/// When a lease ends at the earliest that was renewed for `ttl_ms`, with a renewal sent this long ago.
pub fn expires_after_renewal(ttl_ms: u64, since: Duration) -> u64 {
    let left_ms = ttl_ms.saturating_sub(since.as_millis() as u64);
    (describe::now_unix_ms() as u64).saturating_add(left_ms)
}

/// The cluster as a signature names it; a storage that verifies is told the same text, as `tenure status` shows it.
pub fn cluster_text(cluster: u64) -> String {
    format!("{cluster:x}")
}

/// What is granted to whom.
pub struct Grant<'a> {
    pub cluster: u64,
    pub name: &'a [u8],
    /// Only a semaphore's counts.
    pub slot: u32,
    pub token: i64,
    pub holder: &'a [u8],
    pub mode: Mode,
    /// When the signature expires. [`sign_again`] gives a later one after a renewal.
    pub expires_at_ms: u64,
}

impl<'a> Grant<'a> {
    /// What an entry records; `client` is the lease's, for an entry that names no holder.
    pub fn of_entry(
        cluster: u64,
        name: &'a [u8],
        entry: &'a LockEntry,
        client: &'a [u8],
        expires_at_ms: u64,
    ) -> Grant<'a> {
        let holder = if entry.holder.is_empty() { client } else { &entry.holder };
        Grant { cluster, name, slot: entry.slot, token: entry.token, holder, mode: entry.mode, expires_at_ms }
    }
}

/// Empty if there is nothing to vouch for: the mode fences no writes, the holder has no name, or a fence does not take
/// the lock's name as a key.
pub fn sign(keyring: &Keyring, grant: &Grant<'_>) -> String {
    if !grant.mode.fences() {
        return String::new();
    }
    let name = describe::text(grant.name);
    let key = match grant.mode {
        Mode::Slots(_) => Key::slot(&name, grant.slot),
        _ => Key::name(&name),
    };
    let (Ok(key), Ok(token)) = (key, Token::new(grant.token as u64)) else { return String::new() };
    let holder = describe::text(grant.holder);
    match Claim::new(&cluster_text(grant.cluster), key, token, &holder, grant.expires_at_ms) {
        Ok(claim) => keyring.sign(&claim),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    /// What `tenure status` shows is what a storage is told; a leading zero made them differ.
    #[test]
    fn a_cluster_is_named_as_its_status_names_it() {
        assert_eq!(super::cluster_text(0x010c_f9eb_b405_7024), "10cf9ebb4057024");
    }
}
