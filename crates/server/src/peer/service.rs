//! What other members call: the peer port.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use prost::Message;
use tenure_api::tenure::peer::v1::messages_response::Answer as MessagesAnswer;
use tenure_api::tenure::peer::v1::peer_server::{Peer, PeerServer};
use tenure_api::tenure::peer::v1::snapshot_request::Part;
use tenure_api::tenure::peer::v1::snapshot_response::Answer as SnapshotAnswer;
use tenure_api::tenure::peer::v1::{
    FetchPeersRequest, FetchPeersResponse, Hello, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse,
    MessagesRequest, MessagesResponse, SnapshotRequest, SnapshotResponse,
};
use tenure_machine::MemberId;
use tenure_replica::Input;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::admission::Admission;
use super::frame::{self, Frames};
use super::greeting::Greeter;
use super::receive_snapshot::Arrivals;
use super::{GREETING_TIMEOUT, Host, SIGN_OF_LIFE};
use crate::listen::OpenConnection;

const REFUSALS_REMEMBERED: usize = 64;

/// A cheap handle: each connection has its own.
#[derive(Clone)]
pub(crate) struct PeerService<H> {
    greeter: Greeter<H>,
    admission: Admission<H>,
    arrivals: Arc<Arrivals>,
    incoming: Arc<Incoming>,
    refusals: Arc<Refusals>,
    /// The longest batch of messages that is read.
    message_bytes: usize,
}

impl<H: Host> PeerService<H> {
    pub(crate) fn new(
        greeter: Greeter<H>,
        arrivals: Arc<Arrivals>,
        incoming: Arc<Incoming>,
        message_bytes: usize,
    ) -> PeerService<H> {
        let admission = Admission::new(greeter.clone());
        PeerService { greeter, admission, arrivals, incoming, refusals: Arc::default(), message_bytes }
    }

    /// All that is called by gRPC.
    pub(crate) fn server(self) -> PeerServer<PeerService<H>> {
        let message_bytes = self.message_bytes;
        PeerServer::new(self).max_decoding_message_size(message_bytes)
    }

    /// A connection that is to carry messages: the answer with which it becomes that. `open` is kept until it ends.
    pub(crate) fn switch<B, C: Default>(
        &self,
        mut request: HttpRequest<B>,
        open: Option<OpenConnection>,
    ) -> HttpResponse<C> {
        let mut response = HttpResponse::new(C::default());
        let is_asked = request.headers().get(UPGRADE).is_some_and(|protocol| protocol == frame::PROTOCOL);
        *response.status_mut() = if is_asked { StatusCode::SWITCHING_PROTOCOLS } else { StatusCode::UPGRADE_REQUIRED };
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static(frame::PROTOCOL));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        if is_asked {
            let (service, upgrade) = (self.clone(), hyper::upgrade::on(&mut request));
            tokio::spawn(async move {
                service.messages(upgrade).await;
                drop(open);
            });
        }
        response
    }

    /// The messages of a peer: a greeting and its answer, then whatever comes.
    async fn messages(&self, upgrade: OnUpgrade) {
        let greeted = tokio::time::timeout(GREETING_TIMEOUT, async {
            let mut frames = Frames::new(TokioIo::new(upgrade.await.ok()?), self.message_bytes);
            let first = frames.next().await.ok()??;
            Some((frames, MessagesRequest::decode(first).ok()?.hello?))
        });
        // Whoever does not greet is left without a word.
        let Ok(Some((mut frames, hello))) = greeted.await else { return };
        let received = self.greeter.receive(&hello).await;
        let answer = match &received {
            Ok(welcome) => MessagesAnswer::Welcome(welcome.clone()),
            Err(refusal) => {
                self.refused(&hello, &refusal.text);
                MessagesAnswer::Refusal(refusal.clone())
            }
        };
        let mut bytes = BytesMut::new();
        frame::put(&MessagesResponse { answer: Some(answer) }, &mut bytes);
        if frames.stream().write_all(&bytes).await.is_err() || received.is_err() {
            return;
        }
        let (from, greeter) = (hello.from, self.greeter.clone());
        let reading = tokio::spawn(async move {
            let Err(error) = read_messages(frames, from, &greeter).await else { return };
            // The stream in the other direction tells of a peer that is lost.
            tracing::debug!(from = format!("{from:x}"), "a peer's stream ended: {error}");
        });
        self.incoming.replace(Kind::Messages, from, reading).await;
    }

    fn refused(&self, hello: &Hello, text: &str) {
        self.greeter.outbox.counters().refused.fetch_add(1, Relaxed);
        if self.refusals.is_news(hello.from, text) {
            tracing::warn!(from = format!("{:x}", hello.from), "refused a peer: {text}");
        }
    }

    /// The first message of a stream.
    async fn first<T>(stream: &mut Streaming<T>) -> Result<T, Status> {
        match tokio::time::timeout(GREETING_TIMEOUT, stream.message()).await {
            Ok(first) => first?.ok_or_else(|| Status::invalid_argument("nothing was said")),
            Err(_) => Err(Status::deadline_exceeded("nothing was said")),
        }
    }
}

#[tonic::async_trait]
impl<H: Host> Peer for PeerService<H> {
    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn snapshot(
        &self,
        request: Request<Streaming<SnapshotRequest>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let mut parts = request.into_inner();
        let Some(Part::Offer(offer)) = Self::first(&mut parts).await?.part else { return Err(no_hello()) };
        let hello = offer.hello.clone().ok_or_else(no_hello)?;
        let (answers, stream) = mpsc::channel(2);
        match self.greeter.receive(&hello).await {
            Ok(welcome) => {
                let from = hello.from;
                // What was cut of the one before is there when that one has ended.
                self.incoming.end(Kind::Snapshot, from).await;
                let (arrivals, greeter) = (self.arrivals.clone(), self.greeter.clone());
                let task = tokio::spawn(async move {
                    if let Err(status) = arrivals.receive(&greeter, from, offer, welcome, parts, &answers).await {
                        tracing::info!(from = format!("{from:x}"), "a snapshot did not arrive: {}", status.message());
                        let _ = answers.send(Err(status)).await;
                    }
                });
                self.incoming.replace(Kind::Snapshot, from, task).await;
            }
            Err(refusal) => {
                self.refused(&hello, &refusal.text);
                let answer = SnapshotResponse { answer: Some(SnapshotAnswer::Refusal(refusal)) };
                let _ = answers.try_send(Ok(answer));
            }
        }
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        self.admission.join(request.into_inner()).await.map(Response::new)
    }

    async fn fetch_peers(&self, _: Request<FetchPeersRequest>) -> Result<Response<FetchPeersResponse>, Status> {
        Ok(Response::new(self.admission.peers()))
    }

    async fn leave(&self, request: Request<LeaveRequest>) -> Result<Response<LeaveResponse>, Status> {
        self.admission.leave(request.into_inner()).await.map(Response::new)
    }
}

async fn read_messages<H: Host>(
    mut frames: Frames<TokioIo<Upgraded>>,
    from: MemberId,
    greeter: &Greeter<H>,
) -> io::Result<()> {
    let counters = greeter.outbox.counters();
    let mut sign_of_life = tokio::time::interval(SIGN_OF_LIFE);
    let mut inputs = Vec::new();
    loop {
        while let Some(frame) = frames.take()? {
            let messages = MessagesRequest::decode(frame)?.messages;
            counters.messages_received.fetch_add(messages.len() as u64, Relaxed);
            counters.bytes_received.fetch_add(messages.iter().map(|message| message.len() as u64).sum(), Relaxed);
            inputs.extend(messages.into_iter().map(|message| Input::Message { from, message }));
        }
        if !inputs.is_empty() {
            greeter.host.deliver_all(&mut inputs);
        }
        tokio::select! {
            filled = frames.fill() => if !filled? {
                return Ok(());
            },
            _ = sign_of_life.tick() => {
                let mut alive = BytesMut::new();
                frame::put(&MessagesResponse::default(), &mut alive);
                frames.stream().write_all(&alive).await?;
            }
        }
    }
}

fn no_hello() -> Status {
    Status::invalid_argument("a stream begins with a greeting")
}

/// Who was refused, and why, last time: whoever knocks again and again is told of once.
#[derive(Default)]
struct Refusals(Mutex<HashMap<MemberId, String>>);

impl Refusals {
    fn is_news(&self, from: MemberId, text: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Ids come from outside: they must not fill the memory.
        if told.len() >= REFUSALS_REMEMBERED && !told.contains_key(&from) {
            told.clear();
        }
        told.insert(from, text.to_owned()).is_none_or(|before| before != text)
    }
}

/// The streams that peers have open here. Of each kind a peer has one: the newest.
pub(crate) struct Incoming {
    open: Mutex<HashMap<(Kind, MemberId), JoinHandle<()>>>,
    arrivals: Arc<Arrivals>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Messages,
    Snapshot,
}

impl Incoming {
    pub(crate) fn new(arrivals: Arc<Arrivals>) -> Incoming {
        Incoming { open: Mutex::default(), arrivals }
    }

    /// Ends the streams of all who are no members any more.
    pub(crate) fn keep(&self, is_member: impl Fn(MemberId) -> bool) {
        self.arrivals.keep(&is_member);
        self.lock().retain(|(_, from), task| {
            let stays = is_member(*from);
            if !stays {
                task.abort();
            }
            stays
        });
    }

    async fn replace(&self, kind: Kind, from: MemberId, task: JoinHandle<()>) {
        let before = self.lock().insert((kind, from), task);
        end(before).await;
    }

    /// Returns when it has ended.
    async fn end(&self, kind: Kind, from: MemberId) {
        let before = self.lock().remove(&(kind, from));
        end(before).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Kind, MemberId), JoinHandle<()>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn end(task: Option<JoinHandle<()>>) {
    if let Some(task) = task {
        task.abort();
        let _ = task.await;
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.lock().values().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_news_until_it_is_told_and_what_is_remembered_is_bounded() {
        let refusals = Refusals::default();
        assert!(refusals.is_news(1, "another cluster"));
        assert!(!refusals.is_news(1, "another cluster"));
        assert!(refusals.is_news(1, "another directory"));
        for id in 0..10 * REFUSALS_REMEMBERED as u64 {
            refusals.is_news(id, "another cluster");
            assert!(refusals.0.lock().unwrap().len() <= REFUSALS_REMEMBERED);
        }
    }
}
