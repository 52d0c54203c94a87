//! A leader stands still in the middle of sending a snapshot, and goes on with it while its successor sends the same
//! one to the same member, whose disk is slow: what comes late is refused, and must spoil nothing of the other.

use tenure_machine::MemberId;

use super::Fault;
use crate::world::World;

#[derive(Default)]
pub struct LateSnapshot {
    stage: Stage,
}

#[derive(Default, Clone, Copy)]
enum Stage {
    #[default]
    Idle,
    /// Nobody reaches it, until it needs a snapshot that two others have.
    Lagging(MemberId, u64),
    /// It is back; nothing was seen on its way to it so many times.
    Expecting(MemberId, u64),
    /// The leader stands still, until another one sends a snapshot.
    Succeeding { victim: MemberId, leader: MemberId, tries: u64 },
    /// By both, and its disk is slow.
    Receiving(MemberId),
}

/// So often it looks whether it can go on.
const PATIENCE: u64 = 20;

impl Fault for LateSnapshot {
    fn name(&self) -> &'static str {
        "late snapshot"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        match self.stage {
            Stage::Idle => {
                let leader = world.leader();
                let others: Vec<MemberId> = world.voters().into_iter().filter(|id| Some(*id) != leader).collect();
                if let Some(victim) = world.fault_random.pick(&others).copied() {
                    world.network.cut_off(victim, world.members.keys().copied());
                    self.stage = Stage::Lagging(victim, 0);
                }
                world.fault_random.between(400_000, 2_000_000)
            }
            Stage::Lagging(victim, tries) if !lags(world, victim) => {
                self.stage = Stage::Lagging(victim, tries + 1);
                if tries < PATIENCE { world.fault_random.between(50_000, 300_000) } else { self.end(world) }
            }
            Stage::Lagging(victim, _) => {
                world.network.rejoin(victim);
                world.network.piece_us = world.fault_random.between(100_000, 400_000) * world.plan.slowness;
                self.stage = Stage::Expecting(victim, 0);
                world.fault_random.between(10_000, 50_000)
            }
            Stage::Expecting(victim, tries) => match world.leader() {
                Some(leader) if world.senders(victim).any(|sender| sender == leader) => {
                    self.stage = Stage::Succeeding { victim, leader, tries: 0 };
                    stand_still(world, leader)
                }
                _ if tries < PATIENCE => {
                    self.stage = Stage::Expecting(victim, tries + 1);
                    world.fault_random.between(20_000, 100_000)
                }
                _ => self.end(world),
            },
            Stage::Succeeding { victim, leader, tries } => {
                let is_succeeded = world.senders(victim).any(|sender| sender != leader);
                if !is_succeeded && tries < 3 * PATIENCE {
                    self.stage = Stage::Succeeding { victim, leader, tries: tries + 1 };
                    return stand_still(world, leader);
                }
                let slow_us = world.fault_random.between(500_000, 2_000_000) * world.plan.slowness;
                world.member(victim).sync_us = (slow_us / 2, slow_us);
                // What is left of both comes within one write.
                world.network.piece_us = world.fault_random.between(2_000, 40_000) * world.plan.slowness;
                self.stage = Stage::Receiving(victim);
                world.fault_random.between(500_000, 3_000_000)
            }
            Stage::Receiving(_) => self.end(world),
        }
    }

    fn heal(&mut self, world: &mut World) {
        self.end(world);
    }
}

impl LateSnapshot {
    fn end(&mut self, world: &mut World) -> u64 {
        world.network.piece_us = 0;
        match std::mem::take(&mut self.stage) {
            Stage::Lagging(victim, _) => world.network.rejoin(victim),
            Stage::Receiving(victim) => world.member(victim).sync_us = world.plan.sync_us,
            _ => {}
        }
        world.fault_random.spread(200_000, 2_000_000)
    }
}

/// Whether the leader and another one have the same snapshot, and the victim has nothing of what it holds.
fn lags(world: &World, victim: MemberId) -> bool {
    let Some(leader) = world.leader() else { return false };
    let newest = |id: MemberId| world.life(id).map(|life| life.snapshots.newest());
    let mut others = world.configured().into_iter().filter(|id| *id != leader && *id != victim);
    let last = world.life(victim).map(|life| life.replica.status().last_index);
    newest(leader).map(|meta| meta.index) > last && others.any(|other| newest(other) == newest(leader))
}

/// Until it is looked at again.
fn stand_still(world: &mut World, leader: MemberId) -> u64 {
    let pause_us = world.plan.replica.election_min_ms * world.fault_random.between(50, 200);
    world.pause(leader, pause_us);
    pause_us / world.plan.slowness
}
