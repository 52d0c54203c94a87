//! Watches that outlive their connection.
//!
//! A [`Watcher`] knows the first revision that it has not delivered ([`Cursor`], which is pure). When its stream breaks, it
//! opens another one, at the next endpoint, from that revision on: nothing is left out and nothing comes twice. Only
//! compacted history ends it, or the server's verdict that the watch is not allowed.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::etcdserverpb as proto;
use tenure_api::etcdserverpb::watch_client::WatchClient;
use tenure_api::etcdserverpb::watch_create_request::FilterType;
use tenure_api::etcdserverpb::watch_request::RequestUnion;
use tenure_api::mvccpb::event::EventType;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};

use crate::call::Kind;
use crate::connection::Connection;
use crate::cursor::{Cursor, Message};
use crate::{Cause, Client, Error, KeyValue, Keys, Revision};

const KIND: Kind = Kind { name: "watch", idempotent: true, unlimited: false };
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What to watch.
pub struct Watch {
    request: proto::WatchCreateRequest,
    interrupted: Option<Interrupted>,
}

type Interrupted = Box<dyn Fn(&Error) + Send + Sync>;

impl Watch {
    pub fn keys(keys: impl Into<Keys>) -> Watch {
        let Keys { key, end } = keys.into();
        // Progress moves an idle watch on, so that it does not come back to ask for forgotten history.
        let request = proto::WatchCreateRequest {
            key,
            range_end: end,
            progress_notify: true,
            ..proto::WatchCreateRequest::default()
        };
        Watch { request, interrupted: None }
    }

    /// Begin with the changes of that revision; 0 = with the next one.
    pub fn start(mut self, revision: Revision) -> Watch {
        self.request.start_revision = revision;
        self
    }

    /// Events tell what was there before.
    pub fn previous(mut self) -> Watch {
        self.request.prev_kv = true;
        self
    }

    pub fn without_puts(mut self) -> Watch {
        self.request.filters.push(FilterType::Noput as i32);
        self
    }

    pub fn without_deletes(mut self) -> Watch {
        self.request.filters.push(FilterType::Nodelete as i32);
        self
    }

    /// Told whenever the connection is lost and the watch looks for another.
    pub fn when_interrupted(mut self, told: impl Fn(&Error) + Send + Sync + 'static) -> Watch {
        self.interrupted = Some(Box::new(told));
        self
    }
}

/// All changes of one or more revisions, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Events {
    /// The last revision that these events are of.
    pub revision: Revision,
    pub events: Vec<Event>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub kind: EventKind,
    /// A deleted key has only its key and the revision of the deletion.
    pub pair: KeyValue,
    pub previous: Option<KeyValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

impl Client {
    /// Opens a watch. When this returns, the watch is in place: no later change is missed.
    pub async fn watch(&self, watch: Watch) -> Result<Watcher, Error> {
        let mut watcher = Watcher {
            client: self.clone(),
            cursor: Cursor::new(watch.request.start_revision),
            request: watch.request,
            interrupted: watch.interrupted,
            stream: None,
            pause: FIRST_PAUSE,
        };
        watcher.open().await?;
        Ok(watcher)
    }
}

/// An open watch. Dropping it ends it.
pub struct Watcher {
    client: Client,
    request: proto::WatchCreateRequest,
    interrupted: Option<Interrupted>,
    cursor: Cursor,
    stream: Option<Open>,
    pause: Duration,
}

struct Open {
    connection: Arc<Connection>,
    /// Kept so that the server does not see the end of our requests.
    _requests: mpsc::Sender<proto::WatchRequest>,
    replies: Streaming<proto::WatchResponse>,
}

enum Step {
    Events(Events),
    /// A word without events: created, or progress.
    Quiet,
    Broken(Error),
}

impl Watcher {
    /// The next changes. May be dropped while it waits: nothing is lost.
    pub async fn next(&mut self) -> Result<Events, Error> {
        loop {
            match self.step().await? {
                Step::Events(events) => return Ok(events),
                Step::Quiet => {}
                Step::Broken(error) => {
                    self.stream = None;
                    if let Some(told) = &self.interrupted {
                        told(&error);
                    }
                    tokio::time::sleep(self.pause).await;
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// The first revision that this watch has not delivered; 0 before it is known.
    pub fn next_revision(&self) -> Revision {
        self.cursor.next()
    }

    async fn step(&mut self) -> Result<Step, Error> {
        if self.stream.is_none() {
            return match self.open().await {
                Ok(()) => Ok(Step::Quiet),
                Err(error) if error.is_passing() => Ok(Step::Broken(error)),
                Err(error) => Err(error),
            };
        }
        let stream = self.stream.as_mut().expect("it was opened above");
        let (connections, waiting) = (&self.client.connections, Instant::now());
        let message = tokio::select! {
            message = stream.replies.message() => message,
            () = stream.connection.fallen_silent() => {
                let silence = connections.judge_silence(&stream.connection, KIND, waiting.elapsed());
                return Ok(Step::Broken(silence));
            }
        };
        match message {
            Ok(Some(response)) => self.receive(response),
            Ok(None) => Ok(Step::Broken(self.lost())),
            Err(status) => connections.judge_stream(&stream.connection, KIND, &status).map(Step::Broken),
        }
    }

    fn receive(&mut self, response: proto::WatchResponse) -> Result<Step, Error> {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        if response.compact_revision > 0 {
            return Err(Error::Compacted { oldest: Some(response.compact_revision) });
        }
        if response.canceled {
            // A member without a leader cancels; its words are the only difference to a refusal.
            return match response.cancel_reason.contains("no leader") {
                true => Ok(Step::Broken(Error::NoLeader { endpoint: self.address(), unknown: false })),
                false => Err(Error::Refused { code: tonic::Code::Cancelled, message: cancel_text(&response) }),
            };
        }
        self.pause = FIRST_PAUSE;
        let mut events: Vec<Event> = response.events.into_iter().filter_map(event).collect();
        let revisions: Vec<Revision> = events.iter().map(|event| event.pair.mod_revision).collect();
        let delivered = self.cursor.take(Message { is_created: response.created, revision, events: &revisions });
        events.drain(..delivered);
        Ok(match events.last().map(|last| last.pair.mod_revision) {
            Some(revision) => Step::Events(Events { revision, events }),
            None => Step::Quiet,
        })
    }

    async fn open(&mut self) -> Result<(), Error> {
        let create = proto::WatchCreateRequest { start_revision: self.cursor.next(), ..self.request.clone() };
        let create = proto::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let mut sender = None;
        let call = |channel| {
            let (requests, outgoing) = mpsc::channel(1);
            requests.try_send(create.clone()).expect("a new channel has room for one");
            sender = Some(requests);
            let mut request = Request::new(ReceiverStream::new(outgoing));
            // A member that is cut off from the others ends the watch instead of keeping it silent.
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
            async move { WatchClient::new(channel).max_decoding_message_size(usize::MAX).watch(request).await }
        };
        let (connection, replies) = self.client.connections.call_somewhere(KIND, call).await?;
        let requests = sender.expect("a call that succeeded was made");
        let stream = self.stream.insert(Open { connection, _requests: requests, replies });
        let (timeout, opened) = (self.client.connections.settings().timeout, Instant::now());
        let connections = &self.client.connections;
        let first = stream.connection.listen(stream.replies.message());
        match tokio::time::timeout(timeout, first).await {
            Ok(Some(Ok(Some(response)))) if response.created => match self.receive(response)? {
                Step::Broken(error) => Err(error),
                _ => Ok(()),
            },
            Ok(Some(Ok(_))) => Err(self.lost()),
            Ok(Some(Err(status))) => Err(connections.judge_stream(&stream.connection, KIND, &status)?),
            Ok(None) => Err(connections.judge_silence(&stream.connection, KIND, opened.elapsed())),
            Err(_) => Err(Error::Timeout {
                endpoint: self.address(),
                call: KIND.name,
                waited: timeout,
                reason: "the watch was asked for and not confirmed".to_owned(),
                unknown: false,
            }),
        }
        .inspect_err(|_| self.stream = None)
    }

    fn address(&self) -> String {
        let current = || self.client.connections.current_address();
        self.stream.as_ref().map_or_else(current, |stream| stream.connection.address.text.clone())
    }

    fn lost(&self) -> Error {
        Error::Lost { endpoint: self.address(), call: KIND.name, cause: Cause::Closed, unknown: false }
    }
}

fn event(event: tenure_api::mvccpb::Event) -> Option<Event> {
    let kind = match event.r#type() {
        EventType::Put => EventKind::Put,
        EventType::Delete => EventKind::Delete,
    };
    Some(Event { kind, pair: event.kv?, previous: event.prev_kv })
}

fn cancel_text(response: &proto::WatchResponse) -> String {
    match response.cancel_reason.as_str() {
        "" => "the server refused the watch".to_owned(),
        reason => reason.strip_prefix("etcdserver: ").unwrap_or(reason).to_owned(),
    }
}
