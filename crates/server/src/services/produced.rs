//! Streams written as plain async code, driven by their reader.
//!
//! The producer runs only when the reader asks for the next item, on the reader's own task: there is
//! no task to spawn and to end, no channel to wake across, and nothing is produced ahead. hyper asks
//! only while the client has room to receive, so a client that stops reading stops the producer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio_stream::Stream;

/// A stream of what `producer` emits, until it returns.
pub fn produced<T, F>(producer: impl FnOnce(Emitter<T>) -> F) -> Produced<T>
where
    F: Future<Output = ()> + Send + 'static,
{
    let slot = Arc::new(Mutex::new(None));
    let producer = producer(Emitter { slot: slot.clone() });
    Produced { slot, producer: Some(Box::pin(producer)) }
}

pub struct Emitter<T> {
    slot: Arc<Mutex<Option<T>>>,
}

impl<T> Emitter<T> {
    /// Hands an item to the reader; returns when the reader comes back for the next one.
    pub async fn emit(&mut self, item: T) {
        *self.slot.lock().expect("no panic while the slot is locked") = Some(item);
        // No waker: whoever takes the item polls this producer again to get another.
        poll_fn(|_| match self.slot.lock().expect("no panic while the slot is locked").is_some() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await
    }
}

pub struct Produced<T> {
    slot: Arc<Mutex<Option<T>>>,
    /// None = it has returned.
    producer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<T> Produced<T> {
    fn take(&self) -> Option<T> {
        self.slot.lock().expect("no panic while the slot is locked").take()
    }
}

impl<T> Stream for Produced<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let done = match &mut self.producer {
            None => true,
            Some(producer) => producer.as_mut().poll(context).is_ready(),
        };
        if done {
            self.producer = None;
        }
        match self.take() {
            Some(item) => Poll::Ready(Some(item)),
            None if done => Poll::Ready(None),
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
