//! A grant as the cluster signs it, for as long as it is held.
//!
//! A signature is good for as long as its lease had time left when it was made, at most one TTL, so that a leaked one is
//! soon of no use. A lock may be held for much longer. A lease is renewed before half of its TTL has passed, or its
//! holder is warned. So a signature is good for half of the TTL at least, and the holder asks for another one after a
//! quarter, and only if it wants to show one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_api::tenure::v1::SignRequest;
use tenure_api::tenure::v1::lock_service_client::LockServiceClient;

use crate::call::Kind;
use crate::{Held, LockError, clock};

/// The newest signature for each name.
#[derive(Default)]
pub(crate) struct Signatures(Mutex<BTreeMap<String, Signed>>);

#[derive(Clone)]
struct Signed {
    text: String,
    /// It was signed later than this.
    asked_ms: u64,
}

impl Signatures {
    pub fn of_grant(name: &str, text: String, asked_ms: u64) -> Signatures {
        let signatures = Signatures::default();
        if !text.is_empty() {
            signatures.keep(name, Signed { text, asked_ms });
        }
        signatures
    }

    /// The newest one of that name, be it still good or not.
    pub fn newest(&self, name: &str) -> String {
        self.lock().get(name).map_or_else(String::new, |signed| signed.text.clone())
    }

    fn fresh(&self, name: &str, ttl_ms: u64) -> Option<String> {
        let signed = self.lock().get(name)?.clone();
        let is_fresh = clock::now_ms().saturating_sub(signed.asked_ms) <= ttl_ms / 4;
        is_fresh.then_some(signed.text)
    }

    fn keep(&self, name: &str, signed: Signed) {
        self.lock().insert(name.to_owned(), signed);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Signed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The grant as the cluster has signed it, for storages that verify tokens: good for another quarter of the TTL
    /// at least while renewals get through, however long the lock has been held. Asks the server only if the last one is
    /// older. Of several locks taken together, that of the first.
    pub async fn signed_token(&self) -> Result<String, LockError> {
        self.signed_token_for(self.name()).await
    }

    /// As [`Held::signed_token`], for one of several names that were taken together.
    pub async fn signed_token_for(&self, name: &str) -> Result<String, LockError> {
        self.check()?;
        if !self.names().iter().any(|taken| taken == name) {
            let reason = format!("{name} is not among the names that were taken together with {}", self.name());
            return Err(LockError::Unusable { reason });
        }
        if let Some(signature) = self.signatures().fresh(name, self.ttl_ms()) {
            return Ok(signature);
        }
        let request = SignRequest { name: name.to_owned(), lease_id: self.lease(), fencing_token: self.token() };
        let mut asked_ms = 0;
        let call = |channel| {
            asked_ms = clock::now_ms();
            let request = request.clone();
            async move { LockServiceClient::new(channel).sign(request).await }
        };
        let answer = self.client().connections.call(Kind::read("sign"), call).await;
        let text = answer.map_err(|error| self.judge_refusal(error))?.signature;
        self.check()?;
        if text.is_empty() {
            return Err(LockError::Unsigned { name: name.to_owned() });
        }
        self.signatures().keep(name, Signed { text: text.clone(), asked_ms });
        Ok(text)
    }
}
