//! A member whose state differs from that of the others: noticed, named, out of service, and given the leader's state.

mod support;

use std::path::Path;

use bytes::Bytes;
use serde_json::Value;
use support::cluster::Cluster;
use support::place::soon;
use support::tenure;
use tenure_client::{AlarmKind, Client};
use tenure_machine::snapshot::{Restore, chunks};
use tenure_machine::{Command, Envelope, Put};
use tenure_storage::{Opened, Options, OsDisk, Recovered, Store};

/// Begins the state of a stopped member with a key that the others do not have, as a bug would. Its identity, its vote
/// and its log stay as they are, and every checksum is right.
fn change_state(directory: &Path) {
    let Ok(Opened::Existing(store, recovered)) = Store::open(OsDisk::default(), directory, Options::default()) else {
        panic!("the directory is a member's")
    };
    let mut restore = Restore::new();
    for chunk in store.snapshot_reader().unwrap() {
        restore.chunk(&chunk.unwrap()).unwrap();
    }
    let mut machine = restore.finish().unwrap();
    store.close().unwrap();
    let Recovered { identity, hard_state, snapshot, entries, .. } = recovered;
    let (key, value) = (Bytes::from("only here"), Bytes::from("value"));
    let put = Put { key, value, lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false };
    let envelope = Envelope { wall_ms: 0, origin: None, command: Command::Put(put) };
    machine.apply(snapshot.index, snapshot.term, &envelope);
    std::fs::remove_dir_all(directory).unwrap();
    let Ok(Opened::Empty(blank)) = Store::open(OsDisk::default(), directory, Options::default()) else {
        panic!("nothing is there any more")
    };
    let (mut store, _) = blank.initialise(identity, snapshot, chunks(machine.view(), 1 << 20)).unwrap();
    store.append(Some(hard_state), &entries, true).unwrap();
    store.close().unwrap();
}

async fn corrupt(client: &Client) -> Vec<u64> {
    let alarms = client.alarms().await.unwrap_or_default();
    alarms.into_iter().filter(|alarm| alarm.kind == AlarmKind::Corrupt).map(|alarm| alarm.member).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_differs_is_named_and_takes_a_new_state() {
    let mut cluster = Cluster::start_with(3, &["--compare-interval", "500ms"]);
    let client = cluster.client().await;
    client.put(("register", "the right value")).await.unwrap();
    let leader = cluster.leader().await;
    let different = (leader + 1) % 3;
    assert_eq!(cluster.servers[different].terminate(), Some(0));
    let directory = cluster.directory().join(format!("n{}", different + 1));
    change_state(&directory);
    tokio::task::block_in_place(|| cluster.servers[different].start_again());

    let at_it = Client::connect(&cluster.servers[different].address).await.unwrap();
    let id = at_it.status().await.unwrap().header.member;
    let others = Client::connect(&cluster.servers[leader].address).await.unwrap();
    soon(async {
        while corrupt(&others).await != [id] {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    // The others go on; it answers nothing.
    others.put(("register", "the right value")).await.unwrap();
    let refused = at_it.get("register").await.unwrap_err().to_string();
    assert!(refused.contains("corrupt"), "{refused}");
    assert!(at_it.put(("register", "x")).await.is_err());
    let ready = cluster.servers[different].get("/readyz").unwrap();
    assert!(!ready.starts_with("HTTP/1.1 200"), "{ready}");
    let status = tenure().args(["--endpoints", &cluster.endpoints(), "status"]).output().unwrap();
    let shown = String::from_utf8(status.stdout).unwrap();
    assert!(
        !status.status.success() && shown.contains(&format!("alarm CORRUPT, raised by n{}", different + 1)),
        "{shown}"
    );

    let name = format!("n{}", different + 1);
    let reseed = ["--endpoints", &cluster.endpoints(), "member", "reseed", &name, "-o", "json"];
    let reseeded = tenure().args(reseed).output().unwrap();
    assert!(reseeded.status.success(), "{}", String::from_utf8_lossy(&reseeded.stderr));
    let told: Value = serde_json::from_slice(&reseeded.stdout).unwrap();
    assert_eq!(told["name"], name.as_str());
    soon(async {
        while !corrupt(&others).await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(at_it.get("register").await.unwrap().pairs[0].value, "the right value");
    cluster.assert_equal().await;
    // And so it is after a restart: the new state is on its disk.
    tokio::task::block_in_place(|| cluster.servers[different].restart());
    cluster.assert_equal().await;
}
