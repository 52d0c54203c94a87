//! Alarms, for those who read the log: when each is raised, and when it is cleared.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use tenure_machine::{Alarm, AlarmKind};

use crate::member::Member;

const INTERVAL: Duration = Duration::from_millis(250);

/// The kinds of alarms as etcd names them.
pub(crate) const KINDS: [AlarmKind; 2] = [AlarmKind::NoSpace, AlarmKind::Corrupt];

pub(crate) fn name(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::NoSpace => "NOSPACE",
        AlarmKind::Corrupt => "CORRUPT",
    }
}

/// What an alarm means for clients, and how it ends.
pub(crate) fn meaning(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::NoSpace => {
            "the data has reached the quota: writes that need space are refused, reads, unlocks and renewals are not; \
             delete keys and compact, or raise --quota"
        }
        AlarmKind::Corrupt => {
            "the state of the member that it names differs from the others: that member serves nothing; `tenure member reseed` repairs it"
        }
    }
}

/// Writes raised and cleared alarms into the log for as long as it is polled.
pub(crate) async fn tell(member: &Member) -> Infallible {
    let mut told = Told::default();
    loop {
        for news in told.hear(&member.status().alarms) {
            write(news);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn write(news: News) {
    let (News::Raised(alarm) | News::Cleared(alarm)) = news;
    let (kind, raised_for) = (name(alarm.kind), format!("{:x}", alarm.member));
    match news {
        News::Raised(_) => tracing::warn!(alarm = kind, member = raised_for, "alarm raised: {}", meaning(alarm.kind)),
        News::Cleared(_) => tracing::info!(alarm = kind, member = raised_for, "alarm cleared"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    Raised(Alarm),
    Cleared(Alarm),
}

/// What the log said last.
#[derive(Debug, Default)]
struct Told(BTreeSet<Alarm>);

impl Told {
    fn hear(&mut self, raised: &[Alarm]) -> Vec<News> {
        if raised.len() == self.0.len() && raised.iter().all(|alarm| self.0.contains(alarm)) {
            return Vec::new();
        }
        let now: BTreeSet<Alarm> = raised.iter().copied().collect();
        let raised = now.difference(&self.0).copied().map(News::Raised);
        let cleared = self.0.difference(&now).copied().map(News::Cleared);
        let news = raised.chain(cleared).collect();
        self.0 = now;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alarm_is_told_of_when_it_is_raised_and_when_it_is_cleared() {
        let full = Alarm { member: 7, kind: AlarmKind::NoSpace };
        let corrupt = Alarm { member: 7, kind: AlarmKind::Corrupt };
        let mut told = Told::default();
        assert_eq!(told.hear(&[]), []);
        assert_eq!(told.hear(&[full]), [News::Raised(full)]);
        assert_eq!(told.hear(&[full]), []);
        assert_eq!(told.hear(&[corrupt]), [News::Raised(corrupt), News::Cleared(full)]);
        assert_eq!(told.hear(&[]), [News::Cleared(corrupt)]);
    }
}
