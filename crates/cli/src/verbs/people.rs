//! Those who hold, wait and held, as people and programs get to see them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tenure_client::{End, Holder, LeaseState, Mode};

use crate::bytes_text::{printable, to_json};

/// Who it is; a client of etcd's lock service has no name but its lease.
pub fn name(holder: &Holder) -> String {
    let named = [&holder.id, &holder.lease.client].into_iter().find(|text| !text.is_empty());
    named.map_or_else(|| format!("lease {:x}", holder.lease.id), |text| printable(text.as_bytes()))
}

pub fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Semaphore { slots } => format!("one of {slots}"),
        Mode::Barrier { parties } => format!("barrier of {parties}"),
    }
}

pub fn end(end: End) -> &'static str {
    match end {
        End::Released => "released",
        End::Expired => "expired",
        End::Revoked => "revoked",
        End::Forced => "forced",
        End::Left => "left",
        _ => "ended",
    }
}

pub fn lease_state(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Created => "created",
        LeaseState::Active => "active",
        LeaseState::Expiring => "expiring",
        LeaseState::Expired => "expired",
        _ => "unknown",
    }
}

pub fn unix_ms(time: Option<SystemTime>) -> Value {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_millis()).ok()).into()
}

/// Times are given as numbers that sort; `held_ms` counts up to `now`, which for an ended tenure is its end.
pub fn holder_json(holder: &Holder, now: Option<SystemTime>) -> Value {
    let ms_since = |time: Option<SystemTime>| {
        let since = now.zip(time).and_then(|(now, time)| now.duration_since(time).ok());
        Value::from(since.and_then(|since| u64::try_from(since.as_millis()).ok()))
    };
    let mut json = json!({
        "holder": name(holder),
        "token": (holder.token != 0).then_some(holder.token),
        "key": holder.key,
        "owner": holder.owner,
        "metadata": to_json(&holder.metadata),
        "lease": {
            "lease": format!("{:x}", holder.lease.id),
            "client": holder.lease.client,
            "state": lease_state(holder.lease.state),
            "granted_ms": holder.lease.granted_ttl.as_millis() as u64,
            "remaining_ms": holder.lease.remaining_ttl.as_millis() as u64,
            "expiry_unix_ms": unix_ms(holder.lease.expiry),
        },
        "create_revision": holder.create_revision,
        "mod_revision": holder.mod_revision,
        "version": holder.version,
        "joined_unix_ms": unix_ms(holder.joined),
        "granted_unix_ms": unix_ms(holder.granted),
        "held_ms": ms_since(holder.granted),
        "together_with": holder.together_with,
    });
    match holder.mode {
        Mode::Exclusive => json["mode"] = "exclusive".into(),
        Mode::Shared => json["mode"] = "shared".into(),
        Mode::Semaphore { slots } => {
            json["mode"] = "semaphore".into();
            json["slots"] = slots.into();
            json["slot"] = holder.slot.into();
        }
        Mode::Barrier { parties } => {
            json["mode"] = "barrier".into();
            json["parties"] = parties.into();
            json["slot"] = holder.slot.into();
        }
    }
    json
}
