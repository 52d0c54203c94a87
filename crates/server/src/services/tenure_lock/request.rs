//! What a client asks, checked and converted.

use bytes::Bytes;
use tenure_api::tenure::v1::{BarrierRequest, CampaignRequest, LockRequest, Mode as ModeMessage};
use tenure_machine::{Lock, Mode, Revision, Unlock, limits};
use tonic::Status;

/// Shorter leases would be lost to the smallest hiccup.
const TTL_MIN_MS: i64 = 500;

/// A Lock as it was asked for: nothing of it is checked, and what takes more than a field to tell is not in it yet.
#[derive(Default)]
pub struct AskedLock {
    pub lock: Box<Lock>,
    pub mode: i32,
    pub slots: u32,
    pub timeout_ms: Option<i64>,
}

impl AskedLock {
    pub fn check(self) -> Result<Box<Lock>, Status> {
        let AskedLock { mut lock, mode, slots, timeout_ms } = self;
        lock.mode = self::mode(mode, slots)?;
        if matches!(lock.mode, Mode::Barrier(_)) && !lock.more_names.is_empty() {
            return Err(Status::invalid_argument("a barrier has one name"));
        }
        if timeout_ms.is_some_and(|timeout_ms| timeout_ms < 0) {
            return Err(Status::invalid_argument("timeout_ms must not be negative"));
        }
        if lock.lease <= 0 {
            return Err(Status::invalid_argument("lease_id is missing: grant a lease first"));
        }
        if lock.metadata.len() > limits::LOCK_METADATA_BYTES {
            let text = format!("metadata is longer than {} bytes", limits::LOCK_METADATA_BYTES);
            return Err(Status::invalid_argument(text));
        }
        check_name(&lock.name)?;
        check_words("owner", &lock.owner)?;
        check_words("holder_id", &lock.holder)?;
        check_names(&lock.more_names)?;
        if lock.overwrite && (lock.mode != Mode::Exclusive || !lock.more_names.is_empty()) {
            return Err(Status::invalid_argument("only an exclusive lock of one name has a value"));
        }
        lock.try_once = timeout_ms == Some(0);
        Ok(lock)
    }

    /// It is a candidacy, which has a value.
    pub fn stand(&mut self, value: Bytes) {
        (self.lock.value, self.lock.overwrite) = (value, true);
    }
}

pub fn lock(asked: LockRequest, call: u128) -> Result<Box<Lock>, Status> {
    asked_lock(asked, call).check()
}

fn asked_lock(asked: LockRequest, call: u128) -> AskedLock {
    let LockRequest { name, more_names, lease_id, metadata, timeout_ms, mode, slots, holder_id, owner } = asked;
    let lock = Box::new(Lock {
        name: name.into(),
        lease: lease_id,
        call,
        owner: owner.into(),
        holder: holder_id.into(),
        metadata,
        more_names: more_names.into_iter().map(Bytes::from).collect(),
        ..Lock::default()
    });
    AskedLock { lock, mode, slots, timeout_ms }
}

pub fn campaign(asked: CampaignRequest, call: u128) -> Result<Box<Lock>, Status> {
    let CampaignRequest { name, lease_id, value, timeout_ms, holder_id, owner } = asked;
    let asked = LockRequest { name, lease_id, timeout_ms, holder_id, owner, ..LockRequest::default() };
    let mut asked = asked_lock(asked, call);
    asked.stand(value);
    asked.check()
}

pub fn barrier(asked: BarrierRequest, call: u128) -> Result<Box<Lock>, Status> {
    let BarrierRequest { name, lease_id, parties: slots, timeout_ms, holder_id, metadata } = asked;
    let mode = ModeMessage::Barrier.into();
    lock(LockRequest { name, lease_id, metadata, timeout_ms, mode, slots, holder_id, ..LockRequest::default() }, call)
}

pub fn unlock(first: String, more_names: Vec<String>, token: i64, epoch: u64) -> Result<Unlock, Status> {
    let names = std::iter::once(first).chain(more_names).map(Bytes::from).collect();
    check_unlock(Unlock { names, token, epoch })
}

/// Of names that came as bytes, the first one before the others.
pub fn check_unlock(unlock: Unlock) -> Result<Unlock, Status> {
    if let Some((first, more)) = unlock.names.split_first() {
        check_name(first)?;
        check_names(more)?;
    }
    token(unlock.token)?;
    Ok(unlock)
}

pub fn token(token: i64) -> Result<Revision, Status> {
    match token {
        1.. => Ok(token),
        _ => Err(Status::invalid_argument("fencing_token is missing")),
    }
}

pub fn name(name: String) -> Result<Bytes, Status> {
    check_name(name.as_bytes())?;
    Ok(name.into())
}

fn check_name(name: &[u8]) -> Result<(), Status> {
    match name.len() {
        0 => Err(Status::invalid_argument("name is missing")),
        length if length > limits::LOCK_NAME_BYTES => {
            let text = format!("name is longer than {} bytes", limits::LOCK_NAME_BYTES);
            Err(Status::invalid_argument(text))
        }
        _ => Ok(()),
    }
}

fn check_names(more: &[Bytes]) -> Result<(), Status> {
    if more.len() >= limits::LOCK_NAMES {
        return Err(Status::invalid_argument(format!("more than {} names", limits::LOCK_NAMES)));
    }
    more.iter().try_for_each(|name| check_name(name))
}

/// What somebody says about itself.
pub fn words(field: &str, words: String) -> Result<Bytes, Status> {
    check_words(field, words.as_bytes())?;
    Ok(words.into())
}

fn check_words(field: &str, words: &[u8]) -> Result<(), Status> {
    match words.len() > limits::LOCK_NAME_BYTES {
        true => Err(Status::invalid_argument(format!("{field} is longer than {} bytes", limits::LOCK_NAME_BYTES))),
        false => Ok(()),
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
