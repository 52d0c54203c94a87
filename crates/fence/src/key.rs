//! What a token is valid for: a lock's name and, for locks that several hold at once, the part that this holder has.
//!
//! A lock with one holder has one bar, under its name. The holders of a semaphore's slots follow each other slot by
//! slot, so each slot has a bar of its own. Readers of a shared lock are there together, and a later one says nothing
//! against an earlier one: a shared token raises no bar and fences no writes.
//!
//! A key is one text, so that it travels in headers, columns and JSON: `name`, `name#3` for slot 3, `name#shared`.

use std::fmt;

/// The longest name that the lock service takes.
pub const MAX_NAME_BYTES: usize = 1024;
const SHARED: &str = "shared";

/// A checked key. Ordered and compared by its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    text: Box<str>,
    name_bytes: u16,
    part: Part,
}

/// Which part of a lock a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Whole,
    Slot(u32),
    Shared,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAKey {
    #[error("a key is not empty")]
    Empty,
    #[error("a key's name has at most {MAX_NAME_BYTES} bytes, not {bytes}")]
    TooLong { bytes: usize },
    #[error("a key has no control characters: no header and no line of a log could carry them")]
    Control,
    #[error("{name:?} reads like a part of the lock {lock:?}: a lock with this name cannot be told from it")]
    Ambiguous { name: String, lock: String },
}

impl Key {
    /// Of a lock with one holder.
    pub fn name(name: &str) -> Result<Key, NotAKey> {
        let key = Key::parse(name)?;
        match key.part {
            Part::Whole => Ok(key),
            _ => Err(NotAKey::Ambiguous { name: name.to_owned(), lock: key.lock().to_owned() }),
        }
    }

    /// Of one slot of a semaphore.
    pub fn slot(name: &str, slot: u32) -> Result<Key, NotAKey> {
        Key::build(name, Part::Slot(slot))
    }

    /// Of a shared hold, which may read and not write.
    pub fn shared(name: &str) -> Result<Key, NotAKey> {
        Key::build(name, Part::Shared)
    }

    /// Any of the three, from its text.
    pub fn parse(text: &str) -> Result<Key, NotAKey> {
        let (name, part) = split(text);
        Key::build(name, part)
    }

    fn build(name: &str, part: Part) -> Result<Key, NotAKey> {
        if name.is_empty() {
            return Err(NotAKey::Empty);
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(NotAKey::TooLong { bytes: name.len() });
        }
        if name.chars().any(char::is_control) {
            return Err(NotAKey::Control);
        }
        let text = match part {
            Part::Whole => name.to_owned(),
            Part::Slot(slot) => format!("{name}#{slot}"),
            Part::Shared => format!("{name}#{SHARED}"),
        };
        Ok(Key { text: text.into(), name_bytes: name.len() as u16, part })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The lock's name.
    pub fn lock(&self) -> &str {
        &self.text[..usize::from(self.name_bytes)]
    }

    pub fn part(&self) -> Part {
        self.part
    }
}

/// The last `#` counts, and only before what this module itself would write there.
fn split(text: &str) -> (&str, Part) {
    let Some((name, part)) = text.rsplit_once('#').filter(|(name, _)| !name.is_empty()) else {
        return (text, Part::Whole);
    };
    if part == SHARED {
        return (name, Part::Shared);
    }
    match part.parse::<u32>() {
        Ok(slot) if slot.to_string() == part => (name, Part::Slot(slot)),
        _ => (text, Part::Whole),
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_told_from_names() {
        assert_eq!(Key::parse("deploy/prod").unwrap(), Key::name("deploy/prod").unwrap());
        assert_eq!(Key::parse("pool#3").unwrap(), Key::slot("pool", 3).unwrap());
        assert_eq!(Key::parse("pool#shared").unwrap(), Key::shared("pool").unwrap());
        assert_eq!(Key::parse("a#b#0").unwrap().lock(), "a#b");
        for name in ["#3", "a#", "a#03", "a#+3", "a#4294967296", "a#Shared", "a#3/b"] {
            assert_eq!(Key::parse(name).unwrap().part(), Part::Whole, "{name}");
        }
        assert!(matches!(Key::name("pool#3"), Err(NotAKey::Ambiguous { .. })));
    }

    #[test]
    fn keys_that_nobody_could_carry_are_refused() {
        assert_eq!(Key::parse(""), Err(NotAKey::Empty));
        assert_eq!(Key::parse("a\nb"), Err(NotAKey::Control));
        assert_eq!(Key::parse(&"x".repeat(1025)), Err(NotAKey::TooLong { bytes: 1025 }));
        assert!(Key::slot(&"x".repeat(1024), u32::MAX).is_ok());
    }

    proptest! {
        #[test]
        fn a_key_is_what_its_text_says(name in "[^\\p{Cc}]{1,20}", slot: u32) {
            for key in [Key::parse(&name), Key::slot(&name, slot), Key::shared(&name)] {
                let key = key.unwrap();
                prop_assert_eq!(Key::parse(key.as_str()).unwrap(), key);
            }
        }
    }
}
