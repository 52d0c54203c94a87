//! The simulation can fail: every bug that is put in on purpose is found within a few seeds.

use tenure_sim::{Planted, Setting, TIMELINE_LINES, explain};

const SEEDS: u64 = 40;

/// The seeds until a bug was found, and the rule that it broke.
fn found(planted: Planted) -> (u64, &'static str) {
    for seed in 0..SEEDS {
        let setting = Setting { seed, planted: Some(planted), faults: None, lines: TIMELINE_LINES };
        if let Err(violation) = explain(&setting) {
            assert!(!violation.timeline.is_empty(), "a violation comes with its timeline");
            assert!(violation.to_string().contains(&format!("tenure-sim --seed {seed}")), "and how to see it again");
            return (seed, violation.rule);
        }
    }
    panic!("{planted:?} was not found in {SEEDS} seeds");
}

fn is_found(planted: Planted, by: &str) {
    let (seed, rule) = found(planted);
    println!("{planted:?} is found by seed {seed}: {rule}");
    assert!(rule.starts_with(by), "{planted:?} was found by another rule: {rule}");
}

#[test]
fn a_log_that_acknowledges_early_is_found() {
    is_found(Planted::AcknowledgeEarly, "K3");
}

#[test]
fn an_entry_that_lost_its_command_is_found() {
    is_found(Planted::EmptyEntry, "K3");
}

#[test]
fn a_stale_read_is_found() {
    is_found(Planted::StaleRead, "K1/K4");
}

#[test]
fn a_command_proposed_twice_is_found() {
    is_found(Planted::ProposeTwice, "K3");
}

#[test]
fn a_change_that_a_watch_never_saw_is_found() {
    is_found(Planted::SkipNotice, "watch");
}

#[test]
fn a_cancel_that_is_ignored_is_found() {
    is_found(Planted::IgnoreCancel, "L6");
}

#[test]
fn a_clock_that_runs_fast_is_found() {
    is_found(Planted::FastClock, "E1");
}
