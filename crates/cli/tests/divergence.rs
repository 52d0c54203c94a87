//! A member whose state differs from that of the others: noticed, named, out of service, and given the leader's state.

mod support;

use std::path::Path;

use bytes::Bytes;
use serde_json::Value;
use support::cluster::Cluster;
use support::place::soon;
use support::tenure;
use tenure_client::{AlarmKind, Client};
use tenure_storage::{Entry, Opened, Options, OsDisk, Store};

/// Puts another value of the same length into the log of a member that is stopped, as a bug or a bit that flipped
/// before the checksum was taken would.
fn change_log(directory: &Path, from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let Ok(Opened::Existing(mut store, recovered)) = Store::open(OsDisk::default(), directory, Options::default())
    else {
        panic!("the directory is a member's")
    };
    let find = |entry: &Entry| entry.data.windows(from.len()).position(|window| window == from);
    let place = recovered.entries.iter().position(|entry| find(entry).is_some()).expect("the value is in the log");
    let mut entries: Vec<Entry> = recovered.entries[place..].to_vec();
    let offset = find(&entries[0]).expect("just found");
    let mut data = entries[0].data.to_vec();
    data[offset..offset + to.len()].copy_from_slice(to);
    entries[0].data = Bytes::from(data);
    store.append(None, &entries, true).unwrap();
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
    change_log(&directory, b"the right value", b"the wrong value");
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
