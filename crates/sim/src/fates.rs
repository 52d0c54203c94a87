//! What became of every Lock call, as its client sees it.
//!
//! A place in a queue is named after the call that joined it last. A call that was told a grant owns its place. A call
//! that was told anything else, or that its client gave up, owns nothing: the member that took it must leave its place.
//! Only if that member dies does nobody leave the place, and the client has to.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_machine::{LeaseId, Leave, Lock, MemberId, Mode, Revision};
use tenure_replica::CallId;

use crate::model::{Model, Place};
use crate::traffic::streams::FIRST_LEASE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Not answered yet.
    Open,
    /// Its client was told that it holds the lock.
    Granted,
    /// It was answered in another way, or its client gave it up.
    Over,
    /// The member that had it died before it was answered, or before it could leave the place.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub id: CallId,
    pub client: usize,
    pub member: MemberId,
    pub name: Bytes,
    pub lease: LeaseId,
    pub fate: Fate,
    /// When it came to this.
    pub since_us: u64,
}

#[derive(Default)]
pub struct Fates {
    /// By the name of the call that stands in the command.
    asked: BTreeMap<u128, Asked>,
}

/// What clients still have to do so that every queue comes to an end.
#[derive(Default)]
pub struct Chores {
    /// Grants that were told and not given back: by client, name and token.
    pub owed: Vec<(usize, Bytes, Revision)>,
    /// Places of calls whose outcome is unknown to their client.
    pub doubtful: Vec<(usize, Leave)>,
    /// Calls that wait at a barrier, for others who may never come.
    pub at_barrier: Vec<(usize, CallId)>,
    /// Places that belong to no Lock call, or that hang on no lease: keys that an operator has to delete.
    pub stray: Vec<Bytes>,
    /// Leases with a place that its member must leave: kept alive, so that their end does not hide it.
    pub suspects: Vec<LeaseId>,
}

impl Fates {
    pub fn issued(&mut self, id: CallId, client: usize, member: MemberId, lock: &Lock, now_us: u64) {
        let (name, lease) = (lock.name.clone(), lock.lease);
        let asked = Asked { id, client, member, name, lease, fate: Fate::Open, since_us: now_us };
        self.asked.insert(lock.call, asked);
    }

    pub fn become_of(&mut self, lock: &Lock, fate: Fate, now_us: u64) {
        if let Some(asked) = self.asked.get_mut(&lock.call) {
            (asked.fate, asked.since_us) = (fate, now_us);
        }
    }

    /// A member is gone with everything that it was about to do.
    pub fn died(&mut self, member: MemberId, now_us: u64) {
        let of_member = self.asked.values_mut().filter(|asked| asked.member == member);
        for asked in of_member.filter(|asked| matches!(asked.fate, Fate::Open | Fate::Over)) {
            (asked.fate, asked.since_us) = (Fate::Unknown, now_us);
        }
    }

    pub fn of(&self, place: &Place) -> Option<&Asked> {
        self.asked.get(&place.last_joiner?)
    }

    /// Places whose call is over, and which its member was to leave.
    pub fn left_behind<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = (&'a Place, &'a Asked)> {
        let places = model.queues().flat_map(|(_, places)| places);
        places.filter_map(|place| Some((place, self.of(place)?))).filter(|(_, asked)| asked.fate == Fate::Over)
    }

    /// Several calls may wait for one place.
    fn waiting_for(&self, name: &[u8], lease: LeaseId) -> impl Iterator<Item = (usize, CallId)> {
        let waits = move |asked: &&Asked| asked.fate == Fate::Open && asked.name == name && asked.lease == lease;
        self.asked.values().filter(waits).map(|asked| (asked.client, asked.id))
    }

    pub fn chores(&self, model: &Model) -> Chores {
        let mut chores = Chores::default();
        for (name, places) in model.queues() {
            let granted = Model::granted(places);
            for (position, place) in places.iter().enumerate() {
                let key = Bytes::copy_from_slice(&place.key);
                // Members delete the keys of a lease that has ended.
                if model.live(&place.key).is_some_and(|kv| model.is_ending(kv.lease)) {
                    continue;
                }
                let is_leaseless = model.live(&place.key).is_some_and(|kv| model.lease(kv.lease).is_none());
                if matches!(place.mode, Mode::Barrier(_)) && position >= granted {
                    chores.at_barrier.extend(self.waiting_for(name, place.lease));
                }
                match self.of(place) {
                    // An etcd client's, which has put it there by itself.
                    None if is_leaseless || position < granted => chores.stray.push(key),
                    None => {}
                    Some(asked) => match (asked.fate, place.last_joiner) {
                        (Fate::Granted, _) if is_leaseless => chores.stray.push(key),
                        (Fate::Granted, _) => {
                            chores.owed.push((asked.client, Bytes::copy_from_slice(name), place.token));
                        }
                        // Below level 1, what is left of several locks, one of which was taken away while no member
                        // waited for them, is an operator's to delete: see `docs/found-by-simulation.md`. The session
                        // settles the others.
                        (Fate::Unknown, _)
                            if place.lease >= FIRST_LEASE && model.level() == 0 && is_rest(model, place) =>
                        {
                            chores.stray.push(key);
                        }
                        (Fate::Unknown, _) if place.lease >= FIRST_LEASE => {}
                        (Fate::Unknown, Some(call)) => chores.doubtful.push((asked.client, Leave { key, call })),
                        (Fate::Over, _) => chores.suspects.push(place.lease),
                        _ => {}
                    },
                }
            }
        }
        chores
    }
}

impl Chores {
    pub fn is_done(&self) -> bool {
        self.owed.is_empty() && self.doubtful.is_empty() && self.stray.is_empty() && self.suspects.is_empty()
    }
}

/// Whether a place was taken together with others of which one is gone.
fn is_rest(model: &Model, place: &Place) -> bool {
    let is_there = |name: &Vec<u8>| {
        let mut queues = model.queues().filter(|(queue, _)| queue[..] == name[..]);
        queues.any(|(_, places)| places.iter().any(|other| (other.lease, other.token) == (place.lease, place.token)))
    };
    !place.together.iter().all(is_there)
}
