//! All lock traffic of one session on one stream, which is opened again, here or at another member, when it breaks.
//!
//! This is the shell: it takes orders from callers, moves messages, and tells callers what came of their orders. What is
//! sent, what is sent again and what an answer means is decided by [`Requests`], which is pure.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tenure_api::tenure::v1::recent_holder::End;
use tenure_api::tenure::v1::session_request::Request as Ask;
use tenure_api::tenure::v1::session_response::Response as Told;
use tenure_api::tenure::v1::{
    Holder, SessionCancel, SessionClose, SessionGranted, SessionHeld, SessionLock, SessionOpen, SessionOpened,
    SessionRefused, SessionRenew, SessionRequest, SessionResponse, SessionUnlock,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::connection::Connection;
use crate::keeper::{HeldLease, Owed};
use crate::lifecycle::{self, Cause};
use crate::requests::{Effect, Held, Input, Names, Number, OPEN, Refusal, Request, Requests, Ticket, Token, Wait};
use crate::{Client, LeaseId, diagnose};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often the client asks whether the server is there, while the server owes a prompt answer.
const ATTENTION: Duration = Duration::from_secs(1);
/// Long enough for the server to find the place of the session, short enough to leave it at once.
const A_MOMENT_MS: i64 = 1;
/// How long the server may take to close a session. After that its lease is revoked by a call of its own.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// What the server says when another stream has taken the session over.
const RESUMED_ELSEWHERE: &str = "session was resumed elsewhere";

/// What a caller, or the lifecycle, wants of a session.
pub(crate) enum Order {
    /// The lifecycle numbers its renewals.
    Renew(u64),
    Lock(LockOrder),
    /// The caller of this lock is gone and has not read its grant. What it gets is given back, and `owed` is held until
    /// then.
    Abandon {
        ticket: Ticket,
        owed: Owed,
    },
    Unlock(UnlockOrder),
    /// The session is given back: the stream that is open, if there is one, tells the server to close it. Sends `true`
    /// if the server has ended the lease; otherwise the lease has to be revoked.
    Close(oneshot::Sender<bool>),
    /// The lease is lost. What it holds ends with it at the server, so nothing is owed any more.
    End,
}

pub(crate) struct LockOrder {
    pub ticket: Ticket,
    pub request: Box<SessionLock>,
    pub give_up: Option<Instant>,
    pub answer: oneshot::Sender<Result<Granted, Refused>>,
}

pub(crate) struct UnlockOrder {
    pub ticket: Ticket,
    pub names: Names,
    pub token: Token,
    pub answer: oneshot::Sender<Result<bool, Status>>,
}

pub(crate) struct Granted {
    pub token: Token,
    pub slot: u32,
    pub signature: String,
    /// Set when this lock ends and its lease does not.
    pub ended: Arc<watch::Sender<Option<Cause>>>,
}

pub(crate) struct Refused {
    pub status: Status,
    pub holder: Option<Holder>,
    pub waiting: u64,
}

/// Who waits for an answer.
enum Caller {
    Lock(LockOrder),
    Unlock(oneshot::Sender<Result<bool, Status>>),
}

pub(crate) struct SessionStream {
    client: Client,
    lease: Weak<HeldLease>,
    id: LeaseId,
    orders: mpsc::UnboundedReceiver<Order>,
    requests: Requests,
    callers: BTreeMap<Ticket, Caller>,
    /// Held for callers that are gone, until nothing is owed for them.
    debts: BTreeMap<Ticket, Owed>,
    tenures: BTreeMap<Token, Weak<watch::Sender<Option<Cause>>>>,
    /// Who waits for the session to be closed.
    closing: Option<oneshot::Sender<bool>>,
    /// Before the next stream is opened; zero if this one was of use.
    pause: Duration,
}

struct Open {
    connection: Arc<Connection>,
    requests: mpsc::UnboundedSender<SessionRequest>,
    replies: Streaming<SessionResponse>,
}

/// How the session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    GoesOn,
    /// Over another stream.
    Reopen,
    /// The session does not exist any more, or nothing uses it.
    Over,
}

/// What came with an answer, for the caller that it is told to.
enum Said {
    Nothing,
    Granted { slot: u32, signature: String },
    Refused(Box<Refused>),
}

impl SessionStream {
    pub fn new(client: Client, lease: Weak<HeldLease>, id: LeaseId, orders: mpsc::UnboundedReceiver<Order>) -> Self {
        let (requests, callers, debts, tenures, closing) = Default::default();
        SessionStream { client, lease, id, orders, requests, callers, debts, tenures, closing, pause: Duration::ZERO }
    }

    /// Ends with the session.
    pub async fn run(mut self) {
        // Nothing is opened before it is needed.
        let Some(order) = self.orders.recv().await else { return };
        if self.take(order, None) == Flow::Over {
            return;
        }
        loop {
            let flow = match self.open().await {
                Ok(mut open) => match self.talk(&mut open).await {
                    Flow::Over => return self.close(open).await,
                    flow => flow,
                },
                Err(flow) => flow,
            };
            if flow == Flow::Over {
                return;
            }
            self.step(Input::Broken, Said::Nothing, None);
            if self.rest().await == Flow::Over {
                return;
            }
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
    }

    /// Pauses before the next stream is opened. Orders are taken meanwhile: a session that is closed now is revoked at
    /// once.
    async fn rest(&mut self) -> Flow {
        let mut pause = pin!(tokio::time::sleep(self.pause));
        loop {
            tokio::select! {
                () = &mut pause => return Flow::GoesOn,
                order = self.orders.recv() => match order.map(|order| self.take(order, None)) {
                    Some(Flow::Over) | None => return Flow::Over,
                    Some(Flow::GoesOn | Flow::Reopen) => {}
                },
            }
        }
    }

    /// Closes the session over its stream, if its user has given it back, and reads the stream to its end.
    async fn close(mut self, mut open: Open) {
        let (Some(closing), Some(number)) = (self.closing.take(), self.requests.close()) else { return };
        let _ = open.requests.send(SessionRequest { number, request: Some(Ask::Close(SessionClose {})) });
        let mut is_closed = false;
        let reading = async {
            loop {
                match open.replies.message().await {
                    Ok(Some(told)) => is_closed |= matches!(told.response, Some(Told::Closed(_))),
                    Ok(None) => return,
                    Err(status) => {
                        is_closed |= is_verdict(&status);
                        return;
                    }
                }
            }
        };
        // A server that does not answer in time is left, and so is the stream.
        let _ = tokio::time::timeout(CLOSE_WITHIN, reading).await;
        let _ = closing.send(is_closed);
    }

    async fn open(&mut self) -> Result<Open, Flow> {
        self.step(Input::Opening, Said::Nothing, None);
        let client = self.client.clone();
        let mut opening = pin!(open(&client, self.id));
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                order = self.orders.recv() => {
                    let Some(order) = order else { return Err(Flow::Over) };
                    match self.take(order, None) {
                        Flow::GoesOn => {}
                        Flow::Reopen => {
                            // The lifecycle has lost its patience with this member, or with the way to it.
                            client.connections.current().iter().for_each(|silent| client.connections.leave(silent));
                            return Err(Flow::Reopen);
                        }
                        Flow::Over => return Err(Flow::Over),
                    }
                }
            }
        };
        match opened {
            Ok((open, SessionOpened { ttl_ms, held, .. })) => {
                let mut names = Held::new();
                for SessionHeld { name, fencing_token } in held {
                    names.entry(fencing_token).or_default().insert(name);
                }
                let opened = Input::Opened { ttl_ms: u64::try_from(ttl_ms).unwrap_or(0), held: names };
                match self.step(opened, Said::Nothing, Some(&open)) {
                    Flow::GoesOn => Ok(open),
                    flow => Err(flow),
                }
            }
            Err(Some(status)) if is_verdict(&status) => Err(self.end()),
            Err(_) => Err(Flow::Reopen),
        }
    }

    async fn talk(&mut self, open: &mut Open) -> Flow {
        loop {
            let expects_an_answer = self.requests.expects_an_answer();
            let flow = tokio::select! {
                order = self.orders.recv() => match order.map(|order| self.take(order, Some(open))) {
                    Some(Flow::Over) | None => return Flow::Over,
                    Some(flow) => flow,
                },
                told = open.replies.message() => match told {
                    Ok(Some(told)) => {
                        open.connection.heard();
                        self.hear(told, open)
                    }
                    Ok(None) => Flow::Reopen,
                    Err(status) if is_verdict(&status) => return self.end(),
                    Err(status) => {
                        turn_away(&self.client, &open.connection, &status);
                        return Flow::Reopen;
                    }
                },
                () = open.connection.fallen_silent() => Flow::Reopen,
                () = tokio::time::sleep(ATTENTION), if expects_an_answer => {
                    open.connection.ask();
                    Flow::GoesOn
                }
            };
            if flow != Flow::GoesOn {
                self.client.connections.leave(&open.connection);
                return flow;
            }
        }
    }

    fn take(&mut self, order: Order, open: Option<&Open>) -> Flow {
        let input = match order {
            Order::Renew(renewal) => Input::Renew { renewal },
            Order::Lock(order) => {
                let (ticket, names) = (order.ticket, names_of(&order.request));
                self.callers.insert(ticket, Caller::Lock(order));
                Input::Lock { ticket, names }
            }
            Order::Unlock(UnlockOrder { ticket, names, token, answer }) => {
                self.callers.insert(ticket, Caller::Unlock(answer));
                Input::Unlock { ticket, names, token }
            }
            Order::Abandon { ticket, owed } => {
                self.debts.insert(ticket, owed);
                Input::Abandon { ticket }
            }
            Order::Close(closing) => {
                self.closing = Some(closing);
                Input::Ended
            }
            Order::End => Input::Ended,
        };
        self.step(input, Said::Nothing, open)
    }

    fn hear(&mut self, told: SessionResponse, open: &Open) -> Flow {
        let SessionResponse { number, response } = told;
        let (input, said) = match response {
            Some(Told::Granted(SessionGranted { fencing_token: token, slot, signature, .. })) => {
                (Input::Granted { number, token }, Said::Granted { slot, signature })
            }
            Some(Told::Refused(refused)) => {
                let SessionRefused { code, message, holder, waiting } = *refused;
                let status = Status::new(Code::from_i32(code), message);
                (
                    Input::Refused { number, refusal: refusal(&status) },
                    Said::Refused(Box::new(Refused { status, holder, waiting })),
                )
            }
            Some(Told::Unlocked(unlocked)) => (Input::Unlocked { number, released: unlocked.released }, Said::Nothing),
            Some(Told::Renewed(renewed)) => {
                (Input::Renewed { number, ttl_ms: u64::try_from(renewed.ttl_ms).unwrap_or(0) }, Said::Nothing)
            }
            Some(Told::Lost(lost)) => {
                let cause = match lost.cause() {
                    End::Expired | End::Revoked => Cause::LeaseEnded,
                    End::Released | End::Forced | End::Left => Cause::Taken,
                };
                (Input::Lost { token: lost.fencing_token, cause }, Said::Nothing)
            }
            // The lifecycle warns by its own clock, and places in queues are asked for where they are shown.
            Some(Told::Warning(_) | Told::LeaderChanged(_) | Told::Queued(_) | Told::Closed(_) | Told::Opened(_)) => {
                return Flow::GoesOn;
            }
            None => return Flow::GoesOn,
        };
        let flow = self.step(input, said, Some(open));
        if flow == Flow::GoesOn {
            self.pause = Duration::ZERO;
        }
        flow
    }

    /// The server says that there is no such session.
    fn end(&mut self) -> Flow {
        self.step_lifecycle(lifecycle::Input::Ended(Cause::LeaseEnded));
        self.step(Input::Ended, Said::Nothing, None)
    }

    fn step(&mut self, input: Input, mut said: Said, open: Option<&Open>) -> Flow {
        let mut flow = Flow::GoesOn;
        for effect in self.requests.step(input) {
            match effect {
                Effect::Send { number, request } => self.send(number, request, open),
                Effect::Grant { ticket, token } => {
                    self.tell_granted(ticket, token, std::mem::replace(&mut said, Said::Nothing));
                }
                Effect::Refuse { ticket } => self.tell_refused(ticket, std::mem::replace(&mut said, Said::Nothing)),
                Effect::Released { ticket, released } => {
                    if let Some(Caller::Unlock(answer)) = self.callers.remove(&ticket) {
                        // A caller that gave up waiting is told in vain.
                        let _ = answer.send(Ok(released));
                    }
                }
                Effect::Settled { ticket } => {
                    self.callers.remove(&ticket);
                    self.debts.remove(&ticket);
                }
                Effect::TenureEnded { token, cause } => self.end_tenure(token, cause),
                Effect::Confirmed { renewal, ttl_ms } => {
                    self.step_lifecycle(lifecycle::Input::Answered { number: renewal, ttl_ms });
                }
                Effect::Reopen => flow = Flow::Reopen,
                Effect::Over => flow = Flow::Over,
            }
        }
        flow
    }

    fn send(&self, number: Number, request: Request, open: Option<&Open>) {
        let request = match request {
            Request::Lock { ticket, wait } => match self.callers.get(&ticket) {
                Some(Caller::Lock(order)) => Ask::Lock(order.to_send(wait)),
                _ => return,
            },
            Request::Cancel { number } => Ask::Cancel(SessionCancel { number }),
            Request::Unlock { names, token } => {
                let (name, more_names) = (names[0].clone(), names[1..].to_vec());
                Ask::Unlock(SessionUnlock { name, more_names, fencing_token: token })
            }
            Request::Renew => Ask::Renew(SessionRenew {}),
        };
        if let Some(open) = open {
            // If the stream has ended, its replies will say so.
            let _ = open.requests.send(SessionRequest { number, request: Some(request) });
        }
    }

    fn tell_granted(&mut self, ticket: Ticket, token: Token, said: Said) {
        let (Some(Caller::Lock(order)), Said::Granted { slot, signature }) = (self.callers.remove(&ticket), said)
        else {
            return;
        };
        let ended = Arc::new(watch::Sender::new(None));
        self.tenures.insert(token, Arc::downgrade(&ended));
        // A caller that is gone, or goes away before it reads this, abandons its ticket.
        let _ = order.answer.send(Ok(Granted { token, slot, signature, ended }));
    }

    fn tell_refused(&mut self, ticket: Ticket, said: Said) {
        let Said::Refused(refused) = said else { return };
        // A caller that is gone is told in vain.
        match self.callers.remove(&ticket) {
            Some(Caller::Lock(order)) => drop(order.answer.send(Err(*refused))),
            Some(Caller::Unlock(answer)) => drop(answer.send(Err(refused.status))),
            None => {}
        }
    }

    /// The first end of a tenure is the one that is told.
    fn end_tenure(&mut self, token: Token, cause: Cause) {
        let Some(ended) = self.tenures.remove(&token).and_then(|ended| ended.upgrade()) else { return };
        ended.send_if_modified(|ended| ended.is_none() && ended.replace(cause).is_none());
    }

    fn step_lifecycle(&self, input: lifecycle::Input) {
        self.lease.upgrade().into_iter().for_each(|lease| lease.step(input));
    }
}

impl LockOrder {
    fn to_send(&self, wait: Wait) -> SessionLock {
        let left = self.give_up.map(|give_up| give_up.saturating_duration_since(Instant::now()));
        let left_ms = left.map(|left| i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
        let timeout_ms = match wait {
            Wait::AsAsked => left_ms,
            Wait::AMoment => left_ms.map(|left_ms| left_ms.max(A_MOMENT_MS)),
            Wait::ToLeave => Some(A_MOMENT_MS),
        };
        SessionLock { timeout_ms, ..(*self.request).clone() }
    }
}

pub(crate) fn names_of(request: &SessionLock) -> Names {
    std::iter::once(&request.name).chain(&request.more_names).cloned().collect()
}

fn refusal(status: &Status) -> Refusal {
    match status.code() {
        Code::Unavailable => Refusal::Passing,
        Code::Aborted if status.message() == RESUMED_ELSEWHERE => Refusal::Passing,
        Code::ResourceExhausted => Refusal::Overloaded,
        _ => Refusal::Final,
    }
}

/// Err(None): no server could be reached, or the one that was reached says nothing.
async fn open(client: &Client, id: LeaseId) -> Result<(Open, SessionOpened), Option<Status>> {
    let connections = &client.connections;
    let give_up = Instant::now() + connections.settings().timeout;
    let connection = connections.connection(give_up).await.map_err(|_| None)?;
    let (requests, outgoing) = mpsc::unbounded_channel();
    let first = SessionOpen { session_id: id, ttl_ms: 0, client_id: String::new() };
    let _ = requests.send(SessionRequest { number: OPEN, request: Some(Ask::Open(first)) });
    let mut service = LockServiceClient::new(connection.channel.clone());
    let opening = async {
        let mut replies = service.session(UnboundedReceiverStream::new(outgoing)).await?.into_inner();
        let first = replies.message().await?;
        Ok::<_, Status>((replies, first))
    };
    let opened = match tokio::time::timeout_at(give_up, connection.listen(opening)).await {
        Ok(Some(opened)) => opened,
        Ok(None) | Err(_) => {
            connections.leave(&connection);
            return Err(None);
        }
    };
    match opened {
        Ok((replies, Some(SessionResponse { response: Some(Told::Opened(opened)), .. }))) => {
            Ok((Open { connection, requests, replies }, *opened))
        }
        Ok(_) => {
            connections.leave(&connection);
            Err(None)
        }
        Err(status) => {
            turn_away(client, &connection, &status);
            Err(Some(status))
        }
    }
}

fn turn_away(client: &Client, connection: &Arc<Connection>, status: &Status) {
    match diagnose::is_unsent(status) {
        true => client.connections.forget(connection),
        false if is_verdict(status) => {}
        false => client.connections.leave(connection),
    }
}

/// Whether the server itself says that there is no such lease.
fn is_verdict(status: &Status) -> bool {
    status.code() == Code::NotFound && !diagnose::is_transport(status)
}
