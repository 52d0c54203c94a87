//! Fencing in Redis: a script, which Redis runs as one step, checks the bar and writes.
//!
//! [`WRITE`] is `SET` behind the bar. For other writes put [`PRELUDE`] before a script of yours and begin it with
//! `tenure_admit`, as `WRITE` does:
//!
//! ```lua
//! local refused = tenure_admit(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
//! if refused then return refused end
//! redis.call('LPUSH', KEYS[2], ARGV[4])
//! ```
//!
//! `KEYS[1]` is the bar ([`bar_key`]: in a Redis cluster it lies beside its data), `ARGV` the token, the policy and the
//! digest. Tokens are compared as decimal text, because Lua's numbers are exact only up to 2⁵³.
//!
//! What it forgets is what Redis forgets. With `appendonly yes` and `appendfsync always` an answered write survives a
//! crash; with `everysec`, the default of the append-only file, the last second does not, and without it, nothing since
//! the last dump: a bar that fell lets a stale holder pass. The same holds for a fail-over to a replica, which is
//! asynchronous. A bar must have no expiry and must not be evicted: `maxmemory-policy noeviction`.

use crate::{Admitted, Digest, Equal, Key, Part, Refusal, Token};

macro_rules! prelude {
    () => {
        "\
local function tenure_admit(bar, token, equal, digest)
  local seen = redis.call('HMGET', bar, 'token', 'digest')
  local highest = seen[1] or ''
  local order = #token - #highest
  if order == 0 and token ~= highest then
    if token < highest then order = -1 else order = 1 end
  end
  if order < 0 then return {'stale', highest} end
  if order == 0 then
    if equal == 'refuse' then return {'reused', highest} end
    if equal == 'identical' then
      if digest ~= '' and digest == seen[2] then return {'repeated', highest} end
      return {'reused', highest}
    end
    if equal ~= 'allow' then return redis.error_reply('TENURE unknown policy') end
  end
  redis.call('HSET', bar, 'token', token, 'digest', digest)
  return nil
end
"
    };
}

/// Defines `tenure_admit(bar, token, equal, digest)`: nil if the write may be carried out, otherwise the reply.
pub const PRELUDE: &str = prelude!();

/// Sets `KEYS[2]` to `ARGV[4]` behind the bar `KEYS[1]`.
pub const WRITE: &str = concat!(
    prelude!(),
    "\
local refused = tenure_admit(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end
redis.call('SET', KEYS[2], ARGV[4])
return {'admitted', ARGV[1]}
"
);

/// What Redis calls the script in EVALSHA.
pub const WRITE_SHA1: &str = "2740d3fa15eb26034bf69db7bc0201fbaede5029";

/// A client, as far as a script needs one.
pub trait Redis {
    type Error;
    /// Runs a command and gives its reply.
    fn run(&mut self, command: &[&[u8]]) -> Result<Reply, Self::Error>;
}

/// A reply of Redis, as far as a script makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Texts(Vec<Vec<u8>>),
    /// With its code, as in `NOSCRIPT No matching script`.
    Error(String),
    Other,
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("Redis answered: {0}")]
    Redis(String),
    #[error("Redis answered with something else than the script's reply")]
    Unexpected,
    #[error(transparent)]
    Client(E),
}

/// Where the bar of a key is kept. The braces put it into the slot of a data key that has the same braces.
pub fn bar_key(key: &Key) -> String {
    format!("tenure:fence:{{{key}}}")
}

/// Sets `data_key` to `data` if the token is admitted; both are one step. Sends the script only if Redis does not know
/// it yet.
pub fn write<R: Redis>(
    redis: &mut R,
    equal: Equal,
    key: &Key,
    token: Token,
    data_key: &str,
    data: &[u8],
) -> Result<Admitted, WriteError<R::Error>> {
    if key.part() == Part::Shared {
        return Err(Refusal::Shared.into());
    }
    let (bar, token_text) = (bar_key(key), token.to_string());
    let digest = Digest::of(data).0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut arguments = [
        &b"2"[..],
        bar.as_bytes(),
        data_key.as_bytes(),
        token_text.as_bytes(),
        policy(equal).as_bytes(),
        digest.as_bytes(),
        data,
    ]
    .to_vec();
    arguments.splice(0..0, [&b"EVALSHA"[..], WRITE_SHA1.as_bytes()]);
    let mut reply = redis.run(&arguments).map_err(WriteError::Client)?;
    if matches!(&reply, Reply::Error(error) if error.starts_with("NOSCRIPT")) {
        arguments.splice(0..2, [&b"EVAL"[..], WRITE.as_bytes()]);
        reply = redis.run(&arguments).map_err(WriteError::Client)?;
    }
    match reply {
        Reply::Texts(texts) => judge(token, &texts).ok_or(WriteError::Unexpected)?.map_err(WriteError::Refused),
        Reply::Error(error) => Err(WriteError::Redis(error)),
        Reply::Other => Err(WriteError::Unexpected),
    }
}

/// What a script's reply means, for scripts of your own that return what `tenure_admit` returned.
pub fn judge(token: Token, reply: &[Vec<u8>]) -> Option<Result<Admitted, Refusal>> {
    let [word, highest] = reply else { return None };
    let highest = Token::parse(std::str::from_utf8(highest).ok()?).ok()?;
    match word.as_slice() {
        b"admitted" => Some(Ok(Admitted::Raised)),
        b"repeated" => Some(Ok(Admitted::Repeated)),
        b"stale" => Some(Err(Refusal::Stale { token, highest })),
        b"reused" => Some(Err(Refusal::Reused { token })),
        _ => None,
    }
}

/// The policy as scripts know it.
pub fn policy(equal: Equal) -> &'static str {
    match equal {
        Equal::Allow => "allow",
        Equal::Identical => "identical",
        Equal::Refuse => "refuse",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers in turn, and keeps what it was asked.
    struct Scripted(Vec<Reply>, Vec<Vec<Vec<u8>>>);

    impl Redis for Scripted {
        type Error = std::convert::Infallible;

        fn run(&mut self, command: &[&[u8]]) -> Result<Reply, Self::Error> {
            self.1.push(command.iter().map(|argument| argument.to_vec()).collect());
            Ok(self.0.remove(0))
        }
    }

    fn reply(word: &str, highest: &str) -> Reply {
        Reply::Texts(vec![word.into(), highest.into()])
    }

    fn ask(replies: &[Reply]) -> (Result<Admitted, String>, Vec<Vec<Vec<u8>>>) {
        let (key, token) = (Key::name("a").unwrap(), Token::new(5).unwrap());
        let mut redis = Scripted(replies.to_vec(), Vec::new());
        let outcome = write(&mut redis, Equal::Allow, &key, token, "{a}", b"data");
        (outcome.map_err(|error| error.to_string()), redis.1)
    }

    #[test]
    fn the_script_is_sent_only_if_redis_does_not_know_it() {
        let (outcome, asked) = ask(&[reply("admitted", "5")]);
        assert_eq!((outcome, asked.len(), &asked[0][1][..]), (Ok(Admitted::Raised), 1, WRITE_SHA1.as_bytes()));
        let (outcome, asked) = ask(&[Reply::Error("NOSCRIPT No matching script".to_owned()), reply("admitted", "5")]);
        assert_eq!((outcome, asked.len()), (Ok(Admitted::Raised), 2));
        assert_eq!((&asked[1][0][..], &asked[1][1][..]), (&b"EVAL"[..], WRITE.as_bytes()));
        assert_eq!(asked[0][2..], asked[1][2..]);
    }

    #[test]
    fn replies_are_understood_and_nothing_else_is_success() {
        assert_eq!(ask(&[reply("repeated", "5")]).0, Ok(Admitted::Repeated));
        for (answer, reason) in [
            (reply("stale", "6"), "6 has been seen"),
            (reply("reused", "5"), "used already"),
            (reply("whatever", "5"), "something else"),
            (reply("admitted", "many"), "something else"),
            (Reply::Texts(Vec::new()), "something else"),
            (Reply::Other, "something else"),
            (Reply::Error("OOM command not allowed".to_owned()), "OOM"),
        ] {
            let error = ask(std::slice::from_ref(&answer)).0.unwrap_err();
            assert!(error.contains(reason), "{answer:?}: {error}");
        }
    }
}
