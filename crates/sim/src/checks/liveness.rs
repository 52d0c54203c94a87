//! Every call is answered: with a reason if not with an answer, once, and in bounded time after all
//! faults are over, waiting locks included.

use std::collections::BTreeMap;

use tenure_replica::{CallId, Failure};

use super::{Check, Context, Seen};

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
            Seen::Died => self.open.clear(),
            Seen::Issued { id, call } => {
                self.open.insert(*id, format!("{:?}", call.request));
            }
            Seen::Cancelled { id, .. } => {
                self.open.remove(id);
            }
            Seen::Answered { id, call, answer, .. } => {
                self.open.remove(id);
                let waited_ms = (context.now_us - call.issued_us) / 1000;
                let timeout_ms = context.plan.replica.call_timeout_ms;
                let request = &call.request;
                return match &answer.result {
                    Err(Failure::TimedOut | Failure::NoLeader) if waited_ms + 1 < timeout_ms => {
                        Err(format!("{request:?} timed out after {waited_ms} ms"))
                    }
                    Err(Failure::Overloaded) if context.plan.replica.inflight_bytes < 1 << 20 => Ok(()),
                    Err(
                        failure
                        @ (Failure::LeaderChanged | Failure::Overloaded | Failure::TooLarge | Failure::Stopping),
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
