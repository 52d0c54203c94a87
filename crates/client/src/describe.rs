//! Who holds what, who waits for it, and how it ended before: for people and their tools.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tenure_api::tenure::v1 as proto;
use tenure_api::tenure::v1::lock_service_client::LockServiceClient;

use crate::call::Kind;
use crate::{Client, Error, Header, LeaseId, Revision};

/// How a lock may be shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of holders that asked for the same.
    Shared,
    /// At most so many holders that asked for the same number.
    Semaphore { slots: u32 },
    /// Nobody until so many stand before it, then all of them at once.
    Barrier { parties: u32 },
}

impl Mode {
    pub(crate) fn to_proto(self) -> (proto::Mode, u32) {
        match self {
            Mode::Exclusive => (proto::Mode::Exclusive, 0),
            Mode::Shared => (proto::Mode::Shared, 0),
            Mode::Semaphore { slots } => (proto::Mode::Semaphore, slots),
            Mode::Barrier { parties } => (proto::Mode::Barrier, parties),
        }
    }

    fn from_proto(mode: proto::Mode, slots: u32) -> Mode {
        match mode {
            proto::Mode::Exclusive => Mode::Exclusive,
            proto::Mode::Shared => Mode::Shared,
            proto::Mode::Semaphore => Mode::Semaphore { slots },
            proto::Mode::Barrier => Mode::Barrier { parties: slots },
        }
    }
}

/// Somebody who holds a lock, waits for it, or has held it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub key: String,
    /// Who it is, for people to read.
    pub id: String,
    pub owner: String,
    /// 0 for those who wait: it is disclosed at the grant.
    pub token: i64,
    pub lease: LeaseInfo,
    pub mode: Mode,
    /// Of a semaphore or a barrier.
    pub slot: u32,
    /// Other names that it asked for at the same time.
    pub together_with: Vec<String>,
    pub metadata: Bytes,
    pub create_revision: Revision,
    pub mod_revision: Revision,
    pub version: i64,
    /// By the leader's clock.
    pub joined: Option<SystemTime>,
    pub granted: Option<SystemTime>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseInfo {
    pub id: LeaseId,
    pub client: String,
    pub state: LeaseState,
    pub granted_ttl: Duration,
    pub remaining_ttl: Duration,
    pub expiry: Option<SystemTime>,
    pub keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    Unknown,
    /// Nothing is bound to it yet.
    Created,
    Active,
    /// Below a third of its time.
    Expiring,
    Expired,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    pub entry: Holder,
    /// The key of the entry right before it.
    pub predecessor: String,
    pub age: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentHolder {
    pub holder: Holder,
    pub end: End,
    pub ended: Option<SystemTime>,
}

/// How somebody's tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    Released,
    Expired,
    Revoked,
    /// By an operator.
    Forced,
    /// Given up before anybody had been told of the grant.
    Left,
    /// In a way that this client does not know.
    Other,
}

/// Everything there is to know of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDescription {
    pub header: Header,
    pub name: String,
    pub holders: Vec<Holder>,
    /// In the order in which their turn comes.
    pub waiters: Vec<Waiter>,
    /// The newest first.
    pub recent: Vec<RecentHolder>,
    /// The leader's clock when this was read.
    pub now: Option<SystemTime>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockSummary {
    pub name: String,
    /// The first one; none while all wait at a barrier.
    pub holder: Option<Holder>,
    pub holders: u64,
    pub waiting: u64,
    /// What the first in the queue asked for.
    pub mode: Mode,
}

/// Locks that are held or waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locks {
    pub header: Header,
    /// In the order of their names.
    pub locks: Vec<LockSummary>,
    pub now: Option<SystemTime>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSummary {
    pub client: String,
    pub lease: LeaseInfo,
    /// Of the stream that it has open at the member that was asked; empty if none is.
    pub address: String,
    pub connected_since: Option<SystemTime>,
    pub last_seen: Option<SystemTime>,
    pub locks_held: u64,
    pub locks_awaited: u64,
    pub watches: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sessions {
    pub header: Header,
    pub sessions: Vec<SessionSummary>,
    pub now: Option<SystemTime>,
}

impl Client {
    pub async fn describe_lock(&self, name: impl Into<String>) -> Result<LockDescription, Error> {
        let request = proto::DescribeRequest { name: name.into() };
        let call = |channel| {
            let request = request.clone();
            async move { LockServiceClient::new(channel).max_decoding_message_size(usize::MAX).describe(request).await }
        };
        let found = self.connections.call(Kind::read("describe"), call).await?;
        Ok(LockDescription {
            header: found.header.into(),
            name: found.name,
            holders: found.holders.into_iter().map(Holder::from).collect(),
            waiters: found.waiters.into_iter().map(Waiter::from).collect(),
            recent: found.recent.into_iter().map(RecentHolder::from).collect(),
            now: time(found.now_unix_ms),
        })
    }

    /// All locks whose names begin so, page by page until the last.
    pub async fn locks(&self, prefix: impl Into<String>) -> Result<Locks, Error> {
        let mut request = proto::ListRequest { prefix: prefix.into(), ..proto::ListRequest::default() };
        let mut locks = Vec::new();
        loop {
            let call = |channel| {
                let request = request.clone();
                async move { LockServiceClient::new(channel).max_decoding_message_size(usize::MAX).list(request).await }
            };
            let page = self.connections.call(Kind::read("list"), call).await?;
            locks.extend(page.locks.into_iter().map(LockSummary::from));
            if page.next_page_token.is_empty() {
                return Ok(Locks { header: page.header.into(), locks, now: time(page.now_unix_ms) });
            }
            request.page_token = page.next_page_token;
        }
    }

    /// All clients with leases, and what they hold and wait for.
    pub async fn sessions(&self) -> Result<Sessions, Error> {
        let mut request = proto::ListSessionsRequest::default();
        let mut sessions = Vec::new();
        loop {
            let call = |channel| {
                let request = request.clone();
                async move {
                    LockServiceClient::new(channel).max_decoding_message_size(usize::MAX).list_sessions(request).await
                }
            };
            let page = self.connections.call(Kind::read("list sessions"), call).await?;
            sessions.extend(page.sessions.into_iter().map(SessionSummary::from));
            if page.next_page_token.is_empty() {
                return Ok(Sessions { header: page.header.into(), sessions, now: time(page.now_unix_ms) });
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Gives back a lock by its name and token, without a guard. False: it was free already.
    pub async fn unlock(&self, name: impl Into<String>, token: i64) -> Result<bool, Error> {
        self.unlock_all(&[name.into()], token).await
    }

    /// Repeating it changes nothing: it names the token.
    pub(crate) async fn unlock_all(&self, names: &[String], token: i64) -> Result<bool, Error> {
        let [name, more @ ..] = names else { return Ok(false) };
        let request = proto::UnlockRequest {
            name: name.clone(),
            more_names: more.to_vec(),
            fencing_token: token,
            lease_id: None,
        };
        let call = |channel| {
            let request = request.clone();
            async move { LockServiceClient::new(channel).unlock(request).await }
        };
        let kind = Kind { name: "unlock", idempotent: true, unlimited: false };
        Ok(self.connections.call(kind, call).await?.released)
    }

    /// An operator ends the tenure that has this token. Recorded as such. Repeating it changes nothing.
    pub async fn force_release(&self, name: impl Into<String>, token: i64) -> Result<Option<Holder>, Error> {
        let request = proto::ForceReleaseRequest { name: name.into(), fencing_token: token };
        let call = |channel| {
            let request = request.clone();
            async move { LockServiceClient::new(channel).force_release(request).await }
        };
        Ok(self.connections.call(Kind::write("force release"), call).await?.released.map(Holder::from))
    }

    /// Forgets the recent holders of a lock that is free; gives how many there were.
    pub async fn forget_lock(&self, name: impl Into<String>) -> Result<u64, Error> {
        let request = proto::DeleteRequest { name: name.into() };
        let call = |channel| {
            let request = request.clone();
            async move { LockServiceClient::new(channel).delete(request).await }
        };
        Ok(self.connections.call(Kind::write("delete"), call).await?.forgotten)
    }
}

/// A time of the leader's clock; none for 0.
pub(crate) fn time(unix_ms: i64) -> Option<SystemTime> {
    let ms = u64::try_from(unix_ms).ok().filter(|ms| *ms > 0)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

impl From<Option<proto::Header>> for Header {
    fn from(header: Option<proto::Header>) -> Header {
        let header = header.unwrap_or_default();
        Header {
            cluster: header.cluster_id,
            member: header.member_id,
            revision: header.revision,
            term: header.raft_term,
        }
    }
}

impl From<proto::Holder> for Holder {
    fn from(holder: proto::Holder) -> Holder {
        Holder {
            mode: Mode::from_proto(holder.mode(), holder.slots),
            key: holder.key,
            id: holder.holder_id,
            owner: holder.owner,
            token: holder.fencing_token,
            lease: holder.lease.unwrap_or_default().into(),
            slot: holder.slot,
            together_with: holder.together_with,
            metadata: holder.metadata,
            create_revision: holder.create_revision,
            mod_revision: holder.mod_revision,
            version: holder.version,
            joined: time(holder.joined_unix_ms),
            granted: time(holder.granted_unix_ms),
        }
    }
}

impl From<proto::Lease> for LeaseInfo {
    fn from(lease: proto::Lease) -> LeaseInfo {
        LeaseInfo {
            state: match lease.state() {
                proto::lease::State::Unknown => LeaseState::Unknown,
                proto::lease::State::Created => LeaseState::Created,
                proto::lease::State::Active => LeaseState::Active,
                proto::lease::State::Expiring => LeaseState::Expiring,
                proto::lease::State::Expired => LeaseState::Expired,
            },
            id: lease.id,
            client: lease.client_id,
            granted_ttl: duration(lease.granted_ttl_ms),
            remaining_ttl: duration(lease.remaining_ttl_ms),
            expiry: time(lease.expiry_unix_ms),
            keys: lease.keys,
        }
    }
}

impl From<proto::Waiter> for Waiter {
    fn from(waiter: proto::Waiter) -> Waiter {
        Waiter {
            entry: waiter.entry.unwrap_or_default().into(),
            predecessor: waiter.predecessor_key,
            age: duration(waiter.age_ms),
        }
    }
}

impl From<proto::RecentHolder> for RecentHolder {
    fn from(recent: proto::RecentHolder) -> RecentHolder {
        let end = match proto::recent_holder::End::try_from(recent.end) {
            Ok(proto::recent_holder::End::Released) => End::Released,
            Ok(proto::recent_holder::End::Expired) => End::Expired,
            Ok(proto::recent_holder::End::Revoked) => End::Revoked,
            Ok(proto::recent_holder::End::Forced) => End::Forced,
            Ok(proto::recent_holder::End::Left) => End::Left,
            Err(_) => End::Other,
        };
        let holder = recent.holder.unwrap_or_default().into();
        RecentHolder { holder, end, ended: time(recent.ended_unix_ms) }
    }
}

impl From<proto::LockSummary> for LockSummary {
    fn from(lock: proto::LockSummary) -> LockSummary {
        LockSummary {
            mode: Mode::from_proto(lock.mode(), lock.slots),
            name: lock.name,
            holder: lock.holder.map(Holder::from),
            holders: lock.holders,
            waiting: lock.waiting,
        }
    }
}

impl From<proto::SessionSummary> for SessionSummary {
    fn from(session: proto::SessionSummary) -> SessionSummary {
        SessionSummary {
            client: session.client_id,
            lease: session.lease.unwrap_or_default().into(),
            address: session.address,
            connected_since: time(session.connected_since_unix_ms),
            last_seen: time(session.last_seen_unix_ms),
            locks_held: session.locks_held,
            locks_awaited: session.locks_awaited,
            watches: session.watches,
        }
    }
}
