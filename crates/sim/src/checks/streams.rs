//! Callers of a session are told what becomes of their orders, once, and what they believe to hold is theirs.
//!
//! A ticket is answered once, or settled once if its caller is gone. A grant is one of the log. While a session believes
//! to hold an exclusive lock, no other session is granted it, unless an operator or another client ended the tenure. A
//! tenure that the member reports as lost, or leaves out when it lists what is held, ends in that very step, and no
//! tenure ends twice. After healing no ticket is open, no tenure is left, and no place of a living session stands in
//! any queue: a grant that was dropped unread is given back while its lease lives.
//!
//! What it would not notice: a tenure whose end is told late, because the message takes as long as it likes; a lock that
//! is given back late, but before the world settles; slots; anything about sessions that were lost before that; a
//! caller that is granted its lock after others that asked later.

use std::collections::{BTreeMap, BTreeSet};

use tenure_client::requests::{Effect, Input, Names, Ticket, Token};
use tenure_machine::lock::entry_key;
use tenure_machine::{LeaseId, LockEnd, Mode};

use super::{Check, Context, Seen};

#[derive(Default)]
pub struct Streams {
    sessions: BTreeMap<LeaseId, Session>,
    /// Leases under which their clients may work.
    believed: BTreeSet<LeaseId>,
}

#[derive(Default)]
struct Session {
    tickets: BTreeMap<Ticket, Order>,
    tenures: BTreeMap<Token, Tenure>,
    /// Tokens of tenures that have ended, those of callers that are gone included.
    ended: BTreeSet<Token>,
    is_over: bool,
}

struct Order {
    /// None for an unlock.
    names: Option<Names>,
    is_told: bool,
    is_gone: bool,
    is_settled: bool,
}

struct Tenure {
    names: Names,
    /// Its caller relies on it.
    is_relied_on: bool,
}

impl Check for Streams {
    fn name(&self) -> &'static str {
        "session: callers are told once, and nothing is left behind"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Believed { lease, holds: true, .. } => drop(self.believed.insert(*lease)),
            Seen::Believed { lease, holds: false, .. } => drop(self.believed.remove(lease)),
            Seen::SessionStepped { lease, input, effects } => {
                let named = |what: String| format!("session {lease:x}, {input:?}: {what}");
                self.sessions.entry(*lease).or_default().order(input);
                for effect in *effects {
                    self.take(*lease, effect, context).map_err(named)?;
                }
                let session = self.sessions.entry(*lease).or_default();
                session.look_for_missing_ends(input).map_err(named)?;
            }
            Seen::Settled => {
                for (lease, session) in self.sessions.iter().filter(|(_, session)| !session.is_over) {
                    session.is_clean(*lease, context).map_err(|what| format!("session {lease:x}: {what}"))?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Streams {
    fn take(&mut self, lease: LeaseId, effect: &Effect, context: &Context<'_>) -> Result<(), String> {
        if let Effect::Grant { ticket, token } = effect {
            self.granted(lease, *ticket, *token, context)?;
        }
        let session = self.sessions.entry(lease).or_default();
        match effect {
            Effect::Grant { ticket, .. } | Effect::Refuse { ticket } | Effect::Released { ticket, .. } => {
                let Some(order) = session.tickets.get_mut(ticket) else {
                    return Err(format!("ticket {ticket} is answered, and was never given"));
                };
                if order.is_told || order.is_gone {
                    return Err(format!("ticket {ticket} was answered before, or its caller is gone"));
                }
                order.is_told = true;
            }
            Effect::Settled { ticket } => match session.tickets.get_mut(ticket) {
                Some(order) if order.is_gone && !order.is_settled => order.is_settled = true,
                _ => return Err(format!("ticket {ticket} is settled, and nothing is owed for it")),
            },
            Effect::TenureEnded { token, .. } => {
                session.tenures.remove(token);
                if !session.ended.insert(*token) {
                    return Err(format!("the end of the tenure with token {token} is told twice"));
                }
            }
            Effect::Over => {
                session.is_over = true;
                session.tenures.clear();
            }
            Effect::Send { .. } | Effect::Confirmed { .. } | Effect::Reopen => {}
        }
        Ok(())
    }

    fn granted(&mut self, lease: LeaseId, ticket: Ticket, token: Token, context: &Context<'_>) -> Result<(), String> {
        let order = self.sessions.get(&lease).and_then(|session| session.tickets.get(&ticket));
        let Some(names) = order.and_then(|order| order.names.clone()) else {
            return Err(format!("ticket {ticket} is granted, and asked for no lock"));
        };
        let model = &context.reference.model;
        for name in names.iter() {
            let key = entry_key(name.as_bytes(), lease);
            let Some(stay) = model.stay(&key, token).filter(|stay| stay.granted.is_some()) else {
                return Err(format!("{name} was never granted with token {token}"));
            };
            let excludes = |other: &Names| other.contains(name) && stay.mode == Mode::Exclusive && stay.ended.is_none();
            let others = self.sessions.iter().filter(|(other, _)| **other != lease && self.believed.contains(other));
            for (other, session) in others {
                let relied_on = session.tenures.iter().filter(|(_, tenure)| tenure.is_relied_on);
                for (held, _) in relied_on.filter(|(_, tenure)| excludes(&tenure.names)) {
                    let end = model.stay(&entry_key(name.as_bytes(), *other), *held).and_then(|stay| stay.ended);
                    if end.is_none_or(|(_, cause)| cause == Some(LockEnd::LeaseExpired)) {
                        let what =
                            format!("{name} is granted with token {token}, and session {other:x} relies on {held}");
                        return Err(what);
                    }
                }
            }
        }
        let session = self.sessions.entry(lease).or_default();
        if session.tenures.insert(token, Tenure { names, is_relied_on: true }).is_some() {
            return Err(format!("token {token} is granted twice"));
        }
        Ok(())
    }
}

impl Session {
    fn order(&mut self, input: &Input) {
        let order = |names| Order { names, is_told: false, is_gone: false, is_settled: false };
        match input {
            Input::Lock { ticket, names } => drop(self.tickets.insert(*ticket, order(Some(names.clone())))),
            Input::Unlock { ticket, token, .. } => {
                self.tickets.insert(*ticket, order(None));
                self.tenures.get_mut(token).into_iter().for_each(|tenure| tenure.is_relied_on = false);
            }
            Input::Abandon { ticket } => {
                if let Some(order) = self.tickets.get_mut(ticket) {
                    order.is_gone = true;
                }
            }
            _ => {}
        }
    }

    fn look_for_missing_ends(&self, input: &Input) -> Result<(), String> {
        let is_missing = |token: &Token| match input {
            Input::Lost { token: lost, .. } => token == lost,
            Input::Opened { held, .. } => {
                held.get(token).is_none_or(|listed| self.tenures[token].names.iter().any(|name| !listed.contains(name)))
            }
            _ => false,
        };
        match self.tenures.keys().find(|token| is_missing(token)) {
            Some(token) => Err(format!("its caller is not told that the tenure with token {token} has ended")),
            None => Ok(()),
        }
    }

    fn is_clean(&self, lease: LeaseId, context: &Context<'_>) -> Result<(), String> {
        let is_open = |order: &Order| if order.is_gone { !order.is_settled } else { !order.is_told };
        if let Some((ticket, order)) = self.tickets.iter().find(|(_, order)| is_open(order)) {
            let what = if order.is_gone { "settled" } else { "answered" };
            return Err(format!("ticket {ticket} was never {what}: {:?}", order.names));
        }
        if let Some((token, tenure)) = self.tenures.first_key_value() {
            return Err(format!("{:?} with token {token} was never given back", tenure.names));
        }
        let places = context.reference.model.queues().flat_map(|(_, places)| places);
        match places.into_iter().find(|place| place.lease == lease) {
            Some(place) => {
                let key = String::from_utf8_lossy(&place.key);
                Err(format!("{key} with token {} stands in its queue, and no caller knows of it", place.token))
            }
            None => Ok(()),
        }
    }
}
