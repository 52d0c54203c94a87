//! Streams written as plain async code, driven by their reader.
//!
//! The producer runs only when the reader asks for the next item, on the reader's own task: there is
//! no task to spawn and to end, no channel to wake across, and nothing is produced ahead. hyper asks
//! only while the client has room to receive, so a client that stops reading stops the producer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use tokio_stream::Stream;

/// A stream of what `producer` emits, until it returns.
pub fn produced<T, F>(producer: impl FnOnce(Emitter<T>) -> F) -> Produced<T>
where
    F: Future<Output = ()> + Send + 'static,
{
    let tray = Tray::default();
    let producer = producer(Emitter { tray: tray.clone() });
    Produced { tray, producer: Some(Box::pin(producer)) }
}

/// What was produced and not read yet.
struct Tray<T>(Arc<Mutex<Option<T>>>);

impl<T> Tray<T> {
    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().expect("no panic while the tray is locked")
    }
}

impl<T> Clone for Tray<T> {
    fn clone(&self) -> Tray<T> {
        Tray(self.0.clone())
    }
}

impl<T> Default for Tray<T> {
    fn default() -> Tray<T> {
        Tray(Arc::default())
    }
}

pub struct Emitter<T> {
    tray: Tray<T>,
}

impl<T> Emitter<T> {
    /// Hands an item to the reader; returns when the reader comes back for the next one.
    pub async fn emit(&mut self, item: T) {
        *self.tray.lock() = Some(item);
        // No waker: whoever takes the item polls this producer again to get another.
        poll_fn(|_| match self.tray.lock().is_none() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await
    }
}

pub struct Produced<T> {
    tray: Tray<T>,
    /// None = it has returned.
    producer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<T> Stream for Produced<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(item) = self.tray.lock().take() {
            return Poll::Ready(Some(item));
        }
        let Some(producer) = &mut self.producer else { return Poll::Ready(None) };
        let is_done = producer.as_mut().poll(context).is_ready();
        if is_done {
            self.producer = None;
        }
        let item = self.tray.lock().take();
        match item {
            Some(item) => Poll::Ready(Some(item)),
            None if is_done => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio_stream::StreamExt;

    #[tokio::test(flavor = "current_thread")]
    async fn items_come_in_order_and_none_is_produced_ahead() {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = made.clone();
        let mut stream = produced(move |mut emitter| async move {
            for number in 1..=3 {
                counter.store(number, Ordering::Relaxed);
                emitter.emit(number).await;
                tokio::task::yield_now().await;
            }
        });
        for number in 1..=3 {
            assert_eq!(stream.next().await, Some(number));
            assert_eq!(made.load(Ordering::Relaxed), number);
        }
        assert_eq!(stream.next().await, None);
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_emitted_last_is_read_even_if_the_producer_ends() {
        let mut stream = produced(|mut emitter| async move {
            // Ends without waiting for its reader.
            let _ = tokio::time::timeout(std::time::Duration::ZERO, emitter.emit("last")).await;
        });
        assert_eq!(stream.next().await, Some("last"));
        assert_eq!(stream.next().await, None);
    }
}
