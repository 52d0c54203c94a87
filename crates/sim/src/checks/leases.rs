//! A lease lives as long as its holder was promised, across pauses and deaths, and not for ever.

use std::collections::BTreeMap;

use tenure_machine::{Command, LeaseId, Reply};
use tenure_replica::Answered;

use super::{Check, Context, Seen};
use crate::request::Request;

/// Clocks are read in whole milliseconds.
pub(super) const GRAIN_US: u64 = 1000;

#[derive(Default)]
pub struct Leases {
    /// No expiry before this was promised to a holder.
    promised_us: BTreeMap<LeaseId, u64>,
    /// When the member may propose a lease's end at the earliest, by its own rules.
    due_us: BTreeMap<LeaseId, u64>,
}

impl Check for Leases {
    fn name(&self) -> &'static str {
        "E1/E3: no lease ends before its time, nor long after"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let now_us = context.now_us;
        let model = &context.reference.model;
        match seen {
            // Nobody could renew while the member was down: everything begins anew, with a margin.
            Seen::Booted => {
                let margin_ms = 2 * context.plan.replica.election_max_ms;
                self.due_us =
                    model.leases().map(|(lease, ttl_ms)| (lease, now_us + (ttl_ms + margin_ms) * 1000)).collect();
            }
            Seen::Applied { command: Some(Command::LeaseGrant(grant)), outcome } if outcome.reply.is_ok() => {
                self.due_us.insert(grant.lease, now_us + grant.ttl_ms * 1000);
            }
            Seen::Logged { command: Command::LeaseExpire { leases, .. } } => {
                for lease in leases {
                    let due_us = self.due_us.get(lease).copied().unwrap_or(0);
                    if now_us + GRAIN_US < due_us {
                        return Err(format!("the end of lease {lease:x} is proposed {} us early", due_us - now_us));
                    }
                    self.unbroken(*lease, now_us)?;
                }
            }
            Seen::Applied { command: Some(Command::LeaseExpire { leases, .. }), .. } => {
                for lease in leases.iter().filter(|lease| model.lease(**lease).is_none()) {
                    self.unbroken(*lease, now_us)?;
                }
            }
            Seen::Answered { call, answer, within, .. } => match (&call.request, &answer.result) {
                (Request::Propose(_), Ok(Answered::Reply(Reply::LeaseGranted { lease, ttl_ms }))) => {
                    self.promise(*lease, now_us + ttl_ms * 1000);
                }
                (Request::KeepAlive(lease), Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) })) => {
                    if model.lease_within(*lease, within) != Some(*ttl_ms) {
                        return Err(format!("lease {lease:x} was kept alive for {ttl_ms} ms, but is not there"));
                    }
                    self.promise(*lease, now_us + ttl_ms * 1000);
                    self.due_us.insert(*lease, now_us + ttl_ms * 1000);
                }
                (Request::KeepAlive(lease), Ok(Answered::KeptAlive { ttl_ms: None }))
                | (Request::TimeToLive(lease), Ok(Answered::LeaseTimeToLive(None)))
                    if !model.lease_missing_within(*lease, within) =>
                {
                    return Err(format!("lease {lease:x} is said to be gone, but is there"));
                }
                (Request::TimeToLive(lease), Ok(Answered::LeaseTimeToLive(Some(status)))) => {
                    let most_ms = status.ttl_ms + 2 * context.plan.replica.election_max_ms;
                    let promised_us = self.promised_us.get(lease).copied().unwrap_or(0);
                    if model.lease_within(*lease, within) != Some(status.ttl_ms)
                        || status.remaining_ms > most_ms
                        || now_us + status.remaining_ms * 1000 + GRAIN_US < promised_us
                    {
                        return Err(format!("{status:?}, but until {promised_us} us was promised"));
                    }
                }
                _ => {}
            },
            Seen::Ended => {
                if let Some((lease, ttl_ms)) = model.leases().next() {
                    return Err(format!("lease {lease:x} of {ttl_ms} ms is still there, and nobody renews it"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Leases {
    fn promise(&mut self, lease: LeaseId, until_us: u64) {
        let promised_us = self.promised_us.entry(lease).or_default();
        *promised_us = until_us.max(*promised_us);
    }

    fn unbroken(&self, lease: LeaseId, now_us: u64) -> Result<(), String> {
        let promised_us = self.promised_us.get(&lease).copied().unwrap_or(0);
        if now_us + GRAIN_US < promised_us {
            return Err(format!("lease {lease:x} expires {} us before what was promised", promised_us - now_us));
        }
        Ok(())
    }
}
