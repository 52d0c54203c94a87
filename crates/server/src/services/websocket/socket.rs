//! One WebSocket: frames in and out, pings, limits, and how it ends.
//!
//! Text goes to the [`Session`] and comes from it. A client that reads slowly stops being read, one
//! that reads nothing is cut off; one that says nothing is pinged, and cut off if it does not answer.
//! Before the last frame leaves, the session has given up its claims, so that a client that has seen
//! the end may come back at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, SinkExt, Stream};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message, Utf8Bytes};

use super::message::Unread;
use super::session::Session;
use crate::calls::SessionMail;
use crate::limits;
use crate::listen::Stopping;

/// How long the other side may take to hang up once the end was said.
const FAREWELL: Duration = Duration::from_secs(1);
const READ_BUFFER_BYTES: usize = 4 << 10;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// When a quiet connection is asked whether it lives, and how long the answer may take.
#[derive(Clone, Copy)]
pub struct Patience {
    pub interval: Duration,
    pub timeout: Duration,
}

/// Returns when the connection is over.
pub async fn serve(upgraded: Upgraded, session: Session, patience: Patience, stopping: Stopping) {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(limits::WEBSOCKET_SEND_BYTES)
        .max_message_size(Some(limits::WEBSOCKET_MESSAGE_BYTES))
        .max_frame_size(Some(limits::WEBSOCKET_MESSAGE_BYTES));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let now = Instant::now();
    let mut conversation = Conversation {
        socket,
        session,
        patience,
        heard_at: now,
        pinged_at: None,
        is_flushing: false,
        stuck_since: now,
    };
    let end = tokio::select! {
        biased;
        () = stopping.wait() => End::Said(CloseCode::Away, "the member stops"),
        end = conversation.run() => end,
    };
    let Conversation { socket, session, .. } = conversation;
    drop(session);
    farewell(socket, end).await;
}

enum End {
    /// By us, with a code and a reason.
    Said(CloseCode, &'static str),
    /// By the client; its close frame is answered by the library.
    Heard,
    /// Nobody is there any more.
    Gone,
}

enum Event {
    Mail(SessionMail),
    Message(Message),
    End(End),
}

struct Conversation {
    socket: Socket,
    session: Session,
    patience: Patience,
    heard_at: Instant,
    pinged_at: Option<Instant>,
    /// Something was written that may not have left yet.
    is_flushing: bool,
    stuck_since: Instant,
}

impl Conversation {
    async fn run(&mut self) -> End {
        loop {
            let wake = self.next_wake();
            tokio::select! {
                biased;
                event = poll_fn(|context| self.poll_event(context)) => match event {
                    Event::Mail(mail) => self.session.hear(mail),
                    Event::Message(message) => {
                        (self.heard_at, self.pinged_at) = (Instant::now(), None);
                        if let Some(end) = self.take(message) {
                            return end;
                        }
                    }
                    Event::End(end) => return end,
                },
                () = sleep_until(wake) => if let Some(end) = self.pass_time() {
                    return end;
                },
            }
            if self.session.is_over() {
                return End::Said(CloseCode::Away, "the member stops");
            }
        }
    }

    fn take(&mut self, message: Message) -> Option<End> {
        match message {
            Message::Text(text) => self.session.take(&text),
            Message::Binary(_) => self.session.misunderstand(&Unread::of("requests are text frames, not binary ones")),
            Message::Close(_) => return Some(End::Heard),
            // A ping is answered by the library.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
        None
    }

    /// Sends what goes, then gives what came first.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if self.poll_send(context).is_err() {
            return Poll::Ready(Event::End(End::Gone));
        }
        if let Poll::Ready(Some(mail)) = self.session.poll_mail(context) {
            return Poll::Ready(Event::Mail(mail));
        }
        if !self.session.is_ready() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.socket).poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(message))) => Poll::Ready(Event::Message(message)),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Event::End(end_of(&error))),
            Poll::Ready(None) => Poll::Ready(Event::End(End::Gone)),
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Result<(), Error> {
        let mut socket = Pin::new(&mut self.socket);
        while self.session.has_text() {
            match socket.as_mut().poll_ready(context) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(()),
            }
            if !std::mem::replace(&mut self.is_flushing, true) {
                self.stuck_since = Instant::now();
            }
            if let Some(text) = self.session.pop_text() {
                socket.as_mut().start_send(Message::Text(text.into()))?;
            }
        }
        if self.is_flushing
            && let Poll::Ready(flushed) = socket.poll_flush(context)
        {
            flushed?;
            self.is_flushing = false;
        }
        Ok(())
    }

    fn next_wake(&self) -> Instant {
        let Patience { interval, timeout } = self.patience;
        let quiet = self.pinged_at.map_or(self.heard_at + interval, |pinged_at| pinged_at + timeout);
        let stuck = self.is_flushing.then_some(self.stuck_since + timeout);
        [Some(quiet), stuck, self.session.next_wake()].into_iter().flatten().min().unwrap_or(quiet)
    }

    fn pass_time(&mut self) -> Option<End> {
        let now = Instant::now();
        let Patience { interval, timeout } = self.patience;
        let is_stuck = self.is_flushing && now >= self.stuck_since + timeout;
        let is_silent = self.pinged_at.is_some_and(|pinged_at| now >= pinged_at + timeout);
        if is_stuck || is_silent {
            return Some(End::Gone);
        }
        if self.pinged_at.is_none() && now >= self.heard_at + interval {
            self.pinged_at = Some(now);
            // While something is stuck the other side is asked already.
            if !self.is_flushing {
                (self.is_flushing, self.stuck_since) = (true, now);
                if Pin::new(&mut self.socket).start_send(Message::Ping(Bytes::new())).is_err() {
                    return Some(End::Gone);
                }
            }
        }
        self.session.pass_time();
        None
    }
}

/// What a client is told whose frames cannot be read.
fn end_of(error: &Error) -> End {
    match error {
        Error::Capacity(_) => End::Said(CloseCode::Size, "the message is too long"),
        Error::Utf8(_) => End::Said(CloseCode::Invalid, "a text frame that is not UTF-8"),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => End::Gone,
        Error::Protocol(_) => End::Said(CloseCode::Protocol, "not as RFC 6455 has it"),
        _ => End::Gone,
    }
}

/// Sends the last frame, and hangs up only when the client has, or takes too long: an end that comes
/// while its bytes are unread would destroy the frame on its way.
async fn farewell(mut socket: Socket, end: End) {
    let said = async {
        match end {
            End::Said(code, reason) => {
                let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
                socket.send(Message::Close(Some(frame))).await.ok()?;
            }
            End::Heard => socket.flush().await.ok()?,
            End::Gone => return None,
        }
        let mut connection = socket.into_inner();
        connection.shutdown().await.ok()?;
        let mut rest = [0; 4096];
        while connection.read(&mut rest).await.ok()? > 0 {}
        Some(())
    };
    let _ = timeout(FAREWELL, said).await;
}
