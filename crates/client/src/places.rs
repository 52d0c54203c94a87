//! Where servers are, or should be, and how each of them did last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::EndpointOrder;
use crate::diagnose::Cause;
use crate::endpoint::Address;
use crate::error::Attempt;

/// For how long a server that was in trouble is tried after the others.
const TROUBLE: Duration = Duration::from_secs(5);

/// Shared by all connections of a client, on whatever runtime they are.
#[derive(Default)]
pub struct Places(RwLock<Vec<Arc<Place>>>);

pub struct Place {
    pub address: Address,
    /// The cluster that named it; None if it was given by the user.
    pub named_by: Option<u64>,
    /// Lower ones are tried first. Learned ones come behind those that the user gave.
    rank: (bool, u64),
    trouble_until: Mutex<Option<Instant>>,
}

impl Places {
    pub fn given(addresses: Vec<Address>, order: EndpointOrder) -> Places {
        let ranks = order.ranks(addresses.len());
        let places = addresses.into_iter().zip(ranks).map(|(address, rank)| Place::new(address, None, (false, rank)));
        Places(RwLock::new(places.collect()))
    }

    pub fn list(&self) -> RwLockReadGuard<'_, Vec<Arc<Place>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn at(&self, address: &Address) -> Option<Arc<Place>> {
        self.list().iter().find(|place| place.address == *address).cloned()
    }

    /// These are all the others, says the member at this address.
    pub fn learn(&self, teller: &Address, others: Vec<Address>, cluster: u64) {
        let mut places = self.0.write().unwrap_or_else(PoisonError::into_inner);
        places.retain(|place| place.named_by.is_none() || place.address == *teller || others.contains(&place.address));
        for address in others {
            if places.iter().all(|place| place.address != address) {
                let rank = places.iter().map(|place| place.rank.1).max().map_or(0, |highest| highest + 1);
                places.push(Place::new(address, Some(cluster), (true, rank)));
            }
        }
    }

    /// In the order in which they are tried: the last one that worked, then by their ranks, then those in trouble.
    pub fn candidates(&self, last: Option<&Arc<Place>>, now: Instant) -> Vec<Arc<Place>> {
        let mut candidates = self.list().clone();
        candidates.sort_by_key(|place| {
            let trouble_until = place.trouble().filter(|until| *until > now);
            (trouble_until, !last.is_some_and(|last| Arc::ptr_eq(last, place)), place.rank)
        });
        candidates
    }

    pub fn attempts(&self, cause: &Cause) -> Vec<Attempt> {
        self.list().iter().map(|place| place.attempt(cause.clone())).collect()
    }
}

impl Place {
    fn new(address: Address, named_by: Option<u64>, rank: (bool, u64)) -> Arc<Place> {
        Arc::new(Place { address, named_by, rank, trouble_until: Mutex::default() })
    }

    pub fn is_in_trouble(&self) {
        *self.trouble() = Some(Instant::now() + TROUBLE);
    }

    pub fn is_well(&self) {
        *self.trouble() = None;
    }

    pub fn attempt(&self, cause: Cause) -> Attempt {
        Attempt { endpoint: self.address.text.clone(), cause }
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Instant>> {
        self.trouble_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::parse;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| parse(text).unwrap()).collect()
    }

    fn texts(places: &[Arc<Place>]) -> Vec<&str> {
        places.iter().map(|place| place.address.text.as_str()).collect()
    }

    #[test]
    fn what_is_learned_comes_behind_what_was_given_and_may_go_again() {
        let places = Places::given(addresses(&["a:1", "b:1"]), EndpointOrder::AsGiven);
        let a = parse("a:1").unwrap();
        places.learn(&a, addresses(&["b:1", "c:1", "d:1"]), 7);
        assert_eq!(texts(&places.list()), ["a:1", "b:1", "c:1", "d:1"]);
        assert_eq!(
            places.list().iter().map(|place| place.named_by).collect::<Vec<_>>(),
            [None, None, Some(7), Some(7)]
        );
        places.learn(&a, addresses(&["d:1", "e:1"]), 7);
        assert_eq!(texts(&places.list()), ["a:1", "b:1", "d:1", "e:1"], "those given stay");
        places.learn(&parse("e:1").unwrap(), addresses(&["a:1"]), 7);
        assert_eq!(texts(&places.list()), ["a:1", "b:1", "e:1"], "who tells it is there");
    }

    #[test]
    fn the_last_that_worked_comes_first_and_those_in_trouble_last() {
        let places = Places::given(addresses(&["a:1", "b:1", "c:1"]), EndpointOrder::AsGiven);
        let (now, last) = (Instant::now(), places.list()[1].clone());
        assert_eq!(texts(&places.candidates(None, now)), ["a:1", "b:1", "c:1"]);
        assert_eq!(texts(&places.candidates(Some(&last), now)), ["b:1", "a:1", "c:1"]);
        last.is_in_trouble();
        assert_eq!(texts(&places.candidates(Some(&last), now)), ["a:1", "c:1", "b:1"]);
        places.list()[0].is_in_trouble();
        assert_eq!(texts(&places.candidates(Some(&last), now))[0], "c:1");
        last.is_well();
        assert_eq!(texts(&places.candidates(Some(&last), now)), ["b:1", "c:1", "a:1"]);
        let later = now + 2 * TROUBLE;
        assert_eq!(texts(&places.candidates(None, later)), ["a:1", "b:1", "c:1"], "trouble is forgotten");
    }

    fn first_tried(order: EndpointOrder) -> String {
        let places = Places::given(addresses(&["a:1", "b:1", "c:1"]), order);
        assert_eq!(texts(&places.list()), ["a:1", "b:1", "c:1"], "they are listed as they were given");
        texts(&places.candidates(None, Instant::now()))[0].to_owned()
    }

    #[test]
    fn clients_spread_over_the_endpoints() {
        let mut first = [0; 3];
        for seed in 0..3_000 {
            let tried = first_tried(EndpointOrder::Seeded(seed));
            assert_eq!(tried, first_tried(EndpointOrder::Seeded(seed)), "a seed has one order");
            first[["a:1", "b:1", "c:1"].iter().position(|address| *address == tried).unwrap()] += 1;
        }
        assert!(first.iter().all(|count| (800..1_200).contains(count)), "{first:?}");
        assert!((0..100).any(|_| first_tried(EndpointOrder::Shuffled) != "a:1"), "by default, too");
        assert_eq!(first_tried(EndpointOrder::AsGiven), "a:1");
    }

    #[test]
    fn what_is_learned_is_tried_last_in_any_order() {
        for seed in 0..50 {
            let places = Places::given(addresses(&["a:1", "b:1"]), EndpointOrder::Seeded(seed));
            places.learn(&parse("a:1").unwrap(), addresses(&["b:1", "c:1", "d:1"]), 7);
            assert_eq!(texts(&places.candidates(None, Instant::now()))[2..], ["c:1", "d:1"]);
        }
    }
}
