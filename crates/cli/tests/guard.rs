//! The guard against a real server. Its promise, with a process that is stopped, is in `story.rs`.

mod support;

use serde_json::json;
use support::Server;
use support::place::{Connected, soon};
use support::proxy::Proxy;
use support::store::{Store, signing_key};
use tenure_client::{Client, Durations, End, LockError, LossCause, Mode};

#[tokio::test]
async fn the_lock_goes_from_guard_to_guard_with_growing_tokens() {
    let connected = Connected::start().await;
    let first = connected.client.lock("a").holder("one").metadata("for a test").acquire().await.unwrap();
    let waiting = tokio::spawn(connected.client.lock("a").holder("two").acquire());
    connected.until_waiters("a", 1).await;
    let described = connected.client.describe_lock("a").await.unwrap();
    assert_eq!(described.holders[0].id, "one");
    assert_eq!(described.holders[0].metadata, "for a test");
    assert_eq!(described.holders[0].token, first.token());
    assert_eq!(described.waiters[0].entry.id, "two");
    assert_eq!(described.waiters[0].predecessor, described.holders[0].key);
    match connected.client.lock("a").try_once().acquire().await.unwrap_err() {
        LockError::Busy { holder, since, .. } => assert_eq!((holder.as_str(), since.is_some()), ("one", true)),
        other => panic!("{other}"),
    }
    assert!(!waiting.is_finished());
    let token = first.token();
    first.release().await.unwrap();
    let second = soon(waiting).await.unwrap().unwrap();
    assert!(second.token() > token);
    drop(second);
    soon(connected.client.settled()).await;
    let recent = connected.client.describe_lock("a").await.unwrap().recent;
    let ends: Vec<(&str, End)> = recent.iter().map(|recent| (recent.holder.id.as_str(), recent.end)).collect();
    assert_eq!(ends, [("two", End::Released), ("one", End::Released)]);
    assert_eq!(connected.client.forget_lock("a").await.unwrap(), 2);
    assert!(connected.client.sessions().await.unwrap().sessions.is_empty());
}

#[tokio::test]
async fn readers_slots_and_several_names() {
    let connected = Connected::start().await;
    let client = &connected.client;
    let readers =
        (client.lock("r").shared().acquire().await.unwrap(), client.lock("r").shared().acquire().await.unwrap());
    assert!(matches!(client.lock("r").try_once().acquire().await, Err(LockError::Busy { .. })));
    drop(readers);
    let one = client.lock("s").slots(2).acquire().await.unwrap();
    let two = client.lock("s").slots(2).acquire().await.unwrap();
    assert_ne!(one.slot(), two.slot());
    assert!(matches!(client.lock("s").slots(2).try_once().acquire().await, Err(LockError::Busy { .. })));
    let listed = client.locks("s").await.unwrap().locks;
    assert_eq!(
        (listed.len(), listed[0].holders, listed[0].holder.as_ref().unwrap().mode),
        (1, 2, Mode::Semaphore { slots: 2 })
    );
    let freed = one.slot();
    one.release().await.unwrap();
    assert_eq!(client.lock("s").slots(2).acquire().await.unwrap().slot(), freed);

    let both = client.lock("m/1").also("m/2").acquire().await.unwrap();
    for name in ["m/1", "m/2"] {
        assert!(matches!(client.lock(name).try_once().acquire().await, Err(LockError::Busy { .. })), "{name}");
    }
    both.release().await.unwrap();
    let twice = client.lock("m/1").also("m/1").acquire().await.unwrap_err();
    assert!(twice.to_string().contains("m/1 is named twice"), "{twice}");
    client.lock("m/2").try_once().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn parties_meet_at_a_barrier_round_after_round() {
    let connected = Connected::start().await;
    let client = &connected.client;
    let mut last_round = 0;
    for _ in 0..2 {
        let early: Vec<_> = (0..2).map(|_| tokio::spawn(client.barrier("b", 3).metadata("phase").pass())).collect();
        connected.until_waiters("b", 2).await;
        let described = client.describe_lock("b").await.unwrap();
        assert!(described.holders.is_empty());
        assert_eq!(described.waiters[0].entry.mode, Mode::Barrier { parties: 3 });
        assert!(early.iter().all(|party| !party.is_finished()));
        let last = soon(client.barrier("b", 3).try_once().pass()).await.unwrap();
        assert_eq!(last.slot(), 2);
        let mut round = vec![last];
        for party in early {
            round.push(soon(party).await.unwrap().unwrap());
        }
        assert!(round.iter().all(|guard| guard.token() > last_round && guard.check().is_ok()));
        last_round = round.iter().map(|guard| guard.token()).max().unwrap();
        // Nobody passes while one of the round before is there, however many stand before it.
        let kept = round.pop().unwrap();
        let hasty: Vec<_> = (0..2).map(|_| tokio::spawn(client.barrier("b", 3).pass())).collect();
        connected.until_waiters("b", 2).await;
        drop(round);
        soon(client.settled()).await;
        let refused = client.barrier("b", 3).try_once().pass().await.unwrap_err();
        assert!(matches!(refused, LockError::Busy { waiting: 2, .. }), "{refused}");
        // Dropping the call leaves, dropping the guard too.
        hasty.iter().for_each(|party| party.abort());
        connected.until_waiters("b", 0).await;
        kept.release().await.unwrap();
    }
    match soon(client.barrier("b", 2).wait(50.milliseconds()).pass()).await.unwrap_err() {
        LockError::Timeout { holder, waiting, .. } => assert_eq!((holder.as_str(), waiting), ("", 0)),
        other => panic!("{other}"),
    }
    connected.until_waiters("b", 0).await;
    assert!(matches!(client.barrier("b", 0).pass().await, Err(LockError::Unusable { .. })));
}

#[tokio::test]
async fn one_session_holds_many_locks_on_one_lease() {
    let connected = Connected::start().await;
    let session = connected.client.session().client_id("worker").open().await.unwrap();
    let (one, two) = (session.lock("x").acquire().await.unwrap(), session.lock("y").acquire().await.unwrap());
    assert_eq!(one.lease(), two.lease());
    let listed = connected.client.sessions().await.unwrap().sessions;
    assert_eq!((listed.len(), listed[0].client.as_str(), listed[0].locks_held), (1, "worker", 2));
    let turn = tokio::spawn(session.lock("x").acquire());
    one.release().await.unwrap();
    let again = soon(turn).await.unwrap().unwrap();
    again.check().unwrap();
    session.close().await.unwrap();
    assert_eq!(again.check().unwrap_err().cause, LossCause::Released, "everything ends with the session");
    assert!(two.check().is_err());
    assert!(connected.client.locks("").await.unwrap().locks.is_empty());
}

#[tokio::test]
async fn owners_who_wait_in_a_circle_are_told_the_circle() {
    let connected = Connected::start().await;
    let client = &connected.client;
    let a = client.lock("a").owner("alice").acquire().await.unwrap();
    let b = client.lock("b").owner("bob").acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("b").owner("alice").acquire());
    connected.until_waiters("b", 1).await;
    match soon(client.lock("a").owner("bob").acquire()).await.unwrap_err() {
        LockError::Deadlock { cycle, .. } => assert!(cycle.contains("alice") && cycle.contains("bob"), "{cycle}"),
        other => panic!("{other}"),
    }
    b.release().await.unwrap();
    soon(waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(a);
}

#[tokio::test]
async fn a_guard_outlives_a_restart_of_the_server() {
    let mut connected = Connected::start().await;
    let guard = connected.client.lock("a").ttl(6.seconds()).acquire().await.unwrap();
    let waiting = tokio::spawn(connected.client.lock("a").acquire());
    connected.until_waiters("a", 1).await;
    connected.server.restart();
    let before = guard.deadline();
    assert!(soon(guard.renewed_after(before)).await > before);
    guard.check().unwrap();
    connected.until_waiters("a", 1).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_connection_that_is_dead_without_knowing_it_costs_no_lock() {
    let connected = Connected::start().await;
    let proxy = Proxy::start(&connected.server.address);
    let client = Client::connect(&proxy.address).await.unwrap();
    let guard = client.lock("a").ttl(6.seconds()).acquire().await.unwrap();
    let first = soon(guard.renewed_after(guard.deadline())).await;
    proxy.cut_present();
    tokio::select! {
        _ = soon(guard.renewed_after(first)) => {}
        lost = guard.lost() => panic!("{lost}"),
    }
    guard.check().unwrap();
}

#[tokio::test]
async fn an_operators_release_is_noticed() {
    let connected = Connected::start().await;
    let guard = connected.client.lock("a").ttl(3.seconds()).acquire().await.unwrap();
    let taken = connected.client.force_release("a", guard.token()).await.unwrap().unwrap();
    assert_eq!(taken.token, guard.token());
    assert_eq!(soon(guard.lost()).await.cause, LossCause::Taken);
    assert!(guard.run(async |_| ()).await.is_err());
    let next = soon(connected.client.lock("a").acquire()).await.unwrap();
    assert!(matches!(guard.release().await, Err(LockError::Lost(_))));
    next.check().unwrap();
    assert!(!connected.client.unlock("free", 1).await.unwrap());
    assert!(connected.client.unlock("a", 1).await.is_err(), "only the holder's token unlocks");
}

#[tokio::test]
async fn a_holder_shows_signatures_that_are_good_for_as_long_as_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    let key = signing_key(directory.path());
    let server = Server::start_with(&directory.path().join("data"), &["--signing-key", &key]);
    let client = Client::connect(&server.address).await.unwrap();
    let cluster = format!("{:x}", client.describe_lock("a").await.unwrap().header.cluster);
    let store = Store::start(&directory.path().join("store"), &["--signing-key", &key, "--cluster", &cluster]);
    let write = |name: &str, token: i64, signature: &str| {
        let token = json!({"key": name, "value": token, "signature": signature});
        let body = json!({"clientID": "me", "fencingToken": token, "data": "x"});
        store.request("POST", "/write", body.to_string().as_bytes()).0
    };
    let guard = client.lock("a").also("b").holder("me").ttl(3.seconds()).acquire().await.unwrap();
    let (token, first) = (guard.token(), guard.signature());
    assert_eq!(write("a", token, &first), 200);
    assert_eq!(guard.signed_token().await.unwrap(), first, "nobody is asked while it is fresh");
    assert_eq!(write("b", token, &guard.signed_token_for("b").await.unwrap()), 200);
    assert!(matches!(guard.signed_token_for("c").await, Err(LockError::Unusable { .. })));
    // Longer than the signature of the grant is good for.
    let expired = async {
        while write("a", token, &first) != 403 {
            tokio::time::sleep(50.milliseconds()).await;
        }
    };
    soon(expired).await;
    let fresh = guard.signed_token().await.unwrap();
    assert_eq!((guard.signature(), guard.token()), (fresh.clone(), token), "the same tenure, signed again");
    assert_eq!(write("a", token, &fresh), 200);
    client.force_release("a", token).await.unwrap();
    soon(guard.lost()).await;
    assert!(matches!(guard.signed_token().await, Err(LockError::Lost(_))), "a holder of the past gets none");
}

#[tokio::test]
async fn without_a_key_nothing_is_signed() {
    let connected = Connected::start().await;
    let guard = connected.client.lock("a").acquire().await.unwrap();
    assert_eq!(guard.signature(), "");
    let refused = guard.signed_token().await.unwrap_err();
    assert!(matches!(refused, LockError::Unsigned { .. }), "{refused}");
    assert!(refused.to_string().contains("--signing-key"), "{refused}");
    guard.check().unwrap();
}

#[tokio::test]
async fn a_drop_gives_back_even_if_the_runtime_is_gone() {
    let connected = Connected::start().await;
    let address = connected.server.address.clone();
    let dropped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(&address).await.unwrap();
            drop(client.lock("a").acquire().await.unwrap());
        });
    });
    dropped.join().unwrap();
    soon(connected.client.lock("a").acquire()).await.unwrap().release().await.unwrap();
}
