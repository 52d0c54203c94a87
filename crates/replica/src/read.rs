//! Reads that must see everything acknowledged before them, and all else that needs the leader to
//! know that it still leads: renewals of leases, and grants of locks before they are told.
//!
//! Whatever comes in one step shares one confirmation; the next step begins another without waiting
//! for it, so that nobody waits for more than one round trip.

use std::collections::VecDeque;

use raft::StateRole;
use tenure_machine::{LeaseId, LockEnd, LockReply, Refusal, SharedBytes};

use crate::propose::keys_of;
use crate::{Answered, CallId, Failure, LeaseStatus, Read, Replica};

impl Replica {
    pub(crate) fn issue_reads(&mut self) {
        // Raft drops the question without a word before it has committed in its term, or without a leader.
        let raft = &self.node.raft;
        let answerable = match raft.state {
            StateRole::Leader => raft.commit_to_current_term(),
            _ => raft.leader_id != raft::INVALID_ID,
        };
        if answerable && let Some(context) = self.reads.issue(self.running_ms()) {
            let mut bytes = self.config.boot.to_be_bytes().to_vec();
            bytes.extend(context.to_be_bytes());
            self.node.read_index(bytes);
        }
    }

    pub(crate) fn own_context(&self, bytes: &[u8]) -> Option<u64> {
        let (boot, context) = bytes.split_first_chunk::<8>()?;
        let context: [u8; 8] = context.try_into().ok()?;
        (u64::from_be_bytes(*boot) == self.config.boot).then(|| u64::from_be_bytes(context))
    }

    pub(crate) fn do_confirmed(&mut self) {
        while let Some(confirmed) = self.reads.take_ready(self.machine.applied_index()) {
            for waiting in confirmed {
                match waiting.what {
                    Confirmed::Read { call, read } => self.read(call, read),
                    Confirmed::KeepAlive { call, lease, epoch } => self.keep_alive(call, lease, epoch),
                    Confirmed::Grant { call, reply, joiner } => match self.why_ended(&reply) {
                        None => self.answer(call, Ok(Answered::Lock(reply))),
                        Some(cause) => {
                            // A place may be there still, under a key that somebody took the lease from.
                            self.leave(&reply, joiner);
                            self.fail(call, Failure::EntryEnded(cause));
                        }
                    },
                }
            }
        }
    }

    /// None while the grant that the caller would be told of still stands.
    fn why_ended(&self, reply: &LockReply) -> Option<LockEnd> {
        let state = self.machine.state();
        let stands = |key: &SharedBytes| {
            state.lock_grant(key, reply.token).is_some_and(|entry| state.lease_ttl_ms(entry.lease).is_some())
        };
        if keys_of(reply).all(stands) {
            return None;
        }
        let ended = state.recent_holders().rev().find(|holder| holder.token == reply.token);
        Some(ended.map_or(LockEnd::LeaseExpired, |holder| holder.cause))
    }

    pub(crate) fn keep_alive(&mut self, call: CallId, lease: LeaseId, epoch: u64) {
        if !self.leading {
            return self.fail(call, Failure::LeaderChanged);
        }
        if epoch != 0 && self.machine.state().session_epoch(lease).is_some_and(|current| current != epoch) {
            return self.fail(call, Failure::Refused(Refusal::SessionResumed));
        }
        if self.deadlines.wait_for_expiry(lease, call) {
            return;
        }
        let ttl_ms = self.machine.state().lease_ttl_ms(lease);
        if let Some(ttl_ms) = ttl_ms {
            self.deadlines.set(lease, self.running_ms() + ttl_ms);
        }
        self.answer(call, Ok(Answered::KeptAlive { ttl_ms }));
    }

    pub(crate) fn read(&mut self, call: CallId, read: Read) {
        let state = self.machine.state();
        let result = match read {
            Read::Range(query) => match state.range_within(&query, self.config.range_budget) {
                Some(result) => result.map(Answered::Range).map_err(Failure::from),
                None => Ok(Answered::View(Box::new(self.machine.view()))),
            },
            Read::View => Ok(Answered::View(Box::new(self.machine.view()))),
            Read::LeaseTimeToLive(_) | Read::LeaseTimes(_) if !self.leading => Err(Failure::LeaderChanged),
            Read::LeaseTimes(leases) => {
                Ok(Answered::LeaseTimes(leases.into_iter().map(|lease| self.lease_status(lease)).collect()))
            }
            Read::LeaseTimeToLive(lease) => Ok(Answered::LeaseTimeToLive(self.lease_status(lease))),
        };
        self.answer(call, result);
    }

    pub(crate) fn lease_status(&self, lease: LeaseId) -> Option<LeaseStatus> {
        let ttl_ms = self.machine.state().lease_ttl_ms(lease)?;
        let deadline = self.deadlines.deadline(lease)?;
        Some(LeaseStatus { lease, ttl_ms, remaining_ms: deadline.saturating_sub(self.running_ms()) })
    }
}

/// Something to do once leadership is confirmed and the confirmed index is applied.
pub(crate) enum Confirmed {
    Read {
        call: CallId,
        read: Read,
    },
    KeepAlive {
        call: CallId,
        lease: LeaseId,
        epoch: u64,
    },
    /// Tell the caller that it holds the lock, if the grant still stands then.
    Grant {
        call: CallId,
        reply: LockReply,
        joiner: u128,
    },
}

impl Confirmed {
    pub(crate) fn call(&self) -> CallId {
        match self {
            Confirmed::Read { call, .. } | Confirmed::KeepAlive { call, .. } | Confirmed::Grant { call, .. } => *call,
        }
    }
}

pub(crate) struct Waiting {
    pub(crate) since_ms: u64,
    pub(crate) what: Confirmed,
}

struct Round {
    context: u64,
    issued_ms: u64,
    waiting: Vec<Waiting>,
}

#[derive(Default)]
pub(crate) struct Reads {
    gathering: Vec<Waiting>,
    issued: VecDeque<Round>,
    /// Confirmed at this index, to be done once it is applied.
    confirmed: VecDeque<(u64, Vec<Waiting>)>,
    next_context: u64,
}

impl Reads {
    pub(crate) fn gather(&mut self, what: Confirmed, now_ms: u64) {
        self.gathering.push(Waiting { since_ms: now_ms, what });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.gathering.is_empty() && self.issued.is_empty() && self.confirmed.is_empty()
    }

    /// Starts a confirmation for all that has gathered; gives its context, never used twice.
    pub(crate) fn issue(&mut self, now_ms: u64) -> Option<u64> {
        if self.gathering.is_empty() {
            return None;
        }
        self.next_context += 1;
        let waiting = std::mem::take(&mut self.gathering);
        self.issued.push_back(Round { context: self.next_context, issued_ms: now_ms, waiting });
        Some(self.next_context)
    }

    pub(crate) fn confirm(&mut self, context: u64, index: u64) {
        if let Some(position) = self.issued.iter().position(|round| round.context == context) {
            let round = self.issued.remove(position).expect("position is inside");
            self.confirmed.push_back((index, round.waiting));
        }
    }

    /// All that may be done now that `applied` is applied.
    pub(crate) fn take_ready(&mut self, applied: u64) -> Option<Vec<Waiting>> {
        let position = self.confirmed.iter().position(|(index, _)| *index <= applied)?;
        self.confirmed.remove(position).map(|(_, waiting)| waiting)
    }

    /// Rounds that raft never answered (it drops them without a word) begin again under a new context:
    /// a delayed answer to the old one must confirm nothing.
    pub(crate) fn retry_older_than(&mut self, issued_before_ms: u64) {
        while self.issued.front().is_some_and(|round| round.issued_ms < issued_before_ms) {
            let round = self.issued.pop_front().expect("there is a front");
            self.gathering.extend(round.waiting);
        }
    }

    /// Takes out every call that has waited since before `since_ms`.
    pub(crate) fn take_older_than(&mut self, since_ms: u64) -> Vec<Waiting> {
        self.take_where(|waiting| waiting.since_ms < since_ms)
    }

    pub(crate) fn take_calls(&mut self, is_taken: impl Fn(CallId) -> bool) -> Vec<Waiting> {
        self.take_where(|waiting| is_taken(waiting.what.call()))
    }

    /// What only the leader of its term may do, when it leads no more.
    pub(crate) fn take_leaders_own(&mut self) -> Vec<CallId> {
        self.take_where(|waiting| {
            let is_of_lease = |read: &Read| matches!(read, Read::LeaseTimeToLive(_) | Read::LeaseTimes(_));
            match &waiting.what {
                Confirmed::KeepAlive { .. } => true,
                Confirmed::Read { read, .. } => is_of_lease(read),
                Confirmed::Grant { .. } => false,
            }
        })
        .into_iter()
        .map(|waiting| waiting.what.call())
        .collect()
    }

    fn take_where(&mut self, matches: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut taken = Vec::new();
        let rounds = self.issued.iter_mut().map(|round| &mut round.waiting);
        let confirmed = self.confirmed.iter_mut().map(|(_, waiting)| waiting);
        for waiting in std::iter::once(&mut self.gathering).chain(rounds).chain(confirmed) {
            if waiting.iter().any(&matches) {
                let (out, kept) = std::mem::take(waiting).into_iter().partition(&matches);
                *waiting = kept;
                taken.extend::<Vec<Waiting>>(out);
            }
        }
        taken
    }
}
