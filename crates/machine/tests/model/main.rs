//! The machine against a naive model: random commands, and between them reads at random revisions,
//! restarts from a snapshot and trimming, all of which must agree, or change nothing.
#![allow(clippy::disallowed_types)]

mod generate;
mod naive;

use std::sync::Arc;

use naive::Naive;
use proptest::prelude::*;
use tenure_machine::snapshot::{self, Restore};
use tenure_machine::*;

#[derive(Debug, Clone)]
enum Step {
    Apply(Envelope),
    Range(RangeQuery),
    Commits(Revision),
    Trim(usize),
    Restart { chunk_bytes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => generate::envelope().prop_map(Step::Apply),
        4 => generate::query().prop_map(Step::Range),
        2 => (0..40i64).prop_map(Step::Commits),
        1 => (0..10usize).prop_map(Step::Trim),
        1 => (1..2000usize).prop_map(|chunk_bytes| Step::Restart { chunk_bytes }),
    ]
}

/// What the model knows of changes, too.
fn told(changes: &[LockChange]) -> Vec<LockChange> {
    let known = |entry: &LockEntry| {
        let granted_wall_ms = entry.granted_wall_ms.map(|_| 0);
        Arc::new(LockEntry { metadata: Arc::default(), joined_wall_ms: 0, granted_wall_ms, ..entry.clone() })
    };
    let told = changes.iter().map(|change| match change {
        LockChange::Granted(entry) => LockChange::Granted(known(entry)),
        LockChange::Ended { entry, cause, .. } => {
            LockChange::Ended { entry: known(entry), cause: *cause, frees: false }
        }
    });
    let mut told: Vec<_> = told.collect();
    // By lock and place: changes of one place keep their order.
    told.sort_by(|one, other| (one.name(), one.entry().token).cmp(&(other.name(), other.entry().token)));
    told
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_does_what_the_model_does(steps in proptest::collection::vec(step(), 1..120)) {
        let mut machine = Machine::new();
        let mut naive = Naive::new();
        // Applies the same commands, is never restarted and never trims on its own time.
        let mut steady = Machine::new();
        for (index, step) in (1u64..).zip(&steps) {
            match step {
                Step::Apply(envelope) => {
                    // Terms grow, and the expiries of the other one are void.
                    let term = 1 + index / 60;
                    let applied = machine.apply(index, term, envelope);
                    let expected = naive.apply(term, envelope);
                    prop_assert_eq!(comparable(&applied.reply), comparable(&expected.reply), "{:?}", envelope);
                    prop_assert_eq!(applied.revision, expected.revision);
                    prop_assert_eq!(&applied.commit, &expected.commit, "{:?}", envelope);
                    prop_assert_eq!(told(&applied.lock_changes), told(&expected.lock_changes), "{:?}", envelope);
                    prop_assert_eq!(&applied.lease_changes, &expected.lease_changes);
                    prop_assert_eq!(steady.apply(index, term, envelope).work, applied.work, "{:?}", envelope);
                    agree(machine.state(), &naive)?;
                }
                Step::Range(query) => {
                    prop_assert_eq!(machine.state().range(query), naive.range(query), "{:?}", query);
                }
                Step::Commits(from) => commits_agree(machine.state(), &naive, *from)?,
                Step::Trim(events) => {
                    machine.trim(*events);
                }
                Step::Restart { chunk_bytes } => machine = restart(&machine, *chunk_bytes),
            }
        }
        commits_agree(machine.state(), &naive, naive.compacted)?;
        for revision in naive.compacted.max(1)..=naive.revision() {
            let query = RangeQuery { revision, ..RangeQuery::new(Keys::all()) };
            prop_assert_eq!(machine.state().range(&query), naive.range(&query), "at {}", revision);
            prop_assert_eq!(machine.state().hash_keys(revision), steady.state().hash_keys(revision));
        }
        prop_assert_eq!(machine.state().hash(), steady.state().hash());
        while machine.trim(3) {}
        prop_assert_eq!(machine.state().hash(), steady.state().hash());
        commits_agree(machine.state(), &naive, naive.compacted)?;
        let rebuilt = restart(&machine, 100);
        prop_assert_eq!(rebuilt.state().bytes(), machine.state().bytes());
        prop_assert_eq!(rebuilt.state().bytes_live(), machine.state().bytes_live());
        prop_assert_eq!(rebuilt.state().keys(), machine.state().keys());
    }

    #[test]
    fn queues_do_what_the_model_does(
        commands in generate::lock_commands(),
        level in level::LOWEST..=level::HIGHEST,
        restart_at in 0..100u64,
    ) {
        let mut machine = Machine::new();
        let mut naive = Naive::new();
        let grants = [1, 2, 3, 26].map(|lease| {
            Command::LeaseGrant(LeaseGrant { lease, ttl_ms: 1000, client: bytes::Bytes::new() })
        });
        // Every grant and every end is told exactly once, and ends come after grants.
        let mut places = std::collections::BTreeMap::new();
        let commands = [Command::RaiseLevel { level }].into_iter().chain(grants).chain(commands);
        for (index, command) in (1u64..).zip(commands) {
            let envelope = Envelope { wall_ms: index, origin: None, command };
            let applied = machine.apply(index, 1, &envelope);
            let expected = naive.apply(1, &envelope);
            prop_assert_eq!(comparable(&applied.reply), comparable(&expected.reply), "{:?}", envelope);
            prop_assert_eq!(told(&applied.lock_changes), told(&expected.lock_changes), "{:?}", envelope);
            for change in &applied.lock_changes {
                let place = (change.name().to_vec(), change.entry().token);
                match change {
                    LockChange::Granted(_) => prop_assert_eq!(places.insert(place, true), None),
                    LockChange::Ended { entry, .. } => {
                        let was_held = entry.granted_wall_ms.is_some();
                        prop_assert_eq!(places.insert(place, false), was_held.then_some(true));
                    }
                }
                let of_name = || applied.lock_changes.iter().filter(|other| other.name() == change.name());
                let frees = of_name().any(|change| matches!(change, LockChange::Ended { frees: true, .. }))
                    && !of_name().any(|change| matches!(change, LockChange::Granted(_)));
                let was_held = of_name().any(|change| change.entry().granted_wall_ms.is_some());
                let is_free = machine.state().lock_counts(change.name()).1 == 0;
                prop_assert_eq!(frees, was_held && is_free, "{:?}", applied.lock_changes);
            }
            agree(machine.state(), &naive)?;
            if index == restart_at {
                machine = restart(&machine, 50);
            }
        }
    }

    #[test]
    fn a_view_stays_as_it_was(
        before in proptest::collection::vec(generate::envelope(), 0..40),
        after in proptest::collection::vec(generate::envelope(), 1..40),
    ) {
        let mut machine = Machine::new();
        let mut index = 0;
        for envelope in &before {
            index += 1;
            machine.apply(index, 1, envelope);
        }
        let view = machine.view();
        let hash = view.hash();
        for envelope in &after {
            index += 1;
            machine.apply(index, 1, envelope);
        }
        prop_assert_eq!(view.hash(), hash);
        prop_assert!(machine.state().hash() != hash, "the applied index alone makes a difference");
    }

    #[test]
    fn a_range_within_a_budget_is_whole_or_nothing(
        envelopes in proptest::collection::vec(generate::envelope(), 0..40),
        query in generate::query(),
        budget in 0..12usize,
    ) {
        let mut machine = Machine::new();
        for (index, envelope) in (1..).zip(&envelopes) {
            machine.apply(index, 1, envelope);
        }
        if let Some(reply) = machine.state().range_within(&query, budget) {
            prop_assert_eq!(reply, machine.state().range(&query));
        }
    }

    #[test]
    fn a_damaged_snapshot_is_refused(
        envelopes in proptest::collection::vec(generate::envelope(), 0..30),
        place in any::<proptest::sample::Index>(),
        flip in 1..=255u8,
        cut in any::<bool>(),
    ) {
        let mut machine = Machine::new();
        for (index, envelope) in (1..).zip(&envelopes) {
            machine.apply(index, 1, envelope);
        }
        let mut bytes = snapshot::chunks(machine.view(), usize::MAX).next().expect("a chunk");
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= flip;
        }
        let mut restore = Restore::new();
        let result = restore.chunk(&bytes).and_then(|()| restore.finish());
        prop_assert!(result.is_err(), "byte {} of {}", place, bytes.len());
    }

    #[test]
    fn commands_survive_the_codec(envelope in generate::envelope()) {
        let mut bytes = Vec::new();
        codec::encode(&envelope, &mut bytes);
        prop_assert_eq!(codec::decode(bytes.clone().into()), Ok(envelope));
        bytes.push(0);
        prop_assert!(codec::decode(bytes.into()).is_err(), "a byte after the end");
    }

    #[test]
    fn cut_and_random_commands_are_refused_or_decoded(
        envelope in generate::envelope(),
        place in any::<proptest::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = Vec::new();
        codec::encode(&envelope, &mut bytes);
        let place = place.index(bytes.len());
        prop_assert!(codec::decode(bytes[..place].to_vec().into()).is_err(), "cut at {}", place);
        bytes[place] = value;
        if let Ok(envelope) = codec::decode(bytes.clone().into()) {
            let mut again = Vec::new();
            codec::encode(&envelope, &mut again);
            prop_assert_eq!(again, bytes, "one command has one encoding");
            Machine::new().apply(1, 1, &envelope);
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = codec::decode(bytes.clone().into());
        let _ = Restore::new().chunk(&bytes);
        let mut with_format = vec![snapshot::FORMAT];
        with_format.extend(bytes);
        let _ = codec::decode(with_format.clone().into());
        let _ = Restore::new().chunk(&with_format);
    }
}

fn agree(view: &View, naive: &Naive) -> Result<(), TestCaseError> {
    prop_assert_eq!(view.compacted_revision(), naive.compacted);
    let state = naive.at(naive.revision());
    prop_assert_eq!(view.keys(), state.len() as u64);
    let leases: Vec<_> = view.leases().collect();
    prop_assert_eq!(leases.len(), naive.leases.len());
    for lease in leases {
        let keys = state.values().filter(|kv| kv.lease == lease.lease).map(|kv| kv.key.clone());
        prop_assert_eq!(lease.keys, keys.collect::<Vec<_>>());
        prop_assert_eq!(Some(&lease.ttl_ms), naive.leases.get(&lease.lease));
        let mut entries: Vec<_> = view.lease_entries(lease.lease).map(|(_, entry)| entry.key.to_vec()).collect();
        entries.sort();
        let of_lease = naive.entries.iter().filter(|entry| entry.lease == lease.lease && naive.may_hold(entry));
        let mut expected: Vec<_> = of_lease.map(|entry| entry.key.clone()).collect();
        expected.sort();
        prop_assert_eq!(entries, expected);
    }
    prop_assert_eq!((view.level(), view.level_pin()), (naive.level, naive.level_pin));
    prop_assert_eq!(view.alarms(), naive.alarms.iter().copied().collect::<Vec<_>>());
    let granted = naive.granted();
    for name in ["l", "m"] {
        let expected = naive.entries.iter().filter(|entry| entry.name == name.as_bytes());
        let found: Vec<_> = view
            .lock_queue(name.as_bytes())
            .map(|entry| {
                let entry = entry.clone();
                let as_naive = naive::Entry {
                    name: name.into(),
                    key: entry.key.to_vec(),
                    token: entry.token,
                    lease: entry.lease,
                    mode: entry.mode,
                    call: entry.last_joiner,
                    holder: entry.holder.to_vec(),
                    owner: entry.owner.to_vec(),
                    together: entry.together.iter().map(|name| name.to_vec()).collect(),
                    slot: entry.slot,
                };
                (as_naive, entry.granted_wall_ms.is_some())
            })
            .collect();
        let expected: Vec<_> =
            expected.map(|entry| (entry.clone(), granted.contains(&(entry.name.clone(), entry.token)))).collect();
        prop_assert_eq!(&found, &expected);
        let holders: Vec<_> = found.iter().filter(|(_, granted)| *granted).map(|(entry, _)| entry.token).collect();
        let reported: Vec<_> = view.lock_holders(name.as_bytes()).iter().map(|(_, token)| *token).collect();
        prop_assert_eq!(view.lock_counts(name.as_bytes()), (found.len(), holders.len()));
        prop_assert_eq!(reported, holders);
    }
    Ok(())
}

/// Without what the model does not know: words, and who exactly was in the way (the scripts show those).
fn comparable(reply: &Result<Reply, Refusal>) -> Result<Reply, Refusal> {
    match reply.clone() {
        Err(Refusal::Deadlock { .. }) => Err(Refusal::Deadlock { cycle: String::new() }),
        Ok(Reply::Busy(busy)) => Ok(Reply::Busy(BusyReply { holder: None, ..busy })),
        Ok(Reply::ForceReleased(_)) => Ok(Reply::Unlocked { released: true }),
        Ok(Reply::LockForgotten { .. }) => Ok(Reply::LockForgotten { holders: 0 }),
        Ok(Reply::SessionResumed { ttl_ms, .. }) => Ok(Reply::SessionResumed { epoch: 0, ttl_ms }),
        reply => reply,
    }
}

fn commits_agree(view: &View, naive: &Naive, from: Revision) -> Result<(), TestCaseError> {
    match view.commits(from) {
        Ok(commits) => {
            prop_assert!(from >= naive.compacted);
            let commits: Vec<_> = commits.collect();
            let expected = naive.commits(from);
            prop_assert_eq!(commits.len(), expected.len());
            for (commit, expected) in commits.into_iter().zip(&expected) {
                prop_assert_eq!(&commit, expected);
            }
        }
        Err(refusal) => {
            prop_assert!(from < naive.compacted);
            prop_assert_eq!(refusal, Refusal::Compacted { asked: from, compacted: naive.compacted });
        }
    }
    Ok(())
}

fn restart(machine: &Machine, chunk_bytes: usize) -> Machine {
    let mut restore = Restore::new();
    for chunk in snapshot::chunks(machine.view(), chunk_bytes) {
        restore.chunk(&chunk).expect("a good chunk");
    }
    let restored = restore.finish().expect("a whole snapshot");
    assert_eq!(restored.applied_index(), machine.applied_index());
    assert_eq!(restored.applied_term(), machine.applied_term());
    assert_eq!(restored.state().hash(), machine.state().hash());
    restored
}
