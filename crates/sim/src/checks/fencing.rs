//! A store beside the cluster that takes a write only if its token is not older than the newest token it has seen.
//!
//! Holders write when they are told of their grant, and whenever their client does something else. Clients of even number
//! write only while their lease was promised to last, or as long as the lifecycle of Tenure's own client lets them. The
//! others write for as long as they like. A holder that may rely on its lock is never refused, and the next holder is told
//! a higher token.
//!
//! What it would not notice: tokens of semaphores, of shared locks and of several locks taken together, which the store
//! does not check; a token that is too high but still rises; anything about signatures.

use std::collections::BTreeMap;

use tenure_machine::{Command, LeaseId, Mode, Reply, Revision};
use tenure_replica::Answered;

use super::{Check, Context, Seen, is_of_this_life, slack_us};
use crate::request::{Call, Request};

#[derive(Default)]
pub struct Fencing {
    /// The newest token that the store has taken for each name.
    newest: BTreeMap<Vec<u8>, Revision>,
    /// By client.
    holders: BTreeMap<usize, Vec<Holder>>,
    promised: BTreeMap<LeaseId, (u64, u64)>,
    /// Leases that a lifecycle keeps, and whether it lets its client work.
    kept: BTreeMap<LeaseId, bool>,
}

struct Holder {
    name: Vec<u8>,
    key: Vec<u8>,
    token: Revision,
    lease: LeaseId,
}

impl Check for Fencing {
    fn name(&self) -> &'static str {
        "L2/L3: no stale write passes the store, and no good one is refused"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Issued { call, .. } => self.write_all(call.client, context),
            Seen::Applied { command: Some(Command::LeaseGrant(grant)), outcome, .. } if outcome.reply.is_ok() => {
                self.promised.remove(&grant.lease);
                Ok(())
            }
            Seen::Believed { lease, holds, .. } => {
                self.kept.insert(*lease, *holds);
                Ok(())
            }
            Seen::Answered { call, answer, .. } => match (&call.request, &answer.result) {
                (Request::Propose(_), Ok(Answered::Reply(Reply::LeaseGranted { lease, ttl_ms })))
                | (Request::KeepAlive { lease, .. }, Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) }))
                    if is_of_this_life(call, *lease, context) =>
                {
                    let span_us = ttl_ms * 1000;
                    let promised = self.promised.entry(*lease).or_default();
                    *promised = (*promised).max((call.issued_us + span_us, span_us));
                    Ok(())
                }
                (Request::Lock(lock), Ok(Answered::Lock(reply))) => {
                    let model = &context.reference.model;
                    let fences = model.stay(&reply.key, reply.token).is_some_and(|stay| stay.mode == Mode::Exclusive);
                    if fences && reply.more_keys.is_empty() {
                        let (name, key) = (lock.name.to_vec(), reply.key.to_vec());
                        self.begin(call, Holder { name, key, token: reply.token, lease: lock.lease });
                    }
                    self.write_all(call.client, context)
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

impl Fencing {
    fn begin(&mut self, call: &Call, holder: Holder) {
        let holders = self.holders.entry(call.client).or_default();
        holders.retain(|other| (&other.key, other.token) != (&holder.key, holder.token));
        holders.push(holder);
    }

    /// Every lock that a client believes to hold is written under.
    fn write_all(&mut self, client: usize, context: &Context<'_>) -> Result<(), String> {
        let Some(holders) = self.holders.get_mut(&client) else { return Ok(()) };
        let respects = client.is_multiple_of(2);
        let (promised, kept, newest, mut refused) = (&self.promised, &self.kept, &mut self.newest, None);
        holders.retain(|holder| {
            let (until_us, span_us) = promised.get(&holder.lease).copied().unwrap_or_default();
            let is_promised = context.now_us + slack_us(span_us, context.plan) < until_us;
            let is_sure = kept.get(&holder.lease).copied().unwrap_or(is_promised);
            if respects && !is_sure {
                return false;
            }
            let newest = newest.entry(holder.name.clone()).or_default();
            if holder.token >= *newest {
                *newest = holder.token;
                return true;
            }
            // Somebody may have ended it: its holder, an operator, whoever deletes keys.
            let stay = context.reference.model.stay(&holder.key, holder.token);
            if is_sure && stay.is_some_and(|stay| stay.ended.is_none()) {
                refused = Some((holder.name.clone(), holder.token, *newest));
            }
            false
        });
        match refused {
            Some((name, token, newest)) => {
                let name = String::from_utf8_lossy(&name).into_owned();
                Err(format!("{name} is held with token {token}, and the store has seen {newest}"))
            }
            None => Ok(()),
        }
    }
}
