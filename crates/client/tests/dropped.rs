//! A caller that goes away gives back what it was granted, wherever its future is when it is dropped.
//!
//! Each test polls a future a number of times, waits until it is woken once more, so that what it waited for has
//! come and is unread, and drops it there. It does that for every number of polls until the future ends.
//! `crates/cli/tests/client.rs` does the same with the real server.

mod fake;
mod polled;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fake::Fake;
use polled::poll_and_drop;
use tenure_client::{Client, Durations, LockError, Session};

const PATIENCE: Duration = Duration::from_secs(60);
/// More polls than any of these futures takes.
const MANY: usize = 100;

type Acquiring = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;

async fn soon<Output>(work: impl Future<Output = Output>) -> Output {
    tokio::time::timeout(PATIENCE, work).await.expect("it comes to an end")
}

/// Drops the future after every number of polls, and sees that `a` is free each time although all sessions live.
async fn drop_everywhere(is_contended: bool, acquire: impl Fn(&Client, &Session) -> Acquiring) {
    let fake = Fake::start().await;
    let (client, rival) = (connect(&fake).await, connect(&fake).await);
    let session = client.session().open().await.unwrap();
    // Keeps the session alive that the client shares among its locks.
    let kept = client.lock("kept").acquire().await.unwrap();
    for polls in 0..MANY {
        let handing_over = match is_contended {
            true => {
                let (fake, guard) = (fake.clone(), rival.lock("a").acquire().await.unwrap());
                Some(tokio::spawn(async move {
                    fake.until("somebody waits", |state| state.waiting("a") > 0).await;
                    guard.release().await
                }))
            }
            false => None,
        };
        let output = poll_and_drop(acquire(&client, &session), polls).await;
        // Few polls do not come as far as the queue.
        if let Some(task) = handing_over {
            task.abort();
            drop(task.await);
        }
        soon(client.settled()).await;
        soon(rival.settled()).await;
        let (places, lives) = fake.read(|state| {
            let places = state.queues.get("a").map_or(0, |queue| queue.len());
            (places, state.leases.contains_key(&session.lease()) && state.leases.contains_key(&kept.lease()))
        });
        assert_eq!((places, lives), (0, true), "after {polls} polls");
        if let Some(output) = output {
            output.unwrap();
            return assert!(polls > 1, "it has waited at least once");
        }
    }
    panic!("it does not end");
}

async fn connect(fake: &Fake) -> Client {
    Client::connect(&fake.address).await.unwrap()
}

#[tokio::test]
async fn a_lock_of_a_session() {
    for is_contended in [false, true] {
        drop_everywhere(is_contended, |_, session| {
            let acquiring = session.lock("a").acquire();
            Box::pin(async { acquiring.await.map(drop) })
        })
        .await;
    }
}

#[tokio::test]
async fn a_lock_without_a_session() {
    for is_contended in [false, true] {
        drop_everywhere(is_contended, |client, _| {
            let acquiring = client.lock("a").acquire();
            Box::pin(async { acquiring.await.map(drop) })
        })
        .await;
    }
}

#[tokio::test]
async fn a_lock_that_is_waited_for_at_most_so_long() {
    for is_contended in [false, true] {
        drop_everywhere(is_contended, |_, session| {
            let acquiring = session.lock("a").wait(1.minutes()).acquire();
            Box::pin(async { acquiring.await.map(drop) })
        })
        .await;
    }
}

#[tokio::test]
async fn a_lock_within_a_timeout_and_a_select_of_the_caller() {
    drop_everywhere(true, |_, session| {
        let acquiring = session.lock("a").acquire();
        Box::pin(async {
            tokio::select! {
                acquired = tokio::time::timeout(PATIENCE, acquiring) => acquired.expect("in time").map(drop),
                () = std::future::pending() => Ok(()),
            }
        })
    })
    .await;
}

#[tokio::test]
async fn a_candidacy_a_slot_and_a_place_before_a_barrier() {
    drop_everywhere(true, |_, session| {
        let leading = session.campaign("a", "me").lead();
        Box::pin(async { leading.await.map(drop) })
    })
    .await;
    drop_everywhere(true, |_, session| {
        let acquiring = session.lock("a").slots(3).acquire();
        Box::pin(async { acquiring.await.map(drop) })
    })
    .await;
    drop_everywhere(true, |client, _| {
        let passing = client.barrier("a", 1).pass();
        Box::pin(async { passing.await.map(drop) })
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_being_released() {
    drop_everywhere(false, |_, session| {
        let acquiring = session.lock("a").acquire();
        Box::pin(async { acquiring.await?.release().await })
    })
    .await;
}
