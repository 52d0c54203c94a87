//! All chance in the world. Each concern draws from a stream of its own, so that one more draw in one
//! of them leaves the others as they were.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub struct Random(ChaCha8Rng);

impl Random {
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Random(generator)
    }

    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 0 if there is nothing below.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.draw() % limit }
    }

    /// Both ends included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Small values are as likely as large ones: between powers of two, then within.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        let bits = 64 - span.leading_zeros() as u64;
        let top = 1u64.checked_shl(self.between(0, bits) as u32).unwrap_or(u64::MAX);
        low + self.below(top.min(span + 1))
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len() as u64) as usize)
    }
}
