//! The locks of one connection: what its client asks, and what the replica answers.
//!
//! An acquire makes a [`Place`], which walks from a lease to the queue and from the queue to the
//! grant; each step is a call whose answer comes back as mail. Nothing here waits:
//! requests and mail go in, texts come out.
//!
//! A place whose entry was there before, because an earlier connection of the client has ended,
//! is adopted: its epoch is raised, so that whatever the earlier one had still under way is void.
//! When the connection ends nothing is given up, the TTL of each lease decides.

mod walk;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tenure_machine::{Command, LeaseId, Mode, Revision, Unlock};
use tenure_replica::{CallId, Failure, Input, SessionNotice};
use tokio::time::Instant;

use super::claims::{Claims, Pair};
use super::message::{CommandType, FencingToken, Request, RequestId, Told, Unread};
use super::place::{Place, PlaceId, Stage};
use crate::calls::{OpenSession, SessionMail};
use crate::member::Member;
use crate::metrics::Counters;
use crate::metrics::sessions::{Carrier, Done};
use crate::services::ProcessWide;
use crate::services::tenure_lock::Connected;
use crate::services::tenure_lock::describe::{end_in_words, now_unix_ms};
use crate::services::tenure_lock::sign;
use walk::too_long;

/// Calls under way at once, beside those that wait for their turn; beyond it no more requests are read.
const IN_FLIGHT: usize = 1024;
/// Replies that wait to be sent; beyond it no more requests are read.
const UNSENT: usize = 64;
/// Requests for one place that wait until it is settled.
const DEFERRED: usize = 8;
/// A connection that has just been cut may not be noticed yet: its successor looks twice.
const CLAIM_PATIENCE: Duration = Duration::from_millis(250);

const NOT_HELD: &str = "not held";
const ELSEWHERE: &str = "another connection of this client has the lock or waits for it";
const RESUMED: &str = "the client has come back on another connection, which has the lock now";

pub struct Session {
    member: Member,
    process_wide: Arc<ProcessWide>,
    claims: Arc<Claims>,
    counters: Arc<Counters>,
    stream: OpenSession,
    connected: Connected,
    most_places: usize,
    number: u64,
    under_way: HashMap<CallId, UnderWay>,
    by_pair: HashMap<Pair, PlaceId>,
    places: HashMap<PlaceId, Place>,
    by_token: HashMap<Revision, PlaceId>,
    timers: BTreeSet<(Instant, PlaceId)>,
    /// The client has sent a request id: it reads events.
    wants_events: bool,
    leader: Option<(u64, u64)>,
    is_over: bool,
    out: VecDeque<String>,
}

struct UnderWay {
    place: PlaceId,
    what: What,
}

/// What a call under way is for.
enum What {
    Grant,
    Look,
    Resume {
        found: Found,
    },
    Lock,
    Confirm {
        sent: Instant,
    },
    KeepQueued {
        sent: Instant,
    },
    Renew {
        id: Option<RequestId>,
        key: String,
        sent: Instant,
    },
    Unlock {
        id: Option<RequestId>,
        key: String,
        token: Revision,
    },
    /// Cleaning up: whatever the answer is.
    Nothing,
}

/// What an earlier connection has left behind.
#[derive(Clone, Copy)]
enum Found {
    Lease,
    Waiting,
    Held(Revision),
}

impl Session {
    pub fn new(
        member: Member,
        process_wide: Arc<ProcessWide>,
        claims: Arc<Claims>,
        counters: Arc<Counters>,
        address: Option<SocketAddr>,
        most_places: usize,
    ) -> Result<Session, Failure> {
        let stream = member.open_session()?;
        let now_unix_ms = now_unix_ms();
        let connected =
            Connected { stream: stream.stream, address, since_unix_ms: now_unix_ms, last_seen_unix_ms: now_unix_ms };
        Ok(Session {
            member,
            process_wide,
            claims,
            counters,
            stream,
            connected,
            most_places,
            number: 0,
            under_way: HashMap::new(),
            by_pair: HashMap::new(),
            places: HashMap::new(),
            by_token: HashMap::new(),
            timers: BTreeSet::new(),
            wants_events: false,
            leader: None,
            is_over: false,
            out: VecDeque::new(),
        })
    }

    /// What is to be sent next.
    pub fn pop_text(&mut self) -> Option<String> {
        self.out.pop_front()
    }

    pub fn has_text(&self) -> bool {
        !self.out.is_empty()
    }

    /// Whether another request may be read. What waits for its turn does not count.
    pub fn is_ready(&self) -> bool {
        self.out.len() < UNSENT && self.under_way.len() < self.places.len() + IN_FLIGHT
    }

    /// The replica is gone: nothing will be answered any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn next_wake(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    pub fn poll_mail(&mut self, context: &mut Context<'_>) -> Poll<Option<SessionMail>> {
        self.stream.poll_next(context)
    }

    /// A message of the client.
    pub fn take(&mut self, text: &str) {
        match Request::read(text) {
            Ok(request) => self.ask(request),
            Err(unread) => self.misunderstand(&unread),
        }
    }

    /// Answers what is no request.
    pub fn misunderstand(&mut self, unread: &Unread) {
        let Unread { error, key, id } = unread;
        let fencing_token = key.as_deref().map(|key| FencingToken::unsigned(key, 0));
        let request_id = id.as_ref();
        self.wants_events |= request_id.is_some();
        self.tell(&Told {
            success: Some(false),
            fencing_token,
            request_id,
            error: Some(error.as_str()),
            ..Told::default()
        });
    }

    pub fn pass_time(&mut self) {
        let now = Instant::now();
        while let Some((due, id)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, id));
            let Some(place) = self.places.get_mut(&id) else { continue };
            place.due = None;
            match place.stage {
                Stage::Claiming if self.claims.claim(&place.pair, self.stream.stream) => self.begin(id),
                Stage::Claiming => self.end(id, ELSEWHERE),
                Stage::Queued { .. } if place.give_up_at.is_some_and(|give_up_at| give_up_at <= now) => {
                    self.time_out(id);
                }
                Stage::Queued { .. } => {
                    let give_up_at = place.give_up_at;
                    self.keep_alive(id, What::KeepQueued { sent: now });
                    give_up_at.into_iter().for_each(|give_up_at| self.set_due(id, give_up_at));
                }
                Stage::Confirming { .. } => self.keep_alive(id, What::Confirm { sent: now }),
                Stage::Held { renewed_at, .. } => self.warn(id, renewed_at),
                Stage::Entering | Stage::Asking { .. } | Stage::Releasing => {}
            }
        }
    }

    pub fn hear(&mut self, mail: SessionMail) {
        match mail {
            // It watches nothing.
            SessionMail::LockWatch(_) => {}
            SessionMail::Answer { call, answer } => {
                if let Some(UnderWay { place, what }) = self.under_way.remove(&call) {
                    self.answer(place, what, answer.result);
                }
            }
            SessionMail::Queued { call, ahead } => {
                if let Some(UnderWay { place, .. }) = self.under_way.get(&call) {
                    self.queued(*place, ahead);
                }
            }
            SessionMail::Notice(SessionNotice::Lost { token, cause, .. }) => {
                if let Some(id) = self.by_token.get(&token).copied() {
                    self.lose(id, end_in_words(cause));
                }
            }
            // Told once for each lease.
            SessionMail::Notice(SessionNotice::LeaderChanged { leader, term }) => {
                if self.leader.replace((leader, term)) != Some((leader, term)) && self.wants_events {
                    let leader = Some(format!("{leader:x}"));
                    self.tell(&Told { event: Some("leaderChanged"), leader, term: Some(term), ..Told::default() });
                }
            }
        }
    }

    fn ask(&mut self, request: Request) {
        self.wants_events |= request.id.is_some();
        let Some(id) = self.by_pair.get(&request.pair).copied() else { return self.enter(request) };
        let Some(place) = self.places.get_mut(&id) else { return };
        if place.is_settled() {
            self.ask_settled(id, request);
        } else if place.deferred.len() < DEFERRED {
            place.deferred.push_back(request);
        } else {
            self.refuse(&request, "too many requests for this lock are under way");
        }
    }

    /// The first that is heard of this pair here.
    fn enter(&mut self, request: Request) {
        if self.places.len() >= self.most_places {
            let text = format!("this connection has {} locks already", self.most_places);
            return self.refuse(&request, &text);
        }
        self.number += 1;
        let id = self.number;
        self.by_pair.insert(request.pair.clone(), id);
        let is_claimed = self.claims.claim(&request.pair, self.stream.stream);
        self.places.insert(id, Place::new(request));
        if is_claimed {
            self.begin(id);
        } else {
            self.set_stage(id, Stage::Claiming, Some(Instant::now() + CLAIM_PATIENCE));
        }
    }

    /// What a request for a lock means that this connection has or waits for.
    fn ask_settled(&mut self, id: PlaceId, request: Request) {
        let Some(place) = self.places.get_mut(&id) else { return };
        let (stage, ttl_ms) = (place.stage, place.ttl_ms);
        match (request.command, stage) {
            (CommandType::Acquire, Stage::Queued { .. }) => self.refuse(&request, "this client waits for it already"),
            (CommandType::Renew, Stage::Queued { .. }) => {
                self.refuse(&request, "not held yet: while it waits, the connection keeps its place");
            }
            (CommandType::Release, Stage::Queued { .. }) => self.leave_queue(id, &request),
            (_, Stage::Held { token, .. }) if request.token.is_some_and(|asked| asked != token) => {
                self.refuse(&request, "not the holder: the lock is held with another token");
            }
            (CommandType::Release, Stage::Held { token, .. }) => self.unlock(id, request.id, token),
            (_, Stage::Held { .. }) => match too_long(request.ttl_ms, ttl_ms) {
                Some(text) => self.refuse(&request, &text),
                None => {
                    if request.command == CommandType::Acquire && request.id.is_some() {
                        place.request_id.clone_from(&request.id);
                    }
                    if let Stage::Held { is_renewing, .. } = &mut place.stage {
                        *is_renewing = true;
                    }
                    self.process_wide.sessions.seen(place.lease);
                    let what = What::Renew { id: request.id, key: request.pair.key, sent: Instant::now() };
                    self.keep_alive(id, what);
                }
            },
            _ => {}
        }
    }

    /// Ending the lease ends the place with it.
    fn leave_queue(&mut self, id: PlaceId, request: &Request) {
        let Some(place) = self.places.get(&id) else { return };
        let lease = place.lease;
        if let Stage::Queued { call } = place.stage {
            self.under_way.remove(&call);
        }
        // Before the claim is given up: a successor must come behind it.
        self.propose(id, What::Nothing, Command::LeaseRevoke { lease });
        let Some(place) = self.remove(id) else { return };
        if place.request_id.is_some() {
            self.refuse(&place.first, "given up by a release");
        }
        self.confirm_release(request.id.as_ref(), &place.pair.key, 0);
    }

    /// The client does not want to wait any longer.
    fn time_out(&mut self, id: PlaceId) {
        let Some(place) = self.places.get(&id) else { return };
        let lease = place.lease;
        if let Stage::Queued { call } = place.stage {
            self.under_way.remove(&call);
        }
        self.propose(id, What::Nothing, Command::LeaseRevoke { lease });
        let Some(place) = self.remove(id) else { return };
        self.count(Done::LockRefused);
        let error = format!("not granted within {} ms", place.first.timeout_ms.unwrap_or(0));
        self.refuse(&place.first, &error);
        for request in place.deferred {
            self.ask(request);
        }
    }

    /// The unlock hands the lock over; the lease goes behind it. Both are put to the replica in this
    /// order, before anything that a successor of this connection may ask.
    fn unlock(&mut self, id: PlaceId, request_id: Option<RequestId>, token: Revision) {
        self.set_stage(id, Stage::Releasing, None);
        self.by_token.remove(&token);
        let Some(place) = self.places.get(&id) else { return };
        let (lease, key) = (place.lease, place.pair.key.clone());
        let names = vec![Bytes::copy_from_slice(key.as_bytes())];
        let unlock = Unlock { names, token, epoch: place.epoch };
        self.propose(id, What::Unlock { id: request_id, key, token }, Command::Unlock(unlock));
        self.propose(id, What::Nothing, Command::LeaseRevoke { lease });
    }

    /// The place is no more. If its client still waits for an answer, this is it.
    fn end(&mut self, id: PlaceId, error: &str) {
        let Some(place) = self.places.get(&id) else { return };
        match place.stage {
            Stage::Held { .. } => {
                self.tell_event(id, Told { event: Some("lost"), error: Some(error), ..Told::default() });
            }
            _ => {
                let first = place.first.clone();
                self.refuse(&first, error);
            }
        }
        self.forget(id);
    }

    /// What was asked meanwhile is asked anew.
    fn forget(&mut self, id: PlaceId) {
        let Some(place) = self.remove(id) else { return };
        for request in place.deferred {
            self.ask(request);
        }
    }

    fn settle(&mut self, id: PlaceId) {
        let deferred = self.places.get_mut(&id).map(|place| std::mem::take(&mut place.deferred));
        for request in deferred.unwrap_or_default() {
            self.ask(request);
        }
    }

    fn remove(&mut self, id: PlaceId) -> Option<Place> {
        let place = self.places.remove(&id)?;
        self.by_pair.remove(&place.pair);
        if let Some(token) = place.token() {
            self.by_token.remove(&token);
        }
        if let Some(due) = place.due {
            self.timers.remove(&(due, id));
        }
        self.close(&place);
        Some(place)
    }

    /// From here on the replica tells this connection what becomes of the lease.
    fn open(&mut self, lease: LeaseId) {
        self.process_wide.sessions.enter(lease, self.connected);
        let stream = self.stream.stream;
        self.stream.bring(Input::SessionOpened { stream, lease });
    }

    fn close(&mut self, place: &Place) {
        let stream = self.stream.stream;
        self.stream.bring(Input::SessionClosed { stream, lease: place.lease });
        self.process_wide.sessions.leave(place.lease, self.stream.stream);
        self.claims.give_up(&place.pair, self.stream.stream);
    }

    fn set_stage(&mut self, id: PlaceId, stage: Stage, due: Option<Instant>) {
        let Some(place) = self.places.get_mut(&id) else { return };
        place.stage = stage;
        if let Some(before) = place.due.take() {
            self.timers.remove(&(before, id));
        }
        if let Some(due) = due {
            self.set_due(id, due);
        }
    }

    fn set_due(&mut self, id: PlaceId, due: Instant) {
        let Some(place) = self.places.get_mut(&id) else { return };
        if let Some(before) = place.due.replace(due) {
            self.timers.remove(&(before, id));
        }
        self.timers.insert((due, id));
    }

    fn keep_alive(&mut self, id: PlaceId, what: What) {
        let Some(place) = self.places.get(&id) else { return };
        let (lease, epoch) = (place.lease, place.epoch);
        self.call(id, what, |call| Input::KeepAlive { call, lease, epoch });
    }

    fn propose(&mut self, id: PlaceId, what: What, command: Command) {
        self.call(id, what, |call| Input::Propose { call, command });
    }

    /// Puts a call to the replica. What takes room is refused when too much waits.
    fn call(&mut self, id: PlaceId, what: What, input: impl FnOnce(CallId) -> Input) -> Option<CallId> {
        if matches!(what, What::Grant | What::Look | What::Lock) && self.member.is_overloaded() {
            self.answer(id, what, Err(Failure::Overloaded));
            return None;
        }
        let call = self.stream.open_call();
        self.under_way.insert(call, UnderWay { place: id, what });
        self.is_over |= !self.stream.bring(input(call));
        Some(call)
    }

    fn succeed(&mut self, request_id: Option<&RequestId>, key: &str, token: Revision) {
        let fencing_token = Some(FencingToken::unsigned(key, token));
        self.tell(&Told { success: Some(true), fencing_token, request_id, ..Told::default() });
    }

    /// Tells a grant or a renewal, signed for as long as the lease has time left if this cluster signs.
    fn vouch(&mut self, id: PlaceId, request_id: Option<&RequestId>, key: &str, token: Revision) {
        let (keyring, place) = (self.process_wide.keyring.as_ref(), self.places.get(&id));
        let signature = keyring.zip(place).and_then(|(keyring, place)| {
            let (name, holder) = (key.as_bytes(), place.pair.client.as_bytes());
            let cluster = self.member.status().cluster;
            let expires_at_ms = sign::expires_after_renewal(place.ttl_ms, place.renewed_at()?);
            let mode = Mode::Exclusive;
            Some(sign::sign(keyring, &sign::Grant { cluster, name, slot: 0, token, holder, mode, expires_at_ms }))
        });
        let fencing_token = Some(FencingToken { key, value: token, signature: signature.unwrap_or_default() });
        self.tell(&Told { success: Some(true), fencing_token, request_id, ..Told::default() });
    }

    pub(super) fn count(&self, done: Done) {
        self.counters.session(Carrier::WebSocket, done);
    }

    fn fail(&mut self, request_id: Option<&RequestId>, key: &str, error: &str) {
        let fencing_token = Some(FencingToken::unsigned(key, 0));
        self.tell(&Told { success: Some(false), fencing_token, request_id, error: Some(error), ..Told::default() });
    }

    /// A plain client reads no answer to a release, whatever becomes of it.
    fn confirm_release(&mut self, request_id: Option<&RequestId>, key: &str, token: Revision) {
        if request_id.is_some() {
            self.succeed(request_id, key, token);
        }
    }

    fn refuse(&mut self, request: &Request, error: &str) {
        if request.command != CommandType::Release || request.id.is_some() {
            self.fail(request.id.as_ref(), &request.pair.key, error);
        }
    }

    /// To those who gave a request id when they acquired, under that id.
    fn tell_event(&mut self, id: PlaceId, event: Told<'_>) {
        let Some(place) = self.places.get(&id) else { return };
        if let Some(request_id) = &place.request_id {
            let fencing_token = Some(FencingToken::unsigned(&place.pair.key, place.token().unwrap_or(0)));
            let told = Told { fencing_token, request_id: Some(request_id), ..event };
            self.out.push_back(told.written());
        }
    }

    fn tell(&mut self, told: &Told<'_>) {
        self.out.push_back(told.written());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for place in std::mem::take(&mut self.places).values() {
            self.close(place);
        }
    }
}
