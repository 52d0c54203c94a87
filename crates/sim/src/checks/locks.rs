//! Locks as their clients see them: who was told that it holds what, and who may rely on it.
//!
//! A holder may rely on its lock from the answer on until it asks for the end of it, or somebody else asks
//! for something that could end it, or the time that its lease was promised is over. Only what clients
//! asked and were told counts here; that the queue itself is right is `state`'s business.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Command, Keys, LeaseId, Mode, Op, Reply, Revision, Txn};
use tenure_replica::{Answered, CallId, Failure};

use super::leases::GRAIN_US;
use super::{Check, Context, Seen};
use crate::request::Request;

#[derive(Default)]
pub struct Locks {
    holds: BTreeMap<Vec<u8>, Vec<Hold>>,
    /// The highest token that was told for each name.
    tokens: BTreeMap<Vec<u8>, Revision>,
    promised_us: BTreeMap<LeaseId, u64>,
    /// Calls under way that may end places in queues.
    enders: BTreeMap<CallId, Ender>,
    /// Keys whose lease somebody may have exchanged: such a place does not end with its lease.
    overwritten: BTreeSet<Vec<u8>>,
}

struct Hold {
    key: Vec<u8>,
    token: Revision,
    mode: Mode,
    lease: LeaseId,
    may_have_ended: bool,
}

#[derive(Clone)]
enum Ender {
    Deletes(Vec<Keys>),
    Revokes(LeaseId),
    /// Whoever has this token; nobody else.
    Unlocks(Revision),
    /// A call that was given up leaves the place that it joined last, whoever else relies on it.
    Leaves {
        name: Vec<u8>,
        lease: LeaseId,
    },
}

impl Ender {
    fn may_end(&self, hold: &Hold) -> bool {
        match self {
            Ender::Deletes(keys) => keys.iter().any(|keys| keys.contains(&hold.key)),
            Ender::Revokes(revoked) => *revoked == hold.lease,
            Ender::Unlocks(token) => *token == hold.token,
            Ender::Leaves { name, lease: left } => *left == hold.lease && hold.key.starts_with(name),
        }
    }
}

impl Check for Locks {
    fn name(&self) -> &'static str {
        "L1/L2/L4/L6: who holds a lock"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            // What was under way is decided before anything is answered again.
            Seen::Booted => self.enders.clear(),
            Seen::Issued { id, call } => self.issued(*id, &call.request),
            Seen::Cancelled { id, call } => self.left(*id, &call.request),
            Seen::Answered { id, call, answer, within } => {
                self.enders.remove(id);
                match (&call.request, &answer.result) {
                    (Request::Propose(_), Ok(Answered::Reply(Reply::LeaseGranted { lease, ttl_ms }))) => {
                        self.promise(*lease, context.now_us + ttl_ms * 1000);
                    }
                    (Request::KeepAlive(lease), Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) })) => {
                        self.promise(*lease, context.now_us + ttl_ms * 1000);
                    }
                    (Request::Lock(_), Err(Failure::TimedOut)) => self.left(*id, &call.request),
                    (Request::Lock(lock), Ok(Answered::Lock(reply))) => {
                        let model = &context.reference.model;
                        let Some(stay) = model.stay(&reply.key, reply.token) else {
                            return Err(format!("{reply:?}, but there never was such a place"));
                        };
                        let granted = stay.granted.is_some_and(|at| at <= *within.end());
                        let stands = stay.ended.is_none_or(|(at, _)| at > *within.start());
                        if !reply.granted || !granted || !stands || stay.lease != lock.lease {
                            return Err(format!("{reply:?}, but the place is {stay:?}"));
                        }
                        if model.lease_within(lock.lease, within).is_none() {
                            return Err(format!("{reply:?} to the dead lease {:x}", lock.lease));
                        }
                        let hold = Hold {
                            key: reply.key.to_vec(),
                            token: reply.token,
                            // As the place was made; a later call for it may name another.
                            mode: stay.mode,
                            lease: lock.lease,
                            may_have_ended: false,
                        };
                        return self.granted(&lock.name, hold, context.now_us);
                    }
                    (Request::Lock(lock), Err(Failure::EntryEnded(_))) => {
                        let Some((reply, _)) = call.index.and_then(|index| context.reference.result(index)) else {
                            return Err(format!("{lock:?} was never in a queue, and is told that its place is gone"));
                        };
                        let model = &context.reference.model;
                        // A key that somebody took the lease from outlives its owner; that one is told all the same.
                        if let Ok(Reply::Lock(reply)) = reply
                            && model.stay(&reply.key, reply.token).is_none_or(|stay| stay.ended.is_none())
                            && model.lease(lock.lease).is_some()
                        {
                            return Err(format!("{reply:?} is still there, but its caller is told that it is gone"));
                        }
                    }
                    (Request::Lock(_), Ok(other)) => return Err(format!("a lock is answered {other:?}")),
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Locks {
    fn promise(&mut self, lease: LeaseId, until_us: u64) {
        let promised_us = self.promised_us.entry(lease).or_default();
        *promised_us = until_us.max(*promised_us);
    }

    fn issued(&mut self, id: CallId, request: &Request) {
        let mut touched = Vec::new();
        let ender = match request {
            Request::Propose(Command::LeaseRevoke { lease }) => Ender::Revokes(*lease),
            Request::Propose(Command::Unlock(unlock)) => Ender::Unlocks(unlock.token),
            Request::Propose(Command::Delete(delete)) => Ender::Deletes(vec![delete.keys.clone()]),
            Request::Propose(Command::Leave(leave)) => Ender::Deletes(vec![Keys::One(leave.key.clone())]),
            // A put may hang the key on another lease, and end it with that one.
            Request::Propose(Command::Put(put)) => {
                touched.push(put.key.to_vec());
                Ender::Deletes(vec![Keys::One(put.key.clone())])
            }
            Request::Propose(Command::Txn(txn)) => {
                let mut keys = Vec::new();
                written(txn, &mut keys, &mut touched);
                Ender::Deletes(keys)
            }
            _ => return,
        };
        self.overwritten.extend(touched.into_iter().filter(|key| key.starts_with(b"lock/")));
        self.begin(id, ender);
    }

    /// The caller waits no more: the member gives up the place that it may have, some time later.
    fn left(&mut self, id: CallId, request: &Request) {
        let Request::Lock(lock) = request else { return };
        let ender = Ender::Leaves { name: lock.name.to_vec(), lease: lock.lease };
        self.begin(id, ender);
    }

    fn begin(&mut self, id: CallId, ender: Ender) {
        for hold in self.holds.values_mut().flatten() {
            hold.may_have_ended |= ender.may_end(hold);
        }
        self.enders.insert(id, ender);
    }

    fn granted(&mut self, name: &[u8], mut hold: Hold, now_us: u64) -> Result<(), String> {
        let highest = self.tokens.entry(name.to_vec()).or_default();
        if hold.mode == Mode::Exclusive && hold.token < *highest {
            return Err(format!("token {} was granted after token {highest}", hold.token));
        }
        *highest = hold.token.max(*highest);
        hold.may_have_ended =
            self.overwritten.contains(&hold.key) || self.enders.values().any(|ender| ender.may_end(&hold));
        let promised_us = &self.promised_us;
        let holds = self.holds.entry(name.to_vec()).or_default();
        holds.retain(|other| {
            let promised_us = promised_us.get(&other.lease).copied().unwrap_or(0);
            !other.may_have_ended
                && promised_us > now_us + GRAIN_US
                && (&other.key, other.token) != (&hold.key, hold.token)
        });
        if let Some(other) = holds.iter().find(|other| hold.mode == Mode::Exclusive || other.mode != hold.mode) {
            let (name, token, key) = (String::from_utf8_lossy(name), other.token, String::from_utf8_lossy(&other.key));
            return Err(format!("{name} is granted with token {} while {key} holds it with {token}", hold.token));
        }
        if let Mode::Slots(slots) | Mode::Barrier(slots) = hold.mode {
            let taken = holds.iter().filter(|other| other.mode == hold.mode).count();
            if taken >= slots as usize {
                return Err(format!("{} holders share {slots} slots", taken + 1));
            }
        }
        holds.push(hold);
        Ok(())
    }
}

/// The keys that a transaction may delete or overwrite, and those that it may put.
fn written(txn: &Txn, keys: &mut Vec<Keys>, touched: &mut Vec<Vec<u8>>) {
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Delete(delete) => keys.push(delete.keys.clone()),
            Op::Put(put) => {
                keys.push(Keys::One(put.key.clone()));
                touched.push(put.key.to_vec());
            }
            Op::Txn(txn) => written(txn, keys, touched),
            Op::Range(_) => {}
        }
    }
}
