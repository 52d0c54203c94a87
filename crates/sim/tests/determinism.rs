//! One seed is one run: in one process, and in two.

use std::process::Command;

use tenure_sim::{Setting, run};

fn trace_with(seed: u64, lines: usize) -> u64 {
    let setting = Setting { lines, ..Setting::of(seed) };
    run(&setting).map_or_else(|violation| violation.trace, |report| report.trace)
}

fn trace(seed: u64) -> u64 {
    trace_with(seed, 0)
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 20..25 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
    assert_ne!(trace(20), trace(21));
}

#[test]
fn keeping_a_timeline_changes_nothing() {
    assert_eq!(trace_with(30, 40), trace(30));
}

#[test]
fn another_process_gives_the_same_trace() {
    for seed in [31u64, 32] {
        let output = Command::new(env!("CARGO_BIN_EXE_tenure-sim")).args(["--seed", &seed.to_string()]).output();
        let output = String::from_utf8(output.expect("the binary runs").stdout).expect("text");
        let printed = output.lines().find_map(|line| line.strip_prefix("trace ")).expect("a trace is printed");
        assert_eq!(printed, format!("{:016x}", trace(seed)), "seed {seed}");
    }
}
