//! A disk that fails or fills while the store is running, and callers that break a rule.

mod harness;

use harness::{Member, Operation, directory, entries, meta, open, options};
use tenure_storage::{Fault, HardState, MemoryDisk, OpenError, Opened, Options, Recovered, Store};

#[test]
fn after_a_failed_write_or_sync_nothing_more_is_accepted() {
    for fail in [|member: &Member| member.disk.fail_write(1), |member: &Member| member.disk.fail_sync(1)] {
        for seed in 0..50 {
            let mut member = Member::initialised(seed);
            let before = Operation::Append { hard_state: None, entries: entries(2, 5, 1, 300), sync: true };
            member.run(&before).unwrap();
            fail(&member);
            let failed = entries(6, 9, 1, 300);
            let fault = member.store().append(None, &failed, true).unwrap_err();
            assert!(fault.to_string().contains("injected fault"), "{fault}");
            let operations = member.disk.operations();
            for sync in [true, false] {
                let fault = member.store().append(None, &[], sync).unwrap_err();
                assert!(matches!(&fault, Fault::Poisoned { cause } if cause.contains("injected fault")), "{fault}");
            }
            assert!(matches!(member.store().append_group([]), Err(Fault::Poisoned { .. })));
            assert!(matches!(member.store().sync(), Err(Fault::Poisoned { .. })));
            assert!(matches!(member.store().snapshot_saved(meta(3, 1)), Err(Fault::Poisoned { .. })));
            assert!(matches!(member.store().install_snapshot(meta(30, 1), None), Err(Fault::Poisoned { .. })));
            assert_eq!(member.disk.operations(), operations, "a poisoned store touched the disk");
            // The batch that failed is there as a whole or not at all, and nothing before it is lost.
            member.pending.as_mut().unwrap().entries.extend(failed);
            member.disk.crash();
            member.open_and_check().unwrap();
        }
    }
}

/// The page cache outlives the process, and the kernel takes the pages of a failed sync for written: what recovery
/// reads is on no disk until it is written again.
#[test]
fn what_a_restart_after_a_failed_sync_brings_back_survives_a_power_cut() {
    for seed in 0..50 {
        let mut member = Member::initialised(seed);
        member.disk.fail_sync(1);
        member.store().append(None, &entries(2, 5, 1, 300), true).unwrap_err();
        let disk = member.disk.clone();
        drop(member);
        disk.kill();
        let (mut store, recovered) = existing(&disk);
        store.append(None, &entries(6, 6, 1, 300), true).unwrap();
        drop(store);
        disk.crash();
        let (_, again) = existing(&disk);
        assert_eq!(again.entries[..recovered.entries.len()], recovered.entries, "seed {seed}");
        assert_eq!(again.entries.len(), recovered.entries.len() + 1, "seed {seed}");
    }
}

fn existing(disk: &MemoryDisk) -> (Store<MemoryDisk>, Recovered) {
    match Store::open(disk.clone(), &directory(), options()).unwrap() {
        Opened::Existing(store, recovered) => (store, recovered),
        Opened::Empty(_) => panic!("it was initialised"),
    }
}

#[test]
fn a_disk_that_fills_up_is_announced_and_then_refused_and_nothing_is_lost() {
    let mut member = Member::initialised(3);
    let used: usize = member.disk.files().iter().map(|file| member.disk.contents(file).unwrap().len()).sum();
    member.disk.set_capacity(Some(used as u64 + 100));
    let mut announced = false;
    let mut index = 2;
    let fault = loop {
        let appended = member.store().append(None, &entries(index, index, 1, 700), true);
        match appended {
            Ok(()) => index += 1,
            Err(fault) => break fault,
        }
        if let Some(warning) = member.store().early_warning() {
            announced = true;
            assert!(warning.to_string().starts_with("disk full: "), "{warning}");
        }
    };
    assert!(announced, "no warning before the fault");
    assert!(index > 4, "the prepared room was not used");
    assert!(matches!(fault, Fault::DiskFull { .. }) && fault.to_string().starts_with("disk full: "), "{fault}");
    assert!(matches!(member.store().append(None, &[], true), Err(Fault::Poisoned { .. })));
    member.disk.set_capacity(None);
    member.disk.crash();
    let (mut store, recovered) = open(&member.disk, &directory()).unwrap();
    assert_eq!(recovered.entries, entries(2, index - 1, 1, 700));
    store.append(None, &entries(index, index + 5, 1, 700), true).unwrap();
}

#[test]
fn a_snapshot_that_makes_room_lets_the_next_segment_be_prepared() {
    let mut member = Member::initialised(4);
    for index in 2..20 {
        let hard_state = Some(HardState { term: 1, vote: 0, commit: index });
        member.run(&Operation::Append { hard_state, entries: entries(index, index, 1, 700), sync: true }).unwrap();
    }
    let used: usize = member.disk.files().iter().map(|file| member.disk.contents(file).unwrap().len()).sum();
    member.disk.set_capacity(Some(used as u64 + 2000));
    let mut index = 20;
    while member.store().early_warning().is_none() {
        member.store().append(None, &entries(index, index, 1, 700), true).unwrap();
        index += 1;
    }
    let saved = meta(19, 1);
    let mut writer = member.store().snapshot_writer(saved.clone()).unwrap();
    writer.write_chunk(b"small").unwrap();
    writer.finish().unwrap();
    member.store().snapshot_saved(saved).unwrap();
    for index in index..index + 20 {
        member.store().append(None, &entries(index, index, 1, 100), true).unwrap();
    }
    assert!(member.store().early_warning().is_none());
}

#[test]
fn a_snapshot_that_does_not_fit_leaves_the_log_alone() {
    let mut member = Member::initialised(5);
    member.run(&Operation::Append { hard_state: None, entries: entries(2, 4, 1, 100), sync: true }).unwrap();
    let files = member.disk.files();
    member.disk.set_capacity(Some(0));
    let mut writer = member.store().snapshot_writer(meta(3, 1)).unwrap();
    let noise: Vec<u8> = (0..1u32 << 20).map(|value| (value.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let fault = writer.write_chunk(&noise).and_then(|()| writer.finish().map(drop)).unwrap_err();
    assert!(matches!(fault, Fault::DiskFull { .. }), "{fault}");
    assert_eq!(member.disk.files(), files, "something was left behind");
    member.run(&Operation::Append { hard_state: None, entries: entries(5, 5, 1, 100), sync: true }).unwrap();
    member.disk.crash();
    member.open_and_check().unwrap();
}

#[test]
fn a_failed_sync_of_a_snapshot_gives_it_no_name() {
    let mut member = Member::initialised(6);
    let mut writer = member.store().snapshot_writer(meta(1, 2)).unwrap();
    writer.write_chunk(b"chunk").unwrap();
    member.disk.fail_sync(1);
    let fault = writer.finish().unwrap_err();
    assert!(fault.to_string().contains("injected fault"), "{fault}");
    assert!(!member.disk.files().iter().any(|file| file.ends_with("snapshot-0000000000000001-0000000000000002")));
}

#[test]
fn a_broken_rule_is_refused_and_the_store_goes_on() {
    let mut member = Member::initialised(7);
    let hard_state = Some(HardState { term: 1, vote: 1, commit: 3 });
    member.run(&Operation::Append { hard_state, entries: entries(2, 6, 1, 10), sync: true }).unwrap();
    let refused = |result: Result<(), Fault>| assert!(matches!(result, Err(Fault::Refused { .. })), "{result:?}");
    let store = member.store();
    refused(store.append(None, &entries(8, 8, 1, 10), true)); // a gap
    refused(store.append(None, &entries(3, 3, 2, 10), true)); // committed
    refused(store.append(None, &entries(1, 1, 2, 10), true)); // in the snapshot
    let half = [entries(7, 7, 1, 10), entries(9, 9, 1, 10)].concat();
    refused(store.append(None, &half, true)); // the first of the two is fine
    refused(store.snapshot_saved(meta(50, 1))); // beyond the log
    refused(store.install_snapshot(meta(2, 1), None)); // behind the commit index
    assert!(matches!(store.snapshot_saved(meta(3, 1)), Err(Fault::Io { .. }))); // there is no such file
    assert!(matches!(store.install_snapshot(meta(9, 1), None), Err(Fault::Io { .. }))); // nor such
    assert_eq!(store.last_index(), 6);
    member.run(&Operation::Append { hard_state: None, entries: entries(7, 7, 2, 10), sync: true }).unwrap();
    member.disk.crash();
    member.open_and_check().unwrap();
    assert_eq!(member.durable.unwrap().last_index(), 7);
}

#[test]
fn the_commit_index_never_points_beyond_the_log() {
    let mut member = Member::initialised(8);
    let hard_state = Some(HardState { term: 4, vote: 1, commit: 1000 });
    member.run(&Operation::Append { hard_state, entries: entries(2, 3, 4, 10), sync: true }).unwrap();
    member.disk.crash();
    member.open_and_check().unwrap();
    assert_eq!(member.durable.unwrap().hard_state, HardState { term: 4, vote: 1, commit: 3 });
}

#[test]
fn one_group_costs_one_write_and_one_sync() {
    let mut member = Member::new(9);
    member.options = Options { segment_bytes: 1 << 20 };
    member.initialise().unwrap();
    let groups: Vec<_> = (2..40).map(|index| (None, entries(index, index, 1, 100))).collect();
    let before = member.disk.operations();
    member.run(&Operation::Groups(groups)).unwrap();
    assert_eq!(member.disk.operations() - before, 2);
    // What nobody waits for costs nothing.
    let hard_state = Some(HardState { term: 1, vote: 0, commit: 39 });
    member.run(&Operation::Append { hard_state, entries: vec![], sync: false }).unwrap();
    assert_eq!(member.disk.operations() - before, 2);
}

#[test]
fn a_directory_is_opened_once() {
    let mut member = Member::initialised(10);
    let disk = member.disk.clone();
    let in_use = || matches!(Store::open(disk.clone(), &directory(), options()), Err(OpenError::InUse { .. }));
    assert!(in_use());
    // A handle to its snapshots keeps it, too: somebody may still be writing one.
    let snapshots = member.store().snapshots();
    drop(member);
    assert!(in_use());
    drop(snapshots);
    assert!(!in_use());
}

#[test]
fn old_segments_and_snapshots_go_when_a_snapshot_is_saved() {
    let mut member = Member::initialised(11);
    for index in 2..60 {
        let hard_state = Some(HardState { term: 1, vote: 0, commit: index });
        member.run(&Operation::Append { hard_state, entries: entries(index, index, 1, 900), sync: true }).unwrap();
    }
    let count = |member: &Member, kind: &str| {
        member.disk.files().iter().filter(|file| file.to_string_lossy().contains(kind)).count()
    };
    let before = count(&member, "log-");
    member.run(&Operation::Snapshot { index: 50 }).unwrap();
    assert!(count(&member, "log-") + 4 < before, "{} of {before} segments left", count(&member, "log-"));
    assert_eq!(count(&member, "snapshot-"), 1);
    member.disk.crash();
    member.open_and_check().unwrap();
}

#[test]
fn an_interrupted_beginning_can_be_begun_anew_by_another() {
    let member = Member::initialised(12);
    let operations = member.disk.operations();
    for operation in 1..operations {
        let mut member = Member::new(operation);
        member.disk.cut_power_at(operation);
        assert!(member.initialise().is_err());
        member.disk.crash();
        let Ok(Opened::Empty(blank)) = Store::open(member.disk.clone(), &directory(), options()) else {
            // The stamp may have made it, unacknowledged.
            assert!(operation + 1 >= operations);
            continue;
        };
        let identity = tenure_storage::Identity { cluster_id: 9, member_id: 9, directory_id: 9 };
        blank.initialise(identity, meta(5, 3), harness::chunks(&meta(5, 3))).unwrap();
        member.disk.crash();
        let (_, recovered) = open(&member.disk, &directory()).unwrap();
        assert_eq!(recovered.identity, identity);
        assert_eq!(recovered.snapshot, meta(5, 3));
    }
}
