//! Which keys a request is about: one, those with a prefix, a range, or all.

use bytes::Bytes;

/// A set of keys, as etcd's API writes it: a first key and an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    pub(crate) key: Bytes,
    /// Empty = only `key`; one zero byte = everything from `key` on; otherwise exclusive.
    pub(crate) end: Bytes,
}

const UNBOUNDED: Bytes = Bytes::from_static(b"\0");

impl Keys {
    pub fn one(key: impl Into<Bytes>) -> Keys {
        Keys { key: key.into(), end: Bytes::new() }
    }

    /// All keys that begin so; an empty prefix means all keys.
    pub fn prefix(prefix: impl Into<Bytes>) -> Keys {
        let prefix = prefix.into();
        let end = prefix_end(&prefix);
        Keys { key: if prefix.is_empty() { UNBOUNDED } else { prefix }, end }
    }

    /// From the first key on, up to and without the end.
    pub fn range(first: impl Into<Bytes>, end: impl Into<Bytes>) -> Keys {
        Keys { key: first.into(), end: end.into() }
    }

    pub fn from(first: impl Into<Bytes>) -> Keys {
        let first = first.into();
        Keys { key: if first.is_empty() { UNBOUNDED } else { first }, end: UNBOUNDED }
    }

    pub fn all() -> Keys {
        Keys::prefix(Bytes::new())
    }
}

impl<Key: Into<Bytes>> From<Key> for Keys {
    fn from(key: Key) -> Keys {
        Keys::one(key)
    }
}

/// The smallest key that is greater than all keys with this prefix.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let Some(last) = prefix.iter().rposition(|byte| *byte < 0xff) else { return UNBOUNDED };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_etcd_says() {
        assert_eq!(Keys::prefix("ab"), Keys::range("ab", "ac"));
        assert_eq!(Keys::prefix(&b"a\xff"[..]), Keys::range(&b"a\xff"[..], "b"));
        assert_eq!(Keys::prefix(&b"\xff\xff"[..]).end, UNBOUNDED);
        assert_eq!(Keys::all(), Keys::range("\0", "\0"));
        assert_eq!(Keys::one("a").end, Bytes::new());
    }
}
