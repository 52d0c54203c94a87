//! Places of locks are keys, and a plain delete ends them. A member with the setting `protect-places` refuses that.
//!
//! The setting is there against mistakes (`del --prefix` over locks), not against attackers. The request is compared
//! with the state as this member has it, before the command is proposed: a place that is taken at the same moment is
//! not seen. Places that a client has made by writing keys, as etcd's recipes do, are deleted by that client's own
//! deletes, so they are not protected.

use tenure_machine::{Delete, Op, Txn};
use tenure_replica::Consistency;
use tonic::Status;

use super::tenure_lock::describe;
use super::{Shared, errors};

/// Refuses deletes of which one would end a place.
pub async fn protect<'a>(shared: &Shared, deletes: impl IntoIterator<Item = &'a Delete>) -> Result<(), Status> {
    let mut deletes = deletes.into_iter().peekable();
    if deletes.peek().is_none() {
        return Ok(());
    }
    let view = shared.member.view(Consistency::Serializable).await.map_err(errors::failed)?.value;
    match deletes.find_map(|delete| view.first_place(&delete.keys)) {
        Some((name, _)) => Err(Status::failed_precondition(format!(
            "tenure: these keys include a place of the lock {:?}, and this member protects places (protect-places): \
             unlock it instead",
            describe::text(name)
        ))),
        None => Ok(()),
    }
}

/// The deletes of a transaction, in whatever branch and however deep.
pub fn deletes(txn: &Txn) -> Vec<&Delete> {
    let mut found = Vec::new();
    let mut next = vec![txn];
    while let Some(txn) = next.pop() {
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Delete(delete) => found.push(delete),
                Op::Txn(nested) => next.push(nested),
                Op::Range(_) | Op::Put(_) => {}
            }
        }
    }
    found
}
