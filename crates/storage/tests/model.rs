//! Random workloads with random deaths, against the naive model.

mod harness;

use harness::{Member, Operation, State, entries};
use proptest::prelude::*;
use tenure_storage::HardState;

/// What to do, in terms that make sense in any state.
#[derive(Clone, Debug)]
enum Intent {
    Append {
        back: u64,
        count: u64,
        bytes: usize,
        term_up: bool,
        commit_up: u64,
        with_hard_state: bool,
        sync: bool,
    },
    Groups {
        count: u64,
        bytes: usize,
    },
    Snapshot {
        nth: u64,
    },
    Install {
        ahead: u64,
    },
    Reopen,
    Kill,
    /// The power goes so many operations later.
    Crash {
        operations: u64,
    },
}

fn intent() -> impl Strategy<Value = Intent> {
    prop_oneof![
        8 => (0..4u64, 0..5u64, 0..2500usize, prop::bool::weighted(0.2), 0..6u64, any::<bool>(), prop::bool::weighted(0.7))
            .prop_map(|(back, count, bytes, term_up, commit_up, with_hard_state, sync)| Intent::Append {
                back, count, bytes, term_up, commit_up, with_hard_state, sync
            }),
        2 => (1..6u64, 0..800usize).prop_map(|(count, bytes)| Intent::Groups { count, bytes }),
        2 => (0..20u64).prop_map(|nth| Intent::Snapshot { nth }),
        1 => (0..8u64).prop_map(|ahead| Intent::Install { ahead }),
        1 => Just(Intent::Reopen),
        1 => Just(Intent::Kill),
        2 => (0..25u64).prop_map(|operations| Intent::Crash { operations }),
    ]
}

/// The operation in this state, if there is one.
fn operation(intent: &Intent, state: &State) -> Option<Operation> {
    let HardState { term, commit, .. } = state.hard_state;
    let last = state.last_index();
    match *intent {
        Intent::Append { back, count, bytes, term_up, commit_up, with_hard_state, sync } => {
            let lowest = commit.max(state.snapshot.index) + 1;
            let first = (last + 1).saturating_sub(back).max(lowest);
            let term = term + u64::from(term_up);
            let end = if count == 0 { last } else { first + count - 1 };
            let commit = (commit + commit_up).min(end);
            let hard_state = (with_hard_state || term_up).then_some(HardState { term, vote: back, commit });
            Some(Operation::Append { hard_state, entries: entries(first, first + count - 1, term, bytes), sync })
        }
        Intent::Groups { count, bytes } => {
            let groups = (1..=count).map(|number| {
                let hard_state = HardState { term, vote: number, commit };
                ((number % 2 == 0).then_some(hard_state), entries(last + number, last + number, term, bytes))
            });
            Some(Operation::Groups(groups.collect()))
        }
        Intent::Snapshot { nth } => {
            let unsaved = commit.checked_sub(state.snapshot.index).filter(|unsaved| *unsaved > 0)?;
            Some(Operation::Snapshot { index: state.snapshot.index + 1 + nth % unsaved })
        }
        // A higher term: always another history than the log's own.
        Intent::Install { ahead } => Some(Operation::Install { index: commit + 1 + ahead, term: term + 1 }),
        Intent::Reopen => Some(Operation::Reopen),
        Intent::Kill => Some(Operation::Kill),
        Intent::Crash { .. } => None,
    }
}

fn play(seed: u64, segment_bytes: u64, intents: &[Intent]) {
    let mut member = Member::new(seed);
    member.options.segment_bytes = segment_bytes;
    member.initialise().unwrap();
    for intent in intents {
        if let Intent::Crash { operations } = intent {
            member.disk.cut_power_at(member.disk.operations() + operations + 1);
            continue;
        }
        let Some(operation) = operation(intent, member.pending.as_ref().unwrap()) else { continue };
        if member.run(&operation).is_err() {
            member.disk.crash();
            member.open_and_check().unwrap();
        }
    }
    member.disk.crash();
    member.open_and_check().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_workload_loses_what_was_acknowledged(
        seed in any::<u64>(),
        segment_bytes in prop::sample::select(vec![2048u64, 4096, 16 << 10]),
        intents in prop::collection::vec(intent(), 1..60),
    ) {
        play(seed, segment_bytes, &intents);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let trace = |seed| {
        let mut member = Member::new(seed);
        member.initialise().unwrap();
        let mut images = Vec::new();
        for (number, operation) in harness::script().iter().enumerate() {
            member.disk.cut_power_at(member.disk.operations() + 2 + number as u64 % 3);
            if member.run(operation).is_ok() {
                continue;
            }
            member.disk.crash();
            images.push(member.disk.files().iter().map(|file| member.disk.contents(file)).collect::<Vec<_>>());
            member.open_and_check().unwrap();
            break;
        }
        assert!(!images.is_empty(), "the power never went");
        images
    };
    assert_eq!(trace(1), trace(1));
    assert!((2..20).any(|seed| trace(seed) != trace(1)), "the seed changes nothing");
}
