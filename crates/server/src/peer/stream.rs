//! The messages to one peer: one stream, kept open for as long as the peer belongs to the cluster.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use prost::Message;
use tenure_api::tenure::peer::v1::messages_response::Answer;
use tenure_api::tenure::peer::v1::{MessagesRequest, MessagesResponse};
use tenure_machine::MemberId;
use tenure_replica::Input;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::frame::{self, Frames};
use super::greeting::{Greeter, Unwelcome};
use super::listing::address_of;
use super::outbox::{Flushed, Queue};
use super::{GREETING_TIMEOUT, Host, SILENCE};
use crate::member::random_u64;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest answer to a greeting.
const ANSWER_BYTES: usize = 64 << 10;

/// Sends what is in a peer's queue.
pub(crate) struct MessageStream<H> {
    pub(crate) to: MemberId,
    pub(crate) name: String,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) greeter: Greeter<H>,
}

/// Where a peer is looked for: where it is listed, and where it answered last. A member whose listed address was
/// changed stays where it is until it is started elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Addresses(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    listed: Vec<String>,
    answered_last: Option<String>,
}

impl Addresses {
    pub(crate) fn new(listed: &[String]) -> Addresses {
        Addresses(Mutex::new(Known { listed: listed.to_vec(), answered_last: None }))
    }

    /// Takes effect at the next attempt to connect. A connection that works goes on.
    pub(crate) fn list(&self, urls: &[String]) {
        let mut known = self.lock();
        if known.listed != urls {
            known.listed = urls.to_vec();
        }
    }

    /// In the order in which they are tried.
    pub(crate) fn urls(&self) -> Vec<String> {
        let known = self.lock();
        let elsewhere = known.answered_last.iter().filter(|url| !known.listed.contains(url));
        known.listed.iter().chain(elsewhere).cloned().collect()
    }

    fn answered_at(&self, url: &str) {
        self.lock().answered_last = Some(url.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a stream ended, or did not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Unreachable(String),
    #[error(transparent)]
    Unwelcome(#[from] Unwelcome),
    #[error("no answer to the greeting within {GREETING_TIMEOUT:?}")]
    Silent,
    #[error("{0}")]
    Lost(String),
}

/// What the log says of a peer: that it is lost, or back, and nothing in between.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Nothing,
    Connected,
    Away,
    Unwelcome(Unwelcome),
}

impl<H: Host> MessageStream<H> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let mut told = Told::Nothing;
        for attempt in 0_usize.. {
            let urls = self.addresses.urls();
            let Some(url) = urls.get(attempt % urls.len().max(1)) else { return };
            let mut was_welcome = false;
            let ended = match self.open(url).await {
                Ok((socket, answers)) => {
                    was_welcome = true;
                    self.addresses.answered_at(url);
                    told = Told::Connected;
                    tracing::info!(peer = self.name, id = format!("{:x}", self.to), url, "connected to a peer");
                    let ended = self.send(socket, answers).await;
                    self.greeter.host.deliver(Input::PeerLost { member: self.to });
                    ended
                }
                Err(ended) => {
                    self.greeter.outbox.clear(&self.queue);
                    ended
                }
            };
            let (peer, id) = (&self.name, format!("{:x}", self.to));
            match told.hear(&ended, pause == LONGEST_PAUSE) {
                Some(line) => tracing::warn!(peer, id, url, "{line}: {ended}"),
                None => tracing::debug!(peer, id, url, "still no connection to a peer: {ended}"),
            }
            pause = if was_welcome { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            tokio::time::sleep(jittered(pause)).await;
        }
    }

    async fn open(&self, url: &str) -> Result<(OwnedWriteHalf, Frames<OwnedReadHalf>), Ended> {
        let address = address_of(url).trim_end_matches('/');
        let connecting = tokio::time::timeout(GREETING_TIMEOUT, TcpStream::connect(address)).await;
        let stream = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        let (received, mut socket) = stream.map_err(|error| Ended::Unreachable(error.to_string()))?.into_split();
        let mut answers = Frames::new(received, ANSWER_BYTES);
        let mut first = BytesMut::from(frame::request(address).as_bytes());
        frame::put(&MessagesRequest { hello: Some(self.greeter.hello(self.to)), messages: Vec::new() }, &mut first);
        let greeted = tokio::time::timeout(GREETING_TIMEOUT, async {
            socket.write_all(&first).await?;
            Ok::<_, io::Error>((answers.switched().await?, answers.next().await?))
        });
        let answer = match greeted.await {
            Ok(Ok((_, Some(answer)))) => answer,
            Ok(Ok((line, None))) => return Err(Ended::Lost(format!("it does not speak to members: {line}"))),
            Ok(Err(_)) => return Err(Ended::Lost(BROKEN.to_owned())),
            Err(_) => return Err(Ended::Silent),
        };
        match MessagesResponse::decode(answer).ok().and_then(|answer| answer.answer) {
            Some(Answer::Welcome(welcome)) => self.greeter.accept(self.to, &welcome).await?,
            Some(Answer::Refusal(refusal)) => return Err(self.greeter.refused(self.to, refusal).into()),
            None => return Err(Unwelcome::Malformed.into()),
        }
        Ok((socket, answers))
    }

    /// Sends for as long as the other side takes it.
    async fn send(&self, socket: OwnedWriteHalf, mut answers: Frames<OwnedReadHalf>) -> Ended {
        let socket = Arc::new(socket);
        let _connected = self.greeter.outbox.counters().connect();
        let _attached = self.queue.attach(socket.clone());
        let pour = async {
            loop {
                match self.queue.flush() {
                    Flushed::Wholly => self.queue.stalled().await,
                    // If it breaks, the other branch knows why.
                    Flushed::InPart => drop(socket.writable().await),
                }
            }
        };
        let listen = async {
            loop {
                match tokio::time::timeout(SILENCE, answers.next()).await {
                    // It is alive.
                    Ok(Ok(Some(_))) => {}
                    Ok(Ok(None)) => return Ended::Lost("it has closed the connection".to_owned()),
                    Ok(Err(_)) => return Ended::Lost(BROKEN.to_owned()),
                    Err(_) => return Ended::Lost("it does not answer any more".to_owned()),
                }
            }
        };
        tokio::select! {
            never = pour => never,
            ended = listen => ended,
        }
    }
}

/// However it broke: a peer that was killed is no error of a protocol.
const BROKEN: &str = "the connection broke";

impl Told {
    /// Remembers how a stream ended; gives what is to be said of it, if that is something new. Of one that was never
    /// there it is said only when it has been waited for: all members of a new cluster start at about one time.
    fn hear(&mut self, ended: &Ended, waited: bool) -> Option<&'static str> {
        let now = match ended {
            Ended::Unwelcome(unwelcome) => Told::Unwelcome(unwelcome.clone()),
            Ended::Unreachable(_) | Ended::Silent | Ended::Lost(_) => Told::Away,
        };
        let line = match (&*self, &now) {
            (before, now) if before == now => return None,
            (Told::Nothing, Told::Away) if !waited => return None,
            (Told::Connected, Told::Away) => "lost a peer",
            _ => "no connection to a peer",
        };
        *self = now;
        Some(line)
    }
}

/// Between a half and the whole, so that members that lost each other at once do not all come back at once.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause.mul_f64((random_u64() % 1024) as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use tenure_api::tenure::peer::v1::refusal::Reason;

    use super::*;

    fn unreachable(text: &str) -> Ended {
        Ended::Unreachable(text.to_owned())
    }

    fn unwelcome(text: &str) -> Ended {
        Unwelcome::Refused { reason: Reason::OtherMember, text: text.to_owned() }.into()
    }

    #[test]
    fn a_peer_that_is_lost_is_told_of_once_until_it_is_back() {
        let mut told = Told::Connected;
        assert_eq!(told.hear(&Ended::Lost("the connection broke".to_owned()), false), Some("lost a peer"));
        for ended in [unreachable("refused"), unreachable("no route"), Ended::Silent, Ended::Lost("again".to_owned())] {
            assert_eq!(told.hear(&ended, true), None, "{ended:?}");
        }
        told = Told::Connected;
        assert_eq!(told.hear(&Ended::Silent, false), Some("lost a peer"));
    }

    #[test]
    fn one_that_was_never_there_is_told_of_when_it_was_waited_for() {
        let mut told = Told::Nothing;
        assert_eq!(told.hear(&unreachable("refused"), false), None);
        assert_eq!(told.hear(&unreachable("refused"), true), Some("no connection to a peer"));
        assert_eq!(told.hear(&unreachable("refused"), true), None);
    }

    #[test]
    fn every_reason_of_a_refusal_is_told() {
        let mut told = Told::Away;
        assert!(told.hear(&unwelcome("one reason"), false).is_some());
        assert!(told.hear(&unwelcome("one reason"), false).is_none());
        assert!(told.hear(&unwelcome("another"), false).is_some());
    }
}
