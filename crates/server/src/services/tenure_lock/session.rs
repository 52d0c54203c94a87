//! All lock traffic of one client on one stream.
//!
//! A session lives by a lease. Its requests are numbered and put to the replica as they come, many
//! at a time; answers go back as they are ready, each with its number. The replica tells the stream
//! of losses by itself. A session that comes back on another stream, here or at another member,
//! raises the epoch of its lease: whatever the older stream had still under way has no effect then.
//! A stream that breaks gives nothing up: its places stay until the lease ends.
//!
//! What is asked is read by [`asked`], what is told is written by [`told`]: both are many small messages. What the replica
//! has not answered is in [`calls`].

pub(crate) mod asked;
mod calls;
mod told;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tenure_api::tenure::v1::session_request::Request;
use tenure_api::tenure::v1::session_response::Response;
use tenure_api::tenure::v1::{
    LeaderChanged, SessionClosed, SessionGranted, SessionHeld, SessionLost, SessionOpen, SessionOpened, SessionQueued,
    SessionRefused, SessionRenewed, SessionSummary, SessionUnlocked, SessionWarning,
};
use tenure_machine::{BusyReply, Command, LeaseGrant, LeaseId, Lock, LockEntry, LockReply, Mode, Reply, Unlock, View};
use tenure_replica::{Answered, CallId, Consistency, Failure, Input, Read, SessionNotice};
use tokio::time::{Instant, Sleep};
use tonic::{Code, Status};

use self::asked::{Asked, AskedFor};
use self::calls::{Calls, GivenUp, Waiting, What};
use self::told::Told;
use super::request::AskedLock;
use super::{describe, failed, header, request, sign};
use crate::calls::{OpenSession, SessionMail};
use crate::member::At;
use crate::metrics::Concluded;
use crate::metrics::sessions::{Carrier, Done};
use crate::services::framed::Messages;
use crate::services::produced::Emitter;
use crate::services::{Shared, errors};

/// Requests of one session that are in flight at once, see [`Calls::in_flight`]; beyond it no more are read.
const IN_FLIGHT: usize = 4096;
/// Bytes of responses gathered before they are sent on.
const TOLD_AT_ONCE: usize = 16 * 1024;

/// The sessions whose streams this process carries.
#[derive(Default)]
pub struct Sessions(Mutex<BTreeMap<LeaseId, Connected>>);

#[derive(Clone, Copy)]
pub struct Connected {
    pub stream: u64,
    pub address: Option<SocketAddr>,
    pub since_unix_ms: i64,
    pub last_seen_unix_ms: i64,
}

impl Sessions {
    /// Adds what is known of the stream of a session.
    pub fn describe(&self, session: &mut SessionSummary) {
        let lease = session.lease.as_ref().map_or(0, |lease| lease.id);
        let sessions = self.0.lock().expect("no panic while the sessions are locked");
        if let Some(connected) = sessions.get(&lease) {
            session.address = connected.address.map_or(String::new(), |address| address.to_string());
            session.connected_since_unix_ms = connected.since_unix_ms;
            session.last_seen_unix_ms = connected.last_seen_unix_ms;
        }
    }

    pub fn enter(&self, lease: LeaseId, connected: Connected) {
        self.0.lock().expect("no panic while the sessions are locked").insert(lease, connected);
    }

    pub fn seen(&self, lease: LeaseId) {
        let mut sessions = self.0.lock().expect("no panic while the sessions are locked");
        if let Some(connected) = sessions.get_mut(&lease) {
            connected.last_seen_unix_ms = describe::now_unix_ms();
        }
    }

    pub fn leave(&self, lease: LeaseId, stream: u64) {
        let mut sessions = self.0.lock().expect("no panic while the sessions are locked");
        if sessions.get(&lease).is_some_and(|connected| connected.stream == stream) {
            sessions.remove(&lease);
        }
    }
}

pub async fn serve(
    shared: Arc<Shared>,
    mut requests: Messages,
    address: Option<SocketAddr>,
    concluded: Concluded,
    mut emitter: Emitter<Result<Bytes, Status>>,
) {
    let mut session = match open(shared, &mut requests, address).await {
        Ok(session) => session,
        Err(status) => return emitter.emit(Err(status)).await,
    };
    emitter.emit(Ok(session.told.take())).await;
    let mut alarm = pin!(tokio::time::sleep_until(session.next_wake()));
    loop {
        let step = poll_fn(|context| session.poll(&mut requests, alarm.as_mut(), context)).await;
        if session.closed || matches!(step, Ok(Flow::Ended)) {
            concluded.set();
        }
        if !session.told.is_empty() {
            emitter.emit(Ok(session.told.take())).await;
        }
        match step {
            Ok(Flow::GoesOn) => {}
            Ok(Flow::Ended) => return,
            Err(status) => return emitter.emit(Err(status)).await,
        }
    }
}

enum Flow {
    GoesOn,
    Ended,
}

struct Session {
    shared: Arc<Shared>,
    stream: OpenSession,
    lease: LeaseId,
    epoch: u64,
    ttl_ms: u64,
    client: Bytes,
    /// The last number that was used.
    number: u64,
    calls: Calls,
    /// When the renewal that was confirmed last had come.
    renewed_at: Instant,
    is_warned: bool,
    closed: bool,
    told: Told,
}

/// The first request says which session it is; the answer says what it has.
async fn open(shared: Arc<Shared>, requests: &mut Messages, address: Option<SocketAddr>) -> Result<Session, Status> {
    let first = poll_fn(|context| requests.poll_next(context, asked::decode)).await.transpose()?;
    let Some(Asked { number, what: AskedFor::Other(request) }) = first else {
        return Err(Status::invalid_argument("a session begins with open"));
    };
    let Some(Request::Open(asked)) = *request else {
        return Err(Status::invalid_argument("a session begins with open"));
    };
    let SessionOpen { session_id, ttl_ms, client_id } = asked;
    let client = request::words("client_id", client_id)?;
    let came = Instant::now();
    let lease = match session_id {
        0 => {
            let lease = shared.member.draw_lease_id();
            let grant = LeaseGrant { lease, ttl_ms: request::ttl_ms(ttl_ms)?, client: client.clone() };
            shared.member.submit(Command::LeaseGrant(grant)).await.map_err(failed)?;
            lease
        }
        session_id => session_id,
    };
    let at = shared.member.submit(Command::ResumeSession { lease }).await.map_err(failed)?;
    let Reply::SessionResumed { epoch, ttl_ms } = at.value else {
        return Err(Status::internal("a session was answered with something else"));
    };
    // A resumption shows that the client lives, like any renewal.
    shared.member.keep_alive(lease).await.map_err(failed)?.value.ok_or(errors::LEASE_NOT_FOUND)?;
    let mut stream = shared.member.open_session().map_err(failed)?;
    let opened = Input::SessionOpened { stream: stream.stream, lease };
    stream.bring(opened);
    let view = shared.member.view(Consistency::Linearizable).await.map_err(failed)?;
    let now_unix_ms = describe::now_unix_ms();
    let connected =
        Connected { stream: stream.stream, address, since_unix_ms: now_unix_ms, last_seen_unix_ms: now_unix_ms };
    shared.process_wide.sessions.enter(lease, connected);
    let opened = SessionOpened {
        session_id: lease,
        ttl_ms: ttl_ms as i64,
        epoch,
        held: held(&view, lease),
        header: header(&shared, &view),
    };
    let mut told = Told::default();
    told.add(number, Response::Opened(Box::new(opened)));
    Ok(Session {
        shared,
        stream,
        lease,
        epoch,
        ttl_ms,
        client,
        number,
        calls: Calls::default(),
        renewed_at: came,
        is_warned: false,
        closed: false,
        told,
    })
}

fn held(view: &At<View>, lease: LeaseId) -> Vec<SessionHeld> {
    let granted = view.value.lease_entries(lease).filter(|(_, entry)| entry.granted_wall_ms.is_some());
    granted.map(|(name, entry)| SessionHeld { name: describe::text(name), fencing_token: entry.token }).collect()
}

/// The entry of the first name of a grant, if all of its names are still held.
fn standing<'a>(view: &'a View, reply: &LockReply) -> Option<&'a LockEntry> {
    sign::standing(view, &reply.key, &reply.more_keys, reply.token).map(|entry| &**entry)
}

impl Session {
    /// Takes all that has come, from the replica, from the client and of time; ready when there is something to say.
    fn poll(
        &mut self,
        requests: &mut Messages,
        mut alarm: Pin<&mut Sleep>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Flow, Status>> {
        while self.told.len() < TOLD_AT_ONCE
            && let Poll::Ready(mail) = self.stream.poll_next(context)
        {
            match mail {
                Some(mail) => self.hear(mail)?,
                None => return Poll::Ready(Err(errors::STOPPED.into())),
            }
        }
        if self.closed {
            return Poll::Ready(Ok(Flow::Ended));
        }
        let flow = self.take_requests(requests, context);
        self.stream.bring_gathered();
        if let Flow::Ended = flow? {
            return Poll::Ready(Ok(Flow::Ended));
        }
        let wake = self.next_wake();
        if alarm.deadline() != wake {
            alarm.as_mut().reset(wake);
        }
        if alarm.poll(context).is_ready() {
            self.pass_time();
            // The next alarm is set when this is polled again.
            context.waker().wake_by_ref();
        }
        if self.told.is_empty() { Poll::Pending } else { Poll::Ready(Ok(Flow::GoesOn)) }
    }

    fn take_requests(&mut self, requests: &mut Messages, context: &mut Context<'_>) -> Result<Flow, Status> {
        while self.calls.in_flight() < IN_FLIGHT
            && let Poll::Ready(asked) = requests.poll_next(context, asked::decode)
        {
            match asked {
                Some(Ok(asked)) => self.take(asked)?,
                // The client hung up, or is gone.
                None | Some(Err(_)) => return Ok(Flow::Ended),
            }
        }
        Ok(Flow::GoesOn)
    }

    fn take(&mut self, asked: Asked) -> Result<(), Status> {
        let Asked { number, what } = asked;
        if let (0, AskedFor::Other(request)) = (number, &what)
            && let Some(Request::Renew(_)) = **request
        {
            // The one request that needs no number, because its answer needs none.
            self.renew(0);
            return Ok(());
        }
        if number <= self.number {
            let text = format!("request {number} comes after {}: numbers must grow", self.number);
            return Err(Status::invalid_argument(text));
        }
        self.number = number;
        match what {
            AskedFor::Lock(asked) => self.lock(number, asked),
            AskedFor::Unlock(unlock) => match request::check_unlock(Unlock { epoch: self.epoch, ..unlock }) {
                Ok(unlock) => {
                    let command = Command::Unlock(unlock);
                    self.call(number, What::Unlock, |call| Input::Propose { call, command });
                }
                Err(status) => self.refuse(number, &status),
            },
            AskedFor::Other(request) => self.take_other(number, *request)?,
        }
        Ok(())
    }

    fn take_other(&mut self, number: u64, request: Option<Request>) -> Result<(), Status> {
        match request {
            Some(Request::Renew(_)) => self.renew(number),
            Some(Request::Cancel(asked)) => {
                if let Some(call) = self.calls.of(asked.number) {
                    self.give_up(call, Code::Cancelled, "cancelled");
                }
            }
            Some(Request::Close(_)) => {
                let command = Command::LeaseRevoke { lease: self.lease };
                self.call(number, What::Close, |call| Input::Propose { call, command });
            }
            Some(Request::Open(_)) => return Err(Status::invalid_argument("this stream has its session already")),
            // `take` has handled locks and unlocks.
            Some(Request::Lock(_) | Request::Unlock(_)) | None => {
                return Err(Status::invalid_argument("an empty request"));
            }
        }
        Ok(())
    }

    fn renew(&mut self, number: u64) {
        self.shared.process_wide.sessions.seen(self.lease);
        let (lease, epoch) = (self.lease, self.epoch);
        let what = What::Renew { came: Instant::now() };
        self.call(number, what, |call| Input::KeepAlive { call, lease, epoch });
    }

    fn lock(&mut self, number: u64, mut asked: AskedLock) {
        if self.calls.len() >= self.shared.config.limits.leases_per_client {
            return self.refuse(number, &Status::resource_exhausted("too many locks are waited for on this session"));
        }
        let timeout = calls::timeout(asked.timeout_ms);
        (asked.lock.lease, asked.lock.epoch) = (self.lease, self.epoch);
        asked.lock.call = self.shared.member.draw_call();
        let mut lock = match asked.check() {
            Ok(lock) => lock,
            Err(status) => return self.refuse(number, &status),
        };
        if lock.holder.is_empty() {
            lock.holder = self.client.clone();
        }
        let (name, more_names, holder) = (lock.name.clone(), lock.more_names.clone(), lock.holder.clone());
        let waiting = Waiting { name, more_names, mode: lock.mode, holder, joiner: lock.call, timeout };
        self.call(number, What::Lock(waiting), |call| Input::Lock { call, lock });
    }

    fn call(&mut self, number: u64, what: What, input: impl FnOnce(CallId) -> Input) {
        if matches!(what, What::Lock(_)) && self.shared.member.is_overloaded() {
            return self.refuse(number, &failed(Failure::Overloaded));
        }
        let call = self.stream.open_call();
        self.calls.begin(call, number, what);
        self.stream.gather(input(call));
    }

    fn hear(&mut self, mail: SessionMail) -> Result<(), Status> {
        match mail {
            SessionMail::Queued { call, ahead } => {
                if let Some(number) = self.calls.queue(call) {
                    self.tell(number, Response::Queued(SessionQueued { ahead: ahead as u64 }));
                }
            }
            SessionMail::Notice(SessionNotice::Lost { name, token, cause }) => {
                let name = describe::text(&name);
                let lost = SessionLost { name, fencing_token: token, cause: describe::end(cause).into() };
                self.tell(0, Response::Lost(lost));
            }
            SessionMail::Notice(SessionNotice::LeaderChanged { leader, term }) => {
                self.tell(0, Response::LeaderChanged(LeaderChanged { leader_id: leader, raft_term: term }));
            }
            // A session watches nothing.
            SessionMail::LockWatch(_) => {}
            SessionMail::Answer { call, answer } => {
                // One that was given up has been answered already.
                if let Some((number, what)) = self.calls.end(call) {
                    return self.answer(number, what, answer.result);
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, number: u64, what: What, result: Result<Answered, Failure>) -> Result<(), Status> {
        match (what, result) {
            (What::Leave, Ok(_)) => {
                if let Some(GivenUp { name, code, why, .. }) = self.calls.left(number) {
                    self.tell_busy(number, code, why, &BusyReply { name, holder: None, waiting: 0 });
                }
            }
            // The entries were there before, perhaps in another mode and for another holder: they are looked up.
            (What::Lock(Waiting { name, .. }), Ok(Answered::Lock(reply))) if reply.renewed && self.signs() => {
                let (read, consistency) = (Read::View, Consistency::Serializable);
                self.call(number, What::Sign { name, reply }, |call| Input::Read { call, read, consistency });
            }
            (What::Lock(Waiting { name, mode, holder, .. }), Ok(Answered::Lock(reply))) => {
                let signature = self.signature(&name, mode, &holder, &reply);
                self.tell_granted(number, &reply, signature);
            }
            (What::Sign { name, reply }, Ok(Answered::View(view))) => match standing(&view, &reply) {
                Some(entry) => {
                    let signature = self.signature(&name, entry.mode, &entry.holder, &reply);
                    self.tell_granted(number, &reply, signature);
                }
                // Its loss has been told already: a grant behind it would look like a new one.
                None => self.refuse(number, &errors::NOT_THE_HOLDER.into()),
            },
            // It is held all the same, and can be signed by Sign.
            (What::Sign { reply, .. }, Err(_)) => self.tell_granted(number, &reply, String::new()),
            (_, Ok(Answered::Reply(Reply::Busy(busy)))) => self.tell_busy(number, Code::Aborted, "busy", &busy),
            (_, Ok(Answered::Reply(Reply::Unlocked { released }))) => {
                self.count(Done::Unlocked);
                self.tell(number, Response::Unlocked(SessionUnlocked { released }));
            }
            (What::Renew { came }, Ok(Answered::KeptAlive { ttl_ms: Some(ttl_ms) })) => {
                self.count(Done::Renewed);
                (self.renewed_at, self.ttl_ms, self.is_warned) = (came, ttl_ms, false);
                self.tell(number, Response::Renewed(SessionRenewed { ttl_ms: ttl_ms as i64 }));
            }
            // The session is over: nothing that it asks can succeed any more.
            (What::Renew { .. }, Ok(_)) => return Err(errors::LEASE_NOT_FOUND.into()),
            (What::Close, Ok(_)) => {
                self.closed = true;
                self.tell(number, Response::Closed(SessionClosed {}));
            }
            (_, Ok(other)) => return Err(Status::internal(format!("an unexpected answer: {other:?}"))),
            (What::Renew { .. } | What::Close, Err(failure)) => return Err(failed(failure)),
            // Whether the place is left is not known. The client opens another stream and leaves it there.
            (What::Leave, Err(failure)) => {
                if self.calls.not_left(number).is_some() {
                    self.count(Done::LockRefused);
                    self.refuse(number, &Status::unavailable(failed(failure).message()));
                }
            }
            (What::Unlock, Err(failure)) => {
                self.count(Done::UnlockRefused);
                self.refuse(number, &failed(failure));
            }
            (_, Err(failure)) => {
                self.count(Done::LockRefused);
                self.refuse(number, &failed(failure));
            }
        }
        Ok(())
    }

    fn tell_granted(&mut self, number: u64, reply: &LockReply, signature: String) {
        self.count(Done::LockGranted);
        let LockReply { token: fencing_token, renewed, slot, .. } = *reply;
        self.tell(number, Response::Granted(SessionGranted { fencing_token, renewed, slot, signature }));
    }

    fn count(&self, done: Done) {
        self.shared.counters.session(Carrier::Grpc, done);
    }

    fn signs(&self) -> bool {
        self.shared.process_wide.keyring.is_some()
    }

    /// Empty unless this cluster signs. `mode` and `holder` are those of the entry.
    fn signature(&self, name: &[u8], mode: Mode, holder: &[u8], reply: &LockReply) -> String {
        let Some(keyring) = self.shared.process_wide.keyring.as_ref() else { return String::new() };
        let LockReply { token, slot, .. } = *reply;
        let cluster = self.shared.identity().cluster;
        let holder = if holder.is_empty() { &self.client[..] } else { holder };
        let expires_at_ms = sign::expires_after_renewal(self.ttl_ms, self.renewed_at);
        sign::sign(keyring, &sign::Grant { cluster, name, slot, token, holder, mode, expires_at_ms })
    }

    /// A Lock whose time is up, or that is not wanted any more, leaves its queues. Its caller takes the refusal for the
    /// end of it and never asks again, so it is told only when the leave is committed: this member may die before that.
    fn give_up(&mut self, call: CallId, code: Code, why: &'static str) {
        let Some((number, Waiting { name, more_names, joiner, .. })) = self.calls.end_lock(call) else { return };
        let lock = Lock { name: name.clone(), more_names, lease: self.lease, call: joiner, ..Lock::default() };
        let leaves = lock.leaves();
        self.stream.gather(Input::CancelLock { call, leaves: leaves.clone() });
        self.calls.give_up(number, GivenUp { name, code, why, places: leaves.len() });
        for command in leaves.into_iter().map(Command::Leave) {
            self.call(number, What::Leave, |call| Input::Propose { call, command });
        }
    }

    fn pass_time(&mut self) {
        let now = Instant::now();
        while let Some(call) = self.calls.due(now) {
            self.give_up(call, Code::DeadlineExceeded, "not granted in time");
        }
        self.stream.bring_gathered();
        if !self.is_warned && now >= self.warn_at() {
            self.is_warned = true;
            let ends = self.renewed_at + Duration::from_millis(self.ttl_ms);
            let remaining_ms = ends.saturating_duration_since(now).as_millis() as i64;
            self.tell(0, Response::Warning(SessionWarning { remaining_ms }));
        }
    }

    fn next_wake(&self) -> Instant {
        // Once it was warned there is nothing to wake for but timeouts, until it is renewed.
        let warn = if self.is_warned { self.warn_at() + Duration::from_secs(3600) } else { self.warn_at() };
        self.calls.next_timeout().map_or(warn, |due| due.min(warn))
    }

    fn warn_at(&self) -> Instant {
        self.renewed_at + Duration::from_millis(self.ttl_ms - self.ttl_ms / 3)
    }

    fn tell_busy(&mut self, number: u64, code: Code, message: &str, busy: &BusyReply) {
        self.count(Done::LockRefused);
        let holder = busy.holder.as_ref().map(|entry| describe::entry(entry));
        let refused =
            SessionRefused { code: code.into(), message: message.to_owned(), holder, waiting: busy.waiting as u64 };
        self.tell(number, Response::Refused(Box::new(refused)));
    }

    fn refuse(&mut self, number: u64, status: &Status) {
        let refused = SessionRefused {
            code: status.code().into(),
            message: status.message().to_owned(),
            ..SessionRefused::default()
        };
        self.tell(number, Response::Refused(Box::new(refused)));
    }

    fn tell(&mut self, number: u64, response: Response) {
        self.told.add(number, response);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let stream = self.stream.stream;
        self.stream.bring(Input::SessionClosed { stream, lease: self.lease });
        self.shared.process_wide.sessions.leave(self.lease, stream);
    }
}
