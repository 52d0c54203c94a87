//! The client library against a real member: what it promises over lost connections.

#[path = "../../client/tests/polled/mod.rs"]
mod polled;
mod support;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use polled::poll_and_drop;
use rustix::process::Signal;
use support::Server;
use support::place::{Connected, soon};
use tenure_client::{
    Client, Compare, Durations, EndpointOrder, Error, EventKind, Get, Keys, LockError, Operation, Session, Settings,
    Txn, Watch,
};

#[tokio::test]
async fn the_next_endpoint_is_tried_when_one_refuses() {
    let connected = Connected::start().await;
    let gone = support::own_address();
    let settings = Settings { endpoint_order: EndpointOrder::AsGiven, ..Settings::default() };
    let client = Client::connect_with(&format!("{gone},{}", connected.server.address), settings).await.unwrap();
    client.put(("a", "1")).await.expect("nothing was sent to the first, so even a write goes on");
    assert_eq!(client.get("a").await.unwrap().pairs[0].value, "1");
    let each = client.each();
    assert!(matches!(each[0].1.status().await, Err(Error::Unreachable { .. })));
    assert!(each[1].1.status().await.unwrap().is_leader());
}

#[tokio::test]
async fn reads_outlive_a_restart_and_writes_in_doubt_say_so() {
    let mut connected = Connected::start().await;
    connected.client.put(("a", "1")).await.unwrap();
    connected.server.restart();
    assert_eq!(connected.client.get("a").await.unwrap().pairs[0].value, "1");

    let client = connected.client.clone();
    let lease = client.grant_lease(Duration::from_secs(60), 0).await.unwrap();
    client.etcd_lock("held", lease.id).await.unwrap();
    let other = client.grant_lease(Duration::from_secs(60), 0).await.unwrap();
    let waiting = tokio::spawn(async move { client.etcd_lock("held", other.id).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    connected.server.kill();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(error.outcome_is_unknown(), "{error}");
}

#[tokio::test]
async fn a_watch_goes_on_where_it_was_without_gap_or_repeat() {
    let mut connected = Connected::start().await;
    let mut watcher = connected.client.watch(Watch::keys(Keys::prefix("w/")).previous()).await.unwrap();
    let mut expected = watcher.next_revision();
    for round in 0..3 {
        let mut transaction = Txn::default();
        for key in 0..5 {
            transaction.then.push(Operation::Put((format!("w/{key}"), round.to_string()).into()));
        }
        connected.client.txn(transaction).await.unwrap();
        connected.client.put(("other", "unseen")).await.unwrap();
        connected.client.delete(format!("w/{round}")).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 6 {
            seen.extend(watcher.next().await.unwrap().events);
        }
        let revisions: Vec<i64> = seen.iter().map(|event| event.pair.mod_revision).collect();
        assert_eq!(revisions, [expected, expected, expected, expected, expected, expected + 2]);
        assert_eq!(seen[5].kind, EventKind::Delete);
        assert_eq!(seen[5].previous.as_ref().unwrap().value, round.to_string());
        expected += 3;
        connected.server.restart();
        // The client must learn of the lost connection before it writes: otherwise the outcome is in doubt.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn locks_are_granted_in_turn_and_given_back() {
    let connected = Connected::start().await;
    let client = connected.client.clone();
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(client.grant_lease(Duration::from_secs(60), 0).await.unwrap().id);
    }
    let first = client.etcd_lock("l", leases[0]).await.unwrap();
    assert_eq!(first.key, format!("l/{:x}", leases[0]));
    assert_eq!(client.etcd_lock("l", leases[0]).await.unwrap().key, first.key, "asking again changes nothing");
    let second = tokio::spawn({
        let (client, lease) = (client.clone(), leases[1]);
        async move { client.etcd_lock("l", lease).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Whoever gives up waiting leaves the queue.
    let third = client.etcd_lock("l", leases[2]);
    assert!(tokio::time::timeout(Duration::from_millis(200), third).await.is_err());
    assert!(!second.is_finished());
    client.etcd_unlock(first.key).await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(second.key, format!("l/{:x}", leases[1]));
    for _ in 0..100 {
        if client.get(Get::prefix("l/")).await.unwrap().count == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the waiter that gave up is still in the queue");
}

#[tokio::test]
async fn leases_are_renewed_over_a_restart() {
    let mut connected = Connected::start().await;
    let lease = connected.client.grant_lease(Duration::from_millis(59_500), 0).await.unwrap();
    assert_eq!(lease.ttl, Duration::from_secs(60), "parts of a second are rounded up");
    let mut keep_alive = connected.client.keep_alive(lease.id);
    assert_eq!(keep_alive.renew().await.unwrap(), Duration::from_secs(60));
    connected.server.restart();
    assert_eq!(keep_alive.renew().await.unwrap(), Duration::from_secs(60));
    assert_eq!(connected.client.leases().await.unwrap(), [lease.id]);
    connected.client.revoke_lease(lease.id).await.unwrap();
    assert!(matches!(keep_alive.renew().await, Err(Error::LeaseNotFound)));
    assert!(matches!(connected.client.revoke_lease(lease.id).await, Err(Error::LeaseNotFound)));
}

#[tokio::test]
async fn answers_of_the_server_are_typed() {
    let connected = Connected::start().await;
    let client = &connected.client;
    for value in ["1", "2", "3"] {
        client.put(("a", value)).await.unwrap();
    }
    assert!(matches!(client.get(Get::keys("a").revision(99)).await, Err(Error::FutureRevision)));
    client.compact(3, true).await.unwrap();
    assert!(matches!(client.get(Get::keys("a").revision(2)).await, Err(Error::Compacted { .. })));
    let watch = Watch::keys("a").start(1);
    let ended = match client.watch(watch).await {
        Ok(mut watcher) => watcher.next().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(ended, Err(Error::Compacted { oldest: Some(3) })), "{ended:?}");
    let lease = client.grant_lease(Duration::from_secs(60), 77).await.unwrap();
    assert!(matches!(client.grant_lease(Duration::from_secs(60), lease.id).await, Err(Error::LeaseExists)));
    assert!(matches!(client.put(("", "no key")).await, Err(Error::Refused { .. })));
    let reply = client.txn(Txn { when: vec![Compare::value_is("a", "3")], ..Txn::default() }).await.unwrap();
    assert!(reply.succeeded);
    let members = client.members().await.unwrap().members;
    assert_eq!((members.len(), members[0].name.as_str()), (1, "default"));
    assert_eq!(client.alarms().await.unwrap(), []);
    assert_eq!(client.hash(0).await.unwrap().revision, client.get("a").await.unwrap().header.revision);
}

#[tokio::test]
async fn a_member_that_hangs_is_named_and_a_read_goes_elsewhere() {
    let (hanging, running) = (Connected::start().await, Connected::start().await);
    running.client.put(("a", "1")).await.unwrap();
    hanging.client.put(("a", "0")).await.unwrap();
    hanging.server.signal(Signal::STOP);
    let endpoint_order = EndpointOrder::AsGiven;
    let settings = Settings { timeout: Duration::from_millis(800), endpoint_order, ..Settings::default() };
    let both = format!("{},{}", hanging.server.address, running.server.address);
    let client = Client::connect_with(&both, settings).await.unwrap();
    assert_eq!(client.get("a").await.unwrap().pairs[0].value, "1");
    // What was sent and is not answered stays in doubt.
    let alone = Client::connect_with(&hanging.server.address, settings).await.unwrap();
    hanging.server.signal(Signal::CONT);
    alone.put(("a", "2")).await.unwrap();
    hanging.server.signal(Signal::STOP);
    let error = alone.put(("a", "3")).await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error}");
    assert!(error.to_string().contains("silent"), "{error}");
    hanging.server.signal(Signal::CONT);
}

/// A member of three, alone from the beginning: it has never had a leader, so it has done nothing.
#[tokio::test]
async fn a_write_without_any_leader_is_not_in_doubt() {
    let directory = tempfile::tempdir().unwrap();
    let peers = [(); 3].map(|()| support::own_address());
    let cluster = format!("n1={},n2={},n3={}", peers[0], peers[1], peers[2]);
    let flags = ["--name", "n1", "--peer-listen", &peers[0], "--cluster", &cluster];
    let server = Server::spawn(&directory.path().join("n1"), support::own_address(), &flags);
    let settings = Settings { timeout: 2.seconds(), ..Settings::default() };
    let client = Client::connect_with(&server.address, settings).await.unwrap();
    let up = async {
        while client.status().await.is_err() {
            tokio::time::sleep(20.milliseconds()).await;
        }
    };
    soon(up).await;
    let error = soon(client.put(("a", "1"))).await.unwrap_err();
    assert!(matches!(error, Error::NoLeader { .. }), "{error}");
    assert!(!error.outcome_is_unknown(), "{error}");
    // A caller that waits for a lock is told that its wait is over, and why.
    let error = soon(client.lock("a").wait(1_500.milliseconds()).acquire()).await.unwrap_err();
    // The server answers "no leader" shortly before the limit. On a busy machine that answer may come after it.
    assert!(matches!(error, LockError::Timeout { unanswered: Some(_), .. }), "{error}");
}

type Acquiring = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;

/// As `crates/client/tests/dropped.rs`, which has the cases that need a server that does as it is told.
#[tokio::test]
async fn a_lock_is_given_back_wherever_its_future_is_dropped() {
    let connected = Connected::start().await;
    let client = &connected.client;
    let session = client.session().open().await.unwrap();
    // Keeps the session alive that the client shares among its locks.
    let _kept = client.lock("kept").acquire().await.unwrap();
    let acquiring: [fn(&Client, &Session) -> Acquiring; 6] = [
        |_, session| map(session.lock("a").acquire()),
        |_, session| map(session.lock("a").also("b").wait(1.minutes()).acquire()),
        |_, session| map(session.lock("a").slots(2).acquire()),
        |client, _| map(client.lock("a").shared().acquire()),
        |client, _| map(client.barrier("a", 1).pass()),
        |_, session| map(session.campaign("a", "me").lead()),
    ];
    for (case, acquire) in acquiring.iter().enumerate() {
        let mut polls = 0;
        while poll_and_drop(acquire(client, &session), polls).await.is_none() {
            soon(client.settled()).await;
            let held: Vec<String> = client.locks("").await.unwrap().locks.into_iter().map(|lock| lock.name).collect();
            assert_eq!(held, ["kept"], "case {case}, dropped after {polls} polls");
            polls += 1;
        }
        assert!(polls > 1, "it has waited at least once");
        soon(client.settled()).await;
    }
}

fn map<Acquired: 'static>(acquiring: impl Future<Output = Result<Acquired, LockError>> + 'static) -> Acquiring {
    Box::pin(async { acquiring.await.map(drop) })
}
