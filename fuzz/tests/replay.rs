//! All that fuzzing has kept, and the sound inputs with small damage done to them.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tenure_fuzz::{TARGETS, Target};

/// More: `FUZZ_MUTATIONS=100000`.
fn mutations() -> u64 {
    std::env::var("FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(200)
}

#[track_caller]
fn run(target: &Target, what: &str, bytes: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        panic!("{}: {what}: {bytes:?}", target.name);
    }
}

#[test]
fn what_was_kept_is_survived() {
    for target in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let kept: Vec<_> = fs::read_dir(&directory).expect("every target has a corpus").collect();
        assert!(!kept.is_empty(), "{} has no corpus", target.name);
        for file in kept {
            let path = file.expect("readable").path();
            run(target, &path.display().to_string(), &fs::read(&path).expect("readable"));
        }
    }
}

#[test]
fn sound_inputs_are_survived_with_any_small_damage() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty());
        for (number, seed) in seeds.iter().enumerate() {
            run(target, "as it is", seed);
            for mutation in 0..mutations() / seeds.len() as u64 + 1 {
                let mut random = Random(mutation * 1_000_003 + number as u64);
                run(target, &format!("seed {number}, mutation {mutation}"), &mutated(seed, &seeds, &mut random));
            }
        }
    }
}

fn mutated(seed: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.below(256) as u8),
            2 => bytes.splice(at..at, [0xff; 9]).for_each(drop),
            3 => bytes.extend_from_slice(&others[random.below(others.len() as u64) as usize]),
            4 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ if at < bytes.len() => bytes[at] = random.below(256) as u8,
            _ => {}
        }
    }
    bytes
}

/// Enough to choose by.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit.max(1)
    }
}
