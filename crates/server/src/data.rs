//! Opening a member's data directory: from files to everything a replica boots from.

use std::time::Instant;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tenure_api::tenure::peer::v1::Joined;
use tenure_machine::snapshot::{Restore, SnapshotError, chunks};
use tenure_machine::{Command, Envelope, Machine, Member, MemberId};
use tenure_replica::{Boot, FIRST_INDEX, FIRST_TERM, HardState, LogEntry, first_configuration};
use tenure_storage::{
    Blank, Entry, Fault, Identity, OpenError, Opened, Options, OsDisk, Recovered, SnapshotMeta, SnapshotReader, Store,
};

use crate::config::Config;
use crate::member::random_u64;
use crate::peer::listing::{from_proto, url_of};

/// Target size of a snapshot's chunks.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// A data directory, locked, with what was found in it.
pub struct Data {
    pub identity: Identity,
    pub boot: Boot,
    pub store: Store<OsDisk>,
}

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("data directory: {0}")]
    Open(#[from] OpenError),
    #[error("data directory: {0}")]
    Fault(#[from] Fault),
    #[error("data directory: {0}; it was written by a newer version, or is damaged")]
    Snapshot(#[from] SnapshotError),
}

/// What a data directory turned out to be.
pub(crate) enum Found {
    Existing(Box<Data>),
    /// Nobody's yet.
    Empty(Box<Blank<OsDisk>>),
}

/// Opens the data directory.
pub(crate) fn open(config: &Config) -> Result<Found, DataError> {
    let began = Instant::now();
    match Store::open(OsDisk::default(), &config.data_dir, Options::default())? {
        Opened::Existing(store, recovered) => data(store, recovered, began).map(Box::new).map(Found::Existing),
        Opened::Empty(blank) => Ok(Found::Empty(Box::new(blank))),
    }
}

/// Makes an empty data directory a member's.
pub(crate) fn begin(blank: Blank<OsDisk>, beginning: Beginning) -> Result<Data, DataError> {
    let began = Instant::now();
    let Beginning { identity, index, term, configuration, members } = beginning;
    let mut machine = Machine::new();
    for member in members {
        machine.apply(index, term, &Envelope { wall_ms: 0, origin: None, command: Command::Publish(member) });
    }
    machine.skip(index, term);
    let meta = SnapshotMeta { index, term, configuration };
    let (store, recovered) = blank.initialise(identity, meta, chunks(machine.view(), CHUNK_BYTES))?;
    data(store, recovered, began)
}

fn data(store: Store<OsDisk>, recovered: Recovered, began: Instant) -> Result<Data, DataError> {
    let identity = recovered.identity;
    let (machine, snapshot_bytes) = restore(store.snapshot_reader()?)?;
    report(&recovered, &machine, began);
    let boot = Boot {
        machine,
        snapshot_index: recovered.snapshot.index,
        snapshot_term: recovered.snapshot.term,
        configuration: recovered.snapshot.configuration,
        snapshot_bytes,
        hard_state: HardState {
            term: recovered.hard_state.term,
            vote: recovered.hard_state.vote,
            commit: recovered.hard_state.commit,
        },
        entries: recovered.entries.into_iter().map(log_entry).collect(),
    };
    Ok(Data { identity, boot, store })
}

/// What a member has before its first log entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beginning {
    identity: Identity,
    index: u64,
    term: u64,
    configuration: Bytes,
    members: Vec<Member>,
}

impl Beginning {
    /// A new cluster of one; who it is will be published.
    pub(crate) fn alone() -> Beginning {
        let member_id = random_u64().max(1);
        let identity = Identity { cluster_id: random_u64().max(1), member_id, directory_id: draw_directory_id() };
        Beginning::first(identity, &[member_id], Vec::new())
    }

    /// A new cluster of several. Each of them begins alike, whoever starts first: everything but the identity of
    /// its directory follows from the list.
    pub(crate) fn of_cluster(name: &str, cluster: &[(String, String)]) -> Beginning {
        let cluster_id = cluster_id(cluster);
        let members: Vec<Member> = cluster
            .iter()
            .map(|(name, address)| Member {
                id: member_id(cluster_id, name),
                name: name.clone(),
                peer_urls: vec![url_of(address)],
                client_urls: Vec::new(),
                learner: false,
            })
            .collect();
        let mut voters: Vec<MemberId> = members.iter().map(|member| member.id).collect();
        voters.sort_unstable();
        let member_id = member_id(cluster_id, name);
        Beginning::first(Identity { cluster_id, member_id, directory_id: draw_directory_id() }, &voters, members)
    }

    /// A member that was added to a running cluster: it has nothing but the others' addresses, and whatever it
    /// is sent takes the place of that.
    pub(crate) fn joined(joined: Joined, directory_id: u128) -> Beginning {
        let Joined { cluster_id, member_id, members, .. } = joined;
        Beginning {
            identity: Identity { cluster_id, member_id, directory_id },
            index: 0,
            term: 0,
            configuration: Bytes::new(),
            members: members.into_iter().map(from_proto).collect(),
        }
    }

    fn first(identity: Identity, voters: &[MemberId], members: Vec<Member>) -> Beginning {
        let configuration = first_configuration(voters);
        Beginning { identity, index: FIRST_INDEX, term: FIRST_TERM, configuration, members }
    }
}

pub(crate) fn draw_directory_id() -> u128 {
    u128::from(random_u64()) << 64 | u128::from(random_u64())
}

/// Whatever the order in which the members were given.
pub(crate) fn cluster_id(cluster: &[(String, String)]) -> u64 {
    let mut sorted: Vec<_> = cluster.iter().collect();
    sorted.sort_unstable();
    let mut hash = Sha256::new_with_prefix("tenure cluster");
    for (name, address) in sorted {
        hash.update(format!("\n{name}={address}"));
    }
    id_of(hash)
}

fn member_id(cluster_id: u64, name: &str) -> MemberId {
    id_of(Sha256::new_with_prefix(format!("tenure member\n{cluster_id:016x}\n{name}")))
}

/// Never 0, which means nobody.
fn id_of(hash: Sha256) -> u64 {
    let digest: [u8; 32] = hash.finalize().into();
    let [first, ..] = digest.as_chunks::<8>().0 else { return 1 };
    u64::from_be_bytes(*first).max(1)
}

/// The machine that a snapshot holds, and the bytes of its chunks.
pub(crate) fn restore(mut reader: SnapshotReader<OsDisk>) -> Result<(Machine, u64), DataError> {
    let mut restore = Restore::new();
    let mut bytes = 0;
    while let Some(chunk) = reader.next_chunk()? {
        bytes += chunk.len() as u64;
        restore.chunk(&chunk)?;
    }
    Ok((restore.finish()?, bytes))
}

fn report(recovered: &Recovered, machine: &Machine, began: Instant) {
    if let Some(torn) = &recovered.torn_tail {
        tracing::warn!(
            file = %torn.file.display(), offset = torn.offset, bytes = torn.bytes,
            "cut off an unfinished write at the end of the log; nothing in it was acknowledged"
        );
    }
    for file in &recovered.damaged_snapshots {
        tracing::warn!(file = %file.display(), "a damaged snapshot was passed over; the log had all that it held");
    }
    tracing::info!(
        snapshot = recovered.snapshot.index,
        entries = recovered.entries.len(),
        revision = machine.state().revision(),
        millis = began.elapsed().as_millis() as u64,
        "read the data directory"
    );
}

fn log_entry(entry: Entry) -> LogEntry {
    let Entry { index, term, kind, data, context } = entry;
    LogEntry { index, term, kind, data, context }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(text: &[(&str, &str)]) -> Vec<(String, String)> {
        text.iter().map(|(name, address)| (name.to_string(), address.to_string())).collect()
    }

    #[test]
    fn every_member_of_a_new_cluster_begins_alike() {
        let forward = cluster(&[("n1", "a:1"), ("n2", "b:2"), ("n3", "c:3")]);
        let backward: Vec<_> = forward.iter().rev().cloned().collect();
        let one = Beginning::of_cluster("n1", &forward);
        let other = Beginning::of_cluster("n3", &backward);
        assert_eq!(one.identity.cluster_id, other.identity.cluster_id);
        assert_eq!(one.configuration, other.configuration);
        assert_ne!(one.identity.member_id, other.identity.member_id);
        assert_ne!(one.identity.directory_id, other.identity.directory_id);
        let sorted = |beginning: &Beginning| {
            let mut members = beginning.members.clone();
            members.sort_by_key(|member| member.id);
            members
        };
        assert_eq!(sorted(&one), sorted(&other));
        let elsewhere = cluster(&[("n1", "a:1"), ("n2", "b:2"), ("n3", "c:4")]);
        assert_ne!(cluster_id(&elsewhere), one.identity.cluster_id);
    }

    #[test]
    fn what_a_member_begins_with_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { data_dir: directory.path().join("data"), ..Config::default() };
        let beginning = Beginning::of_cluster("n1", &cluster(&[("n1", "a:1"), ("n2", "b:2")]));
        let Found::Empty(blank) = open(&config).unwrap() else { panic!("it is new") };
        let first = begin(*blank, beginning.clone()).unwrap();
        let hash = first.boot.machine.state().hash();
        drop(first);
        let Found::Existing(again) = open(&config).unwrap() else { panic!("it is there") };
        assert_eq!(again.identity, beginning.identity);
        assert_eq!((again.boot.snapshot_index, again.boot.machine.applied_index()), (FIRST_INDEX, FIRST_INDEX));
        assert_eq!(again.boot.machine.state().hash(), hash);
        assert_eq!(again.boot.machine.state().members().len(), 2);
    }

    #[test]
    fn who_joined_begins_with_nothing_but_addresses() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { data_dir: directory.path().join("data"), ..Config::default() };
        let member = |id| tenure_api::tenure::peer::v1::Member { id, ..Default::default() };
        let joined = Joined { cluster_id: 7, member_id: 2, leader_id: 1, members: vec![member(1), member(2)] };
        let Found::Empty(blank) = open(&config).unwrap() else { panic!("it is new") };
        drop(begin(*blank, Beginning::joined(joined, 5)).unwrap());
        let Found::Existing(again) = open(&config).unwrap() else { panic!("it is there") };
        assert_eq!(again.identity, Identity { cluster_id: 7, member_id: 2, directory_id: 5 });
        assert_eq!((again.boot.snapshot_index, again.boot.machine.applied_index()), (0, 0));
        assert_eq!(again.boot.machine.state().members().len(), 2);
    }
}
