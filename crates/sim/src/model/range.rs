//! Reading the model, with a range's options applied one after the other.

use tenure_machine::{RangeQuery, RangeReply, Revision, SortOrder, SortTarget};

use super::Model;

impl Model {
    /// What the query gives at `revision`, whatever the query itself says about revisions.
    pub fn range(&self, query: &RangeQuery, revision: Revision) -> RangeReply {
        let mut kvs: Vec<_> = self.at(&query.keys, revision).cloned().collect();
        let count = kvs.len() as i64;
        if query.count_only {
            return RangeReply { kvs: Vec::new(), more: false, count, keys_only: query.keys_only };
        }
        let least = |value: Revision, bound: Revision| bound == 0 || value >= bound;
        let most = |value: Revision, bound: Revision| bound == 0 || value <= bound;
        kvs.retain(|kv| {
            least(kv.mod_revision, query.min_mod_revision) && most(kv.mod_revision, query.max_mod_revision)
        });
        kvs.retain(|kv| {
            least(kv.create_revision, query.min_create_revision) && most(kv.create_revision, query.max_create_revision)
        });
        match query.sort_target {
            SortTarget::Key => {}
            SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
            SortTarget::CreateRevision => kvs.sort_by_key(|kv| kv.create_revision),
            SortTarget::ModRevision => kvs.sort_by_key(|kv| kv.mod_revision),
            SortTarget::Value => kvs.sort_by_key(|kv| kv.value.clone()),
        }
        if query.sort_order == SortOrder::Descend {
            // Equal ones stay in key order both ways: reverse the groups, not what is within them.
            kvs.reverse();
            let equal = |left: &tenure_machine::KeyValue, right: &tenure_machine::KeyValue| match query.sort_target {
                SortTarget::Key => false,
                SortTarget::Version => left.version == right.version,
                SortTarget::CreateRevision => left.create_revision == right.create_revision,
                SortTarget::ModRevision => left.mod_revision == right.mod_revision,
                SortTarget::Value => left.value == right.value,
            };
            for group in kvs.chunk_by_mut(|left, right| equal(left, right)) {
                group.reverse();
            }
        }
        let more = query.limit > 0 && kvs.len() as i64 > query.limit;
        if more {
            kvs.truncate(query.limit as usize);
        }
        RangeReply { kvs, more, count, keys_only: query.keys_only }
    }
}
