//! Bugs put in on purpose, at the seams between replica, disk and clients: a simulation that finds
//! nothing must first show that it would.

use tenure_machine::View;
use tenure_replica::{Answered, Input, Notice, Output};

use crate::request::{Call, Request};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The log says "durable" when it begins to write.
    AcknowledgeEarly,
    /// Now and then an entry reaches the disk without its command.
    EmptyEntry,
    /// Ranges are answered from a state that was current a while ago.
    StaleRead,
    /// Some commands are proposed twice.
    ProposeTwice,
    /// Now and then a watch is not told of a change.
    SkipNotice,
    /// The member is never told that a call was given up.
    IgnoreCancel,
    /// Members' clocks run three times too fast.
    FastClock,
    /// A member that comes back with an empty disk is taken for the one it was.
    WelcomeStrangers,
}

impl Planted {
    pub const ALL: [Planted; 8] = [
        Planted::AcknowledgeEarly,
        Planted::EmptyEntry,
        Planted::StaleRead,
        Planted::ProposeTwice,
        Planted::SkipNotice,
        Planted::IgnoreCancel,
        Planted::FastClock,
        Planted::WelcomeStrangers,
    ];
}

/// What a planted bug remembers.
#[derive(Default)]
pub struct Memory {
    old: Option<View>,
    outputs: u64,
}

impl Memory {
    pub fn spoil_inputs(&mut self, planted: Planted, inputs: &mut Vec<Input>) {
        match planted {
            Planted::IgnoreCancel => inputs.retain(|input| !matches!(input, Input::Cancel { .. })),
            Planted::ProposeTwice => {
                let twice = inputs.iter().find_map(|input| match input {
                    Input::Propose { call, command } if call % 16 == 0 => {
                        Some(Input::Propose { call: *call, command: command.clone() })
                    }
                    _ => None,
                });
                inputs.extend(twice);
            }
            _ => {}
        }
    }

    /// False = the output is lost.
    pub fn spoil_output(&mut self, planted: Planted, view: View, call: Option<&Call>, output: &mut Output) -> bool {
        self.outputs += 1;
        match (planted, output) {
            (Planted::StaleRead, Output::Answer { answer, .. }) => {
                if let Some(Request::Range(query, _)) = call.map(|call| &call.request)
                    && let Ok(Answered::Range(reply)) = &mut answer.result
                    && let Some(Ok(old)) = self.old.as_ref().map(|old| old.range(query))
                {
                    *reply = old;
                }
                if self.outputs.is_multiple_of(8) {
                    self.old = Some(view);
                }
                true
            }
            (Planted::SkipNotice, Output::Notice { notice: Notice::Commits { .. }, .. }) => {
                !self.outputs.is_multiple_of(16)
            }
            _ => true,
        }
    }
}
