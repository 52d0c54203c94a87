//! Signed tokens: a claim and its HMAC-SHA256, in one line of text. Pure; neither files nor clocks.
//!
//! Without a signature a token is a number that anybody can make up, and a made-up high one would lock the true
//! holders out for good. With one, a storage that shares a key with the lock service knows offline that the service
//! gave out this token, for this key, to this holder.
//!
//! The text is `tenure1.` and the base64url of the claim's bytes and their HMAC. Several keys may be valid at a time,
//! so that they can be changed without an interruption: first let everybody verify with the new one too, then sign
//! with it, then drop the old one.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::claim::{self, Claim, MAX_CLUSTER_BYTES, MAX_HOLDER_BYTES, NEVER_MS, NotAClaim};
use crate::key::MAX_NAME_BYTES;
use crate::{Key, Token};

/// Shorter keys are easier to guess than the signature is to forge.
pub const MIN_KEY_BYTES: usize = 32;
/// Each one costs a computation for every forged token.
pub const MAX_KEYS: usize = 8;

const PREFIX: &str = "tenure1.";
const SIGNATURE_BYTES: usize = 32;
/// No signed token is longer: checked before any of it is decoded.
pub const MAX_TEXT_BYTES: usize =
    PREFIX.len() + (MAX_CLUSTER_BYTES + MAX_NAME_BYTES + 16 + MAX_HOLDER_BYTES + 28 + SIGNATURE_BYTES) * 4 / 3 + 4;

/// A secret that lock service and storage share. Never shown.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAKeyring {
    #[error("a signing key has at least {MIN_KEY_BYTES} bytes, not {bytes}")]
    Short { bytes: usize },
    #[error("there is no signing key")]
    Empty,
    #[error("there are {keys} signing keys: {MAX_KEYS} at most can be valid at a time")]
    TooMany { keys: usize },
}

/// The keys that are valid: the first one signs, all of them verify.
#[derive(Clone, Debug)]
pub struct Keyring(Vec<SigningKey>);

/// Why a signed token is worth nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the signed token cannot be read: {0}")]
    Malformed(Malformed),
    #[error("the signature is not by any key that is valid here")]
    BadSignature,
    #[error("the signed token expired at {expired_at_ms} ms since 1970")]
    Expired { expired_at_ms: u64 },
    #[error("the token was signed for cluster {signed:?}, not {wanted:?}")]
    WrongCluster { signed: String, wanted: String },
    #[error("the token was signed for key {:?}, not {:?}", signed.as_str(), wanted.as_str())]
    WrongKey { signed: Key, wanted: Key },
    #[error("the signature is for token {signed}, not {wanted}")]
    WrongToken { signed: Token, wanted: Token },
    #[error("the token was signed for holder {signed:?}, not {wanted:?}")]
    WrongHolder { signed: String, wanted: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it does not begin with {PREFIX:?}")]
    Prefix,
    #[error("it is longer than any signed token")]
    Length,
    #[error("it is not base64url")]
    Base64,
    #[error(transparent)]
    Claim(#[from] NotAClaim),
}

/// What a storage expects of a token: all that it knows without the signature.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub cluster: &'a str,
    pub key: &'a Key,
    pub token: Token,
    pub holder: &'a str,
    /// Wall time, in milliseconds since 1970.
    pub now_ms: u64,
}

impl SigningKey {
    pub fn new(secret: &[u8]) -> Result<SigningKey, NotAKeyring> {
        let short = NotAKeyring::Short { bytes: secret.len() };
        if secret.len() < MIN_KEY_BYTES {
            return Err(short);
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|_| short)?;
        mac.update(&claim::label());
        Ok(SigningKey(mac))
    }

    fn sign(&self, claim: &[u8]) -> [u8; SIGNATURE_BYTES] {
        self.0.clone().chain_update(claim).finalize().into_bytes().into()
    }

    /// In constant time: how much of a forged signature is right must not be measurable.
    fn verifies(&self, claim: &[u8], signature: &[u8]) -> bool {
        self.0.clone().chain_update(claim).verify_slice(signature).is_ok()
    }
}

impl Keyring {
    pub fn new(keys: Vec<SigningKey>) -> Result<Keyring, NotAKeyring> {
        match keys.len() {
            0 => Err(NotAKeyring::Empty),
            1..=MAX_KEYS => Ok(Keyring(keys)),
            keys => Err(NotAKeyring::TooMany { keys }),
        }
    }

    /// The text that goes to the holder with its grant.
    pub fn sign(&self, claim: &Claim) -> String {
        let mut bytes = claim.encode();
        let signature = self.0[0].sign(&bytes);
        bytes.extend_from_slice(&signature);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// The claim in a signed token, whatever it is for; expired or not is for the caller to judge.
    pub fn open(&self, text: &str) -> Result<Claim, SignatureError> {
        let malformed = SignatureError::Malformed;
        if text.len() > MAX_TEXT_BYTES {
            return Err(malformed(Malformed::Length));
        }
        let encoded = text.strip_prefix(PREFIX).ok_or(malformed(Malformed::Prefix))?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| malformed(Malformed::Base64))?;
        let split = bytes.len().checked_sub(SIGNATURE_BYTES).ok_or(malformed(Malformed::Claim(NotAClaim::Bytes)))?;
        let (claim, signature) = bytes.split_at(split);
        // Every key is tried, so that the time taken does not tell which one it was.
        let verified = self.0.iter().fold(false, |verified, key| key.verifies(claim, signature) | verified);
        if !verified {
            // Nobody vouches for what it says; that it says nothing readable is still a better answer.
            return Err(match Claim::decode(claim) {
                Ok(_) => SignatureError::BadSignature,
                Err(error) => malformed(Malformed::Claim(error)),
            });
        }
        Claim::decode(claim).map_err(|error| malformed(Malformed::Claim(error)))
    }

    /// Whether the lock service gave out exactly this token, and the time for which it vouches has not passed.
    pub fn verify(&self, text: &str, expected: Expected<'_>) -> Result<Claim, SignatureError> {
        let claim = self.open(text)?;
        if claim.cluster() != expected.cluster {
            let (signed, wanted) = (claim.cluster().to_owned(), expected.cluster.to_owned());
            return Err(SignatureError::WrongCluster { signed, wanted });
        }
        if claim.key() != expected.key {
            let (signed, wanted) = (claim.key().clone(), expected.key.clone());
            return Err(SignatureError::WrongKey { signed, wanted });
        }
        if claim.token() != expected.token {
            return Err(SignatureError::WrongToken { signed: claim.token(), wanted: expected.token });
        }
        if claim.holder() != expected.holder {
            let (signed, wanted) = (claim.holder().to_owned(), expected.holder.to_owned());
            return Err(SignatureError::WrongHolder { signed, wanted });
        }
        if claim.expires_at_ms() != NEVER_MS && claim.expires_at_ms() <= expected.now_ms {
            return Err(SignatureError::Expired { expired_at_ms: claim.expires_at_ms() });
        }
        Ok(claim)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SigningKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keyring(secrets: &[u8]) -> Keyring {
        Keyring::new(secrets.iter().map(|secret| SigningKey::new(&[*secret; 32]).unwrap()).collect()).unwrap()
    }

    fn claim() -> Claim {
        let token = Token::new(12).unwrap();
        Claim::new("c1", Key::parse("deploy/prod").unwrap(), token, "ci-7", 1_000).unwrap()
    }

    fn expected(claim: &Claim) -> Expected<'_> {
        Expected { cluster: "c1", key: claim.key(), token: claim.token(), holder: "ci-7", now_ms: 999 }
    }

    #[test]
    fn the_encoding_is_what_it_was() {
        // Computed with Python's hmac. A change makes every signed token that is out worthless: it needs another prefix.
        let text = keyring(&[7]).sign(&claim());
        assert_eq!(
            text,
            "tenure1.AgAAAGMxCwAAAGRlcGxveS9wcm9kBAAAAGNpLTcMAAAAAAAAAOgDAAAAAAAAjzfWN7DbsnRnm93IeR46RQyeeo3UnQtLK0ustPedN7w"
        );
    }

    #[test]
    fn each_difference_has_its_error() {
        let (ring, claim) = (keyring(&[7]), claim());
        let text = ring.sign(&claim);
        let expected = expected(&claim);
        assert_eq!(ring.verify(&text, expected), Ok(claim.clone()));
        let other = Key::parse("deploy/test").unwrap();
        let wrong = |expected| ring.verify(&text, expected).unwrap_err();
        assert!(matches!(wrong(Expected { cluster: "c2", ..expected }), SignatureError::WrongCluster { .. }));
        assert!(matches!(wrong(Expected { key: &other, ..expected }), SignatureError::WrongKey { .. }));
        assert!(matches!(wrong(Expected { holder: "ci-8", ..expected }), SignatureError::WrongHolder { .. }));
        let token = Token::new(13).unwrap();
        assert!(matches!(wrong(Expected { token, ..expected }), SignatureError::WrongToken { .. }));
        assert_eq!(wrong(Expected { now_ms: 1_000, ..expected }), SignatureError::Expired { expired_at_ms: 1_000 });
        assert_eq!(keyring(&[8]).verify(&text, expected), Err(SignatureError::BadSignature));
        for text in
            ["", "12", "tenure1.", "tenure1.!", "tenure2.AAAA", &text[..40], &format!("{text}="), &"x".repeat(9999)]
        {
            let error = ring.verify(text, expected).unwrap_err();
            assert!(matches!(error, SignatureError::Malformed(_)), "{text}: {error}");
        }
    }

    #[test]
    fn a_signature_of_a_shared_hold_is_none_for_the_lock() {
        let shared = Key::shared("deploy/prod").unwrap();
        let claim = Claim::new("c1", shared, Token::new(12).unwrap(), "ci-7", NEVER_MS).unwrap();
        let whole = Key::parse("deploy/prod").unwrap();
        let ring = keyring(&[7]);
        let error = ring.verify(&ring.sign(&claim), Expected { key: &whole, ..expected(&claim) }).unwrap_err();
        assert!(matches!(error, SignatureError::WrongKey { .. }));
    }

    #[test]
    fn keys_change_without_an_interruption() {
        let (old, both, turned, new) = (keyring(&[1]), keyring(&[1, 2]), keyring(&[2, 1]), keyring(&[2]));
        for (signer, verifier) in [(&old, &both), (&both, &turned), (&turned, &both), (&turned, &new)] {
            assert!(verifier.open(&signer.sign(&claim())).is_ok());
        }
        assert_eq!(new.open(&old.sign(&claim())), Err(SignatureError::BadSignature));
    }

    #[test]
    fn weak_keyrings_are_refused_and_none_is_shown() {
        assert_eq!(SigningKey::new(&[1; 31]).unwrap_err(), NotAKeyring::Short { bytes: 31 });
        assert_eq!(Keyring::new(Vec::new()).unwrap_err(), NotAKeyring::Empty);
        let many = vec![SigningKey::new(&[1; 32]).unwrap(); 9];
        assert_eq!(Keyring::new(many).unwrap_err(), NotAKeyring::TooMany { keys: 9 });
        assert_eq!(format!("{:?}", keyring(&[1])), "Keyring([SigningKey(secret)])");
    }

    #[test]
    fn the_longest_claim_fits() {
        let key = Key::slot(&"k".repeat(MAX_NAME_BYTES), u32::MAX).unwrap();
        let (cluster, holder) = ("c".repeat(MAX_CLUSTER_BYTES), "h".repeat(MAX_HOLDER_BYTES));
        let claim = Claim::new(&cluster, key, Token::HIGHEST, &holder, NEVER_MS).unwrap();
        let ring = keyring(&[1]);
        assert_eq!(ring.open(&ring.sign(&claim)), Ok(claim));
    }

    fn claims() -> impl Strategy<Value = Claim> {
        let token = 1..=Token::HIGHEST.get();
        (".{1,20}", "[^\\p{Cc}]{1,20}", token, ".{1,20}", any::<u64>()).prop_map(
            |(cluster, key, token, holder, expires_at_ms)| {
                let (key, token) = (Key::parse(&key).unwrap(), Token::new(token).unwrap());
                Claim::new(&cluster, key, token, &holder, expires_at_ms).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_signed_is_read(claim in claims()) {
            let ring = keyring(&[7]);
            prop_assert_eq!(ring.open(&ring.sign(&claim)), Ok(claim));
        }

        #[test]
        fn two_claims_never_share_their_bytes(one in claims(), other in claims()) {
            prop_assert_eq!(one == other, one.encode() == other.encode());
        }

        #[test]
        fn any_change_of_the_text_is_noticed(claim in claims(), position: prop::sample::Index, character in "[A-Za-z0-9_.-]") {
            let ring = keyring(&[7]);
            let text = ring.sign(&claim);
            let position = position.index(text.len());
            let mut altered = text.clone();
            altered.replace_range(position..position + 1, &character);
            prop_assume!(altered != text);
            prop_assert!(ring.open(&altered).is_err());
        }

        #[test]
        fn garbage_is_an_error(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let ring = keyring(&[7]);
            prop_assert!(ring.open(&text).is_err());
            let encoded = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(&bytes));
            prop_assert!(ring.open(&encoded).is_err());
            let _ = Claim::decode(&bytes);
        }
    }
}
