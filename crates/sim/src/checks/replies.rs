//! Every command that was answered was answered with what it did, at its place in the log.

use tenure_replica::{Answered, Failure};

use super::{Check, Context, Seen};
use crate::request::Request;

pub struct Replies;

impl Check for Replies {
    fn name(&self) -> &'static str {
        "K1/K3: a reply is what the command did"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        let Seen::Answered { call, answer, .. } = seen else { return Ok(()) };
        let Request::Propose(command) = &call.request else { return Ok(()) };
        let reply = match &answer.result {
            Ok(Answered::Reply(reply)) => Ok(reply.clone()),
            Err(Failure::Refused(refusal)) => Err(refusal.clone()),
            // Whatever became of the command, nobody was told.
            Err(Failure::TimedOut) => return Ok(()),
            Err(Failure::NoLeader | Failure::Overloaded) if call.index.is_none() => return Ok(()),
            other => return Err(format!("{command:?} was answered {other:?}")),
        };
        let Some(index) = call.index else {
            return Err(format!("{command:?} was answered {reply:?}, but never stood in the log"));
        };
        let Some((expected, revision)) = context.reference.result(index) else {
            return Err(format!("{command:?} was answered {reply:?} before entry {index} was applied"));
        };
        if reply != *expected {
            return Err(format!("{command:?} at entry {index} was answered {reply:?}, not {expected:?}"));
        }
        if answer.revision != *revision {
            let header = answer.revision;
            return Err(format!("{command:?} at entry {index}: the header says revision {header}, not {revision}"));
        }
        Ok(())
    }
}
