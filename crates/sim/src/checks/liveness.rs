//! Every call is answered: with a reason if not with an answer, once, and in bounded time after all faults are over,
//! waiting locks included.
//!
//! What it would not notice: how long a call takes while faults strike; an answer that comes late, but before the world
//! settles; a failure that is allowed and given too often; a wait that ends only because another client gave its lock
//! back.

use std::collections::BTreeMap;

use tenure_replica::{CallId, Failure};

use super::{Check, Context, Seen, slack_us};
use crate::request::Request;

#[derive(Default)]
pub struct Liveness {
    open: BTreeMap<CallId, String>,
}

impl Check for Liveness {
    fn name(&self) -> &'static str {
        "L8/liveness: every call is answered, for a reason"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Died { lost, .. } => self.open.retain(|id, _| !lost.contains(id)),
            Seen::Issued { id, call } => {
                self.open.insert(*id, format!("{:?}", call.request));
            }
            Seen::Cancelled { id, .. } => {
                self.open.remove(id);
            }
            Seen::Answered { id, call, answer, .. } => {
                self.open.remove(id);
                let request = &call.request;
                let timeout_us = context.plan.replica.call_timeout_ms * 1000;
                let waited_us = context.now_us.saturating_sub(call.issued_us);
                let is_alone = context.plan.members == 1 && !context.plan.has_changes();
                return match &answer.result {
                    // It takes a leader that has saved a snapshot, and goes on when its caller has given up.
                    Err(Failure::TimedOut | Failure::Leading) if matches!(request, Request::Reseed) => Ok(()),
                    // No state differs in this world.
                    Err(Failure::Corrupt) => Err(format!("{request:?} was refused: {}", Failure::Corrupt)),
                    // Raft gives a transfer up after an election timeout.
                    Err(Failure::TimedOut) if matches!(request, Request::TransferLeader(_)) => Ok(()),
                    Err(Failure::TimedOut) if waited_us + slack_us(timeout_us, context.plan) < timeout_us => {
                        Err(format!("{request:?} timed out after {waited_us} us"))
                    }
                    Err(Failure::Overloaded) if context.plan.replica.inflight_bytes < 1 << 20 => Ok(()),
                    Err(Failure::LeaderChanged | Failure::OutcomeUnknown) if !is_alone => Ok(()),
                    Err(
                        failure @ (Failure::LeaderChanged
                        | Failure::OutcomeUnknown
                        | Failure::Overloaded
                        | Failure::TooLarge
                        | Failure::Stopping),
                    ) => Err(format!("{request:?} failed: {failure}")),
                    _ => Ok(()),
                };
            }
            Seen::Settled | Seen::Ended => {
                if let Some((id, request)) = self.open.first_key_value() {
                    return Err(format!("call {id} was never answered: {request}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
