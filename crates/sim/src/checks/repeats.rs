//! A write takes effect once, however often the real client's rule sends it.
//!
//! Every value is unique, so that a second effect of a write is known by its value. Only clients count that leave it to
//! the rule to repeat their calls.
//!
//! What it would not notice: a delete that takes effect twice, because deletes are not unique; a write that is never
//! repeated although it could be.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::{Command, Op, Txn};

use super::{Check, Context, Seen};
use crate::request::Request;

#[derive(Default)]
pub struct Repeats {
    /// The entry at which each value was written.
    written: BTreeMap<Bytes, Option<u64>>,
}

impl Check for Repeats {
    fn name(&self) -> &'static str {
        "client: a write takes effect once"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Issued { call, .. } if context.plan.is_careful(call.client) => {
                if let Request::Propose(command) = &call.request
                    && let Some(value) = value(command)
                {
                    self.written.entry(value.clone()).or_default();
                }
            }
            Seen::Applied { index, command: Some(command), outcome } if outcome.wrote => {
                if let Some(value) = value(command)
                    && let Some(written) = self.written.get_mut(value)
                    && let Some(before) = written.replace(*index)
                {
                    return Err(format!("{command:?} takes effect at entry {before}, and again at entry {index}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The value by which a command can be told from all others.
fn value(command: &Command) -> Option<&Bytes> {
    match command {
        Command::Put(put) if !put.ignore_value => Some(&put.value),
        Command::Txn(txn) => value_in(txn),
        _ => None,
    }
}

fn value_in(txn: &Txn) -> Option<&Bytes> {
    txn.success.iter().chain(&txn.failure).find_map(|op| match op {
        Op::Put(put) => Some(&put.value),
        Op::Txn(nested) => value_in(nested),
        _ => None,
    })
}
