//! Everything that happened: as one number that two equal runs agree on, and as lines for people.
//!
//! Lines are only kept when somebody will read them. A run is its seed, so a failing one is simply run
//! again with lines.

use std::collections::VecDeque;
use std::fmt::{self, Write};

pub struct Trace {
    hash: u64,
    line: String,
    kept: VecDeque<String>,
    keep: usize,
}

impl Trace {
    /// Keeps the last `keep` lines.
    pub fn new(keep: usize) -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, line: String::new(), kept: VecDeque::new(), keep }
    }

    pub fn note(&mut self, time_us: u64, what: fmt::Arguments<'_>) {
        self.line.clear();
        let _ = self.line.write_fmt(what);
        self.hash = mixed(mixed(self.hash, time_us), hash_of(self.line.as_bytes()));
        self.keep_line(time_us);
    }

    /// For people only.
    pub fn remark(&mut self, time_us: u64, what: fmt::Arguments<'_>) {
        self.line.clear();
        let _ = self.line.write_fmt(what);
        self.keep_line(time_us);
    }

    pub fn is_kept(&self) -> bool {
        self.keep > 0
    }

    fn keep_line(&mut self, time_us: u64) {
        if self.keep > 0 {
            if self.kept.len() == self.keep {
                self.kept.pop_front();
            }
            self.kept.push_back(format!("{:>12.3} ms  {}", time_us as f64 / 1000.0, shortened(&readable(&self.line))));
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.kept.iter().map(String::as_str)
    }
}

pub fn hash_of(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for word in words {
        hash = mixed(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    mixed(mixed(hash, u64::from_le_bytes(last)), bytes.len() as u64)
}

/// FNV-1a over words instead of bytes, with the high half folded in so that every bit counts.
fn mixed(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    product ^ product.rotate_right(29)
}

fn shortened(line: &str) -> String {
    const MOST: usize = 600;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_string(),
    }
}

/// Lists of bytes that are text, as text.
pub fn readable(line: &str) -> String {
    let mut readable = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(begin) = rest.find('[') {
        let (before, list) = rest.split_at(begin + 1);
        let end = list.find(|character: char| !matches!(character, '0'..='9' | ',' | ' ')).unwrap_or(list.len());
        let bytes: Option<Vec<u8>> = list[..end].split(", ").map(|number| number.parse().ok()).collect();
        match bytes.map(String::from_utf8) {
            Some(Ok(text)) if list[end..].starts_with(']') => {
                readable.push_str(&before[..begin]);
                let _ = write!(readable, "{text:?}");
                rest = &list[end + 1..];
            }
            _ => {
                readable.push_str(before);
                rest = list;
            }
        }
    }
    readable + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_text() {
        assert_eq!(readable("a [107, 101] b [] c [1.5] [300] d"), "a \"ke\" b [] c [1.5] [300] d");
        assert_eq!(readable("[[97], x]"), "[\"a\", x]");
    }

    #[test]
    fn the_order_of_events_counts() {
        let hash = |lines: &[&str]| {
            let mut trace = Trace::new(0);
            lines.iter().for_each(|line| trace.note(1, format_args!("{line}")));
            trace.hash()
        };
        assert_ne!(hash(&["one", "two"]), hash(&["two", "one"]));
        assert_ne!(hash(&["onetwo"]), hash(&["one", "two"]));
        assert_eq!(hash(&["one", "two"]), hash(&["one", "two"]));
    }
}
