//! The Huffman code of header compression (RFC 7541, Appendix B).
//!
//! The code is canonical: ordered by length and then by value, the codes of one length follow each
//! other without a gap. So a string is decoded with the first code of each length and the symbols in
//! that order. To go bit by bit is enough for a load client: a server compresses a header once and
//! refers to it from then on.

/// All bytes, and one that stands for the end of a string and is never sent.
const SYMBOLS: usize = 257;
const LONGEST: usize = 30;

/// The code of each symbol and how many bits it has.
#[rustfmt::skip]
const CODES: [(u32, u8); SYMBOLS] = [
    (0x1ff8, 13), (0x7fffd8, 23), (0xfffffe2, 28), (0xfffffe3, 28), (0xfffffe4, 28), (0xfffffe5, 28),
    (0xfffffe6, 28), (0xfffffe7, 28), (0xfffffe8, 28), (0xffffea, 24), (0x3ffffffc, 30), (0xfffffe9, 28),
    (0xfffffea, 28), (0x3ffffffd, 30), (0xfffffeb, 28), (0xfffffec, 28), (0xfffffed, 28), (0xfffffee, 28),
    (0xfffffef, 28), (0xffffff0, 28), (0xffffff1, 28), (0xffffff2, 28), (0x3ffffffe, 30), (0xffffff3, 28),
    (0xffffff4, 28), (0xffffff5, 28), (0xffffff6, 28), (0xffffff7, 28), (0xffffff8, 28), (0xffffff9, 28),
    (0xffffffa, 28), (0xffffffb, 28), (0x14, 6), (0x3f8, 10), (0x3f9, 10), (0xffa, 12),
    (0x1ff9, 13), (0x15, 6), (0xf8, 8), (0x7fa, 11), (0x3fa, 10), (0x3fb, 10),
    (0xf9, 8), (0x7fb, 11), (0xfa, 8), (0x16, 6), (0x17, 6), (0x18, 6),
    (0x0, 5), (0x1, 5), (0x2, 5), (0x19, 6), (0x1a, 6), (0x1b, 6),
    (0x1c, 6), (0x1d, 6), (0x1e, 6), (0x1f, 6), (0x5c, 7), (0xfb, 8),
    (0x7ffc, 15), (0x20, 6), (0xffb, 12), (0x3fc, 10), (0x1ffa, 13), (0x21, 6),
    (0x5d, 7), (0x5e, 7), (0x5f, 7), (0x60, 7), (0x61, 7), (0x62, 7),
    (0x63, 7), (0x64, 7), (0x65, 7), (0x66, 7), (0x67, 7), (0x68, 7),
    (0x69, 7), (0x6a, 7), (0x6b, 7), (0x6c, 7), (0x6d, 7), (0x6e, 7),
    (0x6f, 7), (0x70, 7), (0x71, 7), (0x72, 7), (0xfc, 8), (0x73, 7),
    (0xfd, 8), (0x1ffb, 13), (0x7fff0, 19), (0x1ffc, 13), (0x3ffc, 14), (0x22, 6),
    (0x7ffd, 15), (0x3, 5), (0x23, 6), (0x4, 5), (0x24, 6), (0x5, 5),
    (0x25, 6), (0x26, 6), (0x27, 6), (0x6, 5), (0x74, 7), (0x75, 7),
    (0x28, 6), (0x29, 6), (0x2a, 6), (0x7, 5), (0x2b, 6), (0x76, 7),
    (0x2c, 6), (0x8, 5), (0x9, 5), (0x2d, 6), (0x77, 7), (0x78, 7),
    (0x79, 7), (0x7a, 7), (0x7b, 7), (0x7ffe, 15), (0x7fc, 11), (0x3ffd, 14),
    (0x1ffd, 13), (0xffffffc, 28), (0xfffe6, 20), (0x3fffd2, 22), (0xfffe7, 20), (0xfffe8, 20),
    (0x3fffd3, 22), (0x3fffd4, 22), (0x3fffd5, 22), (0x7fffd9, 23), (0x3fffd6, 22), (0x7fffda, 23),
    (0x7fffdb, 23), (0x7fffdc, 23), (0x7fffdd, 23), (0x7fffde, 23), (0xffffeb, 24), (0x7fffdf, 23),
    (0xffffec, 24), (0xffffed, 24), (0x3fffd7, 22), (0x7fffe0, 23), (0xffffee, 24), (0x7fffe1, 23),
    (0x7fffe2, 23), (0x7fffe3, 23), (0x7fffe4, 23), (0x1fffdc, 21), (0x3fffd8, 22), (0x7fffe5, 23),
    (0x3fffd9, 22), (0x7fffe6, 23), (0x7fffe7, 23), (0xffffef, 24), (0x3fffda, 22), (0x1fffdd, 21),
    (0xfffe9, 20), (0x3fffdb, 22), (0x3fffdc, 22), (0x7fffe8, 23), (0x7fffe9, 23), (0x1fffde, 21),
    (0x7fffea, 23), (0x3fffdd, 22), (0x3fffde, 22), (0xfffff0, 24), (0x1fffdf, 21), (0x3fffdf, 22),
    (0x7fffeb, 23), (0x7fffec, 23), (0x1fffe0, 21), (0x1fffe1, 21), (0x3fffe0, 22), (0x1fffe2, 21),
    (0x7fffed, 23), (0x3fffe1, 22), (0x7fffee, 23), (0x7fffef, 23), (0xfffea, 20), (0x3fffe2, 22),
    (0x3fffe3, 22), (0x3fffe4, 22), (0x7ffff0, 23), (0x3fffe5, 22), (0x3fffe6, 22), (0x7ffff1, 23),
    (0x3ffffe0, 26), (0x3ffffe1, 26), (0xfffeb, 20), (0x7fff1, 19), (0x3fffe7, 22), (0x7ffff2, 23),
    (0x3fffe8, 22), (0x1ffffec, 25), (0x3ffffe2, 26), (0x3ffffe3, 26), (0x3ffffe4, 26), (0x7ffffde, 27),
    (0x7ffffdf, 27), (0x3ffffe5, 26), (0xfffff1, 24), (0x1ffffed, 25), (0x7fff2, 19), (0x1fffe3, 21),
    (0x3ffffe6, 26), (0x7ffffe0, 27), (0x7ffffe1, 27), (0x3ffffe7, 26), (0x7ffffe2, 27), (0xfffff2, 24),
    (0x1fffe4, 21), (0x1fffe5, 21), (0x3ffffe8, 26), (0x3ffffe9, 26), (0xffffffd, 28), (0x7ffffe3, 27),
    (0x7ffffe4, 27), (0x7ffffe5, 27), (0xfffec, 20), (0xfffff3, 24), (0xfffed, 20), (0x1fffe6, 21),
    (0x3fffe9, 22), (0x1fffe7, 21), (0x1fffe8, 21), (0x7ffff3, 23), (0x3fffea, 22), (0x3fffeb, 22),
    (0x1ffffee, 25), (0x1ffffef, 25), (0xfffff4, 24), (0xfffff5, 24), (0x3ffffea, 26), (0x7ffff4, 23),
    (0x3ffffeb, 26), (0x7ffffe6, 27), (0x3ffffec, 26), (0x3ffffed, 26), (0x7ffffe7, 27), (0x7ffffe8, 27),
    (0x7ffffe9, 27), (0x7ffffea, 27), (0x7ffffeb, 27), (0xffffffe, 28), (0x7ffffec, 27), (0x7ffffed, 27),
    (0x7ffffee, 27), (0x7ffffef, 27), (0x7fffff0, 27), (0x3ffffee, 26), (0x3fffffff, 30),
];

/// The codes of one length: the first of them, how many there are, and where their symbols begin.
#[derive(Clone, Copy)]
struct Group {
    first: u32,
    count: u32,
    start: usize,
}

const ORDERED: ([Group; LONGEST + 1], [u16; SYMBOLS]) = ordered();

const fn ordered() -> ([Group; LONGEST + 1], [u16; SYMBOLS]) {
    let mut groups = [Group { first: 0, count: 0, start: 0 }; LONGEST + 1];
    let mut symbols = [0; SYMBOLS];
    let (mut length, mut placed) = (1, 0);
    while length <= LONGEST {
        groups[length].start = placed;
        let (mut first, mut symbol) = (u32::MAX, 0);
        while symbol < SYMBOLS {
            if CODES[symbol].1 as usize == length {
                if CODES[symbol].0 < first {
                    first = CODES[symbol].0;
                }
                groups[length].count += 1;
            }
            symbol += 1;
        }
        symbol = 0;
        while symbol < SYMBOLS {
            if CODES[symbol].1 as usize == length {
                symbols[placed + (CODES[symbol].0 - first) as usize] = symbol as u16;
            }
            symbol += 1;
        }
        groups[length].first = first;
        placed += groups[length].count as usize;
        length += 1;
    }
    (groups, symbols)
}

/// Appends what the bytes stand for; None if they are not a string of this code.
pub fn decode(bytes: &[u8], into: &mut Vec<u8>) -> Option<()> {
    static TABLES: ([Group; LONGEST + 1], [u16; SYMBOLS]) = ORDERED;
    let (groups, symbols) = &TABLES;
    let (mut code, mut length) = (0u32, 0);
    for byte in bytes {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            length += 1;
            let group = groups.get(length)?;
            let place = code.wrapping_sub(group.first);
            if group.count > 0 && place < group.count {
                let symbol = symbols[group.start + place as usize];
                into.push(u8::try_from(symbol).ok()?);
                (code, length) = (0, 0);
            }
        }
    }
    // A string is filled up to a whole byte with the first bits of the symbol for its end, which are ones.
    (length < 8 && code == (1 << length) - 1).then_some(())
}

#[cfg(test)]
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let (mut encoded, mut bits, mut length) = (Vec::new(), 0u64, 0);
    for byte in bytes {
        let (code, more) = CODES[usize::from(*byte)];
        bits = bits << more | u64::from(code);
        length += more;
        while length >= 8 {
            length -= 8;
            encoded.push((bits >> length) as u8);
        }
    }
    if length > 0 {
        encoded.push((bits << (8 - length)) as u8 | 0xff >> length);
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut into = Vec::new();
        decode(bytes, &mut into).map(|()| into)
    }

    #[test]
    fn the_code_is_canonical_and_complete() {
        let space: u64 = CODES.iter().map(|(_, length)| 1 << (LONGEST - usize::from(*length))).sum();
        assert_eq!(space, 1 << LONGEST);
        let (groups, symbols) = ORDERED;
        for (symbol, (code, length)) in CODES.iter().enumerate() {
            let group = groups[usize::from(*length)];
            assert!(code - group.first < group.count, "the codes of {length} bits have a gap");
            assert_eq!(usize::from(symbols[group.start + (code - group.first) as usize]), symbol);
        }
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encode(&all)).unwrap(), all);
        for byte in 0..=255 {
            assert_eq!(decoded(&encode(&[byte, b'a', byte])).unwrap(), [byte, b'a', byte]);
        }
    }

    #[test]
    fn known_strings() {
        let known: [(&[u8], &str); 3] = [
            (&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff], "www.example.com"),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
        ];
        for (bytes, text) in known {
            assert_eq!(decoded(bytes).unwrap(), text.as_bytes());
            assert_eq!(encode(text.as_bytes()), bytes);
        }
    }

    #[test]
    fn wrong_filling_and_an_end_within_are_refused() {
        assert_eq!(decoded(&[]), Some(Vec::new()));
        // The first is '0' and three bits that are no ones; the second a whole byte of filling.
        assert_eq!(decoded(&[0x00]), None);
        assert_eq!(decoded(&[0x07, 0xff]), None);
        let (end, length) = CODES[256];
        assert_eq!(decoded(&(end << (32 - length) | 3).to_be_bytes()), None);
    }
}
