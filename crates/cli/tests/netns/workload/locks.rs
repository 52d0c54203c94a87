//! Takes a lock, works under its guard, gives it back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_client::{Client, Durations, clock};

use super::{Dice, Notes};
use crate::history::Holding;

/// Longer than a leader change takes, shorter than most faults.
const TTL: Duration = Duration::from_secs(3);

pub async fn work(client: Client, notes: Arc<Notes>, name: &'static str, seed: u64) {
    let mut dice = Dice::new(seed + notes.now());
    while notes.goes_on() {
        // Who gives up is among those who are passed over.
        let patience = if dice.below(8) == 0 { 30.milliseconds() } else { 8.seconds() };
        let Ok(guard) = client.lock(name).ttl(TTL).wait(patience).acquire().await else {
            dice.pause(50).await;
            continue;
        };
        let began_ms = clock::now_ms();
        let longest_ms = if dice.below(20) == 0 { 1_000 } else { 30 };
        let done = guard.run(async |_| dice.pause(longest_ms).await).await;
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
