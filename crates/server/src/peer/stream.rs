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
use super::{GREETING_TIMEOUT, Host, connect};
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
    #[error("the connection is lost: {0}")]
    Lost(String),
}

impl<H: Host> MessageStream<H> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let mut told = None;
        for url in self.urls.iter().cycle() {
            let mut was_welcome = false;
            let ended = match self.open(url).await {
                Ok((requests, answers)) => {
                    was_welcome = true;
                    told = None;
                    tracing::info!(peer = self.name, id = format!("{:x}", self.to), url, "connected to a peer");
                    self.send(requests, answers).await
                }
                Err(ended) => {
                    self.greeter.outbox.clear(&self.queue);
                    ended
                }
            };
            // Said once, not at every try.
            if told.as_ref() != Some(&ended) {
                tracing::warn!(
                    peer = self.name,
                    id = format!("{:x}", self.to),
                    url,
                    "no connection to a peer: {ended}"
                );
                told = Some(ended);
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
            Ok(Err(status)) => return Err(Ended::Lost(said(&status))),
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
                Ok(_) => Ended::Lost("the peer has closed it".to_owned()),
                Err(status) => Ended::Lost(said(&status)),
            },
        }
    }
}

/// Between a half and the whole, so that members that lost each other at once do not all come back at once.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause.mul_f64((random_u64() % 1024) as f64 / 2048.0)
}

pub(super) fn said(status: &Status) -> String {
    match status.message() {
        "" => format!("{:?}", status.code()),
        text => text.to_owned(),
    }
}
