//! Messages between members, and whether two members take each other for who they are.

use bytes::Bytes;
use tenure_machine::MemberId;
use tenure_replica::Input;
use tenure_storage::Meeting;

use super::{Event, World};
use crate::planted::Planted;

impl World {
    pub(super) fn send(&mut self, from: MemberId, to: MemberId, message: Bytes) {
        let Some(directory_id) = self.life(from).map(|life| life.directory_id) else { return };
        self.report.messages += 1;
        let meant_for = self.life(from).and_then(|life| life.peers.directory_of(to));
        for at_us in self.network.arrivals_us(from, to, self.now_us) {
            self.events.at(at_us, Event::Packet { from, to, directory_id, meant_for, message: message.clone() });
        }
    }

    pub(super) fn arrive(&mut self, from: MemberId, to: MemberId, directory_id: u128, message: Bytes) {
        if !self.network.is_cut(from, to) && self.is_greeted(from, to) && self.is_welcome(from, to, directory_id) {
            self.give(to, Input::Message { from, message });
        }
    }

    /// The first message between two processes begins with a greeting, as on a new connection. A caller that was removed
    /// up to what the other one has applied is refused, and told so. In wide seeds only.
    fn is_greeted(&mut self, from: MemberId, to: MemberId) -> bool {
        let (Some(caller), Some(called)) = (self.life(from), self.life(to)) else { return true };
        let ends = [(from, caller.number), (to, called.number)];
        if self.plan.wide.is_none() || called.members.is_empty() || self.greeted.contains(&ends) {
            return true;
        }
        let applied = caller.replica.machine().applied_index();
        let is_known = called.members.contains(&from);
        if !is_known && applied > 0 && applied <= called.replica.machine().applied_index() {
            if !self.network.is_cut(to, from) {
                self.give(from, Input::RefusedAsRemoved { by: to });
            }
            return false;
        }
        // One that is not known yet is greeted again.
        if is_known {
            self.greeted.insert(ends);
        }
        true
    }

    /// Who calls somebody compares directories, too: what was meant for a member before it lost its disk is not given
    /// to whoever is there under its name now.
    pub(super) fn is_meant(&self, to: MemberId, meant_for: Option<u128>) -> bool {
        let is_it = |known: u128| self.life(to).is_some_and(|life| life.directory_id == known);
        self.planted == Some(Planted::WelcomeStrangers) || meant_for.is_none_or(is_it)
    }

    /// Rule 6: everybody keeps the identity of everybody's directory, and knows a stranger by it. Whoever is
    /// refused for that stops.
    pub(super) fn is_welcome(&mut self, from: MemberId, to: MemberId, directory_id: u128) -> bool {
        let Some(life) = self.life(to) else { return false };
        if life.peers.directory_of(from) == Some(directory_id) {
            return true;
        }
        let meeting = life.peers.meet(from, directory_id);
        self.notice_power(to);
        match meeting {
            Ok(Meeting::First | Meeting::Again) => true,
            Ok(Meeting::Stranger { .. }) if self.planted == Some(Planted::WelcomeStrangers) => true,
            Ok(Meeting::Stranger { .. }) => {
                if self.life(from).is_some_and(|life| life.directory_id == directory_id) {
                    self.retire(from, "is a stranger");
                }
                false
            }
            Err(_) => false,
        }
    }
}
