//! What can be told about a command before it is proposed: services refuse here what no state could make right.
//!
//! The rules are etcd's. Apply does not depend on them: it stays within bounds on any command.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Delete, Keys, Op, Put, RangeQuery, Refusal, Txn, limits};

impl Put {
    pub fn check(&self) -> Result<(), Refusal> {
        if self.key.is_empty() {
            return Err(Refusal::EmptyKey);
        }
        if self.ignore_value && !self.value.is_empty() {
            return Err(Refusal::ValueProvided);
        }
        if self.ignore_lease && self.lease != 0 {
            return Err(Refusal::LeaseProvided);
        }
        Ok(())
    }
}

impl Delete {
    pub fn check(&self) -> Result<(), Refusal> {
        self.keys.check()
    }
}

impl RangeQuery {
    pub fn check(&self) -> Result<(), Refusal> {
        self.keys.check()
    }
}

impl Keys {
    pub fn check(&self) -> Result<(), Refusal> {
        let (Keys::One(key) | Keys::Span { from: key, .. }) = self;
        if key.is_empty() { Err(Refusal::EmptyKey) } else { Ok(()) }
    }
}

impl Txn {
    pub fn check(&self) -> Result<(), Refusal> {
        self.check_operations(limits::TXN_OPERATIONS, 1)?;
        // Overlaps come second, when the size is known to be sane.
        Written::by(&self.success)?;
        Written::by(&self.failure)?;
        Ok(())
    }

    /// Nested transactions share what their parent's longest list leaves of the limit.
    fn check_operations(&self, limit: usize, depth: usize) -> Result<(), Refusal> {
        if depth > limits::TXN_NESTING {
            return Err(Refusal::NestedTooDeep);
        }
        let longest = self.compare.len().max(self.success.len()).max(self.failure.len());
        let left = limit.checked_sub(longest).ok_or(Refusal::TooManyOperations)?;
        for compare in &self.compare {
            compare.keys.check()?;
        }
        for op in self.success.iter().chain(&self.failure) {
            match op {
                Op::Range(range) => range.check()?,
                Op::Put(put) => put.check()?,
                Op::Delete(delete) => delete.check()?,
                Op::Txn(txn) => txn.check_operations(left, depth + 1)?,
            }
        }
        Ok(())
    }
}

/// All that a list of operations may write, whichever way nested transactions go.
#[derive(Default)]
struct Written<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Deletes<'a>,
}

impl<'a> Written<'a> {
    /// Refuses a key that may be put twice, or put and deleted. A key put in one nested transaction
    /// and deleted in a later one passes, as it does in etcd: the order there is beyond doubt.
    fn by(ops: &'a [Op]) -> Result<Written<'a>, Refusal> {
        let mut written = Written::default();
        for op in ops {
            if let Op::Delete(delete) = op {
                written.deletes.add(&delete.keys);
            }
        }
        for op in ops {
            let Op::Txn(txn) = op else { continue };
            let success = Written::by(&txn.success)?;
            let failure = Written::by(&txn.failure)?;
            // Only one branch runs: what both put is put once. Each is checked against what stood before.
            if success.puts.iter().any(|key| written.conflicts(key))
                || failure.puts.iter().any(|key| written.conflicts(key))
            {
                return Err(Refusal::DuplicateKey);
            }
            written.puts.extend(success.puts);
            written.puts.extend(failure.puts);
            written.deletes.join(success.deletes);
            written.deletes.join(failure.deletes);
        }
        for op in ops {
            let Op::Put(put) = op else { continue };
            if written.conflicts(&put.key) {
                return Err(Refusal::DuplicateKey);
            }
            written.puts.insert(&put.key);
        }
        Ok(written)
    }

    fn conflicts(&self, key: &[u8]) -> bool {
        self.puts.contains(key) || self.deletes.contain(key)
    }
}

#[derive(Default)]
struct Deletes<'a> {
    keys: BTreeSet<&'a [u8]>,
    /// From, and up to; merged, so that none overlaps another.
    spans: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Deletes<'a> {
    fn add(&mut self, keys: &'a Keys) {
        match keys {
            Keys::One(key) => {
                self.keys.insert(key);
            }
            Keys::Span { from, to: Some(to) } => self.add_span(from, to),
            // etcd does not see a span without an end here, and clients may count on that.
            Keys::Span { to: None, .. } => {}
        }
    }

    fn add_span(&mut self, mut from: &'a [u8], mut to: &'a [u8]) {
        if to <= from {
            return;
        }
        if let Some((&before, &end)) = self.spans.range(..=from).next_back()
            && end >= from
        {
            from = before;
            to = to.max(end);
        }
        while let Some((&next, &end)) = self.spans.range(from..).next()
            && next <= to
        {
            self.spans.remove(next);
            to = to.max(end);
        }
        self.spans.insert(from, to);
    }

    fn join(&mut self, other: Deletes<'a>) {
        self.keys.extend(other.keys);
        for (from, to) in other.spans {
            self.add_span(from, to);
        }
    }

    fn contain(&self, key: &[u8]) -> bool {
        self.keys.contains(key) || self.spans.range(..=key).next_back().is_some_and(|(_, to)| key < *to)
    }
}
