//! A data directory in which something was overwritten: it opens with what was there before the damage, or says what
//! is wrong.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tenure_storage::{Entry, HardState, Identity, MemoryDisk, Opened, Options, SnapshotMeta, Store};

const DIRECTORY: &str = "data";
const OPTIONS: Options = Options { segment_bytes: 8192 };

/// The first byte chooses a file, the next two where in it the rest is written.
pub fn run(bytes: &[u8]) {
    let [file, high, low, damage @ ..] = bytes else { return };
    let disk = member();
    let files = disk.files();
    let file: &PathBuf = &files[usize::from(*file) % files.len()];
    let mut contents = disk.contents(file).unwrap_or_default();
    let at = usize::from(u16::from_be_bytes([*high, *low])).min(contents.len());
    contents.truncate(contents.len().max(at + damage.len()));
    contents.resize(contents.len().max(at + damage.len()), 0);
    contents[at..at + damage.len()].copy_from_slice(damage);
    disk.set_contents(file, Some(contents));
    let Ok(Opened::Existing(mut store, recovered)) = Store::open(disk, Path::new(DIRECTORY), OPTIONS) else { return };
    let mut expected = recovered.snapshot.index;
    for entry in &recovered.entries {
        expected += 1;
        assert_eq!(entry.index, expected, "no gap in the log");
        assert!(entry.term <= recovered.hard_state.term, "{recovered:?}");
    }
    assert!(recovered.hard_state.commit <= expected, "{recovered:?}");
    let next = Entry { index: expected + 1, term: recovered.hard_state.term, ..Entry::default() };
    store.append(None, &[next], true).expect("what could be opened can be written");
}

/// With a snapshot and a few batches behind it.
fn member() -> MemoryDisk {
    let disk = MemoryDisk::new(1);
    let directory = Path::new(DIRECTORY);
    let Ok(Opened::Empty(blank)) = Store::open(disk.clone(), directory, OPTIONS) else { panic!("it is new") };
    let identity = Identity { cluster_id: 1, member_id: 2, directory_id: 3 };
    let meta = SnapshotMeta { index: 1, term: 1, configuration: Bytes::from_static(b"members") };
    let (mut store, _) = blank.initialise(identity, meta, [b"state"]).expect("nothing is in the way");
    for index in 2..8 {
        let data = Bytes::from(vec![index as u8; 100 * index as usize]);
        let entry = Entry { index, term: 2, kind: 0, data, context: Bytes::new() };
        let hard_state = HardState { term: 2, vote: 2, commit: index - 1 };
        store.append(Some(hard_state), &[entry], true).expect("nothing is in the way");
    }
    store.close().expect("nothing is in the way");
    disk
}

pub fn seeds() -> Vec<Vec<u8>> {
    let files = member().files().len() as u8;
    (0..files).flat_map(|file| [vec![file, 0, 0], vec![file, 0, 60, 1, 2, 3], vec![file, 2, 0, 0]]).collect()
}
