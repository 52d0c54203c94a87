//! Elections, as etcd's recipe and the native client hold them: a candidate stands in a lock's queue with a value,
//! the first one leads, says other things while it does, and gives its place away; others look on.

use bytes::Bytes;
use tenure_machine::{
    Command, Compare, CompareResult, CompareTarget, Delete, Keys, Lock, Op, Put, RangeQuery, SortOrder, SortTarget, Txn,
};
use tenure_replica::Consistency;

use super::{Action, Doing, Known, Traffic};
use crate::plan::Plan;
use crate::request::Request;

const PREFIX: &str = "election/";

impl Traffic {
    pub(super) fn on_elections(&mut self, client: usize, action: Action, plan: &Plan, known: &Known) -> Vec<Doing> {
        match action {
            Action::Campaign => {
                let (lease, name) = (self.some_lease(client), self.post());
                let (call, value, epoch) = (u128::from(self.draw()), self.value(plan), self.epoch(client, lease));
                let (holder, overwrite) = (Bytes::from_static(b"candidate"), true);
                let lock = Lock { name, lease, call, value, overwrite, epoch, holder, ..Lock::default() };
                vec![Doing::Call(Request::Lock(self.owners.own(client, plan, lock)))]
            }
            Action::Proclaim => self.proclaim(client, plan),
            Action::Resign => self.resign(client),
            _ => self.observe(client, known),
        }
    }

    fn post(&mut self) -> Bytes {
        format!("{PREFIX}{}", self.random.below(2)).into()
    }

    /// Only while it leads by the token that it was told; now and then with the one of somebody before.
    fn proclaim(&mut self, client: usize, plan: &Plan) -> Vec<Doing> {
        let leads = self.clients[client].held.iter().filter(|held| held.names[0].starts_with(PREFIX.as_bytes()));
        let leads: Vec<_> = leads.map(|held| (held.key.clone(), held.lease, held.token)).collect();
        let Some((key, lease, token)) = self.random.pick(&leads).cloned() else { return Vec::new() };
        let token = if self.random.percent(15) { token - 1 } else { token };
        let ignore_lease = self.random.percent(50);
        let lease = if ignore_lease { 0 } else { lease };
        let put =
            Put { key: key.clone(), value: self.value(plan), lease, prev_kv: false, ignore_value: false, ignore_lease };
        vec![Doing::Call(Request::Propose(Command::Txn(Txn {
            compare: vec![is_of(&key, token)],
            success: vec![Op::Put(put)],
            failure: vec![Op::Range(RangeQuery::new(Keys::One(key)))],
        })))]
    }

    fn resign(&mut self, client: usize) -> Vec<Doing> {
        let held = &mut self.clients[client].held;
        let leads = held.iter().position(|held| held.names[0].starts_with(PREFIX.as_bytes()));
        let Some(held) = leads.map(|nth| held.swap_remove(nth)) else { return Vec::new() };
        let delete = Delete { keys: Keys::One(held.key.clone()), prev_kv: false };
        vec![Doing::Call(Request::Propose(Command::Txn(Txn {
            compare: vec![is_of(&held.key, held.token)],
            success: vec![Op::Delete(delete)],
            failure: Vec::new(),
        })))]
    }

    /// Who leads is who came first; then whatever follows.
    fn observe(&mut self, client: usize, known: &Known) -> Vec<Doing> {
        let keys = Keys::prefix(Bytes::from([&self.post()[..], b"/"].concat()));
        let mut query = RangeQuery::new(keys.clone());
        (query.limit, query.sort_target, query.sort_order) = (1, SortTarget::CreateRevision, SortOrder::Ascend);
        let mut doing = vec![Doing::Call(Request::Range(query, Consistency::Linearizable))];
        if self.random.percent(20) {
            doing.push(self.watch_from(client, keys, Some(known.revision + 1)));
        }
        doing
    }
}

fn is_of(key: &Bytes, token: i64) -> Compare {
    let target = CompareTarget::CreateRevision(token);
    Compare { keys: Keys::One(key.clone()), result: CompareResult::Equal, target }
}
