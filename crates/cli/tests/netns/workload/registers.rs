//! Reads, writes and replacements of a few registers, at one member.

use std::sync::Arc;

use tenure_client::{Client, Compare, Error, Found, Get, Operation, OperationReply, Put, Txn};

use super::{Dice, Notes};
use crate::history::{Action, Outcome, Value};

const REGISTERS: u64 = 2;

pub async fn work(client: Client, notes: Arc<Notes>, seed: u64) {
    let mut dice = Dice::new(seed + notes.now());
    let mut seen = [None; REGISTERS as usize];
    while notes.goes_on() {
        let register = dice.below(REGISTERS);
        let (key, seen) = (format!("register/{register}"), &mut seen[register as usize]);
        let action = match dice.below(10) {
            0..4 => Action::Read,
            4..7 => Action::Write(notes.next_value()),
            _ => Action::Replace { expected: *seen, value: notes.next_value() },
        };
        let call = notes.timed(&key, action, carry_out(&client, &key, action)).await;
        match (call.outcome, action) {
            (Outcome::Found { value, .. }, _) => *seen = value,
            (Outcome::Written { .. }, Action::Write(value) | Action::Replace { value, .. }) => *seen = Some(value),
            _ => {}
        }
        notes.note(|history| history.calls.push(call));
        dice.pause(25).await;
    }
}

async fn carry_out(client: &Client, key: &str, action: Action) -> Result<Outcome, Error> {
    match action {
        Action::Read => client.get(Get::keys(key.to_owned())).await.map(found),
        Action::Write(value) => {
            let written = client.put((key.to_owned(), value.to_string())).await?;
            Ok(Outcome::Written { revision: written.header.revision })
        }
        Action::Replace { expected, value } => {
            let when = match expected {
                Some(expected) => Compare::value_is(key.to_owned(), expected.to_string()),
                None => Compare::absent(key.to_owned()),
            };
            let then = vec![Operation::Put(Put::new(key.to_owned(), value.to_string()))];
            let txn = Txn { when: vec![when], then, otherwise: vec![Operation::Get(Get::keys(key.to_owned()))] };
            let reply = client.txn(txn).await?;
            match reply.replies.into_iter().next() {
                Some(OperationReply::Get(other)) => {
                    Ok(Outcome::Found { value: value_of(&other), revision: reply.header.revision })
                }
                _ => Ok(Outcome::Written { revision: reply.header.revision }),
            }
        }
    }
}

fn found(found: Found) -> Outcome {
    Outcome::Found { value: value_of(&found), revision: found.header.revision }
}

fn value_of(found: &Found) -> Option<Value> {
    found.pairs.first().map(|pair| String::from_utf8_lossy(&pair.value).parse().expect("registers hold numbers"))
}
