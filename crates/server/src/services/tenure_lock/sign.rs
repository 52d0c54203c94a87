//! Grants with a signature that a storage can verify by itself.

use tenure_api::tenure::v1::{SignRequest, SignResponse};
use tenure_fence::{Claim, Key, Keyring, Token};
use tenure_machine::Mode;
use tenure_machine::lock::entry_key;
use tenure_replica::Consistency;
use tonic::Status;

use super::{describe, failed, header, request};
use crate::services::{Shared, errors};

/// For a grant that still stands, with the holder that it was recorded with.
pub async fn sign_again(shared: &Shared, asked: SignRequest) -> Result<SignResponse, Status> {
    let SignRequest { name, lease_id, fencing_token } = asked;
    let (name, token) = (request::name(name)?, request::token(fencing_token)?);
    let at = shared.member.view(Consistency::Linearizable).await.map_err(failed)?;
    let entry = at.value.lock_grant(&entry_key(&name, lease_id), token).ok_or(errors::NOT_THE_HOLDER)?;
    let ttl_ms = at.value.lease_ttl_ms(lease_id).ok_or(errors::NOT_THE_HOLDER)?;
    let client = at.value.lease_client(lease_id).map_or(&b""[..], |client| client);
    let header = header(shared, &at);
    let keyring = shared.process_wide.keyring.as_ref().filter(|_| entry.mode.fences());
    let Some(keyring) = keyring else { return Ok(SignResponse { header, signature: String::new() }) };
    let grant = Grant {
        cluster: shared.identity().cluster,
        name: &name,
        slot: matches!(entry.mode, Mode::Slots(_)).then_some(entry.slot),
        token,
        holder: if entry.holder.is_empty() { client } else { &entry.holder },
        ttl_ms,
    };
    Ok(SignResponse { header, signature: sign(keyring, &grant) })
}

/// The cluster as a signature names it; a storage that verifies is told the same text, as `tenure status` shows it.
pub fn cluster_text(cluster: u64) -> String {
    format!("{cluster:x}")
}

/// What is granted to whom.
pub struct Grant<'a> {
    pub cluster: u64,
    pub name: &'a [u8],
    /// Of a semaphore.
    pub slot: Option<u32>,
    pub token: i64,
    pub holder: &'a [u8],
    /// The lease's: for how long the signature is good. [`sign_again`] gives a new one.
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

#[cfg(test)]
mod tests {
    /// What `tenure status` shows is what a storage is told; a leading zero made them differ.
    #[test]
    fn a_cluster_is_named_as_its_status_names_it() {
        assert_eq!(super::cluster_text(0x010c_f9eb_b405_7024), "10cf9ebb4057024");
    }
}
