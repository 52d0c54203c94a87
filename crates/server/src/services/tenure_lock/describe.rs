//! What there is to know of locks, holders, waiters and sessions, put together from a view.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tenure_api::tenure::v1::recent_holder::End;
use tenure_api::tenure::v1::{
    DescribeResponse, Holder, Lease, LockSummary, Mode as ModeMessage, RecentHolder, SessionSummary, Waiter, lease,
};
use tenure_machine::{LockEnd, LockEntry, Mode, View};
use tenure_replica::LeaseStatus;

/// Entries of one queue that are told at most.
pub const WAITERS: usize = 10_000;
const PAGE_LIMIT: usize = 1000;

pub fn limit(asked: u32) -> usize {
    match asked as usize {
        0 => PAGE_LIMIT,
        asked => asked.min(PAGE_LIMIT),
    }
}

/// All but the header. `times` are those of the queue's leases, in order.
pub fn lock(view: &View, name: &[u8], times: &[Option<LeaseStatus>]) -> DescribeResponse {
    let now_unix_ms = now_unix_ms();
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    let mut predecessor_key = String::new();
    for (found, time) in view.lock_queue(name).zip(times) {
        let described = entry_in(view, found, time.as_ref());
        let key = described.key.clone();
        if found.granted_wall_ms.is_some() {
            holders.push(described);
        } else {
            let age_ms = now_unix_ms.saturating_sub(found.joined_wall_ms as i64).max(0);
            let predecessor_key = std::mem::take(&mut predecessor_key);
            waiters.push(Waiter { entry: Some(described), predecessor_key, age_ms });
        }
        predecessor_key = key;
    }
    let recent = view.recent_holders().rev().filter(|holder| holder.name() == name).map(recent).collect();
    DescribeResponse { header: None, name: text(name), holders, waiters, recent, now_unix_ms }
}

/// What the entry itself records. Its lease is named and its state left unknown: only the leader knows that.
pub fn entry(entry: &LockEntry) -> Holder {
    let (mode, slots) = mode(entry.mode);
    let is_granted = entry.granted_wall_ms.is_some();
    Holder {
        key: text(&entry.key),
        holder_id: text(&entry.holder),
        owner: text(&entry.owner),
        fencing_token: if is_granted { entry.token } else { 0 },
        lease: Some(Lease { id: entry.lease, ..Lease::default() }),
        mode: mode.into(),
        slots,
        metadata: Bytes::copy_from_slice(&entry.metadata),
        create_revision: if is_granted { entry.token } else { 0 },
        joined_unix_ms: entry.joined_wall_ms as i64,
        granted_unix_ms: entry.granted_wall_ms.map_or(0, |wall_ms| wall_ms as i64),
        slot: entry.slot,
        together_with: entry.together.iter().map(|name| text(name)).collect(),
        ..Holder::default()
    }
}

/// What the entry records, and what its key and its lease add to it. `time` is the leader's answer about the lease;
/// `None` = it has ended.
pub fn entry_in(view: &View, found: &LockEntry, time: Option<&LeaseStatus>) -> Holder {
    let mut described = entry(found);
    fill_lease_time(described.lease.as_mut(), time);
    // The revisions of a waiting key are its token, which is disclosed at the grant.
    let is_granted = found.granted_wall_ms.is_some();
    if let Some(kv) = view.get(&found.key).filter(|kv| is_granted && kv.create_revision == found.token) {
        (described.mod_revision, described.version) = (kv.mod_revision, kv.version);
    }
    if let Some(known) = view.lease(found.lease) {
        if described.holder_id.is_empty() {
            described.holder_id = text(&known.client);
        }
        if let Some(lease) = &mut described.lease {
            lease.client_id = text(&known.client);
            lease.keys = known.keys.iter().map(|key| text(key)).collect();
        }
    }
    described
}

pub fn recent(holder: &tenure_machine::RecentHolder) -> RecentHolder {
    let (mode, slots) = mode(holder.mode);
    let described = Holder {
        key: text(&holder.key),
        holder_id: text(&holder.holder),
        owner: text(&holder.owner),
        fencing_token: holder.token,
        lease: Some(Lease { id: holder.lease, ..Lease::default() }),
        mode: mode.into(),
        slots,
        metadata: Bytes::copy_from_slice(&holder.metadata),
        create_revision: holder.token,
        joined_unix_ms: holder.joined_wall_ms as i64,
        granted_unix_ms: holder.granted_wall_ms.unwrap_or(0) as i64,
        ..Holder::default()
    };
    RecentHolder { holder: Some(described), end: end(holder.cause).into(), ended_unix_ms: holder.ended_wall_ms as i64 }
}

pub fn end(cause: LockEnd) -> End {
    match cause {
        LockEnd::Released => End::Released,
        LockEnd::Left => End::Left,
        LockEnd::LeaseExpired => End::Expired,
        LockEnd::LeaseRevoked => End::Revoked,
        LockEnd::Forced => End::Forced,
    }
}

pub fn end_in_words(cause: LockEnd) -> &'static str {
    match cause {
        LockEnd::Released => "its key was deleted",
        LockEnd::Left => "it was given up",
        LockEnd::LeaseExpired => "its lease has expired",
        LockEnd::LeaseRevoked => "its lease was revoked",
        LockEnd::Forced => "an operator has ended it",
    }
}

/// Adds the leader's answer about a lease: the time that is left. `None` = the lease has ended.
pub fn fill_lease_time(lease: Option<&mut Lease>, time: Option<&LeaseStatus>) {
    let Some(lease) = lease else { return };
    let Some(time) = time else {
        lease.state = lease::State::Expired.into();
        return;
    };
    lease.granted_ttl_ms = time.ttl_ms as i64;
    lease.remaining_ttl_ms = time.remaining_ms as i64;
    lease.expiry_unix_ms = now_unix_ms() + time.remaining_ms as i64;
    lease.state = match time.remaining_ms < time.ttl_ms / 3 {
        true => lease::State::Expiring.into(),
        false if !time.renewed => lease::State::Created.into(),
        false => lease::State::Active.into(),
    };
}

/// Names beneath `prefix`, behind the last one of the page before.
pub struct Page {
    pub prefix: Bytes,
    pub after: Bytes,
    pub limit: usize,
}

/// The names of one page, and the token of the next.
pub fn page(view: &View, page: &Page) -> (Vec<Bytes>, String) {
    let from = page.prefix.clone().max(page.after.clone());
    let names = view.lock_names(&from).take_while(|name| name.starts_with(&page.prefix));
    let names = names.skip_while(|name| !page.after.is_empty() && **name <= page.after[..]);
    let mut names: Vec<_> = names.take(page.limit + 1).map(Bytes::copy_from_slice).collect();
    let is_last = names.len() <= page.limit;
    names.truncate(page.limit);
    let next = if is_last { String::new() } else { names.last().map_or(String::new(), |name| text(name)) };
    (names, next)
}

pub fn summaries(view: &View, names: &[Bytes], times: &[Option<LeaseStatus>]) -> Vec<LockSummary> {
    let summary = |(name, time): (&Bytes, &Option<LeaseStatus>)| {
        let (entries, granted) = view.lock_counts(name);
        let first = view.lock_queue(name).next();
        let (mode, slots) = mode(first.map_or(Mode::Exclusive, |first| first.mode));
        LockSummary {
            name: text(name),
            holder: first.filter(|_| granted > 0).map(|first| entry_in(view, first, time.as_ref())),
            holders: granted as u64,
            waiting: (entries - granted) as u64,
            mode: mode.into(),
            slots,
        }
    };
    names.iter().zip(times).map(summary).collect()
}

/// Leases that somebody named himself for, or that hold or wait for locks; those after the lease `after`.
pub fn sessions(view: &View, after: i64, limit: usize) -> (Vec<SessionSummary>, String) {
    let mut found = Vec::new();
    for known in view.leases().filter(|known| known.lease > after) {
        let entries: Vec<_> = view.lease_entries(known.lease).collect();
        if known.client.is_empty() && entries.is_empty() {
            continue;
        }
        if found.len() == limit {
            let last = found.last().and_then(|last: &SessionSummary| last.lease.as_ref()).map_or(0, |lease| lease.id);
            return (found, format!("{last:x}"));
        }
        let held = entries.iter().filter(|(_, entry)| entry.granted_wall_ms.is_some()).count();
        // One that gave no name is known by what its entries say.
        let named: BTreeSet<String> = entries.iter().map(|(_, entry)| text(&entry.holder)).collect();
        let client_id = match known.client.is_empty() {
            true => named.into_iter().next_back().unwrap_or_default(),
            false => text(&known.client),
        };
        found.push(SessionSummary {
            client_id: client_id.clone(),
            lease: Some(Lease {
                id: known.lease,
                client_id,
                keys: known.keys.iter().map(|key| text(key)).collect(),
                ..Lease::default()
            }),
            locks_held: held as u64,
            locks_awaited: (entries.len() - held) as u64,
            ..SessionSummary::default()
        });
    }
    (found, String::new())
}

fn mode(mode: Mode) -> (ModeMessage, u32) {
    match mode {
        Mode::Exclusive => (ModeMessage::Exclusive, 0),
        Mode::Shared => (ModeMessage::Shared, 0),
        Mode::Slots(slots) => (ModeMessage::Semaphore, slots),
        Mode::Barrier(parties) => (ModeMessage::Barrier, parties),
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn now_unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
