//! One seed is one run: in one process, and in two.

use std::process::Command;

use tenure_sim::run;

fn trace(seed: u64) -> u64 {
    run(seed, None, 0).map_or_else(|violation| violation.trace, |report| report.trace)
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 20..28 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
    assert_ne!(trace(20), trace(21));
}

#[test]
fn keeping_a_timeline_changes_nothing() {
    let with_lines = run(30, None, 40).map_or_else(|violation| violation.trace, |report| report.trace);
    assert_eq!(with_lines, trace(30));
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
