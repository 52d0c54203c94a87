//! Clients whose locks go over one session stream each, as those of Tenure's own client do.
//!
//! [`client`] is the client's side: the real lifecycle keeps the lease, the real [`tenure_client::requests::Requests`]
//! decides what is sent, sent again and given back, and [`tenure_client::retry::Retry`] repeats the grant of the lease.
//! [`served`] is the member's side of a stream. A stream is a [`Pipe`]: it carries messages in both directions, delayed and in
//! order, until it breaks. `world/streams` moves the messages.
//!
//! Callers may go away at each point at which the future of a real caller waits: before its request is sent, while it
//! waits, between the delivery of a grant and its reading, and while it waits for the answer to an unlock.

pub mod client;
pub mod served;

use std::collections::BTreeMap;

use tenure_client::lifecycle::Cause;
use tenure_client::requests::{Held, Number, Refusal, Token};
use tenure_machine::{LeaseId, MemberId, Mode};
use tenure_replica::{Answered, CallId, Failure, SessionNotice, StreamId};

use self::client::SessionClient;
use self::served::Served;
use crate::plan::Plan;
use crate::random::Random;

pub type PipeId = u64;

/// Leases of session streams have ids from here on. The other traffic draws lower ones.
pub const FIRST_LEASE: LeaseId = 1 << 40;
/// So have the streams, as members know them, and the names of Lock calls.
const FIRST_STREAM: StreamId = 1 << 32;
const FIRST_JOINER: u128 = 1 << 64;

/// All session streams of a run.
pub struct Streams {
    pub random: Random,
    pub clients: Vec<SessionClient>,
    pub pipes: BTreeMap<PipeId, Pipe>,
    /// Calls whose answers are waited for.
    pub askers: BTreeMap<CallId, Asker>,
    /// What the step under way has for streams, with its rank: a member hands out grants first and notices last.
    pub mail: Vec<(u8, PipeId, Mail)>,
    pub drawn: Drawn,
}

/// Numbers that are given out once.
pub struct Drawn {
    pub pipe: PipeId,
    pub ticket: u64,
    pub lease: LeaseId,
    pub joiner: u128,
}

/// The caller of a call to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Pipe(PipeId),
    /// A client that wants a lease.
    Grant(usize),
    /// A client that does not wait for the answer.
    Nobody,
}

/// A stream between a client and a member.
pub struct Pipe {
    pub client: usize,
    pub served: Served,
    /// When the last message arrives, in each direction, and the last mail of the replica.
    pub up_us: u64,
    pub down_us: u64,
    pub mail_us: u64,
    /// Nothing passes any more.
    pub is_cut: bool,
    pub has_client: bool,
    pub has_server: bool,
}

/// What the replica has for a stream.
pub enum Mail {
    Answer(CallId, Result<Answered, Failure>),
    Notice(SessionNotice),
}

/// What a client sends.
#[derive(Debug, Clone)]
pub enum Up {
    Open { lease: LeaseId },
    Lock { number: Number, asked: Asked },
    Cancel { of: Number },
    Unlock { number: Number, names: Vec<String>, token: Token },
    Renew { number: Number },
    HangUp,
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub names: Vec<String>,
    pub mode: Mode,
    /// Zero: it does not wait.
    pub timeout_ms: Option<u64>,
}

/// What a member sends.
#[derive(Debug, Clone)]
pub enum Down {
    Opened {
        ttl_ms: u64,
        held: Held,
    },
    Granted {
        number: Number,
        token: Token,
    },
    Refused {
        number: Number,
        refusal: Refusal,
    },
    Unlocked {
        number: Number,
        released: bool,
    },
    Renewed {
        number: Number,
        ttl_ms: u64,
    },
    Lost {
        token: Token,
        cause: Cause,
    },
    /// The stream has failed. With a verdict, the member says that there is no such lease.
    Failed {
        is_verdict: bool,
    },
}

/// What happens to streams and to their clients.
#[derive(Debug)]
pub enum Happening {
    /// A client does something new.
    Act(usize),
    /// The lifecycle of a client's lease is due.
    Tick(usize),
    /// A caller goes on, or away.
    Moment(usize, u64),
    /// A client goes on after it stood still.
    GoOn(usize),
    /// A client opens the next stream after a pause.
    OpenNext(usize),
    /// A client's call for a lease has ended; None if it could not be asked for.
    Granted(usize, Option<Result<u64, Failure>>),
    GrantAgain(usize),
    Up(PipeId, Up),
    Down(PipeId, Down),
    Mail(PipeId, CallId, Box<Result<Answered, Failure>>),
    Notice(PipeId, SessionNotice),
    /// The time of a waiting Lock is up.
    Timeout(PipeId),
    Cut(PipeId),
    /// The time for opening a stream is up.
    OpenExpired(PipeId),
    /// One of both ends learns that a stream is broken.
    ClientLearns(PipeId),
    ServerLearns(PipeId),
}

impl Streams {
    pub fn new(seed: u64, plan: &Plan) -> Streams {
        let mut random = Random::new(seed, crate::plan::SESSION_CHANCE);
        // Even numbers, behind those of all other clients: these clients respect their deadlines.
        let first = plan.clients.next_multiple_of(2);
        let client = |nth: usize| {
            let drift_ppm = random.below(2 * plan.drift_ppm + 1) as i64 - plan.drift_ppm as i64;
            SessionClient::new(first + 2 * nth, drift_ppm)
        };
        let clients = (0..plan.session_clients).map(client).collect();
        let drawn = Drawn { pipe: 1, ticket: 1, lease: FIRST_LEASE, joiner: FIRST_JOINER };
        Streams { random, clients, pipes: BTreeMap::new(), askers: BTreeMap::new(), mail: Vec::new(), drawn }
    }

    pub fn stream_of(pipe: PipeId) -> StreamId {
        FIRST_STREAM + pipe
    }

    /// The pipe of a stream, if it carries a session of these clients.
    pub fn pipe_of(&self, stream: StreamId) -> Option<PipeId> {
        stream.checked_sub(FIRST_STREAM).filter(|pipe| self.pipes.contains_key(pipe))
    }

    /// No caller waits, no client owes anything, and no client holds anything.
    pub fn is_calm(&self) -> bool {
        self.clients.iter().all(SessionClient::is_calm)
    }

    /// The pipes whose server is this member.
    pub fn at(&self, member: MemberId) -> Vec<PipeId> {
        self.pipes.iter().filter(|(_, pipe)| pipe.served.member == member).map(|(id, _)| *id).collect()
    }
}

impl Drawn {
    pub fn joiner(&mut self) -> u128 {
        self.joiner += 1;
        self.joiner
    }

    pub fn ticket(&mut self) -> u64 {
        self.ticket += 1;
        self.ticket
    }

    pub fn pipe(&mut self) -> PipeId {
        self.pipe += 1;
        self.pipe
    }

    pub fn lease(&mut self) -> LeaseId {
        self.lease += 1;
        self.lease
    }
}
