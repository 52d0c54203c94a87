//! Requests of the lock service, from protobuf to a command.

use prost::Message;
use tenure_api::tenure::v1 as tenure;
use tenure_server::outside;

use crate::command;

/// The first byte chooses the kind of request.
pub fn run(bytes: &[u8]) {
    let Some((kind, request)) = bytes.split_first() else { return };
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
    [
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
