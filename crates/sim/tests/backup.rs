//! A backup is restored after the store that checks tokens has seen newer ones: no token of the new cluster may
//! be older than any that the old one has issued.

use bytes::Bytes;
use tenure_machine::planted::{Bug, plant};
use tenure_machine::{Command, Envelope, LeaseGrant, Lock, Machine, Reply, Revision, Unlock};

/// Takes and gives back a lock so many times; the tokens.
fn tokens(machine: &mut Machine, times: u64) -> Vec<Revision> {
    let mut apply = |command: Command| {
        let index = machine.applied_index() + 1;
        machine.apply(index, 1, &Envelope { wall_ms: 0, origin: None, command }).reply
    };
    let name = Bytes::from_static(b"lock");
    let granted = apply(Command::LeaseGrant(LeaseGrant { lease: 7, ttl_ms: 1000, client: Bytes::new() }));
    granted.expect("no lease lives on, so that its number is free");
    let mut tokens = Vec::new();
    for call in 0..times {
        let lock = Lock { name: name.clone(), lease: 7, call: u128::from(call), ..Lock::default() };
        let Ok(Reply::Lock(reply)) = apply(Command::Lock(Box::new(lock))) else { panic!("the lock is free") };
        assert!(reply.granted);
        tokens.push(reply.token);
        apply(Command::Unlock(Unlock { names: vec![name.clone()], token: reply.token, epoch: 0 })).expect("held");
    }
    tokens
}

/// Whether a holder of the new cluster gets past a store that has seen all tokens of the old one.
fn passes_the_store() -> bool {
    let mut old = Machine::new();
    tokens(&mut old, 5);
    let backup = old.view();
    let end = Envelope { wall_ms: 0, origin: None, command: Command::LeaseRevoke { lease: 7 } };
    old.apply(old.applied_index() + 1, 1, &end).reply.expect("there");
    let newest = tokens(&mut old, 20).into_iter().max();
    let mut reborn = backup.reborn(1_000_000).expect("there are revisions left");
    tokens(&mut reborn, 1).into_iter().max() > newest
}

#[test]
fn tokens_after_a_restored_backup_are_newer_than_all_before() {
    plant(None);
    assert!(passes_the_store());
}

#[test]
fn a_backup_that_goes_on_with_its_own_revisions_is_found() {
    plant(Some(Bug::RebornTooEarly));
    let passes = passes_the_store();
    plant(None);
    assert!(!passes);
}
