//! All lock traffic of one session on one stream, which is opened again, here or at another member, when it breaks.
//!
//! Whoever wants something gives an [`Order`]; answers are paired with what they answer by number. A session that comes
//! back is told what it holds, so nothing stays in doubt: a lock is asked for again, because the same lease has the same
//! place; an unlock that had been sent was carried out if its lock is held no more; a tenure that is missing is lost. To
//! open the stream renews the lease, too. When renewals are sent is the lifecycle's business.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tenure_api::tenure::v1::recent_holder::End;
use tenure_api::tenure::v1::session_request::Request as Ask;
use tenure_api::tenure::v1::session_response::Response as Told;
use tenure_api::tenure::v1::{
    Holder, SessionCancel, SessionGranted, SessionLock, SessionOpen, SessionOpened, SessionRefused, SessionRenew,
    SessionRequest, SessionResponse, SessionUnlock,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::connection::Connection;
use crate::keeper::{HeldLease, Owed};
use crate::lifecycle::{Cause, Input};
use crate::{Client, LeaseId, diagnose};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often it is asked whether the server is there, while it owes a prompt answer.
const ATTENTION: Duration = Duration::from_secs(1);
/// Long enough for the server to see that the place is there, short enough to leave it at once.
const HARDLY_MS: i64 = 1;

/// What is wanted of a session.
pub(crate) enum Order {
    /// By the lifecycle, which numbers its renewals.
    Renew(u64),
    Lock(LockOrder),
    /// Whoever gave this order is gone. What it may get is given back; until then, something is owed.
    Abandon {
        ticket: u64,
        owed: Owed,
    },
    Unlock(UnlockOrder),
}

pub(crate) struct LockOrder {
    pub ticket: u64,
    pub request: Box<SessionLock>,
    pub give_up: Option<Instant>,
    pub answer: oneshot::Sender<Result<Granted, Refused>>,
}

pub(crate) struct UnlockOrder {
    pub names: Vec<String>,
    pub token: i64,
    pub answer: oneshot::Sender<Result<bool, Status>>,
}

pub(crate) struct Granted {
    pub token: i64,
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

/// What was asked for and not answered.
enum Asked {
    /// Nobody waits for an answer any more if something is owed.
    Lock {
        order: LockOrder,
        owed: Option<Owed>,
    },
    Unlock {
        names: Vec<String>,
        token: i64,
        answer: Option<oneshot::Sender<Result<bool, Status>>>,
        _owed: Option<Owed>,
        was_sent: bool,
    },
    Renew(u64),
}

/// A lock that this session was granted.
struct Tenure {
    ended: Weak<watch::Sender<Option<Cause>>>,
}

pub(crate) struct SessionStream {
    client: Client,
    lease: Weak<HeldLease>,
    id: LeaseId,
    orders: mpsc::UnboundedReceiver<Order>,
    last_number: u64,
    asked: BTreeMap<u64, Asked>,
    tenures: BTreeMap<i64, Tenure>,
    /// The last renewal that the lifecycle wants, until it is answered.
    renewal: Option<u64>,
}

struct Open {
    connection: Arc<Connection>,
    requests: mpsc::UnboundedSender<SessionRequest>,
    replies: Streaming<SessionResponse>,
}

/// How it goes on.
#[derive(PartialEq, Eq)]
enum Flow {
    GoesOn,
    /// Over another stream.
    Broken,
    /// There is no such session any more, or nobody who wants it.
    Over,
}

impl SessionStream {
    pub fn new(client: Client, lease: Weak<HeldLease>, id: LeaseId, orders: mpsc::UnboundedReceiver<Order>) -> Self {
        let (asked, tenures) = Default::default();
        // The first number of every stream opens it.
        SessionStream { client, lease, id, orders, last_number: 1, asked, tenures, renewal: None }
    }

    /// Ends with the session.
    pub async fn run(mut self) {
        // Nothing is opened before it is needed.
        let Some(order) = self.orders.recv().await else { return };
        self.take(order, None);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.open().await {
                Ok(mut open) => {
                    pause = FIRST_PAUSE;
                    if self.talk(&mut open).await == Flow::Over {
                        return;
                    }
                    self.asked.retain(|_, asked| !matches!(asked, Asked::Renew(_)));
                }
                Err(Flow::Over) => return,
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    async fn open(&mut self) -> Result<Open, Flow> {
        // What is asked for from here on may be newer than what the server hears.
        let renewal = self.renewal;
        let client = self.client.clone();
        let mut opening = pin!(open(&client, self.id));
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                order = self.orders.recv() => {
                    let Some(order) = order else { return Err(Flow::Over) };
                    let is_impatient = renewal.is_some() && matches!(order, Order::Renew(_));
                    self.take(order, None);
                    if is_impatient {
                        // The lifecycle has lost its patience with this member, or with the way to it.
                        client.connections.current().iter().for_each(|silent| client.connections.leave(silent));
                        return Err(Flow::Broken);
                    }
                }
            }
        };
        let (open, opened) = match opened {
            Ok(opened) => opened,
            Err(Some(status)) if is_verdict(&status) => {
                self.end();
                return Err(Flow::Over);
            }
            Err(_) => return Err(Flow::Broken),
        };
        if let Some(number) = renewal {
            let ttl_ms = u64::try_from(opened.ttl_ms).unwrap_or(0);
            self.step(Input::Answered { number, ttl_ms });
            self.renewal = self.renewal.filter(|newer| *newer != number);
        }
        self.resume(&open, &opened);
        Ok(open)
    }

    /// Puts everything that was asked for on the new stream, as far as that is still to be done.
    fn resume(&mut self, open: &Open, opened: &SessionOpened) {
        let holds = |token: i64| opened.held.iter().any(|held| held.fencing_token == token);
        for (token, tenure) in std::mem::take(&mut self.tenures) {
            match holds(token) {
                true => drop(self.tenures.insert(token, tenure)),
                false => tenure.end(Cause::Taken),
            }
        }
        for (number, mut asked) in std::mem::take(&mut self.asked) {
            if let Asked::Unlock { token, answer, was_sent, .. } = &mut asked
                && !holds(*token)
            {
                let was_sent = *was_sent;
                answer.take().into_iter().for_each(|answer| drop(answer.send(Ok(was_sent))));
                continue;
            }
            asked.send(number, open);
            self.asked.insert(number, asked);
        }
        if let Some(number) = self.renewal {
            self.ask(Asked::Renew(number), Some(open));
        }
    }

    async fn talk(&mut self, open: &mut Open) -> Flow {
        loop {
            let owes_an_answer = self.asked.values().any(|asked| !matches!(asked, Asked::Lock { .. }));
            let flow = tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.take(order, Some(open)),
                    None => return Flow::Over,
                },
                told = open.replies.message() => match told {
                    Ok(Some(told)) => {
                        open.connection.heard();
                        self.hear(told, open)
                    }
                    Ok(None) => Flow::Broken,
                    Err(status) if is_verdict(&status) => {
                        self.end();
                        return Flow::Over;
                    }
                    Err(status) => {
                        turn_away(&self.client, &open.connection, &status);
                        return Flow::Broken;
                    }
                },
                () = open.connection.fallen_silent() => Flow::Broken,
                () = tokio::time::sleep(ATTENTION), if owes_an_answer => {
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
        match order {
            Order::Renew(number) => {
                let is_impatient = self.renewal.replace(number).is_some();
                match open {
                    // The one before was not answered, and a stream answers in order.
                    Some(_) if is_impatient => return Flow::Broken,
                    Some(_) => self.ask(Asked::Renew(number), open),
                    None => {}
                }
            }
            Order::Lock(order) => {
                self.ask(Asked::Lock { order, owed: None }, open);
            }
            Order::Unlock(UnlockOrder { names, token, answer }) => {
                self.ask(Asked::Unlock { names, token, answer: Some(answer), _owed: None, was_sent: false }, open);
            }
            Order::Abandon { ticket, owed } => self.abandon(ticket, owed, open),
        }
        Flow::GoesOn
    }

    fn ask(&mut self, mut asked: Asked, open: Option<&Open>) {
        self.last_number += 1;
        open.into_iter().for_each(|open| asked.send(self.last_number, open));
        self.asked.insert(self.last_number, asked);
    }

    fn abandon(&mut self, ticket: u64, debt: Owed, open: Option<&Open>) {
        let is_it = |asked: &Asked| matches!(asked, Asked::Lock { order, .. } if order.ticket == ticket);
        // If there is none, it was answered before, and the answer given back.
        let Some((number, asked)) = self.asked.iter_mut().find(|(_, asked)| is_it(asked)) else { return };
        if let Asked::Lock { owed, .. } = asked {
            *owed = Some(debt);
        }
        let cancel = SessionCancel { number: *number };
        self.last_number += 1;
        open.into_iter().for_each(|open| open.send(self.last_number, Ask::Cancel(cancel)));
    }

    fn hear(&mut self, told: SessionResponse, open: &Open) -> Flow {
        let SessionResponse { number, response } = told;
        match response {
            Some(Told::Granted(granted)) => self.granted(number, granted, open),
            Some(Told::Refused(refused)) => return self.refused(number, *refused),
            Some(Told::Unlocked(unlocked)) => {
                if let Some(Asked::Unlock { token, answer, .. }) = self.asked.remove(&number) {
                    self.tenures.remove(&token);
                    answer.into_iter().for_each(|answer| drop(answer.send(Ok(unlocked.released))));
                }
            }
            Some(Told::Renewed(renewed)) => {
                if let Some(Asked::Renew(number)) = self.asked.remove(&number) {
                    self.renewal = self.renewal.filter(|newer| *newer != number);
                    let ttl_ms = u64::try_from(renewed.ttl_ms).unwrap_or(0);
                    self.step(Input::Answered { number, ttl_ms });
                }
            }
            Some(Told::Lost(lost)) => {
                let cause = match lost.cause() {
                    End::Expired | End::Revoked => Cause::LeaseEnded,
                    End::Released | End::Forced | End::Left => Cause::Taken,
                };
                let tenure = self.tenures.remove(&lost.fencing_token);
                tenure.into_iter().for_each(|tenure| tenure.end(cause));
            }
            // The lifecycle warns by its own clock, and places in queues are asked for where they are shown.
            Some(Told::Warning(_) | Told::LeaderChanged(_) | Told::Queued(_) | Told::Closed(_) | Told::Opened(_)) => {}
            None => {}
        }
        Flow::GoesOn
    }

    fn granted(&mut self, number: u64, granted: SessionGranted, open: &Open) {
        let Some(Asked::Lock { order: LockOrder { request, answer, .. }, owed }) = self.asked.remove(&number) else {
            return;
        };
        let SessionGranted { fencing_token: token, slot, signature, .. } = granted;
        let ended = Arc::new(watch::Sender::new(None));
        self.tenures.insert(token, Tenure { ended: Arc::downgrade(&ended) });
        let granted = Granted { token, slot, signature, ended };
        // Whoever asked for it may be gone.
        if answer.send(Ok(granted)).is_err() {
            let names = [vec![request.name], request.more_names].concat();
            self.ask(Asked::Unlock { names, token, answer: None, _owed: owed, was_sent: false }, Some(open));
        }
    }

    fn refused(&mut self, number: u64, refused: SessionRefused) -> Flow {
        let SessionRefused { code, message, holder, waiting } = refused;
        let status = Status::new(Code::from_i32(code), message);
        if status.code() == Code::Unavailable {
            // This member cannot say; on another stream it is asked for again.
            return Flow::Broken;
        }
        match self.asked.remove(&number) {
            Some(Asked::Lock { order, .. }) => {
                // Whoever asked for it may be gone.
                let _ = order.answer.send(Err(Refused { status, holder, waiting }));
            }
            Some(Asked::Unlock { answer: Some(answer), .. }) => drop(answer.send(Err(status))),
            _ => {}
        }
        Flow::GoesOn
    }

    /// The server says that there is no such session.
    fn end(&self) {
        self.step(Input::Ended(Cause::LeaseEnded));
    }

    fn step(&self, input: Input) {
        self.lease.upgrade().into_iter().for_each(|lease| lease.step(input));
    }
}

impl Asked {
    fn send(&mut self, number: u64, open: &Open) {
        let request = match self {
            Asked::Lock { order, owed } => {
                let left = order.give_up.map(|give_up| give_up.saturating_duration_since(Instant::now()));
                let left_ms = left.map(|left| i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
                let timeout_ms = if owed.is_some() { Some(HARDLY_MS) } else { left_ms };
                Ask::Lock(SessionLock { timeout_ms, ..(*order.request).clone() })
            }
            Asked::Unlock { names, token, was_sent, .. } => {
                *was_sent = true;
                let (name, more_names) = (names[0].clone(), names[1..].to_vec());
                Ask::Unlock(SessionUnlock { name, more_names, fencing_token: *token })
            }
            Asked::Renew(_) => Ask::Renew(SessionRenew {}),
        };
        open.send(number, request);
    }
}

impl Open {
    fn send(&self, number: u64, request: Ask) {
        // If the stream has ended, its replies will say so.
        let _ = self.requests.send(SessionRequest { number, request: Some(request) });
    }
}

impl Tenure {
    /// The first end is the one that is told.
    fn end(&self, cause: Cause) {
        let Some(ended) = self.ended.upgrade() else { return };
        ended.send_if_modified(|ended| ended.is_none() && ended.replace(cause).is_none());
    }
}

/// Err(None): nobody can be reached, or somebody says nothing.
async fn open(client: &Client, id: LeaseId) -> Result<(Open, SessionOpened), Option<Status>> {
    let connections = &client.connections;
    let give_up = Instant::now() + connections.settings().timeout;
    let connection = connections.connection(give_up).await.map_err(|_| None)?;
    let (requests, outgoing) = mpsc::unbounded_channel();
    let first = SessionOpen { session_id: id, ttl_ms: 0, client_id: String::new() };
    let _ = requests.send(SessionRequest { number: 1, request: Some(Ask::Open(first)) });
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
