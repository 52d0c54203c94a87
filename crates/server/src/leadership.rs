//! Who leads, for those who read the log: every change once, and that nobody does when it lasts.

use std::convert::Infallible;
use std::time::Duration;

use tenure_machine::MemberId;
use tenure_replica::Status;
use tokio::time::Instant;

use crate::config::Config;
use crate::member::Member;
use crate::peer::outbox::Outbox;

/// How often it is looked at: what has come and gone in between is no news.
const INTERVAL: Duration = Duration::from_millis(100);

/// Writes changes of leadership into the log for as long as it is polled.
pub(crate) async fn tell(member: &Member, outbox: &Outbox, config: &Config) -> Infallible {
    // An election that goes well is over by then.
    let patience = config.election_max * 2;
    let mut told = Told::Nothing;
    let mut leaderless_since = Instant::now();
    loop {
        let status = member.status();
        if status.leader != 0 {
            leaderless_since = Instant::now();
        }
        if let Some(news) = told.hear(&status, leaderless_since.elapsed() >= patience) {
            write(news, &status, outbox);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn write(news: News, status: &Status, outbox: &Outbox) {
    let term = status.term;
    match news {
        News::Leads => tracing::info!(term, "this member leads"),
        News::Follows(leader) => {
            let members = outbox.members();
            let name = members.iter().find(|member| member.id == leader).map_or("", |member| member.name.as_str());
            let role = if status.learner { "learner" } else { "voter" };
            tracing::info!(term, leader = name, leader_id = format!("{leader:x}"), role, "another member leads");
        }
        News::Nobody => {
            tracing::warn!(term, "no leader: too few members are up or in touch with each other; calls wait, and fail")
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    Leads,
    Follows(MemberId),
    Nobody,
}

/// What the log said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Leader { id: MemberId, term: u64 },
    Nobody,
}

impl Told {
    fn hear(&mut self, status: &Status, is_leaderless_for_long: bool) -> Option<News> {
        let now = match status.leader {
            0 if is_leaderless_for_long => Told::Nobody,
            0 => return None,
            id => Told::Leader { id, term: status.term },
        };
        if *self == now {
            return None;
        }
        *self = now;
        Some(match status.leader {
            0 => News::Nobody,
            id if id == status.member => News::Leads,
            id => News::Follows(id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(leader: MemberId, term: u64) -> Status {
        Status { member: 1, leader, term, ..Status::default() }
    }

    #[test]
    fn every_leader_is_told_of_once() {
        let mut told = Told::Nothing;
        assert_eq!(told.hear(&status(2, 5), false), Some(News::Follows(2)));
        assert_eq!(told.hear(&status(2, 5), false), None);
        assert_eq!(told.hear(&status(1, 6), false), Some(News::Leads));
        assert_eq!(told.hear(&status(1, 8), false), Some(News::Leads), "it was elected again");
    }

    #[test]
    fn an_election_is_no_news_but_the_lack_of_a_leader_is() {
        let mut told = Told::Leader { id: 2, term: 5 };
        assert_eq!(told.hear(&status(0, 5), false), None);
        assert_eq!(told.hear(&status(0, 5), true), Some(News::Nobody));
        assert_eq!(told.hear(&status(0, 6), true), None);
        assert_eq!(told.hear(&status(2, 5), false), Some(News::Follows(2)));
        assert_eq!(told.hear(&status(2, 5), false), None);
    }
}
