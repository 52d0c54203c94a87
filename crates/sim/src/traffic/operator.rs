//! Somebody who adds, promotes and removes members, replaces those that are lost, and hands leadership about.

use tenure_machine::{Alarm, AlarmChange, AlarmKind, Command, Level, Member, MemberChange, MemberId};
use tenure_replica::CallId;

use super::{Doing, Known, Mood, Traffic};
use crate::plan::{Changes, Plan};
use crate::recovery::described;
use crate::request::Request;

/// Members that a cluster grows to.
const MOST: usize = 6;

#[derive(Default)]
pub(super) struct Operator {
    next_us: u64,
    tend_us: u64,
    /// One change at a time.
    open: Option<CallId>,
}

impl Operator {
    pub(super) fn issued(&mut self, id: CallId, request: &Request) {
        if matches!(request, Request::ChangeMembers(_)) {
            self.open = Some(id);
        }
    }

    pub(super) fn answered(&mut self, id: CallId) {
        self.open.take_if(|open| *open == id);
    }

    pub(super) fn died(&mut self, lost: &[CallId]) {
        self.open.take_if(|open| lost.contains(open));
    }
}

impl Traffic {
    pub(super) fn operate(&mut self, plan: &Plan, known: &Known) -> Vec<Doing> {
        if known.now_us < self.operator.next_us || self.mood == Mood::Silent {
            return Vec::new();
        }
        self.operator.next_us = known.now_us + self.random.spread(50_000, 1_500_000) * plan.slowness;
        let request = match plan.changes {
            Changes::Often if self.mood == Mood::Busy => self.change(known),
            Changes::ToReplace => self.replace(plan, known),
            Changes::Never if plan.members > 1 && self.mood == Mood::Busy && self.random.percent(20) => {
                Some(self.transfer(known))
            }
            _ => None,
        };
        request.map(Doing::Call).into_iter().collect()
    }

    /// Pins the level now and then, gives a member the leader's state, and clears the alarm of a full store, having made room.
    pub(super) fn tend(&mut self, plan: &Plan, known: &Known) -> Vec<Doing> {
        let Some(wide) = plan.wide else { return Vec::new() };
        let propose = |command: Command| Doing::Call(Request::Propose(command));
        let mut doing = Vec::new();
        if self.mood == Mood::Busy && known.now_us >= self.operator.tend_us {
            self.operator.tend_us = known.now_us + 500_000;
            match self.random.below(8) {
                0 => doing.push(propose(Command::PinLevel { level: Some(self.random.below(2) as Level) })),
                1 => doing.push(propose(Command::PinLevel { level: None })),
                2 => doing.push(Doing::Call(Request::Reseed)),
                _ => {}
            }
        }
        let is_due = self.mood == Mood::Finishing || self.random.percent(5);
        if known.has_alarm && is_due && self.mood != Mood::Silent {
            doing.push(propose(Command::Compact { revision: known.revision }));
            let alarm = Alarm { member: 0, kind: AlarmKind::NoSpace };
            doing.push(propose(Command::Alarm(AlarmChange::Clear(alarm))));
        }
        // With small limits leaders propose it themselves, one at a time.
        if self.mood == Mood::Busy && self.random.percent(1) && !plan.limits.are_small() {
            doing.push(propose(Command::Continue));
        }
        if wide.raises_alarms && self.mood == Mood::Busy && self.random.percent(1) {
            let alarm = Alarm { member: 1, kind: AlarmKind::NoSpace };
            doing.push(propose(Command::Alarm(AlarmChange::Raise(alarm))));
        }
        doing
    }

    /// Another name for a member.
    pub(super) fn update(&mut self, known: &Known) -> Request {
        let id = self.random.pick(&known.voters).copied().unwrap_or(1);
        let name = format!("again {}", self.draw());
        Request::ChangeMembers(MemberChange::Update { member: Member { name, ..described(id, false) } })
    }

    fn change(&mut self, known: &Known) -> Option<Request> {
        let some = *self.random.pick(&known.voters)?;
        let all = known.voters.len() + known.learners.len();
        let learner = self.random.pick(&known.learners).copied();
        let remove = |id: MemberId| MemberChange::Remove { id, force: false };
        let change = match self.random.below(10) {
            0..=2 if all < MOST => {
                let member = described(known.next_member, self.random.percent(70));
                MemberChange::Add { member }
            }
            3 | 4 => MemberChange::Promote { id: learner.unwrap_or(some) },
            5 if all > 2 => remove(some),
            6 if all > 3 => remove(learner.unwrap_or(some)),
            7 if all > 3 => {
                let promote = MemberChange::Promote { id: learner? };
                MemberChange::Together(vec![remove(some), promote])
            }
            _ => return Some(self.transfer(known)),
        };
        self.operator.open.is_none().then_some(Request::ChangeMembers(change))
    }

    /// Out with the one that is lost, in with a new one, and a vote for it.
    fn replace(&mut self, plan: &Plan, known: &Known) -> Option<Request> {
        if self.operator.open.is_some() {
            return None;
        }
        if let Some(lost) = known.lost.first() {
            return Some(Request::ChangeMembers(MemberChange::Remove { id: *lost, force: false }));
        }
        if let Some(learner) = known.learners.first() {
            return Some(Request::ChangeMembers(MemberChange::Promote { id: *learner }));
        }
        let is_short = (known.voters.len() as u64) < plan.members;
        let member = described(known.next_member, true);
        (is_short && self.mood == Mood::Busy).then_some(Request::ChangeMembers(MemberChange::Add { member }))
    }

    fn transfer(&mut self, known: &Known) -> Request {
        let to = self.random.pick(&known.voters).copied().filter(|_| self.random.percent(70));
        Request::TransferLeader(to)
    }
}
