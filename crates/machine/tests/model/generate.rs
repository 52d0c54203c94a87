//! Random commands over a name space so small that they meet each other all the time.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tenure_machine::*;

pub fn envelope() -> impl Strategy<Value = Envelope> {
    let origin = (1..3u64, 1..4u64, 0..12u64, 0..8u64).prop_map(|(member, boot, sequence, settled_below)| Origin {
        member,
        boot,
        sequence,
        settled_below,
    });
    (any::<u32>(), option::weighted(0.2, origin), command()).prop_map(|(wall_ms, origin, command)| Envelope {
        wall_ms: u64::from(wall_ms),
        origin,
        command,
    })
}

pub fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        8 => put().prop_map(Command::Put),
        5 => delete().prop_map(Command::Delete),
        8 => txn().prop_map(Command::Txn),
        2 => (0..60i64).prop_map(|revision| Command::Compact { revision }),
        5 => (lease(), 0..9000u64, small()).prop_map(|(lease, ttl_ms, client)| {
            Command::LeaseGrant(LeaseGrant { lease, ttl_ms, client })
        }),
        2 => lease().prop_map(|lease| Command::LeaseRevoke { lease }),
        3 => (1..3u64, vec(lease(), 0..4)).prop_map(|(term, leases)| Command::LeaseExpire { term, leases }),
        10 => lock(mode()).prop_map(|lock| Command::Lock(Box::new(lock))),
        4 => (key(), 0..3u128).prop_map(|(key, call)| Command::Leave(Leave { key, call })),
        2 => unlock().prop_map(Command::Unlock),
        1 => (lock_name(), 2..40i64).prop_map(|(name, token)| Command::ForceRelease { name, token }),
        1 => lock_name().prop_map(|name| Command::ForgetLock { name }),
        1 => lease().prop_map(|lease| Command::ResumeSession { lease }),
        1 => alarm().prop_map(Command::Alarm),
        1 => member().prop_map(Command::Publish),
        1 => member_change().prop_map(Command::ChangeMembers),
        1 => Just(Command::Continue),
        1 => (level::LOWEST..=level::HIGHEST).prop_map(|level| Command::RaiseLevel { level }),
        1 => option::of(level::LOWEST..=level::HIGHEST + 1).prop_map(|level| Command::PinLevel { level }),
    ]
}

fn member() -> impl Strategy<Value = Member> {
    (1..4u64, any::<bool>()).prop_map(|(id, learner)| Member {
        id,
        name: format!("member {id}"),
        peer_urls: vec![format!("http://{id}:2380")],
        client_urls: Vec::new(),
        learner,
    })
}

/// Such as the state never refuses.
fn member_change() -> impl Strategy<Value = MemberChange> {
    let one = || {
        prop_oneof![
            member().prop_map(|member| MemberChange::Update { member }),
            (0..5u64, any::<bool>()).prop_map(|(id, force)| MemberChange::Remove { id, force }),
        ]
    };
    prop_oneof![4 => one(), 1 => vec(one(), 0..3).prop_map(MemberChange::Together)]
}

/// Commands that are all about one or two queues, so that these grow long and change often. In some runs most
/// locks are barriers, because it takes several of one kind in a row to open one.
pub fn lock_commands() -> impl Strategy<Value = Vec<Command>> {
    let barriers = prop_oneof![
        5 => Just(Mode::Barrier(2)),
        3 => Just(Mode::Barrier(3)),
        1 => mode(),
    ];
    prop_oneof![
        2 => vec(lock_command(mode().boxed()), 1..80),
        1 => vec(lock_command(barriers.boxed()), 1..80),
    ]
}

fn lock_command(mode: BoxedStrategy<Mode>) -> impl Strategy<Value = Command> {
    let op = || {
        prop_oneof![
            3 => entry_put().prop_map(Op::Put),
            2 => entry_key().prop_map(|key| Op::Delete(Delete { keys: Keys::One(key), prev_kv: false })),
        ]
    };
    prop_oneof![
        12 => lock(mode).prop_map(|lock| Command::Lock(Box::new(lock))),
        6 => entry_key().prop_map(|key| Command::Delete(Delete { keys: Keys::One(key), prev_kv: false })),
        3 => (entry_key(), 0..3u128).prop_map(|(key, call)| Command::Leave(Leave { key, call })),
        8 => unlock().prop_map(Command::Unlock),
        3 => (lock_name(), 2..40i64).prop_map(|(name, token)| Command::ForceRelease { name, token }),
        3 => entry_put().prop_map(Command::Put),
        3 => vec(op(), 1..5).prop_map(|success| Command::Txn(Txn { success, ..Txn::default() })),
        2 => vec(lease(), 1..3).prop_map(|leases| Command::LeaseExpire { term: 1, leases }),
        4 => lease().prop_map(|lease| {
            Command::LeaseGrant(LeaseGrant { lease, ttl_ms: 1000, client: Bytes::new() })
        }),
    ]
}

pub fn query() -> impl Strategy<Value = RangeQuery> {
    let filters = [(); 4].map(|()| prop_oneof![4 => Just(0i64), 1 => 1..30i64]);
    let order = prop_oneof![Just(SortOrder::None), Just(SortOrder::Ascend), Just(SortOrder::Descend)];
    let target = prop_oneof![
        Just(SortTarget::Key),
        Just(SortTarget::Version),
        Just(SortTarget::CreateRevision),
        Just(SortTarget::ModRevision),
        Just(SortTarget::Value),
    ];
    let revision = prop_oneof![3 => Just(0i64), 4 => 1..40i64, 1 => Just(-1i64)];
    (keys(), revision, -1..5i64, order, target, any::<(bool, bool)>(), filters).prop_map(
        |(keys, revision, limit, sort_order, sort_target, (keys_only, count_only), filters)| RangeQuery {
            keys,
            revision,
            limit,
            sort_order,
            sort_target,
            keys_only,
            count_only: count_only && limit % 2 == 0,
            min_mod_revision: filters[0],
            max_mod_revision: filters[1],
            min_create_revision: filters[2],
            max_create_revision: filters[3],
        },
    )
}

fn key() -> impl Strategy<Value = Bytes> {
    const KEYS: [&str; 10] = ["a", "b", "b\u{0}", "c", "l/1", "l/2", "l/3", "l/1a", "m/1", "m/2"];
    (0..KEYS.len()).prop_map(|index| Bytes::from_static(KEYS[index].as_bytes()))
}

fn keys() -> impl Strategy<Value = Keys> {
    prop_oneof![
        4 => key().prop_map(Keys::One),
        2 => (key(), option::of(key())).prop_map(|(from, to)| Keys::Span { from, to }),
        1 => Just(Keys::prefix(Bytes::from_static(b"l/"))),
    ]
}

fn small() -> impl Strategy<Value = Bytes> {
    vec(b'x'..=b'z', 0..3).prop_map(Bytes::from)
}

fn lease() -> impl Strategy<Value = LeaseId> {
    prop_oneof![1..4i64, Just(26i64)]
}

fn put() -> impl Strategy<Value = Put> {
    let lease = prop_oneof![2 => Just(0i64), 3 => lease()];
    let bits = proptest::bits::u8::between(0, 3);
    (key(), small(), lease, any::<bool>(), bits).prop_map(|(key, value, lease, own_lease, bits)| {
        // The lease that the key's own name asks for, often enough to make entries.
        let own = tenure_machine::lock::split_key(&key).map(|(_, lease)| lease);
        let lease = own.filter(|_| own_lease).unwrap_or(lease);
        let (ignore_value, ignore_lease) = (bits == 7, bits == 6);
        Put { key, value, lease, prev_kv: bits & 1 == 1, ignore_value, ignore_lease }
    })
}

fn entry_key() -> impl Strategy<Value = Bytes> {
    (prop_oneof![4 => Just("l"), 1 => Just("m")], lease())
        .prop_map(|(name, lease)| Bytes::from(tenure_machine::lock::entry_key(name.as_bytes(), lease)))
}

/// A plain put that makes an entry, or overwrites one with some other lease.
fn entry_put() -> impl Strategy<Value = Put> {
    (entry_key(), small(), prop_oneof![1 => Just(None), 4 => lease().prop_map(Some)], 0..4u8).prop_map(
        |(key, value, other, dice)| {
            let own = tenure_machine::lock::split_key(&key).map(|(_, lease)| lease);
            let lease = if dice == 0 { other.unwrap_or(0) } else { own.unwrap_or(0) };
            Put { key, value, lease, prev_kv: false, ignore_value: false, ignore_lease: false }
        },
    )
}

fn delete() -> impl Strategy<Value = Delete> {
    (keys(), any::<bool>()).prop_map(|(keys, prev_kv)| Delete { keys, prev_kv })
}

fn compare() -> impl Strategy<Value = Compare> {
    let result = prop_oneof![
        Just(CompareResult::Equal),
        Just(CompareResult::Greater),
        Just(CompareResult::Less),
        Just(CompareResult::NotEqual),
    ];
    let target = prop_oneof![
        (0..3i64).prop_map(CompareTarget::Version),
        (0..20i64).prop_map(CompareTarget::CreateRevision),
        (0..20i64).prop_map(CompareTarget::ModRevision),
        small().prop_map(CompareTarget::Value),
        (0..3i64).prop_map(CompareTarget::Lease),
    ];
    (keys(), result, target).prop_map(|(keys, result, target)| Compare { keys, result, target })
}

pub fn txn() -> impl Strategy<Value = Txn> {
    let op = prop_oneof![
        2 => query().prop_map(Op::Range),
        4 => put().prop_map(Op::Put),
        3 => delete().prop_map(Op::Delete),
    ];
    let op = op.prop_recursive(2, 8, 3, |op| {
        (vec(compare(), 0..2), vec(op.clone(), 0..3), vec(op, 0..3))
            .prop_map(|(compare, success, failure)| Op::Txn(Txn { compare, success, failure }))
    });
    (vec(compare(), 0..3), vec(op.clone(), 0..5), vec(op, 0..4)).prop_map(|(compare, success, failure)| Txn {
        compare,
        success,
        failure,
    })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        2 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        1 => Just(Mode::Slots(1)),
        2 => Just(Mode::Slots(2)),
        1 => Just(Mode::Slots(3)),
        3 => (0..4u32).prop_map(Mode::Barrier),
    ]
}

fn lock(mode: impl Strategy<Value = Mode>) -> impl Strategy<Value = Lock> {
    let more_names = prop_oneof![4 => Just(vec![]), 1 => vec(lock_name(), 1..3)];
    let asked = (any::<bool>(), 0..4u8, more_names);
    (lock_name(), lease(), 0..3u128, mode, small(), asked, small()).prop_map(
        |(name, lease, call, mode, value, (overwrite, dice, more_names), holder)| Lock {
            name,
            more_names,
            try_once: dice == 0,
            lease,
            call,
            mode,
            value,
            overwrite,
            owner: holder.clone(),
            holder,
            metadata: Bytes::new(),
            ..Default::default()
        },
    )
}

fn lock_name() -> impl Strategy<Value = Bytes> {
    prop_oneof![4 => Just(Bytes::from_static(b"l")), 2 => Just(Bytes::from_static(b"m"))]
}

fn unlock() -> impl Strategy<Value = Unlock> {
    (vec(lock_name(), 1..3), 2..40i64).prop_map(|(names, token)| Unlock { names, token, epoch: 0 })
}

fn alarm() -> impl Strategy<Value = AlarmChange> {
    let kind = prop_oneof![3 => Just(AlarmKind::NoSpace), 1 => Just(AlarmKind::Corrupt)];
    // Cleared more often than raised, or most of a run would be refusals.
    (0..3u64, kind, 0..4u8).prop_map(|(member, kind, dice)| {
        let alarm = Alarm { member, kind };
        if dice == 0 { AlarmChange::Raise(alarm) } else { AlarmChange::Clear(alarm) }
    })
}
