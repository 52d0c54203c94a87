use super::*;
use tenure_storage::{MemoryDisk, OsDisk};

fn directory() -> &'static Path {
    Path::new("/bars")
}

fn open(disk: &MemoryDisk) -> Result<(Journal<MemoryDisk>, Recovered), OpenError> {
    Journal::open(disk.clone(), directory(), Kind::Bars)
}

/// The bodies of a life: of all lengths, with sector-sized ones among them.
fn body(number: u64) -> Vec<u8> {
    let length = [3, 700, 40, 1_500, 0, 487][number as usize % 6];
    number.to_le_bytes().into_iter().chain((0..length).map(|position| (position * 7 + 1) as u8)).collect()
}

/// Appends until the disk fails, rewriting now and then; the number of the last frame acknowledged.
fn live(disk: &MemoryDisk, from: u64, until: u64) -> u64 {
    let Ok((mut journal, recovered)) = open(disk) else { return from };
    let mut live = recovered.frames;
    for number in from + 1..=until {
        if number.is_multiple_of(5) && journal.rewrite(live.clone()).is_err() {
            return number - 1;
        }
        if journal.append(&body(number)).is_err() {
            return number - 1;
        }
        live.push(body(number));
    }
    until
}

fn check(disk: &MemoryDisk, acknowledged: u64, attempted: u64, what: &str) -> u64 {
    let (_, recovered) = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = recovered.frames.len() as u64;
    assert!((acknowledged..=attempted).contains(&found), "{what}: {acknowledged} acknowledged, {found} found");
    for (position, frame) in recovered.frames.iter().enumerate() {
        assert_eq!(*frame, body(position as u64 + 1), "{what}");
    }
    found
}

#[test]
fn whatever_was_acknowledged_survives_a_power_cut_at_any_operation() {
    let rehearsal = MemoryDisk::new(0);
    live(&rehearsal, 0, 12);
    for operation in 1..=rehearsal.operations() + 1 {
        for seed in 0..16 {
            let disk = MemoryDisk::new(seed);
            disk.cut_power_at(operation);
            let acknowledged = live(&disk, 0, 12);
            disk.crash();
            let what = format!("seed {seed}, power cut at operation {operation}");
            let found = check(&disk, acknowledged, acknowledged + 1, &what);
            disk.crash();
            assert_eq!(check(&disk, found, found, &what), found, "what was shown once is there for good");
            disk.kill();
            live(&disk, found, found + 7);
            disk.crash();
            check(&disk, found + 7, found + 7, &what);
        }
    }
}

#[test]
fn a_failed_sync_ends_it_and_what_is_found_later_stays() {
    for nth in 1..=12 {
        for seed in 0..16 {
            let disk = MemoryDisk::new(seed);
            live(&disk, 0, 3);
            disk.kill();
            disk.fail_sync(nth);
            let acknowledged = live(&disk, 3, 12).max(3);
            disk.kill();
            let what = format!("seed {seed}, sync {nth} failed");
            let found = check(&disk, acknowledged, acknowledged + 1, &what);
            disk.crash();
            check(&disk, found, found, &what);
        }
    }
}

#[test]
fn after_a_failure_nothing_is_accepted() {
    let disk = MemoryDisk::new(1);
    let (mut journal, _) = open(&disk).unwrap();
    disk.fail_write(1);
    assert!(matches!(journal.append(b"one"), Err(Fault::Io { .. })));
    assert!(matches!(journal.append(b"two"), Err(Fault::Poisoned { .. })));
    assert!(matches!(journal.rewrite([]), Err(Fault::Poisoned { .. })));
}

#[test]
fn a_full_disk_is_named() {
    let disk = MemoryDisk::new(1);
    let (mut journal, _) = open(&disk).unwrap();
    disk.set_capacity(Some(200));
    assert!(matches!(journal.append(&[1; 500]), Err(Fault::DiskFull { .. })));
}

#[test]
fn every_flipped_bit_is_an_error_that_names_file_and_offset() {
    let life = MemoryDisk::new(1);
    live(&life, 0, 8);
    life.kill();
    for file in life.files() {
        let bytes = life.contents(&file).unwrap();
        for offset in 0..bytes.len() as u64 {
            let disk = MemoryDisk::new(1);
            disk.create_directory(directory()).unwrap();
            for copied in life.files() {
                disk.set_contents(&copied, life.contents(&copied));
            }
            disk.flip_bit(&file, offset, (offset % 8) as u8);
            match open(&disk).map(drop) {
                Err(OpenError::Corrupt { file: named, offset: at, .. }) => assert!(named == file && at <= offset),
                Err(OpenError::Newer { .. }) => assert!((8..12).contains(&offset)),
                other => panic!("{} at {offset}: {other:?}", file.display()),
            }
        }
    }
}

#[test]
fn a_directory_has_one_process_and_one_purpose() {
    let disk = MemoryDisk::new(1);
    let (journal, _) = open(&disk).unwrap();
    assert!(matches!(open(&disk).map(drop), Err(OpenError::InUse { .. })));
    drop(journal);
    assert!(open(&disk).is_ok());
    let other = Journal::open(disk.clone(), directory(), Kind::Data);
    assert!(matches!(other.map(drop), Err(OpenError::OtherKind { .. })));
}

#[test]
fn what_is_missing_or_foreign_is_not_begun_anew() {
    let disk = MemoryDisk::new(1);
    live(&disk, 0, 3);
    disk.kill();
    let journal = directory().join("journal-0000000000000001");
    let bytes = disk.contents(&journal);
    disk.set_contents(&journal, None);
    assert!(matches!(open(&disk).map(drop), Err(OpenError::Corrupt { file, .. }) if file == journal));
    disk.set_contents(&journal, bytes);
    disk.set_contents(&directory().join(STAMP), None);
    assert!(matches!(open(&disk).map(drop), Err(OpenError::MissingStamp { .. })));

    let disk = MemoryDisk::new(1);
    disk.create_directory(directory()).unwrap();
    disk.set_contents(&directory().join("thesis.txt"), Some(Vec::new()));
    assert!(matches!(open(&disk).map(drop), Err(OpenError::Foreign { name, .. }) if name == "thesis.txt"));
}

#[test]
fn the_real_disk_cut_at_every_byte_loses_what_was_cut_only() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("bars");
    let (mut journal, _) = Journal::open(OsDisk::default(), &directory, Kind::Bars).unwrap();
    let mut ends = vec![journal.end];
    for number in 1..=4 {
        journal.append(&body(number)).unwrap();
        ends.push(journal.end);
    }
    drop(journal);
    let path = directory.join("journal-0000000000000001");
    let bytes = std::fs::read(&path).unwrap();
    for cut in FILE_HEADER_BYTES..=bytes.len() {
        for name in std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
            if name.file_name().unwrap().to_string_lossy().starts_with(PREFIX) {
                std::fs::remove_file(name).unwrap();
            }
        }
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let (mut journal, recovered) = Journal::open(OsDisk::default(), &directory, Kind::Bars).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut as u64).count() - 1;
        assert_eq!((recovered.frames.len(), recovered.torn_tail.is_some()), (whole, ends[whole] < cut as u64));
        journal.append(b"goes on").unwrap();
        drop(journal);
        let (_, recovered) = Journal::open(OsDisk::default(), &directory, Kind::Bars).unwrap();
        assert_eq!(recovered.frames.last().unwrap(), b"goes on");
    }
}
