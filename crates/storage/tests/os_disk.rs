//! The real disk: what only an operating system can refuse.

mod harness;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use harness::{IDENTITY, chunks, entries, meta};
use tempfile::TempDir;
use tenure_storage::{
    HardState, OpenError, Opened, Options, OsDisk, Recovered, SnapshotDecoder, SnapshotMeta, Store, WriteMode,
};

const MODES: [WriteMode; 3] = [WriteMode::DataSync, WriteMode::SynchronousWrite, WriteMode::DirectWrite];

fn options() -> Options {
    Options { segment_bytes: 64 << 10 }
}

fn create(mode: WriteMode, directory: &Path) -> Store<OsDisk> {
    match Store::open(OsDisk::new(mode), directory, options()).unwrap() {
        Opened::Empty(blank) => blank.initialise(IDENTITY, meta(1, 1), chunks(&meta(1, 1))).unwrap().0,
        Opened::Existing(..) => panic!("not empty"),
    }
}

fn reopen(mode: WriteMode, directory: &Path) -> Result<(Store<OsDisk>, Recovered), OpenError> {
    match Store::open(OsDisk::new(mode), directory, options())? {
        Opened::Existing(store, recovered) => Ok((store, recovered)),
        Opened::Empty(_) => panic!("empty"),
    }
}

fn error(directory: &Path) -> OpenError {
    match Store::open(OsDisk::default(), directory, options()) {
        Err(error) => error,
        Ok(_) => panic!("{} was opened", directory.display()),
    }
}

fn files(directory: &Path, kind: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = all.filter(|path| path.file_name().unwrap().to_string_lossy().contains(kind)).collect();
    files.sort();
    files
}

/// So that a new directory does not write many times more zeroes than records.
#[test]
fn segments_grow_from_a_small_one_to_the_usual_length() {
    let home = TempDir::new().unwrap();
    let opened = Store::open(OsDisk::default(), home.path(), Options { segment_bytes: 10 << 20 }).unwrap();
    let Opened::Empty(blank) = opened else { panic!("not empty") };
    let (mut store, _) = blank.initialise(IDENTITY, meta(1, 1), chunks(&meta(1, 1))).unwrap();
    for index in 2..27 {
        store.append(None, &entries(index, index, 1, 900 << 10), true).unwrap();
    }
    store.close().unwrap();
    let lengths: Vec<_> =
        files(home.path(), "log-").iter().map(|file| fs::metadata(file).unwrap().len() >> 20).collect();
    assert_eq!(lengths[..3], [4, 8, 10]);
}

#[test]
fn a_life_with_segments_snapshots_and_restarts_in_every_mode() {
    for mode in MODES {
        let home = TempDir::new().unwrap();
        let directory = home.path().join("a/b/data");
        let mut store = create(mode, &directory);
        for index in 2..400 {
            let hard_state = HardState { term: 2, vote: 1, commit: index };
            store.append(Some(hard_state), &entries(index, index, 2, 700), index % 3 != 0).unwrap();
            if index % 100 == 0 {
                let saved = meta(index, 2);
                let snapshots = store.snapshots();
                let meta = saved.clone();
                let writer = std::thread::spawn(move || {
                    let mut writer = snapshots.writer(meta.clone()).unwrap();
                    for chunk in chunks(&meta) {
                        writer.write_chunk(&chunk).unwrap();
                    }
                    writer.finish().unwrap()
                });
                assert_eq!(writer.join().unwrap(), saved);
                store.snapshot_saved(saved).unwrap();
            }
        }
        store.close().unwrap();
        assert_eq!(files(&directory, "snapshot-").len(), 1);
        assert!(files(&directory, "log-").len() < 6, "{:?}", files(&directory, "log-"));
        let (mut store, recovered) = reopen(mode, &directory).unwrap();
        assert_eq!(recovered.identity, IDENTITY);
        assert_eq!(recovered.snapshot, meta(300, 2));
        assert_eq!(recovered.entries, entries(301, 399, 2, 700));
        assert_eq!(recovered.hard_state, HardState { term: 2, vote: 1, commit: 399 });
        assert_eq!(recovered.torn_tail, None);

        let received = meta(1000, 3);
        let mut writer = store.snapshot_writer(received.clone()).unwrap();
        writer.write_chunk(b"received").unwrap();
        writer.finish().unwrap();
        store.install_snapshot(received.clone(), None).unwrap();
        store.append(None, &entries(1001, 1003, 3, 10), true).unwrap();
        drop(store);
        let (store, recovered) = reopen(mode, &directory).unwrap();
        assert_eq!(recovered.snapshot, received);
        assert_eq!(recovered.entries, entries(1001, 1003, 3, 10));
        assert_eq!(recovered.hard_state, HardState { term: 3, vote: 0, commit: 1000 });
        assert_same_stream(&store, &received);
        assert!(store.free_bytes().unwrap() > 0);
    }
}

/// The file's bytes are the stream that is sent to others.
fn assert_same_stream(store: &Store<OsDisk>, expected: &SnapshotMeta) {
    let mut source = store.snapshots().source().unwrap();
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, source.length());
    let mut decoder = SnapshotDecoder::new(bytes.as_slice()).unwrap();
    assert_eq!(decoder.meta(), expected);
    assert_eq!(decoder.next_chunk().unwrap().as_deref(), Some(&b"received"[..]));
    assert_eq!(decoder.next_chunk().unwrap(), None);
}

#[test]
fn a_directory_in_use_is_refused_until_it_is_free() {
    let home = TempDir::new().unwrap();
    let store = create(WriteMode::default(), home.path());
    let refused = error(home.path());
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains("in use"));
    drop(store);
    reopen(WriteMode::default(), home.path()).unwrap();
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let home = TempDir::new().unwrap();
    drop(create(WriteMode::default(), home.path()));
    let stamp = home.path().join("STAMP");
    let mut bytes = fs::read(&stamp).unwrap();
    bytes[8..12].copy_from_slice(&7u32.to_le_bytes());
    bytes.extend_from_slice(b"fields of the future");
    fs::write(&stamp, &bytes).unwrap();
    let refused = error(home.path());
    assert!(matches!(refused, OpenError::Newer { found: 7, supported: 1, .. }), "{refused}");
    assert!(refused.to_string().contains("newer version (format 7; this program reads up to 1)"), "{refused}");
    assert_eq!(fs::read(&stamp).unwrap(), bytes);
}

#[test]
fn somebody_elses_folder_is_refused_and_left_alone() {
    let home = TempDir::new().unwrap();
    fs::write(home.path().join("thesis.tex"), "chapter one").unwrap();
    let refused = error(home.path());
    assert!(matches!(&refused, OpenError::Foreign { name, .. } if name == "thesis.tex"), "{refused}");
    assert_eq!(files(home.path(), "").len(), 1, "something was created");
}

#[test]
fn a_mount_point_is_as_good_as_empty() {
    let home = TempDir::new().unwrap();
    fs::create_dir(home.path().join("lost+found")).unwrap();
    drop(create(WriteMode::default(), home.path()));
    reopen(WriteMode::default(), home.path()).unwrap();
}

#[test]
fn a_file_is_not_a_directory() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let refused = error(&path);
        assert!(matches!(refused, OpenError::NotADirectory { .. }), "{refused}");
    }
}

#[test]
fn only_the_owner_may_look() {
    let home = TempDir::new().unwrap();
    let directory = home.path().join("data");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    drop(create(WriteMode::default(), &directory));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for file in files(&directory, "") {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn without_permission_the_path_is_named() {
    let home = TempDir::new().unwrap();
    let closed = home.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    // Root may do everything, and then there is nothing to test.
    if fs::read_dir(&closed).is_err() {
        let refused = error(&closed.join("data"));
        assert!(matches!(refused, OpenError::NoPermission { .. }), "{refused}");
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_tail_torn_by_truncation_is_cut_off_in_every_mode() {
    for mode in MODES {
        let home = TempDir::new().unwrap();
        let mut store = create(mode, home.path());
        store.append(None, &entries(2, 3, 1, 100), true).unwrap();
        store.append(None, &entries(4, 8, 1, 1000), true).unwrap();
        drop(store);
        let log = &files(home.path(), "log-")[0];
        let bytes = fs::read(log).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
        fs::OpenOptions::new().write(true).open(log).unwrap().set_len(used - 2000).unwrap();
        let (mut store, recovered) = reopen(mode, home.path()).unwrap();
        assert_eq!(recovered.entries, entries(2, 3, 1, 100));
        assert_eq!(recovered.torn_tail.unwrap().file, *log);
        store.append(None, &entries(4, 9, 2, 500), true).unwrap();
        drop(store);
        let (_, recovered) = reopen(mode, home.path()).unwrap();
        assert_eq!(recovered.entries, [entries(2, 3, 1, 100), entries(4, 9, 2, 500)].concat());
        assert_eq!(recovered.torn_tail, None);
    }
}

#[test]
fn what_an_unfinished_snapshot_left_is_swept_away() {
    let home = TempDir::new().unwrap();
    let store = create(WriteMode::default(), home.path());
    let mut writer = store.snapshot_writer(meta(9, 1)).unwrap();
    writer.write_chunk(&[1; 1000]).unwrap();
    let left = files(home.path(), ".tmp");
    assert_eq!(left.len(), 1);
    let bytes = fs::read(&left[0]).unwrap();
    drop(writer);
    assert_eq!(files(home.path(), ".tmp").len(), 0);
    drop(store);
    // A killed process drops nothing.
    fs::write(&left[0], bytes).unwrap();
    let (_, recovered) = reopen(WriteMode::default(), home.path()).unwrap();
    assert_eq!(recovered.snapshot, meta(1, 1));
    assert_eq!(files(home.path(), ".tmp").len(), 0);
}

#[test]
fn a_reader_goes_on_when_its_snapshot_is_replaced() {
    let home = TempDir::new().unwrap();
    let mut store = create(WriteMode::default(), home.path());
    store.append(None, &entries(2, 5, 1, 10), true).unwrap();
    let mut reader = store.snapshot_reader().unwrap();
    let newer = meta(4, 1);
    store.snapshot_writer(newer.clone()).unwrap().finish().unwrap();
    store.snapshot_saved(newer).unwrap();
    assert_eq!(reader.meta(), &meta(1, 1));
    assert_eq!(reader.next_chunk().unwrap().unwrap(), chunks(&meta(1, 1))[0]);
}
