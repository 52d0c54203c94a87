//! Forwarded commands apply at most once.
//!
//! A member that is not the leader forwards commands, and forwards them again when it hears
//! nothing, so the log may carry one command twice. Each bears its origin: member, boot (drawn
//! anew at each start) and sequence. Kept for each member: its boot, a floor below which every
//! sequence is settled at the origin, and the sequences applied above the floor.
//!
//! A new boot replaces the old one. What the old one sent and the network held back must not be
//! taken for another new boot, so replaced boots are remembered for a while and stay refused:
//! whoever waited for such a command died with its process.

use imbl::{OrdMap, OrdSet, Vector};

use crate::{MemberId, Origin, limits};

#[derive(Clone, Default)]
pub(crate) struct Origins {
    pub(crate) members: OrdMap<MemberId, MemberOrigins>,
}

#[derive(Clone, Default)]
pub(crate) struct MemberOrigins {
    pub boot: u64,
    /// Every sequence below is settled.
    pub floor: u64,
    /// Applied sequences at or above the floor.
    pub applied: OrdSet<u64>,
    /// Replaced boots, oldest first.
    pub retired: Vector<u64>,
}

impl Origins {
    /// Whether a command would have no effect: it was applied before, or its origin is through with it.
    pub fn is_settled(&self, origin: &Origin) -> bool {
        self.members.get(&origin.member).is_some_and(|known| match known.boot == origin.boot {
            true => origin.sequence < known.floor || known.applied.contains(&origin.sequence),
            false => known.retired.contains(&origin.boot),
        })
    }

    /// Takes note of a command; false if it was applied before (or came from a replaced boot).
    pub fn admit(&mut self, origin: &Origin) -> bool {
        let is_settled = self.is_settled(origin);
        #[cfg(feature = "planted")]
        let is_settled = is_settled && !crate::planted::is(crate::planted::Bug::ForgetOrigins);
        if is_settled {
            return false;
        }
        let Some(known) = self.members.get_mut(&origin.member) else {
            let mut known = MemberOrigins { boot: origin.boot, ..MemberOrigins::default() };
            known.note(origin);
            self.members.insert(origin.member, known);
            return true;
        };
        if origin.boot != known.boot {
            known.retired.push_back(known.boot);
            if known.retired.len() > limits::RETIRED_BOOTS {
                known.retired.pop_front();
            }
            known.boot = origin.boot;
            known.floor = 0;
            known.applied = OrdSet::new();
        }
        known.note(origin);
        true
    }
}

impl MemberOrigins {
    fn note(&mut self, origin: &Origin) {
        // A floor above the command itself would settle what is just being applied for the first time.
        self.floor = self.floor.max(origin.settled_below.min(origin.sequence));
        while let Some(&lowest) = self.applied.get_min() {
            if lowest >= self.floor {
                break;
            }
            self.applied.remove(&lowest);
        }
        self.applied.insert(origin.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(boot: u64, sequence: u64, settled_below: u64) -> Origin {
        Origin { member: 1, boot, sequence, settled_below }
    }

    #[test]
    fn a_command_applies_once_in_any_order() {
        let mut origins = Origins::default();
        assert!(origins.admit(&origin(7, 3, 0)));
        assert!(origins.admit(&origin(7, 1, 0)));
        assert!(!origins.admit(&origin(7, 3, 0)));
        assert!(!origins.admit(&origin(7, 1, 0)));
        assert!(origins.admit(&origin(7, 2, 0)));
    }

    #[test]
    fn what_is_settled_is_forgotten_and_stays_refused() {
        let mut origins = Origins::default();
        for sequence in 0..10 {
            assert!(origins.admit(&origin(7, sequence, 0)));
        }
        assert!(origins.admit(&origin(7, 10, 10)));
        assert_eq!(origins.members[&1].applied.len(), 1);
        assert!(!origins.admit(&origin(7, 4, 0)));
    }

    #[test]
    fn a_replaced_boot_is_never_heard_again() {
        let mut origins = Origins::default();
        assert!(origins.admit(&origin(7, 1, 0)));
        assert!(origins.admit(&origin(8, 1, 0)));
        assert!(!origins.admit(&origin(7, 1, 0)));
        assert!(!origins.admit(&origin(7, 2, 0)));
        assert!(!origins.admit(&origin(8, 1, 0)));
        assert!(origins.admit(&origin(8, 2, 0)));
    }

    #[test]
    fn members_do_not_disturb_each_other() {
        let mut origins = Origins::default();
        assert!(origins.admit(&origin(7, 1, 0)));
        assert!(origins.admit(&Origin { member: 2, boot: 9, sequence: 1, settled_below: 0 }));
        assert!(!origins.admit(&origin(7, 1, 0)));
    }
}
