//! The network falls apart: a few on one side, a leader alone, one that hears nobody or is heard by nobody, or
//! two halves that have only one member in common.

use tenure_machine::MemberId;

use super::Fault;
use crate::world::World;

#[derive(Default)]
pub struct Partition {
    is_on: bool,
}

impl Fault for Partition {
    fn name(&self) -> &'static str {
        "partition"
    }

    fn strike(&mut self, world: &mut World) -> u64 {
        if self.is_on && world.fault_random.percent(70) {
            self.heal(world);
            return world.fault_random.spread(200_000, 4_000_000);
        }
        self.is_on = true;
        let mut members: Vec<MemberId> = world.members.values().filter(|m| !m.is_gone).map(|m| m.id).collect();
        let one = world.victim();
        match world.fault_random.below(5) {
            0 => {
                // Some on this side, the others on that.
                let size = world.fault_random.between(1, members.len() as u64) as usize;
                shuffle(world, &mut members);
                let (here, there) = members.split_at(size);
                part(world, here, there);
            }
            1 => {
                let others: Vec<MemberId> = members.into_iter().filter(|other| *other != one).collect();
                part(world, &[one], &others);
            }
            2 => {
                // It is heard, and hears nothing.
                members.iter().filter(|other| **other != one).for_each(|other| world.network.cut(*other, one));
            }
            3 => {
                members.iter().filter(|other| **other != one).for_each(|other| world.network.cut(one, *other));
            }
            _ => {
                // One in the middle talks to all others, who are in two halves.
                members.retain(|other| *other != one);
                shuffle(world, &mut members);
                let (here, there) = members.split_at(members.len() / 2);
                part(world, here, there);
            }
        }
        world.fault_random.spread(100_000, 5_000_000)
    }

    fn heal(&mut self, world: &mut World) {
        self.is_on = false;
        world.network.mend();
    }
}

fn part(world: &mut World, here: &[MemberId], there: &[MemberId]) {
    for one in here {
        for other in there {
            world.network.cut(*one, *other);
            world.network.cut(*other, *one);
        }
    }
}

fn shuffle(world: &mut World, members: &mut [MemberId]) {
    for last in (1..members.len()).rev() {
        let other = world.fault_random.below(last as u64 + 1) as usize;
        members.swap(last, other);
    }
}
