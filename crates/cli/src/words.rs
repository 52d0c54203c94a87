//! Errors in our words.
//!
//! Servers refuse in etcd's words, because etcd's clients recognise an error by its text. People get a sentence that
//! says what to do.

use tenure_client::{Error, LockError};

/// What etcd says, and what it means. Longer texts stand before those that they contain.
const SENTENCES: &[(&str, &str)] = &[
    ("bad leader transferee", "that member cannot take over: it does not run, is far behind, or has no vote"),
    (
        "can only promote a learner member which is in sync",
        "the learner has not caught up with the leader yet: try again in a moment",
    ),
    ("can only promote a learner member", "that member is a voter already"),
    (
        "re-configuration failed due to not enough started members",
        "too few members can be reached for this change: the cluster would lose its quorum",
    ),
    ("unhealthy cluster", "too few members can be reached for this change: the cluster would lose its quorum"),
    (
        "too many learner members in cluster",
        "the cluster has as many learners as it allows: promote or remove one first",
    ),
    ("Peer URLs already exists", "a member has that address already; `tenure member list` shows it"),
    ("member ID already exist", "a member with that id exists already; `tenure member list` shows it"),
    ("member not found", "there is no such member; `tenure member list` shows all"),
    ("given member URLs are invalid", "a member is found at HOST:PORT, for example 10.0.0.4:2380"),
    ("key is not provided", "the key is empty: name one"),
    ("key not found", "there is no such key"),
    ("duplicate key given in txn request", "a transaction may write each key only once"),
    ("too many operations in txn request", "the transaction has more operations than the server allows"),
    ("request is too large", "the request is larger than the server allows"),
    ("too large lease TTL", "that time is longer than a lease may have"),
    ("corrupt cluster", "a member found that its data differs from the others': see `tenure alarm list`"),
    ("authentication is not enabled", "this server has no authentication"),
];

/// The error and its causes in one line, etcd's texts replaced.
pub fn of(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let refusal = error.chain().find_map(refusal_in);
    let sentence = refusal.and_then(|message| sentence(message).map(|sentence| (message, sentence)));
    sentence.map_or_else(|| text.clone(), |(message, sentence)| text.replacen(message, sentence, 1))
}

/// What a server's refusal means; `None` if its text is not one of etcd's.
pub fn sentence(message: &str) -> Option<&'static str> {
    SENTENCES.iter().find(|(text, _)| message.contains(text)).map(|(_, sentence)| *sentence)
}

/// Whether the call that failed may have been carried out all the same.
pub fn is_outcome_unknown(error: &anyhow::Error) -> bool {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
    let lock = error.chain().find_map(|cause| cause.downcast_ref::<LockError>());
    let call = lock.and_then(|error| if let LockError::Call(error) = error { Some(error) } else { None });
    cause.or(call).is_some_and(Error::outcome_is_unknown)
}

fn refusal_in<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a str> {
    let error = match cause.downcast_ref::<LockError>() {
        Some(LockError::Call(error)) => Some(error),
        _ => cause.downcast_ref::<Error>(),
    };
    match error {
        Some(Error::Refused { message, .. }) => Some(message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_is_recognised_first() {
        for (index, (text, _)) in SENTENCES.iter().enumerate() {
            let first = SENTENCES.iter().position(|(other, _)| text.contains(other));
            assert_eq!(first, Some(index), "{text} is hidden by an earlier one");
        }
        assert_eq!(sentence("the sky is green"), None);
    }
}
