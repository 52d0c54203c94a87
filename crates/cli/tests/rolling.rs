//! Members are restarted in turn, in order, under load, and nobody who uses the client has anything to do about it: no
//! call fails, no guard is lost, no watch has a gap or a repetition.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use support::cluster::Cluster;
use support::place::soon;
use tenure_client::{Client, Durations, Get, Keys, Revision, Watch};
use tokio::task::JoinSet;

/// How many restarts, if not the six that fit into a test run.
const RESTARTS: &str = "TENURE_TEST_ROLLING_RESTARTS";
/// Calls of each kind between two restarts.
const BETWEEN: u64 = 50;

/// What all who make calls have in common.
#[derive(Clone)]
struct Load {
    client: Client,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    puts: AtomicU64,
    gets: AtomicU64,
    locks: AtomicU64,
    seen: AtomicU64,
    is_held: AtomicBool,
    last_token: AtomicI64,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.counts.stop.load(Ordering::Relaxed)
    }

    async fn puts(self, task: u32) {
        for number in 0.. {
            if !self.goes_on() {
                return;
            }
            let put = self.client.put((format!("put/{task}/{number:06}"), "x"));
            put.await.unwrap_or_else(|error| panic!("a put failed: {error}"));
            self.counts.puts.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn gets(self) {
        while self.goes_on() {
            let found = self.client.get("fixed").await.unwrap_or_else(|error| panic!("a get failed: {error}"));
            assert_eq!(found.pairs[0].value, "value");
            self.counts.gets.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn locks(self) {
        while self.goes_on() {
            let guard = self.client.lock("contended").acquire().await;
            let guard = guard.unwrap_or_else(|error| panic!("a lock failed: {error}"));
            let tenure = async |held: &tenure_client::Held| {
                assert!(!self.counts.is_held.swap(true, Ordering::SeqCst), "two hold it");
                assert!(self.counts.last_token.swap(held.token(), Ordering::SeqCst) < held.token());
                tokio::task::yield_now().await;
                self.counts.is_held.store(false, Ordering::SeqCst);
            };
            guard.run(tenure).await.unwrap_or_else(|lost| panic!("a guard was lost: {lost}"));
            guard.release().await.unwrap_or_else(|error| panic!("an unlock failed: {error}"));
            self.counts.locks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives every key that was seen, with its revision, in the order in which they came.
    async fn watches(self, mut watcher: tenure_client::Watcher) -> Vec<(Revision, String)> {
        let mut seen = Vec::new();
        loop {
            let events = watcher.next().await.unwrap_or_else(|error| panic!("a watch failed: {error}"));
            for event in events.events {
                let key = String::from_utf8(event.pair.key.to_vec()).unwrap();
                if key == "put/end" {
                    return seen;
                }
                seen.push((event.pair.mod_revision, key));
            }
            self.counts.seen.store(seen.len() as u64, Ordering::Relaxed);
        }
    }

    fn made(&self) -> [u64; 4] {
        let Counts { puts, gets, locks, seen, .. } = &*self.counts;
        [puts, gets, locks, seen].map(|count| count.load(Ordering::Relaxed))
    }

    /// Waits until so many more of each have been made.
    async fn until_more(&self, more: u64) {
        let before = self.made();
        while self.made().iter().zip(before).any(|(now, before)| *now < before + more) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_while_members_are_restarted_in_turn() {
    let restarts = std::env::var(RESTARTS).map_or(6, |number| number.parse().unwrap());
    let mut cluster = Cluster::start(3);
    let load = Load { client: cluster.client().await, counts: Arc::default() };
    load.client.put(("fixed", "value")).await.unwrap();
    let kept = load.client.lock("kept").ttl(10.seconds()).acquire().await.unwrap();
    let watcher = load.client.watch(Watch::keys(Keys::prefix("put/"))).await.unwrap();
    let watching = tokio::spawn(load.clone().watches(watcher));
    let mut working = JoinSet::new();
    (0..3).for_each(|task| drop(working.spawn(load.clone().puts(task))));
    (0..2).for_each(|_| drop(working.spawn(load.clone().gets())));
    (0..2).for_each(|_| drop(working.spawn(load.clone().locks())));

    let rolling = async {
        soon(load.until_more(BETWEEN)).await;
        for restart in 0..restarts {
            let server = &mut cluster.servers[restart % 3];
            tokio::task::block_in_place(|| server.restart_in_order());
            soon(load.until_more(BETWEEN)).await;
        }
    };
    tokio::select! {
        () = rolling => {}
        // Whoever ends now has failed.
        Some(ended) = working.join_next() => ended.unwrap(),
        lost = kept.lost() => panic!("{lost}"),
    }
    load.counts.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = soon(working.join_next()).await {
        ended.unwrap();
    }
    kept.check().unwrap();
    kept.release().await.unwrap();

    load.client.put(("put/end", "x")).await.unwrap();
    let seen = soon(watching).await.unwrap();
    let mut stored: Vec<(Revision, String)> = load
        .client
        .get(Get::prefix("put/"))
        .await
        .unwrap()
        .pairs
        .into_iter()
        .map(|pair| (pair.mod_revision, String::from_utf8(pair.key.to_vec()).unwrap()))
        .filter(|(_, key)| key != "put/end")
        .collect();
    stored.sort();
    assert!(seen == stored, "the watch saw {} changes, and {} were made", seen.len(), stored.len());
    let [puts, gets, locks, _] = load.made();
    assert_eq!(stored.len() as u64, puts, "each put was made once");
    cluster.assert_equal().await;
    println!("{restarts} restarts: {puts} puts, {gets} gets, {locks} locks, none failed");
}

#[tokio::test]
async fn a_leader_that_is_stopped_in_order_hands_over_first() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader().await;
    assert_eq!(cluster.servers[leader].terminate(), Some(0));
    // Nobody waits for an election here: it was over before the old leader was gone.
    let mut leads = Vec::new();
    for server in cluster.servers.iter().enumerate().filter(|(index, _)| *index != leader).map(|(_, server)| server) {
        let client = Client::connect(&server.address).await.unwrap();
        leads.push(client.status().await.unwrap().is_leader());
    }
    assert!(leads.contains(&true), "{leads:?}");
}
