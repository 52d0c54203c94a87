//! Snapshots that come in: written as they arrive, believed only as a whole.
//!
//! A transfer that is cut leaves what it had; the next offer of the same snapshot by the same peer goes on from
//! there. When everything is there it is verified, made durable and restored into a machine, off every thread
//! that others wait for, and only then does the replica hear of it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tenure_api::tenure::peer::v1::snapshot_request::Part;
use tenure_api::tenure::peer::v1::snapshot_response::Answer;
use tenure_api::tenure::peer::v1::{
    SnapshotChunk, SnapshotOffer, SnapshotReceived, SnapshotRequest, SnapshotResponse, SnapshotResume, Welcome,
};
use tenure_machine::{Machine, MemberId};
use tenure_replica::Input;
use tenure_storage::{Fault, OsDisk, SnapshotReceiver, Snapshots};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::Host;
use super::greeting::Greeter;
use crate::data::{self, DataError};

type Answers = mpsc::Sender<Result<SnapshotResponse, Status>>;

/// Where snapshots arrive, with those that were cut.
pub(crate) struct Arrivals {
    snapshots: Snapshots<OsDisk>,
    /// At most one of each peer.
    cut: Mutex<HashMap<MemberId, Partial>>,
}

struct Partial {
    offered: Offered,
    receiver: SnapshotReceiver<OsDisk>,
}

/// What tells one peer's snapshots apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offered {
    index: u64,
    term: u64,
    bytes: u64,
}

impl Arrivals {
    pub(crate) fn new(snapshots: Snapshots<OsDisk>) -> Arrivals {
        Arrivals { snapshots, cut: Mutex::default() }
    }

    /// What was cut of other members' snapshots is of no use any more.
    pub(crate) fn keep(&self, is_member: impl Fn(MemberId) -> bool) {
        self.lock().retain(|from, _| is_member(*from));
    }

    /// Takes in the snapshot that was offered, and brings it before the replica.
    pub(crate) async fn receive<H: Host>(
        &self,
        greeter: &Greeter<H>,
        from: MemberId,
        offer: SnapshotOffer,
        welcome: Welcome,
        mut parts: Streaming<SnapshotRequest>,
        answers: &Answers,
    ) -> Result<(), Status> {
        // The sender did not hear that it had arrived, or it was overtaken by the log; raft tells it.
        let status = greeter.host.status();
        if offer.index <= status.applied_index && !status.wants_state {
            greeter.host.deliver(Input::Message { from, message: offer.message });
            return answer(answers, Answer::Received(SnapshotReceived {})).await;
        }
        let offered = Offered { index: offer.index, term: offer.term, bytes: offer.bytes };
        let mut arrival = self.begin(from, offered).await?;
        let offset = arrival.offset();
        if offset > 0 {
            tracing::info!(
                index = offer.index,
                offset,
                bytes = offer.bytes,
                "a peer's snapshot goes on where it was cut"
            );
        }
        answer(answers, Answer::Resume(SnapshotResume { welcome: Some(welcome), offset })).await?;
        while arrival.offset() < offered.bytes {
            match parts.message().await?.and_then(|part| part.part) {
                Some(Part::Chunk(chunk)) => arrival.write(chunk).await?,
                Some(Part::Offer(_)) => return Err(Status::invalid_argument("a second offer on one stream")),
                None => return Err(Status::aborted("the snapshot was cut")),
            }
        }
        let (machine, configuration, bytes) = arrival.finish().await?;
        tracing::info!(index = offer.index, term = offer.term, bytes, "received a snapshot from a peer");
        greeter.outbox.counters().snapshots_received.fetch_add(1, Relaxed);
        let machine = Box::new(machine);
        greeter.host.deliver(Input::SnapshotReceived { from, message: offer.message, machine, configuration, bytes });
        answer(answers, Answer::Received(SnapshotReceived {})).await
    }

    /// Goes on with what was cut, if it is the same; begins anew otherwise.
    async fn begin(&self, from: MemberId, offered: Offered) -> Result<Arrival<'_>, Status> {
        let cut = self.lock().remove(&from);
        let receiver = match cut.filter(|partial| partial.offered == offered) {
            Some(partial) => partial.receiver,
            None => {
                let snapshots = self.snapshots.clone();
                elsewhere(move || snapshots.receiver(offered.index, offered.term))
                    .await?
                    .map_err(|fault| lost(&fault))?
            }
        };
        Ok(Arrival { arrivals: self, from, offered, receiver: Some(receiver) })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MemberId, Partial>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A snapshot on its way in. Dropped before its end, it is kept for the next try.
struct Arrival<'a> {
    arrivals: &'a Arrivals,
    from: MemberId,
    offered: Offered,
    /// None while another thread has it, and after a fault.
    receiver: Option<SnapshotReceiver<OsDisk>>,
}

impl Arrival<'_> {
    fn offset(&self) -> u64 {
        self.receiver.as_ref().map_or(0, SnapshotReceiver::offset)
    }

    async fn write(&mut self, chunk: SnapshotChunk) -> Result<(), Status> {
        let SnapshotChunk { offset, data, checksum } = chunk;
        if offset != self.offset() || data.len() as u64 > self.offered.bytes - offset || data.is_empty() {
            return Err(Status::invalid_argument(format!("byte {} of the snapshot is next", self.offset())));
        }
        if crc32c::crc32c(&data) != checksum {
            return Err(Status::data_loss("a piece of the snapshot does not match its checksum"));
        }
        let Some(mut receiver) = self.receiver.take() else { return Err(Status::aborted("the snapshot was lost")) };
        let written = elsewhere(move || receiver.write(&data).map(|()| receiver)).await?;
        self.receiver = Some(written.map_err(|fault| lost(&fault))?);
        Ok(())
    }

    async fn finish(mut self) -> Result<(Machine, Bytes, u64), Status> {
        let Some(receiver) = self.receiver.take() else { return Err(Status::aborted("the snapshot was lost")) };
        let snapshots = self.arrivals.snapshots.clone();
        let restored = elsewhere(move || restore(receiver, &snapshots)).await?;
        restored.map_err(|error| {
            tracing::error!(%error, "a peer's snapshot cannot be used");
            Status::data_loss(format!("the snapshot cannot be used: {error}"))
        })
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            self.arrivals.lock().insert(self.from, Partial { offered: self.offered, receiver });
        }
    }
}

fn restore(
    receiver: SnapshotReceiver<OsDisk>,
    snapshots: &Snapshots<OsDisk>,
) -> Result<(Machine, Bytes, u64), DataError> {
    let meta = receiver.finish()?;
    let (machine, bytes) = data::restore(snapshots.reader_of(meta.index, meta.term)?)?;
    Ok((machine, meta.configuration, bytes))
}

fn lost(fault: &Fault) -> Status {
    tracing::error!(%fault, "a peer's snapshot could not be written");
    Status::internal(format!("the snapshot could not be written: {fault}"))
}

async fn answer(answers: &Answers, answer: Answer) -> Result<(), Status> {
    let answer = SnapshotResponse { answer: Some(answer) };
    answers.send(Ok(answer)).await.map_err(|_| Status::cancelled("the sender is gone"))
}

async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    // Fails only while the runtime is going down.
    tokio::task::spawn_blocking(work).await.map_err(|_| Status::unavailable("the member is stopping"))
}
