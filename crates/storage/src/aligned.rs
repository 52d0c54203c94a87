//! A growing buffer whose first byte lies on a page boundary, as direct IO demands, without unsafe code:
//! a vector that is a page too long, used from its first aligned byte on.

const PAGE_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    /// Wholly initialised; its length never changes but by growing.
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let bytes = vec![0; capacity + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Self { bytes, start, length: 0 }
    }

    pub(crate) fn zeroes(length: usize) -> Self {
        Self { length, ..Self::with_capacity(length) }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len() - PAGE_BYTES
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.grow(bytes.len());
        let begin = self.start + self.length;
        self.bytes[begin..begin + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(crate) fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    pub(crate) fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Zeroes up to the next multiple of `alignment`.
    pub(crate) fn pad(&mut self, alignment: usize) {
        let padding = self.length.next_multiple_of(alignment) - self.length;
        self.grow(padding);
        let begin = self.start + self.length;
        self.bytes[begin..begin + padding].fill(0);
        self.length += padding;
    }

    fn grow(&mut self, more: usize) {
        if self.length + more > self.capacity() {
            let mut larger = Self::with_capacity((self.length + more).next_power_of_two());
            larger.length = self.length;
            larger.as_mut_slice().copy_from_slice(self.as_slice());
            *self = larger;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_aligned_and_keeps_its_bytes_while_growing() {
        let mut buffer = AlignedBuffer::with_capacity(16);
        let mut model = Vec::new();
        for value in 0..5000u64 {
            buffer.put_u64(value);
            model.extend_from_slice(&value.to_le_bytes());
        }
        buffer.put_u8(9);
        buffer.pad(512);
        model.push(9);
        model.resize(model.len().next_multiple_of(512), 0);
        assert_eq!(buffer.as_slice(), model);
        assert_eq!(buffer.as_slice().as_ptr() as usize % PAGE_BYTES, 0);
    }

    #[test]
    fn padding_clears_what_a_longer_use_left_behind() {
        let mut buffer = AlignedBuffer::with_capacity(512);
        buffer.put(&[7; 512]);
        buffer.truncate(0);
        buffer.put_u8(1);
        buffer.pad(512);
        assert!(buffer.as_slice()[1..].iter().all(|byte| *byte == 0));
    }
}
