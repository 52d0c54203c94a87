//! Elections of the Rust client against a real server.

mod support;

use rustix::process::Signal;
use support::cluster::Cluster;
use support::place::{Connected, soon};
use support::proxy::Proxy;
use tenure_client::{Client, Durations, Error, LockError, LossCause};

#[tokio::test]
async fn elections_have_one_leader_who_can_be_observed() {
    let connected = Connected::start().await;
    let client = &connected.client;
    assert!(matches!(client.leader("e").await, Err(Error::NobodyElected)));
    let mut observer = client.observe("e");
    let first = client.campaign("e", "first").holder("node-1").lead().await.unwrap();
    let leader = client.leader("e").await.unwrap();
    assert_eq!((&leader.value[..], leader.token, leader.holder.as_str()), (&b"first"[..], first.token(), "node-1"));
    assert_eq!((leader.key.as_str(), leader.lease), (first.key(), first.lease()));
    assert!(leader.elected.is_some());
    assert_eq!(soon(observer.next()).await.unwrap().value, "first");
    first.proclaim("second").await.unwrap();
    assert_eq!(soon(observer.next()).await.unwrap().value, "second");

    let waiting = tokio::spawn(client.campaign("e", "third").lead());
    connected.until_waiters("e", 1).await;
    match client.campaign("e", "hasty").try_once().lead().await.unwrap_err() {
        LockError::Busy { holder, waiting, .. } => assert_eq!((holder.as_str(), waiting), ("node-1", 1)),
        other => panic!("{other}"),
    }
    let late = client.campaign("e", "late").wait(20.milliseconds()).lead().await.unwrap_err();
    assert!(matches!(late, LockError::Timeout { .. }), "{late}");
    let token = first.token();
    first.resign().await.unwrap();
    let third = soon(waiting).await.unwrap().unwrap();
    assert!(third.token() > token);
    let told = soon(observer.next()).await.unwrap();
    assert_eq!((&told.value[..], told.token), (&b"third"[..], third.token()));
    drop(third);
    client.settled().await;
    assert!(matches!(client.leader("e").await, Err(Error::NobodyElected)), "who drops it resigns");
}

#[tokio::test]
async fn a_candidate_that_is_dropped_withdraws() {
    let connected = Connected::start().await;
    let client = &connected.client;
    let leader = client.campaign("e", "first").lead().await.unwrap();
    let waiting = tokio::spawn(client.campaign("e", "second").lead());
    connected.until_waiters("e", 1).await;
    waiting.abort();
    connected.until_waiters("e", 0).await;
    leader.resign().await.unwrap();
}

#[tokio::test]
async fn under_a_session_a_name_has_one_candidate() {
    let connected = Connected::start().await;
    let session = connected.client.session().open().await.unwrap();
    let leader = session.campaign("e", "first").owner("me").lead().await.unwrap();
    assert_eq!(leader.lease(), session.lease());
    let again = session.campaign("e", "second").owner("me").lead().await.unwrap_err();
    assert!(matches!(again, LockError::AlreadyHeld { .. }), "{again}");
    assert_eq!(connected.client.leader("e").await.unwrap().value, "first", "what is led is not overwritten");
    leader.resign().await.unwrap();
}

#[tokio::test]
async fn a_leader_of_the_past_is_told_that_it_is_one() {
    let connected = Connected::start().await;
    let client = &connected.client;
    let old = client.campaign("e", "old").lead().await.unwrap();
    client.force_release("e", old.token()).await.unwrap();
    let new = soon(client.campaign("e", "new").lead()).await.unwrap();
    match old.proclaim("me, still").await.unwrap_err() {
        LockError::Lost(lost) => assert_eq!((lost.token, lost.cause), (old.token(), LossCause::Taken)),
        other => panic!("{other}"),
    }
    assert_eq!(soon(old.cancelled()).await.cause, LossCause::Taken);
    assert!(old.run(async |_| ()).await.is_err());
    assert_eq!(client.leader("e").await.unwrap().value, "new");
    assert!(matches!(old.resign().await, Err(LockError::Lost(_))));
    new.check().unwrap();
}

#[tokio::test]
async fn a_leader_a_candidate_and_an_observer_outlive_a_restart_of_the_server() {
    let mut connected = Connected::start().await;
    let client = connected.client.clone();
    let leader = client.campaign("e", "first").ttl(20.seconds()).lead().await.unwrap();
    let waiting = tokio::spawn(client.campaign("e", "second").ttl(20.seconds()).lead());
    connected.until_waiters("e", 1).await;
    let mut observer = client.observe("e");
    assert_eq!(soon(observer.next()).await.unwrap().value, "first");
    connected.server.restart();
    connected.until_waiters("e", 1).await;
    leader.check().unwrap();
    leader.proclaim("still first").await.unwrap();
    assert_eq!(soon(observer.next()).await.unwrap().value, "still first");
    let token = leader.token();
    leader.resign().await.unwrap();
    let second = soon(waiting).await.unwrap().unwrap();
    assert!(second.token() > token);
    assert_eq!(soon(observer.next()).await.unwrap().value, "second", "nothing is told twice");
    second.resign().await.unwrap();
}

#[tokio::test]
async fn a_candidate_and_an_observer_at_a_member_that_hangs_go_on_elsewhere() {
    let cluster = Cluster::start(3);
    let follower = (cluster.leader().await + 1) % 3;
    let elsewhere = Client::connect(&cluster.servers[(follower + 1) % 3].address).await.unwrap();
    let first = elsewhere.campaign("e", "first").lead().await.unwrap();
    let client = Client::connect(&cluster.servers[follower].address).await.unwrap();
    let mut observer = client.observe("e");
    assert_eq!(soon(observer.next()).await.unwrap().value, "first");
    let waiting = tokio::spawn(client.campaign("e", "second").lead());
    let entered = async {
        while elsewhere.describe_lock("e").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(5.milliseconds()).await;
        }
    };
    soon(entered).await;
    cluster.servers[follower].signal(Signal::STOP);
    first.resign().await.unwrap();
    let second = soon(waiting).await.unwrap().expect("it stands where it stood");
    let told = soon(observer.next()).await.unwrap();
    assert_eq!((&told.value[..], told.token), (&b"second"[..], second.token()));
    second.resign().await.unwrap();
    cluster.servers[follower].signal(Signal::CONT);
}

#[tokio::test]
async fn work_is_cancelled_before_somebody_else_can_be_elected() {
    let connected = Connected::start().await;
    let proxy = Proxy::start(&connected.server.address);
    let behind_proxy = Client::connect(&proxy.address).await.unwrap();
    let leader = behind_proxy.campaign("e", "cut off").ttl(2.seconds()).lead().await.unwrap();
    let (next, held) = (connected.client.campaign("e", "next"), leader.held().clone());
    let waiting = tokio::spawn(async move {
        let next = next.lead().await.unwrap();
        held.check().expect_err("it knew before this one was elected");
        next
    });
    connected.until_waiters("e", 1).await;
    proxy.cut();
    let lost = leader.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
    assert!(matches!(lost.cause, LossCause::Unconfirmed { .. }), "{lost}");
    let next = soon(waiting).await.unwrap();
    assert!(next.token() > lost.token);
    next.resign().await.unwrap();
}
