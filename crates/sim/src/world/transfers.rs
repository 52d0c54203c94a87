//! Snapshots on their way from one member to another, piece by piece, as the server's streams carry them:
//! a stream that is cut is tried again, and goes on where it was; what is whole is verified, made durable
//! and restored before the replica hears of it.

use std::io::Read;

use bytes::Bytes;
use tenure_machine::MemberId;
use tenure_replica::Input;
use tenure_storage::{MemoryDisk, SnapshotSource};

use super::{Broken, Event, Own, World};
use crate::member::Partial;
use crate::recovery::{self, OpeningError};

/// Tries within one order; raft orders again later.
const TRIES: u64 = 4;
const PAUSE_US: u64 = 100_000;

pub(super) struct Transfer {
    from: MemberId,
    from_life: u64,
    to: MemberId,
    index: u64,
    term: u64,
    message: Bytes,
    source: SnapshotSource<MemoryDisk>,
    tries: u64,
}

/// What a piece of a stream came to.
enum Step {
    More,
    /// It stands still for a while.
    Wait(u64),
    Cut,
    Arrived,
    Refused,
}

impl World {
    pub(super) fn send_snapshot(&mut self, from: MemberId, to: MemberId, index: u64, message: Bytes) {
        let Some(life) = self.life_mut(from) else { return };
        let (from_life, found) = (life.number, life.snapshots.source_at(index));
        // At most one at a time to each peer.
        let is_busy =
            self.transfers.values().any(|other| (other.from, other.from_life, other.to) == (from, from_life, to));
        let Some((meta, source)) = found.ok().flatten().filter(|_| !is_busy) else {
            return self.give(from, Input::SnapshotSent { to, index, delivered: false });
        };
        let transfer = Transfer { from, from_life, to, index, term: meta.term, message, source, tries: 0 };
        let number = self.next_transfer;
        self.next_transfer += 1;
        self.transfers.insert(number, transfer);
        self.go_on(number, 0);
    }

    /// From whom a snapshot is on its way to a member.
    pub fn senders(&self, to: MemberId) -> impl Iterator<Item = MemberId> {
        self.transfers.values().filter(move |transfer| transfer.to == to).map(|transfer| transfer.from)
    }

    fn go_on(&mut self, transfer: u64, wait_us: u64) {
        let delay_us = self.random.spread(self.network.delay_us.0, self.network.delay_us.1);
        // A piece that had to wait is on its way already.
        let wait_us = if wait_us > 0 { wait_us } else { self.network.piece_us };
        self.events.at(self.now_us + wait_us + delay_us, Event::Transfer(transfer));
    }

    /// The next piece of a stream.
    pub(super) fn carry_on(&mut self, number: u64) -> Result<(), Broken> {
        let Some(mut transfer) = self.transfers.remove(&number) else { return Ok(()) };
        let (from, to, index) = (transfer.from, transfer.to, transfer.index);
        if self.life(from).is_none_or(|life| life.number != transfer.from_life) {
            return Ok(());
        }
        let step = self.carry_piece(&mut transfer)?;
        self.notice_power(to);
        match step {
            Step::More => {
                self.transfers.insert(number, transfer);
                self.go_on(number, 0);
            }
            Step::Wait(wait_us) => {
                self.transfers.insert(number, transfer);
                self.go_on(number, wait_us);
            }
            Step::Cut if transfer.tries + 1 < TRIES => {
                transfer.tries += 1;
                let pause_us = PAUSE_US * transfer.tries;
                self.transfers.insert(number, transfer);
                self.go_on(number, pause_us);
            }
            Step::Cut | Step::Refused => self.give(from, Input::SnapshotSent { to, index, delivered: false }),
            Step::Arrived => self.give(from, Input::SnapshotSent { to, index, delivered: true }),
        }
        Ok(())
    }

    fn carry_piece(&mut self, transfer: &mut Transfer) -> Result<Step, Broken> {
        let &mut Transfer { from, to, index, term, .. } = transfer;
        let is_cut = self.network.is_cut(from, to) || self.network.is_cut(to, from);
        let lost_percent = self.network.lost_percent;
        if is_cut || self.random.percent(lost_percent) {
            return Ok(Step::Cut);
        }
        let now_us = self.now_us;
        let paused = |life: &crate::member::Life| life.paused_until_us.saturating_sub(now_us);
        let Some((paused_us, directory_id)) = self.life(from).map(|life| (paused(life), life.directory_id)) else {
            return Ok(Step::Cut);
        };
        let Some(paused_us) = self.life(to).map(|life| paused(life).max(paused_us)) else { return Ok(Step::Cut) };
        if paused_us > 0 {
            return Ok(Step::Wait(paused_us));
        }
        let meant_for = self.life(from).and_then(|life| life.peers.directory_of(to));
        if !self.is_meant(to, meant_for) || !self.is_welcome(from, to, directory_id) {
            return Ok(Step::Refused);
        }
        let piece_bytes = self.random.spread(64, 4 << 10);
        let length = transfer.source.length();
        let Some(life) = self.life_mut(to) else { return Ok(Step::Cut) };
        // The sender did not hear that it had arrived, or it was overtaken by the log; raft tells it.
        if index <= life.replica.machine().applied_index() && !life.replica.status().wants_state {
            self.give(to, Input::Message { from, message: transfer.message.clone() });
            return Ok(Step::Arrived);
        }
        let is_same = |partial: &Partial| (partial.index, partial.term, partial.bytes) == (index, term, length);
        let partial = match life.partial.remove(&from).filter(is_same) {
            Some(partial) => Some(partial),
            None => life.snapshots.receiver(index, term).ok().map(|receiver| Partial {
                index,
                term,
                bytes: length,
                receiver,
            }),
        };
        let Some(mut partial) = partial else { return Ok(Step::Cut) };
        transfer.source.resume_at(partial.receiver.offset());
        let mut piece = Vec::new();
        let read = (&mut transfer.source).take(piece_bytes).read_to_end(&mut piece);
        if read.is_err() || partial.receiver.write(&piece).is_err() {
            return Ok(Step::Cut);
        }
        if partial.receiver.offset() < length {
            life.partial.insert(from, partial);
            return Ok(Step::More);
        }
        self.take_in(transfer, partial)
    }

    /// Everything is there.
    fn take_in(&mut self, transfer: &Transfer, partial: Partial) -> Result<Step, Broken> {
        let Some(life) = self.life_mut(transfer.to) else { return Ok(Step::Cut) };
        let Ok(meta) = partial.receiver.finish() else { return Ok(Step::Cut) };
        let restored = match life.snapshots.reader_of(meta.index, meta.term) {
            Ok(reader) => recovery::restore(reader),
            Err(_) => return Ok(Step::Cut),
        };
        let (machine, bytes) = match restored {
            Ok(restored) => restored,
            Err(OpeningError::Storage(_)) => return Ok(Step::Cut),
            Err(OpeningError::Snapshot(what)) => {
                return Err(Broken { rule: "K5: a snapshot is the state", what });
            }
        };
        let same = self.reference.is_state(machine.applied_index(), machine.state().hash());
        same.map_err(|what| Broken { rule: "K5: a snapshot is the state", what })?;
        self.report.snapshots_received += 1;
        let &Transfer { from, to, ref message, .. } = transfer;
        let (message, machine, configuration) = (message.clone(), Box::new(machine), meta.configuration);
        let received = Input::SnapshotReceived { from, message, machine, configuration, bytes };
        let (takes_us, is_unheard) = self.network.restoring();
        match self.life(to).map(|life| life.number).filter(|_| takes_us > 0) {
            Some(life) => {
                let what = Own::Restoring(Box::new(received));
                self.events.at(self.now_us + takes_us, Event::Own { member: to, life, what });
            }
            None => self.give(to, received),
        }
        // The good news may be lost.
        let lost_percent = self.network.lost_percent;
        Ok(if is_unheard || self.random.percent(lost_percent) { Step::Cut } else { Step::Arrived })
    }
}
