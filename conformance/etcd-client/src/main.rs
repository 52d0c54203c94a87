//! The `etcd-client` crate, used as an application would use it, against one server.
//!
//! Prints one `ok` line for each check that held, and panics at the first that did not.
//! With `lock NAME COMMAND...` it has one turn at a lock instead, for `one-queue`.

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, EventType, GetOptions, LockOptions, ProclaimOptions, PutOptions,
    ResignOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchStream,
};
use std::future::Future;
use std::process::Command;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const CHECK_TIMEOUT: Duration = Duration::from_secs(15);
const LONGER_THAN_ANY_TEST_S: i64 = 600;

type Outcome = Result<(), Error>;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [endpoint] => check_all(endpoint).await,
        [endpoint, "lock", name, program, ref arguments @ ..] => {
            lock_and_run(endpoint, name, Command::new(program).args(arguments)).await.expect("a turn")
        }
        _ => panic!("usage: conformance-etcd-client HOST:PORT [lock NAME COMMAND...]"),
    }
}

/// Waits for its turn, has it, and gives the lock back: `etcdctl lock`, in the words of the crate.
async fn lock_and_run(endpoint: &str, name: &str, command: &mut Command) -> Outcome {
    let mut client = Client::connect([endpoint], None).await?;
    let lease = client.lease_grant(LONGER_THAN_ANY_TEST_S, None).await?.id();
    let held = client.lock(name, Some(LockOptions::new().with_lease(lease))).await?;
    let status = command.status().expect("the command starts");
    client.unlock(held.key()).await?;
    client.lease_revoke(lease).await?;
    assert!(status.success(), "the command ended with {status}");
    Ok(())
}

async fn check_all(endpoint: &str) {
    let client = Client::connect([endpoint], None).await.expect("connect");
    let other = Client::connect([endpoint], None).await.expect("connect a second client");

    check("put and get", put_and_get(client.clone())).await;
    check("ranges", ranges(client.clone())).await;
    check("delete", delete(client.clone())).await;
    check("transactions", transactions(client.clone())).await;
    check("watch", watch(client.clone())).await;
    check("watch history and compaction", watch_history(client.clone())).await;
    check("leases with keepalive", leases(client.clone())).await;
    check("locks of two clients", locks(client.clone(), other.clone())).await;
    check("a lock ends with its lease", lock_lost(client.clone(), other.clone())).await;
    check("elections of two clients", elections(client.clone(), other)).await;
    check("maintenance and members", maintenance(client.clone())).await;
    check("errors", errors(client)).await;
}

async fn check(name: &str, body: impl Future<Output = Outcome>) {
    match timeout(CHECK_TIMEOUT, body).await {
        Ok(Ok(())) => println!("ok {name}"),
        Ok(Err(error)) => panic!("{name}: {error}"),
        Err(_) => panic!("{name}: not done in {CHECK_TIMEOUT:?}"),
    }
}

/// The code and message that Go clients match on.
fn status(error: Error) -> (i32, String) {
    match error {
        Error::GRpcStatus(status) => (status.code() as i32, status.message().to_string()),
        other => panic!("not a status: {other}"),
    }
}

async fn put_and_get(mut client: Client) -> Outcome {
    assert!(client.get("rs/none", None).await?.kvs().is_empty());
    let first = client.put("rs/a", "1", None).await?;
    let revision = first.header().expect("header").revision();
    let second = client.put("rs/a", "2", Some(PutOptions::new().with_prev_key())).await?;
    assert_eq!(second.prev_key().expect("previous").value(), b"1");
    assert_eq!(second.header().expect("header").revision(), revision + 1);
    let answer = client.get("rs/a", None).await?;
    let kv = &answer.kvs()[0];
    assert_eq!((kv.value(), kv.version()), (b"2".as_slice(), 2));
    assert_eq!((kv.create_revision(), kv.mod_revision()), (revision, revision + 1));
    let old = client.get("rs/a", Some(GetOptions::new().with_revision(revision))).await?;
    assert_eq!(old.kvs()[0].value(), b"1");
    assert_eq!(old.header().expect("header").revision(), revision + 1);
    Ok(())
}

async fn ranges(mut client: Client) -> Outcome {
    for number in 0..5 {
        client.put(format!("range/{number}"), format!("{}", 9 - number), None).await?;
    }
    let options = GetOptions::new().with_prefix().with_limit(2);
    let answer = client.get("range/", Some(options)).await?;
    assert_eq!((answer.kvs().len(), answer.count(), answer.more()), (2, 5, true));
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Value, SortOrder::Ascend);
    let answer = client.get("range/", Some(options)).await?;
    let values: Vec<_> = answer.kvs().iter().map(|kv| kv.value_str().expect("text")).collect();
    assert_eq!(values, ["5", "6", "7", "8", "9"]);
    let answer = client.get("range/", Some(GetOptions::new().with_prefix().with_count_only())).await?;
    assert_eq!((answer.kvs().len(), answer.count()), (0, 5));
    let answer = client.get("range/3", Some(GetOptions::new().with_range("range/5").with_keys_only())).await?;
    assert_eq!((answer.kvs().len(), answer.kvs()[0].value()), (2, b"".as_slice()));
    Ok(())
}

async fn delete(mut client: Client) -> Outcome {
    client.put("gone/1", "a", None).await?;
    client.put("gone/2", "b", None).await?;
    assert_eq!(client.delete("gone/none", None).await?.deleted(), 0);
    let options = DeleteOptions::new().with_prefix().with_prev_key();
    let answer = client.delete("gone/", Some(options)).await?;
    assert_eq!((answer.deleted(), answer.prev_kvs().len()), (2, 2));
    Ok(())
}

async fn transactions(mut client: Client) -> Outcome {
    client.put("txn/a", "1", None).await?;
    let txn = Txn::new()
        .when([
            Compare::value("txn/a", CompareOp::Equal, "1"),
            Compare::version("txn/none", CompareOp::Equal, 0),
            Compare::create_revision("txn/a", CompareOp::Greater, 0),
        ])
        .and_then([
            TxnOp::put("txn/a", "2", None),
            TxnOp::get("txn/a", None),
            TxnOp::txn(Txn::new().and_then([TxnOp::put("txn/nested", "x", None)])),
        ])
        .or_else([TxnOp::put("txn/a", "wrong", None)]);
    let answer = client.txn(txn).await?;
    assert!(answer.succeeded());
    match &answer.op_responses()[1] {
        TxnOpResponse::Get(get) => assert_eq!(get.kvs()[0].value(), b"2"),
        other => panic!("not a get: {other:?}"),
    }
    let txn = Txn::new()
        .when([Compare::value("txn/a", CompareOp::Equal, "1")])
        .and_then([TxnOp::put("txn/a", "wrong", None)])
        .or_else([TxnOp::delete("txn/a", None)]);
    assert!(!client.txn(txn).await?.succeeded());
    assert!(client.get("txn/a", None).await?.kvs().is_empty());
    Ok(())
}

/// Type, key and value of the next events, however they are batched.
async fn events(stream: &mut WatchStream, count: usize) -> Result<Vec<(EventType, String, String)>, Error> {
    let mut found = Vec::new();
    while found.len() < count {
        let response = stream.message().await?.expect("the stream goes on");
        for event in response.events() {
            let kv = event.kv().expect("a key");
            found.push((event.event_type(), kv.key_str()?.to_string(), kv.value_str()?.to_string()));
        }
    }
    Ok(found)
}

fn event(kind: EventType, key: &str, value: &str) -> (EventType, String, String) {
    (kind, key.to_string(), value.to_string())
}

async fn watch(mut client: Client) -> Outcome {
    let options = WatchOptions::new().with_prefix().with_prev_key();
    let (mut watcher, mut stream) = client.watch("watch/", Some(options)).await?;
    client.put("watch/a", "1", None).await?;
    client.put("other", "1", None).await?;
    client.delete("watch/a", None).await?;
    assert_eq!(
        events(&mut stream, 2).await?,
        [event(EventType::Put, "watch/a", "1"), event(EventType::Delete, "watch/a", "")]
    );
    watcher.request_progress().await?;
    let progress = stream.message().await?.expect("progress");
    assert!(progress.events().is_empty());
    watcher.cancel().await?;
    let last = stream.message().await?.expect("the answer to the cancel");
    assert!(last.canceled());
    Ok(())
}

async fn watch_history(mut client: Client) -> Outcome {
    let first = client.put("history/a", "1", None).await?.header().expect("header").revision();
    let second = client.put("history/a", "2", None).await?.header().expect("header").revision();
    let from = |revision| Some(WatchOptions::new().with_start_revision(revision));
    let (_watcher, mut stream) = client.watch("history/a", from(first)).await?;
    assert_eq!(
        events(&mut stream, 2).await?,
        [event(EventType::Put, "history/a", "1"), event(EventType::Put, "history/a", "2")]
    );
    client.compact(second, None).await?;
    let (_watcher, mut stream) = client.watch("history/a", from(first)).await?;
    let response = stream.message().await?.expect("a cancel");
    assert!(response.canceled());
    assert_eq!(response.compact_revision(), second);
    Ok(())
}

async fn leases(mut client: Client) -> Outcome {
    let lease = client.lease_grant(60, None).await?;
    assert!(lease.id() > 0 && lease.ttl() == 60);
    client.put("leased", "1", Some(PutOptions::new().with_lease(lease.id()))).await?;
    let (mut keeper, mut answers) = client.lease_keep_alive(lease.id()).await?;
    for _ in 0..3 {
        keeper.keep_alive().await?;
        assert_eq!(answers.message().await?.expect("an answer").ttl(), 60);
    }
    assert!(client.leases().await?.leases().iter().any(|status| status.id() == lease.id()));
    client.lease_revoke(lease.id()).await?;
    assert!(client.get("leased", None).await?.kvs().is_empty());
    assert_eq!(client.lease_time_to_live(lease.id(), None).await?.ttl(), -1);

    // Kept alive beyond its time to live, then left alone.
    let short = client.lease_grant(2, None).await?;
    client.put("short", "1", Some(PutOptions::new().with_lease(short.id()))).await?;
    let (mut keeper, mut answers) = client.lease_keep_alive(short.id()).await?;
    for _ in 0..5 {
        sleep(Duration::from_millis(600)).await;
        keeper.keep_alive().await?;
        assert_eq!(answers.message().await?.expect("an answer").ttl(), 2);
    }
    let (_watcher, mut stream) = client.watch("short", None).await?;
    assert_eq!(client.get("short", None).await?.kvs().len(), 1);
    assert_eq!(events(&mut stream, 1).await?, [event(EventType::Delete, "short", "")]);
    Ok(())
}

/// Until that many keys are under a prefix.
async fn keys(client: &mut Client, prefix: &str, count: i64) -> Outcome {
    loop {
        let options = GetOptions::new().with_prefix().with_count_only();
        if client.get(prefix, Some(options)).await?.count() == count {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn locks(mut client: Client, mut other: Client) -> Outcome {
    let lease = client.lease_grant(30, None).await?.id();
    let held = client.lock("mutex", Some(LockOptions::new().with_lease(lease))).await?;
    assert_eq!(held.key(), format!("mutex/{lease:x}").as_bytes());
    let waiting = tokio::spawn(async move {
        let lease = other.lease_grant(30, None).await?.id();
        other.lock("mutex", Some(LockOptions::new().with_lease(lease))).await
    });
    keys(&mut client, "mutex/", 2).await?;
    sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "two holders");
    client.unlock(held.key()).await?;
    let next = waiting.await.expect("joined")?;
    assert_ne!(next.key(), held.key());
    client.unlock(next.key()).await?;
    // Without a lease the server grants one.
    let held = client.lock("mutex", None).await?;
    client.unlock(held.key()).await?;
    keys(&mut client, "mutex/", 0).await
}

async fn lock_lost(mut client: Client, mut other: Client) -> Outcome {
    let lease = client.lease_grant(30, None).await?.id();
    client.lock("lost", Some(LockOptions::new().with_lease(lease))).await?;
    let waiting = tokio::spawn(async move {
        let lease = other.lease_grant(30, None).await?.id();
        let held = other.lock("lost", Some(LockOptions::new().with_lease(lease))).await?;
        other.unlock(held.key()).await
    });
    keys(&mut client, "lost/", 2).await?;
    client.lease_revoke(lease).await?;
    waiting.await.expect("joined")?;
    Ok(())
}

async fn elections(mut client: Client, mut other: Client) -> Outcome {
    assert_eq!(status(client.leader("boss").await.expect_err("nobody leads")).1, "election: no leader");
    let lease = client.lease_grant(30, None).await?.id();
    let won = client.campaign("boss", "alice", lease).await?;
    let leader = won.leader().expect("a leader key").clone();
    assert_eq!((leader.name(), leader.lease()), (b"boss".as_slice(), lease));
    let mut observed = client.observe("boss").await?;
    let seen = observed.message().await?.expect("the leader");
    assert_eq!(seen.kv().expect("a key").value(), b"alice");

    client.proclaim("alice again", Some(ProclaimOptions::new().with_leader(leader.clone()))).await?;
    let seen = observed.message().await?.expect("the proclamation");
    assert_eq!(seen.kv().expect("a key").value(), b"alice again");

    let second = tokio::spawn(async move {
        let lease = other.lease_grant(30, None).await?.id();
        other.campaign("boss", "bob", lease).await
    });
    keys(&mut client, "boss/", 2).await?;
    assert!(!second.is_finished(), "two leaders");
    client.resign(Some(ResignOptions::new().with_leader(leader))).await?;
    let won = second.await.expect("joined")?;
    let seen = observed.message().await?.expect("the second leader");
    assert_eq!(seen.kv().expect("a key").value(), b"bob");
    let leader = client.leader("boss").await?;
    assert_eq!(leader.kv().expect("a key").key(), won.leader().expect("a leader key").key());
    client.resign(Some(ResignOptions::new().with_leader(won.leader().expect("a leader key").clone()))).await?;
    keys(&mut client, "boss/", 0).await
}

async fn maintenance(mut client: Client) -> Outcome {
    let status = client.status().await?;
    assert_eq!(status.leader(), status.header().expect("header").member_id());
    assert!(status.db_size() > 0 && !status.version().is_empty());
    let members = client.member_list().await?;
    assert_eq!(members.members().len(), 1);
    assert_eq!(members.members()[0].id(), status.leader());
    client.hash_kv(0).await?;
    client.defragment().await?;
    let mut snapshot = client.snapshot().await?;
    let mut size = 0;
    while let Some(part) = snapshot.message().await? {
        size += part.blob().len();
    }
    assert_eq!(size % 512, 32);
    Ok(())
}

async fn errors(mut client: Client) -> Outcome {
    let refused = |result: Result<(), Error>| status(result.expect_err("refused"));
    let unknown_lease = Some(PutOptions::new().with_lease(77));
    for (result, code, text) in [
        (client.put("", "1", None).await.map(drop), 3, "etcdserver: key is not provided"),
        (client.put("a", "1", unknown_lease).await.map(drop), 5, "etcdserver: requested lease not found"),
        (client.lease_revoke(77).await.map(drop), 5, "etcdserver: requested lease not found"),
        (client.compact(1 << 40, None).await.map(drop), 11, "etcdserver: mvcc: required revision is a future revision"),
        (client.put("a", vec![0; 1_600_000], None).await.map(drop), 3, "etcdserver: request is too large"),
    ] {
        assert_eq!(refused(result), (code, text.to_string()));
    }
    Ok(())
}
