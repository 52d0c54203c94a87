//! Bugs put in on purpose: a simulation that finds nothing must first show that it would.
//!
//! Some are put in at the seams between replica, disk and clients, here. The others stand in the rooms
//! themselves, behind a feature that only builds of tests turn on, and are switched on from here.

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
    /// Members are never told that a call was given up.
    IgnoreCancel,
    /// Members' clocks run three times too fast.
    FastClock,
    /// A member that comes back with an empty disk is taken for the one it was.
    WelcomeStrangers,
    /// A snapshot bears another index than its state.
    StateApart,
    /// What has nothing to write is acknowledged before what was written earlier is durable.
    AcknowledgeEmpty,
    /// To a client's lifecycle a confirmation counts from when it came, not from when it was asked for.
    CountFromAnswer,
    /// Members keep all of their log in memory.
    KeepTail,
    /// Now and then a watch's cursor forgets what it has just delivered.
    ForgetTaken,
    /// A watch takes the revision of the message that creates it for what it has seen.
    TrustCreated,
    /// The client's rule takes every call for one that may be repeated.
    RepeatInDoubt,
    #[cfg(feature = "planted")]
    Inside(tenure_machine::planted::Bug),
    #[cfg(feature = "planted")]
    InStorage(tenure_storage::planted::Bug),
    #[cfg(feature = "planted")]
    InClient(tenure_client::planted::Bug),
}

impl Planted {
    pub fn all() -> Vec<Planted> {
        use Planted::*;
        #[allow(unused_mut)]
        let mut all = vec![
            AcknowledgeEarly,
            EmptyEntry,
            StaleRead,
            ProposeTwice,
            SkipNotice,
            IgnoreCancel,
            FastClock,
            WelcomeStrangers,
            StateApart,
            AcknowledgeEmpty,
            CountFromAnswer,
            KeepTail,
            ForgetTaken,
            TrustCreated,
            RepeatInDoubt,
        ];
        #[cfg(feature = "planted")]
        {
            use tenure_machine::planted::Bug;
            use tenure_storage::planted::Bug as StorageBug;
            let inside = [
                Bug::GrantTheDead,
                Bug::RevisionFalls,
                Bug::LeaveAnybody,
                Bug::PutEndsPlace,
                Bug::ForgetOrigins,
                Bug::RenewUnconfirmed,
                Bug::ShareContext,
                Bug::SkipCompacted,
                Bug::SilentAfterInstall,
                Bug::FreeTheLiving,
                Bug::RenewTheExpiring,
                Bug::ForgetWaiters,
                Bug::GrantUnconfirmed,
                Bug::ForgetChange,
                Bug::SayNoLeader,
                Bug::GrantOutlived,
                Bug::RenewOtherMode,
                Bug::RenewInName,
                Bug::TellTheDead,
                Bug::ForgetGivenUp,
                Bug::NoticesOutOfOrder,
                Bug::StopLeaseClock,
                Bug::UnboundedApply,
                Bug::MissCircle,
                Bug::RefuseWithoutCircle,
                Bug::EndAwaitedOnly,
                Bug::ForgetDue,
                Bug::ForgetRest,
                Bug::ContinueOnce,
                Bug::ContinueAgain,
            ];
            all.extend(inside.map(Inside));
            let in_storage = [
                StorageBug::BelieveTornBatch,
                StorageBug::NameUnsynced,
                StorageBug::TakeFile,
                StorageBug::BelieveChunk,
            ];
            all.extend(in_storage.map(InStorage));
            use tenure_client::planted::Bug as ClientBug;
            all.extend([ClientBug::KeepUnread, ClientBug::ForgetAsked].map(InClient));
        }
        all
    }

    /// As it is named on the command line.
    pub fn name(self) -> String {
        match self {
            #[cfg(feature = "planted")]
            Planted::Inside(bug) => format!("{bug:?}"),
            #[cfg(feature = "planted")]
            Planted::InStorage(bug) => format!("{bug:?}"),
            #[cfg(feature = "planted")]
            Planted::InClient(bug) => format!("{bug:?}"),
            seam => format!("{seam:?}"),
        }
    }
}

/// Switches the bugs inside the rooms on or off, for this thread.
pub fn switch(planted: Option<Planted>) {
    #[cfg(feature = "planted")]
    {
        let (mut inside, mut in_storage, mut in_client) = (None, None, None);
        match planted {
            Some(Planted::Inside(bug)) => inside = Some(bug),
            Some(Planted::InStorage(bug)) => in_storage = Some(bug),
            Some(Planted::InClient(bug)) => in_client = Some(bug),
            _ => {}
        }
        tenure_client::planted::plant(in_client);
        tenure_machine::planted::plant(inside);
        tenure_storage::planted::plant(in_storage);
    }
    let _ = planted;
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
            Planted::IgnoreCancel => {
                inputs.retain(|input| !matches!(input, Input::Cancel { .. } | Input::CancelLock { .. }))
            }
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
