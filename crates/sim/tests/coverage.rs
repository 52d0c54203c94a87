//! Every input that a server can send, and every command, is sent by some seed. Some seed refuses a circle of each kind.
//! Some seed leaves keys of a lease to `Continue`, and some seed leaves grants to it.

use tenure_sim::{Report, Setting, coverage, run};

/// Kinds that are rare take this many seeds at most.
const SEEDS: u64 = 200;

#[test]
fn every_kind_of_input_and_command_is_sent() {
    let mut total = Report::default();
    for seed in 0..SEEDS {
        let report = run(&Setting::of(seed)).unwrap_or_else(|violation| panic!("{violation}"));
        total.add(&report);
        if coverage::missing(&total.sent).is_empty() {
            println!("all kinds are sent by the first {} seeds", seed + 1);
            return;
        }
    }
    panic!("{SEEDS} seeds never sent {:?}", coverage::missing(&total.sent));
}
