//! etcd's requests as commands and queries of the machine, refused here if etcd would refuse them
//! before they are proposed.
//!
//! The order of the checks is etcd's, because a request with two faults is told of one of them.

use bytes::Bytes;
use prost::Message;
use tenure_api::etcdserverpb::{
    self as wire, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, range_request,
    request_op,
};
use tenure_machine::{
    Compare, CompareResult, CompareTarget, Delete, Keys, Op, Put, RangeQuery, Refusal, SortOrder, SortTarget, Txn,
    limits,
};

use super::errors::{self, Error};

/// What etcd adds to a request before it measures it: the header of its log entry.
const PROPOSAL_OVERHEAD: usize = 18;

/// Refuses what is too large to be proposed.
pub fn check_size(request: &impl Message, limit: usize) -> Result<(), Error> {
    match request.encoded_len() + PROPOSAL_OVERHEAD > limit {
        true => Err(errors::TOO_LARGE),
        false => Ok(()),
    }
}

/// No end = one key; an end of one zero byte = from the key on.
pub fn keys(key: Bytes, range_end: Bytes) -> Keys {
    match &*range_end {
        [] => Keys::One(key),
        [0] => Keys::Span { from: key, to: None },
        _ => Keys::Span { from: key, to: Some(range_end) },
    }
}

pub fn range(request: RangeRequest) -> Result<RangeQuery, Error> {
    let keys = keys(request.key, request.range_end);
    checked(keys.check())?;
    let sort_order = match range_request::SortOrder::try_from(request.sort_order) {
        Ok(range_request::SortOrder::None) => SortOrder::None,
        Ok(range_request::SortOrder::Ascend) => SortOrder::Ascend,
        Ok(range_request::SortOrder::Descend) => SortOrder::Descend,
        Err(_) => return Err(errors::INVALID_SORT),
    };
    let sort_target = match range_request::SortTarget::try_from(request.sort_target) {
        Ok(range_request::SortTarget::Key) => SortTarget::Key,
        Ok(range_request::SortTarget::Version) => SortTarget::Version,
        Ok(range_request::SortTarget::Create) => SortTarget::CreateRevision,
        Ok(range_request::SortTarget::Mod) => SortTarget::ModRevision,
        Ok(range_request::SortTarget::Value) => SortTarget::Value,
        Err(_) => return Err(errors::INVALID_SORT),
    };
    Ok(RangeQuery {
        keys,
        revision: request.revision,
        limit: request.limit,
        sort_order,
        sort_target,
        keys_only: request.keys_only,
        count_only: request.count_only,
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
    })
}

pub fn put(request: PutRequest) -> Result<Put, Error> {
    let PutRequest { key, value, lease, prev_kv, ignore_value, ignore_lease } = request;
    let put = Put { key, value, lease, prev_kv, ignore_value, ignore_lease };
    checked(put.check())?;
    Ok(put)
}

pub fn delete(request: DeleteRangeRequest) -> Result<Delete, Error> {
    let DeleteRangeRequest { key, range_end, prev_kv } = request;
    let delete = Delete { keys: keys(key, range_end), prev_kv };
    checked(delete.check())?;
    Ok(delete)
}

fn checked(check: Result<(), Refusal>) -> Result<(), Error> {
    check.map_err(|refusal| errors::of_refusal(&refusal))
}

/// `operations`: how many each of its lists may hold.
pub fn txn(request: TxnRequest, operations: usize) -> Result<Txn, Error> {
    let txn = txn_within(request, operations, 1)?;
    checked(txn.check())?;
    Ok(txn)
}

fn txn_within(request: TxnRequest, operations: usize, depth: usize) -> Result<Txn, Error> {
    let TxnRequest { compare, success, failure } = request;
    let longest = compare.len().max(success.len()).max(failure.len());
    let left = operations.checked_sub(longest).ok_or(errors::TOO_MANY_OPERATIONS)?;
    if depth > limits::TXN_NESTING {
        return Err(errors::of_refusal(&Refusal::NestedTooDeep));
    }
    let op = |request| op(request, left, depth);
    Ok(Txn {
        compare: compare.into_iter().map(comparison).collect::<Result<_, _>>()?,
        success: success.into_iter().map(op).collect::<Result<_, _>>()?,
        failure: failure.into_iter().map(op).collect::<Result<_, _>>()?,
    })
}

fn op(request: RequestOp, operations: usize, depth: usize) -> Result<Op, Error> {
    Ok(match request.request {
        // Alone it means the current revision; within a transaction etcd takes it for one long gone.
        Some(request_op::Request::RequestRange(request)) if request.revision < 0 => return Err(errors::COMPACTED),
        Some(request_op::Request::RequestRange(request)) => Op::Range(range(request)?),
        Some(request_op::Request::RequestPut(request)) => Op::Put(put(request)?),
        Some(request_op::Request::RequestDeleteRange(request)) => Op::Delete(delete(request)?),
        Some(request_op::Request::RequestTxn(request)) => Op::Txn(txn_within(request, operations, depth + 1)?),
        // etcd's word for an operation that names none.
        None => return Err(errors::KEY_NOT_FOUND),
    })
}

/// A target that does not fit what is compared counts as zero or empty.
fn comparison(request: wire::Compare) -> Result<Compare, Error> {
    use compare::{CompareTarget as Target, TargetUnion};

    let wire::Compare { result, target, key, range_end, target_union } = request;
    let keys = keys(key, range_end);
    checked(keys.check())?;
    let result = match compare::CompareResult::try_from(result) {
        Ok(compare::CompareResult::Equal) => CompareResult::Equal,
        Ok(compare::CompareResult::Greater) => CompareResult::Greater,
        Ok(compare::CompareResult::Less) => CompareResult::Less,
        Ok(compare::CompareResult::NotEqual) => CompareResult::NotEqual,
        Err(_) => return Err(errors::INVALID_COMPARE),
    };
    let target = match (Target::try_from(target), target_union) {
        (Ok(Target::Version), Some(TargetUnion::Version(version))) => CompareTarget::Version(version),
        (Ok(Target::Version), _) => CompareTarget::Version(0),
        (Ok(Target::Create), Some(TargetUnion::CreateRevision(revision))) => CompareTarget::CreateRevision(revision),
        (Ok(Target::Create), _) => CompareTarget::CreateRevision(0),
        (Ok(Target::Mod), Some(TargetUnion::ModRevision(revision))) => CompareTarget::ModRevision(revision),
        (Ok(Target::Mod), _) => CompareTarget::ModRevision(0),
        (Ok(Target::Value), Some(TargetUnion::Value(value))) => CompareTarget::Value(value),
        (Ok(Target::Value), _) => CompareTarget::Value(Bytes::new()),
        (Ok(Target::Lease), Some(TargetUnion::Lease(lease))) => CompareTarget::Lease(lease),
        (Ok(Target::Lease), _) => CompareTarget::Lease(0),
        (Err(_), _) => return Err(errors::INVALID_COMPARE),
    };
    Ok(Compare { keys, result, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: &'static str, to: Option<&'static str>) -> Keys {
        Keys::Span { from: from.into(), to: to.map(Bytes::from) }
    }

    #[test]
    fn the_end_of_a_range_says_what_kind_it_is() {
        assert_eq!(keys("a".into(), Bytes::new()), Keys::One("a".into()));
        assert_eq!(keys("a".into(), "\0".into()), span("a", None));
        assert_eq!(keys("\0".into(), "\0".into()), span("\0", None));
        assert_eq!(keys("a".into(), "b".into()), span("a", Some("b")));
        // Empty, but a range all the same: it matches nothing.
        assert_eq!(keys("b".into(), "a".into()), span("b", Some("a")));
        assert_eq!(keys("a".into(), "\0\0".into()), span("a", Some("\0\0")));
    }

    #[test]
    fn a_range_is_carried_over_field_by_field() {
        let request = RangeRequest {
            key: "a".into(),
            range_end: "c".into(),
            limit: 1,
            revision: 2,
            sort_order: 2,
            sort_target: 3,
            serializable: true,
            keys_only: true,
            count_only: true,
            min_mod_revision: 3,
            max_mod_revision: 4,
            min_create_revision: 5,
            max_create_revision: 6,
        };
        let query = RangeQuery {
            keys: span("a", Some("c")),
            revision: 2,
            limit: 1,
            sort_order: SortOrder::Descend,
            sort_target: SortTarget::ModRevision,
            keys_only: true,
            count_only: true,
            min_mod_revision: 3,
            max_mod_revision: 4,
            min_create_revision: 5,
            max_create_revision: 6,
        };
        assert_eq!(range(request.clone()), Ok(query));
        assert_eq!(range(RangeRequest { sort_order: 7, ..request.clone() }), Err(errors::INVALID_SORT));
        assert_eq!(range(RangeRequest { sort_target: 7, ..request.clone() }), Err(errors::INVALID_SORT));
        assert_eq!(range(RangeRequest { key: Bytes::new(), ..request }), Err(errors::EMPTY_KEY));
    }

    #[test]
    fn puts_and_deletes_are_checked_before_they_are_proposed() {
        let request = PutRequest { key: "a".into(), value: "v".into(), lease: 7, ..PutRequest::default() };
        assert!(put(request.clone()).is_ok());
        assert_eq!(put(PutRequest { key: Bytes::new(), ..request.clone() }), Err(errors::EMPTY_KEY));
        assert_eq!(put(PutRequest { ignore_value: true, ..request.clone() }), Err(errors::VALUE_PROVIDED));
        assert_eq!(put(PutRequest { ignore_lease: true, ..request }), Err(errors::LEASE_PROVIDED));
        assert_eq!(delete(DeleteRangeRequest::default()), Err(errors::EMPTY_KEY));
    }

    #[test]
    fn size_counts_what_etcd_would_propose() {
        let request = |length| PutRequest { key: "big".into(), value: vec![0; length].into(), ..PutRequest::default() };
        // Measured: etcd 3.4.23 takes the first and refuses the second.
        assert_eq!(check_size(&request(1_572_834), 1_572_864), Ok(()));
        assert_eq!(check_size(&request(1_572_839), 1_572_864), Err(errors::TOO_LARGE));
    }

    fn request(ops: Vec<request_op::Request>) -> TxnRequest {
        let success = ops.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
        TxnRequest { success, ..TxnRequest::default() }
    }

    fn put_of(number: usize) -> request_op::Request {
        let key = format!("{number:05}").into();
        request_op::Request::RequestPut(PutRequest { key, ..PutRequest::default() })
    }

    #[test]
    fn nested_transactions_share_the_number_of_operations() {
        let puts = |count| (0..count).map(put_of).collect();
        let nested = |count| request(vec![request_op::Request::RequestTxn(request(puts(count)))]);
        assert!(txn(request(puts(128)), 128).is_ok());
        assert_eq!(txn(request(puts(129)), 128), Err(errors::TOO_MANY_OPERATIONS));
        assert!(txn(nested(127), 128).is_ok());
        assert_eq!(txn(nested(128), 128), Err(errors::TOO_MANY_OPERATIONS));
        let compare = vec![wire::Compare { key: "a".into(), ..wire::Compare::default() }; 129];
        assert_eq!(txn(TxnRequest { compare, ..TxnRequest::default() }, 128), Err(errors::TOO_MANY_OPERATIONS));
    }

    #[test]
    fn transactions_nest_only_so_deep() {
        let nest = |depth| {
            (1..depth).fold(request(vec![put_of(1)]), |inner, _| request(vec![request_op::Request::RequestTxn(inner)]))
        };
        assert!(txn(nest(limits::TXN_NESTING), 128).is_ok());
        assert!(txn(nest(limits::TXN_NESTING + 1), 128).is_err());
    }

    #[test]
    fn a_key_is_written_once() {
        assert_eq!(txn(request(vec![put_of(1), put_of(1)]), 128), Err(errors::DUPLICATE_KEY));
        assert!(txn(request(vec![put_of(1), put_of(2)]), 128).is_ok());
    }

    #[test]
    fn operations_that_make_no_sense_are_refused() {
        let empty = TxnRequest { failure: vec![RequestOp::default()], ..TxnRequest::default() };
        assert_eq!(txn(empty, 128), Err(errors::KEY_NOT_FOUND));
        let range = RangeRequest { key: "a".into(), revision: -2, ..RangeRequest::default() };
        let past = request(vec![request_op::Request::RequestRange(range)]);
        assert_eq!(txn(past, 128), Err(errors::COMPACTED));
        let keyless = TxnRequest { compare: vec![wire::Compare::default()], ..TxnRequest::default() };
        assert_eq!(txn(keyless, 128), Err(errors::EMPTY_KEY));
    }

    #[test]
    fn a_compare_target_that_does_not_fit_counts_as_nothing() {
        let compare = |target: compare::CompareTarget, target_union| {
            let compare = wire::Compare { target: target.into(), key: "a".into(), target_union, ..Default::default() };
            comparison(compare).map(|compare| compare.target)
        };
        let version = Some(compare::TargetUnion::Version(7));
        use compare::CompareTarget as Target;
        assert_eq!(compare(Target::Version, version.clone()), Ok(CompareTarget::Version(7)));
        assert_eq!(compare(Target::Lease, version.clone()), Ok(CompareTarget::Lease(0)));
        assert_eq!(compare(Target::Value, version), Ok(CompareTarget::Value(Bytes::new())));
        assert_eq!(compare(Target::Create, None), Ok(CompareTarget::CreateRevision(0)));
        let unknown = wire::Compare { target: 9, key: "a".into(), ..Default::default() };
        assert_eq!(comparison(unknown), Err(errors::INVALID_COMPARE));
    }
}
