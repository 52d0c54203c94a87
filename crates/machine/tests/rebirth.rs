//! What goes along into a new cluster, and what does not.

use bytes::Bytes;
use tenure_machine::snapshot::{Restore, chunks};
use tenure_machine::{
    Command, Delete, Envelope, Keys, LeaseGrant, Lock, Machine, Member, Put, RangeQuery, Refusal, Reply, Unlock,
};

struct Driver {
    machine: Machine,
    index: u64,
}

impl Driver {
    fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        let envelope = Envelope { wall_ms: self.index, origin: None, command };
        self.machine.apply(self.index, 1, &envelope).reply.expect("accepted")
    }

    fn put(&mut self, key: &'static str, lease: i64) {
        let (key, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(b"v"));
        self.apply(Command::Put(Put { key, value, lease, prev_kv: false, ignore_value: false, ignore_lease: false }));
    }

    fn lock(&mut self, name: &'static str, lease: i64) -> (i64, bool) {
        let lock =
            Lock { name: Bytes::from_static(name.as_bytes()), lease, call: self.index.into(), ..Lock::default() };
        match self.apply(Command::Lock(Box::new(lock))) {
            Reply::Lock(reply) => (reply.token, reply.granted),
            other => panic!("{other:?}"),
        }
    }

    fn lease(&mut self, lease: i64) {
        self.apply(Command::LeaseGrant(LeaseGrant { lease, ttl_ms: 1000, client: Bytes::new() }));
    }
}

fn keys(machine: &Machine) -> Vec<String> {
    let all = Keys::Span { from: Bytes::from_static(b"\0"), to: None };
    let found = machine.state().range(&RangeQuery::new(all)).unwrap();
    found.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
}

/// As it goes to disk and comes back.
fn through_a_snapshot(machine: &Machine) -> Machine {
    let mut restore = Restore::new();
    for chunk in chunks(machine.view(), 100) {
        restore.chunk(&chunk).expect("a good chunk");
    }
    restore.finish().expect("a whole snapshot")
}

#[test]
fn no_lease_and_no_lock_lives_on_and_tokens_go_on_from_beyond() {
    let mut old = Driver { machine: Machine::new(), index: 0 };
    for lease in 1..=3 {
        old.lease(lease);
    }
    old.put("deleted", 0);
    old.put("stays", 0);
    old.put("stays", 0);
    old.put("goes", 1);
    old.apply(Command::Delete(Delete { keys: Keys::One(Bytes::from_static(b"deleted")), prev_kv: false }));
    let (token, _) = old.lock("jobs", 1);
    assert_eq!(old.lock("jobs", 2), (token + 1, false));
    // Somebody's put has taken the lease from a place: it is a place all the same.
    old.lock("other", 3);
    old.put("other/3", 0);
    old.put("looks/3", 0);
    old.apply(Command::Publish(Member {
        id: 7,
        name: "n1".to_owned(),
        peer_urls: vec![],
        client_urls: vec![],
        learner: false,
    }));
    let before = old.machine.state().revision();

    let reborn = old.machine.state().reborn(1000).unwrap();
    assert_eq!(keys(&reborn), ["looks/3", "stays"]);
    let state = reborn.state();
    assert_eq!((state.revision(), state.compacted_revision()), (before + 1000, before + 1000));
    assert_eq!((state.lease_count(), state.members().len(), state.lock_names(b"").count()), (0, 0, 0));
    assert_eq!(state.get(b"stays").unwrap().version, 2, "versions and revisions of keys are as they were");
    assert!(matches!(state.commits(before).map(|commits| commits.count()), Err(Refusal::Compacted { .. })));

    let mut new = Driver { machine: through_a_snapshot(&reborn), index: 1 };
    assert_eq!(new.machine.state().hash(), reborn.state().hash());
    assert!(new.machine.state().bytes() < old.machine.state().bytes());
    new.lease(1);
    let (next, granted) = new.lock("jobs", 1);
    assert!(granted && next > before + 1000, "{next}");
    let unlock = Command::Unlock(Unlock { names: vec![Bytes::from_static(b"jobs")], token, epoch: 0 });
    let envelope = Envelope { wall_ms: 0, origin: None, command: unlock };
    assert_eq!(new.machine.apply(50, 1, &envelope).reply, Err(Refusal::NotTheHolder), "the old token means nothing");
}

#[test]
fn there_must_be_revisions_left() {
    let machine = Machine::new();
    assert!(machine.state().reborn(u64::MAX).is_none());
    assert!(machine.state().reborn(i64::MAX as u64 / 2).is_none());
    assert!(machine.state().reborn(0).is_some());
}
