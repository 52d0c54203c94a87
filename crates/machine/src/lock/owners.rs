//! Where each owner that has a name holds and waits.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::LockName;
use crate::{Revision, SharedBytes};

/// A queue, and the token of an entry in it.
pub(crate) type OwnerPlace = (LockName, Revision);

#[derive(Clone, Default)]
pub(crate) struct Owners {
    owners: OrdMap<SharedBytes, Owner>,
}

#[derive(Clone, Default)]
pub(crate) struct Owner {
    pub held: Places,
    pub waiting: Places,
}

/// Most owners have one place, and a tree for it would take half a kilobyte.
#[derive(Clone, Default)]
pub(crate) enum Places {
    #[default]
    None,
    One(OwnerPlace),
    /// In order.
    Few(Arc<Vec<OwnerPlace>>),
    Many(OrdSet<OwnerPlace>),
}

/// More are kept in a tree.
const FEW: usize = 16;

impl Owners {
    pub fn get(&self, owner: &[u8]) -> Option<&Owner> {
        self.owners.get(owner)
    }

    /// An entry of this owner is there and waits, or is granted as it is made.
    pub fn join(&mut self, owner: &SharedBytes, place: OwnerPlace, is_granted: bool) {
        let owner = self.owners.entry(owner.clone()).or_default();
        if is_granted { owner.held.insert(place) } else { owner.waiting.insert(place) }
    }

    /// An entry of this owner that waited is granted.
    pub fn grant(&mut self, owner: &SharedBytes, place: OwnerPlace) {
        let Some(owner) = self.owners.get_mut(owner) else { return };
        owner.waiting.remove(&place);
        owner.held.insert(place);
    }

    /// An entry of this owner is gone.
    pub fn leave(&mut self, name: &SharedBytes, place: &OwnerPlace, is_granted: bool) {
        let Some(owner) = self.owners.get_mut(name) else { return };
        if is_granted {
            owner.held.remove(place)
        } else {
            owner.waiting.remove(place)
        }
        if owner.held.len() + owner.waiting.len() == 0 {
            self.owners.remove(name);
        }
    }
}

impl Owner {
    /// Whether it has an entry in this queue with one of these tokens.
    pub fn has_place(&self, name: &LockName, after: Revision, upto: Revision) -> bool {
        self.held.has(name, after, upto) || self.waiting.has(name, after, upto)
    }
}

impl Places {
    pub fn len(&self) -> usize {
        match self {
            Places::None => 0,
            Places::One(_) => 1,
            Places::Few(places) => places.len(),
            Places::Many(places) => places.len(),
        }
    }

    /// In order of queue and token.
    pub fn iter(&self) -> impl Iterator<Item = &OwnerPlace> + '_ {
        let (few, many) = match self {
            Places::None => (&[][..], None),
            Places::One(place) => (std::slice::from_ref(place), None),
            Places::Few(places) => (&places[..], None),
            Places::Many(places) => (&[][..], Some(places)),
        };
        few.iter().chain(many.into_iter().flatten())
    }

    fn has(&self, name: &LockName, after: Revision, upto: Revision) -> bool {
        let is_it = |(other, token): &OwnerPlace| other == name && after < *token && *token <= upto;
        match self {
            Places::Many(places) => places.range((name.clone(), after + 1)..=(name.clone(), upto)).next().is_some(),
            places => places.iter().any(is_it),
        }
    }

    fn insert(&mut self, place: OwnerPlace) {
        match self {
            Places::None => *self = Places::One(place),
            Places::One(other) => {
                let mut places = vec![other.clone(), place];
                places.sort_unstable();
                *self = Places::Few(Arc::new(places));
            }
            Places::Few(places) if places.len() < FEW => {
                if let Err(position) = places.binary_search(&place) {
                    Arc::make_mut(places).insert(position, place);
                }
            }
            Places::Few(places) => *self = Places::Many(places.iter().cloned().chain([place]).collect()),
            Places::Many(places) => {
                places.insert(place);
            }
        }
    }

    fn remove(&mut self, place: &OwnerPlace) {
        match self {
            Places::None => {}
            Places::One(other) => {
                if other == place {
                    *self = Places::None;
                }
            }
            Places::Few(places) => {
                if let Ok(position) = places.binary_search(place) {
                    Arc::make_mut(places).remove(position);
                }
            }
            Places::Many(places) => {
                places.remove(place);
                if places.is_empty() {
                    *self = Places::None;
                }
            }
        }
    }
}
