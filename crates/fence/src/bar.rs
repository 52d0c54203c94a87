//! The bar of one key: the highest token seen, and what it takes to pass it. Pure.

use sha2::{Digest as _, Sha256};

use crate::Token;

/// What a token gets that equals the highest one seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Equal {
    /// It passes. The lock service gives a token to one holder, so this is the same holder that writes again, as long as
    /// no client uses a token of another. The data store, which is told who writes, sees to that.
    #[default]
    Allow,
    /// It passes with the same data only: a retry of a write whose answer was lost.
    Identical,
    /// One write for each grant.
    Refuse,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of allow, identical, refuse")]
pub struct NotEqual(String);

/// What stands for the data of a write where only its identity matters: SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

/// How a token passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It is higher than every one before it, and is the bar now.
    Raised,
    /// It equals the bar, and the policy lets the holder write again.
    Again,
    /// It equals the bar and so does the data: the write has been carried out already.
    Repeated,
}

/// Why a token did not pass. The holder's grant has ended, or it is used against its policy: retrying is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("token {token} is stale: {highest} has been seen for this key")]
    Stale { token: Token, highest: Token },
    #[error("token {token} has been used already")]
    Reused { token: Token },
    #[error("token {token} has been used by another client, and a token belongs to one holder")]
    OtherHolder { token: Token },
    /// Nothing is known of the key, but all that was below the floor has been forgotten.
    #[error("token {token} is too old: what was below {floor} has been forgotten; acquire the lock again")]
    Forgotten { token: Token, floor: Token },
    #[error("a shared token fences no writes")]
    Shared,
}

/// The highest token seen for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    pub highest: Token,
    /// Of the data that came with it, if it is known.
    pub digest: Option<Digest>,
}

impl Bar {
    /// Whether a write with this token may be carried out. Says nothing about who raises the bar, and when.
    pub fn judge(&self, equal: Equal, token: Token, digest: Option<Digest>) -> Result<Admitted, Refusal> {
        if token < self.highest {
            return Err(Refusal::Stale { token, highest: self.highest });
        }
        if token > self.highest {
            return Ok(Admitted::Raised);
        }
        match equal {
            Equal::Allow => Ok(Admitted::Again),
            // What is not known is not the same.
            Equal::Identical if digest.is_some() && digest == self.digest => Ok(Admitted::Repeated),
            Equal::Identical | Equal::Refuse => Err(Refusal::Reused { token }),
        }
    }
}

impl Refusal {
    /// The bar that stood in the way.
    pub fn highest(&self) -> Option<Token> {
        match *self {
            Refusal::Stale { highest, .. } => Some(highest),
            Refusal::Reused { token } | Refusal::OtherHolder { token } => Some(token),
            Refusal::Forgotten { floor, .. } => Some(floor),
            Refusal::Shared => None,
        }
    }
}

impl Digest {
    pub fn of(data: &[u8]) -> Digest {
        Digest(Sha256::digest(data).into())
    }
}

impl std::str::FromStr for Equal {
    type Err = NotEqual;

    fn from_str(text: &str) -> Result<Equal, NotEqual> {
        match text {
            "allow" => Ok(Equal::Allow),
            "identical" => Ok(Equal::Identical),
            "refuse" => Ok(Equal::Refuse),
            _ => Err(NotEqual(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    #[test]
    fn every_policy_refuses_a_lower_token_and_takes_a_higher_one() {
        let bar = Bar { highest: token(5), digest: None };
        for equal in [Equal::Allow, Equal::Identical, Equal::Refuse] {
            let stale = Refusal::Stale { token: token(4), highest: token(5) };
            assert_eq!(bar.judge(equal, token(4), None), Err(stale));
            assert_eq!(bar.judge(equal, token(6), None), Ok(Admitted::Raised));
        }
    }

    #[test]
    fn an_equal_token_gets_what_the_policy_says() {
        let (same, other) = (Some(Digest::of(b"same")), Some(Digest::of(b"other")));
        let bar = Bar { highest: token(5), digest: same };
        let reused = Err(Refusal::Reused { token: token(5) });
        assert_eq!(bar.judge(Equal::Allow, token(5), other), Ok(Admitted::Again));
        assert_eq!(bar.judge(Equal::Identical, token(5), same), Ok(Admitted::Repeated));
        assert_eq!(bar.judge(Equal::Identical, token(5), other), reused);
        assert_eq!(bar.judge(Equal::Identical, token(5), None), reused);
        assert_eq!(Bar { digest: None, ..bar }.judge(Equal::Identical, token(5), None), reused);
        assert_eq!(bar.judge(Equal::Refuse, token(5), same), reused);
    }
}
