//! The bars of many keys, in memory. Pure.
//!
//! A key cannot simply be forgotten: the next stale token for it would pass as the first. What can be done safely is
//! to forget all keys whose bar is below a *floor*, and to refuse from then on every token below that floor for any
//! key that is not known. Refusing more is always safe; the price is that a holder whose token is below the floor, and
//! whose key was forgotten or never seen, has to acquire its lock again. A token rises from holder to holder of one
//! lock. Between locks tokens follow the order in which their holders joined the queues, not the order of the grants: a
//! lock that is granted today may have a low token, because its holder has waited for long. A floor below the tokens of
//! all places that are held or waited for refuses no true holder.

use std::collections::BTreeMap;

use crate::bar::{Admitted, Bar, Digest, Equal, Refusal};
use crate::{Key, Part, Token};

/// Refuses stale tokens for as long as it lives. See `DurableFence` for one that outlives its process.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    equal: Equal,
    bars: BTreeMap<Key, Bar>,
    floor: Option<Token>,
}

impl Fence {
    pub fn new(equal: Equal) -> Fence {
        Fence { equal, ..Fence::default() }
    }

    /// Whether a write may be carried out; changes nothing.
    pub fn check(&self, key: &Key, token: Token, digest: Option<Digest>) -> Result<Admitted, Refusal> {
        if key.part() == Part::Shared {
            return Err(Refusal::Shared);
        }
        match self.bars.get(key) {
            Some(bar) => bar.judge(self.equal, token, digest),
            None => self.check_floor(token).map(|()| Admitted::Raised),
        }
    }

    /// Admits a write and raises the bar, or refuses it and changes nothing.
    ///
    /// The write must be carried out before the next one of the same key is admitted: hold a lock over both, or let
    /// the storage do both in one transaction. A bar that is raised long before its write arrives guards nothing.
    pub fn admit(&mut self, key: &Key, token: Token, digest: Option<Digest>) -> Result<Admitted, Refusal> {
        let admitted = self.check(key, token, digest)?;
        if admitted == Admitted::Raised {
            self.raise(key, token, digest);
        }
        Ok(admitted)
    }

    /// Whether a reader's hold can still stand: no writer that came after it has been seen. Raises nothing.
    pub fn check_reader(&self, key: &Key, token: Token) -> Result<(), Refusal> {
        let lock = Key::parse(key.lock()).ok();
        match lock.and_then(|lock| self.bars.get(&lock)) {
            Some(bar) if token < bar.highest => Err(Refusal::Stale { token, highest: bar.highest }),
            Some(_) => Ok(()),
            None => self.check_floor(token),
        }
    }

    pub fn highest(&self, key: &Key) -> Option<Token> {
        self.bars.get(key).map(|bar| bar.highest)
    }

    /// Forgets every key whose bar is below the floor, and refuses tokens below it for unknown keys from now on. A
    /// floor never falls.
    pub fn forget_below(&mut self, floor: Token) {
        let floor = self.floor.map_or(floor, |before| before.max(floor));
        self.floor = Some(floor);
        self.bars.retain(|_, bar| bar.highest >= floor);
    }

    /// The lowest floor that would leave at most so many keys.
    pub fn floor_leaving(&self, keys: usize) -> Option<Token> {
        let excess = self.bars.len().checked_sub(keys).filter(|excess| *excess > 0)?;
        let mut highest: Vec<Token> = self.bars.values().map(|bar| bar.highest).collect();
        let (_, last, _) = highest.select_nth_unstable(excess - 1);
        Token::new(last.get() + 1).ok()
    }

    pub fn floor(&self) -> Option<Token> {
        self.floor
    }

    pub fn len(&self) -> usize {
        self.bars.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bars.is_empty()
    }

    pub fn bars(&self) -> impl Iterator<Item = (&Key, &Bar)> {
        self.bars.iter()
    }

    /// Sets a bar that was admitted already.
    pub(crate) fn raise(&mut self, key: &Key, token: Token, digest: Option<Digest>) {
        let digest = self.kept(digest);
        self.bars.insert(key.clone(), Bar { highest: token, digest });
    }

    /// Where the holder may write other data with the same token, the first data's digest would soon be a lie.
    pub(crate) fn kept(&self, digest: Option<Digest>) -> Option<Digest> {
        digest.filter(|_| self.equal == Equal::Identical)
    }

    /// One with the same policy and floor, and no bars.
    #[cfg(feature = "file")]
    pub(crate) fn empty(&self) -> Fence {
        Fence { equal: self.equal, floor: self.floor, bars: BTreeMap::new() }
    }

    #[cfg(feature = "file")]
    pub(crate) fn take_bars(&mut self, mut other: Fence) {
        self.bars.append(&mut other.bars);
    }

    fn check_floor(&self, token: Token) -> Result<(), Refusal> {
        match self.floor {
            Some(floor) if token < floor => Err(Refusal::Forgotten { token, floor }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::parse(name).unwrap()
    }

    #[test]
    fn each_key_has_its_own_bar() {
        let mut fence = Fence::new(Equal::Allow);
        assert_eq!(fence.admit(&key("a"), token(5), None), Ok(Admitted::Raised));
        assert_eq!(fence.admit(&key("b"), token(3), None), Ok(Admitted::Raised));
        assert_eq!(fence.admit(&key("a"), token(5), None), Ok(Admitted::Again));
        let stale = Refusal::Stale { token: token(4), highest: token(5) };
        assert_eq!(fence.admit(&key("a"), token(4), None), Err(stale));
        assert_eq!(fence.highest(&key("a")), Some(token(5)));
    }

    #[test]
    fn a_refused_token_raises_nothing() {
        let mut fence = Fence::new(Equal::Refuse);
        fence.admit(&key("a"), token(5), None).unwrap();
        assert!(fence.admit(&key("a"), token(5), None).is_err());
        assert!(fence.admit(&key("a#shared"), token(9), None).is_err());
        assert_eq!((fence.len(), fence.highest(&key("a"))), (1, Some(token(5))));
    }

    #[test]
    fn slots_are_fenced_one_by_one_and_readers_by_the_last_writer() {
        let mut fence = Fence::new(Equal::Allow);
        fence.admit(&key("pool#1"), token(8), None).unwrap();
        assert_eq!(fence.admit(&key("pool#2"), token(7), None), Ok(Admitted::Raised), "another slot");
        assert!(fence.admit(&key("pool#1"), token(7), None).is_err());
        assert_eq!(fence.check(&key("a#shared"), token(9), None), Err(Refusal::Shared));
        fence.admit(&key("a"), token(10), None).unwrap();
        assert!(fence.check_reader(&key("a#shared"), token(9)).is_err());
        assert_eq!(fence.check_reader(&key("a#shared"), token(11)), Ok(()));
        assert_eq!(fence.check_reader(&key("a#shared"), token(12)), Ok(()), "readers do not fence each other");
        assert_eq!(fence.check_reader(&key("a#shared"), token(11)), Ok(()));
    }

    #[test]
    fn a_retry_passes_where_identical_data_may() {
        let mut fence = Fence::new(Equal::Identical);
        let (data, other) = (Some(Digest::of(b"data")), Some(Digest::of(b"other")));
        assert_eq!(fence.admit(&key("a"), token(5), data), Ok(Admitted::Raised));
        assert_eq!(fence.admit(&key("a"), token(5), data), Ok(Admitted::Repeated));
        assert_eq!(fence.admit(&key("a"), token(5), other), Err(Refusal::Reused { token: token(5) }));
        assert_eq!(fence.admit(&key("a"), token(6), other), Ok(Admitted::Raised));
    }

    #[test]
    fn what_is_forgotten_leaves_a_floor() {
        let mut fence = Fence::new(Equal::Refuse);
        for (name, value) in [("a", 3), ("b", 5), ("c", 9)] {
            fence.admit(&key(name), token(value), None).unwrap();
        }
        assert_eq!((fence.floor_leaving(3), fence.floor_leaving(1)), (None, Some(token(6))));
        fence.forget_below(token(6));
        assert_eq!(fence.len(), 1);
        let forgotten = Refusal::Forgotten { token: token(5), floor: token(6) };
        assert_eq!(fence.admit(&key("b"), token(5), None), Err(forgotten));
        assert_eq!(fence.admit(&key("b"), token(6), None), Ok(Admitted::Raised), "no bar was as high as the floor");
        assert_eq!(fence.admit(&key("c"), token(10), None), Ok(Admitted::Raised));
        fence.forget_below(token(2));
        assert_eq!(fence.floor(), Some(token(6)), "a floor never falls");
    }

    proptest! {
        /// Whatever is forgotten in between: what passes never falls behind what passed before it.
        #[test]
        fn admitted_tokens_of_a_key_never_fall(
            steps in prop::collection::vec((0..4_u8, 1..40_u64, any::<bool>()), 1..120),
        ) {
            let mut fence = Fence::new(Equal::Allow);
            let mut passed = BTreeMap::new();
            for (name, value, forget) in steps {
                if forget && value > 30 {
                    fence.forget_below(token(value));
                    continue;
                }
                if fence.admit(&key(&name.to_string()), token(value), None).is_ok() {
                    let before = passed.insert(name, value).unwrap_or(0);
                    prop_assert!(before <= value, "{} after {}", value, before);
                }
            }
        }
    }
}
