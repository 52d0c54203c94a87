//! Keys that are written once each, so that whatever is lost or done twice stays to be seen.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_client::Client;

use super::{Dice, Notes};
use crate::history::{Action, Outcome};

pub async fn work(client: Client, notes: Arc<Notes>, prefix: String) {
    let mut dice = Dice::new(notes.now());
    for number in 0.. {
        if !notes.goes_on() {
            return;
        }
        let (key, value) = (format!("{prefix}/{number:05}"), notes.next_value());
        let put = async {
            let written = client.put((key.clone(), value.to_string())).await?;
            Ok(Outcome::Written { revision: written.header.revision })
        };
        let call = notes.timed(&key, Action::Write(value), put).await;
        if matches!(call.outcome, Outcome::Written { .. }) {
            notes.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        notes.note(|history| history.puts.push(call));
        dice.pause(40).await;
    }
}
