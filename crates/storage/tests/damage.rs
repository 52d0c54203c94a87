//! Bytes that are not what was written: cuts, flips, writes gone astray, files lost or swapped. Either
//! nothing acknowledged is missing, or the opening fails and names file and byte.

mod harness;

use std::path::{Path, PathBuf};

use harness::{Member, Operation, State, directory, entries, meta, open};
use tenure_storage::{HardState, MemoryDisk, OpenError};

fn append(from: u64, to: u64, bytes: usize) -> Operation {
    let hard_state = HardState { term: 1, vote: 2, commit: from - 1 };
    Operation::Append { hard_state: Some(hard_state), entries: entries(from, to, 1, bytes), sync: true }
}

fn segment(sequence: u64) -> PathBuf {
    directory().join(format!("log-{sequence:016x}"))
}

/// The same files on another disk: opening changes a directory, so each trial has its own.
fn copy(disk: &MemoryDisk) -> MemoryDisk {
    let copy = MemoryDisk::new(1);
    for file in disk.files() {
        copy.set_contents(&file, disk.contents(&file));
    }
    copy
}

fn recovered(disk: &MemoryDisk) -> State {
    State::from(&open(disk, &directory()).unwrap_or_else(|error| panic!("{error}")).1)
}

#[track_caller]
fn assert_corrupt(disk: &MemoryDisk, file: &Path, offset: u64) {
    match open(disk, &directory()) {
        Err(OpenError::Corrupt { file: found, offset: at, .. }) => assert_eq!((found.as_path(), at), (file, offset)),
        Err(error) => panic!("another error: {error}"),
        Ok((_, recovered)) => panic!("damage unnoticed; recovered {:?}", State::from(&recovered)),
    }
}

/// A batch in a segment: where its bytes lie, without the padding.
#[derive(Clone, Copy, Debug)]
struct Extent {
    begin: usize,
    end: usize,
}

/// The batches of a segment, by walking their headers.
fn batches(bytes: &[u8]) -> Vec<Extent> {
    let mut found = Vec::new();
    let mut begin = 512;
    while bytes.get(begin..begin + 4) == Some(b"BTCH") {
        let body = u32::from_le_bytes(bytes[begin + 4..begin + 8].try_into().unwrap()) as usize;
        found.push(Extent { begin, end: begin + 32 + body });
        begin = (begin + 32 + body).next_multiple_of(512);
    }
    found
}

/// One segment with several batches of every kind of record; the state before and after the last of them.
fn one_segment() -> (MemoryDisk, State, State) {
    let mut member = Member::initialised(5);
    member.options.segment_bytes = 64 << 10;
    member.run(&append(2, 3, 100)).unwrap();
    member.run(&Operation::Install { index: 9, term: 1 }).unwrap();
    member.run(&append(10, 12, 400)).unwrap();
    let before = member.durable.clone().unwrap();
    member.run(&append(13, 14, 900)).unwrap();
    let after = member.durable.clone().unwrap();
    (copy(&member.disk), before, after)
}

#[test]
fn a_log_cut_at_every_byte_of_its_last_batch_keeps_all_before() {
    let (disk, before, after) = one_segment();
    let bytes = disk.contents(&segment(1)).unwrap();
    let last = *batches(&bytes).last().unwrap();
    assert!(last.end - last.begin > 1800);
    for length in last.begin..=last.end {
        let disk = copy(&disk);
        disk.set_contents(&segment(1), Some(bytes[..length].to_vec()));
        let expected = if length == last.end { &after } else { &before };
        assert_eq!(recovered(&disk), *expected, "cut at {length}");
        // And once more, from what the first recovery left.
        assert_eq!(recovered(&disk), *expected, "cut at {length}, second time");
    }
}

#[test]
fn every_flipped_bit_before_the_last_batch_is_corruption() {
    let (disk, _, after) = one_segment();
    let bytes = disk.contents(&segment(1)).unwrap();
    let batches = batches(&bytes);
    let (_, earlier) = batches.split_last().unwrap();
    assert!(earlier.len() >= 4);
    for extent in earlier {
        for offset in extent.begin..extent.end {
            let disk = copy(&disk);
            disk.flip_bit(&segment(1), offset as u64, (offset % 8) as u8);
            // A segment without its first batch has no beginning.
            let at = if extent.begin == 512 { 0 } else { extent.begin as u64 };
            assert_corrupt(&disk, &segment(1), at);
        }
        // Padding is no data.
        for offset in (extent.end..extent.end.next_multiple_of(512)).step_by(17) {
            let disk = copy(&disk);
            disk.flip_bit(&segment(1), offset as u64, 3);
            assert_eq!(recovered(&disk), after);
        }
    }
    for offset in 0..52 {
        let disk = copy(&disk);
        disk.flip_bit(&segment(1), offset, 0);
        assert_corrupt(&disk, &segment(1), 0);
    }
}

#[test]
fn a_flipped_bit_in_the_last_batch_is_a_torn_tail_until_a_later_one_vouches_for_it() {
    let (disk, before, after) = one_segment();
    let bytes = disk.contents(&segment(1)).unwrap();
    let last = *batches(&bytes).last().unwrap();
    for offset in last.begin..last.end {
        let torn = copy(&disk);
        torn.flip_bit(&segment(1), offset as u64, 5);
        let (store, recovered) = open(&torn, &directory()).unwrap();
        drop(store);
        assert_eq!(State::from(&recovered), before);
        let tail = recovered.torn_tail.unwrap();
        assert_eq!((tail.file, tail.offset), (segment(1), last.begin as u64));
        // Cut off once and for all.
        assert_eq!(open(&torn, &directory()).unwrap().1.torn_tail, None);
    }
    // Opening the directory and closing it both leave such a batch.
    let (store, _) = open(&disk, &directory()).unwrap();
    store.close().unwrap();
    for offset in last.begin..last.end {
        let damaged = copy(&disk);
        damaged.flip_bit(&segment(1), offset as u64, 5);
        assert_corrupt(&damaged, &segment(1), last.begin as u64);
    }
    assert_eq!(recovered(&disk), after);
}

#[test]
fn whatever_part_of_one_unsynced_batch_survives_is_a_torn_tail() {
    let (disk, before, after) = one_segment();
    let whole = disk.contents(&segment(1)).unwrap();
    let last = *batches(&whole).last().unwrap();
    let sectors = (last.end - last.begin).div_ceil(512);
    for kept in 0..1u32 << sectors {
        let mut bytes = whole.clone();
        for sector in (0..sectors).filter(|sector| kept & (1 << sector) == 0) {
            let begin = last.begin + sector * 512;
            bytes[begin..begin + 512].fill(0);
        }
        let disk = copy(&disk);
        disk.set_contents(&segment(1), Some(bytes));
        let expected = if kept + 1 == 1 << sectors { &after } else { &before };
        assert_eq!(recovered(&disk), *expected, "sectors {kept:b}");
        assert_eq!(recovered(&disk), *expected, "sectors {kept:b}, second time");
    }
}

/// Several segments; the newest snapshot needs all of them.
fn many_segments() -> (MemoryDisk, State) {
    let mut member = Member::initialised(6);
    for index in (2..30).step_by(2) {
        member.run(&append(index, index + 1, 900)).unwrap();
    }
    (copy(&member.disk), member.durable.clone().unwrap())
}

fn used_segments(disk: &MemoryDisk) -> Vec<PathBuf> {
    let used = |file: &PathBuf| !batches(&disk.contents(file).unwrap()).is_empty();
    disk.files().into_iter().filter(|file| file.to_string_lossy().contains("log-")).filter(used).collect()
}

#[test]
fn the_end_of_every_segment_is_vouched_for_by_the_next() {
    let (disk, state) = many_segments();
    assert_eq!(recovered(&copy(&disk)), state);
    let segments = used_segments(&disk);
    assert!(segments.len() > 3);
    for file in &segments[..segments.len() - 1] {
        let last = *batches(&disk.contents(file).unwrap()).last().unwrap();
        for offset in (last.begin..last.end).step_by(7) {
            let disk = copy(&disk);
            disk.flip_bit(file, offset as u64, 1);
            assert_corrupt(&disk, file, last.begin as u64);
        }
    }
}

#[test]
fn the_beginning_of_the_last_segment_is_vouched_for_by_what_follows_it() {
    let (disk, _) = many_segments();
    let segments = used_segments(&disk);
    let last = segments.last().unwrap();
    let batches = batches(&disk.contents(last).unwrap());
    assert!(batches.len() > 1);
    for offset in (0..52).chain(batches[0].begin..batches[0].end) {
        let disk = copy(&disk);
        disk.flip_bit(last, offset as u64, 6);
        assert_corrupt(&disk, last, 512);
    }
}

#[test]
fn a_missing_segment_is_named() {
    let (disk, _) = many_segments();
    let segments = used_segments(&disk);
    for file in &segments[1..segments.len() - 1] {
        let disk = copy(&disk);
        disk.set_contents(file, None);
        assert_corrupt(&disk, file, 0);
    }
    // Without the first, the log does not reach back to the snapshot.
    let first = copy(&disk);
    first.set_contents(&segments[0], None);
    assert_corrupt(&first, &segments[1], 0);
    // Without any, nothing says how the member had voted.
    for file in disk.files().iter().filter(|file| file.to_string_lossy().contains("log-")) {
        disk.set_contents(file, None);
    }
    assert_corrupt(&disk, &segment(1), 0);
}

#[test]
fn swapped_and_foreign_segments_are_named() {
    let (disk, _) = many_segments();
    let segments = used_segments(&disk);
    for (position, file) in segments.iter().enumerate() {
        let other = &segments[(position + 1) % segments.len()];
        let disk = copy(&disk);
        disk.set_contents(file, disk.contents(other));
        assert_corrupt(&disk, file, 0);
    }
}

#[test]
fn a_misdirected_write_is_named_when_it_was_acknowledged() {
    for elsewhere in [0, 512, 1024, 4096, 7168] {
        let mut member = Member::initialised(8);
        for index in 2..5 {
            member.run(&append(index, index, 300)).unwrap();
        }
        let before = batches(&member.disk.contents(&segment(1)).unwrap());
        let end = before.last().unwrap().end.next_multiple_of(512) as u64;
        assert!(end != elsewhere);
        member.disk.misdirect_write(1, elsewhere);
        member.run(&append(5, 5, 300)).unwrap();
        member.run(&append(6, 6, 300)).unwrap();
        let disk = copy(&member.disk);
        match open(&disk, &directory()) {
            Err(OpenError::Corrupt { file, .. }) => assert_eq!(file, segment(1)),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("a write to {elsewhere} instead of {end} went unnoticed"),
        }
    }
}

#[test]
fn a_write_over_the_beginning_of_a_segment_is_named() {
    let mut member = Member::initialised(8);
    let mut index = 2;
    // Until the second segment has its first batch.
    while member.disk.contents(&segment(2)).is_none_or(|bytes| batches(&bytes).is_empty()) {
        member.run(&append(index, index, 300)).unwrap();
        index += 1;
    }
    // The next one hides that first batch and that there is a segment at all, and nothing comes after it.
    member.disk.misdirect_write(1, 0);
    member.run(&append(index, index, 900)).unwrap();
    match open(&copy(&member.disk), &directory()) {
        Err(OpenError::Corrupt { file, .. }) => assert_eq!(file, segment(2)),
        Err(error) => panic!("{error}"),
        Ok((_, recovered)) => panic!("the log ends at {:?}, and nobody noticed", recovered.entries.last()),
    }
}

#[test]
fn stale_batches_behind_the_end_are_never_read() {
    let (old, _) = many_segments();
    let mut member = Member::initialised(9);
    member.run(&append(2, 2, 100)).unwrap();
    let expected = member.durable.clone().unwrap();
    let fresh = member.disk.contents(&segment(1)).unwrap();
    let used = batches(&fresh).last().unwrap().end.next_multiple_of(512);
    let with_stale = |source: u64| {
        let stale = old.contents(&segment(source)).unwrap();
        let bytes = [&fresh[..used], &stale[512..512 + fresh.len() - used]].concat();
        let disk = copy(&member.disk);
        disk.set_contents(&segment(1), Some(bytes));
        disk
    };
    // Of another segment: as good as zeroes, and cleared.
    let disk = with_stale(2);
    assert_eq!(recovered(&disk), expected);
    assert_eq!(recovered(&disk), expected);
    assert_eq!(batches(&disk.contents(&segment(1)).unwrap()).len(), batches(&fresh).len() + 2);
    // Of this very segment, at another place: somebody wrote where they should not have.
    assert_corrupt(&with_stale(1), &segment(1), used as u64);
}

#[test]
fn a_damaged_snapshot_is_named_or_done_without() {
    let mut member = Member::initialised(11);
    member.run(&append(2, 9, 200)).unwrap();
    member
        .run(&Operation::Append {
            hard_state: Some(HardState { term: 1, vote: 2, commit: 9 }),
            entries: vec![],
            sync: true,
        })
        .unwrap();
    let before = member.durable.clone().unwrap();
    // Finished, but the store has not been told: the older snapshot and all of the log are still there.
    let newer = meta(7, 1);
    let mut writer = member.store().snapshot_writer(newer.clone()).unwrap();
    for chunk in harness::chunks(&newer) {
        writer.write_chunk(&chunk).unwrap();
    }
    writer.finish().unwrap();
    let file = directory().join("snapshot-0000000000000007-0000000000000001");
    let length = member.disk.contents(&file).unwrap().len() as u64;
    for offset in 0..length {
        let disk = copy(&member.disk);
        disk.flip_bit(&file, offset, 2);
        let (_, recovered) = open(&disk, &directory()).unwrap();
        assert_eq!(recovered.damaged_snapshots, std::slice::from_ref(&file));
        assert_eq!(State::from(&recovered), before);
    }
    // Once the store builds on it, there is nothing to fall back to.
    member.store().snapshot_saved(newer).unwrap();
    for offset in 0..length {
        let disk = copy(&member.disk);
        disk.flip_bit(&file, offset, 2);
        match open(&disk, &directory()) {
            Err(OpenError::Corrupt { file: found, .. }) => assert_eq!(found, file),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("byte {offset} of the only snapshot is damaged, and nobody noticed"),
        }
    }
}

#[test]
fn every_flipped_bit_of_the_stamp_is_noticed() {
    let member = Member::initialised(12);
    let stamp = directory().join("STAMP");
    for bit in 0..member.disk.contents(&stamp).unwrap().len() * 8 {
        let disk = copy(&member.disk);
        disk.flip_bit(&stamp, (bit / 8) as u64, (bit % 8) as u8);
        match open(&disk, &directory()) {
            Err(OpenError::Corrupt { file, .. }) => assert_eq!(file, stamp),
            Err(OpenError::Newer { found, supported, .. }) => assert!(found > supported),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("bit {bit}"),
        }
    }
}

#[test]
fn a_directory_that_lost_its_stamp_is_not_begun_anew() {
    let member = Member::initialised(13);
    let disk = copy(&member.disk);
    disk.set_contents(&directory().join("STAMP"), None);
    let opened = tenure_storage::Store::open(disk, &directory(), harness::options());
    assert!(matches!(opened, Err(OpenError::MissingStamp { .. })));
}
