//! The messages to one peer: one stream, kept open for as long as the peer belongs to the cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tenure_api::tenure::peer::v1::messages_response::Answer;
use tenure_api::tenure::peer::v1::peer_client::PeerClient;
use tenure_api::tenure::peer::v1::{Hello, MessagesRequest, MessagesResponse};
use tenure_machine::MemberId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::greeting::{Greeter, Unwelcome};
use super::outbox::Queue;
use super::{GREETING_TIMEOUT, Host, connect, why};
use crate::member::random_u64;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Sends what is in a peer's queue.
pub(crate) struct MessageStream<H> {
    pub(crate) to: MemberId,
    pub(crate) name: String,
    /// Tried in turn.
    pub(crate) urls: Vec<String>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) greeter: Greeter<H>,
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
        for url in self.urls.iter().cycle() {
            let mut was_welcome = false;
            let ended = match self.open(url).await {
                Ok((requests, answers)) => {
                    was_welcome = true;
                    told = Told::Connected;
                    tracing::info!(peer = self.name, id = format!("{:x}", self.to), url, "connected to a peer");
                    self.send(requests, answers).await
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

    async fn open(&self, url: &str) -> Result<(mpsc::Sender<MessagesRequest>, Streaming<MessagesResponse>), Ended> {
        let channel = connect(url).await.map_err(Ended::Unreachable)?;
        let (requests, stream) = mpsc::channel(1);
        let hello: Hello = self.greeter.hello(self.to);
        let first = MessagesRequest { hello: Some(hello), messages: Vec::new() };
        requests.try_send(first).map_err(|_| Ended::Silent)?;
        let greeted = tokio::time::timeout(GREETING_TIMEOUT, async {
            let mut client = PeerClient::new(channel);
            let mut answers = client.messages(ReceiverStream::new(stream)).await?.into_inner();
            let answer = answers.message().await?;
            Ok::<_, Status>((answers, answer))
        });
        let (answers, answer) = match greeted.await {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(status)) => return Err(Ended::Lost(why_lost(&status))),
            Err(_) => return Err(Ended::Silent),
        };
        match answer.and_then(|answer| answer.answer) {
            Some(Answer::Welcome(welcome)) => self.greeter.accept(self.to, &welcome).await?,
            Some(Answer::Refusal(refusal)) => return Err(self.greeter.refused(self.to, refusal).into()),
            None => return Err(Unwelcome::Malformed.into()),
        }
        Ok((requests, answers))
    }

    /// Sends for as long as the other side takes it.
    async fn send(&self, requests: mpsc::Sender<MessagesRequest>, mut answers: Streaming<MessagesResponse>) -> Ended {
        let counters = self.greeter.outbox.counters();
        let _connected = counters.connect();
        let pour = async {
            loop {
                let messages: Vec<Bytes> = self.queue.next_batch().await;
                counters.messages_sent.fetch_add(messages.len() as u64, Relaxed);
                counters.bytes_sent.fetch_add(messages.iter().map(|message| message.len() as u64).sum(), Relaxed);
                if requests.send(MessagesRequest { hello: None, messages }).await.is_err() {
                    // The other branch knows why.
                    return std::future::pending::<Ended>().await;
                }
            }
        };
        tokio::select! {
            ended = pour => ended,
            answer = answers.message() => match answer {
                Ok(Some(MessagesResponse { answer: Some(Answer::Refusal(refusal)) })) => self.greeter.refused(self.to, refusal).into(),
                Ok(_) => Ended::Lost("it has closed the connection".to_owned()),
                Err(status) => Ended::Lost(why_lost(&status)),
            },
        }
    }
}

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

/// A peer that was killed is no error of a protocol, whatever the libraries make of it.
fn why_lost(status: &Status) -> String {
    match std::error::Error::source(status).map(why) {
        Some(cause) if cause.contains("keep-alive timed out") => "it does not answer any more".to_owned(),
        Some(_) => "the connection broke".to_owned(),
        None => said(status),
    }
}

pub(super) fn said(status: &Status) -> String {
    match status.message() {
        "" => format!("{:?}", status.code()),
        text => text.to_owned(),
    }
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

    #[test]
    fn libraries_errors_become_words() {
        let broken = Status::from_error(Box::new(std::io::Error::other("h2 protocol error")));
        assert_eq!(why_lost(&broken), "the connection broke");
        assert_eq!(why_lost(&Status::invalid_argument("nothing was said")), "nothing was said");
    }
}
