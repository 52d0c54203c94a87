//! `tenure why`: who holds a lock, who waits for it, and what the holder itself waits for.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tenure_client::{Client, Holder, LockDescription};

use super::asking::{age, is_made_up, parse_name, short};
use super::people;
use crate::bytes_text::printable;
use crate::output::{Record, note};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure why deploy/prod
  tenure why deploy/prod --force-release 12       as an operator, take it from the holder with that token
  tenure why deploy/prod -o json";

/// Tell who holds a lock, who waits for it, and why
///
/// Shows the holder, since when and on which lease; the waiters in the order of their turn; what the
/// holder itself waits for; and how recent tenures ended.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Why {
    /// The lock's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// First end the tenure with this token, as an operator; recorded as such
    #[arg(long, value_name = "TOKEN", value_parser = clap::value_parser!(i64).range(1..))]
    force_release: Option<i64>,
}

/// A lock that a holder waits for, and who has that one.
struct Blocked {
    holder: String,
    lock: String,
    held_by: Vec<String>,
}

impl Why {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        if let Some(token) = self.force_release {
            client.force_release(&self.name, token).await?;
            note(format_args!("took {} from the holder with token {token}", self.name));
        }
        let lock = client.describe_lock(&self.name).await?;
        let blocked = blocked(&client, &lock).await?;
        Record { sentence: text(&lock, &blocked), json: document(&lock, &blocked) }.print(format)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The lease of a holder has a key in each queue that it stands in.
async fn blocked(client: &Client, lock: &LockDescription) -> anyhow::Result<Vec<Blocked>> {
    let mut blocked = Vec::new();
    for holder in &lock.holders {
        let suffix = format!("/{:x}", holder.lease.id);
        let names = holder.lease.keys.iter().filter_map(|key| key.strip_suffix(&suffix));
        for name in names.filter(|name| *name != lock.name) {
            let other = client.describe_lock(name).await?;
            if other.waiters.iter().any(|waiter| waiter.entry.lease.id == holder.lease.id) {
                let held_by = other.holders.iter().map(people::name).collect();
                blocked.push(Blocked { holder: people::name(holder), lock: name.to_owned(), held_by });
            }
        }
    }
    Ok(blocked)
}

fn text(lock: &LockDescription, blocked: &[Blocked]) -> String {
    let name = printable(lock.name.as_bytes());
    let mut lines = Vec::new();
    match lock.holders.as_slice() {
        [] => lines.push(match missing(lock) {
            Some((parties, missing)) => format!("{name} is a barrier of {parties}: {missing} more must come"),
            None => format!("{name} is free"),
        }),
        holders => {
            for holder in holders {
                lines.push(format!("{name} is held by {}", holder_line(holder, lock)));
            }
        }
    }
    for Blocked { holder, lock, held_by } in blocked {
        let whose = match held_by.is_empty() {
            true => "has no holder yet".to_owned(),
            false => format!("{} holds", held_by.join(", ")),
        };
        lines.push(format!("  {holder} itself waits for {lock}, which {whose}"));
    }
    match lock.waiters.len() {
        0 => lines.push("nobody waits for it".to_owned()),
        1 => lines.push("one waits for it:".to_owned()),
        waiters => lines.push(format!("{waiters} wait for it, in this order:")),
    }
    for (place, waiter) in lock.waiters.iter().enumerate() {
        let entry = &waiter.entry;
        let lease = short(entry.lease.remaining_ttl);
        lines.push(format!(
            "  {}. {}, for {}{}, lease {:x} ({lease} left)",
            place + 1,
            people::name(entry),
            short(waiter.age),
            asked_for(entry),
            entry.lease.id,
        ));
    }
    if !lock.recent.is_empty() {
        lines.push("before:".to_owned());
    }
    for recent in &lock.recent {
        let ended = age(recent.ended, lock.now).map_or_else(String::new, |age| format!(" {age} ago"));
        let (holder, token) = (people::name(&recent.holder), recent.holder.token);
        lines.push(format!("  {holder}, token {token}, {}{ended}", people::end(recent.end)));
    }
    lines.join("\n")
}

/// Of a barrier whose round is not complete: how many parties it has, and how many of them are missing.
fn missing(lock: &LockDescription) -> Option<(u32, usize)> {
    let mode = lock.waiters.first()?.entry.mode;
    let tenure_client::Mode::Barrier { parties } = mode else { return None };
    let there = lock.waiters.iter().take_while(|waiter| waiter.entry.mode == mode).count();
    Some((parties, (parties as usize).saturating_sub(there)))
}

fn holder_line(holder: &Holder, lock: &LockDescription) -> String {
    let held = age(holder.granted, lock.now).map_or_else(String::new, |age| format!(" for {age}"));
    let (remaining, granted) = (short(holder.lease.remaining_ttl), short(holder.lease.granted_ttl));
    let metadata = match holder.metadata.as_ref() {
        [] => String::new(),
        metadata => format!(": {}", printable(metadata)),
    };
    format!(
        "{}{held}, token {}{}, lease {:x} ({remaining} of {granted} left){metadata}",
        people::name(holder),
        holder.token,
        asked_for(holder),
        holder.lease.id,
    )
}

/// What is not the usual.
fn asked_for(holder: &Holder) -> String {
    let mut words = String::new();
    if holder.mode != tenure_client::Mode::Exclusive {
        words.push_str(&format!(", {}", people::mode(holder.mode)));
    }
    if !holder.owner.is_empty() && !is_made_up(&holder.owner) {
        words.push_str(&format!(", owner {}", printable(holder.owner.as_bytes())));
    }
    if !holder.together_with.is_empty() {
        words.push_str(&format!(", together with {}", holder.together_with.join(", ")));
    }
    words
}

fn document(lock: &LockDescription, blocked: &[Blocked]) -> Value {
    let holder = |holder: &Holder| people::holder_json(holder, lock.now);
    let waiters = lock.waiters.iter().map(|waiter| {
        let mut json = holder(&waiter.entry);
        json["predecessor"] = waiter.predecessor.as_str().into();
        json["waiting_ms"] = (waiter.age.as_millis() as u64).into();
        json
    });
    let recent = lock.recent.iter().map(|recent| {
        // How long it was held counts to its end, not to now.
        let mut json = people::holder_json(&recent.holder, recent.ended);
        json["end"] = people::end(recent.end).into();
        json["ended_unix_ms"] = people::unix_ms(recent.ended);
        json
    });
    let waits = blocked
        .iter()
        .map(|blocked| json!({ "holder": blocked.holder, "waits_for": blocked.lock, "held_by": blocked.held_by }));
    json!({
        "lock": lock.name,
        "revision": lock.header.revision,
        "holders": lock.holders.iter().map(holder).collect::<Vec<_>>(),
        "holders_wait_for": waits.collect::<Vec<_>>(),
        "waiters": waiters.collect::<Vec<_>>(),
        "recent": recent.collect::<Vec<_>>(),
    })
}
