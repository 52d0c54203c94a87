//! What a client asks, checked and converted.

use bytes::Bytes;
use tenure_api::tenure::v1::{BarrierRequest, CampaignRequest, LockRequest, Mode as ModeMessage};
use tenure_machine::{Lock, Mode, Revision, Unlock, limits};
use tonic::Status;

/// Shorter leases would be lost to the smallest hiccup.
const TTL_MIN_MS: i64 = 500;

pub fn lock(asked: LockRequest, call: u128) -> Result<Lock, Status> {
    let mode = mode(asked.mode, asked.slots)?;
    if matches!(mode, Mode::Barrier(_)) && !asked.more_names.is_empty() {
        return Err(Status::invalid_argument("a barrier has one name"));
    }
    if asked.timeout_ms.is_some_and(|timeout_ms| timeout_ms < 0) {
        return Err(Status::invalid_argument("timeout_ms must not be negative"));
    }
    if asked.lease_id <= 0 {
        return Err(Status::invalid_argument("lease_id is missing: grant a lease first"));
    }
    if asked.metadata.len() > limits::LOCK_METADATA_BYTES {
        let text = format!("metadata is longer than {} bytes", limits::LOCK_METADATA_BYTES);
        return Err(Status::invalid_argument(text));
    }
    Ok(Lock {
        name: name(asked.name)?,
        lease: asked.lease_id,
        call,
        mode,
        value: Bytes::new(),
        overwrite: false,
        owner: words("owner", asked.owner)?,
        holder: words("holder_id", asked.holder_id)?,
        metadata: asked.metadata,
        more_names: names(asked.more_names)?,
        try_once: asked.timeout_ms == Some(0),
        epoch: 0,
    })
}

pub fn campaign(asked: CampaignRequest, call: u128) -> Result<Lock, Status> {
    let CampaignRequest { name, lease_id, value, timeout_ms, holder_id, owner } = asked;
    let asked = LockRequest { name, lease_id, timeout_ms, holder_id, owner, ..LockRequest::default() };
    stand(lock(asked, call)?, Some(value))
}

/// A lock that is a candidacy, if it comes with a value.
pub fn stand(lock: Lock, value: Option<Bytes>) -> Result<Lock, Status> {
    match value {
        None => Ok(lock),
        Some(_) if lock.mode != Mode::Exclusive || !lock.more_names.is_empty() => {
            Err(Status::invalid_argument("only an exclusive lock of one name has a value"))
        }
        Some(value) => Ok(Lock { value, overwrite: true, ..lock }),
    }
}

pub fn barrier(asked: BarrierRequest, call: u128) -> Result<Lock, Status> {
    let BarrierRequest { name, lease_id, parties: slots, timeout_ms, holder_id, metadata } = asked;
    let mode = ModeMessage::Barrier.into();
    lock(LockRequest { name, lease_id, metadata, timeout_ms, mode, slots, holder_id, ..LockRequest::default() }, call)
}

pub fn unlock(first: String, more_names: Vec<String>, token: i64, epoch: u64) -> Result<Unlock, Status> {
    let mut all = vec![name(first)?];
    all.extend(names(more_names)?);
    Ok(Unlock { names: all, token: self::token(token)?, epoch })
}

pub fn token(token: i64) -> Result<Revision, Status> {
    match token {
        1.. => Ok(token),
        _ => Err(Status::invalid_argument("fencing_token is missing")),
    }
}

pub fn name(name: String) -> Result<Bytes, Status> {
    match name.len() {
        0 => Err(Status::invalid_argument("name is missing")),
        length if length > limits::LOCK_NAME_BYTES => {
            let text = format!("name is longer than {} bytes", limits::LOCK_NAME_BYTES);
            Err(Status::invalid_argument(text))
        }
        _ => Ok(name.into()),
    }
}

fn names(names: Vec<String>) -> Result<Vec<Bytes>, Status> {
    if names.len() >= limits::LOCK_NAMES {
        return Err(Status::invalid_argument(format!("more than {} names", limits::LOCK_NAMES)));
    }
    names.into_iter().map(name).collect()
}

/// What somebody says about itself.
pub fn words(field: &str, words: String) -> Result<Bytes, Status> {
    match words.len() > limits::LOCK_NAME_BYTES {
        true => Err(Status::invalid_argument(format!("{field} is longer than {} bytes", limits::LOCK_NAME_BYTES))),
        false => Ok(words.into()),
    }
}

pub fn ttl_ms(asked: i64) -> Result<u64, Status> {
    match asked {
        TTL_MIN_MS.. if asked as u64 <= limits::LEASE_TTL_MS => Ok(asked as u64),
        TTL_MIN_MS.. => Err(Status::out_of_range("ttl_ms is too large")),
        _ => Err(Status::out_of_range(format!("ttl_ms must be at least {TTL_MIN_MS}"))),
    }
}

fn mode(mode: i32, slots: u32) -> Result<Mode, Status> {
    match (ModeMessage::try_from(mode), slots) {
        (Ok(ModeMessage::Exclusive), 0) => Ok(Mode::Exclusive),
        (Ok(ModeMessage::Shared), 0) => Ok(Mode::Shared),
        (Ok(ModeMessage::Semaphore), 1..) => Ok(Mode::Slots(slots)),
        (Ok(ModeMessage::Semaphore), 0) => Err(Status::invalid_argument("a semaphore needs slots")),
        (Ok(ModeMessage::Barrier), 1..=limits::BARRIER_PARTIES) => Ok(Mode::Barrier(slots)),
        (Ok(ModeMessage::Barrier), _) => {
            Err(Status::invalid_argument(format!("a barrier has 1 to {} parties", limits::BARRIER_PARTIES)))
        }
        (Ok(_), _) => Err(Status::invalid_argument("only a semaphore has slots")),
        (Err(_), _) => Err(Status::invalid_argument(format!("unknown mode {mode}"))),
    }
}
