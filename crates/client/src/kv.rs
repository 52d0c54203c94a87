//! Reads and writes of keys.

use bytes::Bytes;
use tenure_api::etcdserverpb as proto;
use tenure_api::etcdserverpb::kv_client::KvClient;
use tenure_api::etcdserverpb::range_request::{SortOrder, SortTarget};

use crate::call::Kind;
use crate::timed_channel::TimedChannel;
use crate::{Client, Error, Header, Keys, LeaseId, Revision};

pub use tenure_api::mvccpb::KeyValue;

/// A read. Made from a key, or with [`Get::keys`] and the options beneath.
#[derive(Debug, Clone, PartialEq)]
pub struct Get(pub(crate) proto::RangeRequest);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    Key,
    Version,
    CreateRevision,
    ModRevision,
    Value,
}

impl Get {
    pub fn keys(keys: impl Into<Keys>) -> Get {
        let Keys { key, end } = keys.into();
        Get(proto::RangeRequest { key, range_end: end, ..proto::RangeRequest::default() })
    }

    pub fn prefix(prefix: impl Into<Bytes>) -> Get {
        Get::keys(Keys::prefix(prefix))
    }

    /// At most so many pairs; 0 = all.
    pub fn limit(mut self, limit: i64) -> Get {
        self.0.limit = limit;
        self
    }

    /// As it was at that revision; 0 = now.
    pub fn revision(mut self, revision: Revision) -> Get {
        self.0.revision = revision;
        self
    }

    pub fn sort(mut self, by: SortBy, order: Order) -> Get {
        self.0.sort_target = match by {
            SortBy::Key => SortTarget::Key,
            SortBy::Version => SortTarget::Version,
            SortBy::CreateRevision => SortTarget::Create,
            SortBy::ModRevision => SortTarget::Mod,
            SortBy::Value => SortTarget::Value,
        } as i32;
        self.0.sort_order = match order {
            Order::Ascending => SortOrder::Ascend,
            Order::Descending => SortOrder::Descend,
        } as i32;
        self
    }

    /// Answered by the member that is asked, without a word to the others: fast, possibly stale.
    pub fn serializable(mut self) -> Get {
        self.0.serializable = true;
        self
    }

    pub fn keys_only(mut self) -> Get {
        self.0.keys_only = true;
        self
    }

    pub fn count_only(mut self) -> Get {
        self.0.count_only = true;
        self
    }
}

impl<Key: Into<Bytes>> From<Key> for Get {
    fn from(key: Key) -> Get {
        Get::keys(Keys::one(key))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub header: Header,
    pub pairs: Vec<KeyValue>,
    /// All keys of the range, whatever the limit.
    pub count: i64,
    /// The limit cut something off.
    pub more: bool,
}

impl From<proto::RangeResponse> for Found {
    fn from(response: proto::RangeResponse) -> Found {
        Found { header: response.header.into(), pairs: response.kvs, count: response.count, more: response.more }
    }
}

/// A write of one key. Made from `(key, value)`, or with [`Put::new`] and the options beneath.
#[derive(Debug, Clone, PartialEq)]
pub struct Put(pub(crate) proto::PutRequest);

impl Put {
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Put {
        Put(proto::PutRequest { key: key.into(), value: value.into(), ..proto::PutRequest::default() })
    }

    /// The key ends with this lease.
    pub fn lease(mut self, lease: LeaseId) -> Put {
        self.0.lease = lease;
        self
    }

    /// Answer with what was there before.
    pub fn previous(mut self) -> Put {
        self.0.prev_kv = true;
        self
    }

    /// Keep the key's value and change only its lease. The key must exist.
    pub fn keep_value(mut self) -> Put {
        self.0.value = Bytes::new();
        self.0.ignore_value = true;
        self
    }

    /// Keep the key's lease and change only its value. The key must exist.
    pub fn keep_lease(mut self) -> Put {
        self.0.ignore_lease = true;
        self
    }
}

impl<Key: Into<Bytes>, Value: Into<Bytes>> From<(Key, Value)> for Put {
    fn from((key, value): (Key, Value)) -> Put {
        Put::new(key, value)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    pub header: Header,
    pub previous: Option<KeyValue>,
}

impl From<proto::PutResponse> for Written {
    fn from(response: proto::PutResponse) -> Written {
        Written { header: response.header.into(), previous: response.prev_kv }
    }
}

/// A deletion. Made from a key, or with [`Delete::keys`].
#[derive(Debug, Clone, PartialEq)]
pub struct Delete(pub(crate) proto::DeleteRangeRequest);

impl Delete {
    pub fn keys(keys: impl Into<Keys>) -> Delete {
        let Keys { key, end } = keys.into();
        Delete(proto::DeleteRangeRequest { key, range_end: end, prev_kv: false })
    }

    /// Answer with what was deleted.
    pub fn previous(mut self) -> Delete {
        self.0.prev_kv = true;
        self
    }
}

impl<Key: Into<Bytes>> From<Key> for Delete {
    fn from(key: Key) -> Delete {
        Delete::keys(Keys::one(key))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Deleted {
    pub header: Header,
    pub count: i64,
    pub previous: Vec<KeyValue>,
}

impl From<proto::DeleteRangeResponse> for Deleted {
    fn from(response: proto::DeleteRangeResponse) -> Deleted {
        Deleted { header: response.header.into(), count: response.deleted, previous: response.prev_kvs }
    }
}

impl Client {
    pub async fn get(&self, get: impl Into<Get>) -> Result<Found, Error> {
        let Get(request) = get.into();
        let call = |channel| {
            let request = request.clone();
            async move { kv(channel).range(request).await }
        };
        Ok(self.connections.call(Kind::read("get"), call).await?.into())
    }

    pub async fn put(&self, put: impl Into<Put>) -> Result<Written, Error> {
        let Put(request) = put.into();
        let call = |channel| {
            let request = request.clone();
            async move { kv(channel).put(request).await }
        };
        Ok(self.connections.call(Kind::write("put"), call).await?.into())
    }

    pub async fn delete(&self, delete: impl Into<Delete>) -> Result<Deleted, Error> {
        let Delete(request) = delete.into();
        let call = |channel| {
            let request = request.clone();
            async move { kv(channel).delete_range(request).await }
        };
        Ok(self.connections.call(Kind::write("delete"), call).await?.into())
    }

    /// Forgets the history before a revision. `physical`: answer only when the space is given back.
    pub async fn compact(&self, revision: Revision, physical: bool) -> Result<Header, Error> {
        let request = proto::CompactionRequest { revision, physical };
        let call = |channel| async move { kv(channel).compact(request).await };
        Ok(self.connections.call(Kind::write("compact"), call).await?.header.into())
    }
}

/// Answers may be of any size: the server has limits of its own.
pub(crate) fn kv(channel: TimedChannel) -> KvClient<TimedChannel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}
