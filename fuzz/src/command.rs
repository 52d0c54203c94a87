//! Commands as they stand in the log, and what applying them does.

use bytes::Bytes;
use tenure_machine::{
    Alarm, AlarmChange, AlarmKind, Command, Delete, Envelope, Keys, LeaseGrant, Leave, Lock, Machine, Member,
    MemberChange, Mode, Origin, Put, Unlock, codec,
};

pub fn run(bytes: &[u8]) {
    let Ok(envelope) = codec::decode(Bytes::copy_from_slice(bytes)) else { return };
    let mut again = Vec::new();
    codec::encode(&envelope, &mut again);
    let decoded = codec::decode(again.into()).expect("what was encoded can be decoded");
    assert_eq!(decoded, envelope);
    apply(envelope.command);
}

/// Whatever the command, twice, in a state with a few things in it: it must be refused or done, and stay done.
pub fn apply(command: Command) {
    let mut machine = Machine::new();
    let before = [grant(7), lock("job", 7), put("key", 7)];
    let envelopes = before.into_iter().chain([command.clone(), command]);
    for (index, command) in (1..).zip(envelopes) {
        let revision = machine.state().revision();
        let applied = machine.apply(index, 1, &Envelope { wall_ms: index, origin: None, command });
        let now = machine.state().revision();
        assert!(now == revision || (applied.reply.is_ok() && now == revision + 1), "{revision} {now} {applied:?}");
    }
}

pub fn grant(lease: i64) -> Command {
    Command::LeaseGrant(LeaseGrant { lease, ttl_ms: 30_000, client: Bytes::from_static(b"ada") })
}

pub fn put(key: &str, lease: i64) -> Command {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let value = Bytes::from_static(b"value");
    Command::Put(Put { key, value, lease, prev_kv: true, ignore_value: false, ignore_lease: false })
}

pub fn lock(name: &str, lease: i64) -> Command {
    Command::Lock(Box::new(Lock {
        name: Bytes::copy_from_slice(name.as_bytes()),
        more_names: vec![Bytes::from_static(b"other")],
        lease,
        mode: Mode::Slots(3),
        call: 9,
        holder: Bytes::from_static(b"ada"),
        owner: Bytes::from_static(b"deployer"),
        metadata: Bytes::from_static(b"{}"),
        ..Lock::default()
    }))
}

pub fn seeds() -> Vec<Vec<u8>> {
    let member = Member {
        id: 4,
        name: "n4".to_owned(),
        peer_urls: vec!["http://127.0.0.1:2380".to_owned()],
        client_urls: Vec::new(),
        learner: true,
    };
    let delete = Delete { keys: Keys::One(Bytes::from_static(b"key")), prev_kv: true };
    let unlock = Unlock { names: [Bytes::from_static(b"job")].into_iter().collect(), token: 2, epoch: 0 };
    let commands = [
        put("key", 7),
        Command::Delete(delete),
        grant(8),
        Command::LeaseRevoke { lease: 7 },
        Command::LeaseExpire { term: 1, leases: vec![7, 8] },
        Command::LeaseCheckpoint { term: 1, left_ms: vec![(7, 100)] },
        lock("job", 7),
        Command::Unlock(unlock),
        Command::Leave(Leave { key: Bytes::from_static(b"job/7"), call: 9 }),
        Command::Compact { revision: 2 },
        Command::Alarm(AlarmChange::Raise(Alarm { member: 1, kind: AlarmKind::NoSpace })),
        Command::ForceRelease { name: Bytes::from_static(b"job"), token: 2 },
        Command::ForgetLock { name: Bytes::from_static(b"job") },
        Command::ResumeSession { lease: 7 },
        Command::ChangeMembers(MemberChange::Add { member: member.clone() }),
        Command::Publish(member),
        Command::RaiseLevel { level: 1 },
        Command::CompareStates,
        Command::PinLevel { level: Some(1) },
        Command::Continue,
    ];
    let origin = Some(Origin { member: 2, boot: 3, sequence: 4, settled_below: 4 });
    let encode = |(index, command)| {
        let mut bytes = Vec::new();
        let origin = origin.filter(|_| index % 2 == 0);
        codec::encode(&Envelope { wall_ms: 1_700_000_000_000, origin, command }, &mut bytes);
        bytes
    };
    commands.into_iter().enumerate().map(encode).collect()
}
