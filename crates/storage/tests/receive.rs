//! What comes from other members: their snapshots, and the identities of their directories.

mod harness;

use harness::{Member, Operation, directory, encoded, entries, meta, open};
use tenure_storage::{Fault, HardState, Meeting};

#[test]
fn a_received_snapshot_counts_only_if_every_byte_of_it_is_right() {
    let mut member = Member::initialised(1);
    let files = member.disk.files();
    let bytes = encoded(&meta(7, 2));
    let mut receive = |bytes: &[u8], index, term| {
        let mut receiver = member.store().snapshots().receiver(index, term).unwrap();
        receiver.write(bytes).unwrap();
        receiver.finish()
    };
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(receive(&flipped, 7, 2), Err(Fault::Corrupt { .. })), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(matches!(receive(&bytes[..length], 7, 2), Err(Fault::Corrupt { .. })), "cut at {length}");
    }
    let other = receive(&bytes, 8, 2).unwrap_err();
    assert!(other.to_string().contains("a snapshot at 7 of term 2, not 8 of 2"), "{other}");
    assert_eq!(receive(&bytes, 7, 2).unwrap(), meta(7, 2));
    drop(member.store().snapshots().receiver(9, 2).unwrap());
    assert_eq!(member.disk.files().len(), files.len() + 1, "only what was right has stayed");
}

#[test]
fn a_received_snapshot_is_read_before_the_log_knows_of_it() {
    let mut member = Member::initialised(2);
    member.run(&Operation::Receive { index: 9, term: 3 }).unwrap();
    let snapshots = member.store().snapshots();
    let chunks: Vec<_> = snapshots.reader_of(9, 3).unwrap().map(|chunk| chunk.unwrap().to_vec()).collect();
    assert_eq!(chunks, harness::chunks(&meta(9, 3)));
    assert_eq!(snapshots.newest(), meta(1, 1));
    assert!(snapshots.reader_of(9, 4).is_err());
    member.run(&Operation::InstallReceived { index: 9, term: 3 }).unwrap();
    assert_eq!(snapshots.newest(), meta(9, 3));
}

#[test]
fn a_snapshot_is_sent_from_any_byte_while_it_is_the_newest() {
    use std::io::Read;
    let mut member = Member::initialised(3);
    let snapshots = member.store().snapshots();
    let (found, mut source) = snapshots.source_at(1).unwrap().unwrap();
    assert_eq!(found, meta(1, 1));
    let bytes = encoded(&meta(1, 1));
    assert_eq!(source.length(), bytes.len() as u64);
    source.resume_at(11);
    member.run(&Operation::Install { index: 9, term: 3 }).unwrap();
    assert!(snapshots.source_at(1).unwrap().is_none(), "replaced");
    let mut rest = Vec::new();
    source.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, bytes[11..], "who has begun to read goes on");
}

#[test]
fn a_snapshot_that_is_not_wanted_is_not_found_again() {
    let mut member = Member::initialised(8);
    member.run(&Operation::Append { hard_state: None, entries: entries(2, 9, 1, 10), sync: true }).unwrap();
    member.run(&Operation::Receive { index: 30, term: 4 }).unwrap();
    member.store().discard_snapshot(30).unwrap();
    // The one that the log builds on is not touched.
    member.store().discard_snapshot(1).unwrap();
    member.disk.crash();
    member.open_and_check().unwrap();
    let state = member.durable.as_ref().unwrap();
    assert_eq!((state.snapshot.index, state.last_index()), (1, 9));
}

/// A former leader's copy is refused, and the new leader's, which is the same, is installed.
#[test]
fn what_is_refused_of_one_is_not_taken_from_another() {
    let mut member = Member::initialised(9);
    member.run(&Operation::Receive { index: 30, term: 4 }).unwrap();
    member.run(&Operation::Receive { index: 30, term: 4 }).unwrap();
    member.store().discard_snapshot(30).unwrap();
    member.run(&Operation::InstallReceived { index: 30, term: 4 }).unwrap();
    member.store().discard_snapshot(30).unwrap();
    assert_eq!(member.store().snapshots().newest(), meta(30, 4));
    member.disk.crash();
    member.open_and_check().unwrap();
    assert_eq!(member.durable.as_ref().unwrap().snapshot.index, 30);
}

#[test]
fn a_peer_is_known_again_by_its_directory() {
    let mut member = Member::initialised(4);
    let peers = member.store().peers();
    assert_eq!(peers.directory_of(7), None);
    assert_eq!(peers.meet(7, 70).unwrap(), Meeting::First);
    assert_eq!(peers.meet(7, 70).unwrap(), Meeting::Again);
    assert_eq!(peers.meet(8, 80).unwrap(), Meeting::First);
    drop(peers);
    member.run(&Operation::Reopen).unwrap();
    let peers = member.store().peers();
    assert_eq!(peers.meet(7, 71).unwrap(), Meeting::Stranger { known: 70 });
    assert_eq!(peers.directory_of(7), Some(70), "whoever came first stays");
    peers.keep(&[8, 9]).unwrap();
    assert_eq!((peers.directory_of(7), peers.directory_of(8)), (None, Some(80)));
    drop(peers);
    member.disk.crash();
    member.open_and_check().unwrap();
    assert_eq!(member.store().peers().directory_of(7), None);
    assert_eq!(member.store().peers().directory_of(8), Some(80));
}

#[test]
fn who_was_met_is_known_after_a_power_cut_at_every_operation() {
    let meet_all = |member: &mut Member| {
        let peers = member.store().peers();
        (1..=3u64).take_while(|peer| peers.meet(*peer, u128::from(*peer) * 10).is_ok()).count() as u64
    };
    let mut member = Member::initialised(5);
    let before = member.disk.operations();
    assert_eq!(meet_all(&mut member), 3);
    for cut in before + 1..=member.disk.operations() {
        for seed in 0..8 {
            let mut member = Member::initialised(seed * 1_000_003 + cut);
            member.disk.cut_power_at(cut);
            let met = meet_all(&mut member);
            member.disk.crash();
            member.open_and_check().unwrap();
            let peers = member.store().peers();
            for peer in 1..=met {
                assert_eq!(peers.directory_of(peer), Some(u128::from(peer) * 10), "peer {peer}, cut at {cut}");
            }
        }
    }
}

#[test]
fn a_damaged_list_of_peers_is_named() {
    let mut member = Member::initialised(6);
    member.store().peers().meet(7, 70).unwrap();
    let file = directory().join("PEERS");
    let disk = member.disk.clone();
    drop(member);
    disk.flip_bit(&file, 20, 1);
    let error = open(&disk, &directory()).map(drop).unwrap_err().to_string();
    assert!(error.contains("PEERS is corrupt") && error.contains("checksum"), "{error}");
}

#[test]
fn entries_follow_an_installed_snapshot_at_once() {
    let mut member = Member::initialised(7);
    member.run(&Operation::Append { hard_state: None, entries: entries(2, 9, 1, 10), sync: true }).unwrap();
    member.run(&Operation::Install { index: 30, term: 4 }).unwrap();
    let hard_state = Some(HardState { term: 4, vote: 0, commit: 31 });
    member.run(&Operation::Append { hard_state, entries: entries(31, 32, 4, 10), sync: true }).unwrap();
    member.disk.crash();
    member.open_and_check().unwrap();
    let state = member.durable.as_ref().unwrap();
    assert_eq!((state.snapshot.index, state.last_index(), state.hard_state.commit), (30, 32, 31));
}
