//! A snapshot on its way to a peer, on a connection of its own.

use std::io::Read;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tenure_api::tenure::peer::v1::peer_client::PeerClient;
use tenure_api::tenure::peer::v1::snapshot_request::Part;
use tenure_api::tenure::peer::v1::snapshot_response::Answer;
use tenure_api::tenure::peer::v1::{SnapshotChunk, SnapshotOffer, SnapshotRequest, SnapshotResponse};
use tenure_replica::Input;
use tenure_storage::{OsDisk, SnapshotSource, Snapshots};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::greeting::{Greeter, Unwelcome};
use super::outbox::SnapshotOrder;
use super::{GREETING_TIMEOUT, Host, connect, said};
use crate::limits::PEER_CHUNK_BYTES;

/// Tries within one order; raft orders again later.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(100);

/// Carries out one order and reports what became of it.
pub(crate) struct SnapshotSender<H> {
    pub(crate) order: SnapshotOrder,
    pub(crate) urls: Vec<String>,
    pub(crate) greeter: Greeter<H>,
    pub(crate) snapshots: Snapshots<OsDisk>,
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    /// Trying again would not help.
    #[error("{0}")]
    ForGood(String),
    #[error("{0}")]
    ForNow(String),
}

impl From<Unwelcome> for Failed {
    fn from(unwelcome: Unwelcome) -> Failed {
        Failed::ForGood(unwelcome.to_string())
    }
}

type Sending = (mpsc::Sender<SnapshotRequest>, Streaming<SnapshotResponse>);

impl<H: Host> SnapshotSender<H> {
    pub(crate) async fn run(self) {
        let SnapshotOrder { to, index, .. } = self.order;
        let mut delivered = false;
        for (number, url) in (1..=TRIES).zip(self.urls.iter().cycle()) {
            match self.send(url).await {
                Ok(()) => {
                    tracing::info!(to = format!("{to:x}"), index, "sent a snapshot to a peer");
                    self.greeter.outbox.counters().snapshots_sent.fetch_add(1, Relaxed);
                    delivered = true;
                    break;
                }
                Err(failed) => {
                    tracing::warn!(to = format!("{to:x}"), index, url, "a snapshot did not arrive: {failed}");
                    if matches!(failed, Failed::ForGood(_)) {
                        break;
                    }
                }
            }
            tokio::time::sleep(PAUSE * number).await;
        }
        self.greeter.host.deliver(Input::SnapshotSent { to, index, delivered });
    }

    async fn send(&self, url: &str) -> Result<(), Failed> {
        let snapshots = self.snapshots.clone();
        let index = self.order.index;
        let found = elsewhere(move || snapshots.source_at(index)).await?;
        let found = found.map_err(|fault| Failed::ForGood(fault.to_string()))?;
        let Some((meta, source)) = found else {
            return Err(Failed::ForGood("a newer one has taken its place".to_owned()));
        };
        let bytes = source.length();
        let offer = SnapshotOffer {
            hello: Some(self.greeter.hello(self.order.to)),
            index,
            term: meta.term,
            bytes,
            message: self.order.message.clone(),
        };
        let (sending, answer) = self.offer(url, offer).await?;
        match answer {
            Some(Answer::Resume(resume)) => {
                let welcome = resume.welcome.ok_or(Unwelcome::Malformed)?;
                self.greeter.accept(self.order.to, &welcome).await?;
                if resume.offset > bytes {
                    return Err(Unwelcome::Malformed.into());
                }
                pour(source, resume.offset, sending).await
            }
            Some(Answer::Received(_)) => Ok(()),
            Some(Answer::Refusal(refusal)) => Err(self.greeter.refused(self.order.to, refusal).into()),
            None => Err(Unwelcome::Malformed.into()),
        }
    }

    async fn offer(&self, url: &str, offer: SnapshotOffer) -> Result<(Sending, Option<Answer>), Failed> {
        let channel = connect(url).await.map_err(Failed::ForNow)?;
        let (requests, stream) = mpsc::channel(1);
        requests.try_send(part(Part::Offer(offer))).map_err(|error| Failed::ForNow(error.to_string()))?;
        let answered = tokio::time::timeout(GREETING_TIMEOUT, async {
            let mut answers = PeerClient::new(channel).snapshot(ReceiverStream::new(stream)).await?.into_inner();
            let answer = answers.message().await?;
            Ok::<_, Status>((answers, answer))
        });
        match answered.await {
            Ok(Ok((answers, answer))) => Ok(((requests, answers), answer.and_then(|answer| answer.answer))),
            Ok(Err(status)) => Err(Failed::ForNow(said(&status))),
            Err(_) => Err(Failed::ForNow(format!("no answer to the offer within {GREETING_TIMEOUT:?}"))),
        }
    }
}

/// Sends the bytes from `offset` on, and waits until the other side has made something of them.
async fn pour(mut source: SnapshotSource<OsDisk>, mut offset: u64, sending: Sending) -> Result<(), Failed> {
    let (requests, mut answers) = sending;
    source.resume_at(offset);
    let feed = async move {
        loop {
            let read;
            (source, read) = elsewhere(move || {
                let read = read_chunk(&mut source);
                (source, read)
            })
            .await?;
            // A disk that does not read will not do so a moment later.
            let data = read.map_err(|error| Failed::ForGood(error.to_string()))?;
            if data.is_empty() {
                return Ok::<(), Failed>(());
            }
            let chunk = SnapshotChunk { offset, checksum: crc32c::crc32c(&data), data };
            offset += chunk.data.len() as u64;
            if requests.send(part(Part::Chunk(chunk))).await.is_err() {
                // The answer says why.
                return Ok(());
            }
        }
    };
    let mut feed = std::pin::pin!(feed);
    let mut is_fed = false;
    loop {
        tokio::select! {
            fed = &mut feed, if !is_fed => {
                fed?;
                is_fed = true;
            }
            answer = answers.message() => return match answer {
                Ok(Some(SnapshotResponse { answer: Some(Answer::Received(_)) })) => Ok(()),
                Ok(_) => Err(Failed::ForNow("the peer has closed the stream".to_owned())),
                Err(status) => Err(Failed::ForNow(said(&status))),
            },
        }
    }
}

fn read_chunk(source: &mut SnapshotSource<OsDisk>) -> std::io::Result<Bytes> {
    let mut data = Vec::with_capacity(PEER_CHUNK_BYTES);
    source.take(PEER_CHUNK_BYTES as u64).read_to_end(&mut data)?;
    Ok(data.into())
}

fn part(part: Part) -> SnapshotRequest {
    SnapshotRequest { part: Some(part) }
}

async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failed> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Failed::ForGood("the member is stopping".to_owned()))
}
