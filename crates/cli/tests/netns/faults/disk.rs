//! A member whose disk is full.

use tenure_client::Client;

use super::{SHORT, Scene, can_run};
use crate::cluster::{Cluster, MEMBERS};
use crate::member::Member;

/// Room for the log's first file, not for the next one.
const SMALL: u64 = 12 << 20;
const LARGE: u64 = 400 << 20;

#[test]
#[ignore = "needs root and network namespaces"]
fn the_disk_of_one_is_full() {
    if !can_run() {
        return;
    }
    let mut cluster = Cluster::prepare();
    cluster.member(MEMBERS[1]).set_disk_bytes(SMALL);
    cluster.members.iter_mut().for_each(Member::start);
    cluster.until_ready();
    let mut scene = Scene::with(cluster);
    let endpoints = scene.cluster.addresses().join(",");
    scene.cluster.operate(async move || {
        let client = Client::connect(&endpoints).await.unwrap();
        for number in 0..100 {
            // One that is not acknowledged is not missed.
            let _ = client.put((format!("large/{number}"), vec![b'x'; 128 << 10])).await;
        }
    });
    let full = scene.cluster.member(MEMBERS[1]);
    assert_ne!(full.ended(), Some(0));
    assert!(full.said().contains("disk full"), "{}", full.said());
    scene.goes_on_for(SHORT);
    let member = scene.cluster.member(MEMBERS[1]);
    member.set_disk_bytes(LARGE);
    member.start();
    scene.cluster.until_ready();
    scene.end();
}
