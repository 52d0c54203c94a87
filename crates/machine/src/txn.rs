//! Transactions: compare, then run one of two lists of operations, all at one revision.
//!
//! Three passes, as etcd has them. First every compare, nested ones too, is decided against the
//! state before; that fixes the path. Then the operations on the path are validated, also against
//! the state before, and a single one that cannot be done refuses the whole. Only then is anything
//! written, and from there on nothing can fail.

use std::cmp::Ordering;

use crate::change::Change;
use crate::{
    Compare, CompareResult, CompareTarget, KeyValue, LockEnd, Op, OpReply, Put, Refusal, Txn, TxnReply, View, limits,
    lock,
};

impl View {
    pub(crate) fn txn(&mut self, change: &mut Change, txn: &Txn) -> Result<TxnReply, Refusal> {
        let mut path = Vec::with_capacity(1);
        self.decide(txn, 1, &mut path, &mut change.work)?;
        self.check_path(txn, &mut path.iter())?;
        Ok(self.run(change, txn, &mut path.iter()))
    }

    /// Whether a put can be done now.
    pub(crate) fn check_put(&self, put: &Put) -> Result<(), Refusal> {
        if !self.alarms.is_empty() {
            self.check_growth()?;
        }
        if put.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if put.lease != 0 {
            if !self.leases.contains(put.lease) {
                return Err(Refusal::LeaseNotFound);
            }
            if let Some((name, lease)) = lock::split_key(&put.key)
                && lease == put.lease
                && self.store.live(&put.key).is_none()
            {
                self.locks.queue(name).map_or(Ok(()), lock::Queue::check_room)?;
            }
        }
        if (put.ignore_value || put.ignore_lease) && self.store.live(&put.key).is_none() {
            return Err(Refusal::KeyNotFound);
        }
        Ok(())
    }

    /// Notes for each transaction that will run whether it succeeds, parents before children.
    fn decide(&self, txn: &Txn, depth: usize, path: &mut Vec<bool>, work: &mut u64) -> Result<(), Refusal> {
        if depth > limits::TXN_NESTING {
            return Err(Refusal::NestedTooDeep);
        }
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare, work));
        path.push(succeeded);
        for op in branch(txn, succeeded) {
            if let Op::Txn(nested) = op {
                self.decide(nested, depth + 1, path, work)?;
            }
        }
        Ok(())
    }

    fn holds(&self, compare: &Compare, work: &mut u64) -> bool {
        let mut matched = false;
        for kv in self.store.live_in(&compare.keys) {
            *work += 1;
            matched = true;
            if !compare.holds_for(Some(kv)) {
                return false;
            }
        }
        matched || compare.holds_for(None)
    }

    fn check_path<'a>(&self, txn: &Txn, path: &mut impl Iterator<Item = &'a bool>) -> Result<(), Refusal> {
        for op in branch(txn, next(path)) {
            match op {
                Op::Range(range) => self.store.check_revision(range.revision, self.store.revision)?,
                Op::Put(put) => self.check_put(put)?,
                Op::Delete(_) => self.check_sound()?,
                Op::Txn(nested) => self.check_path(nested, path)?,
            }
        }
        Ok(())
    }

    fn run<'a>(&mut self, change: &mut Change, txn: &Txn, path: &mut impl Iterator<Item = &'a bool>) -> TxnReply {
        let succeeded = next(path);
        let ops = branch(txn, succeeded);
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            responses.push(match op {
                Op::Range(range) => {
                    let reply = self.store.range(range, change.current(), usize::MAX);
                    // The revision was validated, and the budget has no end.
                    let reply = reply.and_then(Result::ok).unwrap_or_default();
                    change.work += reply.count as u64;
                    OpReply::Range(reply)
                }
                Op::Put(put) => {
                    let prev = self.put(change, put);
                    OpReply::Put { prev: prev.filter(|_| put.prev_kv) }
                }
                Op::Delete(delete) => {
                    let (deleted, prev) = self.delete_all(change, delete, LockEnd::Released);
                    OpReply::Delete { deleted, prev }
                }
                Op::Txn(nested) => OpReply::Txn(self.run(change, nested, path)),
            });
        }
        TxnReply { succeeded, responses }
    }
}

fn branch(txn: &Txn, succeeded: bool) -> &[Op] {
    if succeeded { &txn.success } else { &txn.failure }
}

/// Both later passes take the turns that the first one noted, one for each transaction.
fn next<'a>(path: &mut impl Iterator<Item = &'a bool>) -> bool {
    path.next().copied().unwrap_or(false)
}

impl Compare {
    /// A key that is not there reads 0 everywhere, but has no value that anything could be compared with.
    pub fn holds_for(&self, kv: Option<&KeyValue>) -> bool {
        let number = |field: fn(&KeyValue) -> i64, target: i64| kv.map_or(0, field).cmp(&target);
        let ordering = match &self.target {
            CompareTarget::Version(version) => number(|kv| kv.version, *version),
            CompareTarget::CreateRevision(revision) => number(|kv| kv.create_revision, *revision),
            CompareTarget::ModRevision(revision) => number(|kv| kv.mod_revision, *revision),
            CompareTarget::Lease(lease) => number(|kv| kv.lease, *lease),
            CompareTarget::Value(value) => match kv {
                Some(kv) => kv.value[..].cmp(&value[..]),
                None => return false,
            },
        };
        match self.result {
            CompareResult::Equal => ordering == Ordering::Equal,
            CompareResult::NotEqual => ordering != Ordering::Equal,
            CompareResult::Greater => ordering == Ordering::Greater,
            CompareResult::Less => ordering == Ordering::Less,
        }
    }
}
