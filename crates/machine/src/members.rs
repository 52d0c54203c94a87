//! The members as the state lists them: names, addresses, and who only learns.
//!
//! Who votes is raft's business. What is kept here is changed by the very log entry that changes
//! that, so that every member lists every other one alike, and knows where to find it.

use std::sync::Arc;

use imbl::OrdMap;

use crate::{Machine, Member, MemberChange, MemberId, Refusal, View};

type Members = OrdMap<MemberId, Arc<Member>>;

impl Machine {
    /// Where a new cluster starts: an empty state that knows its first members.
    pub fn of_new_cluster(index: u64, term: u64, members: impl IntoIterator<Item = Member>) -> Machine {
        let mut state = View::new();
        state.members = members.into_iter().map(|member| (member.id, Arc::new(member))).collect();
        (state.applied_index, state.applied_term) = (index, term);
        Machine::restored(state)
    }

    /// Follows a change of raft's configuration at the index applied last: whoever is no member any more (None) is
    /// forgotten, with what it had forwarded; of all others it is noted whether they only learn.
    pub fn settle_members(&mut self, is_learner: impl Fn(MemberId) -> Option<bool>) {
        let View { members, origins, .. } = self.state_mut();
        let settled = members.iter().filter_map(|(id, member)| {
            let learner = is_learner(*id)?;
            let is_known = member.learner == learner;
            Some((*id, if is_known { member.clone() } else { Arc::new(Member { learner, ..Member::clone(member) }) }))
        });
        *members = settled.collect();
        let gone: Vec<MemberId> = origins.members.keys().filter(|id| is_learner(**id).is_none()).copied().collect();
        for member in gone {
            origins.members.remove(&member);
        }
    }
}

impl View {
    /// Whether the state would take a change.
    pub fn check_members(&self, change: &MemberChange) -> Result<(), Refusal> {
        change_members(&mut self.members.clone(), change)
    }

    pub(crate) fn change_members(&mut self, change: &MemberChange) -> Result<(), Refusal> {
        let mut changed = self.members.clone();
        change_members(&mut changed, change)?;
        self.members = changed;
        Ok(())
    }

    /// Whether a member only learns is not for itself to say.
    pub(crate) fn publish(&mut self, member: &Member) {
        let learner = self.members.get(&member.id).map_or(member.learner, |known| known.learner);
        self.members.insert(member.id, Arc::new(Member { learner, ..member.clone() }));
    }
}

/// A member that is removed or promoted stays as it is until raft's configuration is without it, or has it as a
/// voter: until then others have to find it.
fn change_members(members: &mut Members, change: &MemberChange) -> Result<(), Refusal> {
    match change {
        MemberChange::Add { member } if members.contains_key(&member.id) => return Err(Refusal::MemberExists),
        MemberChange::Add { member } => {
            check_peer_urls(members, member)?;
            members.insert(member.id, Arc::new(member.clone()));
        }
        MemberChange::Update { member } => {
            check_peer_urls(members, member)?;
            let learner = members.get(&member.id).map_or(member.learner, |known| known.learner);
            members.insert(member.id, Arc::new(Member { learner, ..member.clone() }));
        }
        MemberChange::Promote { id } => {
            if members.get(id).is_some_and(|member| !member.learner) {
                return Err(Refusal::NotALearner);
            }
        }
        MemberChange::Remove { .. } => {}
        MemberChange::Together(changes) => {
            for change in changes {
                change_members(members, change)?;
            }
        }
    }
    Ok(())
}

fn check_peer_urls(members: &Members, member: &Member) -> Result<(), Refusal> {
    let others = members.values().filter(|other| other.id != member.id);
    match others.flat_map(|other| &other.peer_urls).any(|url| member.peer_urls.contains(url)) {
        true => Err(Refusal::PeerUrlExists),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Envelope, Origin, Reply};

    fn member(id: MemberId, learner: bool) -> Member {
        let peer_urls = vec![format!("http://{id}:2380")];
        Member { id, name: format!("member {id}"), peer_urls, client_urls: Vec::new(), learner }
    }

    fn apply(machine: &mut Machine, change: MemberChange) -> Result<Reply, Refusal> {
        let index = machine.applied_index() + 1;
        let command = Command::ChangeMembers(change);
        machine.apply(index, 1, &Envelope { wall_ms: 0, origin: None, command }).reply
    }

    #[test]
    fn members_come_and_go_with_the_configuration() {
        let mut machine = Machine::of_new_cluster(1, 1, [member(1, false), member(2, false)]);
        assert_eq!(apply(&mut machine, MemberChange::Add { member: member(3, true) }), Ok(Reply::MembersChanged));
        machine.settle_members(|id| Some(id == 3));
        assert_eq!(machine.state().members(), [member(1, false), member(2, false), member(3, true)]);
        assert!(apply(&mut machine, MemberChange::Promote { id: 3 }).is_ok());
        machine.settle_members(|_| Some(false));
        assert!(apply(&mut machine, MemberChange::Remove { id: 1, force: false }).is_ok());
        assert_eq!(machine.state().members().len(), 3, "others must find it until it is out");
        machine.settle_members(|id| (id != 1).then_some(false));
        assert_eq!(machine.state().members(), [member(2, false), member(3, false)]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let mut machine = Machine::of_new_cluster(1, 1, [member(1, false), member(2, true)]);
        let same_url = Member { id: 3, ..member(1, false) };
        let refused = [
            (MemberChange::Add { member: member(2, false) }, Refusal::MemberExists),
            (MemberChange::Add { member: same_url.clone() }, Refusal::PeerUrlExists),
            (MemberChange::Update { member: Member { id: 2, ..same_url } }, Refusal::PeerUrlExists),
            (MemberChange::Promote { id: 1 }, Refusal::NotALearner),
            (
                MemberChange::Together(vec![
                    MemberChange::Add { member: member(4, false) },
                    MemberChange::Add { member: member(4, false) },
                ]),
                Refusal::MemberExists,
            ),
        ];
        for (change, refusal) in refused {
            assert_eq!(apply(&mut machine, change), Err(refusal));
        }
        assert_eq!(machine.state().members(), [member(1, false), member(2, true)]);
    }

    #[test]
    fn a_member_cannot_publish_that_it_votes() {
        let mut machine = Machine::of_new_cluster(1, 1, [member(2, true)]);
        let command = Command::Publish(Member { name: "other".to_owned(), ..member(2, false) });
        machine.apply(2, 1, &Envelope { wall_ms: 0, origin: None, command });
        assert_eq!(machine.state().members(), [Member { name: "other".to_owned(), ..member(2, true) }]);
    }

    #[test]
    fn what_a_removed_member_had_forwarded_is_forgotten() {
        let mut machine = Machine::of_new_cluster(1, 1, [member(1, false), member(2, false)]);
        let origin = Origin { member: 2, boot: 7, sequence: 1, settled_below: 1 };
        let command = Command::Compact { revision: 1 };
        machine.apply(2, 1, &Envelope { wall_ms: 0, origin: Some(origin), command });
        assert!(machine.state().is_settled(&origin));
        machine.settle_members(|id| (id == 1).then_some(false));
        assert!(!machine.state().is_settled(&origin));
    }
}
