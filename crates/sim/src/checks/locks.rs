//! Locks as their clients see them: which grants are told, and when they end.
//!
//! The comparison of machine and model sees that the queue itself is right at every index. Here it is what clients are told
//! of it. A grant is told only to a lease that lives at that index, in the mode that was asked for. No grant is told that
//! had ended before the teller had the entry that made it, no two that exclude each other are told at the same time, and a
//! member never gives up a grant that it told.
//!
//! What it would not notice: a holder whose lease was never renewed (nothing was promised to it, so it does not count as
//! holding); a queue order that model and machine get wrong alike; owner, holder and metadata of a reply; another mode at
//! feature level 0, where it has its old meaning; wrong entries in the list of recent holders.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use tenure_machine::{Command, LeaseId, Lock, LockReply, MemberId, Mode, Reply, Revision};
use tenure_replica::{Answered, CallId, Failure};

use super::{Check, Context, Seen, is_of_this_life, slack_us};
use crate::model::Stay;
use crate::request::{Call, Request};

#[derive(Default)]
pub struct Locks {
    holds: BTreeMap<Vec<u8>, Vec<Hold>>,
    /// Until when a lease was promised, and for how long.
    promised: BTreeMap<LeaseId, (u64, u64)>,
    /// The names of Lock calls that were told that they hold.
    told: BTreeSet<u128>,
    /// Those whose place was left, and those that clients themselves leave.
    left: BTreeSet<u128>,
    left_by_clients: BTreeSet<u128>,
    /// What each member had applied, and since when, in its present life.
    advanced: BTreeMap<MemberId, Vec<(u64, u64)>>,
    /// What each member was given in its present life: the first and the last index, and when.
    received: BTreeMap<MemberId, Vec<(u64, u64, u64)>>,
}

struct Hold {
    key: Vec<u8>,
    token: Revision,
    mode: Mode,
    lease: LeaseId,
}

impl Check for Locks {
    fn name(&self) -> &'static str {
        "L1-L6: who holds a lock"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Booted { member } => {
                self.advanced.remove(member);
                self.received.remove(member);
            }
            Seen::Received { member, first, last } => {
                let received = self.received.entry(*member).or_default();
                // Those of another leader have taken their place.
                received.retain_mut(|(from, upto, _)| {
                    *upto = (*upto).min(first - 1);
                    *from <= *upto
                });
                received.push((*first, *last, context.now_us));
            }
            Seen::Advanced { member, from, to } => {
                let advanced = self.advanced.entry(*member).or_default();
                if advanced.is_empty() || from < to {
                    advanced.push((*to, context.now_us));
                }
            }
            Seen::Issued { call: Call { request: Request::Propose(Command::Leave(leave)), .. }, .. } => {
                self.left_by_clients.insert(leave.call);
            }
            Seen::Disowned { call } => drop(self.left_by_clients.insert(*call)),
            Seen::Applied { command: Some(Command::Leave(leave)), outcome, .. }
                if matches!(outcome.reply, Ok(Reply::Left { left: true }))
                    && !self.left_by_clients.contains(&leave.call) =>
            {
                self.left.insert(leave.call);
                if self.told.contains(&leave.call) {
                    return Err(format!("{leave:?} ends a place that its call was told to hold"));
                }
            }
            Seen::Answered { id, call, answer, within } => {
                return self.answered(*id, call, &answer.result, within, context);
            }
            // Another life of the same id: what was promised to the one before counts no more.
            Seen::Applied { command: Some(Command::LeaseGrant(grant)), outcome, .. } if outcome.reply.is_ok() => {
                self.promised.remove(&grant.lease);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Locks {
    fn answered(
        &mut self,
        id: CallId,
        call: &Call,
        result: &Result<Answered, Failure>,
        within: &RangeInclusive<u64>,
        context: &Context<'_>,
    ) -> Result<(), String> {
        match (&call.request, result) {
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
                self.granted(call, lock, reply, within, context).map_err(|what| format!("call {id}, {reply:?}: {what}"))
            }
            (Request::Lock(lock), Ok(Answered::Reply(Reply::Busy(_)))) if lock.try_once => Ok(()),
            (Request::Lock(lock), Err(Failure::EntryEnded(_))) => {
                let upto = context.reference.applied();
                if context.reference.took_effect(&Command::Lock(Box::new(lock.clone())), call.floor_index, upto) {
                    return Ok(());
                }
                Err(format!("{lock:?} was never in a queue, and is told that its place is gone"))
            }
            (Request::Lock(_), Ok(other)) => Err(format!("a lock is answered {other:?}")),
            _ => Ok(()),
        }
    }

    fn granted(
        &mut self,
        call: &Call,
        lock: &Lock,
        reply: &LockReply,
        within: &RangeInclusive<u64>,
        context: &Context<'_>,
    ) -> Result<(), String> {
        if context.reference.model.lease_within(lock.lease, within).is_none() {
            return Err(format!("its lease {:x} is not alive at any index of {within:?}", lock.lease));
        }
        if !reply.granted || self.left.contains(&lock.call) {
            return Err("the place was not granted, or was left".to_owned());
        }
        self.told.insert(lock.call);
        let names = std::iter::once(&lock.name).chain(&lock.more_names);
        let keys = std::iter::once(&reply.key).chain(&reply.more_keys);
        for (name, key) in names.zip(keys) {
            let Some(stay) = context.reference.model.stay(key, reply.token) else {
                return Err("there never was such a place".to_owned());
            };
            if stay.lease != lock.lease {
                return Err(format!("it belongs to lease {:x}", stay.lease));
            }
            if reply.mode != stay.mode {
                return Err(format!("it is told to be {}, and is {}", reply.mode, stay.mode));
            }
            // At level 0 a call may name another mode than the place was made with.
            if stay.mode != lock.mode && context.reference.model.level_at(call.floor_index) > 0 {
                return Err(format!("{} was asked for, and {} is granted", lock.mode, stay.mode));
            }
            self.stood(call, stay, context)?;
            let (key, token) = (key.to_vec(), reply.token);
            let hold = Hold { key, token, mode: stay.mode, lease: lock.lease };
            self.hold(name, hold, context)?;
        }
        Ok(())
    }

    /// Whether the grant stood at some time after the teller had the entry that made it.
    fn stood(&self, call: &Call, stay: &Stay, context: &Context<'_>) -> Result<(), String> {
        let received = self.received.get(&call.member).map_or(&[][..], |received| &received[..]);
        let advanced = self.advanced.get(&call.member).map_or(&[][..], |advanced| &advanced[..]);
        let Some(granted) = stay.granted else { return Err(format!("it was never granted: {stay:?}")) };
        let Some((_, applied_us)) = advanced.iter().find(|(index, _)| *index >= granted) else {
            return Err(format!("granted at {granted}, of which member {} knows nothing", call.member));
        };
        let given = received.iter().find(|(first, last, _)| (first..=last).contains(&&granted));
        // Some come with a snapshot, or were there already when it started.
        let known_us = given.map_or(applied_us, |(_, _, given_us)| given_us);
        let ended_us = stay.ended.and_then(|(index, _)| context.reference.committed(index)).map(|end| end.applied_us);
        match ended_us.filter(|ended_us| ended_us < known_us) {
            Some(ended_us) => Err(format!("it ended at {ended_us} us, and was known here only from {known_us} us on")),
            None => Ok(()),
        }
    }

    /// Nobody else holds it whose lease was promised to last and whose place was not ended by anybody.
    fn hold(&mut self, name: &[u8], hold: Hold, context: &Context<'_>) -> Result<(), String> {
        let (promised, now_us) = (&self.promised, context.now_us);
        let model = &context.reference.model;
        let holds = self.holds.entry(name.to_vec()).or_default();
        holds.retain(|other| {
            let (until_us, span_us) = promised.get(&other.lease).copied().unwrap_or_default();
            let is_there = model.stay(&other.key, other.token).is_some_and(|stay| stay.ended.is_none());
            let is_other = (&other.key, other.token) != (&hold.key, hold.token);
            is_other && is_there && until_us > now_us + slack_us(span_us, context.plan)
        });
        let is_there = model.stay(&hold.key, hold.token).is_some_and(|stay| stay.ended.is_none());
        if let Some(other) = holds.iter().find(|other| hold.mode == Mode::Exclusive || other.mode != hold.mode)
            && is_there
        {
            let (name, key) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&other.key));
            return Err(format!(
                "{name} is granted with token {} while {key} holds it with {}",
                hold.token, other.token
            ));
        }
        if let Mode::Slots(slots) | Mode::Barrier(slots) = hold.mode {
            let taken = holds.iter().filter(|other| other.mode == hold.mode).count();
            if is_there && taken >= slots as usize {
                return Err(format!("{} holders share {slots} slots", taken + 1));
            }
        }
        holds.push(hold);
        Ok(())
    }
}
