//! Takes a lock, works under its guard, gives it back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_client::{Client, Durations, Held, clock};

use super::{Dice, Notes};
use crate::history::Holding;

/// A lock that clients of both sides want.
#[derive(Clone, Copy)]
pub struct Lock {
    name: &'static str,
    ttl: Duration,
    longest_ms: u64,
}

/// Two that change hands all the time, and two whose holders work for longer than a TTL: whoever is cut off while it
/// works must have stopped when the lock is given to the next one, who waits already.
pub const LOCKS: [Lock; 4] = [
    Lock { name: "jobs/0", ttl: Duration::from_secs(3), longest_ms: 30 },
    Lock { name: "jobs/1", ttl: Duration::from_secs(3), longest_ms: 30 },
    Lock { name: "shift/0", ttl: Duration::from_secs(1), longest_ms: 8_000 },
    Lock { name: "shift/1", ttl: Duration::from_secs(1), longest_ms: 8_000 },
];

pub async fn work(client: Client, notes: Arc<Notes>, lock: Lock, seed: u64) {
    let Lock { name, ttl, longest_ms } = lock;
    let mut dice = Dice::new(seed + notes.now());
    while notes.goes_on() {
        // Who gives up is among those who are passed over.
        let patience = if dice.below(8) == 0 { 30.milliseconds() } else { 8.seconds() };
        let Ok(guard) = client.lock(name).ttl(ttl).wait(patience).acquire().await else {
            dice.pause(50).await;
            continue;
        };
        let began_ms = clock::now_ms();
        let work_until_ms = began_ms + dice.below(longest_ms);
        let work = async |_: &Held| {
            while clock::now_ms() < work_until_ms && notes.goes_on() {
                dice.pause(10).await;
            }
        };
        let done = guard.run(work).await;
        let mut ended_ms = clock::now_ms();
        if done.is_err() {
            // Its work was stopped by then; that this is noted later is this machine's.
            ended_ms = ended_ms.min(guard.deadline().as_ms());
        }
        let (name, key, token) = (name.to_owned(), guard.key().to_owned(), guard.token());
        notes.note(|history| history.holdings.push(Holding { name, key, token, began_ms, ended_ms }));
        notes.granted.fetch_add(1, Ordering::Relaxed);
        match dice.below(4) {
            // Given back behind the scenes.
            0 => drop(guard),
            _ => drop(guard.release().await),
        }
        dice.pause(20).await;
    }
}
