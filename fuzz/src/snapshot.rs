//! Snapshots: the chunks that a state is written as, and the file around them.

use bytes::Bytes;
use tenure_machine::snapshot::{Restore, chunks};
use tenure_machine::{Envelope, Machine};
use tenure_storage::{SnapshotDecoder, SnapshotEncoder, SnapshotMeta};

use crate::command::{grant, lock, put};

/// The first byte says whether the rest is one chunk or a whole file.
pub fn run(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, chunk)) => restore(std::iter::once(chunk)),
        Some((_, file)) => read_file(file),
        None => {}
    }
}

fn read_file(file: &[u8]) {
    let Ok(mut decoder) = SnapshotDecoder::new(file) else { return };
    let mut found: Vec<Bytes> = Vec::new();
    while let Ok(Some(chunk)) = decoder.next_chunk() {
        found.push(chunk);
    }
    restore(found.iter().map(|chunk| &chunk[..]));
}

/// A state that can be read can be written, and is then the same.
fn restore<'a>(found: impl Iterator<Item = &'a [u8]>) {
    let mut restore = Restore::new();
    for chunk in found {
        if restore.chunk(chunk).is_err() {
            return;
        }
    }
    let Ok(machine) = restore.finish() else { return };
    let mut again = Restore::new();
    for chunk in chunks(machine.view(), 1000) {
        again.chunk(&chunk).expect("what was written can be read");
    }
    let again = again.finish().expect("and is whole");
    assert_eq!(again.state().hash(), machine.state().hash());
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut machine = Machine::new();
    for (index, command) in (1..).zip([grant(7), lock("job", 7), put("key", 7), put("key", 0)]) {
        machine.apply(index, 1, &Envelope { wall_ms: 5, origin: None, command });
    }
    let meta = SnapshotMeta { index: 4, term: 1, configuration: Bytes::from_static(b"members") };
    let mut encoder = SnapshotEncoder::new(vec![1], &meta).expect("memory takes it");
    let whole: Vec<Vec<u8>> = chunks(machine.view(), usize::MAX).collect();
    for chunk in &whole {
        encoder.write_chunk(chunk).expect("memory takes it");
    }
    let mut seeds = vec![encoder.finish().expect("memory takes it")];
    seeds.extend(whole.into_iter().map(|chunk| [vec![0], chunk].concat()));
    seeds
}
