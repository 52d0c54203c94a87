//! What is counted of the traffic between members.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics::{counter, gauge};

/// All peers together: which one lags, the leader's status tells.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    /// Streams to others that were welcome.
    connected: AtomicI64,
    pub(crate) messages_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    /// Did not fit into a peer's queue, or found nobody there.
    pub(crate) messages_dropped: AtomicU64,
    pub(crate) messages_received: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) snapshots_sent: AtomicU64,
    pub(crate) snapshots_received: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl PeerCounters {
    pub(crate) fn connect(self: &Arc<PeerCounters>) -> Connected {
        self.connected.fetch_add(1, Relaxed);
        Connected(self.clone())
    }
}

/// One stream that is open.
pub(crate) struct Connected(Arc<PeerCounters>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Relaxed);
    }
}

/// For `/metrics`.
#[derive(Debug)]
pub(crate) struct PeerMetrics(pub(crate) Arc<PeerCounters>);

impl Collector for PeerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let counters = &*self.0;
        let help = "Members that this one is connected to";
        gauge(&mut encoder, "peer_connected", help, counters.connected.load(Relaxed))?;
        let counts = [
            ("sent_messages", "Messages sent to other members", &counters.messages_sent),
            ("sent_bytes", "Bytes of these", &counters.bytes_sent),
            ("dropped_messages", "Messages to members that did not take them", &counters.messages_dropped),
            ("received_messages", "Messages from other members", &counters.messages_received),
            ("received_bytes", "Bytes of these", &counters.bytes_received),
            ("sent_snapshots", "Snapshots that arrived at other members", &counters.snapshots_sent),
            ("received_snapshots", "Snapshots from other members", &counters.snapshots_received),
            ("refused_greetings", "Callers that do not belong here", &counters.refused),
        ];
        for (name, help, count) in counts {
            counter(&mut encoder, &format!("peer_{name}"), help, count.load(Relaxed))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    #[test]
    fn what_is_counted_is_told() {
        let counters = Arc::new(PeerCounters::default());
        let mut registry = Registry::with_prefix("tenure");
        registry.register_collector(Box::new(PeerMetrics(counters.clone())));
        let told = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let connected = counters.connect();
        counters.messages_dropped.fetch_add(7, Relaxed);
        let text = told();
        assert!(text.contains("tenure_peer_connected 1\n"), "{text}");
        assert!(text.contains("tenure_peer_dropped_messages_total 7\n"), "{text}");
        drop(connected);
        assert!(told().contains("tenure_peer_connected 0\n"));
    }
}
