//! Requests of the lock service and on its sessions, from protobuf to a command.

use prost::Message;
use tenure_api::tenure::v1 as tenure;
use tenure_server::outside;

use crate::command;

/// The first byte chooses the kind of request; what follows is read as a session's, too, whose locks and unlocks are
/// not left to prost.
pub fn run(bytes: &[u8]) {
    let Some((kind, request)) = bytes.split_first() else { return };
    let [read, expected] = outside::session_request(request);
    assert_eq!(read, expected, "not what prost reads");
    if let Some(command) = outside::lock_request(*kind, request) {
        command::apply(command);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let lock = tenure::LockRequest {
        name: "job".to_owned(),
        more_names: vec!["other".to_owned()],
        lease_id: 7,
        timeout_ms: Some(100),
        owner: "deployer".to_owned(),
        ..Default::default()
    };
    let semaphore = tenure::LockRequest { mode: tenure::Mode::Semaphore.into(), slots: 3, ..lock.clone() };
    let unlock = tenure::UnlockRequest { name: "job".to_owned(), fencing_token: 2, ..Default::default() };
    let campaign = tenure::CampaignRequest { name: "election".to_owned(), lease_id: 7, ..Default::default() };
    let barrier = tenure::BarrierRequest { name: "gate".to_owned(), lease_id: 7, parties: 2, ..Default::default() };
    let on_session = |request| tenure::SessionRequest { number: 300, request: Some(request) }.encode_to_vec();
    let candidacy = tenure::SessionLock {
        name: "election".to_owned(),
        more_names: vec!["other".to_owned()],
        holder_id: "me".to_owned(),
        value: Some("here".into()),
        timeout_ms: Some(0),
        ..Default::default()
    };
    let release = tenure::SessionUnlock { name: "job".to_owned(), fencing_token: 1 << 40, ..Default::default() };
    [
        (0, on_session(tenure::session_request::Request::Lock(candidacy))),
        (0, on_session(tenure::session_request::Request::Unlock(release))),
        (0, lock.encode_to_vec()),
        (0, semaphore.encode_to_vec()),
        (1, unlock.encode_to_vec()),
        (2, campaign.encode_to_vec()),
        (3, barrier.encode_to_vec()),
    ]
    .into_iter()
    .map(|(kind, request)| [vec![kind], request].concat())
    .collect()
}
