//! What a guard does when the server falls silent, loses answers or ends a lease: against a service
//! that does so at a moment the test chooses. `crates/cli/tests/guard.rs` has the real server.

mod fake;

use std::time::Duration;

use fake::Fake;
use tenure_client::{CancelAt, Client, Durations, Error, LockError, LossCause, Lost};
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(60);

async fn start() -> (Fake, Client) {
    let fake = Fake::start().await;
    let client = Client::connect(&fake.address).await.unwrap();
    (fake, client)
}

async fn soon<Output>(work: impl Future<Output = Output>) -> Output {
    tokio::time::timeout(PATIENCE, work).await.expect("it comes to an end")
}

#[tokio::test]
async fn a_lock_is_held_renewed_and_given_back() {
    let (fake, client) = start().await;
    let guard = client.lock("a").ttl(1_500.milliseconds()).holder("me").acquire().await.unwrap();
    assert_eq!((guard.name(), guard.token()), ("a", 1));
    assert_eq!(fake.read(|state| state.holder("a")), Some(guard.lease()));
    let before = guard.deadline();
    fake.until("it is renewed", |state| state.renewals >= 3).await;
    guard.check().unwrap();
    assert!(guard.deadline() > before);
    let doubled = guard.run(async |held| held.token() * 2).await.unwrap();
    assert_eq!(doubled, 2);
    guard.release().await.unwrap();
    soon(client.settled()).await;
    assert_eq!(fake.read(|state| (state.unlocks.clone(), state.leases.len())), (vec![1], 0));
}

#[tokio::test]
async fn work_is_cancelled_when_the_server_falls_silent() {
    let (fake, client) = start().await;
    let guard = client.lock("a").ttl(600.milliseconds()).acquire().await.unwrap();
    let held = guard.held().clone();
    fake.change(|state| state.silent = true);
    soon(held.warned()).await;
    let lost: Lost = soon(guard.run(async |_| std::future::pending::<()>().await)).await.unwrap_err();
    assert!(matches!(lost.cause, LossCause::Unconfirmed { .. }), "{lost}");
    assert!(held.deadline().has_passed());
    assert_eq!(held.check().unwrap_err().token, guard.token());
    // Lost is final, whatever the server says later.
    fake.change(|state| state.silent = false);
    assert!(guard.check().is_err());
    assert!(guard.run(async |_| ()).await.is_err(), "nothing is begun under a lost lock");
}

/// The caller's only thread is blocked; the deadline is seen all the same.
#[tokio::test]
async fn blocking_work_cannot_hide_the_deadline() {
    let fake = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let fake = runtime.block_on(Fake::start());
        (runtime, fake)
    });
    let (runtime, fake) = fake.join().unwrap();
    let client = Client::connect(&fake.address).await.unwrap();
    let guard = client.lock("a").ttl(1_500.milliseconds()).acquire().await.unwrap();
    let renewed = fake.read(|state| state.renewals);
    // Renewals go on while this thread does nothing but wait.
    while fake.read(|state| state.renewals) < renewed + 3 {
        std::thread::yield_now();
    }
    guard.check().unwrap();
    fake.change(|state| state.silent = true);
    let output = guard
        .run(async |held| {
            while held.check().is_ok() {
                std::thread::yield_now();
            }
            "done too late"
        })
        .await;
    assert!(output.is_err(), "Ok means that the lock was held to the end");
    runtime.shutdown_background();
}

#[tokio::test]
async fn a_lease_that_the_server_ends_is_lost_at_the_next_renewal() {
    let (fake, client) = start().await;
    let guard = client.lock("a").ttl(900.milliseconds()).acquire().await.unwrap();
    fake.end_lease(guard.lease());
    let lost = soon(guard.lost()).await;
    assert_eq!(lost.cause, LossCause::LeaseEnded);
    assert!(matches!(guard.release().await, Err(LockError::Lost(lost)) if lost.cause == LossCause::LeaseEnded));
}

#[tokio::test]
async fn work_can_be_cancelled_at_half_of_the_ttl() {
    let (fake, client) = start().await;
    let guard = client.lock("a").ttl(2.seconds()).cancel_at(CancelAt::HalfTtl).acquire().await.unwrap();
    fake.change(|state| state.silent = true);
    soon(guard.cancelled()).await;
    let held = guard.held().clone();
    assert!(guard.check().is_err());
    // The server comes back: the lease is renewed for the winding up, the work stays cancelled.
    let deadline = held.deadline();
    fake.change(|state| state.silent = false);
    let renewed = async {
        while held.deadline() == deadline {
            tokio::task::yield_now().await;
        }
    };
    soon(renewed).await;
    assert!(guard.check().is_err());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again_with_the_same_place() {
    let (fake, client) = start().await;
    fake.change(|state| state.lost_lock_answers = 2);
    let guard = client.lock("a").acquire().await.unwrap();
    assert_eq!((guard.token(), fake.read(|state| state.lock_calls)), (1, 3), "the first place is the one that is held");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn busy_timeout_and_deadlock_are_told_apart() {
    let (fake, client) = start().await;
    let guard = client.lock("a").holder("ci-7").acquire().await.unwrap();
    match client.lock("a").try_once().acquire().await.unwrap_err() {
        LockError::Busy { name, holder, since, .. } => {
            assert_eq!((name.as_str(), holder.as_str(), since.is_some()), ("a", "ci-7", true));
        }
        other => panic!("{other}"),
    }
    match client.lock("a").wait(10.milliseconds()).acquire().await.unwrap_err() {
        LockError::Timeout { holder, .. } => assert_eq!(holder, "ci-7"),
        other => panic!("{other}"),
    }
    fake.change(|state| state.leaves_late = true);
    match client.lock("a").wait(10.milliseconds()).acquire().await.unwrap_err() {
        LockError::Timeout { waiting, .. } => assert_eq!(waiting, 0, "who gives up does not wait any more"),
        other => panic!("{other}"),
    }
    fake.change(|state| state.deadlock = true);
    match client.lock("b").owner("me").acquire().await.unwrap_err() {
        LockError::Deadlock { cycle, .. } => assert_eq!(cycle, "a waits for b, b waits for a"),
        other => panic!("{other}"),
    }
    for wrong in [client.lock(""), client.lock("a").slots(0), client.lock("a").also("")] {
        assert!(matches!(wrong.acquire().await, Err(LockError::Unusable { .. })));
    }
    soon(client.settled()).await;
    assert_eq!(fake.read(|state| state.leases.len()), 1, "leases of those who failed are given back");
    drop(guard);
    soon(client.settled()).await;
    assert_eq!(
        fake.read(|state| (state.leases.len(), state.holder("a"))),
        (0, None),
        "a drop releases in the background"
    );
}

#[tokio::test]
async fn a_wait_that_is_dropped_leaves_the_queue() {
    let (fake, client) = start().await;
    let session = client.session().open().await.unwrap();
    let guard = client.lock("a").acquire().await.unwrap();
    for private in [true, false] {
        let request = if private { client.lock("a") } else { session.lock("a") };
        let waiting = tokio::spawn(request.acquire());
        fake.until("it waits", |state| state.waiting("a") == 1).await;
        waiting.abort();
        fake.until("it has left", |state| state.waiting("a") == 0).await;
        soon(client.settled()).await;
    }
    guard.release().await.unwrap();
    soon(session.lock("a").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn callers_of_one_session_take_turns_and_an_owner_enters_again() {
    let (fake, client) = start().await;
    let session = client.session().open().await.unwrap();
    let first = session.lock("a").owner("task 1").acquire().await.unwrap();
    let again = session.lock("a").owner("task 1").acquire().await.unwrap();
    assert_eq!(
        (first.token(), fake.read(|state| state.lock_calls)),
        (again.token(), 1),
        "the session counts by itself"
    );
    let other = session.lock("a").owner("task 1").shared().acquire().await;
    assert!(matches!(other, Err(LockError::AlreadyHeld { .. })));
    assert!(matches!(session.lock("a").try_once().acquire().await, Err(LockError::Busy { .. })));
    let second = tokio::spawn(session.lock("a").owner("task 2").acquire());
    first.release().await.unwrap();
    again.check().unwrap();
    assert!(fake.read(|state| state.unlocks.is_empty()), "the other guard still holds it");
    again.release().await.unwrap();
    let second = soon(second).await.unwrap().unwrap();
    assert!(second.token() > 1, "a tenure of its own");
    drop(second);
    soon(client.settled()).await;
    assert_eq!(fake.read(|state| state.holder("a")), None);
    session.close().await.unwrap();
    assert!(fake.read(|state| state.leases.is_empty()));
}

#[tokio::test]
async fn a_lease_that_ends_while_waiting_ends_the_wait() {
    let (fake, client) = start().await;
    let guard = client.lock("a").acquire().await.unwrap();
    let session = client.session().ttl(600.milliseconds()).open().await.unwrap();
    let waiting = tokio::spawn(session.lock("a").acquire());
    fake.until("it waits", |state| state.waiting("a") == 1).await;
    fake.end_lease(session.lease());
    let error = soon(waiting).await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::LeaseLost { .. }), "{error}");
    drop(guard);
}

#[tokio::test]
async fn the_ttl_that_the_server_names_is_the_one_that_counts() {
    let (fake, client) = start().await;
    fake.change(|state| state.ttl_ms = Some(700));
    let session = client.session().ttl(1.minutes()).open().await.unwrap();
    assert_eq!(session.ttl(), 700.milliseconds());
    assert!(session.deadline().remaining() < 700.milliseconds());
}

/// Work that is woken by something else than the loss does not get a last step.
#[tokio::test]
async fn work_is_not_even_polled_after_the_deadline() {
    let (fake, client) = start().await;
    let guard = client.lock("a").ttl(600.milliseconds()).acquire().await.unwrap();
    fake.change(|state| state.silent = true);
    let (wake, woken) = tokio::sync::oneshot::channel::<()>();
    let held = guard.held().clone();
    let work = guard.run(async |_| {
        // Blocks this thread beyond the deadline, and is then ready to go on.
        while held.check().is_ok() {
            std::thread::yield_now();
        }
        wake.send(()).unwrap();
        woken.await.unwrap();
        tokio::task::yield_now().await;
        panic!("it went on after the loss");
    });
    let lost: Result<(), Lost> = soon(work).await;
    assert!(lost.is_err());
}

#[tokio::test]
async fn listings_are_put_together_from_pages() {
    let (_fake, client) = start().await;
    let names: Vec<String> = client.locks("").await.unwrap().locks.into_iter().map(|lock| lock.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(matches!(client.unlock("a", 1).await, Ok(false)));
    assert!(matches!(client.sessions().await, Err(Error::Unknown { .. })));
}

#[tokio::test]
async fn locks_of_different_names_share_a_stream_and_those_of_one_name_have_places_of_their_own() {
    let (fake, client) = start().await;
    let (a, b) = (client.lock("a").acquire().await.unwrap(), client.lock("b").acquire().await.unwrap());
    assert_eq!((a.lease(), fake.read(|state| state.opened)), (b.lease(), 1));
    let next = tokio::spawn(client.lock("a").acquire());
    fake.until("it stands in the queue", |state| state.waiting("a") == 1).await;
    a.release().await.unwrap();
    let next = soon(next).await.unwrap().unwrap();
    assert_ne!(next.lease(), b.lease());
    assert_eq!(fake.read(|state| (state.opened, state.leases.len())), (2, 2));
    drop((b, next));
    let again = client.lock("a").acquire().await.unwrap();
    assert_eq!(fake.read(|state| state.opened), 2, "a session that is free is used again");
    again.release().await.unwrap();
    soon(client.settled()).await;
    assert!(fake.read(|state| state.leases.is_empty()), "nothing is left when everything is settled");
}

#[tokio::test]
async fn an_unlock_whose_answer_was_lost_is_not_in_doubt() {
    let (fake, client) = start().await;
    let (guard, kept) = (client.lock("a").acquire().await.unwrap(), client.lock("b").acquire().await.unwrap());
    fake.change(|state| state.lost_unlock_answers = 1);
    guard.release().await.expect("the session is told that it holds the lock no more");
    assert_eq!(fake.read(|state| (state.unlocks.len(), state.opened)), (1, 2));
    kept.check().unwrap();
}

/// A release that the server did not look at is repeated, not reported as done.
#[tokio::test]
async fn an_unlock_that_a_stream_cannot_carry_out_is_sent_over_another() {
    let refusals = [
        (Code::Aborted, "session was resumed elsewhere"),
        (Code::ResourceExhausted, "etcdserver: too many requests"),
        (Code::Unavailable, "etcdserver: leader changed"),
    ];
    for refusal in refusals {
        let (fake, client) = start().await;
        let (guard, _kept) = (client.lock("a").acquire().await.unwrap(), client.lock("b").acquire().await.unwrap());
        fake.change(|state| state.refused_unlock = Some(refusal));
        guard.release().await.unwrap();
        assert_eq!(fake.read(|state| (state.holder("a"), state.opened)), (None, 2), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_lock_that_is_missing_when_the_session_comes_back_is_lost() {
    let (fake, client) = start().await;
    let (gone, kept) = (client.lock("a").acquire().await.unwrap(), client.lock("b").acquire().await.unwrap());
    fake.change(|state| {
        state.queues.remove("a");
        state.lost_lock_answers = 1;
    });
    let other = client.lock("c").acquire().await.unwrap();
    assert_eq!(soon(gone.lost()).await.cause, LossCause::Taken);
    kept.check().unwrap();
    other.check().unwrap();
}
