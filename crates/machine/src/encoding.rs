//! Varints and length-prefixed bytes: the alphabet of [`crate::codec`], of [`crate::snapshot`] and of what members
//! say to each other.
//!
//! A [`Reader`] never panics and never takes memory on the word of a length it has not checked
//! against what is left.

pub fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Negative numbers take ten bytes: they are legal but do not occur in practice.
pub fn put_signed(into: &mut Vec<u8>, value: i64) {
    put_varint(into, value as u64);
}

pub fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(into, bytes.len() as u64);
    if !bytes.is_empty() {
        into.extend_from_slice(bytes);
    }
}

pub fn varint_length(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub type ReadResult<T> = Result<T, &'static str>;

pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn finish(&self) -> ReadResult<()> {
        if self.rest.is_empty() { Ok(()) } else { Err("bytes after the end") }
    }

    pub fn byte(&mut self) -> ReadResult<u8> {
        let (first, rest) = self.rest.split_first().ok_or("ends too early")?;
        self.rest = rest;
        Ok(*first)
    }

    pub fn take(&mut self, length: usize) -> ReadResult<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("ends too early")?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn varint(&mut self) -> ReadResult<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err("number too large");
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // One number has one encoding, so that equal states have equal bytes.
                return if byte == 0 && shift > 0 { Err("number padded") } else { Ok(value) };
            }
        }
        Err("number too large")
    }

    pub fn signed(&mut self) -> ReadResult<i64> {
        Ok(self.varint()? as i64)
    }

    pub fn small(&mut self) -> ReadResult<u32> {
        u32::try_from(self.varint()?).map_err(|_| "number too large")
    }

    /// A count of things that take at least one byte each, so that it can never exceed what is left.
    pub fn count(&mut self) -> ReadResult<usize> {
        let count = usize::try_from(self.varint()?).map_err(|_| "count too large")?;
        if count > self.rest.len() { Err("count too large") } else { Ok(count) }
    }

    pub fn bytes(&mut self) -> ReadResult<&'a [u8]> {
        let length = self.count()?;
        self.take(length)
    }

    pub fn flag(&mut self) -> ReadResult<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("neither true nor false"),
        }
    }
}
