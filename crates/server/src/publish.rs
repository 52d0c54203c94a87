//! A member makes itself known: its name and addresses become part of the replicated state, so that
//! every member lists every other one alike.

use std::time::Duration;

use tenure_machine::{self as machine, Command};
use tenure_replica::{Consistency, Status};

use crate::config::Config;
use crate::member::Member;

/// Between tries while there is no leader.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns once the state lists this member as it is configured now. Writes nothing if it did so before.
pub(crate) async fn publish(member: Member, config: &Config) {
    loop {
        if let Ok(view) = member.view(Consistency::Linearizable).await {
            match update(&view.value.members(), &member.status(), config) {
                None => return,
                // Looked at again: it may have become a voter meanwhile.
                Some(own) => drop(member.submit(Command::Publish(own)).await),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What the list should say of this member, if it says something else.
fn update(members: &[machine::Member], status: &Status, config: &Config) -> Option<machine::Member> {
    let listed = members.iter().find(|known| known.id == status.member);
    if listed.is_none() && !members.is_empty() {
        // Removed, or not yet added: that is not for this member to change.
        return None;
    }
    let has_own_name = config.name != Config::default().name;
    let known_name = listed.map(|known| known.name.clone()).filter(|name| !has_own_name && !name.is_empty());
    let own = machine::Member {
        id: status.member,
        name: known_name.unwrap_or_else(|| config.name.clone()),
        peer_urls: vec![config.peer_url()],
        client_urls: vec![config.client_url()],
        learner: status.learner,
    };
    (listed != Some(&own)).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status { member: 7, ..Status::default() }
    }

    #[test]
    fn the_list_is_brought_up_to_date_once() {
        let config = Config { name: "n1".to_owned(), ..Config::default() };
        let own = update(&[], &status(), &config).unwrap();
        assert_eq!((own.id, own.name.as_str(), own.learner), (7, "n1", false));
        assert_eq!(update(std::slice::from_ref(&own), &status(), &config), None);
        let promoted = machine::Member { learner: true, ..own.clone() };
        assert_eq!(update(&[promoted], &status(), &config), Some(own));
    }

    #[test]
    fn a_name_that_is_known_stays_unless_another_is_given() {
        let config = Config::default();
        let listed = machine::Member { name: "n1".to_owned(), ..update(&[], &status(), &config).unwrap() };
        assert_eq!(update(std::slice::from_ref(&listed), &status(), &config), None);
        let config = Config { name: "n2".to_owned(), ..config };
        assert_eq!(update(&[listed], &status(), &config).unwrap().name, "n2");
    }

    #[test]
    fn a_member_that_was_removed_does_not_list_itself_again() {
        let config = Config::default();
        let other = machine::Member { id: 8, ..update(&[], &status(), &config).unwrap() };
        assert_eq!(update(&[other], &status(), &config), None);
    }
}
