//! The hash of all keys up to a revision, for members to compare at a revision that all have reached.
//!
//! It covers what is live at the compacted revision and every version after it, so two members give
//! the same only if their compacted revisions are the same: it is returned along with the hash.

use crate::encoding::{put_bytes, put_signed};
use crate::mvcc::Store;
use crate::{KeyValue, Refusal, Revision};

pub(crate) fn hash_keys(store: &Store, revision: Revision) -> Result<(u32, Revision), Refusal> {
    store.check_revision(revision, store.revision)?;
    let last = if revision <= 0 { store.revision } else { revision };
    let mut scratch = Vec::new();
    put_signed(&mut scratch, store.compacted);
    // The hash of no keys at all is a number too: on the wire 0 would look like none.
    let mut hash = crc32c::crc32c(&scratch);
    for (_, record) in store.records_after(None) {
        if let Some(kv) = record.at(store.compacted) {
            hash = append(hash, kv, &mut scratch);
        }
    }
    let commits = store.history.from(store.compacted.saturating_add(1));
    for commit in commits.take_while(|commit| commit.revision <= last) {
        for event in commit.events.iter() {
            hash = append(hash, &event.kv, &mut scratch);
        }
    }
    Ok((hash, store.compacted))
}

fn append(hash: u32, kv: &KeyValue, scratch: &mut Vec<u8>) -> u32 {
    scratch.clear();
    put_bytes(scratch, &kv.key);
    put_bytes(scratch, &kv.value);
    for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
        put_signed(scratch, number);
    }
    crc32c::crc32c_append(hash, scratch)
}
