//! Who belongs to the cluster, and what each member has forwarded.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Member, MemberChange, MemberId, Origin, Refusal};

use super::Model;

/// Who votes and who learns, as the log says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    pub voters: BTreeSet<MemberId>,
    pub learners: BTreeSet<MemberId>,
    /// Those whose majority counts, too, until the log leaves a joint configuration.
    pub outgoing: BTreeSet<MemberId>,
}

/// What a member has forwarded since it started last.
#[derive(Default, Clone)]
pub(super) struct Forwarded {
    boot: u64,
    applied: BTreeSet<u64>,
    settled_below: u64,
    earlier_boots: BTreeSet<u64>,
}

impl Configuration {
    pub fn is_learner(&self, member: MemberId) -> Option<bool> {
        if self.voters.contains(&member) || self.outgoing.contains(&member) {
            return Some(false);
        }
        self.learners.contains(&member).then_some(true)
    }

    fn add(&mut self, member: MemberId, learner: bool) {
        self.remove(member);
        if learner {
            self.learners.insert(member)
        } else {
            self.voters.insert(member)
        };
    }

    fn remove(&mut self, member: MemberId) {
        self.voters.remove(&member);
        self.learners.remove(&member);
    }
}

impl Model {
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    pub fn members(&self) -> Vec<Member> {
        self.members.values().cloned().collect()
    }

    pub fn found(&mut self, founders: impl Iterator<Item = Member>) {
        self.members = founders.map(|member| (member.id, member)).collect();
        self.configuration.voters = self.members.keys().copied().collect();
    }

    /// Whether a forwarded command has had its effect, or never will.
    pub(super) fn is_settled(&mut self, origin: &Origin) -> bool {
        let known = self
            .forwarded
            .entry(origin.member)
            .or_insert_with(|| Forwarded { boot: origin.boot, ..Forwarded::default() });
        if known.earlier_boots.contains(&origin.boot) {
            return true;
        }
        if known.boot != origin.boot {
            let mut earlier_boots = std::mem::take(&mut known.earlier_boots);
            earlier_boots.insert(known.boot);
            *known = Forwarded { boot: origin.boot, earlier_boots, ..Forwarded::default() };
        }
        if origin.sequence < known.settled_below || !known.applied.insert(origin.sequence) {
            return true;
        }
        known.settled_below = known.settled_below.max(origin.settled_below.min(origin.sequence));
        false
    }

    pub(super) fn change_members(&mut self, change: &MemberChange) -> Result<(), Refusal> {
        let mut members = self.members.clone();
        for single in each(change) {
            check(&mut members, single)?;
        }
        self.members = members;
        let changes = each(change).iter().filter(|change| !matches!(change, MemberChange::Update { .. }));
        let before = self.configuration.voters.clone();
        let mut count = 0;
        for single in changes {
            count += 1;
            match single {
                MemberChange::Add { member } => self.configuration.add(member.id, member.learner),
                MemberChange::Promote { id } => self.configuration.add(*id, false),
                MemberChange::Remove { id, .. } => self.configuration.remove(*id),
                MemberChange::Update { .. } | MemberChange::Together(_) => {}
            }
        }
        if count > 1 {
            self.configuration.outgoing = before;
        }
        if count > 0 {
            self.settle_members();
        }
        Ok(())
    }

    /// The log leaves a joint configuration.
    pub fn leave_joint(&mut self, index: u64) {
        self.applied = index;
        self.configuration.outgoing.clear();
        self.settle_members();
    }

    /// Whoever is out is forgotten, with what it had forwarded.
    fn settle_members(&mut self) {
        let configuration = &self.configuration;
        self.members.retain(|id, _| configuration.is_learner(*id).is_some());
        for (id, member) in &mut self.members {
            member.learner = configuration.is_learner(*id) == Some(true);
        }
        self.forwarded.retain(|id, _| configuration.is_learner(*id).is_some());
    }

    pub(super) fn describe(&mut self, member: &Member) {
        let learner = self.members.get(&member.id).map_or(member.learner, |known| known.learner);
        self.members.insert(member.id, Member { learner, ..member.clone() });
    }
}

fn check(members: &mut BTreeMap<MemberId, Member>, change: &MemberChange) -> Result<(), Refusal> {
    match change {
        MemberChange::Add { member } => {
            if members.contains_key(&member.id) {
                return Err(Refusal::MemberExists);
            }
            members.insert(member.id, member.clone());
        }
        MemberChange::Promote { id } if members.get(id).is_some_and(|member| !member.learner) => {
            return Err(Refusal::NotALearner);
        }
        MemberChange::Update { member } => {
            let learner = members.get(&member.id).map_or(member.learner, |known| known.learner);
            members.insert(member.id, Member { learner, ..member.clone() });
        }
        MemberChange::Promote { .. } | MemberChange::Remove { .. } | MemberChange::Together(_) => {}
    }
    Ok(())
}

pub fn each(change: &MemberChange) -> &[MemberChange] {
    match change {
        MemberChange::Together(changes) => changes,
        one => std::slice::from_ref(one),
    }
}
