//! Places that outlive their lease: a put takes the lease from the key of a place that waits, then the lease is revoked.
//! Its call still waits. When its turn comes the place ends; below level 1 it is granted.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::lock::entry_key;
use tenure_machine::{Command, Compare, CompareResult, CompareTarget, Keys, LeaseId, Op, Put, Txn};
use tenure_replica::CallId;

use super::{Doing, Mood, Traffic};
use crate::plan::Plan;
use crate::random::Random;
use crate::request::{Call, Request};

pub(super) struct Strands {
    random: Random,
    is_on: bool,
    /// The keys of all Lock calls.
    keys: BTreeMap<CallId, (Bytes, LeaseId)>,
    /// Leases to be revoked, by which client and when.
    due: Vec<(u64, usize, LeaseId)>,
    puts: u64,
}

impl Strands {
    pub(super) fn new(seed: u64, plan: &Plan) -> Strands {
        let is_on = plan.windows.is_some_and(|windows| windows.strands);
        Strands { random: Random::new(seed, 23), is_on, keys: BTreeMap::new(), due: Vec::new(), puts: 0 }
    }
}

impl Traffic {
    pub(super) fn strand_issued(&mut self, id: CallId, call: &Call) {
        if let Request::Lock(lock) = &call.request
            && self.strands.is_on
        {
            self.strands.keys.insert(id, (entry_key(&lock.name, lock.lease).into(), lock.lease));
        }
    }

    pub(super) fn strand(&mut self, client: usize, now_us: u64) -> Vec<Doing> {
        let strands = &mut self.strands;
        if self.mood != Mood::Busy || !strands.is_on {
            return Vec::new();
        }
        let propose = |command: Command| Doing::Call(Request::Propose(command));
        let is_due = |(due_us, of, _): &(u64, usize, LeaseId)| *of == client && *due_us <= now_us;
        let mut doing: Vec<Doing> = strands
            .due
            .iter()
            .filter(|due| is_due(due))
            .map(|(_, _, lease)| propose(Command::LeaseRevoke { lease: *lease }))
            .collect();
        strands.due.retain(|due| !is_due(due));
        let waiting: Vec<CallId> = self.clients[client].waiting.keys().copied().collect();
        let some = strands.random.pick(&waiting).filter(|_| strands.random.percent(10));
        if let Some((key, lease)) = some.and_then(|id| strands.keys.get(id)).cloned() {
            strands.puts += 1;
            doing.push(propose(take_lease_from(key, strands.puts)));
            strands.due.push((now_us + strands.random.spread(50_000, 500_000), client, lease));
        }
        doing
    }
}

/// Only if the place is there.
fn take_lease_from(key: Bytes, number: u64) -> Command {
    let keys = Keys::One(key.clone());
    let is_there = Compare { keys, result: CompareResult::Greater, target: CompareTarget::Version(0) };
    let value = format!("stranded {number}").into();
    let put = Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
    Command::Txn(Txn { compare: vec![is_there], success: vec![Op::Put(put)], failure: Vec::new() })
}
