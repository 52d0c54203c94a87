//! Three members as processes: each serves everything, and the loss of one is not noticed but as a pause.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::cluster::Cluster;
use support::place::soon;
use tenure_client::{Client, Durations, EndpointOrder, Settings};

#[tokio::test]
async fn every_member_serves_everything() {
    let cluster = Cluster::start(3);
    let mut clients = Vec::new();
    for server in &cluster.servers {
        clients.push(Client::connect(&server.address).await.unwrap());
    }
    for (index, client) in clients.iter().enumerate() {
        client.put((format!("key/{index}"), "value")).await.unwrap();
        for other in &clients {
            let found = other.get(format!("key/{index}")).await.unwrap();
            assert_eq!(found.pairs.len(), 1, "what one member acknowledged every other one reads");
        }
    }
    // One queue over all members: each waits where it is, and is told there.
    let first = clients[0].lock("jobs").holder("first").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        waiting.push(tokio::spawn(client.lock("jobs").holder(format!("waiter {index}")).acquire()));
        until_waiters(&clients[0], index + 1).await;
    }
    let mut token = first.token();
    first.release().await.unwrap();
    for waiter in waiting {
        let guard = soon(waiter).await.unwrap().unwrap();
        assert!(guard.token() > token, "in the order in which they came");
        token = guard.token();
        guard.release().await.unwrap();
    }
    cluster.assert_equal().await;
}

async fn until_waiters(client: &Client, waiters: usize) {
    while client.describe_lock("jobs").await.unwrap().waiters.len() != waiters {
        tokio::time::sleep(5.milliseconds()).await;
    }
}

#[tokio::test]
async fn the_leader_is_killed_and_nothing_that_was_promised_is_lost() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let leader = cluster.leader().await;
    let (holding, waiting) = ((leader + 1) % 3, (leader + 2) % 3);
    let holder = Client::connect(&cluster.servers[holding].address).await.unwrap();
    let guard = holder.lock("jobs").ttl(10.seconds()).acquire().await.unwrap();
    // At both members that stay, and at the leader, whose clients have to go elsewhere with their place.
    let through_leader = [leader, holding, waiting].map(|place| cluster.servers[place].address.as_str()).join(",");
    let settings = Settings { endpoint_order: EndpointOrder::AsGiven, ..Settings::default() };
    let through_leader = Client::connect_with(&through_leader, settings).await.unwrap();
    let waiter = Client::connect(&cluster.servers[waiting].address).await.unwrap();
    let mut queue = Vec::new();
    for client in [&waiter, &through_leader, &holder, &through_leader, &waiter, &client] {
        queue.push(tokio::spawn(client.lock("jobs").ttl(10.seconds()).acquire()));
        until_waiters(&holder, queue.len()).await;
    }
    let places = async || {
        let waiters = holder.describe_lock("jobs").await.unwrap().waiters;
        waiters.into_iter().map(|waiter| (waiter.entry.key, waiter.entry.create_revision)).collect::<Vec<_>>()
    };
    let places_before = places().await;

    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = tokio::spawn({
        let (client, stop, acknowledged) = (client.clone(), stop.clone(), acknowledged.clone());
        async move {
            let mut written = Vec::new();
            for number in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // One whose outcome is unknown is not counted, and not repeated.
                if client.put((format!("n/{number:06}"), "x")).await.is_ok() {
                    written.push(number);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            }
            written
        }
    });
    let until_written = async |more: u64| {
        let before = acknowledged.load(Ordering::Relaxed);
        while acknowledged.load(Ordering::Relaxed) < before + more {
            tokio::time::sleep(5.milliseconds()).await;
        }
    };
    until_written(50).await;
    cluster.servers[leader].kill();
    soon(until_written(50)).await;
    guard.check().expect("its renewals go on under the new leader");
    cluster.servers[leader].restart();
    soon(until_written(50)).await;
    stop.store(true, Ordering::Relaxed);
    let written = writer.await.unwrap();

    assert!(!queue.iter().any(|next| next.is_finished()), "they still wait behind the holder");
    assert_eq!(places().await, places_before, "each has its place");
    let mut token = guard.token();
    guard.release().await.unwrap();
    for (next, (key, _)) in queue.into_iter().zip(places_before) {
        let next = soon(next).await.unwrap().expect("it has kept its place");
        assert_eq!(next.key(), key, "in the order in which they came");
        assert!(next.token() > token);
        token = next.token();
        next.release().await.unwrap();
    }

    let found = client.get(tenure_client::Get::prefix("n/")).await.unwrap();
    let keys: BTreeSet<_> = found.pairs.into_iter().map(|pair| pair.key).collect();
    for number in written {
        assert!(keys.contains(format!("n/{number:06}").as_bytes()), "{number} was acknowledged");
    }
    cluster.assert_equal().await;
}

#[tokio::test]
async fn without_a_majority_nothing_is_promised_and_with_it_all_goes_on() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put(("a", "1")).await.unwrap();
    let leader = cluster.leader().await;
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.servers[one].kill();
    cluster.servers[other].kill();
    let alone = Client::connect(&cluster.servers[leader].address).await.unwrap();
    assert!(alone.put(("a", "2")).await.is_err(), "nobody else has it");
    cluster.servers[one].restart();
    loop {
        if soon(client.put(("a", "3"))).await.is_ok() {
            break;
        }
    }
    assert_eq!(client.get("a").await.unwrap().pairs[0].value, "3");
    cluster.servers[other].restart();
    cluster.assert_equal().await;
}
