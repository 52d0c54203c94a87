//! Who belongs to the cluster: changes of it, one at a time, and who is told of them.
//!
//! A change travels through the log like a command, with its origin, and in the same entry as the
//! change of raft's configuration: both take effect at one index, on every member. What changes more
//! than one member goes by way of a joint configuration; raft itself leaves that by another entry.
//!
//! The leader checks a change before it proposes it: against the members as they are, and against
//! what is left to go on with. A leader is not removed while it leads: it gives its place to another
//! first, who removes it then.

use std::collections::BTreeSet;

use prost011::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType};
use raft::{Changer, ProgressState};
use tenure_machine::{Command, Envelope, Member, MemberChange, MemberId, Refusal, Reply, codec};

use crate::message;
use crate::propose::{NotAppended, Waits};
use crate::roll_call::Attendance;
use crate::status::Roles;
use crate::{Answered, CallId, Failure, Output, Replica};

/// How a silent member finds out that it was removed, in election timeouts.
const SILENCE: u64 = 4;
/// How long one that was removed stays at the most, in election timeouts.
const GRACE: u64 = 20;

/// What this member knows of the cluster's membership beyond raft's configuration.
#[derive(Default)]
pub(crate) struct Membership {
    /// What the driver was told last.
    told: Option<Vec<Member>>,
    /// Changes that are applied, but for the leaving of a joint configuration.
    entered: Vec<(CallId, u64)>,
    /// Set when this member is no member any more.
    removal: Option<Removal>,
    /// When this member last asked whether it still is one.
    asked_ms: u64,
}

struct Removal {
    since_ms: u64,
    /// Members who know of it. Until most of them do, those who do not may need this member's vote.
    known_to: BTreeSet<MemberId>,
    is_told: bool,
}

impl Membership {
    pub(crate) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    pub(crate) fn take_older_than(&mut self, since_ms: u64) -> Vec<CallId> {
        let late = self.entered.extract_if(.., |(_, entered_ms)| *entered_ms < since_ms);
        late.map(|(call, _)| call).collect()
    }

    pub(crate) fn take_calls(&mut self, is_taken: impl Fn(CallId) -> bool) -> Vec<CallId> {
        self.entered.extract_if(.., |(call, _)| is_taken(*call)).map(|(call, _)| call).collect()
    }
}

impl Replica {
    pub(crate) fn is_member(&self, member: MemberId) -> bool {
        is_learner(self.node.store().configuration(), member).is_some()
    }

    /// Everybody, with what the state knows of them: of one that has not made itself known, no more than the id.
    pub(crate) fn members(&self) -> Vec<Member> {
        let configuration = self.node.store().configuration();
        if configuration.voters.is_empty() {
            // It is to join, and knows only whom it was told to expect.
            return self.machine.state().members();
        }
        let ConfState { voters, learners, voters_outgoing, learners_next, .. } = configuration;
        let mut ids: Vec<MemberId> =
            [voters, learners, voters_outgoing, learners_next].into_iter().flatten().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let known = self.machine.state().members();
        let member = |id: MemberId| {
            let learner = is_learner(configuration, id).unwrap_or_default();
            let found = known.iter().find(|member| member.id == id).cloned();
            Member { id, learner, ..found.unwrap_or_else(unknown_member) }
        };
        ids.into_iter().map(member).collect()
    }

    pub(crate) fn tell_members(&mut self) {
        let members = self.members();
        if self.membership.told.as_ref() != Some(&members) {
            self.membership.told = Some(members.clone());
            self.outputs.push(Output::Members(members));
        }
    }

    /// Into this leader's log, if the change can be made now. The entry changes raft's configuration and carries
    /// the command along.
    pub(crate) fn append_change(&mut self, envelope: &Envelope, change: &MemberChange) -> Result<(), NotAppended> {
        if !self.leading {
            return Err(NotAppended::NotNow);
        }
        let needed = self.check_change(change).map_err(NotAppended::Refused)?;
        let changes = raft_changes(change);
        let own = self.config.member;
        let leaves = changes.iter().any(|single| is_removal_of(single, own));
        let remaining = |member: MemberId| !changes.iter().any(|single| is_removal_of(single, member));
        let attendance = self.call_roll(|present, _| {
            let has_successor = || needed.voters.iter().any(|voter| *voter != own && present.contains(voter));
            needed.is_met_by(present) && (!leaves || has_successor())
        });
        let present = match attendance {
            Attendance::Enough(present) => present,
            Attendance::Unknown => return Err(NotAppended::NotNow),
            Attendance::TooFew => return Err(NotAppended::Refused(Failure::NotEnoughMembers)),
        };
        if leaves {
            // Whoever leads then will be asked again.
            let successor = self.best_successor(|member| remaining(member) && present.contains(&member));
            return match self.begin_transfer(successor) {
                true => Err(NotAppended::NotNow),
                false => Err(NotAppended::Refused(Failure::NotEnoughMembers)),
            };
        }
        let mut context = Vec::new();
        codec::encode(envelope, &mut context);
        let change = ConfChangeV2 { changes, ..ConfChangeV2::default() };
        match self.node.propose_conf_change(context, change) {
            Ok(()) => Ok(()),
            Err(_) => Err(NotAppended::Refused(Failure::Overloaded)),
        }
    }

    /// Whether the change fits the members as they are; gives who must be there to make it.
    fn check_change(&self, change: &MemberChange) -> Result<NeededVoters, Failure> {
        let raft = &self.node.raft;
        let configuration = self.node.store().configuration();
        if raft.has_pending_conf() || !configuration.voters_outgoing.is_empty() {
            return Err(Failure::ChangeUnderWay);
        }
        let mut is_forced = false;
        for single in each(change) {
            match single {
                MemberChange::Add { member } => {
                    let taken = member.id == raft::INVALID_ID || self.is_member(member.id);
                    refuse_if(taken, Refusal::MemberExists)?
                }
                MemberChange::Promote { id } => {
                    refuse_if(!self.is_member(*id), Refusal::MemberNotFound)?;
                    refuse_if(!configuration.learners.contains(id), Refusal::NotALearner)?;
                    if !self.is_in_sync(*id) {
                        return Err(Failure::LearnerNotReady);
                    }
                }
                MemberChange::Remove { id, force } => {
                    is_forced |= *force;
                    refuse_if(!self.is_member(*id), Refusal::MemberNotFound)?
                }
                MemberChange::Update { member } => refuse_if(!self.is_member(member.id), Refusal::MemberNotFound)?,
                MemberChange::Together(_) => {}
            }
        }
        self.machine.state().check_members(change)?;
        let next = next_configuration(raft.prs(), &raft_changes(change)).ok_or(Failure::NotEnoughMembers)?;
        // As in etcd, a voter may be added to a member alone. It is not there yet, and cannot be, so from here on
        // nothing is committed until it has joined: not even its removal. Who adds a learner and promotes it has no
        // such gap.
        let is_first = configuration.voters.len() == 1 && next.voters.len() == 2;
        Ok(NeededVoters { voters: next.voters, is_majority_needed: !is_forced && !is_first })
    }

    /// As etcd has it: nine tenths of the log, and it is there to be sent the rest.
    fn is_in_sync(&self, learner: MemberId) -> bool {
        let raft = &self.node.raft;
        let progress = raft.prs().get(learner).filter(|progress| progress.state != ProgressState::Snapshot);
        self.is_active(learner)
            && progress.is_some_and(|progress| progress.matched * 10 >= raft.raft_log.last_index() * 9)
    }

    /// A committed entry that changes raft's configuration, and what the state knows of members with it.
    pub(crate) fn apply_change(&mut self, entry: Entry, proposed: Option<Waits>) {
        let (index, term) = (entry.index, entry.term);
        if entry.context.is_empty() {
            // Raft's own: it leaves a joint configuration.
            self.machine.skip(index, term);
            return self.change_configuration(&entry);
        }
        let envelope = match codec::decode(entry.context.clone()) {
            Ok(envelope) => envelope,
            Err(error) => return self.give_up_over(format!("log entry {index} of term {term}: {error}")),
        };
        let applied = self.machine.apply(index, term, &envelope);
        let waits = match envelope.origin {
            Some(origin) => self.take_forward(&origin, &applied.reply),
            None => proposed,
        };
        if matches!(applied.reply, Ok(Reply::MembersChanged)) {
            self.change_configuration(&entry);
        }
        self.tell(applied, waits);
    }

    fn change_configuration(&mut self, entry: &Entry) {
        let changed = match entry.entry_type() {
            EntryType::EntryConfChange => {
                ConfChange::decode(&entry.data[..]).ok().and_then(|change| self.node.apply_conf_change(&change).ok())
            }
            // An empty change is the one that leaves a joint configuration; it is applied like any other.
            _ => {
                ConfChangeV2::decode(&entry.data[..]).ok().and_then(|change| self.node.apply_conf_change(&change).ok())
            }
        };
        match changed {
            Some(configuration) => {
                self.machine.settle_members(|member| is_learner(&configuration, member));
                self.node.mut_store().set_configuration(configuration);
                self.follow_configuration();
            }
            None => self.give_up_over(format!("log entry {}: bad configuration change", entry.index)),
        }
    }

    /// Raft has another configuration, by an entry or by a snapshot.
    pub(crate) fn follow_configuration(&mut self) {
        self.tell_members();
        let configuration = self.node.store().configuration().clone();
        self.roles = Roles::of(&configuration);
        self.heard_ms.retain(|member, _| is_learner(&configuration, *member).is_some());
        self.delivered.retain(|member, _| is_learner(&configuration, *member).is_some());
        if configuration.voters_outgoing.is_empty() {
            for (call, _) in std::mem::take(&mut self.membership.entered) {
                self.answer(call, Ok(Answered::Members(self.members())));
            }
        }
        let led = self.is_leader();
        if led && is_learner(&configuration, self.config.member) != Some(false) {
            // Proposed by a leader before it. Raft would go on leading, and fall over its own absence.
            if let Some(successor) = self.best_successor(|member| self.is_active(member)) {
                self.node.raft.send_timeout_now(successor);
            }
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.note_role();
        }
        self.note_removal();
    }

    /// Whoever has not been told anything yet was not removed, but is to join.
    pub(crate) fn note_removal(&mut self) {
        if !self.is_member(self.config.member) && self.machine.applied_index() > 0 {
            self.begin_removal();
        }
    }

    fn begin_removal(&mut self) -> &mut Removal {
        let since_ms = self.running_ms();
        let begin = || Removal { since_ms, known_to: BTreeSet::new(), is_told: false };
        self.membership.removal.get_or_insert_with(begin)
    }

    /// The call is answered when the change is made, in a joint configuration when that is left.
    pub(crate) fn tell_members_changed(&mut self, call: CallId) {
        match self.node.store().configuration().voters_outgoing.is_empty() {
            true => self.answer(call, Ok(Answered::Members(self.members()))),
            false => self.membership.entered.push((call, self.running_ms())),
        }
    }

    pub(crate) fn tell_removal(&mut self) {
        let others = self.other_voters();
        let last_ms = self.running_ms().saturating_sub(GRACE * self.config.election_max_ms);
        let Some(removal) = self.membership.removal.as_mut().filter(|removal| !removal.is_told) else { return };
        let knowing = others.iter().filter(|voter| removal.known_to.contains(voter)).count();
        if knowing > others.len() / 2 || others.is_empty() || removal.since_ms <= last_ms {
            removal.is_told = true;
            self.outputs.push(Output::Removed);
        }
    }

    /// As far as this member knows.
    fn other_voters(&self) -> BTreeSet<MemberId> {
        let ConfState { voters, voters_outgoing, .. } = self.node.store().configuration();
        voters.iter().chain(voters_outgoing).copied().filter(|voter| *voter != self.config.member).collect()
    }

    /// The news of its own removal may have missed a member. When it hears from nobody it asks; when it knows, it asks
    /// whether others know.
    pub(crate) fn ask_whether_removed(&mut self) {
        let now_ms = self.running_ms();
        let is_removed = self.membership.removal.is_some();
        let silence_ms = if is_removed { self.patience_ms() } else { SILENCE * self.config.election_max_ms };
        let was_heard = |heard_ms: u64| now_ms - heard_ms <= silence_ms;
        if was_heard(self.membership.asked_ms) || (!is_removed && (self.is_leader() || was_heard(self.heard_leader_ms)))
        {
            return;
        }
        self.membership.asked_ms = now_ms;
        if !is_removed && !self.is_member(self.config.member) {
            // Not yet one, so that nobody can know.
            return;
        }
        let message = message::presence(self.config.cluster, self.machine.applied_index());
        for member in self.members().into_iter().filter(|member| member.id != self.config.member) {
            self.outputs.push(Output::Send { to: member.id, message: message.clone() });
        }
    }

    /// Who is a member at an earlier index and is none at a later one was removed between them.
    pub(crate) fn take_presence(&mut self, from: MemberId, cluster: u64, applied: u64) {
        let own = self.machine.applied_index();
        if cluster == self.config.cluster && !self.is_member(from) && applied <= own {
            self.outputs.push(Output::Send { to: from, message: message::removed(cluster, own) });
        }
    }

    pub(crate) fn take_removed(&mut self, from: MemberId, cluster: u64, applied: u64) {
        let own = self.machine.applied_index();
        if cluster != self.config.cluster {
            return;
        }
        let is_news = self.is_member(self.config.member) && applied > own;
        if is_news || (self.membership.removal.is_some() && applied >= own) {
            self.begin_removal().known_to.insert(from);
        }
    }

    pub(crate) fn take_refusal_as_removed(&mut self, by: MemberId) {
        self.begin_removal().known_to.insert(by);
    }
}

/// The voters that there would be after a change.
struct NeededVoters {
    voters: Vec<MemberId>,
    /// False = an operator insists, or they cannot be there yet.
    is_majority_needed: bool,
}

impl NeededVoters {
    /// Those who would be left and are there must be able to go on.
    fn is_met_by(&self, present: &BTreeSet<MemberId>) -> bool {
        let count = self.voters.iter().filter(|voter| present.contains(voter)).count();
        !self.is_majority_needed || count > self.voters.len() / 2
    }
}

fn unknown_member() -> Member {
    Member { id: 0, name: String::new(), peer_urls: Vec::new(), client_urls: Vec::new(), learner: false }
}

fn refuse_if(is_so: bool, refusal: Refusal) -> Result<(), Failure> {
    if is_so { Err(Failure::Refused(refusal)) } else { Ok(()) }
}

/// Of a member; None = it is none.
fn is_learner(configuration: &ConfState, member: MemberId) -> Option<bool> {
    let ConfState { voters, learners, voters_outgoing, learners_next, .. } = configuration;
    if voters.contains(&member) || voters_outgoing.contains(&member) {
        return Some(false);
    }
    (learners.contains(&member) || learners_next.contains(&member)).then_some(true)
}

/// The members whose description a command changes.
pub(crate) fn described(command: &Command) -> Vec<MemberId> {
    match command {
        Command::Publish(member) => vec![member.id],
        Command::ChangeMembers(change) => {
            let updated = each(change).iter().filter_map(|change| match change {
                MemberChange::Update { member } => Some(member.id),
                _ => None,
            });
            updated.collect()
        }
        _ => Vec::new(),
    }
}

/// Whether raft has to know of it.
pub(crate) fn changes_configuration(change: &MemberChange) -> bool {
    !raft_changes(change).is_empty()
}

pub(crate) fn each(change: &MemberChange) -> &[MemberChange] {
    match change {
        MemberChange::Together(changes) => changes,
        one => std::slice::from_ref(one),
    }
}

fn raft_changes(change: &MemberChange) -> Vec<ConfChangeSingle> {
    let single = |kind: ConfChangeType, node_id: MemberId| ConfChangeSingle { change_type: kind as i32, node_id };
    let changes = each(change).iter().filter_map(|change| match change {
        MemberChange::Add { member } if member.learner => Some(single(ConfChangeType::AddLearnerNode, member.id)),
        MemberChange::Add { member } => Some(single(ConfChangeType::AddNode, member.id)),
        MemberChange::Promote { id } => Some(single(ConfChangeType::AddNode, *id)),
        MemberChange::Remove { id, .. } => Some(single(ConfChangeType::RemoveNode, *id)),
        MemberChange::Update { .. } | MemberChange::Together(_) => None,
    });
    changes.collect()
}

fn is_removal_of(change: &ConfChangeSingle, member: MemberId) -> bool {
    change.node_id == member && change.change_type() == ConfChangeType::RemoveNode
}

/// What the changes lead to, in the end; None = nobody would vote.
fn next_configuration(progress: &raft::ProgressTracker, changes: &[ConfChangeSingle]) -> Option<ConfState> {
    let next = match changes.len() {
        0 => return Some(progress.conf().to_conf_state()),
        1 => Changer::new(progress).simple(changes),
        _ => Changer::new(progress).enter_joint(true, changes),
    };
    next.ok().map(|(configuration, _)| configuration.to_conf_state())
}
