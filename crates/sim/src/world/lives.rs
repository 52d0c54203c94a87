//! How the member lives and dies: its log and snapshots in simulated time, its deaths, and how it comes back.

use tenure_replica::{Config, Replica};
use tenure_storage::{Fault, OpenError};

use super::{Broken, Event, World, context, see};
use crate::checks::Seen;
use crate::member::Life;
use crate::recovery::{self, MEMBER, Opening, OpeningError};

impl World {
    /// Lets the log take what waits, if it is free.
    pub(super) fn begin_batch(&mut self) {
        let Some(life) = &mut self.member.life else { return };
        if life.begin_batch() {
            let takes_us = self.random.between(self.member.sync_us.0, self.member.sync_us.1);
            let life = life.number;
            self.events.at(self.now_us + takes_us, Event::LogDone { life });
            self.wake();
        }
    }

    pub(super) fn log_done(&mut self) -> Result<(), Broken> {
        let Some(life) = &mut self.member.life else { return Ok(()) };
        match life.finish_batch() {
            Ok(snapshot_began) => {
                if snapshot_began {
                    self.chunk_later();
                }
                self.wake();
                self.begin_batch();
            }
            Err(fault) => self.fail(&fault)?,
        }
        self.notice_power();
        Ok(())
    }

    pub(super) fn write_chunk(&mut self) -> Result<(), Broken> {
        let Some(life) = &mut self.member.life else { return Ok(()) };
        if life.write_chunk() {
            self.chunk_later();
        }
        self.wake();
        self.begin_batch();
        self.notice_power();
        Ok(())
    }

    fn chunk_later(&mut self) {
        let Some(life) = &self.member.life else { return };
        let takes_us = self.random.spread(10, self.member.sync_us.1);
        self.events.at(self.now_us + takes_us, Event::Chunk { life: life.number });
    }

    /// If something waits for the replica, it steps soon.
    fn wake(&mut self) {
        if self.member.life.as_ref().is_some_and(|life| !life.inbox.is_empty()) {
            let soon_us = self.now_us + self.random.spread(1, 300);
            self.step_at(soon_us);
        }
    }

    /// The store cannot go on: the process stops, as it must.
    fn fail(&mut self, fault: &Fault) -> Result<(), Broken> {
        self.trace.note(self.now_us, format_args!("! the member stops: {fault}"));
        if let Fault::Refused { .. } | Fault::Corrupt { .. } = fault {
            return Err(Broken { rule: "the log takes what a member gives it", what: fault.to_string() });
        }
        if !self.member.power_is_off() && !self.member.disk_is_bad {
            return Err(Broken { rule: "a good disk does not fail", what: fault.to_string() });
        }
        if self.member.power_is_off() {
            return Ok(());
        }
        if let Some(life) = self.member.life.take() {
            life.give_up();
        }
        self.member.kill();
        self.died();
        Ok(())
    }

    /// If the power went with an operation just done, everything is dark.
    fn notice_power(&mut self) {
        if self.member.power_is_off() {
            self.lose_power(None);
        }
    }

    /// The power goes now. With `torn`, what was being written is cut at that operation.
    pub fn lose_power(&mut self, torn: Option<u64>) {
        self.trace.note(self.now_us, format_args!("! power lost, torn {torn:?}"));
        let lived = self.member.life.is_some();
        self.member.lose_power(torn);
        if lived {
            self.died();
        }
    }

    /// The process is killed.
    pub fn kill(&mut self) {
        if self.member.life.is_some() {
            self.trace.note(self.now_us, format_args!("! killed"));
            self.member.kill();
            self.died();
        }
    }

    /// The member is stopped as an operator does it.
    pub fn stop_in_order(&mut self) {
        let Some(life) = self.member.life.take() else { return };
        self.trace.note(self.now_us, format_args!("! stopped in order"));
        let closed = life.close();
        if let Err(fault) = closed
            && !self.member.disk_is_bad
            && !self.member.power_is_off()
        {
            self.broken = Some(Broken { rule: "a good disk does not fail", what: fault.to_string() });
        }
        if self.member.power_is_off() {
            self.member.lose_power(None);
        } else {
            self.member.kill();
        }
        self.died();
    }

    /// The process stands still for so long.
    pub fn pause(&mut self, pause_us: u64) {
        if let Some(life) = &mut self.member.life {
            life.paused_until_us = self.now_us + pause_us;
        }
    }

    fn died(&mut self) {
        self.report.deaths += 1;
        self.calls.clear();
        self.traffic.died();
        if let Err(broken) = see(&mut self.checks, &Seen::Died, &context!(self)) {
            self.broken = Some(broken);
        }
        let down_us = self.random.spread(1_000, 1_500_000);
        self.events.at(self.now_us + down_us, Event::Restart);
    }

    pub(super) fn restart(&mut self) -> Result<(), Broken> {
        if self.member.life.is_some() {
            return Ok(());
        }
        let directory_id = u128::from(self.random.draw()) << 64 | u128::from(self.random.draw());
        let opened = recovery::open(&self.member.disk, self.plan.segment_bytes, directory_id, self.plan.chunk_bytes);
        let opening = match opened {
            Ok(opening) if !self.member.power_is_off() => opening,
            Ok(opening) => {
                drop(opening);
                return self.try_again("the power went while the directory was opened");
            }
            Err(OpeningError::Snapshot(what)) => return Err(Broken { rule: "K3: a snapshot comes back", what }),
            Err(OpeningError::Storage(OpenError::Fault(fault)))
                if self.member.power_is_off() || self.member.disk_is_bad =>
            {
                return self.try_again(&fault.to_string());
            }
            Err(OpeningError::Storage(error)) => {
                return Err(Broken { rule: "K3: a data directory opens again", what: error.to_string() });
            }
        };
        self.boot(opening)
    }

    fn try_again(&mut self, why: &str) -> Result<(), Broken> {
        self.trace.note(self.now_us, format_args!("! cannot start: {why}"));
        if self.member.power_is_off() {
            self.member.lose_power(None);
        } else {
            self.member.kill();
        }
        let down_us = self.random.spread(10_000, 500_000);
        self.events.at(self.now_us + down_us, Event::Restart);
        Ok(())
    }

    fn boot(&mut self, opening: Opening) -> Result<(), Broken> {
        let Opening { store, recovered, boot, snapshot_hash } = opening;
        self.trace.note(
            self.now_us,
            format_args!(
                "! boots from a snapshot at {} and {} entries behind it, {:?}, torn {:?}",
                recovered.snapshot.index,
                recovered.entries.len(),
                recovered.hard_state,
                recovered.torn_tail
            ),
        );
        let kept = self.reference.recover(&recovered, snapshot_hash);
        kept.map_err(|what| Broken { rule: "K3: what was acknowledged survives", what })?;
        self.member.lives += 1;
        let config =
            Config { member: MEMBER, boot: self.random.draw(), seed: self.random.draw(), ..self.plan.replica.clone() };
        let number = self.member.lives;
        let now = tenure_replica::Now { monotonic_ms: 0, wall_ms: self.wall_ms.wrapping_add(self.now_us / 1000) };
        let replica = Replica::boot(config, boot, now);
        let replica = replica.map_err(|error| Broken { rule: "a member boots", what: error.to_string() })?;
        self.member.life = Some(Life::new(number, self.now_us, replica, store, self.plan.chunk_bytes, self.planted));
        see(&mut self.checks, &Seen::Booted, &context!(self))?;
        self.step_at(self.now_us);
        for doing in self.traffic.booted() {
            self.perform(0, doing)?;
        }
        Ok(())
    }
}
