//! A member makes itself known: its name and addresses become part of the replicated state, so that
//! every member lists every other one alike.

use std::time::Duration;

use tenure_machine::Command;
use tenure_replica::Consistency;

use crate::config::Config;
use crate::member::Member;

/// Between tries while there is no leader.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns once the state lists this member as it is configured now. Writes nothing if it did so before.
pub(crate) async fn publish(member: Member, config: &Config) {
    let status = member.status();
    let own = tenure_machine::Member {
        id: status.member,
        name: config.name.clone(),
        peer_urls: vec![config.peer_url()],
        client_urls: vec![config.client_url()],
        learner: false,
    };
    loop {
        let listed = match member.view(Consistency::Linearizable).await {
            Ok(view) => view.value.members().contains(&own),
            Err(_) => false,
        };
        if listed || member.submit(Command::Publish(own.clone())).await.is_ok() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
