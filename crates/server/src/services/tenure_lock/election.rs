//! Elections: the queue of a name, whose holder leads and proclaims a value.
//!
//! Campaigning is taking a place like any other. What is here names the leader by its token, so that one
//! of the past can neither speak nor resign for its successor.

use tenure_api::tenure::v1::{
    Holder, LeaderRequest, LeaderResponse, Lease, ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse,
};
use tenure_machine::{Command, Refusal, Reply};
use tenure_replica::{Consistency, Failure};
use tonic::Status;

use super::{describe, failed, header, header_at, request};
use crate::services::kv::unexpected;
use crate::services::observe_election::Leading;
use crate::services::{Shared, answer, election, errors};

pub async fn proclaim(shared: &Shared, asked: ProclaimRequest) -> Result<ProclaimResponse, Status> {
    let ProclaimRequest { name, fencing_token, value } = asked;
    let (name, token) = (request::name(name)?, request::token(fencing_token)?);
    let at = shared.member.view(Consistency::Linearizable).await.map_err(failed)?;
    let leader = election::leader(&at.value, &name).filter(|(entry, _)| entry.token == token);
    let (entry, kv) = leader.ok_or(errors::DOES_NOT_LEAD)?;
    let (key, lease) = (answer::bytes(&kv.key), entry.lease);
    // A view must not be held while waiting: it keeps alive whatever is changed meanwhile.
    drop(at);
    let at = election::if_entry(shared, key.clone(), token, election::put(key, value, lease), failed).await?;
    match at.value.succeeded {
        true => Ok(ProclaimResponse { header: header(shared, &at) }),
        false => Err(errors::DOES_NOT_LEAD.into()),
    }
}

pub async fn leader(shared: &Shared, asked: LeaderRequest) -> Result<LeaderResponse, Status> {
    let name = request::name(asked.name)?;
    let at = shared.member.view(Consistency::Linearizable).await.map_err(failed)?;
    let (entry, kv) = election::leader(&at.value, &name).ok_or(errors::NOBODY_LEADS)?;
    let time = shared.member.lease_times(vec![entry.lease]).await.map_err(failed)?.value.pop().flatten();
    let leader = Some(describe::entry_in(&at.value, entry, time.as_ref()));
    Ok(LeaderResponse { header: header(shared, &at), leader, value: kv.value.to_vec().into() })
}

pub fn observed(shared: &Shared, leading: &Leading) -> LeaderResponse {
    let kv = &leading.kv;
    let mut known = Holder::default();
    if let Some((entry, client)) = &leading.entry {
        known = describe::entry(entry);
        if known.holder_id.is_empty() {
            known.holder_id = describe::text(client);
        }
    }
    let leader = Holder {
        key: describe::text(&kv.key),
        fencing_token: kv.create_revision,
        // What is left of its time only the cluster's leader knows.
        lease: Some(Lease { id: kv.lease, ..Lease::default() }),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        ..known
    };
    let header = header_at(shared, leading.revision, leading.term);
    LeaderResponse { header, leader: Some(leader), value: kv.value.clone() }
}

pub async fn resign(shared: &Shared, asked: ResignRequest) -> Result<ResignResponse, Status> {
    let unlock = request::unlock(asked.name, Vec::new(), asked.fencing_token, 0)?;
    match shared.member.submit(Command::Unlock(unlock)).await {
        Ok(at) => match at.value {
            Reply::Unlocked { released } => Ok(ResignResponse { header: header(shared, &at), released }),
            other => Err(unexpected(&other)),
        },
        // Another one leads by now: all is as this caller wants it.
        Err(Failure::Refused(Refusal::NotTheHolder)) => {
            let at = shared.member.view(Consistency::Linearizable).await.map_err(failed)?;
            Ok(ResignResponse { header: header(shared, &at), released: false })
        }
        Err(failure) => Err(failed(failure)),
    }
}
