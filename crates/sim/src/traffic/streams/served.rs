//! The member's side of a session stream. It mirrors the server's session service
//! (`server/src/services/tenure_lock/session.rs`): that one reads and writes protobuf messages, counts and signs as it
//! goes, and cannot be run without IO. What it puts to the replica, and what it makes of each answer, is the same here.
//! Not mirrored: signatures, warnings, places in queues, the closing of a session over its stream, and the limit of
//! requests under way. That a member is overloaded is drawn by chance.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tenure_client::lifecycle::Cause;
use tenure_client::requests::{Held, Number, Refusal};
use tenure_machine::{Command, LeaseId, Leave, Lock, LockEnd, MemberId, Reply, Unlock, View};
use tenure_replica::{Answered, CallId, Failure, SessionNotice};

use super::{Asked, Down, Mail, Up};
use crate::request::Request;

pub struct Served {
    pub member: MemberId,
    /// Which of the member's lives serves it.
    pub life: u64,
    lease: LeaseId,
    epoch: u64,
    ttl_ms: u64,
    is_open: bool,
    under_way: BTreeMap<CallId, UnderWay>,
    timeouts: BTreeSet<(u64, CallId)>,
    /// Locks that were given up, by their numbers, with the places that are not left yet. Their callers are told when the
    /// last one is left.
    given_up: BTreeMap<Number, usize>,
    /// Notices that have come while the stream was being opened.
    early: Vec<SessionNotice>,
}

pub struct UnderWay {
    pub number: Number,
    pub what: What,
}

/// What a call is for.
#[derive(Debug, Clone)]
pub enum What {
    /// Takes the session over.
    Resume,
    /// Renews the lease because the stream is opened.
    FirstRenewal,
    /// Lists what is held.
    List,
    Lock {
        timeout_us: Option<u64>,
        /// Give it up.
        leaves: Vec<Leave>,
    },
    /// Leaves one place of a Lock that was given up.
    Leave,
    Unlock,
    Renew,
}

/// What follows from what a stream hears.
pub enum Deed {
    Call {
        number: Number,
        what: What,
        request: Box<Request>,
    },
    /// The replica tells the stream of losses from now on.
    Follow {
        lease: LeaseId,
    },
    /// Gives up a waiting Lock.
    GiveUp(CallId),
    Tell(Down),
    /// The stream ends.
    End,
}

impl Served {
    pub fn new(member: MemberId, life: u64) -> Served {
        Served {
            member,
            life,
            lease: 0,
            epoch: 0,
            ttl_ms: 0,
            is_open: false,
            under_way: BTreeMap::new(),
            timeouts: BTreeSet::new(),
            given_up: BTreeMap::new(),
            early: Vec::new(),
        }
    }

    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    pub fn called(&mut self, call: CallId, number: Number, what: What) {
        if let What::Lock { timeout_us: Some(timeout_us), .. } = what {
            self.timeouts.insert((timeout_us, call));
        }
        self.under_way.insert(call, UnderWay { number, what });
    }

    /// The calls that nobody waits for when the stream is gone.
    pub fn calls(&self) -> impl Iterator<Item = CallId> {
        self.under_way.keys().copied()
    }

    pub fn next_timeout_us(&self) -> Option<u64> {
        self.timeouts.first().map(|(due_us, _)| *due_us)
    }

    /// `joiner` is drawn for a Lock, and `is_overloaded` says that the member takes none now.
    pub fn asked(&mut self, up: Up, now_us: u64, joiner: u128, is_overloaded: bool) -> Vec<Deed> {
        match up {
            Up::Open { lease } => {
                self.lease = lease;
                vec![propose(0, What::Resume, Command::ResumeSession { lease })]
            }
            Up::Lock { number, .. } if is_overloaded => {
                vec![Deed::Tell(Down::Refused { number, refusal: Refusal::Overloaded })]
            }
            Up::Lock { number, asked } => {
                let timeout_us = asked.timeout_ms.filter(|ms| *ms > 0).map(|ms| now_us + ms * 1000);
                let lock = self.lock(asked, joiner);
                let what = What::Lock { timeout_us, leaves: lock.leaves() };
                vec![Deed::Call { number, what, request: Box::new(Request::Lock(lock)) }]
            }
            Up::Cancel { of } => {
                let is_it = |(_, under_way): &(&CallId, &UnderWay)| {
                    under_way.number == of && matches!(under_way.what, What::Lock { .. })
                };
                let call = self.under_way.iter().find(is_it).map(|(call, _)| *call);
                call.map_or(Vec::new(), |call| self.give_up(call))
            }
            Up::Unlock { number, names, token } => {
                let names = names.into_iter().map(Bytes::from).collect();
                let unlock = Unlock { names, token, epoch: self.epoch };
                vec![propose(number, What::Unlock, Command::Unlock(unlock))]
            }
            Up::Renew { number } => {
                let request = Request::KeepAlive { lease: self.lease, epoch: self.epoch };
                vec![Deed::Call { number, what: What::Renew, request: Box::new(request) }]
            }
            Up::HangUp => vec![Deed::End],
        }
    }

    fn lock(&self, asked: Asked, joiner: u128) -> Lock {
        let mut names = asked.names.into_iter().map(Bytes::from);
        Lock {
            name: names.next().unwrap_or_default(),
            more_names: names.collect(),
            try_once: asked.timeout_ms == Some(0),
            epoch: self.epoch,
            lease: self.lease,
            call: joiner,
            mode: asked.mode,
            holder: Bytes::from_static(b"session"),
            ..Lock::default()
        }
    }

    /// Locks whose time is up.
    pub fn pass_time(&mut self, now_us: u64) -> Vec<Deed> {
        let mut deeds = Vec::new();
        while let Some((_, call)) = self.timeouts.first().copied().filter(|(due_us, _)| *due_us <= now_us) {
            deeds.extend(self.give_up(call));
        }
        deeds
    }

    fn give_up(&mut self, call: CallId) -> Vec<Deed> {
        match self.end_call(call) {
            Some(UnderWay { number, what: What::Lock { leaves, .. } }) => {
                self.given_up.insert(number, leaves.len());
                let leaves = leaves.into_iter().map(|leave| propose(number, What::Leave, Command::Leave(leave)));
                std::iter::once(Deed::GiveUp(call)).chain(leaves).collect()
            }
            _ => Vec::new(),
        }
    }

    fn end_call(&mut self, call: CallId) -> Option<UnderWay> {
        let under_way = self.under_way.remove(&call)?;
        if let What::Lock { timeout_us: Some(timeout_us), .. } = under_way.what {
            self.timeouts.remove(&(timeout_us, call));
        }
        Some(under_way)
    }

    pub fn heard(&mut self, mail: Mail) -> Vec<Deed> {
        match mail {
            Mail::Notice(notice) if !self.is_open => {
                self.early.push(notice);
                Vec::new()
            }
            Mail::Notice(notice) => tell_notice(notice),
            Mail::Answer(call, result) => match self.end_call(call) {
                Some(UnderWay { number, what }) => self.answered(number, what, result),
                // A Lock that was given up.
                None => Vec::new(),
            },
        }
    }

    fn answered(&mut self, number: Number, what: What, result: Result<Answered, Failure>) -> Vec<Deed> {
        match (what, result) {
            (What::Resume, Ok(Answered::Reply(Reply::SessionResumed { epoch, ttl_ms }))) => {
                (self.epoch, self.ttl_ms) = (epoch, ttl_ms);
                let request = Request::KeepAlive { lease: self.lease, epoch: 0 };
                vec![Deed::Call { number, what: What::FirstRenewal, request: Box::new(request) }]
            }
            (What::FirstRenewal, Ok(Answered::KeptAlive { ttl_ms: Some(_) })) => {
                let follow = Deed::Follow { lease: self.lease };
                vec![follow, Deed::Call { number, what: What::List, request: Box::new(Request::View) }]
            }
            (What::List, Ok(Answered::View(view))) => {
                self.is_open = true;
                let opened = Down::Opened { ttl_ms: self.ttl_ms, held: held(&view, self.lease) };
                let early = std::mem::take(&mut self.early);
                std::iter::once(Deed::Tell(opened)).chain(early.into_iter().flat_map(tell_notice)).collect()
            }
            (What::Lock { .. }, Ok(Answered::Lock(reply))) => {
                vec![Deed::Tell(Down::Granted { number, token: reply.token })]
            }
            (What::Leave, result) => self.left(number, result.is_ok()),
            (_, Ok(Answered::Reply(Reply::Busy(_)))) => {
                vec![Deed::Tell(Down::Refused { number, refusal: Refusal::Final })]
            }
            (_, Ok(Answered::Reply(Reply::Unlocked { released }))) => {
                vec![Deed::Tell(Down::Unlocked { number, released })]
            }
            (What::Renew, Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) })) => {
                self.ttl_ms = ttl_ms;
                vec![Deed::Tell(Down::Renewed { number, ttl_ms })]
            }
            // The lease is gone.
            (What::Renew | What::FirstRenewal, Ok(_)) => fail(true),
            (_, Ok(_)) => fail(false),
            (What::Resume | What::FirstRenewal | What::List | What::Renew, Err(failure)) => {
                fail(matches!(failure, Failure::Refused(tenure_machine::Refusal::LeaseNotFound)))
            }
            (What::Lock { .. } | What::Unlock, Err(failure)) => {
                vec![Deed::Tell(Down::Refused { number, refusal: meaning(&failure) })]
            }
        }
    }

    /// A leave is answered: the place is left, or it is not known whether it is.
    fn left(&mut self, number: Number, is_left: bool) -> Vec<Deed> {
        let Some(places) = self.given_up.get_mut(&number) else { return Vec::new() };
        *places -= usize::from(is_left);
        let refusal = match (is_left, *places) {
            (true, 0) => Refusal::Final,
            (true, _) => return Vec::new(),
            (false, _) => Refusal::Passing,
        };
        self.given_up.remove(&number);
        vec![Deed::Tell(Down::Refused { number, refusal })]
    }
}

fn propose(number: Number, what: What, command: Command) -> Deed {
    Deed::Call { number, what, request: Box::new(Request::Propose(command)) }
}

fn fail(is_verdict: bool) -> Vec<Deed> {
    vec![Deed::Tell(Down::Failed { is_verdict }), Deed::End]
}

fn tell_notice(notice: SessionNotice) -> Vec<Deed> {
    match notice {
        SessionNotice::Lost { token, cause, .. } => {
            let cause = match cause {
                LockEnd::LeaseExpired | LockEnd::LeaseRevoked => Cause::LeaseEnded,
                LockEnd::Released | LockEnd::Forced | LockEnd::Left => Cause::Taken,
            };
            vec![Deed::Tell(Down::Lost { token, cause })]
        }
        // The client does nothing about it.
        SessionNotice::LeaderChanged { .. } => Vec::new(),
    }
}

fn held(view: &View, lease: LeaseId) -> Held {
    let mut held = Held::new();
    for (name, entry) in view.lease_entries(lease).filter(|(_, entry)| entry.granted_wall_ms.is_some()) {
        held.entry(entry.token).or_default().insert(String::from_utf8_lossy(name).into_owned());
    }
    held
}

/// What the client makes of the status that the server gives for a failure.
fn meaning(failure: &Failure) -> Refusal {
    use tenure_machine::Refusal as Refused;
    match failure {
        Failure::NoLeader
        | Failure::TimedOut
        | Failure::LeaderChanged
        | Failure::OutcomeUnknown
        | Failure::Stopping
        | Failure::ChangeUnderWay
        | Failure::Refused(Refused::SessionResumed) => Refusal::Passing,
        Failure::Overloaded | Failure::Refused(Refused::NoSpace | Refused::TooManyWaiters) => Refusal::Overloaded,
        _ => Refusal::Final,
    }
}
