//! How many watches each connection has, for whoever looks at sessions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::ProcessWide;

#[derive(Default)]
pub struct Watching(Mutex<BTreeMap<SocketAddr, u64>>);

/// One watch; counted until it is dropped.
pub struct Watched {
    process_wide: Arc<ProcessWide>,
    address: SocketAddr,
}

impl Watching {
    /// On the connection from there.
    pub fn count(&self, address: &str) -> u64 {
        let address = address.parse().ok();
        address.and_then(|address: SocketAddr| self.lock().get(&address).copied()).unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, u64>> {
        self.0.lock().expect("no panic while the watches are counted")
    }
}

impl Watched {
    pub fn from(address: Option<SocketAddr>, process_wide: &Arc<ProcessWide>) -> Option<Watched> {
        let address = address?;
        *process_wide.watching.lock().entry(address).or_default() += 1;
        Some(Watched { process_wide: process_wide.clone(), address })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watching = self.process_wide.watching.lock();
        if let Some(count) = watching.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                watching.remove(&self.address);
            }
        }
    }
}
