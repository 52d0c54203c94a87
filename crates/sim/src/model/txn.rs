//! Transactions on the model: decide, check, then do.

use tenure_machine::{Compare, CompareResult, CompareTarget, KeyValue, Op, OpReply, Refusal, Txn, TxnReply};

use super::Model;

impl Model {
    pub(super) fn txn(&mut self, txn: &Txn) -> Result<TxnReply, Refusal> {
        // Nested transactions are decided before anything is written, like the outermost.
        let plan = self.decide(txn);
        self.check(txn, &plan)?;
        Ok(self.run(txn, &plan))
    }

    fn decide(&self, txn: &Txn) -> Plan {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let nested = ops(txn, succeeded).iter().map(|op| match op {
            Op::Txn(txn) => Some(self.decide(txn)),
            _ => None,
        });
        Plan { succeeded, nested: nested.collect() }
    }

    fn check(&self, txn: &Txn, plan: &Plan) -> Result<(), Refusal> {
        for (op, nested) in ops(txn, plan.succeeded).iter().zip(&plan.nested) {
            match (op, nested) {
                (Op::Range(query), _) if query.revision > self.revision => {
                    return Err(Refusal::FutureRevision { asked: query.revision, current: self.revision });
                }
                (Op::Range(query), _) if query.revision > 0 && query.revision < self.compacted() => {
                    return Err(Refusal::Compacted { asked: query.revision, compacted: self.compacted() });
                }
                (Op::Put(put), _) => self.check_put(put)?,
                (Op::Txn(txn), Some(plan)) => self.check(txn, plan)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&mut self, txn: &Txn, plan: &Plan) -> TxnReply {
        let mut responses = Vec::new();
        for (op, nested) in ops(txn, plan.succeeded).iter().zip(&plan.nested) {
            responses.push(match (op, nested) {
                (Op::Range(query), _) => {
                    let revision = if query.revision > 0 { query.revision } else { self.revision + 1 };
                    OpReply::Range(self.range(query, revision))
                }
                (Op::Put(put), _) => {
                    let prev = self.live(&put.key).cloned();
                    self.do_put(put);
                    OpReply::Put { prev: prev.filter(|_| put.prev_kv) }
                }
                (Op::Delete(delete), _) => {
                    let (deleted, prev) = self.do_delete(delete);
                    OpReply::Delete { deleted, prev }
                }
                (Op::Txn(txn), Some(plan)) => OpReply::Txn(self.run(txn, plan)),
                (Op::Txn(_), None) => unreachable!("every nested transaction was decided"),
            });
        }
        TxnReply { succeeded: plan.succeeded, responses }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found: Vec<_> = self.live_in(&compare.keys).collect();
        if found.is_empty() {
            return holds_for(compare, None);
        }
        found.into_iter().all(|kv| holds_for(compare, Some(kv)))
    }
}

struct Plan {
    succeeded: bool,
    /// One for each operation of the branch; set for transactions.
    nested: Vec<Option<Plan>>,
}

fn ops(txn: &Txn, succeeded: bool) -> &[Op] {
    if succeeded { &txn.success } else { &txn.failure }
}

fn holds_for(compare: &Compare, kv: Option<&std::sync::Arc<KeyValue>>) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let ordering = match &compare.target {
        CompareTarget::Version(version) => kv.map_or(0, |kv| kv.version).cmp(version),
        CompareTarget::CreateRevision(revision) => kv.map_or(0, |kv| kv.create_revision).cmp(revision),
        CompareTarget::ModRevision(revision) => kv.map_or(0, |kv| kv.mod_revision).cmp(revision),
        CompareTarget::Lease(lease) => kv.map_or(0, |kv| kv.lease).cmp(lease),
        CompareTarget::Value(value) => match kv {
            Some(kv) => kv.value[..].cmp(&value[..]),
            None => return false,
        },
    };
    match (compare.result, ordering) {
        (CompareResult::Equal, Equal) | (CompareResult::Greater, Greater) | (CompareResult::Less, Less) => true,
        (CompareResult::NotEqual, ordering) => ordering != Equal,
        _ => false,
    }
}
