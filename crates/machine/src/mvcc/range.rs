//! Reading a range of keys, now or at an earlier revision, with all of etcd's options.
//!
//! The order of things is etcd's and can be observed: the walk collects, the limit cuts early only
//! if nothing has to be sorted or filtered (one more than the limit is taken, to know whether there
//! is more), then filters, then sorting, then the limit again. A sort target other than the key
//! with no order sorts ascending what that early cut left.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use super::Store;
use super::keys::KeyRecord;
use crate::{KeyValue, Keys, RangeQuery, RangeReply, Refusal, Revision, SharedBytes, SortOrder, SortTarget};

impl Store {
    /// `current` is the newest revision there is: within a transaction that has written, its own.
    /// None once more than `budget` keys were walked.
    pub fn range(&self, query: &RangeQuery, current: Revision, budget: usize) -> Option<Result<RangeReply, Refusal>> {
        if let Err(refusal) = self.check_revision(query.revision, current) {
            return Some(Err(refusal));
        }
        let revision = if query.revision <= 0 { current } else { query.revision };
        let mut reply = RangeReply { keys_only: query.keys_only, ..RangeReply::default() };
        let take = if query.count_only { 0 } else { early_limit(query) };
        let mut left = budget;
        for record in self.records(&query.keys) {
            left = left.checked_sub(1)?;
            let Some(kv) = record.at(revision) else { continue };
            reply.count += 1;
            if reply.kvs.len() < take {
                reply.kvs.push(kv.clone());
            }
        }
        if has_filters(query) {
            reply.kvs.retain(|kv| passes(query, kv));
        }
        sort(query, &mut reply.kvs);
        if query.limit > 0 && reply.kvs.len() as u64 > query.limit as u64 {
            reply.kvs.truncate(query.limit as usize);
            reply.more = true;
        }
        Some(Ok(reply))
    }

    /// The live keys in `keys`, in order.
    pub fn live_in<'a>(&'a self, keys: &Keys) -> impl Iterator<Item = &'a Arc<KeyValue>> + 'a {
        self.records(keys).filter_map(KeyRecord::live)
    }

    /// Records in key order, beginning after `last`.
    pub fn records_after(&self, last: Option<&[u8]>) -> impl Iterator<Item = (&SharedBytes, &KeyRecord)> + '_ {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.keys.range::<_, [u8]>((from, Bound::Unbounded))
    }

    fn records<'a>(&'a self, keys: &Keys) -> impl Iterator<Item = &'a KeyRecord> + 'a {
        let (one, span) = match keys {
            Keys::One(key) => (self.keys.get(&key[..]), None),
            // The map's own range would panic on bounds in the wrong order.
            Keys::Span { from, to: Some(to) } if to <= from => (None, None),
            Keys::Span { from, to } => {
                let to = to.as_ref().map_or(Bound::Unbounded, |to| Bound::Excluded(&to[..]));
                (None, Some(self.keys.range::<_, [u8]>((Bound::Included(&from[..]), to))))
            }
        };
        one.into_iter().chain(span.into_iter().flatten().map(|(_, record)| record))
    }
}

/// How many versions the walk keeps.
fn early_limit(query: &RangeQuery) -> usize {
    let in_key_order = query.sort_order == SortOrder::None
        || (query.sort_target == SortTarget::Key && query.sort_order == SortOrder::Ascend);
    if query.limit <= 0 || !in_key_order || has_filters(query) {
        return usize::MAX;
    }
    usize::try_from(query.limit).unwrap_or(usize::MAX).saturating_add(1)
}

fn has_filters(query: &RangeQuery) -> bool {
    query.min_mod_revision != 0
        || query.max_mod_revision != 0
        || query.min_create_revision != 0
        || query.max_create_revision != 0
}

fn passes(query: &RangeQuery, kv: &KeyValue) -> bool {
    let within =
        |value: Revision, min: Revision, max: Revision| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(kv.mod_revision, query.min_mod_revision, query.max_mod_revision)
        && within(kv.create_revision, query.min_create_revision, query.max_create_revision)
}

/// Equal elements stay in key order, so that every member answers alike.
fn sort(query: &RangeQuery, kvs: &mut [Arc<KeyValue>]) {
    let compare: fn(&KeyValue, &KeyValue) -> Ordering = match query.sort_target {
        SortTarget::Key if query.sort_order != SortOrder::Descend => return,
        SortTarget::Key => |left, right| left.key.cmp(&right.key),
        SortTarget::Version => |left, right| left.version.cmp(&right.version),
        SortTarget::CreateRevision => |left, right| left.create_revision.cmp(&right.create_revision),
        SortTarget::ModRevision => |left, right| left.mod_revision.cmp(&right.mod_revision),
        SortTarget::Value => |left, right| left.value.cmp(&right.value),
    };
    match query.sort_order {
        SortOrder::Descend => kvs.sort_by(|left, right| compare(right, left)),
        SortOrder::None | SortOrder::Ascend => kvs.sort_by(|left, right| compare(left, right)),
    }
}
