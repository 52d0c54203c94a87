//! The worked example of a storage that no stale holder can corrupt: a small store over HTTP.
//!
//! A write names its client, its fencing token and its data; it is carried out if the token is not below the highest
//! one seen for its key. With signing keys, it has to be a token that the lock service gave to this client. `store`
//! keeps data and bar as one record and survives a crash at any instruction; `service` speaks HTTP.

mod service;
mod store;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tenure_storage::{Fault, OsDisk};
use tokio::net::TcpListener;

pub use service::{REQUEST_BYTES, Signing, router};
pub use store::{Options, Running, Store, Stored, WriteError};

use crate::{Equal, OpenError};

/// What a store keeps unless told otherwise. It keeps it in memory too, and while it is opened some four times as much.
pub const QUOTA_BYTES: u64 = 256 << 20;
/// How long requests may still take when the store is told to stop.
const DRAIN: Duration = Duration::from_secs(5);

pub struct Config {
    pub listen: SocketAddr,
    pub data_dir: PathBuf,
    pub equal: Equal,
    pub quota_bytes: u64,
    pub signing: Option<Signing>,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the data store had to stop: {0}")]
    Fault(#[from] Fault),
    #[error("the data store had to stop: {0}")]
    Serve(std::io::Error),
}

/// Runs a store until `shutdown` resolves, or until it has to stop by itself. Tells its address when it answers.
pub async fn run(
    config: Config,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let failed = |source| RunError::Listen { address: config.listen, source };
    // Bound before the data are touched, so that a store started twice by mistake does no harm.
    let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let options = Options { equal: config.equal, quota_bytes: config.quota_bytes };
    let (store, mut running) = Store::open(OsDisk::default(), &config.data_dir, options)?;
    if let Some(torn) = &running.torn_tail {
        let (file, offset, bytes) = (torn.file.display(), torn.offset, torn.bytes);
        tracing::warn!(%file, offset, bytes, "cut off an unfinished write at the end of the journal");
    }
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serve = axum::serve(listener, router(store, config.signing)).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let mut serve = tokio::spawn(serve.into_future());
    ready(address);
    let outcome = tokio::select! {
        () = shutdown => Ok(()),
        fault = &mut running.failed => Err(fault.map_or(RunError::Serve(gone()), RunError::Fault)),
        ended = &mut serve => {
            return Err(RunError::Serve(ended.unwrap_or_else(|_| Err(gone())).err().unwrap_or_else(gone)));
        }
    };
    let _ = stop.send(());
    // A store that is gone answers nobody: nothing is worth waiting for.
    let patience = if outcome.is_ok() { DRAIN } else { Duration::ZERO };
    if tokio::time::timeout(patience, &mut serve).await.is_err() {
        tracing::warn!("requests under way are cut off");
        serve.abort();
        let _ = serve.await;
    }
    // Connections that were cut off may hold on to the store for as long as the runtime lives.
    let joined = tokio::task::spawn_blocking(|| running.join());
    let _ = tokio::time::timeout(patience, joined).await;
    outcome
}

fn gone() -> std::io::Error {
    std::io::Error::other("its thread is gone")
}
