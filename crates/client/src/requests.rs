//! The outstanding requests of one session. Pure: no IO, no clock, no thread. Orders and the server's answers come in
//! as [`Input`]s, and what is to be done goes out as [`Effect`]s, so that a simulation can run it as the client does.
//!
//! All lock traffic of a session goes over one stream, which is opened again, at this member or at another, when it
//! breaks. Every request has a number, and its answer names that number. What a broken stream leaves in doubt is decided
//! by the next one, because the server lists what the session holds when it is opened:
//!
//! - A lock that was not answered is asked for again. The same lease has the same place in the queue, so asking twice
//!   changes nothing.
//! - An unlock that was not answered was carried out if its token is not held any more. Otherwise it is sent again: it
//!   names the token, so it cannot release a later tenure.
//! - A tenure of which a name is missing from the list has ended. Several locks are held together or not at all: what is
//!   left of them is given back. Until that is done, a lock that names one of them is not sent: a member may take a later
//!   lock before an earlier unlock, and would grant it the token that the unlock ends.
//! - A renewal is never repeated. Opening a stream renews the lease, and the lifecycle decides when the next one is due.
//!
//! A caller may go away at any moment ([`Input::Abandon`]): before its request is sent, while it waits, or after the
//! grant was delivered and before it was read. From then on the session owes the server something, until the place is
//! left or the lock is given back ([`Effect::Settled`]). This is why a tenure remembers the ticket that it was asked for
//! with: a grant that nobody reads is found by its ticket and unlocked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lifecycle::Cause;
#[cfg(feature = "planted")]
use crate::planted::{self, Bug};

/// Names one order of a caller. The caller chooses it; no two orders have the same one.
pub type Ticket = u64;
/// Names one request on the stream. Numbers only grow, and an answer carries that of its request.
pub type Number = u64;
/// The fencing token of a grant.
pub type Token = i64;
/// The locks that one request is about: several are taken and given back together.
pub type Names = Arc<[String]>;

/// The names that a session holds under each token.
pub type Held = BTreeMap<Token, BTreeSet<String>>;

/// The number of the request that opens a stream.
pub const OPEN: Number = 1;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A caller asks for locks.
    Lock {
        ticket: Ticket,
        names: Names,
    },
    /// The caller of this lock is gone. It has not read its grant and never will.
    Abandon {
        ticket: Ticket,
    },
    /// A caller gives locks back.
    Unlock {
        ticket: Ticket,
        names: Names,
        token: Token,
    },
    /// The lifecycle wants a renewal, and gives up waiting for the one before.
    Renew {
        renewal: u64,
    },
    /// The request that opens a stream is about to be sent.
    Opening,
    /// The stream is open: this was confirmed for it, and these locks are held.
    Opened {
        ttl_ms: u64,
        held: Held,
    },
    /// The stream, or the attempt to open one, has failed.
    Broken,
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
    /// The server says that a lock of a tenure is lost, and with it the tenure.
    Lost {
        token: Token,
        cause: Cause,
    },
    /// The server says that the session does not exist any more.
    Ended,
}

/// What a refusal means for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The answer to the request. A lock that is refused so has no place in the queue.
    Final,
    /// The server did not look at the request because it has too much to do. A place that the session took over an
    /// earlier stream is still there.
    Overloaded,
    /// This stream cannot answer: its member has no leader, or another stream has taken the session over.
    Passing,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send this over the open stream.
    Send { number: Number, request: Request },
    /// Tell the caller that it holds what it asked for. If it does not read this, it says [`Input::Abandon`].
    Grant { ticket: Ticket, token: Token },
    /// Tell the caller what the server said.
    Refuse { ticket: Ticket },
    /// Tell the caller whether its unlock released anything.
    Released { ticket: Ticket, released: bool },
    /// Nothing is owed any more for this ticket, whose caller is gone.
    Settled { ticket: Ticket },
    /// This tenure has ended.
    TenureEnded { token: Token, cause: Cause },
    /// The server has confirmed this renewal of the lifecycle.
    Confirmed { renewal: u64, ttl_ms: u64 },
    /// Leave the stream, or give up opening it, and open another one.
    Reopen,
    /// Stop: the session is over.
    Over,
}

/// A request to the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// Ask for the locks of this ticket, and wait for them as `wait` says.
    Lock {
        ticket: Ticket,
        wait: Wait,
    },
    /// Give up the lock request of this number.
    Cancel {
        number: Number,
    },
    Unlock {
        names: Names,
        token: Token,
    },
    Renew,
}

/// How long a lock request waits in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// As long as the caller said, which may be not at all.
    AsAsked,
    /// As long as the caller said, but for a moment at least. The session may have a place already, and a request that
    /// does not wait would leave it there.
    AMoment,
    /// For a moment only: the caller is gone, and the request is sent to find its place and leave it.
    ToLeave,
}

/// The requests of one session that the server has not answered, and the locks that it holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requests {
    last_number: Number,
    unanswered: BTreeMap<Number, Asked>,
    tenures: BTreeMap<Token, Tenure>,
    /// Locks that are not sent while a name of theirs is given back.
    held_back: BTreeMap<Ticket, Names>,
    /// The names that are given back because a tenure has lost another one. An entry counts the unlocks of its name that
    /// are not answered, and lists the locks that wait for them.
    rests: BTreeMap<String, Rest>,
    /// Where each lock ticket stands that is waiting or held.
    tickets: BTreeMap<Ticket, Stands>,
    /// Tickets whose callers are gone, until nothing is owed for them.
    owed: BTreeSet<Ticket>,
    /// The last renewal that the lifecycle wants, until it is confirmed.
    renewal: Option<u64>,
    link: Link,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Asked {
    Lock {
        ticket: Ticket,
        names: Names,
        sent: Sent,
    },
    /// Without a ticket, the rest of a tenure that has lost one of its locks.
    Unlock {
        ticket: Option<Ticket>,
        names: Names,
        token: Token,
        sent: Sent,
    },
    Renew {
        renewal: u64,
    },
}

/// Whether the server may know of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Sent {
    Never,
    /// Over the stream that is open.
    Now,
    /// Over an earlier stream. It may have been carried out.
    Before,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Tenure {
    ticket: Ticket,
    names: Names,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Rest {
    unlocks: usize,
    held_back: BTreeSet<Ticket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stands {
    HeldBack,
    Asked(Number),
    Held(Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Link {
    Closed,
    /// Being opened, which confirms the renewal that was wanted when it began.
    Opening {
        confirms: Option<u64>,
    },
    Open,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            last_number: OPEN,
            unanswered: BTreeMap::new(),
            tenures: BTreeMap::new(),
            held_back: BTreeMap::new(),
            rests: BTreeMap::new(),
            tickets: BTreeMap::new(),
            owed: BTreeSet::new(),
            renewal: None,
            link: Link::Closed,
        }
    }
}

impl Requests {
    pub fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Lock { ticket, names } => self.lock(ticket, names, &mut effects),
            Input::Abandon { ticket } => self.abandon(ticket, &mut effects),
            Input::Unlock { ticket, names, token } => {
                self.ask(Asked::Unlock { ticket: Some(ticket), names, token, sent: Sent::Never }, &mut effects);
            }
            Input::Renew { renewal } => self.renew(renewal, &mut effects),
            Input::Opening => self.link = Link::Opening { confirms: self.renewal },
            Input::Opened { ttl_ms, held } => self.opened(ttl_ms, &held, &mut effects),
            Input::Broken => self.broken(),
            Input::Granted { number, token } => self.granted(number, token, &mut effects),
            Input::Refused { number, refusal } => self.refused(number, refusal, &mut effects),
            Input::Unlocked { number, released } => self.unlocked(number, released, &mut effects),
            Input::Renewed { number, ttl_ms } => {
                if let Some(Asked::Renew { renewal }) = self.unanswered.remove(&number) {
                    self.confirm(renewal, ttl_ms, &mut effects);
                }
            }
            Input::Lost { token, cause } => self.lost(token, cause, &mut effects),
            Input::Ended => {
                let owed = std::mem::take(&mut self.owed);
                effects.extend(owed.into_iter().map(|ticket| Effect::Settled { ticket }));
                effects.push(Effect::Over);
            }
        }
        effects
    }

    /// Gives the number of a request that closes the session, if a stream is open to send it over. The server answers it
    /// with the end of the stream, so it is never repeated.
    pub fn close(&mut self) -> Option<Number> {
        (self.link == Link::Open).then(|| {
            self.last_number += 1;
            self.last_number
        })
    }

    /// Whether nothing is owed for callers that are gone.
    pub fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// Whether a request is unanswered that the server answers at once. A lock may wait for long.
    pub fn expects_an_answer(&self) -> bool {
        // Each ticket is that of an unanswered lock, of one that is held back or of a tenure. Sessions wait for many
        // locks, so nothing is searched.
        let unanswered_locks = self.tickets.len() - self.held_back.len() - self.tenures.len();
        self.unanswered.len() > unanswered_locks
    }

    fn lock(&mut self, ticket: Ticket, names: Names, effects: &mut Vec<Effect>) {
        // A tenure that stands is given back by its caller, which keeps its turn at the names until then. So only the rest
        // of a tenure that has ended can be in the way.
        if let Some(name) = names.iter().find(|name| self.rests.contains_key(*name)) {
            self.rests.entry(name.clone()).or_default().held_back.insert(ticket);
            self.tickets.insert(ticket, Stands::HeldBack);
            self.held_back.insert(ticket, names);
            return;
        }
        let number = self.ask(Asked::Lock { ticket, names, sent: Sent::Never }, effects);
        self.tickets.insert(ticket, Stands::Asked(number));
    }

    /// One unlock of a rest is answered. When it was the last one of a name, the locks that waited for that name are sent,
    /// or wait for another one of theirs.
    fn end_rest(&mut self, names: &Names, effects: &mut Vec<Effect>) {
        for name in names.iter() {
            let Some(rest) = self.rests.get_mut(name) else { continue };
            rest.unlocks -= 1;
            if rest.unlocks > 0 {
                continue;
            }
            let held_back = self.rests.remove(name).unwrap_or_default().held_back;
            for ticket in held_back {
                if let Some(names) = self.held_back.remove(&ticket) {
                    self.lock(ticket, names, effects);
                }
            }
        }
    }

    fn ask(&mut self, asked: Asked, effects: &mut Vec<Effect>) -> Number {
        self.last_number += 1;
        let number = self.last_number;
        self.unanswered.insert(number, asked);
        if self.link == Link::Open {
            self.send(number, effects);
        }
        number
    }

    fn send(&mut self, number: Number, effects: &mut Vec<Effect>) {
        let Some(asked) = self.unanswered.get_mut(&number) else { return };
        let request = match asked {
            Asked::Lock { ticket, sent, .. } => {
                let wait = match (self.owed.contains(ticket), sent.again()) {
                    (true, _) => Wait::ToLeave,
                    (false, Sent::Before) => Wait::AMoment,
                    (false, _) => Wait::AsAsked,
                };
                Request::Lock { ticket: *ticket, wait }
            }
            Asked::Unlock { names, token, sent, .. } => {
                sent.again();
                Request::Unlock { names: names.clone(), token: *token }
            }
            Asked::Renew { .. } => Request::Renew,
        };
        effects.push(Effect::Send { number, request });
    }

    fn abandon(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        match self.tickets.get(&ticket).copied() {
            // Refused, or lost again before the caller has gone.
            None => effects.push(Effect::Settled { ticket }),
            Some(Stands::HeldBack) => {
                let names = self.held_back.remove(&ticket);
                for name in names.iter().flat_map(|names| names.iter()) {
                    if let Some(rest) = self.rests.get_mut(name) {
                        rest.held_back.remove(&ticket);
                    }
                }
                self.tickets.remove(&ticket);
                effects.push(Effect::Settled { ticket });
            }
            Some(Stands::Asked(number)) if self.sent(number) == Sent::Never => {
                self.unanswered.remove(&number);
                self.tickets.remove(&ticket);
                effects.push(Effect::Settled { ticket });
            }
            Some(Stands::Asked(number)) => {
                self.owed.insert(ticket);
                // Without a stream there is nobody to tell: the next one leaves the place.
                if self.link == Link::Open {
                    self.last_number += 1;
                    effects.push(Effect::Send { number: self.last_number, request: Request::Cancel { number } });
                }
            }
            #[cfg(feature = "planted")]
            Some(Stands::Held(_)) if planted::is(Bug::KeepUnread) => effects.push(Effect::Settled { ticket }),
            Some(Stands::Held(token)) => {
                self.owed.insert(ticket);
                self.give_back(ticket, token, effects);
            }
        }
    }

    fn sent(&self, number: Number) -> Sent {
        match self.unanswered.get(&number) {
            Some(Asked::Lock { sent, .. } | Asked::Unlock { sent, .. }) => *sent,
            Some(Asked::Renew { .. }) | None => Sent::Never,
        }
    }

    fn give_back(&mut self, ticket: Ticket, token: Token, effects: &mut Vec<Effect>) {
        if let Some(Tenure { names, .. }) = self.tenures.get(&token) {
            let (ticket, names) = (Some(ticket), names.clone());
            self.ask(Asked::Unlock { ticket, names, token, sent: Sent::Never }, effects);
        }
    }

    fn granted(&mut self, number: Number, token: Token, effects: &mut Vec<Effect>) {
        let Some(Asked::Lock { ticket, names, .. }) = self.unanswered.remove(&number) else { return };
        if let Some(before) = self.tenures.insert(token, Tenure { ticket, names }) {
            self.tickets.remove(&before.ticket);
        }
        self.tickets.insert(ticket, Stands::Held(token));
        match self.owed.contains(&ticket) {
            true => self.give_back(ticket, token, effects),
            false => effects.push(Effect::Grant { ticket, token }),
        }
    }

    fn refused(&mut self, number: Number, refusal: Refusal, effects: &mut Vec<Effect>) {
        let Some(asked) = self.unanswered.get(&number) else { return };
        let is_undecided = match (asked, refusal) {
            (Asked::Renew { .. }, _) | (_, Refusal::Passing) => true,
            // The lock stays held until an unlock is carried out.
            (Asked::Unlock { .. }, Refusal::Overloaded) => true,
            // The place that an earlier stream may have taken stays until a request leaves it.
            (Asked::Lock { sent, .. }, Refusal::Overloaded) => *sent == Sent::Before,
            (_, Refusal::Final) => false,
        };
        if is_undecided {
            return self.reopen(effects);
        }
        match self.unanswered.remove(&number) {
            Some(Asked::Lock { ticket, .. }) => {
                self.tickets.remove(&ticket);
                self.answer(ticket, Effect::Refuse { ticket }, effects);
            }
            Some(Asked::Unlock { ticket: Some(ticket), names, token, .. }) => {
                self.end_tenure(token, Cause::Released, effects);
                // One of them has another holder. Below level 1 the others are not released then.
                self.give_back_each(&names, token, effects);
                self.answer(ticket, Effect::Refuse { ticket }, effects);
            }
            Some(Asked::Unlock { ticket: None, names, .. }) => self.end_rest(&names, effects),
            Some(Asked::Renew { .. }) | None => {}
        }
    }

    fn unlocked(&mut self, number: Number, released: bool, effects: &mut Vec<Effect>) {
        match self.unanswered.remove(&number) {
            Some(Asked::Unlock { ticket: Some(ticket), token, .. }) => {
                self.end_tenure(token, Cause::Released, effects);
                self.answer(ticket, Effect::Released { ticket, released }, effects);
            }
            Some(Asked::Unlock { ticket: None, names, .. }) => self.end_rest(&names, effects),
            Some(Asked::Lock { .. } | Asked::Renew { .. }) | None => {}
        }
    }

    /// Tells the caller, or notes that what it owed is paid.
    fn answer(&mut self, ticket: Ticket, told: Effect, effects: &mut Vec<Effect>) {
        effects.push(if self.owed.remove(&ticket) { Effect::Settled { ticket } } else { told });
    }

    fn end_tenure(&mut self, token: Token, cause: Cause, effects: &mut Vec<Effect>) {
        if let Some(Tenure { ticket, .. }) = self.tenures.remove(&token) {
            self.tickets.remove(&ticket);
            effects.push(Effect::TenureEnded { token, cause });
        }
    }

    /// One of a tenure's locks is lost, so the caller is told that all are. The rest is given back, name by name: below
    /// level 1 unlocking all of them would be refused.
    fn lost(&mut self, token: Token, cause: Cause, effects: &mut Vec<Effect>) {
        let names = self.tenures.get(&token).map(|tenure| tenure.names.clone());
        self.end_tenure(token, cause, effects);
        let is_given_back = |_: &Names| {
            self.unanswered.values().any(|asked| matches!(asked, Asked::Unlock { token: of, .. } if *of == token))
        };
        if let Some(names) = names.filter(|names| names.len() > 1).filter(|names| !is_given_back(names)) {
            self.give_back_each(&names, token, effects);
        }
    }

    /// Gives back what is left of several locks.
    fn give_back_each(&mut self, names: &Names, token: Token, effects: &mut Vec<Effect>) {
        for name in names.iter().filter(|_| names.len() > 1) {
            let names = [name.clone()].into();
            self.rests.entry(name.clone()).or_default().unlocks += 1;
            self.ask(Asked::Unlock { ticket: None, names, token, sent: Sent::Never }, effects);
        }
    }

    fn renew(&mut self, renewal: u64, effects: &mut Vec<Effect>) {
        let is_impatient = self.renewal.replace(renewal).is_some();
        match self.link {
            // The one before was not answered, and a stream answers renewals in order.
            Link::Open if is_impatient => self.reopen(effects),
            Link::Open => drop(self.ask(Asked::Renew { renewal }, effects)),
            // The opening itself would have confirmed the one before.
            Link::Opening { confirms: Some(_) } => self.reopen(effects),
            Link::Opening { confirms: None } | Link::Closed => {}
        }
    }

    fn confirm(&mut self, renewal: u64, ttl_ms: u64, effects: &mut Vec<Effect>) {
        self.renewal = self.renewal.filter(|newer| *newer != renewal);
        effects.push(Effect::Confirmed { renewal, ttl_ms });
    }

    fn reopen(&mut self, effects: &mut Vec<Effect>) {
        self.broken();
        effects.push(Effect::Reopen);
    }

    fn broken(&mut self) {
        self.link = Link::Closed;
        self.unanswered.retain(|_, asked| match asked {
            Asked::Lock { sent, .. } | Asked::Unlock { sent, .. } => {
                sent.leave_stream();
                true
            }
            Asked::Renew { .. } => false,
        });
    }

    /// Sends everything that is still to be done over the new stream, in the order in which it was asked for.
    fn opened(&mut self, ttl_ms: u64, held: &Held, effects: &mut Vec<Effect>) {
        if let Link::Opening { confirms: Some(renewal) } = self.link {
            self.confirm(renewal, ttl_ms, effects);
        }
        let is_whole = |(token, tenure): &(&Token, &Tenure)| {
            held.get(token).is_some_and(|listed| tenure.names.iter().all(|name| listed.contains(name)))
        };
        let ended: Vec<Token> =
            self.tenures.iter().filter(|tenure| !is_whole(tenure)).map(|(token, _)| *token).collect();
        for number in self.unanswered.keys().copied().collect::<Vec<_>>() {
            if let Some(Asked::Unlock { token, sent, .. }) = self.unanswered.get(&number)
                && !held.contains_key(token)
            {
                let released = *sent == Sent::Before;
                self.unlocked(number, released, effects);
            }
        }
        // What was held back has got its number now, so everything is sent in the order of the numbers.
        self.link = Link::Open;
        for number in self.unanswered.keys().copied().collect::<Vec<_>>() {
            match self.unanswered.get(&number) {
                #[cfg(feature = "planted")]
                Some(Asked::Lock { sent: Sent::Before, .. }) if planted::is(Bug::ForgetAsked) => {}
                _ => self.send(number, effects),
            }
        }
        for token in ended {
            match held.contains_key(&token) {
                true => self.lost(token, Cause::Taken, effects),
                false => self.end_tenure(token, Cause::Taken, effects),
            }
        }
        if let Some(renewal) = self.renewal {
            self.ask(Asked::Renew { renewal }, effects);
        }
    }
}

impl Sent {
    /// Notes that the request is sent, and gives what was known of it.
    fn again(&mut self) -> Sent {
        let before = *self;
        if before == Sent::Never {
            *self = Sent::Now;
        }
        before
    }

    fn leave_stream(&mut self) {
        if *self == Sent::Now {
            *self = Sent::Before;
        }
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
