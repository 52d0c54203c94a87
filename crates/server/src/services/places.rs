//! Places of locks are keys, and a plain delete ends them. A member with the setting `protect-places` refuses that.
//!
//! The setting is there against mistakes (`del --prefix` over locks), not against attackers. The request is compared
//! with the state as this member has it, before the command is proposed: a place that is taken at the same moment is
//! not seen. Places that a client has made by writing keys, as etcd's recipes do, are deleted by that client's own
//! deletes, so they are not protected.
//!
//! A long range is walked on a thread for long work, as long reads are. The machine could refuse such a command without a
//! second walk, and would miss no place. But then every member would have to know the setting of the one that asks, by a
//! field of each delete, and a transaction would be refused in the middle of its writes.

use tenure_machine::{Delete, Keys, Op, Txn, View};
use tenure_replica::Consistency;
use tonic::Status;

use super::tenure_lock::describe;
use super::{Shared, errors};

/// Keys that are looked at on the thread that serves the connection, for all deletes of a request: some 100 µs.
const WALKED_AT_ONCE: usize = 512;

/// Refuses deletes of which one would end a place.
pub async fn protect<'a>(shared: &Shared, deletes: impl IntoIterator<Item = &'a Delete>) -> Result<(), Status> {
    let deletes: Vec<&Keys> = deletes.into_iter().map(|delete| &delete.keys).collect();
    if deletes.is_empty() {
        return Ok(());
    }
    let view = shared.member.view(Consistency::Serializable).await.map_err(errors::failed)?.value;
    let found = match find_within(&view, &deletes, WALKED_AT_ONCE) {
        Some(found) => found,
        None => {
            let deletes: Vec<Keys> = deletes.into_iter().cloned().collect();
            // The view is let go of there too. This fails only while the runtime is going down.
            let find =
                move || deletes.iter().find_map(|keys| view.first_place(keys)).map(|(name, _)| describe::text(name));
            tokio::task::spawn_blocking(find).await.map_err(|_| Status::from(errors::STOPPED))?
        }
    };
    match found {
        Some(name) => Err(Status::failed_precondition(format!(
            "tenure: these keys include a place of the lock {name:?}, and this member protects places \
             (protect-places): unlock it instead"
        ))),
        None => Ok(()),
    }
}

/// The name of the lock of the first place among these keys. `None` if that takes longer than walking `budget` keys.
fn find_within(view: &View, deletes: &[&Keys], mut budget: usize) -> Option<Option<String>> {
    for keys in deletes {
        if let Some((name, _)) = view.first_place_within(keys, &mut budget)? {
            return Some(Some(describe::text(name)));
        }
    }
    Some(None)
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenure_machine::{Command, Envelope, LeaseGrant, Lock, Machine, Put};

    use super::*;

    /// A thousand keys, and behind them a place of the lock z.
    fn state() -> Machine {
        let grant = Command::LeaseGrant(LeaseGrant { lease: 7, ttl_ms: 60_000, client: Bytes::new() });
        let puts = (0..1000).map(|number| {
            let (key, value) = (format!("k/{number:04}").into(), Bytes::new());
            Command::Put(Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false })
        });
        let lock = Command::Lock(Box::new(Lock { name: Bytes::from_static(b"z"), lease: 7, ..Lock::default() }));
        let mut machine = Machine::new();
        for (index, command) in (1..).zip(std::iter::once(grant).chain(puts).chain([lock])) {
            machine.apply(index, 1, &Envelope { wall_ms: 0, origin: None, command }).reply.expect("taken");
        }
        machine
    }

    #[test]
    fn no_more_keys_are_walked_at_once_than_the_budget_allows() {
        let machine = state();
        let view = machine.state();
        let one = Keys::One(Bytes::from_static(b"k/0001"));
        assert_eq!(find_within(view, &[&Keys::all()], 1000), None, "the place comes behind them");
        assert_eq!(find_within(view, &[&Keys::all()], 1001), Some(Some("z".to_owned())));
        assert_eq!(find_within(view, &[&Keys::prefix("k/".into())], 1000), Some(None));
        assert_eq!(find_within(view, &[&one, &Keys::prefix("k/".into())], 1000), None, "all of a request share it");
        assert_eq!(find_within(view, &[&Keys::prefix("z".into()), &Keys::all()], 1), Some(Some("z".to_owned())));
    }
}
