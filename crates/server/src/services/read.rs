//! Transactions that only read: answered from a view, without a log entry.
//!
//! Such a transaction sees one state, so it needs no place in the log: a view that is new enough
//! gives the same answer and costs the cluster nothing. A short one is evaluated where it came in; one
//! that turns out to walk many keys is started over on a blocking thread.

use tenure_api::etcdserverpb::{RequestOp, TxnRequest, request_op};
use tenure_machine::{Compare, Op, OpReply, RangeQuery, RangeReply, Refusal, Txn, TxnReply, View};
use tenure_replica::Consistency;

/// Keys that a transaction may walk on a network thread.
const SHORT_KEYS: usize = 1000;

/// None = it may write, and must go through the log.
pub fn consistency(request: &TxnRequest) -> Option<Consistency> {
    let mut all = Consistency::Serializable;
    for op in request.success.iter().chain(&request.failure) {
        match of_op(op)? {
            Consistency::Linearizable => all = Consistency::Linearizable,
            Consistency::Serializable => {}
        }
    }
    Some(all)
}

fn of_op(op: &RequestOp) -> Option<Consistency> {
    match op.request.as_ref()? {
        request_op::Request::RequestRange(range) if range.serializable => Some(Consistency::Serializable),
        request_op::Request::RequestRange(_) => Some(Consistency::Linearizable),
        // Its compares have no way to ask for less.
        request_op::Request::RequestTxn(txn) => consistency(txn).map(|_| Consistency::Linearizable),
        request_op::Request::RequestPut(_) | request_op::Request::RequestDeleteRange(_) => None,
    }
}

/// None = it walks too many keys for a network thread.
pub fn evaluate_short(view: &View, txn: &Txn) -> Option<Result<TxnReply, Refusal>> {
    let mut reader = Reader { view, keys_left: Some(SHORT_KEYS) };
    match reader.txn(txn) {
        Err(Stop::TooLong) => None,
        Err(Stop::Refused(refusal)) => Some(Err(refusal)),
        Ok(reply) => Some(Ok(reply)),
    }
}

pub fn evaluate(view: &View, txn: &Txn) -> Result<TxnReply, Refusal> {
    let mut reader = Reader { view, keys_left: None };
    match reader.txn(txn) {
        Err(Stop::TooLong) => unreachable!("it was given all the time"),
        Err(Stop::Refused(refusal)) => Err(refusal),
        Ok(reply) => Ok(reply),
    }
}

struct Reader<'a> {
    view: &'a View,
    /// None = as many as it takes.
    keys_left: Option<usize>,
}

enum Stop {
    TooLong,
    Refused(Refusal),
}

impl Reader<'_> {
    fn txn(&mut self, txn: &Txn) -> Result<TxnReply, Stop> {
        let succeeded = self.holds(&txn.compare)?;
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let responses = ops.iter().map(|op| self.op(op)).collect::<Result<_, _>>()?;
        Ok(TxnReply { succeeded, responses })
    }

    fn op(&mut self, op: &Op) -> Result<OpReply, Stop> {
        match op {
            Op::Range(query) => Ok(OpReply::Range(self.range(query)?)),
            Op::Txn(txn) => Ok(OpReply::Txn(self.txn(txn)?)),
            Op::Put(_) | Op::Delete(_) => unreachable!("a transaction that writes goes through the log"),
        }
    }

    fn range(&mut self, query: &RangeQuery) -> Result<RangeReply, Stop> {
        let reply = match &mut self.keys_left {
            None => self.view.range(query),
            Some(left) => {
                let reply = self.view.range_within(query, *left).ok_or(Stop::TooLong)?;
                let walked = reply.as_ref().map_or(0, |reply| reply.kvs.len().max(1));
                *left = left.checked_sub(walked).ok_or(Stop::TooLong)?;
                reply
            }
        };
        reply.map_err(Stop::Refused)
    }

    fn holds(&mut self, compares: &[Compare]) -> Result<bool, Stop> {
        for compare in compares {
            let found = self.range(&RangeQuery::new(compare.keys.clone()))?;
            if !holds_for(compare, &found) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A compare over several keys holds if it holds for each.
fn holds_for(compare: &Compare, found: &RangeReply) -> bool {
    match &found.kvs[..] {
        [] => compare.holds_for(None),
        kvs => kvs.iter().all(|kv| compare.holds_for(Some(kv))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::sync::Arc;
    use tenure_api::etcdserverpb::{PutRequest, RangeRequest};
    use tenure_machine::{CompareResult, CompareTarget, KeyValue, Keys};

    fn request(ops: Vec<request_op::Request>) -> TxnRequest {
        let success = ops.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
        TxnRequest { success, ..TxnRequest::default() }
    }

    fn range(serializable: bool) -> request_op::Request {
        request_op::Request::RequestRange(RangeRequest { serializable, ..RangeRequest::default() })
    }

    #[test]
    fn a_transaction_is_read_as_strictly_as_its_strictest_range() {
        use Consistency::*;
        assert_eq!(consistency(&request(vec![])), Some(Serializable));
        assert_eq!(consistency(&request(vec![range(true)])), Some(Serializable));
        assert_eq!(consistency(&request(vec![range(true), range(false)])), Some(Linearizable));
        let nested = request_op::Request::RequestTxn(request(vec![range(true)]));
        assert_eq!(consistency(&request(vec![nested])), Some(Linearizable));
        let put = request_op::Request::RequestPut(PutRequest::default());
        assert_eq!(consistency(&request(vec![range(false), put.clone()])), None);
        assert_eq!(consistency(&request(vec![request_op::Request::RequestTxn(request(vec![put]))])), None);
    }

    fn compare(result: CompareResult, target: CompareTarget) -> Compare {
        Compare { keys: Keys::One("a".into()), result, target }
    }

    fn found(versions: &[i64]) -> RangeReply {
        let kv = |version: &i64| {
            Arc::new(KeyValue {
                key: b"a"[..].into(),
                value: b"m"[..].into(),
                create_revision: 5,
                mod_revision: 6,
                version: *version,
                lease: 0,
            })
        };
        RangeReply { kvs: versions.iter().map(kv).collect(), ..RangeReply::default() }
    }

    #[test]
    fn a_compare_over_several_keys_holds_for_each_of_them() {
        let above = compare(CompareResult::Greater, CompareTarget::Version(1));
        assert!(holds_for(&above, &found(&[2, 3])));
        assert!(!holds_for(&above, &found(&[2, 1])));
    }

    #[test]
    fn a_missing_key_has_zeros_but_no_value() {
        let none = found(&[]);
        assert!(holds_for(&compare(CompareResult::Equal, CompareTarget::Version(0)), &none));
        assert!(holds_for(&compare(CompareResult::Less, CompareTarget::ModRevision(1)), &none));
        let empty = || CompareTarget::Value(Bytes::new());
        for result in [CompareResult::Equal, CompareResult::NotEqual, CompareResult::Less, CompareResult::Greater] {
            assert!(!holds_for(&compare(result, empty()), &none));
        }
    }

    #[test]
    fn values_are_compared_as_bytes() {
        let value = |value: &'static str| CompareTarget::Value(value.into());
        assert!(holds_for(&compare(CompareResult::Equal, value("m")), &found(&[1])));
        assert!(holds_for(&compare(CompareResult::Greater, value("lzz")), &found(&[1])));
        assert!(holds_for(&compare(CompareResult::Less, value("ma")), &found(&[1])));
        assert!(holds_for(&compare(CompareResult::NotEqual, value("")), &found(&[1])));
    }
}
