//! What one seed turns on: how long, how many clients, what they do, how the member is set up, which
//! faults strike. Each seed draws a subset (swarm): a run with everything on hides what a run with only
//! two things on would find.

use tenure_replica::Config;

use crate::faults;
use crate::random::Random;
use crate::traffic::Action;

pub struct Plan {
    /// How long clients and faults go on before everything heals.
    pub active_us: u64,
    pub clients: usize,
    pub think_us: (u64, u64),
    pub weights: Vec<(Action, u64)>,
    pub keys: u64,
    pub lock_names: u64,
    pub value_bytes: u64,
    pub ttl_ms: (u64, u64),
    pub shared_locks: bool,
    pub replica: Config,
    pub segment_bytes: u64,
    pub chunk_bytes: usize,
    /// How long a write and its sync take.
    pub sync_us: (u64, u64),
    /// By name, see [`faults::all`].
    pub faults: Vec<&'static str>,
    pub barriers: bool,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut random = Random::new(seed, 1);
        let random = &mut random;
        let weights = Action::ALL.iter().map(|(action, weight)| {
            let weight = match random.below(4) {
                0 => 0,
                1 => weight * 3,
                _ => *weight,
            };
            (*action, weight)
        });
        let weights = weights.collect();
        let few = random.percent(50);
        let chosen: Vec<&'static str> =
            faults::NAMES.iter().copied().filter(|_| random.percent(if few { 20 } else { 45 })).collect();
        let clients = random.between(1, 5);
        let think = random.spread(5_000, 40_000) * clients;
        let ttl_low = random.between(150, 1500);
        let sync = random.spread(50, 8_000);
        Plan {
            active_us: random.between(3_000_000, 12_000_000),
            clients: clients as usize,
            think_us: (think / 2, think * 2),
            weights,
            keys: random.between(1, 12),
            lock_names: random.between(1, 3),
            value_bytes: random.spread(8, 900),
            ttl_ms: (ttl_low, ttl_low + random.below(3000)),
            shared_locks: random.percent(40),
            replica: Config {
                call_timeout_ms: random.between(1500, 7000),
                join_patience_ms: if random.percent(50) { random.between(1, 20) } else { 0 },
                snapshot_floor_bytes: random.spread(1 << 10, 128 << 10),
                log_tail_bytes: random.spread(0, 64 << 10),
                inflight_bytes: if random.percent(15) { random.between(2 << 10, 8 << 10) } else { 64 << 20 },
                watch_buffer_bytes: random.spread(100, 16 << 10) as usize,
                quota_bytes: 0,
                history_age_ms: 0,
                history_bytes: if random.percent(30) { random.between(10 << 10, 60 << 10) } else { 0 },
                range_budget: random.spread(0, 128) as usize,
                ..Config::default()
            },
            segment_bytes: random.spread(4 << 10, 128 << 10),
            chunk_bytes: random.spread(64, 8 << 10) as usize,
            sync_us: (sync, sync * random.between(1, 4)),
            faults: chosen,
            // Drawn last, so that what a seed drew before there were barriers is what it still draws.
            barriers: random.percent(30),
        }
    }
}
