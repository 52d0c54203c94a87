//! Crowds: leases with several keys, and several waiters behind one holder, in seeds with small limits. The end of such a
//! lease, and the release of such a lock, are more work than one command does.

use tenure_machine::{Command, LeaseId, Lock, Mode, Op, Put, Txn};

use super::{Doing, Mood, Traffic};
use crate::plan::Plan;
use crate::request::Request;

/// Sessions of one client in these seeds.
pub(super) const SESSIONS: usize = 8;
/// How often a client does something of this.
const PERCENT: u64 = 20;

impl Traffic {
    pub(super) fn crowd(&mut self, client: usize, plan: &Plan) -> Vec<Doing> {
        if self.mood != Mood::Busy || !plan.limits.are_small() || !self.random.percent(PERCENT) {
            return Vec::new();
        }
        let mut leases: Vec<LeaseId> = self.clients[client].sessions.iter().map(|session| session.lease).collect();
        let Some(lease) = self.random.pick(&leases).copied() else { return Vec::new() };
        let requests = match self.random.below(6) {
            0 | 1 => vec![self.put_several(lease, plan)],
            // It ends with all that it has by now.
            2 => vec![Request::Propose(Command::LeaseRevoke { lease })],
            _ => {
                leases.retain(|other| *other != lease);
                self.wait_behind(client, lease, &leases, plan)
            }
        };
        requests.into_iter().map(Doing::Call).collect()
    }

    /// More keys than one command deletes.
    fn put_several(&mut self, lease: LeaseId, plan: &Plan) -> Request {
        let count = (plan.limits.lease_keys as u64 + self.random.between(1, 6)).min(plan.keys);
        let first = self.random.below(plan.keys);
        let puts = (0..count).map(|nth| {
            let (key, value) = (format!("key/{}", (first + nth) % plan.keys).into(), self.value(plan));
            Op::Put(Put { key, value, lease, prev_kv: false, ignore_value: false, ignore_lease: false })
        });
        Request::Propose(Command::Txn(Txn { success: puts.collect(), ..Txn::default() }))
    }

    /// One asks for a lock alone, and the others ask to share it.
    fn wait_behind(&mut self, client: usize, lease: LeaseId, others: &[LeaseId], plan: &Plan) -> Vec<Request> {
        let name = self.name(plan);
        let alone = std::iter::once((lease, Mode::Exclusive));
        let asked = alone.chain(others.iter().map(|other| (*other, Mode::Shared)));
        let mut requests = Vec::new();
        for (lease, mode) in asked {
            let (call, epoch, value) = (u128::from(self.draw()), self.epoch(client, lease), self.value(plan));
            let name = name.clone();
            requests.push(Request::Lock(Lock { name, lease, mode, call, epoch, value, ..Lock::default() }));
        }
        requests
    }
}
