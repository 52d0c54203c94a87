//! A member that is stopped still has its connections, and the system accepts new ones for it: nothing is refused,
//! nothing is answered. The client gets past it.

mod support;

use rustix::process::Signal;
use support::cluster::Cluster;
use support::place::soon;
use tenure_client::{Client, Durations, EndpointOrder, Error, Get, Keys, Settings, Watch};

/// A client of all members that begins with this one.
async fn client_from(cluster: &Cluster, first: usize) -> Client {
    let (before, after) = cluster.servers.split_at(first);
    let endpoints = after.iter().chain(before).map(|server| server.address.as_str()).collect::<Vec<_>>().join(",");
    let settings = Settings { endpoint_order: EndpointOrder::AsGiven, ..Settings::default() };
    Client::connect_with(&endpoints, settings).await.unwrap()
}

/// Stops the member that a client talks to, and sees everything go on elsewhere.
async fn everything_gets_past(cluster: &Cluster, stopped: usize) {
    let client = client_from(cluster, stopped).await;
    client.put(("before", "x")).await.unwrap();
    let mut watcher = client.watch(Watch::keys(Keys::prefix("n/"))).await.unwrap();
    let guard = client.lock("jobs").ttl(6.seconds()).acquire().await.unwrap();
    let lease = client.grant_lease(60.seconds(), 0).await.unwrap();
    let mut keep_alive = client.keep_alive(lease.id);
    keep_alive.renew().await.unwrap();
    cluster.servers[stopped].signal(Signal::STOP);

    let mut written = Vec::new();
    let mut in_doubt = 0;
    for number in 0..20 {
        match soon(client.put((format!("n/{number:02}"), "x"))).await {
            Ok(_) => written.push(format!("n/{number:02}")),
            Err(error) => {
                assert!(error.outcome_is_unknown(), "{error}");
                in_doubt += 1;
            }
        }
        soon(client.get("before")).await.expect("a read is repeated elsewhere");
    }
    assert!(in_doubt <= 1, "only what was under way when it was stopped can be in doubt: {in_doubt}");
    soon(keep_alive.renew()).await.expect("renewals are repeated elsewhere");
    let mut seen = Vec::new();
    while seen.last() != written.last() {
        for event in soon(watcher.next()).await.unwrap().events {
            let key = String::from_utf8(event.pair.key.to_vec()).unwrap();
            assert!(seen.last() < Some(&key), "{key} after {seen:?}");
            seen.push(key);
        }
    }
    assert!(written.iter().all(|key| seen.contains(key)), "{seen:?} has not all of {written:?}");
    soon(guard.renewed_after(guard.deadline())).await;
    guard.check().unwrap();

    // A new client has only the connection that the system gives it, and must not send a write there.
    let newcomer = client_from(cluster, stopped).await;
    for number in 0..3 {
        soon(newcomer.put((format!("new/{number}"), "x"))).await.expect("nothing was sent to who says nothing");
    }
    let found = soon(newcomer.get(Get::prefix("new/"))).await.unwrap();
    assert_eq!(found.pairs.len(), 3);
    let other = soon(newcomer.lock("other").ttl(6.seconds()).acquire()).await.unwrap();
    soon(other.release()).await.unwrap();
    soon(guard.release()).await.unwrap();
    cluster.servers[stopped].signal(Signal::CONT);
    cluster.assert_equal().await;
}

#[tokio::test]
async fn a_follower_that_is_stopped_is_got_past() {
    let cluster = Cluster::start(3);
    let follower = (cluster.leader().await + 1) % 3;
    everything_gets_past(&cluster, follower).await;
}

#[tokio::test]
async fn a_leader_that_is_stopped_is_got_past() {
    let cluster = Cluster::start(3);
    let leader = cluster.leader().await;
    everything_gets_past(&cluster, leader).await;
}

#[tokio::test]
async fn a_waiter_at_a_stopped_member_is_granted_elsewhere() {
    let cluster = Cluster::start(3);
    let follower = (cluster.leader().await + 1) % 3;
    let holder = client_from(&cluster, (follower + 1) % 3).await;
    let guard = holder.lock("jobs").acquire().await.unwrap();
    let client = client_from(&cluster, follower).await;
    let waiting = tokio::spawn(client.lock("jobs").acquire());
    while holder.describe_lock("jobs").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(5.milliseconds()).await;
    }
    cluster.servers[follower].signal(Signal::STOP);
    let token = guard.token();
    guard.release().await.unwrap();
    let next = soon(waiting).await.unwrap().expect("it asks another member for its place");
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
    cluster.servers[follower].signal(Signal::CONT);
}

#[tokio::test]
async fn who_knows_nobody_else_is_told_of_the_silence_and_that_nothing_was_sent() {
    let cluster = Cluster::start(1);
    cluster.servers[0].signal(Signal::STOP);
    let client = cluster.client().await;
    let error = soon(client.put(("a", "1"))).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(!error.outcome_is_unknown(), "{error}");
    assert!(error.to_string().contains("silent"), "{error}");
    cluster.servers[0].signal(Signal::CONT);
    soon(client.put(("a", "2"))).await.unwrap();
}
