//! A few seeds on every build; thousands run with the `tenure-sim` binary.

use tenure_sim::{Report, Setting, TIMELINE_LINES, explain};

/// Seeds that have found something, see `docs/found-by-simulation.md`. What a seed does changes with the traffic and
/// the plan; what it found has a test of its own where the bug was, and is planted in `planted.rs`.
const REGRESSIONS: [u64; 24] = [
    156,
    188,
    251,
    309,
    368,
    396,
    449,
    549,
    1061,
    2030,
    9_000_008,
    40_005_609,
    40_012_075,
    60_011_290,
    110_008_351,
    120_000_474,
    120_001_830,
    130_004_088,
    160_000_844,
    1_794_907_519_013,
    1_794_979_176_094,
    1_794_979_176_664,
    1_794_979_177_555,
    1_794_979_177_935,
];

fn run(seeds: impl IntoIterator<Item = u64>) -> Report {
    let mut total = Report::default();
    for seed in seeds {
        match explain(&Setting { lines: TIMELINE_LINES, ..Setting::of(seed) }) {
            Ok(report) => total.add(&report),
            Err(violation) => panic!("{violation}"),
        }
    }
    total
}

/// Whoever changes the plan so that nothing happens any more is told so.
fn is_lively(total: &Report) {
    assert!(total.commands > 100 * total.seeds, "{total}");
    assert!(total.deaths > total.seeds, "{total}");
    assert!(total.snapshots > total.seeds, "{total}");
    assert!(total.notices > total.seeds, "{total}");
    assert!(total.installs > 0 && total.removed > 0 && total.damaged > 0, "{total}");
    assert!(total.term > 2 * total.seeds, "{total}");
}

#[test]
fn a_few_seeds_break_no_rule() {
    is_lively(&run(0..24));
}

#[test]
fn a_few_more_seeds_break_no_rule() {
    is_lively(&run(1_000_000..1_000_024));
}

#[test]
fn what_was_found_once_stays_away() {
    run(REGRESSIONS);
}
