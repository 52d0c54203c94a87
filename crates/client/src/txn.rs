//! Transactions: compares, and one of two lists of operations, all at one revision.

use bytes::Bytes;
use tenure_api::etcdserverpb as proto;
use tenure_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tenure_api::etcdserverpb::request_op::Request;
use tenure_api::etcdserverpb::response_op::Response;

use crate::call::Kind;
use crate::kv::kv;
use crate::{Client, Delete, Deleted, Error, Found, Get, Header, Keys, LeaseId, Put, Revision, Written};

/// If all of `when` hold, `then` is executed, otherwise `otherwise`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Txn {
    pub when: Vec<Compare>,
    pub then: Vec<Operation>,
    pub otherwise: Vec<Operation>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    Get(Get),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
}

/// `target` of the keys stands in `relation` to the target's value.
#[derive(Debug, Clone, PartialEq)]
pub struct Compare {
    pub keys: Keys,
    pub target: Target,
    pub relation: Relation,
}

/// What is compared, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// How often the key was written since it was created; 0 = it does not exist.
    Version(i64),
    CreateRevision(Revision),
    ModRevision(Revision),
    Value(Bytes),
    Lease(LeaseId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    Equal,
    NotEqual,
    Greater,
    Less,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TxnReply {
    pub header: Header,
    pub succeeded: bool,
    /// One for each executed operation, in order.
    pub replies: Vec<OperationReply>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OperationReply {
    Get(Found),
    Put(Written),
    Delete(Deleted),
    Txn(TxnReply),
}

impl Compare {
    pub fn new(keys: impl Into<Keys>, target: Target, relation: Relation) -> Compare {
        Compare { keys: keys.into(), target, relation }
    }

    pub fn absent(key: impl Into<Bytes>) -> Compare {
        Compare::new(Keys::one(key), Target::Version(0), Relation::Equal)
    }

    /// With a lock's key and token: the lock is still held by whom it was granted to.
    pub fn created_at(key: impl Into<Bytes>, revision: Revision) -> Compare {
        Compare::new(Keys::one(key), Target::CreateRevision(revision), Relation::Equal)
    }

    pub fn value_is(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Compare {
        Compare::new(Keys::one(key), Target::Value(value.into()), Relation::Equal)
    }
}

impl Txn {
    fn changes_nothing(&self) -> bool {
        self.then.iter().chain(&self.otherwise).all(|operation| match operation {
            Operation::Get(_) => true,
            Operation::Txn(txn) => txn.changes_nothing(),
            Operation::Put(_) | Operation::Delete(_) => false,
        })
    }

    fn into_request(self) -> proto::TxnRequest {
        let operations = |list: Vec<Operation>| list.into_iter().map(Operation::into_request).collect();
        proto::TxnRequest {
            compare: self.when.into_iter().map(Compare::into_request).collect(),
            success: operations(self.then),
            failure: operations(self.otherwise),
        }
    }
}

impl Operation {
    fn into_request(self) -> proto::RequestOp {
        let request = match self {
            Operation::Get(Get(request)) => Request::RequestRange(request),
            Operation::Put(Put(request)) => Request::RequestPut(request),
            Operation::Delete(Delete(request)) => Request::RequestDeleteRange(request),
            Operation::Txn(txn) => Request::RequestTxn(txn.into_request()),
        };
        proto::RequestOp { request: Some(request) }
    }
}

impl Compare {
    fn into_request(self) -> proto::Compare {
        let result = match self.relation {
            Relation::Equal => CompareResult::Equal,
            Relation::NotEqual => CompareResult::NotEqual,
            Relation::Greater => CompareResult::Greater,
            Relation::Less => CompareResult::Less,
        };
        let (target, target_union) = match self.target {
            Target::Version(version) => (CompareTarget::Version, TargetUnion::Version(version)),
            Target::CreateRevision(revision) => (CompareTarget::Create, TargetUnion::CreateRevision(revision)),
            Target::ModRevision(revision) => (CompareTarget::Mod, TargetUnion::ModRevision(revision)),
            Target::Value(value) => (CompareTarget::Value, TargetUnion::Value(value)),
            Target::Lease(lease) => (CompareTarget::Lease, TargetUnion::Lease(lease)),
        };
        proto::Compare {
            result: result as i32,
            target: target as i32,
            key: self.keys.key,
            range_end: self.keys.end,
            target_union: Some(target_union),
        }
    }
}

impl From<proto::TxnResponse> for TxnReply {
    fn from(response: proto::TxnResponse) -> TxnReply {
        let reply = |operation: proto::ResponseOp| {
            Some(match operation.response? {
                Response::ResponseRange(found) => OperationReply::Get(found.into()),
                Response::ResponsePut(written) => OperationReply::Put(written.into()),
                Response::ResponseDeleteRange(deleted) => OperationReply::Delete(deleted.into()),
                Response::ResponseTxn(txn) => OperationReply::Txn(txn.into()),
            })
        };
        TxnReply {
            header: response.header.into(),
            succeeded: response.succeeded,
            replies: response.responses.into_iter().filter_map(reply).collect(),
        }
    }
}

impl Client {
    pub async fn txn(&self, txn: Txn) -> Result<TxnReply, Error> {
        let kind = if txn.changes_nothing() { Kind::read("txn") } else { Kind::write("txn") };
        let request = txn.into_request();
        let call = |channel| {
            let request = request.clone();
            async move { kv(channel).txn(request).await }
        };
        Ok(self.connections.call(kind, call).await?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_all_the_way_down_may_be_repeated() {
        let read = Txn { then: vec![Operation::Get("a".into())], ..Txn::default() };
        assert!(read.changes_nothing());
        let nested = Txn { otherwise: vec![Operation::Txn(read.clone())], ..Txn::default() };
        assert!(nested.changes_nothing());
        let write = Txn { then: vec![Operation::Put(("a", "b").into())], ..Txn::default() };
        let nested = Txn { then: vec![Operation::Txn(write)], ..read };
        assert!(!nested.changes_nothing());
    }
}
