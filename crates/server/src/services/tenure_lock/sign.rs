//! Grants with a signature that a storage can verify by itself.
//!
//! A signature says what the lock's entry records, whatever the request asked for, and it expires no later than the
//! lease has time left: a storage that believes it never believes it for longer than the grant can last unrenewed.
//!
//! Every clock here is cut to milliseconds, those of the leader's deadlines included. So what was reckoned from two of
//! them may be up to one millisecond too late, and is told that much earlier.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::tenure::v1::{Header, SignRequest, SignResponse};
use tenure_fence::{Claim, Key, Keyring, Token};
use tenure_machine::lock::entry_key;
use tenure_machine::{LeaseId, LockEntry, Mode, Revision, SharedBytes, View};
use tenure_replica::{Consistency, LeaseStatus};
use tokio::time::Instant;
use tonic::Status;

use super::{describe, failed, header, request};
use crate::services::{Shared, errors};

/// Signs a grant that still stands once more.
pub async fn sign_again(shared: &Shared, asked: SignRequest) -> Result<SignResponse, Status> {
    let SignRequest { name, lease_id, fencing_token } = asked;
    let (name, token) = (request::name(name)?, request::token(fencing_token)?);
    let signed = sign_standing(shared, &name, lease_id, token, &[]).await?;
    let (header, signature) = signed.ok_or(errors::NOT_THE_HOLDER)?;
    Ok(SignResponse { header, signature })
}

/// Signs what the entry of this lease and token records; `None` if the lease does not hold the lock with that token, or
/// not all of the places with the keys `more_keys`.
/// The signature is empty where there is nothing to vouch for.
pub async fn sign_standing(
    shared: &Shared,
    name: &[u8],
    lease: LeaseId,
    token: Revision,
    more_keys: &[SharedBytes],
) -> Result<Option<(Option<Header>, String)>, Status> {
    let asked_unix_ms = describe::now_unix_ms();
    let view = shared.member.view(Consistency::Linearizable);
    let (at, times) = tokio::try_join!(view, shared.member.lease_times(vec![lease])).map_err(failed)?;
    let Some(entry) = standing(&at.value, &entry_key(name, lease), more_keys, token) else { return Ok(None) };
    let Some(time) = times.value.first().copied().flatten() else { return Ok(None) };
    let header = header(shared, &at);
    let Some(keyring) = shared.process_wide.keyring.as_ref() else { return Ok(Some((header, String::new()))) };
    let client = at.value.lease_client(lease).map_or(&b""[..], |client| client);
    let cluster = shared.identity().cluster;
    let grant = Grant::of_entry(cluster, name, entry, client, expires_at_ms(asked_unix_ms, &time));
    Ok(Some((header, sign(keyring, &grant))))
}

/// The entry with this key, if it and all the others are held under this token.
pub fn standing<'a>(
    view: &'a View,
    key: &[u8],
    more_keys: &[SharedBytes],
    token: Revision,
) -> Option<&'a Arc<LockEntry>> {
    let is_held = |key: &SharedBytes| view.lock_grant(key, token).is_some();
    view.lock_grant(key, token).filter(|_| more_keys.iter().all(is_held))
}

/// When a lease ends at the earliest. What the leader said counts from when it was asked.
fn expires_at_ms(asked_unix_ms: i64, time: &LeaseStatus) -> u64 {
    // The leader's clock had a part of a millisecond more than it says.
    (asked_unix_ms as u64).saturating_add(time.remaining_ms.min(time.ttl_ms)).saturating_sub(1)
}

/// When a lease ends at the earliest that was renewed for `ttl_ms`, with a renewal sent at this time.
pub fn expires_after_renewal(ttl_ms: u64, sent: Instant) -> u64 {
    // In this order: time that passes in between must not be added.
    let now_unix_ms = describe::now_unix_ms();
    ends_after_renewal(now_unix_ms, ttl_ms, sent.elapsed())
}

fn ends_after_renewal(now_unix_ms: i64, ttl_ms: u64, since: Duration) -> u64 {
    // The time since then is rounded up, and the leader's clock had a part of a millisecond more than its deadline says.
    let passed_ms = since.as_millis() as u64 + 2;
    (now_unix_ms as u64).saturating_add(ttl_ms.saturating_sub(passed_ms))
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
    use bytes::Bytes;
    use tenure_machine::{Command, Delete, Envelope, Keys, LeaseGrant, Lock, Machine, Reply};

    use super::*;

    /// What `tenure status` shows is what a storage is told; a leading zero made them differ.
    #[test]
    fn a_cluster_is_named_as_its_status_names_it() {
        assert_eq!(cluster_text(0x010c_f9eb_b405_7024), "10cf9ebb4057024");
    }

    #[test]
    fn a_grant_stands_while_all_of_its_names_are_held() {
        let mut machine = Machine::new();
        let mut index = 0;
        let mut apply = |command| {
            index += 1;
            machine.apply(index, 1, &Envelope { wall_ms: 0, origin: None, command }).reply.expect("taken")
        };
        apply(Command::LeaseGrant(LeaseGrant { lease: 7, ttl_ms: 60_000, client: Bytes::new() }));
        let (name, more_names) = (Bytes::from_static(b"a"), vec![Bytes::from_static(b"b")]);
        let reply = apply(Command::Lock(Box::new(Lock { name, more_names, lease: 7, ..Lock::default() })));
        let Reply::Lock(reply) = reply else { panic!("{reply:?}") };
        let keys = Keys::One(entry_key(b"b", 7).into());
        apply(Command::Delete(Delete { keys, prev_kv: false }));
        let stands = |more_keys| standing(machine.state(), &reply.key, more_keys, reply.token).is_some();
        assert!(!stands(&reply.more_keys), "b is lost");
        assert!(stands(&[]), "a is held");
    }

    /// Clocks in tenths of a millisecond: the leader's, and the wall's, which is ahead of it by some time. All are read in
    /// whole milliseconds.
    #[test]
    fn a_signature_expires_no_later_than_its_lease() {
        const TTL_MS: u64 = 5000;
        let ms = |tenths: u64| tenths / 10;
        for ahead in 0..10 {
            for (renewed, asked_after, answered_after) in
                (0..10).flat_map(|at| (0..25).flat_map(move |asked| (0..15).map(move |after| (at, asked, after))))
            {
                let asked = renewed + asked_after;
                let answered = asked + answered_after;
                let deadline_ms = ms(renewed) + TTL_MS;
                let ends = 10 * deadline_ms + ahead;
                let remaining_ms = deadline_ms - ms(answered);
                let time = LeaseStatus { lease: 7, ttl_ms: TTL_MS, remaining_ms, renewed: true };
                let told_ms = expires_at_ms(ms(asked + ahead) as i64, &time);
                assert!(10 * told_ms <= ends, "{told_ms} after {ends}, asked at {asked}, answered at {answered}");
                assert!(10 * told_ms + 30 + answered_after > ends, "{told_ms} long before {ends}");
                // The renewal was sent some time before the leader had it.
                for sent_before in 0..15 {
                    let since = Duration::from_micros(100 * (asked_after + sent_before));
                    let told_ms = ends_after_renewal(ms(asked + ahead) as i64, TTL_MS, since);
                    assert!(10 * told_ms <= ends, "{told_ms} after {ends}, {since:?} after the renewal");
                }
            }
        }
    }
}
