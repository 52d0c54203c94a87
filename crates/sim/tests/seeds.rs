//! A few seeds on every build; thousands run with the `tenure-sim` binary.

use tenure_sim::{Report, Setting, TIMELINE_LINES, explain};

fn run(seeds: std::ops::Range<u64>) {
    let mut total = Report::default();
    for seed in seeds {
        match explain(&Setting { seed, planted: None, faults: None, lines: TIMELINE_LINES }) {
            Ok(report) => total.add(&report),
            Err(violation) => panic!("{violation}"),
        }
    }
    // Whoever changes the plan so that nothing happens any more is told so.
    assert!(total.commands > 100 * total.seeds, "{total}");
    assert!(total.deaths > total.seeds, "{total}");
    assert!(total.snapshots > total.seeds, "{total}");
    assert!(total.notices > total.seeds, "{total}");
}

#[test]
fn a_hundred_seeds_break_no_rule() {
    run(0..100);
}

#[test]
fn a_hundred_more_seeds_break_no_rule() {
    run(1_000_000..1_000_100);
}
