//! Which connection of this process speaks for which client about which lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use tenure_machine::LeaseId;
use tenure_replica::StreamId;

use sha2::{Digest, Sha256};

/// A client and a lock: what an acquire is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pair {
    pub client: String,
    pub key: String,
}

impl Pair {
    /// The same at every member and after every restart, so that a client that comes back finds its
    /// entry with one look, and two members that are asked at once grant one lease between them.
    pub fn lease(&self) -> LeaseId {
        let digest = Sha256::new()
            .chain_update("tenure websocket lease")
            .chain_update((self.client.len() as u64).to_be_bytes())
            .chain_update(&self.client)
            .chain_update(&self.key)
            .finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        ((u64::from_be_bytes(first) >> 1) as LeaseId).max(1)
    }
}

/// The claims of all connections. A connection that ends gives up its own.
#[derive(Default)]
pub struct Claims(Mutex<HashMap<Pair, StreamId>>);

impl Claims {
    /// False = another connection has it.
    pub fn claim(&self, pair: &Pair, stream: StreamId) -> bool {
        *self.lock().entry(pair.clone()).or_insert(stream) == stream
    }

    pub fn give_up(&self, pair: &Pair, stream: StreamId) {
        let mut claims = self.lock();
        if claims.get(pair) == Some(&stream) {
            claims.remove(pair);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pair, StreamId>> {
        self.0.lock().expect("no panic while the claims are locked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(client: &str, key: &str) -> Pair {
        Pair { client: client.to_owned(), key: key.to_owned() }
    }

    #[test]
    fn a_pair_has_one_speaker_at_a_time() {
        let claims = Claims::default();
        assert!(claims.claim(&pair("ada", "jobs"), 1));
        assert!(claims.claim(&pair("ada", "jobs"), 1));
        assert!(!claims.claim(&pair("ada", "jobs"), 2));
        assert!(claims.claim(&pair("ada", "mail"), 2));
        claims.give_up(&pair("ada", "jobs"), 2);
        assert!(!claims.claim(&pair("ada", "jobs"), 2), "only one's own claim can be given up");
        claims.give_up(&pair("ada", "jobs"), 1);
        assert!(claims.claim(&pair("ada", "jobs"), 2));
    }

    #[test]
    fn leases_differ_where_pairs_do() {
        assert_eq!(pair("ada", "jobs").lease(), pair("ada", "jobs").lease());
        assert_ne!(pair("ada", "jobs").lease(), pair("adaj", "obs").lease());
        assert!(pair("", "").lease() > 0);
    }
}
