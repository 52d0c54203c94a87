//! Fencing in PostgreSQL: the bar is a row, and the statement that raises it guards the write in the same transaction.
//!
//! [`guarded`] puts the guard around a write of yours, as one statement:
//!
//! ```
//! use tenure_fence::{Equal, postgres};
//!
//! let statement = postgres::guarded(Equal::Allow, "INSERT INTO orders (id, body) SELECT $4, $5 FROM bar")?;
//! # Ok::<(), postgres::Unguarded>(())
//! ```
//!
//! Its parameters are `$1` the key (text), `$2` the token (bigint), `$3` the digest of the data (bytea, or null where
//! the policy is not `identical`), and yours from `$4` on. It answers with one row: `admitted`, the token or null, and
//! `rows`, how many your write wrote. If `admitted` is null, [`HIGHEST`] and [`judge`] tell why.
//!
//! For several writes, or writes that depend on what they read, begin a transaction, run [`guard`] first, and go on
//! only if it returned a row; [`admit`] does that through any client. The row stays locked until the transaction ends,
//! so whoever comes with another token for the same key waits and is judged against the outcome. No isolation level
//! breaks this: at `READ COMMITTED` the condition is judged again after the wait; above it PostgreSQL refuses the later
//! transaction with `could not serialize access`, and its retry is judged anew. Within one statement everything but
//! the guard sees other rows as they were when the statement began: a write that reads them belongs into the second
//! form.
//!
//! What it forgets: nothing that was committed, with `fsync` and `synchronous_commit` as they are by default. Failing
//! over to an asynchronous standby, or restoring a backup, takes bars back together with the data: run [`RAISE_ALL`]
//! with the cluster's present revision before writers return. Keys are rows, and old ones may be deleted once the
//! locks with grants as old as theirs have all ended; PostgreSQL has room enough not to.

use crate::{Admitted, Digest, Equal, Key, Part, Refusal, Token};

/// The table of bars. Run it once; running it again does nothing.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS tenure_fence (
    key    text   PRIMARY KEY,
    token  bigint NOT NULL CHECK (token > 0),
    digest bytea
)";

/// The highest token seen for the key `$1`; no row if there is none. To be asked in a statement of its own.
pub const HIGHEST: &str = "SELECT token FROM tenure_fence WHERE key = $1::text";

/// Lifts every bar to at least `$1`.
pub const RAISE_ALL: &str = "UPDATE tenure_fence SET token = $1::bigint, digest = NULL WHERE token < $1::bigint";

// The conflicting row is locked before the condition is judged, and judged as it is then.
macro_rules! guard {
    ($condition:literal) => {
        concat!(
            "INSERT INTO tenure_fence AS seen (key, token, digest) VALUES ($1::text, $2::bigint, $3::bytea) ",
            "ON CONFLICT (key) DO UPDATE SET token = excluded.token, digest = excluded.digest WHERE ",
            $condition,
            " RETURNING token"
        )
    };
}

const ALLOW: &str = guard!("seen.token <= excluded.token");
const IDENTICAL: &str =
    guard!("seen.token < excluded.token OR (seen.token = excluded.token AND seen.digest = excluded.digest)");
const REFUSE: &str = guard!("seen.token < excluded.token");

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the write does not draw from bar, so the guard would guard nothing: let it select FROM bar, or add \
     WHERE EXISTS (SELECT FROM bar)"
)]
pub struct Unguarded;

#[derive(Debug, thiserror::Error)]
pub enum AdmitError<E> {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the bar does not stand where it stood a moment ago: somebody lowered it")]
    Lowered,
    #[error(transparent)]
    Client(E),
}

/// The guard by itself: one row with the token if it was admitted, none if it was refused.
pub fn guard(equal: Equal) -> &'static str {
    match equal {
        Equal::Allow => ALLOW,
        Equal::Identical => IDENTICAL,
        Equal::Refuse => REFUSE,
    }
}

/// The guard and an INSERT, UPDATE or DELETE without RETURNING, as one statement. The write has to draw from `bar`,
/// which has one row if the token was admitted and none otherwise.
pub fn guarded(equal: Equal, write: &str) -> Result<String, Unguarded> {
    let mut words = write.split(|character: char| !character.is_alphanumeric() && character != '_');
    if !words.any(|word| word.eq_ignore_ascii_case("bar")) {
        return Err(Unguarded);
    }
    Ok(format!(
        "WITH bar AS ({}), written AS ({write} RETURNING 1) \
         SELECT (SELECT token FROM bar) AS admitted, (SELECT count(*) FROM written) AS rows",
        guard(equal)
    ))
}

/// Why a token was refused, from what [`HIGHEST`] says afterwards. `None` if the bar is lower than the token: then it
/// has been lowered meanwhile, which nobody should do.
pub fn judge(token: Token, highest: Option<Token>) -> Option<Refusal> {
    match highest {
        Some(highest) if highest > token => Some(Refusal::Stale { token, highest }),
        Some(highest) if highest == token => Some(Refusal::Reused { token }),
        _ => None,
    }
}

/// Guards the rest of a transaction through any client. `query` runs a statement with the first of key, token and
/// digest that it names as parameters, and gives the first column of the first row, if there is a row.
///
/// That the same data came again is not told from the first time: carry the write out, it changes nothing.
pub fn admit<E>(
    equal: Equal,
    key: &Key,
    token: Token,
    digest: Option<Digest>,
    mut query: impl FnMut(&str, &str, i64, Option<&[u8]>) -> Result<Option<i64>, E>,
) -> Result<Admitted, AdmitError<E>> {
    if key.part() == Part::Shared {
        return Err(Refusal::Shared.into());
    }
    let (name, value) = (key.as_str(), token.signed());
    let digest = digest.as_ref().map(|digest| &digest.0[..]);
    if query(guard(equal), name, value, digest).map_err(AdmitError::Client)?.is_some() {
        return Ok(Admitted::Raised);
    }
    let highest = query(HIGHEST, name, value, None).map_err(AdmitError::Client)?;
    let highest = highest.and_then(|highest| Token::try_from(highest).ok());
    Err(judge(token, highest).map_or(AdmitError::Lowered, AdmitError::Refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_ignores_the_bar_is_refused() {
        for write in ["UPDATE t SET a = 1", "INSERT INTO bars SELECT 1", "INSERT INTO t SELECT $4 FROM my_bar"] {
            assert_eq!(guarded(Equal::Allow, write), Err(Unguarded), "{write}");
        }
        assert!(guarded(Equal::Allow, "UPDATE t SET a = 1 WHERE EXISTS (SELECT FROM BAR)").is_ok());
    }

    #[test]
    fn what_the_database_says_is_understood() {
        let key = Key::name("a").unwrap();
        let token = Token::new(5).unwrap();
        let ask = |admitted: Option<i64>, highest: Option<i64>| {
            admit(Equal::Refuse, &key, token, None, |statement, _, _, _| {
                Ok::<_, &str>(if statement == HIGHEST { highest } else { admitted })
            })
        };
        assert_eq!(ask(Some(5), None).unwrap(), Admitted::Raised);
        assert!(matches!(ask(None, Some(6)), Err(AdmitError::Refused(Refusal::Stale { .. }))));
        assert!(matches!(ask(None, Some(5)), Err(AdmitError::Refused(Refusal::Reused { .. }))));
        assert!(matches!(ask(None, Some(4)), Err(AdmitError::Lowered)));
        let shared = Key::shared("a").unwrap();
        let outcome = admit(Equal::Allow, &shared, token, None, |_, _, _, _| Err("asked"));
        assert!(matches!(outcome, Err(AdmitError::Refused(Refusal::Shared))));
    }
}
