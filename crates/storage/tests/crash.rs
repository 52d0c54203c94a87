//! The power goes at every single operation of a workload, and again while recovering from that.

mod harness;

use harness::{Member, Operation, entries, received_script, script};
use tenure_storage::MemoryDisk;

/// Seeds differ in what survives of what was not synced. More of them: `STORAGE_SEEDS=1000`.
fn seeds() -> u64 {
    std::env::var("STORAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8)
}

/// May end well even so: the last thing that the power can take is work in the background.
fn workload(member: &mut Member, script: &[Operation]) -> Result<(), String> {
    member.initialise()?;
    script.iter().try_for_each(|operation| member.run(operation))
}

/// Each script with the number of its disk operations.
fn scripts() -> Vec<(Vec<Operation>, u64)> {
    [script(), received_script()]
        .into_iter()
        .map(|script| {
            let mut member = Member::new(0);
            workload(&mut member, &script).unwrap();
            let operations = member.disk.operations();
            assert!(operations > 120, "the workload does too little: {operations}");
            (script, operations)
        })
        .collect()
}

/// Every script with every operation at which the power may go.
fn cuts() -> impl Iterator<Item = (Vec<Operation>, u64)> {
    scripts().into_iter().flat_map(|(script, operations)| (1..=operations).map(move |cut| (script.clone(), cut)))
}

#[test]
fn everything_acknowledged_survives_a_power_cut_at_every_operation() {
    for (script, operation) in cuts() {
        for seed in 0..seeds() {
            let mut member = Member::new(seed * 1_000_003 + operation);
            member.disk.cut_power_at(operation);
            let _ = workload(&mut member, &script);
            member.disk.crash();
            member.open_and_check().unwrap();
            go_on(&mut member);
        }
    }
}

#[test]
fn recovering_from_a_power_cut_may_be_interrupted_at_every_operation() {
    interrupt_recovery_from(|disk| disk.crash());
}

#[test]
fn recovering_from_a_kill_may_be_interrupted_at_every_operation() {
    interrupt_recovery_from(|disk| disk.kill());
}

fn interrupt_recovery_from(death: fn(&MemoryDisk)) {
    for (script, operation) in cuts() {
        for later in 1.. {
            let mut member = Member::new(operation * 1_000_003 + later);
            member.disk.cut_power_at(operation);
            let _ = workload(&mut member, &script);
            death(&member.disk);
            member.disk.cut_power_at(member.disk.operations() + later);
            let recovered = member.open_and_check();
            member.disk.crash();
            member.open_and_check().unwrap();
            go_on(&mut member);
            if recovered.is_ok() {
                break;
            }
        }
    }
}

#[test]
fn a_killed_process_leaves_nothing_that_a_later_power_cut_could_take() {
    for (script, operation) in cuts() {
        for seed in 0..seeds() / 4 {
            let mut member = Member::new(seed * 1_000_003 + operation);
            member.disk.cut_power_at(operation);
            let _ = workload(&mut member, &script);
            // The write was cut short by a signal, not by the power: it is in the page cache.
            member.disk.kill();
            member.open_and_check().unwrap();
            member.disk.crash();
            member.open_and_check().unwrap();
            go_on(&mut member);
        }
    }
}

/// What was recovered is good for going on, and going on is durable.
fn go_on(member: &mut Member) {
    if member.durable.is_none() {
        member.initialise().unwrap();
    }
    let state = member.durable.clone().unwrap();
    let term = state.hard_state.term + 1;
    let last = state.last_index();
    let operation = harness::Operation::Append {
        hard_state: Some(tenure_storage::HardState { term, vote: 1, commit: last }),
        entries: entries(last + 1, last + 3, term, 3000),
        sync: true,
    };
    member.run(&operation).unwrap();
    member.disk.crash();
    member.open_and_check().unwrap();
    assert_eq!(member.durable.as_ref().unwrap().last_index(), last + 3);
}
