//! Clients that contend for few locks, in every way there is: native calls, an etcd client's plain puts,
//! retries, unlocks by name, by token and by old token, and people who meddle with entries.

use bytes::Bytes;
use tenure_machine::{
    Command, Compare, CompareResult, CompareTarget, Delete, Keys, LeaseId, Leave, Lock, Mode, Op, Put, Revision, Txn,
    Unlock,
};
use tenure_replica::{Answer, Answered};

use super::{Action, Client, Doing, Known, MOST_NAMES, Traffic};
use crate::plan::Plan;
use crate::request::Request;

pub(super) struct Held {
    pub lease: LeaseId,
    pub key: Bytes,
    /// All of them, if several were taken together.
    pub names: Vec<Bytes>,
    pub token: Revision,
    call: u128,
}

impl Traffic {
    pub(super) fn on_locks(&mut self, client: usize, action: Action, plan: &Plan) -> Vec<Doing> {
        let request = match action {
            Action::Lock => {
                let lease = self.some_lease(client);
                Request::Lock(self.a_lock(client, plan, lease))
            }
            // The same lease asks again, as a client does whose call was cut off.
            Action::Relock => {
                let lease = match self.clients[client].waiting.values().next() {
                    Some(lease) => *lease,
                    None => self.some_lease(client),
                };
                Request::Lock(self.a_lock(client, plan, lease))
            }
            Action::Unlock => return self.unlock(client),
            Action::Force => return self.force(client),
            _ => self.meddle(client, plan),
        };
        vec![Doing::Call(request)]
    }

    pub(super) fn name(&mut self, plan: &Plan) -> Bytes {
        format!("lock/{}", self.random.below(plan.lock_names)).into()
    }

    fn a_lock(&mut self, client: usize, plan: &Plan, lease: LeaseId) -> Lock {
        let mode = match self.random.below(6) {
            0 | 1 if plan.shared_locks => Mode::Shared,
            2 if plan.shared_locks => Mode::Slots(2),
            3 if plan.shared_locks => Mode::Slots(3),
            2..=4 if plan.barriers => Mode::Barrier(2),
            5 if plan.barriers => Mode::Barrier(3),
            _ => Mode::Exclusive,
        };
        let is_barrier = matches!(mode, Mode::Barrier(_));
        let name = self.name(plan);
        let mut more_names = Vec::new();
        if plan.multi_locks && !is_barrier && self.random.percent(30) {
            more_names = (0..self.random.between(1, MOST_NAMES - 1)).map(|_| self.name(plan)).collect();
        }
        let lock = Lock {
            name,
            more_names,
            try_once: !is_barrier && self.random.percent(15),
            epoch: self.epoch(client, lease),
            lease,
            call: u128::from(self.draw()),
            mode,
            value: self.value(plan),
            overwrite: self.random.percent(20),
            owner: Bytes::new(),
            holder: Bytes::from_static(b"holder"),
            metadata: Bytes::new(),
        };
        self.owners.own(client, plan, lock)
    }

    fn unlock(&mut self, client: usize) -> Vec<Doing> {
        let held = &mut self.clients[client].held;
        let Some(nth) = (!held.is_empty()).then(|| self.random.below(held.len() as u64) as usize) else {
            return Vec::new();
        };
        let Held { key, names, token, lease, call } = held.swap_remove(nth);
        let delete = Delete { keys: Keys::One(key.clone()), prev_kv: true };
        let is_one = names.len() == 1;
        let command = match self.random.below(8) {
            _ if !is_one => self.unlock_all(client, lease, names, token),
            0 => Command::Delete(delete),
            1 => Command::LeaseRevoke { lease },
            2 => Command::Leave(Leave { key, call }),
            // With a token that is not the holder's: must change nothing.
            3 => release(key, token - 1, delete),
            4 | 5 => {
                let token = token - self.random.below(2) as Revision;
                self.unlock_all(client, lease, names, token)
            }
            _ => release(key, token, delete),
        };
        vec![Doing::Call(Request::Propose(command))]
    }

    /// As a native client does.
    fn unlock_all(&mut self, client: usize, lease: LeaseId, names: Vec<Bytes>, token: Revision) -> Command {
        Command::Unlock(Unlock { names, token, epoch: self.epoch(client, lease) })
    }

    /// An operator ends somebody's tenure.
    fn force(&mut self, client: usize) -> Vec<Doing> {
        let held: Vec<(Bytes, Revision)> =
            self.clients[client].held.iter().map(|held| (held.names[0].clone(), held.token)).collect();
        let Some((name, token)) = self.random.pick(&held).cloned() else { return Vec::new() };
        let token = token - self.random.below(2) as Revision;
        vec![Doing::Call(Request::Propose(Command::ForceRelease { name, token }))]
    }

    fn meddle(&mut self, client: usize, plan: &Plan) -> Request {
        let (lease, other) = (self.some_lease(client), self.some_lease(client));
        let name = self.name(plan);
        let key = entry(&name, lease);
        let put = |key: Bytes, value: Bytes, lease: LeaseId| Put {
            key,
            value,
            lease,
            prev_kv: true,
            ignore_value: false,
            ignore_lease: false,
        };
        let value = self.value(plan);
        let command = match self.random.below(6) {
            // As an etcd client takes a lock.
            0 | 1 => Command::Put(put(key, value, lease)),
            2 => Command::Put(put(key, value, other)),
            3 => Command::Put(put(key, value, 0)),
            4 if lease != other => Command::Txn(Txn {
                success: vec![Op::Put(put(key, value.clone(), lease)), Op::Put(put(entry(&name, other), value, other))],
                ..Txn::default()
            }),
            _ => Command::Delete(Delete { keys: Keys::prefix(name), prev_kv: false }),
        };
        Request::Propose(command)
    }

    /// Everything that a client was told to hold is given back. A client that does not know what became of a call
    /// leaves the place. What nobody asked for by a Lock call, client 0 deletes, as an operator would.
    pub(super) fn give_back(&mut self, client: usize, known: &Known) -> Vec<Doing> {
        self.clients[client].held.clear();
        let chores = &known.chores;
        let propose = |command: Command| Doing::Call(Request::Propose(command));
        let owed = chores.owed.iter().filter(|(owner, ..)| *owner == client).map(|(_, name, token)| {
            propose(Command::Unlock(Unlock { names: vec![name.clone()], token: *token, epoch: 0 }))
        });
        let doubtful = chores.doubtful.iter().filter(|(owner, _)| *owner == client);
        let doubtful = doubtful.map(|(_, leave)| propose(Command::Leave(leave.clone())));
        let at_barrier = chores.at_barrier.iter().filter(|(owner, _)| *owner == client);
        let at_barrier = at_barrier.map(|(_, call)| Doing::Cancel(*call));
        let mut doing: Vec<Doing> = owed.chain(doubtful).chain(at_barrier).collect();
        if client == 0 {
            doing.extend(
                chores
                    .stray
                    .iter()
                    .map(|key| propose(Command::Delete(Delete { keys: Keys::One(key.clone()), prev_kv: false }))),
            );
            doing.extend(
                chores.suspects.iter().map(|lease| Doing::Call(Request::KeepAlive { lease: *lease, epoch: 0 })),
            );
        }
        doing
    }
}

impl Client {
    pub(super) fn lock_answered(&mut self, lock: &Lock, answer: &Answer) {
        if let Ok(Answered::Lock(reply)) = &answer.result {
            let key = Bytes::copy_from_slice(&reply.key);
            let names = std::iter::once(&lock.name).chain(&lock.more_names).cloned().collect();
            self.held.push(Held { lease: lock.lease, key, names, token: reply.token, call: lock.call });
        }
    }
}

/// Deletes the entry if it is still the one of this token.
fn release(key: Bytes, token: Revision, delete: Delete) -> Command {
    let compare =
        Compare { keys: Keys::One(key), result: CompareResult::Equal, target: CompareTarget::CreateRevision(token) };
    Command::Txn(Txn { compare: vec![compare], success: vec![Op::Delete(delete)], failure: Vec::new() })
}

fn entry(name: &[u8], lease: LeaseId) -> Bytes {
    format!("{}/{lease:x}", String::from_utf8_lossy(name)).into()
}
