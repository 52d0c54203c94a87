//! What is asked over sessions. One stream carries all requests of a client, so counting streams says nothing of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::Counters;

/// What carries a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    Grpc,
    WebSocket,
}

/// What a session has done for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    LockGranted,
    LockRefused,
    Unlocked,
    UnlockRefused,
    Renewed,
}

const CARRIERS: [(Carrier, &str); 2] = [(Carrier::Grpc, "grpc"), (Carrier::WebSocket, "websocket")];
const ALL_DONE: [(Done, &str, &str); 5] = [
    (Done::LockGranted, "lock", "granted"),
    (Done::LockRefused, "lock", "refused"),
    (Done::Unlocked, "unlock", "done"),
    (Done::UnlockRefused, "unlock", "refused"),
    (Done::Renewed, "renew", "done"),
];

/// The requests of the sessions of one network runtime.
#[derive(Debug, Default)]
pub(super) struct SessionCounters([[AtomicU64; ALL_DONE.len()]; CARRIERS.len()]);

impl Counters {
    pub fn session(&self, carrier: Carrier, done: Done) {
        self.sessions.0[carrier as usize][done as usize].fetch_add(1, Relaxed);
    }
}

pub(super) fn encode(runtimes: &[Arc<Counters>], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let help = "Requests answered over sessions";
    let mut family = encoder.encode_descriptor("session_requests", help, None, MetricType::Counter)?;
    for (carrier, carrier_name) in CARRIERS {
        for (done, request, outcome) in ALL_DONE {
            let of = |counters: &Arc<Counters>| counters.sessions.0[carrier as usize][done as usize].load(Relaxed);
            let count: u64 = runtimes.iter().map(of).sum();
            let labels = [("carrier", carrier_name), ("request", request), ("outcome", outcome)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
