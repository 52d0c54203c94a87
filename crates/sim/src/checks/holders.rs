//! A client that follows its lifecycle has stopped before time ends its lease.
//!
//! This is what all the rest is for: the next holder finds no other client at work. It holds by the client's own clock,
//! within the drift bound, whatever time a renewal and its answer took on their way.
//!
//! What it would not notice: a lease that ends by a revoke, or a place that ends by an operator, a delete or an unlock with
//! its token, while its client works on; work that a client does without a keeper; a clock of a client that stands still or
//! leaps, because clients' clocks only drift here.

use std::collections::BTreeMap;

use tenure_machine::{Command, LeaseId, Reply};

use super::{Check, Context, Seen};

#[derive(Default)]
pub struct Holders {
    /// Leases under which somebody works, and who.
    at_work: BTreeMap<LeaseId, usize>,
}

impl Check for Holders {
    fn name(&self) -> &'static str {
        "L3: who respects its deadline has stopped before its lease ends"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Believed { client, lease, holds: true } => drop(self.at_work.insert(*lease, *client)),
            Seen::Believed { lease, holds: false, .. } => drop(self.at_work.remove(lease)),
            Seen::Applied { command: Some(Command::LeaseExpire { leases, .. }), outcome, .. }
                if matches!(outcome.reply, Ok(Reply::LeasesExpired { expired: 1.. })) =>
            {
                let model = &context.reference.model;
                let mut ended = leases.iter().filter(|lease| model.lease(**lease).is_none());
                if let Some((lease, client)) = ended.find_map(|lease| Some((lease, self.at_work.get(lease)?))) {
                    return Err(format!("lease {lease:x} ends while client {client} may still work under it"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
