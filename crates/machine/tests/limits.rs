//! Every limit, at it and one beyond.

use bytes::Bytes;
use tenure_machine::snapshot::{self, Restore, SnapshotError};
use tenure_machine::*;

struct Driver {
    machine: Machine,
    index: u64,
}

impl Driver {
    fn new() -> Driver {
        Driver { machine: Machine::new(), index: 0 }
    }

    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        self.machine.apply(self.index, 1, &Envelope { wall_ms: self.index, origin: None, command })
    }

    fn grant(&mut self, lease: LeaseId) {
        let grant = LeaseGrant { lease, ttl_ms: 1000, client: Bytes::new() };
        self.apply(Command::LeaseGrant(grant)).reply.expect("a new lease");
    }
}

fn put(key: impl Into<Bytes>, lease: LeaseId) -> Put {
    let key = key.into();
    Put { key, value: Bytes::new(), lease, prev_kv: false, ignore_value: false, ignore_lease: false }
}

fn lock(name: impl Into<Bytes>, lease: LeaseId) -> Command {
    Command::Lock(Box::new(Lock { name: name.into(), lease, call: 1, ..Default::default() }))
}

/// `levels` transactions within each other, the innermost with one put.
fn nested(levels: usize) -> Txn {
    let mut txn = Txn { success: vec![Op::Put(put("k", 0))], ..Txn::default() };
    for _ in 1..levels {
        txn = Txn { success: vec![Op::Txn(txn)], ..Txn::default() };
    }
    txn
}

fn puts(count: usize) -> Vec<Op> {
    (0..count).map(|number| Op::Put(put(format!("k{number}"), 0))).collect()
}

#[test]
fn a_transaction_has_so_many_operations_and_no_more() {
    let txn = |success, failure| Txn { success, failure, ..Txn::default() };
    assert_eq!(txn(puts(128), puts(128)).check(), Ok(()));
    assert_eq!(txn(puts(129), vec![]).check(), Err(Refusal::TooManyOperations));
    assert_eq!(txn(vec![], puts(129)).check(), Err(Refusal::TooManyOperations));
    let compare = Compare {
        keys: Keys::One(Bytes::from_static(b"k")),
        result: CompareResult::Equal,
        target: CompareTarget::Version(0),
    };
    let compares = |count| Txn { compare: vec![compare.clone(); count], ..Txn::default() };
    assert_eq!(compares(128).check(), Ok(()));
    assert_eq!(compares(129).check(), Err(Refusal::TooManyOperations));
    // What is nested shares what its parent leaves.
    assert_eq!(txn(vec![Op::Txn(txn(puts(127), vec![]))], vec![]).check(), Ok(()));
    assert_eq!(txn(vec![Op::Txn(txn(puts(128), vec![]))], vec![]).check(), Err(Refusal::TooManyOperations));
}

#[test]
fn transactions_nest_so_deep_and_no_deeper() {
    assert_eq!(nested(limits::TXN_NESTING).check(), Ok(()));
    assert_eq!(nested(limits::TXN_NESTING + 1).check(), Err(Refusal::NestedTooDeep));
    let mut driver = Driver::new();
    assert!(driver.apply(Command::Txn(nested(limits::TXN_NESTING))).reply.is_ok());
    let refused = driver.apply(Command::Txn(nested(limits::TXN_NESTING + 1)));
    assert_eq!(refused.reply, Err(Refusal::NestedTooDeep));
    assert!(refused.commit.is_none());
}

#[test]
fn the_decoder_follows_nesting_only_so_far() {
    let encoded = |levels| {
        let mut bytes = Vec::new();
        let command = Command::Txn(nested(levels));
        codec::encode(&Envelope { wall_ms: 0, origin: None, command }, &mut bytes);
        Bytes::from(bytes)
    };
    assert!(codec::decode(encoded(limits::TXN_NESTING + 1)).is_ok(), "apply is to refuse it, not the decoder");
    assert!(codec::decode(encoded(200)).is_err());
}

#[test]
fn a_queue_takes_so_many_entries_and_no_more() {
    let mut driver = Driver::new();
    let full = limits::LOCK_ENTRIES as LeaseId;
    for lease in 1..=full + 1 {
        driver.grant(lease);
    }
    for lease in 1..=full {
        assert!(driver.apply(lock("l", lease)).reply.is_ok());
    }
    assert_eq!(driver.apply(lock("l", full + 1)).reply, Err(Refusal::TooManyWaiters));
    // By etcd's way in it is just as full.
    let key = lock::entry_key(b"l", full + 1);
    let refused = driver.apply(Command::Put(put(key.clone(), full + 1)));
    assert_eq!(refused.reply, Err(Refusal::TooManyWaiters));
    let txn = Txn { success: vec![Op::Put(put("a", 0)), Op::Put(put(key.clone(), full + 1))], ..Txn::default() };
    let refused = driver.apply(Command::Txn(txn));
    assert_eq!(refused.reply, Err(Refusal::TooManyWaiters));
    assert!(driver.machine.state().get(b"a").is_none());
    // One that is in it may ask again, and an ordinary key of that name may be written.
    assert!(driver.apply(lock("l", full)).reply.is_ok());
    assert!(driver.apply(Command::Put(put(key.clone(), 0))).reply.is_ok());
    driver.apply(Command::Delete(Delete { keys: Keys::One(key.into()), prev_kv: false }));
    // When one leaves there is room again, at the end.
    driver.apply(Command::LeaseRevoke { lease: 1 });
    let Ok(Reply::Lock(reply)) = driver.apply(lock("l", full + 1)).reply else { panic!("there is room") };
    assert_eq!(reply.ahead, limits::LOCK_ENTRIES - 1);
    assert_eq!(driver.machine.state().lock_counts(b"l"), (limits::LOCK_ENTRIES, 1));
}

#[test]
fn a_lock_name_is_so_long_and_no_longer() {
    let mut driver = Driver::new();
    driver.grant(1);
    let longest = vec![b'n'; limits::LOCK_NAME_BYTES];
    let longer = vec![b'n'; limits::LOCK_NAME_BYTES + 1];
    assert!(driver.apply(lock(longest, 1)).reply.is_ok());
    assert_eq!(driver.apply(lock(longer.clone(), 1)).reply, Err(Refusal::NameTooLong));
    // For etcd a key of any length is legal: an ordinary one, then.
    let applied = driver.apply(Command::Put(put(lock::entry_key(&longer, 1), 1)));
    assert!(applied.reply.is_ok());
    assert!(applied.lock_changes.is_empty());
}

#[test]
fn recent_holders_are_forgotten_in_the_end() {
    let mut driver = Driver::new();
    driver.grant(1);
    let rounds = limits::RECENT_HOLDERS + 10;
    for _ in 0..rounds {
        assert!(driver.apply(lock("l", 1)).reply.is_ok());
        driver.apply(Command::Leave(Leave { key: Bytes::from_static(b"l/1"), call: 1 }));
    }
    let view = driver.machine.view();
    let tokens: Vec<_> = view.recent_holders().map(|holder| holder.token).collect();
    assert_eq!(tokens.len(), limits::RECENT_HOLDERS);
    assert!(tokens.is_sorted());
    assert_eq!(tokens.last(), Some(&(2 + 2 * (rounds as Revision - 1))));
    assert_eq!(view.recent_holders().next_back().map(|holder| holder.cause), Some(LockEnd::Left));
}

#[test]
fn a_commit_of_many_events_is_trimmed_bit_by_bit() {
    let mut driver = Driver::new();
    for number in 0..10 {
        let success = (0..100).map(|key| Op::Put(put(format!("{number}/{key}"), 0))).collect();
        driver.apply(Command::Txn(Txn { success, ..Txn::default() }));
    }
    let everything = Delete { keys: Keys::all(), prev_kv: false };
    driver.apply(Command::Delete(everything));
    let full = driver.machine.state().bytes();
    let revision = driver.machine.state().revision();
    driver.apply(Command::Compact { revision });
    let hash = driver.machine.state().hash();
    assert!(driver.machine.state().bytes() > full / 2, "a compaction must not free everything at once");
    let mut steps = 0;
    while driver.machine.trim(50) {
        steps += 1;
        assert_eq!(driver.machine.state().hash(), hash);
    }
    assert!(steps > 20, "{steps} steps for 2,000 events");
    assert_eq!(driver.machine.state().bytes(), 0);
    assert_eq!(driver.machine.state().hash(), hash);
}

/// Gives the keys of each revision.
fn deleted_keys(applied: &Applied) -> usize {
    applied.commit.as_ref().map_or(0, |commit| commit.events.len())
}

#[test]
fn a_lease_ends_at_once_and_its_keys_in_parts() {
    const MOST: usize = limits::LEASE_KEYS_AT_ONCE;
    let keys = 2 * MOST + 10;
    for level in [0, 1] {
        let mut driver = Driver::new();
        driver.apply(Command::RaiseLevel { level });
        for lease in [1, 2, 3] {
            driver.grant(lease);
        }
        for number in 0..keys {
            driver.apply(Command::Put(put(format!("k{number:06}"), 1)));
        }
        // It waits behind another, with a key that is among the last.
        driver.apply(lock("l", 2));
        driver.apply(lock("l", 1));
        driver.apply(Command::Put(put("m", 3)));
        let ended = driver.apply(Command::LeaseExpire { term: 1, leases: vec![1, 3] });
        assert_eq!(ended.reply, Ok(Reply::LeasesExpired { expired: 2 }));
        let both = [LeaseChange::Ended { lease: 1 }, LeaseChange::Ended { lease: 3 }];
        assert_eq!(ended.lease_changes, both);
        if level == 0 {
            assert_eq!(deleted_keys(&ended), keys + 2, "as in releases without levels");
            continue;
        }
        assert_eq!(deleted_keys(&ended), MOST);
        // Whatever is left of it, it has ended.
        let view = driver.machine.view();
        assert_eq!(view.ending_leases().collect::<Vec<_>>(), [1, 3]);
        assert_eq!((view.lease_count(), view.lease_ttl_ms(1), view.lease(3)), (1, None, None));
        assert_eq!(view.leases().count() + view.leases_left_ms().count(), 2);
        assert_eq!(driver.apply(Command::LeaseRevoke { lease: 1 }).reply, Err(Refusal::LeaseNotFound));
        assert_eq!(driver.apply(Command::Put(put("n", 1))).reply, Err(Refusal::LeaseNotFound));
        assert_eq!(driver.apply(lock("n", 1)).reply, Err(Refusal::LeaseNotFound));
        assert_eq!(driver.apply(Command::ResumeSession { lease: 1 }).reply, Err(Refusal::LeaseNotFound));
        let grant = LeaseGrant { lease: 1, ttl_ms: 1000, client: Bytes::new() };
        assert_eq!(driver.apply(Command::LeaseGrant(grant.clone())).reply, Err(Refusal::LeaseExists));
        // Its place is not granted: it ends.
        let released = driver.apply(Command::LeaseRevoke { lease: 2 });
        assert!(matches!(released.lock_changes[..], [LockChange::Ended { .. }, LockChange::Ended { .. }]));
        // A member that restores the state goes on like the others.
        let mut restore = Restore::new();
        for chunk in snapshot::chunks(driver.machine.view(), 1000) {
            restore.chunk(&chunk).expect("a good chunk");
        }
        driver.machine = restore.finish().expect("a whole snapshot");
        for expected in [MOST, 10 + 2, 0] {
            let applied = driver.apply(Command::Continue);
            assert_eq!(applied.reply, Ok(Reply::Continued { deleted: expected, granted: 0 }));
            assert_eq!(deleted_keys(&applied), expected);
            assert!(applied.lease_changes.is_empty());
        }
        assert_eq!((driver.machine.state().ending_leases().count(), driver.machine.state().keys()), (0, 0));
        assert!(driver.apply(Command::LeaseGrant(grant)).reply.is_ok());
    }
}

/// A release lets more waiters in than one command may grant: the rest are granted in order, each part at a revision of
/// its own, also by a member that restores the state in between.
#[test]
fn very_many_waiters_are_granted_by_several_commands() {
    const MOST: usize = limits::LOCK_GRANTS_AT_ONCE;
    let waiters = 2 * MOST as LeaseId + 10;
    for level in [0, 1] {
        let mut driver = Driver::new();
        driver.apply(Command::RaiseLevel { level });
        for lease in 1..=waiters + 2 {
            driver.grant(lease);
        }
        let shared =
            |lease| Lock { name: "l".into(), lease, mode: Mode::Shared, call: lease as u128, ..Lock::default() };
        driver.apply(lock("l", waiters + 1));
        for lease in 1..=waiters {
            driver.apply(Command::Lock(Box::new(shared(lease))));
        }
        let released = driver.apply(Command::LeaseRevoke { lease: waiters + 1 });
        if level == 0 {
            assert_eq!(granted(&released).len(), waiters as usize, "as in releases without levels");
            continue;
        }
        let mut order = granted(&released);
        assert_eq!(order.len(), MOST);
        assert!(driver.machine.state().has_unfinished());
        // A try does not overtake those whose turn it is, and one that joins lets the next of them in.
        let tried = driver.apply(Command::Lock(Box::new(Lock { try_once: true, ..shared(waiters + 2) })));
        assert!(matches!(tried.reply, Ok(Reply::Busy(_))), "{:?}", tried.reply);
        let mut restore = Restore::new();
        for chunk in snapshot::chunks(driver.machine.view(), 1000) {
            restore.chunk(&chunk).expect("a good chunk");
        }
        driver.machine = restore.finish().expect("a whole snapshot");
        let mut revision = driver.machine.state().revision();
        for expected in [MOST, 10, 0] {
            let applied = driver.apply(Command::Continue);
            assert_eq!(applied.reply, Ok(Reply::Continued { deleted: 0, granted: expected }));
            order.extend(granted(&applied));
            revision += i64::from(expected > 0);
            assert_eq!((applied.revision, applied.commit.is_some()), (revision, expected > 0));
        }
        assert!(order.iter().copied().eq(1..=waiters), "in order");
        assert!(!driver.machine.state().has_unfinished());
        // A revision without an event survives a snapshot, too, in chunks of any size.
        for size in [1, 1000] {
            let mut restore = Restore::new();
            for chunk in snapshot::chunks(driver.machine.view(), size) {
                restore.chunk(&chunk).expect("a good chunk");
            }
            let restored = restore.finish().expect("a whole snapshot");
            assert_eq!(restored.state().hash(), driver.machine.state().hash());
            assert_eq!(restored.state().revision(), revision);
        }
    }
}

/// The leases of the places that were granted, in order.
fn granted(applied: &Applied) -> Vec<LeaseId> {
    let grants = applied.lock_changes.iter().filter(|change| matches!(change, LockChange::Granted(_)));
    grants.map(|change| change.entry().lease).collect()
}

#[test]
fn the_work_of_an_apply_is_counted() {
    let mut driver = Driver::new();
    driver.apply(Command::RaiseLevel { level: 1 });
    driver.grant(1);
    for number in 0..10 {
        assert_eq!(driver.apply(Command::Put(put(format!("k{number}"), 1))).work, 1);
    }
    let range = Op::Range(RangeQuery::new(Keys::all()));
    let compare = Compare {
        keys: Keys::prefix(Bytes::from_static(b"k")),
        result: CompareResult::Greater,
        target: CompareTarget::Version(0),
    };
    let txn = Txn { compare: vec![compare], success: vec![range.clone(), range], ..Txn::default() };
    assert_eq!(driver.apply(Command::Txn(txn)).work, 30);
    // The place is a key that is written, and it is granted.
    assert_eq!(driver.apply(lock("l", 1)).work, 2);
    // Eleven keys are deleted, a lease and a place end.
    assert_eq!(driver.apply(Command::LeaseRevoke { lease: 1 }).work, 13);
    assert_eq!(driver.apply(Command::Compact { revision: 3 }).work, 0);
}

#[test]
fn what_an_entry_says_about_itself_counts_as_size() {
    const BYTES: usize = 4096;
    let mut driver = Driver::new();
    driver.grant(1);
    driver.grant(2);
    let text = Bytes::from(vec![b'x'; BYTES]);
    let big = |name: &str, lease| {
        // Two leases of one owner would wait for each other.
        let owner = Bytes::from([&[b'0' + lease as u8], &text[..]].concat());
        let name = Bytes::copy_from_slice(name.as_bytes());
        Lock { name, lease, call: 1, owner, holder: text.clone(), metadata: text.clone(), ..Lock::default() }
    };
    let before = driver.machine.state().bytes();
    driver.apply(Command::Lock(Box::new(big("l", 1))));
    let held = driver.machine.state().bytes();
    assert!(held - before >= 3 * BYTES as u64, "{}", held - before);
    // Likewise of one that waits.
    driver.apply(Command::Lock(Box::new(big("l", 2))));
    assert!(driver.machine.state().bytes_live() - held >= 3 * BYTES as u64);
    driver.apply(Command::LeaseRevoke { lease: 1 });
    driver.apply(Command::LeaseRevoke { lease: 2 });
    assert!(driver.machine.state().bytes_live() < BYTES as u64);
    // And of a lease: who asked for it.
    let before = driver.machine.state().bytes();
    driver.apply(Command::LeaseGrant(LeaseGrant { lease: 3, ttl_ms: 1000, client: text.clone() }));
    assert!(driver.machine.state().bytes() - before >= BYTES as u64);
    driver.apply(Command::LeaseRevoke { lease: 3 });
    assert_eq!(driver.machine.state().bytes(), before);
}

#[test]
fn a_newer_snapshot_format_is_named_as_such() {
    let mut chunk = snapshot::chunks(Machine::new().view(), 1000).next().expect("a chunk");
    chunk[0] = snapshot::FORMAT + 1;
    let error = Restore::new().chunk(&chunk).expect_err("a newer format");
    assert!(error.to_string().contains("newer format"), "{error}");
    assert!(Restore::new().finish().is_err(), "no chunk at all");
}

#[test]
fn a_snapshot_of_a_later_level_is_named_as_such() {
    let mut driver = Driver::new();
    driver.apply(Command::Put(put("k", 0)));
    driver.apply(Command::RaiseLevel { level: level::HIGHEST + 1 });
    // In one chunk, and in chunks of one record each.
    for target_bytes in [1 << 20, 1] {
        let first = snapshot::chunks(driver.machine.view(), target_bytes).next().expect("a chunk");
        let error = Restore::new().chunk(&first).expect_err("a later level");
        assert_eq!(error, SnapshotError::LaterLevel { level: level::HIGHEST + 1 });
        assert!(error.is_of_later_release());
    }
}

/// What the last release without levels wrote of a lease, a lock and a key.
const BEFORE_LEVELS: &[u8] = &[
    3, 15, 1, 3, 1, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 9, 5, 7, 232, 7, 1, 0, 0, 232, 7, 10, 7, 2,
    3, 108, 47, 55, 0, 2, 1, 7, 8, 7, 3, 1, 107, 0, 3, 1, 0, 33, 10, 3, 108, 47, 55, 2, 7, 0, 1, 1, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 0, 0, 9, 12, 65, 42, 31, 219, 173, 145, 161, 81,
];

/// Members of releases without levels take part as long as the level is the lowest.
#[test]
fn at_the_lowest_level_a_snapshot_is_as_it_was_before_there_were_levels() {
    let mut driver = Driver::new();
    driver.grant(7);
    driver.apply(lock("l", 7));
    driver.apply(Command::Put(put("k", 0)));
    let chunk = snapshot::chunks(driver.machine.view(), 1 << 20).next().expect("a chunk");
    assert_eq!(chunk, BEFORE_LEVELS);
    driver.apply(Command::PinLevel { level: Some(level::LOWEST) });
    let pinned = snapshot::chunks(driver.machine.view(), 1 << 20).next().expect("a chunk");
    assert_eq!(pinned[0], snapshot::FORMAT, "a release without levels would lose the pin");
    let hash = driver.machine.state().hash();
    driver.apply(Command::PinLevel { level: None });
    let freed = snapshot::chunks(driver.machine.view(), 1 << 20).next().expect("a chunk");
    assert_eq!(freed[0], BEFORE_LEVELS[0]);
    assert_ne!(driver.machine.state().hash(), hash);
}

#[test]
fn a_command_of_a_later_release_is_told_apart_from_damage() {
    let mut bytes = Vec::new();
    codec::encode(&Envelope { wall_ms: 7, origin: None, command: Command::RaiseLevel { level: 1 } }, &mut bytes);
    let tag = bytes.len() - 2;
    for unknown in bytes[tag] + 4..=u8::MAX {
        bytes[tag] = unknown;
        let error = codec::decode(bytes.clone().into()).expect_err("no such command");
        assert_eq!(error, codec::DecodeError::UnknownCommand { tag: unknown });
        assert!(error.is_of_later_release());
    }
    bytes[tag] = 0;
    let error = codec::decode(bytes.clone().into()).expect_err("no command");
    assert!(!error.is_of_later_release(), "{error}");
    bytes[0] = codec::FORMAT + 1;
    let error = codec::decode(bytes.into()).expect_err("a newer format");
    assert_eq!(error, codec::DecodeError::UnknownFormat { format: codec::FORMAT + 1 });
}

#[test]
fn a_snapshot_with_a_chunk_missing_twice_or_out_of_order_is_refused() {
    let mut driver = Driver::new();
    for number in 0..100 {
        driver.apply(Command::Put(put(format!("k{number}"), 0)));
    }
    let chunks: Vec<_> = snapshot::chunks(driver.machine.view(), 200).collect();
    assert!(chunks.len() > 5);
    let restore = |order: &[usize]| {
        let mut restore = Restore::new();
        order.iter().try_for_each(|index| restore.chunk(&chunks[*index]))?;
        restore.finish()
    };
    let all: Vec<_> = (0..chunks.len()).collect();
    assert!(restore(&all).is_ok());
    for index in 0..chunks.len() {
        let mut missing = all.clone();
        missing.remove(index);
        assert!(restore(&missing).is_err(), "without chunk {index}");
        let mut twice = all.clone();
        twice.insert(index, index);
        assert!(restore(&twice).is_err(), "chunk {index} twice");
    }
    let mut swapped = all.clone();
    swapped.swap(2, 3);
    assert!(restore(&swapped).is_err());
}

#[test]
fn a_lock_from_before_there_were_several_names_is_still_read() {
    let envelope = Envelope { wall_ms: 7, origin: None, command: lock("l", 1) };
    let mut bytes = Vec::new();
    codec::encode(&envelope, &mut bytes);
    // Its tag was 8, and it ended before names, flags and epoch.
    let tag = bytes.iter().position(|byte| *byte == 16).unwrap();
    bytes[tag] = 8;
    assert_eq!(bytes.split_off(bytes.len() - 3), [0, 0, 0]);
    assert_eq!(codec::decode(bytes.into()).unwrap(), envelope);
}

#[test]
fn modes_keep_their_bytes() {
    let modes = [
        (Mode::Exclusive, &[0][..]),
        (Mode::Shared, &[1]),
        (Mode::Slots(5), &[2, 5]),
        // Came later: an older log or snapshot has none of these.
        (Mode::Barrier(5), &[3, 5]),
    ];
    for (mode, bytes) in modes {
        let Command::Lock(lock) = lock("l", 1) else { unreachable!() };
        let command = Command::Lock(Box::new(Lock { mode, ..*lock }));
        let mut encoded = Vec::new();
        codec::encode(&Envelope { wall_ms: 7, origin: None, command }, &mut encoded);
        // Behind it: value, owner, holder, metadata, names, flags and epoch, all empty.
        let before_the_end = &encoded[..encoded.len() - 7];
        assert!(before_the_end.ends_with(&[&[0; 8][..], bytes].concat()), "{mode:?} is {encoded:?}");
    }
}

#[test]
fn so_many_meet_at_a_barrier_and_no_more() {
    let mut driver = Driver::new();
    let parties = limits::BARRIER_PARTIES;
    let arrive = |lease, parties| {
        let Command::Lock(lock) = lock("l", lease) else { unreachable!() };
        Command::Lock(Box::new(Lock { mode: Mode::Barrier(parties), ..*lock }))
    };
    for lease in 1..=LeaseId::from(parties) {
        driver.grant(lease);
    }
    assert_eq!(driver.apply(arrive(1, parties + 1)).reply, Err(Refusal::ImpossibleBarrier));
    for lease in 1..LeaseId::from(parties) {
        assert!(driver.apply(arrive(lease, parties)).lock_changes.is_empty());
    }
    let all = driver.apply(arrive(LeaseId::from(parties), parties));
    assert_eq!(all.lock_changes.len(), parties as usize, "all at once");
    let slots: Vec<_> = driver.machine.state().lock_queue(b"l").map(|entry| entry.slot).collect();
    assert_eq!(slots, (0..parties).collect::<Vec<_>>());
}
