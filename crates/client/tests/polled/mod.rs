//! Futures that are dropped where they wait.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

/// Notes that a future wants to be polled.
#[derive(Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Polls a future `polls` times, each time after it was woken, and drops it when it is woken again. Gives its output if
/// it ends before.
pub async fn poll_and_drop<Output>(work: impl Future<Output = Output>, polls: usize) -> Option<Output> {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut work = pin!(work);
    for _ in 0..polls {
        if let Poll::Ready(output) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, woken.0.notified()).await.expect("it is woken");
    }
    None
}
