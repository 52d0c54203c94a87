//! A 64-bit hash of a sequence of records, to compare the states of two members.
//!
//! Not keyed and not cryptographic: it finds members that drifted apart by a bug or a flipped bit,
//! it does not stop one that lies.

pub(crate) struct RecordHasher {
    state: u64,
}

impl RecordHasher {
    pub fn new() -> RecordHasher {
        RecordHasher { state: 0x9e37_79b9_7f4a_7c15 }
    }

    /// The length is mixed in, so that moving a byte from one record to the next shows.
    pub fn record(&mut self, bytes: &[u8]) {
        let mut state = mix(self.state, bytes.len() as u64);
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            state = mix(state, u64::from_le_bytes(*word));
        }
        let mut last = [0u8; 8];
        last[..tail.len()].copy_from_slice(tail);
        self.state = mix(state, u64::from_le_bytes(last));
    }

    pub fn finish(&self) -> u64 {
        mix(self.state, 0)
    }
}

fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * 0xd6e8_feb8_6659_fd93_u128;
    // Adding a rotation keeps a state of zero from swallowing what follows.
    ((product >> 64) as u64 ^ product as u64).wrapping_add(state.rotate_left(23)) ^ 0xa076_1d64_78bd_642f
}
