//! Members of two releases in one cluster: a rolling upgrade under load, the way back before the feature level has
//! risen, and no way back afterwards.
//!
//! The earlier release is this one, told to support no more than the lowest level, or the binary that
//! `TENURE_TEST_EARLIER` names: `.ci/long` builds a real one.

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::cluster::Cluster;
use support::place::soon;
use support::{Release, tenure};
use tenure_client::{Client, Durations};

const EARLIER: &str = "TENURE_TEST_EARLIER";

fn earlier() -> Release {
    match std::env::var_os(EARLIER) {
        Some(program) => Release { program: Some(PathBuf::from(program)), flags: Vec::new() },
        None => Release { program: None, flags: vec!["--max-level".to_owned(), "0".to_owned()] },
    }
}

/// Puts and locks that must all succeed while members are replaced.
struct Load {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(client: &Client) -> Load {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let task = |task: u64| {
            let (client, stop, made) = (client.clone(), stop.clone(), made.clone());
            tokio::spawn(async move {
                for number in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    client.put((format!("put/{task}/{number:06}"), "x")).await.expect("no put fails");
                    let guard = client.lock("contended").acquire().await.expect("no lock fails");
                    guard.release().await.expect("no unlock fails");
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let tasks = (0..3).map(task).collect();
        Load { stop, made, tasks }
    }

    async fn goes_on(&self) {
        let before = self.made.load(Ordering::Relaxed);
        soon(async {
            while self.made.load(Ordering::Relaxed) < before + 20 {
                assert!(!self.tasks.iter().any(|task| task.is_finished()), "a call failed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            soon(task).await.unwrap();
        }
    }
}

async fn level(cluster: &Cluster, member: usize) -> Option<u32> {
    let client = Client::connect(&cluster.servers[member].address).await.ok()?;
    Some(client.level().await.ok()?.level)
}

async fn until_level(cluster: &Cluster, expected: u32) {
    soon(async {
        for member in 0..3 {
            while level(cluster, member).await != Some(expected) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_upgraded_in_turn_under_load() {
    let mut cluster = Cluster::start_as(3, &earlier());
    let client = cluster.client().await;
    let kept = client.lock("kept").ttl(10.seconds()).acquire().await.unwrap();
    let load = Load::start(&client);
    load.goes_on().await;
    for member in 0..3 {
        tokio::task::block_in_place(|| cluster.servers[member].replace(&Release::default()));
        load.goes_on().await;
        if member < 2 {
            assert_eq!(level(&cluster, member).await, Some(0), "the members of the earlier release hold the level");
        }
    }
    until_level(&cluster, 1).await;
    load.goes_on().await;
    load.end().await;
    kept.check().unwrap();
    kept.release().await.unwrap();
    cluster.assert_equal().await;

    // The earlier release does not start on this data, says why, and leaves it as it is.
    let mut member = cluster.servers.remove(0);
    assert_eq!(member.terminate(), Some(0));
    assert_ne!(member.try_replace(&earlier()), Some(0));
    let said = member.stderr();
    if std::env::var_os(EARLIER).is_none() {
        assert!(said.contains("feature level 1") && said.contains("0.2.0"), "{said}");
    }
    tokio::task::block_in_place(|| member.replace(&Release::default()));
    cluster.servers.insert(0, member);
    cluster.assert_equal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_level_has_risen_there_is_a_way_back() {
    let mut cluster = Cluster::start_as(3, &earlier());
    let client = cluster.client().await;
    let load = Load::start(&client);
    for member in [0, 1] {
        tokio::task::block_in_place(|| cluster.servers[member].replace(&Release::default()));
        load.goes_on().await;
    }
    // Something went wrong with the new release: back.
    for member in [1, 0] {
        tokio::task::block_in_place(|| cluster.servers[member].replace(&earlier()));
        load.goes_on().await;
    }
    load.end().await;
    cluster.assert_equal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_an_earlier_release_is_not_let_in_afterwards() {
    let mut cluster = Cluster::start(3);
    until_level(&cluster, 1).await;
    let mut refused = cluster.spawn_joining(&earlier());
    assert_ne!(refused.wait(), Some(0));
    let said = refused.stderr();
    assert!(said.contains("feature level 1"), "{said}");
    // One that is in and has missed the rise is refused by the others; it stops on its own data anyway.
    assert_eq!(cluster.client().await.members().await.unwrap().members.len(), 3, "nothing was added");
    drop(cluster.servers.pop());
}

#[test]
fn an_operator_sees_the_level_and_pins_it() {
    let cluster = Cluster::start(3);
    let run = |arguments: &[&str]| {
        let output = tenure().args(["--endpoints", &cluster.endpoints()]).args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    support::until("the level has risen", || run(&["member", "level"]).1.matches(" 1 ").count() >= 3);
    let (_, shown, _) = run(&["status"]);
    assert!(shown.lines().next().unwrap().contains("LEVEL"), "{shown}");
    let (is_pinned, said, error) = run(&["member", "level", "pin", "1"]);
    assert!(is_pinned && said.contains("pinned at 1"), "{said}{error}");
    let (is_lowered, _, error) = run(&["member", "level", "pin", "0"]);
    assert!(!is_lowered && error.contains("never lowered"), "{error}");
    let (is_released, said, _) = run(&["member", "level", "release"]);
    assert!(is_released && said.contains("not pinned"), "{said}");
}
