//! Puts, deletes, transactions and reads.

use bytes::Bytes;
use tenure_machine::{
    Command, Compare, CompareResult, CompareTarget, Delete, Keys, LeaseId, Member, Op, Put, RangeQuery, SortOrder,
    SortTarget, Txn,
};
use tenure_replica::Consistency;

use super::{Action, Known, Traffic};
use crate::plan::Plan;
use crate::request::Request;

impl Traffic {
    pub(super) fn on_keys(&mut self, client: usize, action: Action, plan: &Plan, known: &Known) -> Request {
        match action {
            Action::PutLeased => {
                let lease = self.some_lease(client);
                Request::Propose(Command::Put(self.a_put(plan, lease)))
            }
            Action::PutKeeping => {
                let keeps_value = self.random.percent(50);
                let put = self.a_put(plan, 0);
                let value = if keeps_value { Bytes::new() } else { put.value };
                Request::Propose(Command::Put(Put {
                    ignore_value: keeps_value,
                    ignore_lease: !keeps_value,
                    value,
                    ..put
                }))
            }
            Action::Delete => {
                let delete = Delete { keys: Keys::One(self.key(plan)), prev_kv: self.random.percent(50) };
                Request::Propose(Command::Delete(delete))
            }
            Action::DeleteSpan => {
                let delete = Delete { keys: self.span(plan), prev_kv: self.random.percent(50) };
                Request::Propose(Command::Delete(delete))
            }
            Action::Txn => {
                let txn = self.txn(client, plan, known, 1);
                // What services refuse never reaches a member.
                match txn.check() {
                    Ok(()) => Request::Propose(Command::Txn(txn)),
                    Err(_) => Request::Range(RangeQuery::new(Keys::all()), Consistency::Linearizable),
                }
            }
            Action::Range | Action::RangeOld => {
                let consistency =
                    if self.random.percent(70) { Consistency::Linearizable } else { Consistency::Serializable };
                Request::Range(self.query(plan, known, action == Action::RangeOld), consistency)
            }
            Action::View => Request::View,
            Action::Compact => {
                let low = known.compacted.max(0) as u64;
                let revision = self.random.between(low, known.revision as u64 + 2) as i64;
                Request::Propose(Command::Compact { revision })
            }
            Action::Publish => Request::Propose(Command::Publish(Member {
                id: self.random.between(1, plan.members),
                name: format!("one {}", self.draw()),
                peer_urls: Vec::new(),
                client_urls: Vec::new(),
                learner: false,
            })),
            _ => Request::Propose(Command::Put(self.a_put(plan, 0))),
        }
    }

    pub(super) fn a_put(&mut self, plan: &Plan, lease: LeaseId) -> Put {
        Put {
            key: self.key(plan),
            value: self.value(plan),
            lease,
            prev_kv: self.random.percent(50),
            ignore_value: false,
            ignore_lease: false,
        }
    }

    pub(super) fn key(&mut self, plan: &Plan) -> Bytes {
        format!("key/{}", self.random.below(plan.keys)).into()
    }

    /// Never the same twice.
    pub(super) fn value(&mut self, plan: &Plan) -> Bytes {
        let length = self.random.spread(0, plan.value_bytes) as usize;
        format!("value {} {}", self.draw(), "x".repeat(length)).into()
    }

    pub(super) fn span(&mut self, plan: &Plan) -> Keys {
        let from = self.key(plan);
        match self.random.below(4) {
            0 => Keys::prefix(Bytes::from_static(b"key/")),
            1 => Keys::Span { from, to: Some(Bytes::from_static(b"key/~")) },
            _ => Keys::Span { from, to: Some(self.key(plan)) },
        }
    }

    pub(super) fn query(&mut self, plan: &Plan, known: &Known, old: bool) -> RangeQuery {
        let keys = match self.random.below(4) {
            0 => Keys::One(self.key(plan)),
            1 => Keys::all(),
            _ => self.span(plan),
        };
        let mut query = RangeQuery::new(keys);
        if old {
            let low = (known.compacted - 2).max(1) as u64;
            query.revision = self.random.between(low, known.revision as u64 + 1) as i64;
        }
        if self.random.percent(30) {
            query.limit = self.random.between(1, 5) as i64;
        }
        if self.random.percent(30) {
            query.sort_order = if self.random.percent(50) { SortOrder::Ascend } else { SortOrder::Descend };
            let targets = [
                SortTarget::Key,
                SortTarget::Version,
                SortTarget::CreateRevision,
                SortTarget::ModRevision,
                SortTarget::Value,
            ];
            query.sort_target = targets[self.random.below(5) as usize];
        }
        query.count_only = self.random.percent(10);
        query.keys_only = self.random.percent(10);
        if self.random.percent(15) {
            query.min_mod_revision = self.random.below(known.revision as u64 + 1) as i64;
            query.max_create_revision = self.random.below(known.revision as u64 + 1) as i64;
        }
        query
    }

    fn txn(&mut self, client: usize, plan: &Plan, known: &Known, depth: u64) -> Txn {
        let compare = (0..self.random.below(3)).map(|_| self.compare(plan, known)).collect();
        let mut branch = || (0..self.random.between(0, 3)).map(|_| self.op(client, plan, known, depth)).collect();
        let (success, failure) = (branch(), branch());
        Txn { compare, success, failure }
    }

    fn op(&mut self, client: usize, plan: &Plan, known: &Known, depth: u64) -> Op {
        match self.random.below(8) {
            0 | 1 => {
                let old = self.random.percent(30);
                Op::Range(self.query(plan, known, old))
            }
            2 => Op::Delete(Delete { keys: Keys::One(self.key(plan)), prev_kv: true }),
            3 => Op::Delete(Delete { keys: self.span(plan), prev_kv: false }),
            4 if depth < 3 => Op::Txn(self.txn(client, plan, known, depth + 1)),
            5 => {
                let lease = self.some_lease(client);
                Op::Put(self.a_put(plan, lease))
            }
            _ => Op::Put(self.a_put(plan, 0)),
        }
    }

    fn compare(&mut self, plan: &Plan, known: &Known) -> Compare {
        let results = [CompareResult::Equal, CompareResult::Greater, CompareResult::Less, CompareResult::NotEqual];
        let revision = self.random.below(known.revision as u64 + 2) as i64;
        let target = match self.random.below(5) {
            0 => CompareTarget::Version(self.random.below(4) as i64),
            1 => CompareTarget::CreateRevision(revision * self.random.below(2) as i64),
            2 => CompareTarget::ModRevision(revision),
            3 => CompareTarget::Lease(0),
            _ => CompareTarget::Value(Bytes::from_static(b"value 5")),
        };
        let keys = if self.random.percent(70) { Keys::One(self.key(plan)) } else { self.span(plan) };
        Compare { keys, result: results[self.random.below(4) as usize], target }
    }
}
