//! What clients did and saw, as they noted it down. Times are nanoseconds since the workload began, of one clock.

use std::collections::BTreeMap;

use crate::support::state::State;

pub type Revision = i64;

/// A value that nobody else writes.
pub type Value = u64;

/// A call on a register, or the put of a key that is written once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub key: String,
    pub invoked: u64,
    pub returned: u64,
    pub action: Action,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Read,
    Write(Value),
    /// Writes `value` if `expected` is there.
    Replace {
        expected: Option<Value>,
        value: Value,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A write, or a replacement that found what it expected.
    Written { revision: Revision },
    /// A read, or a replacement that found something else.
    Found { value: Option<Value>, revision: Revision },
    /// Nobody told whether it was carried out.
    Unknown,
    /// Certainly not carried out.
    Refused,
}

impl Outcome {
    pub fn revision(self) -> Option<Revision> {
        match self {
            Outcome::Written { revision } | Outcome::Found { revision, .. } => Some(revision),
            Outcome::Unknown | Outcome::Refused => None,
        }
    }
}

/// The time in which somebody worked under a lock. In milliseconds of the clock that guards go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub name: String,
    pub key: String,
    pub token: Revision,
    pub began_ms: u64,
    pub ended_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub revision: Revision,
    pub key: String,
    /// None: deleted.
    pub value: Option<Vec<u8>>,
}

/// What one watch of everything from the first revision on has delivered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watched {
    pub by: String,
    pub changes: Vec<Change>,
}

/// All that was noted down while the workload ran.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// On registers.
    pub calls: Vec<Call>,
    /// On keys that are written once.
    pub puts: Vec<Call>,
    pub holdings: Vec<Holding>,
    pub watched: Vec<Watched>,
}

/// What is found when all is healed.
#[derive(Debug, Clone, Default)]
pub struct Aftermath {
    /// Every change from the first revision on, as each member tells it.
    pub changes: BTreeMap<String, Vec<Change>>,
    /// All keys, with the revision of their last change, as each member reads them.
    pub keys: BTreeMap<String, BTreeMap<String, Revision>>,
    /// Of all keys at one revision, as each member computes it.
    pub hashes: BTreeMap<String, u32>,
    /// Of everything, leases and queues too, at one applied index.
    pub states: BTreeMap<String, State>,
}
