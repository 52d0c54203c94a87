//! What can go wrong, each with its cause and what to do about it.
//!
//! Servers answer with etcd's words; those that a caller may want to handle become variants here,
//! the others stay [`Error::Refused`] with the server's own message.

use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};

use crate::diagnose::Cause;

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{endpoint:?} cannot be used as endpoint: {reason}; endpoints read host:port, as in 127.0.0.1:2379")]
    Endpoint { endpoint: String, reason: String },
    #[error("{}", unreachable_text(attempts))]
    Unreachable { attempts: Vec<Attempt> },
    #[error("{endpoint}: the connection broke during the {call} call: {cause}{}", fate(*unknown))]
    Lost { endpoint: String, call: &'static str, cause: Cause, unknown: bool },
    #[error("{endpoint}: the cluster has no leader: too few of its members can talk to each other (it takes a majority), or an election is under way{}", fate(*unknown))]
    NoLeader { endpoint: String, unknown: bool },
    #[error("{endpoint}: no answer to the {call} call within {}: {reason}{}", seconds(*waited), fate(*unknown))]
    Timeout { endpoint: String, call: &'static str, waited: Duration, reason: String, unknown: bool },
    #[error("that revision is gone: its history was compacted{}", oldest_text(*oldest))]
    Compacted { oldest: Option<i64> },
    #[error("that revision does not exist yet")]
    FutureRevision,
    #[error("there is no such lease: it has expired or was revoked")]
    LeaseNotFound,
    #[error("a lease with that id exists already")]
    LeaseExists,
    #[error("nobody is elected")]
    NobodyElected,
    /// Only the holder's token unlocks, proclaims and is signed.
    #[error("it is not held with that token: nothing has changed; `tenure why` tells who holds it")]
    NotTheHolder,
    #[error(
        "the store is full: compact and delete, or raise its quota; until then only deletes, revokes and unlocks work"
    )]
    NoSpace,
    #[error("the server is overloaded: {message}; try again later")]
    Overloaded { message: String },
    #[error("not allowed: {message}")]
    NotAllowed { message: String },
    #[error("{endpoint}: the server does not know the {call} call: it is no Tenure or etcd server, or an older one")]
    Unknown { endpoint: String, call: &'static str },
    /// Any other answer of the server, in its own words.
    #[error("{message}")]
    Refused { code: Code, message: String },
    /// This machine refuses what the client needs for itself.
    #[error("the client cannot start its own threads: {reason}")]
    Local { reason: String },
    /// The server broke a rule of the protocol.
    #[error("{endpoint}: unexpected answer to the {call} call: {reason}")]
    Protocol { endpoint: String, call: &'static str, reason: String },
}

impl Error {
    /// Whether the call may have been carried out although it failed. Only writes can be in doubt.
    pub fn outcome_is_unknown(&self) -> bool {
        match self {
            Error::Lost { unknown, .. } | Error::NoLeader { unknown, .. } | Error::Timeout { unknown, .. } => *unknown,
            _ => false,
        }
    }

    /// Whether a stream may go on elsewhere or later.
    pub(crate) fn is_passing(&self) -> bool {
        let passing = matches!(self, Error::Unreachable { .. } | Error::Lost { .. });
        passing || matches!(self, Error::NoLeader { .. } | Error::Timeout { .. })
    }
}

/// An endpoint that was tried, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub endpoint: String,
    pub cause: Cause,
}

impl fmt::Display for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.endpoint, self.cause)
    }
}

/// What a status means for the call that got it.
pub(crate) enum Meaning {
    /// The server's verdict: asking again or elsewhere changes nothing.
    Final(Error),
    /// This member cannot answer now; another one, or the same one later, may.
    Passing(Error),
}

/// Reads what a server answered. `unknown`: a write that may have been carried out.
pub(crate) fn read_status(
    endpoint: &str,
    call: &'static str,
    waited: Duration,
    status: &Status,
    write: bool,
) -> Meaning {
    use Meaning::{Final, Passing};
    let endpoint = endpoint.to_owned();
    let message = status.message();
    let bare = message.strip_prefix("etcdserver: ").unwrap_or(message);
    match (status.code(), bare) {
        (_, "no leader" | "not leader") => Passing(Error::NoLeader { endpoint, unknown: false }),
        // Until the server says what the change did to the call, it may have been carried out.
        (_, "leader changed") => Passing(Error::NoLeader { endpoint, unknown: write }),
        (Code::Unavailable | Code::DeadlineExceeded, text) if text.contains("timed out") => {
            let reason = format!("the server says \"{bare}\"; it may have lost its leader, or its disk is slow");
            Passing(Error::Timeout { endpoint, call, waited, reason, unknown: write })
        }
        (Code::OutOfRange, text) if text.contains("compacted") => Final(Error::Compacted { oldest: None }),
        (Code::OutOfRange, text) if text.contains("future revision") => Final(Error::FutureRevision),
        (Code::NotFound, "requested lease not found") => Final(Error::LeaseNotFound),
        (Code::FailedPrecondition, "lease already exists") => Final(Error::LeaseExists),
        (_, "election: no leader") => Final(Error::NobodyElected),
        (Code::FailedPrecondition, "not the holder" | "not held" | "election: not leader") => {
            Final(Error::NotTheHolder)
        }
        (Code::ResourceExhausted, text) if text.contains("space exceeded") => Final(Error::NoSpace),
        (Code::ResourceExhausted, text) if text.contains("too many requests") => {
            Final(Error::Overloaded { message: bare.to_owned() })
        }
        (Code::PermissionDenied | Code::Unauthenticated, _) => Final(Error::NotAllowed { message: bare.to_owned() }),
        (Code::Unimplemented, _) => Final(Error::Unknown { endpoint, call }),
        (Code::Unavailable, _) => {
            Passing(Error::Lost { endpoint, call, cause: Cause::Other(bare.to_owned()), unknown: write })
        }
        (code, "") => Final(Error::Refused { code, message: format!("the server answered {code:?} without a word") }),
        (code, _) => Final(Error::Refused { code, message: bare.to_owned() }),
    }
}

fn unreachable_text(attempts: &[Attempt]) -> String {
    let list = attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let advice = match attempts.iter().all(|attempt| attempt.cause == Cause::Refused) {
        true => ". Is the server running? `tenure serve` starts one; --endpoints names another",
        false => "",
    };
    match attempts {
        [_] => format!("cannot reach {list}{advice}"),
        _ => format!("cannot reach any of {} endpoints: {list}{advice}", attempts.len()),
    }
}

fn fate(unknown: bool) -> &'static str {
    if unknown { ". Whether the call was carried out is unknown: look before repeating it" } else { "" }
}

fn oldest_text(oldest: Option<i64>) -> String {
    oldest.map_or_else(String::new, |revision| format!("; {revision} is the oldest one kept"))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(code: Code, message: &str) -> Error {
        match read_status("a:1", "put", Duration::from_secs(5), &Status::new(code, message), true) {
            Meaning::Final(error) | Meaning::Passing(error) => error,
        }
    }

    #[test]
    fn answers_of_etcd_become_variants() {
        let compacted = meaning(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(compacted, Error::Compacted { .. }));
        assert!(matches!(meaning(Code::NotFound, "etcdserver: requested lease not found"), Error::LeaseNotFound));
        assert!(matches!(meaning(Code::Unavailable, "etcdserver: no leader"), Error::NoLeader { .. }));
        let timeout = meaning(Code::Unavailable, "etcdserver: request timed out");
        assert!(timeout.outcome_is_unknown());
        assert!(timeout.to_string().contains("unknown: look before repeating it"));
        assert!(matches!(meaning(Code::FailedPrecondition, "not the holder"), Error::NotTheHolder));
        let other = meaning(Code::InvalidArgument, "etcdserver: key is not provided");
        assert_eq!(other.to_string(), "key is not provided");
    }

    #[test]
    fn a_refused_connection_says_what_to_do() {
        let attempt = |endpoint: &str| Attempt { endpoint: endpoint.into(), cause: Cause::Refused };
        let one = Error::Unreachable { attempts: vec![attempt("a:1")] }.to_string();
        assert!(one.starts_with("cannot reach a:1: connection refused"), "{one}");
        assert!(one.contains("tenure serve"), "{one}");
        let two = Error::Unreachable { attempts: vec![attempt("a:1"), attempt("b:2")] }.to_string();
        assert!(two.starts_with("cannot reach any of 2 endpoints: a:1: connection refused"), "{two}");
    }
}
