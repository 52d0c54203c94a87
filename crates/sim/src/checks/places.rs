//! A call that its client gave up, or that was told a failure, leaves no place behind: after healing its member has
//! left it, unless that member died meanwhile. Clients keep the lease alive until then, so that its end hides nothing.
//!
//! What it would not notice: a place that is left late, but before the world settles; a place whose member died after
//! the call was over, although it had time enough to leave before that; a place of a lease that ends while faults
//! strike.

use super::{Check, Context, Seen};

pub struct Places;

impl Check for Places {
    fn name(&self) -> &'static str {
        "L6: no place outlives its call"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let Seen::Settled = seen else { return Ok(()) };
        match context.fates.left_behind(&context.reference.model).next() {
            Some((place, asked)) => {
                let key = String::from_utf8_lossy(&place.key);
                Err(format!("{key} with token {} still stands in its queue, and {asked:?}", place.token))
            }
            None => Ok(()),
        }
    }
}
