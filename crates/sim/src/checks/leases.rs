//! A lease lives for as long as its holder was promised, across leaders, pauses and deaths, and not forever.
//!
//! A promise counts from the moment when the holder *asked*: when the answer arrives, part of the time is gone.
//!
//! What it would not notice: a lease that lives too long while faults strike, because only in the silent phase must every
//! lease end; a lease that is renewed although no client asked for it; a remaining time that is too low.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Command, LeaseId, Reply};
use tenure_replica::Answered;

use super::{Check, Context, Seen, is_of_this_life, slack_us};
use crate::model::Lease;
use crate::request::Request;

#[derive(Default)]
pub struct Leases {
    /// No end before this was promised to a holder, and for how long.
    promised: BTreeMap<LeaseId, Promise>,
    /// Lock calls that found their places at level 1 or later: they have renewed their leases.
    renewing: BTreeSet<u128>,
}

#[derive(Default, Clone, Copy)]
struct Promise {
    until_us: u64,
    span_us: u64,
}

impl Check for Leases {
    fn name(&self) -> &'static str {
        "E1/E3: no lease ends before its time, nor long after"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let now_us = context.now_us;
        let model = &context.reference.model;
        match seen {
            Seen::Applied { command: Some(Command::Lock(lock)), outcome, .. } => {
                let is_renewed = matches!(&outcome.reply, Ok(Reply::Lock(reply)) if reply.renewed);
                self.renewing.extend(Some(lock.call).filter(|_| is_renewed && model.level() > 0));
            }
            Seen::Applied { command: Some(Command::LeaseExpire { leases, .. }), outcome, .. } => {
                if !matches!(outcome.reply, Ok(Reply::LeasesExpired { expired: 1.. })) {
                    return Ok(());
                }
                for lease in leases.iter().filter(|lease| model.lease(**lease).is_none()) {
                    let Promise { until_us, span_us } = self.promised.get(lease).copied().unwrap_or_default();
                    if now_us + slack_us(span_us, context.plan) < until_us {
                        return Err(format!("lease {lease:x} ends {} us before what was promised", until_us - now_us));
                    }
                }
            }
            Seen::Applied { command: Some(Command::LeaseGrant(grant)), outcome, .. } if outcome.reply.is_ok() => {
                self.promised.remove(&grant.lease);
            }
            Seen::Answered { call, answer, .. } => {
                // Only the leader knows, and it answers from what it had applied since it was asked.
                let since = call.floor_index..=context.reference.applied();
                match (&call.request, &answer.result) {
                    (Request::Propose(_), Ok(Answered::Reply(Reply::LeaseGranted { lease, ttl_ms }))) => {
                        // That life may be over by now, and the id be of another one.
                        let is_it = |life: &Lease| life.granted > call.floor_index && life.ttl_ms == *ttl_ms;
                        if model.lease(*lease).is_some_and(is_it) {
                            self.promise(*lease, call.issued_us, ttl_ms * 1000);
                        }
                    }
                    (Request::Lock(lock), Ok(Answered::Lock(reply))) if reply.renewed => {
                        let life = model.lease(lock.lease).filter(|life| life.granted <= call.floor_index);
                        if let Some(life) = life.filter(|_| self.renewing.contains(&lock.call)) {
                            self.promise(lock.lease, call.issued_us, life.ttl_ms * 1000);
                        }
                    }
                    (Request::KeepAlive { lease, .. }, Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) })) => {
                        if !model.has_lease_within(*lease, *ttl_ms, &since) {
                            return Err(format!("lease {lease:x} was kept alive for {ttl_ms} ms, but is not there"));
                        }
                        if is_of_this_life(call, *lease, context) {
                            self.promise(*lease, call.issued_us, ttl_ms * 1000);
                        }
                    }
                    (Request::KeepAlive { lease, .. }, Ok(Answered::KeptAlive { ttl_ms: None }))
                    | (Request::TimeToLive(lease), Ok(Answered::LeaseTimeToLive(None)))
                        if !model.lease_missing_within(*lease, &since) =>
                    {
                        return Err(format!("lease {lease:x} is said to be gone, but is there"));
                    }
                    (Request::LeaseTimes(leases), Ok(Answered::LeaseTimes(times))) => {
                        if times.len() != leases.len() {
                            return Err(format!("{leases:?} were asked for, {times:?} is answered"));
                        }
                        for (lease, status) in leases.iter().zip(times) {
                            let is_so = match status {
                                None => model.lease_missing_within(*lease, &since),
                                Some(status) => {
                                    let most_ms = status.ttl_ms + 2 * context.plan.replica.election_max_ms;
                                    status.lease == *lease
                                        && model.has_lease_within(*lease, status.ttl_ms, &since)
                                        && status.remaining_ms <= most_ms
                                }
                            };
                            if !is_so {
                                return Err(format!("{status:?} is told of lease {lease:x}, but it is not so"));
                            }
                        }
                    }
                    (Request::TimeToLive(lease), Ok(Answered::LeaseTimeToLive(Some(status)))) => {
                        let most_ms = status.ttl_ms + 2 * context.plan.replica.election_max_ms;
                        if !model.has_lease_within(*lease, status.ttl_ms, &since) || status.remaining_ms > most_ms {
                            return Err(format!("{status:?}, but the lease is not so"));
                        }
                    }
                    _ => {}
                }
            }
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
    fn promise(&mut self, lease: LeaseId, from_us: u64, span_us: u64) {
        let promise = self.promised.entry(lease).or_default();
        if from_us + span_us > promise.until_us {
            *promise = Promise { until_us: from_us + span_us, span_us };
        }
    }
}
