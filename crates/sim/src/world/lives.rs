//! How members live and die: their logs and snapshots in simulated time, their deaths, and how they come back.

use tenure_machine::{Level, MemberId, level};
use tenure_replica::{CallId, Config, Replica, StreamId};
use tenure_storage::{Fault, MemoryDisk, OpenError};

use super::{Broken, Event, Own, World, context, see};
use crate::checks::Seen;
use crate::durable::Durable;
use crate::member::Life;
use crate::planted::Planted;
use crate::recovery::{self, CLUSTER, Opening, OpeningError};

impl World {
    /// Lets a member's log take what waits, if it is free.
    pub(super) fn begin_batch(&mut self, id: MemberId) {
        let now_us = self.now_us;
        let Some(member) = self.members.get_mut(&id) else { return };
        let (sync_us, Some(life)) = (member.sync_us, &mut member.life) else { return };
        if life.begin_batch(&mut member.durable) {
            let takes_us = self.random.between(sync_us.0, sync_us.1);
            life.log_busy_until_us = now_us + takes_us;
            let number = life.number;
            let early = life.early_messages();
            self.events.at(now_us + takes_us, Event::Own { member: id, life: number, what: Own::LogDone });
            early.into_iter().for_each(|(to, message)| self.send(id, to, message));
            self.wake(id);
        }
    }

    pub(super) fn log_done(&mut self, id: MemberId) -> Result<(), Broken> {
        let member = self.member(id);
        let Some(life) = &mut member.life else { return Ok(()) };
        match life.finish_batch(&mut member.durable) {
            Ok(done) => {
                if done.snapshot_began {
                    self.chunk_later(id);
                }
                self.wake(id);
                // If the power went with it, they go nowhere.
                if !self.members[&id].power_is_off() {
                    done.messages.into_iter().for_each(|(to, message)| self.send(id, to, message));
                }
                self.begin_batch(id);
            }
            Err(fault) => self.fail(id, &fault)?,
        }
        self.notice_power(id);
        Ok(())
    }

    pub(super) fn write_chunk(&mut self, id: MemberId) {
        let Some(life) = self.life_mut(id) else { return };
        if life.write_chunk() {
            self.chunk_later(id);
        }
        self.wake(id);
        self.begin_batch(id);
        self.notice_power(id);
    }

    fn chunk_later(&mut self, id: MemberId) {
        let Some((life, sync_us)) = self.life(id).map(|life| (life.number, self.members[&id].sync_us)) else { return };
        let takes_us = self.random.spread(10, sync_us.1);
        self.events.at(self.now_us + takes_us, Event::Own { member: id, life, what: Own::Chunk });
    }

    /// If something waits for the replica, it steps soon.
    fn wake(&mut self, id: MemberId) {
        if self.life(id).is_some_and(|life| !life.inbox.is_empty()) {
            let soon_us = self.now_us + self.random.spread(1, 300);
            self.step_at(id, soon_us);
        }
    }

    /// The store cannot go on: the process stops, as it must.
    fn fail(&mut self, id: MemberId, fault: &Fault) -> Result<(), Broken> {
        self.trace.note(self.now_us, format_args!("! member {id} stops: {fault}"));
        if let (Fault::Corrupt { .. }, Some(damage)) = (fault, self.member(id).damage.take()) {
            self.report.damaged += 1;
            self.kill(id);
            return self.replace_disk(id, damage);
        }
        if let Fault::Refused { .. } | Fault::Corrupt { .. } = fault {
            return Err(Broken { rule: "the log takes what a member gives it", what: format!("member {id}: {fault}") });
        }
        let member = self.member(id);
        if !member.power_is_off() && !member.disk_is_bad {
            return Err(Broken { rule: "a good disk does not fail", what: format!("member {id}: {fault}") });
        }
        if member.power_is_off() {
            return Ok(());
        }
        if let Some(life) = member.life.take() {
            life.give_up();
        }
        member.kill();
        self.died(id);
        Ok(())
    }

    /// If the power went with an operation just done, everything is dark.
    pub(super) fn notice_power(&mut self, id: MemberId) {
        if self.members[&id].power_is_off() {
            self.lose_power(id, None);
        }
    }

    /// The power goes now. With `torn`, what was being written is cut at that operation.
    pub fn lose_power(&mut self, id: MemberId, torn: Option<u64>) {
        self.trace.note(self.now_us, format_args!("! member {id} loses power, torn {torn:?}"));
        let member = self.member(id);
        let lived = member.life.is_some();
        member.lose_power(torn);
        if lived {
            self.died(id);
        }
    }

    /// The process is killed.
    pub fn kill(&mut self, id: MemberId) {
        let member = self.member(id);
        if member.life.is_some() {
            member.kill();
            self.trace.note(self.now_us, format_args!("! member {id} is killed"));
            self.died(id);
        }
    }

    /// The disk is gone with all that was on it; an empty one takes its place.
    pub fn lose_disk(&mut self, id: MemberId) {
        self.kill(id);
        self.trace.note(self.now_us, format_args!("! member {id} loses its disk"));
        let seed = self.random.draw();
        let member = self.member(id);
        member.disk = MemoryDisk::new(seed);
        member.durable = Durable::default();
        member.cut_at = None;
        member.damage = None;
    }

    /// The member is stopped as an operator does it.
    pub fn stop_in_order(&mut self, id: MemberId) {
        let member = self.member(id);
        let Some(life) = member.life.take() else { return };
        let closed = life.close(&mut member.durable);
        let is_bad = member.disk_is_bad || member.power_is_off();
        if member.power_is_off() {
            member.lose_power(None);
        } else {
            member.kill();
        }
        self.trace.note(self.now_us, format_args!("! member {id} is stopped in order"));
        if let Err(fault) = closed
            && !is_bad
        {
            self.broken = Some(Broken { rule: "a good disk does not fail", what: fault.to_string() });
        }
        self.died(id);
    }

    /// The member stops for good.
    pub(super) fn retire(&mut self, id: MemberId, why: &str) {
        self.trace.note(self.now_us, format_args!("! member {id} {why}"));
        self.member(id).is_gone = true;
        self.stop_in_order(id);
    }

    /// The process stands still for so long.
    pub fn pause(&mut self, id: MemberId, pause_us: u64) {
        let until_us = self.now_us + pause_us;
        self.trace.note(self.now_us, format_args!("! member {id} stands still for {pause_us} us"));
        if let Some(life) = self.life_mut(id) {
            life.paused_until_us = life.paused_until_us.max(until_us);
        }
    }

    /// From now on every step of a member comes so much later; a restart changes nothing about it.
    pub fn slow_down(&mut self, id: MemberId, late_us: u64) {
        self.trace.note(self.now_us, format_args!("! member {id} takes every step {late_us} us late"));
        self.members.values_mut().for_each(|member| member.late_us = 0);
        self.member(id).late_us = late_us;
    }

    /// Its clock leaps ahead, or falls behind what it would show. It never goes back: whoever falls behind stands
    /// still for as long.
    pub fn shift_clock(&mut self, id: MemberId, by_us: i64) {
        self.trace.note(self.now_us, format_args!("! member {id}'s clock is shifted by {by_us} us"));
        let now_us = self.now_us;
        if let Some(life) = self.life_mut(id) {
            life.ahead_us += by_us;
            life.leapt_us = now_us;
        }
        // It may have something to do by now.
        self.step_at(id, now_us + 1);
    }

    fn died(&mut self, id: MemberId) {
        self.report.deaths += 1;
        let lost: Vec<CallId> = self.calls.iter().filter(|(_, call)| call.member == id).map(|(id, _)| *id).collect();
        let cut_off: Vec<StreamId> =
            self.streams.iter().filter(|(_, member)| **member == id).map(|(stream, _)| *stream).collect();
        if self.plan.wide.is_some() {
            self.lose_peer(id);
        }
        let others = self.plan.clients;
        let lost_calls = lost.iter().filter_map(|id| self.calls.get(id)).filter(|call| call.client < others);
        lost_calls.for_each(|call| self.traffic.lost(call));
        self.sessions_lose(id, &lost);
        self.traffic.died(&lost, &cut_off, self.now_us);
        self.calls.retain(|_, call| call.member != id);
        self.fates.died(id, self.now_us);
        self.streams.retain(|_, member| *member != id);
        let seen = Seen::Died { member: id, lost: &lost, cut_off: &cut_off };
        if let Err(broken) = see(&mut self.checks, &seen, &context!(self)).and_then(|()| self.believe()) {
            self.broken = Some(broken);
        }
        let down_us = self.random.spread(1_000, 1_500_000 * self.plan.slowness);
        self.events.at(self.now_us + down_us, Event::Restart(id));
    }

    /// The connections to a member that died break; some others notice it, sooner or later.
    fn lose_peer(&mut self, id: MemberId) {
        for other in self.members.keys().copied().filter(|other| *other != id).collect::<Vec<_>>() {
            if self.random.percent(50) {
                self.give(other, tenure_replica::Input::PeerLost { member: id });
            }
        }
    }

    pub(super) fn restart(&mut self, id: MemberId) -> Result<(), Broken> {
        let directory_id = u128::from(self.random.draw()) << 64 | u128::from(self.random.draw());
        let (segment_bytes, chunk_bytes) = (self.plan.segment_bytes, self.plan.chunk_bytes);
        let member = self.member(id);
        if member.life.is_some() || member.is_gone {
            return Ok(());
        }
        let is_to_come = member.disk.is_misdirecting();
        let opened = recovery::open(&member.disk, id, &member.founders, segment_bytes, directory_id, chunk_bytes);
        if let Some(damage) = member.damage.take() {
            return self.open_damaged(id, damage, is_to_come, opened);
        }
        let excused = member.power_is_off() || member.disk_is_bad;
        let broken = |rule, what: String| Err(Broken { rule, what: format!("member {id}: {what}") });
        let opening = match opened {
            Ok(opening) if !member.power_is_off() => opening,
            Ok(opening) => {
                drop(opening);
                return self.try_again(id, "the power went while the directory was opened");
            }
            Err(OpeningError::Snapshot(what)) => return broken("K3: a snapshot comes back", what),
            Err(OpeningError::Storage(OpenError::Fault(fault))) if excused => {
                return self.try_again(id, &fault.to_string());
            }
            Err(OpeningError::Storage(error)) => return broken("K3: a data directory opens again", error.to_string()),
        };
        self.boot(id, opening)
    }

    pub(super) fn try_again(&mut self, id: MemberId, why: &str) -> Result<(), Broken> {
        self.trace.note(self.now_us, format_args!("! member {id} cannot start: {why}"));
        let member = self.member(id);
        if member.power_is_off() {
            member.lose_power(None);
        } else {
            member.kill();
        }
        let down_us = self.random.spread(10_000, 500_000);
        self.events.at(self.now_us + down_us, Event::Restart(id));
        Ok(())
    }

    /// A member that joins is of the latest release: the level may rise before it is in.
    fn highest_level(&self, id: MemberId) -> Level {
        let latest = self.plan.wide.map_or(level::HIGHEST, |wide| wide.level);
        if id > self.plan.members { latest } else { self.plan.highest_level(self.now_us) }
    }

    pub(super) fn boot(&mut self, id: MemberId, opening: Opening) -> Result<(), Broken> {
        let Opening { store, recovered, boot, snapshot_hash } = opening;
        let (index, entries, state) = (recovered.snapshot.index, recovered.entries.len(), recovered.hard_state);
        let torn = recovered.torn_tail.as_ref();
        let line = format_args!("! member {id} boots at {index} with {entries} entries, {state:?}, torn {torn:?}");
        self.trace.note(self.now_us, line);
        let rule = "K3: what was durable comes back";
        let broken = |what: String| Broken { rule, what: format!("member {id}: {what}") };
        self.reference.recover(&recovered, snapshot_hash).map_err(broken)?;
        self.reference.forget_unheard(id, state.term);
        self.member(id).durable.recover(&recovered).map_err(broken)?;
        let (boot_number, seed) = (self.random.draw(), self.random.draw());
        let highest_level = self.highest_level(id);
        let mut config = Config {
            cluster: CLUSTER,
            member: id,
            boot: boot_number,
            seed,
            highest_level,
            ..self.plan.replica.clone()
        };
        if self.planted == Some(Planted::KeepTail) {
            config.log_tail_bytes = u64::MAX;
        }
        let (now_us, planted, chunk_bytes) = (self.now_us, self.planted, self.plan.chunk_bytes);
        let member = self.member(id);
        member.lives += 1;
        let now = member.now(now_us, planted);
        let replica = Replica::boot(config, boot, now);
        let replica = replica.map_err(|error| Broken { rule: "a member boots", what: error.to_string() })?;
        let directory_id = recovered.identity.directory_id;
        let mut life = Life::new(member.lives, now_us, replica, store, directory_id, chunk_bytes, planted);
        life.terms = recovered.entries.iter().map(|entry| (entry.index, entry.term)).collect();
        member.life = Some(life);
        see(&mut self.checks, &Seen::Booted { member: id }, &context!(self))?;
        self.step_at(id, now_us);
        Ok(())
    }
}
