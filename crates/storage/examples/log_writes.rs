//! What a durable batch costs, in each of the ways to write it, through the real store.
//!
//! `cargo run --release -p tenure-storage --example log_writes -- <directory on the disk in question> [batches]`
//!
//! CPU is that of the thread that appends; the zeroes written ahead are on another and show in the maximum.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tenure_storage::{Entry, Identity, Opened, Options, OsDisk, SnapshotMeta, Store, WriteMode};

const ENTRY_BYTES: usize = 300;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory on the disk to measure");
    let batches: usize = arguments.next().map_or(5000, |batches| batches.parse().expect("a number of batches"));
    println!(
        "{:<18} {:>6} {:>9} {:>9} {:>9} {:>10} {:>12}",
        "mode", "batch", "p50 µs", "p99 µs", "max µs", "CPU µs", "entries/s"
    );
    for batch in [1, 8, 64] {
        measure(Path::new(&directory), batch, batches);
    }
}

/// One batch in each mode in turn, so that whatever else the machine does falls on all of them alike.
fn measure(directory: &Path, batch: usize, batches: usize) {
    let directory = directory.join(format!("log_writes-{}", std::process::id()));
    let modes = [WriteMode::DataSync, WriteMode::SynchronousWrite, WriteMode::DirectWrite];
    let mut runs = modes.map(|mode| Run {
        mode,
        store: create(&directory.join(format!("{mode:?}")), mode),
        latencies_ns: Vec::with_capacity(batches),
        cpu_ns: 0,
    });
    let data = Bytes::from(vec![7; ENTRY_BYTES]);
    let mut entries: Vec<Entry> = Vec::with_capacity(batch);
    let mut index = 1;
    for _ in 0..batches {
        entries.clear();
        for _ in 0..batch {
            index += 1;
            entries.push(Entry { index, term: 1, kind: 0, data: data.clone(), context: Bytes::new() });
        }
        for run in &mut runs {
            let (began, cpu_began) = (Instant::now(), cpu_ns());
            run.store.append(None, &entries, true).expect("append");
            run.cpu_ns += cpu_ns() - cpu_began;
            run.latencies_ns.push(began.elapsed().as_nanos() as u64);
        }
    }
    for run in runs {
        run.report(batch);
    }
    std::fs::remove_dir_all(&directory).expect("remove the directory");
}

struct Run {
    mode: WriteMode,
    store: Store<OsDisk>,
    latencies_ns: Vec<u64>,
    cpu_ns: u64,
}

impl Run {
    fn report(mut self, batch: usize) {
        let batches = self.latencies_ns.len();
        let seconds = self.latencies_ns.iter().sum::<u64>() as f64 / 1e9;
        self.latencies_ns.sort_unstable();
        let microseconds = |position: usize| self.latencies_ns[position] as f64 / 1000.0;
        println!(
            "{:<18} {:>6} {:>9.1} {:>9.1} {:>9.1} {:>10.1} {:>12.0}",
            format!("{:?}", self.mode),
            batch,
            microseconds(batches / 2),
            microseconds(batches * 99 / 100),
            microseconds(batches - 1),
            self.cpu_ns as f64 / 1000.0 / batches as f64,
            (batch * batches) as f64 / seconds
        );
    }
}

fn create(directory: &Path, mode: WriteMode) -> Store<OsDisk> {
    let opened = Store::open(OsDisk::new(mode), directory, Options::default()).expect("open");
    let Opened::Empty(blank) = opened else { panic!("{} is not empty", directory.display()) };
    let identity = Identity { cluster_id: 1, member_id: 1, directory_id: 1 };
    let meta = SnapshotMeta { index: 1, term: 1, configuration: Bytes::new() };
    blank.initialise(identity, meta, std::iter::empty::<&[u8]>()).expect("initialise").0
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
