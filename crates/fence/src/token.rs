//! The fencing token.

use std::fmt;

/// A number that the lock service gives out with a grant: it is higher than those of all earlier grants of the same lock.
/// Tokens of different locks cannot be compared.
///
/// It is never 0, and never above `i64::MAX`, so that every storage can keep it in the integers that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fencing token: it is a whole number from 1 to 9223372036854775807")]
pub struct NotAToken(pub String);

impl Token {
    pub const LOWEST: Token = Token(1);
    pub const HIGHEST: Token = Token(i64::MAX as u64);

    pub fn new(value: u64) -> Result<Token, NotAToken> {
        let token = Token(value);
        let range = Token::LOWEST..=Token::HIGHEST;
        if range.contains(&token) { Ok(token) } else { Err(NotAToken(value.to_string())) }
    }

    /// Digits and nothing else: no sign, no leading zero, so that a token has one text.
    pub fn parse(text: &str) -> Result<Token, NotAToken> {
        let refused = || NotAToken(text.chars().take(32).collect());
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        let value = if digits { text.parse().ok() } else { None };
        Token::new(value.ok_or_else(refused)?).map_err(|_| refused())
    }

    pub fn get(self) -> u64 {
        self.0
    }

    /// As databases keep it.
    pub fn signed(self) -> i64 {
        self.0 as i64
    }
}

impl TryFrom<i64> for Token {
    type Error = NotAToken;

    fn try_from(value: i64) -> Result<Token, NotAToken> {
        u64::try_from(value).map_or_else(|_| Err(NotAToken(value.to_string())), Token::new)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_positive_number_that_fits_everywhere() {
        for text in ["1", "12", "9223372036854775807"] {
            assert_eq!(Token::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "+1", "01", " 1", "1 ", "1.0", "1e3", "9223372036854775808", "99999999999999999999"]
        {
            assert!(Token::parse(text).is_err(), "{text:?}");
        }
        assert!(Token::new(0).is_err() && Token::new(u64::MAX).is_err() && Token::try_from(-1_i64).is_err());
        assert_eq!(Token::try_from(Token::HIGHEST.signed()), Ok(Token::HIGHEST));
    }
}
