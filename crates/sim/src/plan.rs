//! What one seed turns on: how many members, how long, how many clients, what they do, how the members are
//! set up, which faults strike. Each seed draws a subset (swarm): a run with everything on hides what a run
//! with only two things on would find.

use tenure_machine::{Level, level, limits};
use tenure_replica::Config;

use crate::faults;
use crate::random::Random;
use crate::traffic::{Action, MOST_NAMES, owners};

/// The streams of chance from which it is drawn whether a seed has session streams, and what these do.
pub const SESSION_PLAN: u64 = 20;
pub const SESSION_CHANCE: u64 = 25;

/// The stream of chance from which the limits are drawn.
const LIMITS: u64 = 31;

/// How members come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    Never,
    /// They are added, promoted and removed, and leadership is handed about.
    Often,
    /// One that has lost its disk is removed, and a new one takes its place.
    ToReplace,
}

/// What wide seeds have beyond the others. It is drawn from a stream of its own, so that all other seeds stay as they
/// were.
#[derive(Debug, Clone, Copy)]
pub struct Wide {
    /// The feature level that members support which are started after this.
    pub level: Level,
    pub raise_us: u64,
    pub reuses_leases: bool,
    pub raises_alarms: bool,
    /// How many owners name themselves in requests for locks; 0 if requests name none.
    pub owners: u64,
    /// How long a step takes, at most: nothing else is done meanwhile.
    pub step_us: u64,
}

/// Narrow windows that some wide seeds aim at, drawn from a stream of their own.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    /// Places outlive their leases.
    pub strands: bool,
    /// How long it takes at most to read a snapshot that has come in; 0 = it is there at once.
    pub restore_us: u64,
    /// All steps are long, so that each takes many inputs.
    pub long_steps: bool,
}

/// How much one command does at most, see [`tenure_machine::limits`]. Some wide seeds have small limits, so that long
/// work is split over several commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Keys of ended leases that one command deletes.
    pub lease_keys: usize,
    /// Places that one command grants.
    pub lock_grants: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { lease_keys: limits::LEASE_KEYS_AT_ONCE, lock_grants: limits::LOCK_GRANTS_AT_ONCE }
    }
}

impl Limits {
    /// Sets the limits of all machines on this thread.
    pub fn set(self) {
        limits::set_at_once(self.lease_keys, self.lock_grants);
    }

    /// Whether they are smaller than in production.
    pub fn are_small(self) -> bool {
        self != Limits::default()
    }
}

pub struct Plan {
    pub limits: Limits,
    pub wide: Option<Wide>,
    /// Only in wide seeds.
    pub windows: Option<Windows>,
    /// Clients whose locks go over session streams. Half of the wide seeds have some.
    pub session_clients: usize,
    pub members: u64,
    /// How long clients and faults go on before everything heals.
    pub active_us: u64,
    /// How many times slower than usual everything is: clocks tick, clients act and faults strike less often, so
    /// that long leases come to their end.
    pub slowness: u64,
    pub clients: usize,
    pub think_us: (u64, u64),
    pub weights: Vec<(Action, u64)>,
    pub keys: u64,
    pub lock_names: u64,
    pub value_bytes: u64,
    pub ttl_ms: (u64, u64),
    /// Of some leases, those that outlive the limit beyond which what is left of them is noted in the log.
    pub long_ttl_ms: Option<(u64, u64)>,
    /// Nothing but keys and transactions, so that what clients see can be judged without knowing the log.
    pub keys_only: bool,
    pub shared_locks: bool,
    pub barriers: bool,
    pub multi_locks: bool,
    pub replica: Config,
    pub segment_bytes: u64,
    pub chunk_bytes: usize,
    /// How long a write and its sync take.
    pub sync_us: (u64, u64),
    /// By how much clocks run faster or slower, at most.
    pub drift_ppm: u64,
    pub delay_us: (u64, u64),
    /// How long an answer is on its way to its client.
    pub answer_us: (u64, u64),
    pub is_ordered: bool,
    pub changes: Changes,
    /// By name, see [`faults::all`].
    pub faults: Vec<&'static str>,
    /// Each strikes within this for the first time.
    pub fault_pace_us: u64,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut random = Random::new(seed, 1);
        let random = &mut random;
        let members = [1, 3, 3, 3, 3, 5][random.below(6) as usize];
        let slowness = if random.percent(8) { 20 } else { 1 };
        let few = random.percent(50);
        let mut faults: Vec<&'static str> = faults::NAMES[..faults::NAMES.len() - faults::WIDE.len()]
            .iter()
            .copied()
            .filter(|_| random.percent(if few { 15 } else { 35 }))
            .collect();
        if members == 1 {
            faults.retain(|fault| !faults::BETWEEN_MEMBERS.contains(fault));
        }
        let changes = match random.below(8) {
            0 | 1 => Changes::Often,
            2 if members > 1 => Changes::ToReplace,
            _ => Changes::Never,
        };
        faults.retain(|fault| !faults::FOR_GOOD.contains(fault));
        if changes == Changes::ToReplace {
            let for_good = faults::FOR_GOOD[random.below(2) as usize];
            if for_good == "misdirected write" {
                faults.retain(|fault| !faults::HIDES_MISDIRECTION.contains(fault));
            }
            faults.push(for_good);
        }
        let weights = Action::ALL.iter().map(|(action, weight)| {
            let weight = match random.below(4) {
                0 => 0,
                1 => weight * 3,
                _ => *weight,
            };
            (*action, weight)
        });
        let mut weights: Vec<(Action, u64)> = weights.collect();
        let keys_only = random.percent(6);
        if keys_only {
            weights.retain(|(action, _)| action.is_on_keys());
            weights.push((Action::Txn, 10));
        }
        let mut replica = draw_replica(random, slowness);
        if keys_only {
            replica.history_bytes = 0;
        }
        if faults.contains(&"late snapshot") {
            // Only while their logs lead on from it do two leaders send the same one.
            replica.snapshot_floor_bytes = random.spread(1 << 10, 4 << 10);
            replica.log_tail_bytes = random.between(4 << 10, 16 << 10);
            replica.catch_up_bytes = replica.log_tail_bytes;
        }
        let clients = random.between(1, 6);
        let think = random.spread(5_000, 40_000) * clients * slowness * if slowness > 1 { 2 } else { 1 };
        let ttl_low = random.between(150, 1500) * slowness;
        let sync = random.spread(50, 8_000);
        let delay = random.spread(50, 3_000);
        let minutes_us = 60_000_000;
        let mut plan = Plan {
            limits: Limits::default(),
            wide: None,
            windows: None,
            session_clients: 0,
            members,
            active_us: match slowness {
                1 => random.between(3_000_000, 10_000_000),
                _ => random.between(6 * minutes_us, 12 * minutes_us),
            },
            slowness,
            clients: clients as usize,
            think_us: (think / 2, think * 2),
            weights,
            keys: random.between(1, 12),
            lock_names: random.between(1, 3),
            value_bytes: random.spread(8, 900),
            ttl_ms: (ttl_low, ttl_low + random.below(3000) * slowness),
            long_ttl_ms: (slowness > 1).then_some((301_000, 480_000)),
            keys_only,
            shared_locks: random.percent(40),
            barriers: random.percent(30),
            multi_locks: random.percent(40),
            replica,
            segment_bytes: random.spread(4 << 10, 128 << 10),
            chunk_bytes: random.spread(64, 8 << 10) as usize,
            sync_us: (sync, sync * random.between(1, 4)),
            drift_ppm: if random.percent(50) { random.spread(10, 10_000) } else { 0 },
            delay_us: (delay, delay * random.between(1, 6)),
            answer_us: match random.percent(25) {
                true => (50, 600_000 * slowness),
                false => (50, 20_000),
            },
            is_ordered: random.percent(60),
            changes,
            faults,
            fault_pace_us: 3_000_000 * slowness,
        };
        plan.widen(&mut Random::new(seed, 5));
        plan.open_windows(&mut Random::new(seed, 22));
        plan.name_owners(&mut Random::new(seed, owners::PLAN));
        let mut random = Random::new(seed, SESSION_PLAN);
        if plan.wide.is_some() && random.percent(50) {
            plan.session_clients = random.between(1, 4) as usize;
        }
        plan.limit_commands(&mut Random::new(seed, LIMITS));
        plan
    }

    /// Half of the wide seeds have owners: few of them, who want several locks each, so that they come to wait in
    /// circles.
    fn name_owners(&mut self, random: &mut Random) {
        let Some(wide) = self.wide.as_mut().filter(|_| random.percent(50)) else { return };
        wide.owners = random.between(2, 5);
        self.lock_names = self.lock_names.max(random.between(2, 4));
        self.shared_locks |= random.percent(70);
        self.multi_locks |= random.percent(50);
        self.weights.extend([(Action::Grant, 4), (Action::Lock, 25), (Action::Unlock, random.below(8))]);
    }

    /// Half of the seeds are wide, and one of 32 of them is large.
    fn widen(&mut self, random: &mut Random) {
        if self.keys_only || !random.percent(50) {
            return;
        }
        let weights = Action::WIDE
            .iter()
            .map(|(action, weight)| (*action, if random.percent(25) { 0 } else { weight * random.between(1, 3) }));
        self.weights.extend(weights.collect::<Vec<_>>());
        // See `faults::clock_leap`: a member takes a leap for one more slow step.
        let can_be_slow = !self.faults.contains(&"clock leap");
        self.faults.extend(faults::WIDE.into_iter().filter(|_| random.percent(20) && can_be_slow));
        self.wide = Some(Wide {
            level: if random.percent(80) { level::HIGHEST } else { 0 },
            raise_us: if random.percent(60) { 0 } else { random.spread(0, self.active_us) },
            reuses_leases: random.percent(50),
            raises_alarms: random.percent(20),
            owners: 0,
            step_us: if random.percent(30) { random.spread(100, 20_000) } else { 0 },
        });
        if random.percent(15) {
            self.replica.quota_bytes = random.between(4 << 10, 64 << 10);
        }
        if random.percent(20) {
            self.replica.history_age_ms = random.between(1_000, 120_000);
        }
        if random.percent(25) {
            // Hardly any log is kept, so that members come back by snapshots, and many calls are given up meanwhile.
            self.replica.snapshot_floor_bytes = random.spread(512, 2 << 10);
            (self.replica.log_tail_bytes, self.replica.catch_up_bytes) = (random.spread(0, 1 << 10), 1 << 10);
            self.weights.extend([(Action::Lock, 20), (Action::Cancel, 15), (Action::Meddle, random.below(10))]);
        }
        if self.slowness == 1 && random.percent(3) {
            let clients = random.spread(20, 200);
            let more = clients / self.clients as u64 + 1;
            self.think_us = (self.think_us.0 * more, self.think_us.1 * more);
            self.clients = clients as usize;
            (self.keys, self.lock_names) = (random.spread(12, 1000), random.spread(3, 50));
        }
    }

    fn open_windows(&mut self, random: &mut Random) {
        if self.wide.is_none() {
            return;
        }
        let strands = random.percent(50);
        let restores = self.members > 1 && random.percent(30);
        let restore_us = if restores { random.between(200_000, 1_000_000) * self.slowness } else { 0 };
        let long_steps = restores && random.percent(50);
        self.windows = Some(Windows { strands, restore_us, long_steps });
        if restores {
            // A member that lags comes back by a snapshot, which the log may overtake, and its watchers are slow.
            self.replica.snapshot_floor_bytes = random.spread(512, 2 << 10);
            (self.replica.log_tail_bytes, self.replica.catch_up_bytes) = (random.spread(0, 1 << 10), 1 << 10);
            (self.replica.watch_buffer_bytes, self.value_bytes) = (random.between(200, 1000) as usize, 16);
            self.weights.extend([(Action::Put, 40), (Action::Watch, 8)]);
            // What comes in while a step is long is taken together, before and behind the snapshot. So much is written, to
            // disks so slow, that a follower applies many entries when it hears that they are durable.
            if let Some(wide) = self.wide.as_mut().filter(|_| self.slowness == 1 && long_steps) {
                wide.step_us = random.between(20_000, self.replica.election_min_ms * 1000 / 4);
                self.think_us = (self.think_us.0 / 8, self.think_us.1 / 8);
                self.active_us = self.active_us.min(4_000_000);
                self.sync_us = (2_000, random.between(20_000, 150_000));
            }
            let fault = if random.percent(50) { "late snapshot" } else { "partition" };
            if !self.faults.contains(&fault) {
                self.faults.push(fault);
            }
        }
    }

    /// Half of the wide seeds that reach level 1 have small limits, and clients that exceed them (`traffic/crowds`).
    fn limit_commands(&mut self, random: &mut Random) {
        if self.wide.is_none_or(|wide| wide.level == 0) || !random.percent(50) {
            return;
        }
        // As in production, a request for several free locks is granted all of them by its own command.
        self.multi_locks &= random.percent(50);
        let least_grants = if self.multi_locks { MOST_NAMES } else { 1 };
        let (lease_keys, lock_grants) = (random.spread(1, 8), random.spread(least_grants, 8));
        self.limits = Limits { lease_keys: lease_keys as usize, lock_grants: lock_grants as usize };
        self.keys = self.keys.max(random.between(8, 20));
        self.shared_locks |= random.percent(80);
        self.weights.push((Action::Grant, 20));
    }

    /// The feature level that the release supports which a member is started with at this time: in wide seeds members
    /// are upgraded as they are restarted.
    pub fn highest_level(&self, now_us: u64) -> Level {
        match self.wide {
            Some(wide) if now_us < wide.raise_us => 0,
            Some(wide) => wide.level,
            None => level::HIGHEST,
        }
    }

    /// Whether this client leaves it to the real client's rule to repeat its calls.
    pub fn is_careful(&self, client: usize) -> bool {
        self.wide.is_some() && client % 3 == 1
    }

    pub fn has_changes(&self) -> bool {
        self.changes != Changes::Never
    }

    /// When every lease is gone after nobody renews it any more, whoever leads by then.
    pub fn expired_within_us(&self) -> u64 {
        let longest_ms = self.long_ttl_ms.map_or(self.ttl_ms.1, |(_, long_ms)| long_ms);
        // A slow leader counts less time than passes, but no less than half of its shortest election timeout a step.
        let slower = if self.faults.contains(&"slow member") { 8 } else { 1 };
        ((longest_ms * 21 / 20 + 10 * self.replica.election_max_ms) * 1000 + 10_000_000) * slower
    }
}

fn draw_replica(random: &mut Random, slowness: u64) -> Config {
    let tick_ms = if slowness > 1 { 100 } else { 10 };
    let election_min_ms = tick_ms * random.between(10, 50);
    Config {
        tick_ms,
        heartbeat_ms: tick_ms * random.between(2, 5),
        election_min_ms,
        election_max_ms: election_min_ms * 2,
        call_timeout_ms: random.between(1500, 7000) * if slowness > 1 { 4 } else { 1 },
        join_patience_ms: if random.percent(50) { random.between(1, 20) } else { 0 },
        snapshot_floor_bytes: random.spread(1 << 10, 64 << 10),
        log_tail_bytes: random.spread(0, 16 << 10),
        catch_up_bytes: random.spread(1 << 10, 256 << 10),
        inflight_bytes: if random.percent(15) { random.between(2 << 10, 8 << 10) } else { 64 << 20 },
        watch_buffer_bytes: random.spread(100, 16 << 10) as usize,
        quota_bytes: 0,
        history_age_ms: 0,
        history_bytes: if random.percent(30) { random.between(10 << 10, 60 << 10) } else { 0 },
        range_budget: random.spread(0, 128) as usize,
        compare_interval_ms: 5_000,
        ..Config::default()
    }
}
