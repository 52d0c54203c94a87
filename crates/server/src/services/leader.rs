//! Streams that want to be cut off when there is no leader.
//!
//! A client that sends `hasleader: true` would rather lose its stream and try another member than
//! wait in silence on one that is cut off from the cluster. An election is no reason to drop
//! thousands of streams, so a stream ends only after three election timeouts without a leader. One
//! task watches for all such streams of a runtime, and only while there are any.

use std::future::pending;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tonic::metadata::MetadataMap;

const HEADER: &str = "hasleader";
/// So many election timeouts without a leader end a stream.
const PATIENCE: u32 = 3;

/// Does this member know of a leader?
pub type HasLeader = Arc<dyn Fn() -> bool + Send + Sync>;

/// Did the caller ask to be refused when there is no leader?
pub fn is_required(headers: &http::HeaderMap) -> bool {
    headers.get(HEADER).is_some_and(|value| value.as_bytes() == b"true")
}

pub struct LeaderMonitor {
    has_leader: HasLeader,
    election_timeout: Duration,
    /// True while there has been no leader for too long. Alive as long as a stream waits for it.
    lost: Mutex<Weak<watch::Sender<bool>>>,
}

impl LeaderMonitor {
    pub fn new(has_leader: HasLeader, election_timeout: Duration) -> LeaderMonitor {
        LeaderMonitor { has_leader, election_timeout, lost: Mutex::default() }
    }

    /// For a stream with this metadata: what tells it to end.
    pub fn follow(&self, metadata: &MetadataMap) -> LeaderLoss {
        LeaderLoss(is_required(metadata.as_ref()).then(|| {
            let sender = self.sender();
            let receiver = sender.subscribe();
            (sender, receiver)
        }))
    }

    fn sender(&self) -> Arc<watch::Sender<bool>> {
        let mut lost = self.lost.lock().expect("no panic while the monitor is locked");
        if let Some(sender) = lost.upgrade() {
            return sender;
        }
        let sender = Arc::new(watch::Sender::new(false));
        *lost = Arc::downgrade(&sender);
        tokio::spawn(run(self.has_leader.clone(), self.election_timeout, Arc::downgrade(&sender)));
        sender
    }
}

async fn run(has_leader: HasLeader, election_timeout: Duration, lost: Weak<watch::Sender<bool>>) {
    let mut timeouts = 0;
    loop {
        tokio::time::sleep(election_timeout).await;
        let Some(sender) = lost.upgrade() else { return };
        timeouts = if has_leader() { 0 } else { timeouts + 1 };
        let is_lost = timeouts >= PATIENCE;
        // Said again at every timeout while it lasts, and never while all is well: nobody is woken for nothing.
        if is_lost || *sender.borrow() {
            sender.send_replace(is_lost);
        }
    }
}

pub struct LeaderLoss(Option<(Arc<watch::Sender<bool>>, watch::Receiver<bool>)>);

impl LeaderLoss {
    /// Returns when the stream should end; never, if its client did not ask for that.
    pub async fn happened(&mut self) {
        let Some((_, receiver)) = &mut self.0 else { return pending().await };
        // What was said before this stream began does not concern it. The sender is held right here,
        // so that waiting cannot fail.
        while receiver.changed().await.is_ok() {
            if *receiver.borrow_and_update() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::time::{Instant, timeout};

    const ELECTION: Duration = Duration::from_secs(1);

    fn monitor() -> (Arc<AtomicBool>, LeaderMonitor) {
        let leader = Arc::new(AtomicBool::new(true));
        let known = leader.clone();
        (leader, LeaderMonitor::new(Arc::new(move || known.load(Ordering::Relaxed)), ELECTION))
    }

    fn demanding() -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(HEADER, "true".parse().expect("ascii"));
        metadata
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_after_three_elections_without_a_leader() {
        let (leader, monitor) = monitor();
        let mut loss = monitor.follow(&demanding());
        assert!(timeout(ELECTION * 10, loss.happened()).await.is_err());
        let lost = Instant::now();
        leader.store(false, Ordering::Relaxed);
        loss.happened().await;
        assert!((ELECTION * 2..=ELECTION * 3).contains(&lost.elapsed()), "{:?}", lost.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_election_ends_no_stream_and_who_did_not_ask_stays() {
        let (leader, monitor) = monitor();
        let mut loss = monitor.follow(&demanding());
        for has_leader in [false, true, false] {
            leader.store(has_leader, Ordering::Relaxed);
            assert!(timeout(ELECTION * 2, loss.happened()).await.is_err());
        }
        let mut indifferent = monitor.follow(&MetadataMap::new());
        assert!(timeout(ELECTION * 100, indifferent.happened()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_comes_when_the_leader_is_back_stays() {
        let (leader, monitor) = monitor();
        let mut before = monitor.follow(&demanding());
        leader.store(false, Ordering::Relaxed);
        before.happened().await;
        leader.store(true, Ordering::Relaxed);
        let mut after = monitor.follow(&demanding());
        assert!(timeout(ELECTION * 10, after.happened()).await.is_err());
        leader.store(false, Ordering::Relaxed);
        after.happened().await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_watches_when_no_stream_does() {
        let (_, monitor) = monitor();
        let loss = monitor.follow(&demanding());
        drop(loss);
        tokio::time::sleep(ELECTION * 2).await;
        assert!(monitor.lost.lock().expect("not poisoned").upgrade().is_none());
        // And again, when one comes.
        let mut loss = monitor.follow(&demanding());
        assert!(timeout(ELECTION * 10, loss.happened()).await.is_err());
    }
}
