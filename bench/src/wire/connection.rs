//! One TCP connection: what comes in goes to the streams, what they have to say goes out.
//!
//! The connection is a task of the runtime. It writes all that was put together since it ran last
//! with one call, and reads as much as there is with another.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::Failure;
use super::frame;
use super::reader::Reader;
use super::stream::{Delivery, STREAM_WINDOW_BYTES};
use super::streams::{CONNECTION_WINDOW_BYTES, DEFAULT_WINDOW_BYTES, Streams};

/// Enough for a few frames of the largest size.
const INPUT_BYTES: usize = 64 << 10;

struct Shared {
    streams: Mutex<Streams>,
    places: Arc<Semaphore>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What those hold who use the connection; it closes with the last of them.
pub struct Link(Arc<Shared>);

impl Drop for Link {
    fn drop(&mut self) {
        let mut streams = self.0.lock();
        streams.is_abandoned = true;
        streams.wake_task();
    }
}

impl Link {
    /// Serves the connection on this runtime.
    pub fn open(socket: TcpStream, authority: &str) -> Link {
        let mut streams = Streams::new(authority);
        streams.out.extend_from_slice(frame::PREFACE);
        let settings = [(frame::SETTING_ENABLE_PUSH, 0), (frame::SETTING_INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES)];
        frame::put_settings(&mut streams.out, &settings);
        frame::put_window_update(&mut streams.out, 0, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES);
        let shared = Arc::new(Shared { places: streams.places(), streams: Mutex::new(streams) });
        tokio::spawn(Task {
            shared: shared.clone(),
            socket,
            reader: Reader::new(),
            input: vec![0; INPUT_BYTES],
            filled: 0,
            output: Vec::new(),
            written: 0,
        });
        Link(shared)
    }

    #[cfg(test)]
    pub fn open_streams(&self) -> usize {
        self.0.lock().open_streams()
    }
}

/// A stream, from its caller's side. To drop it before its end cancels the call.
pub struct Call {
    link: Arc<Link>,
    number: u32,
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.number != 0 {
            self.link.0.lock().forget(self.number);
        }
    }
}

impl Call {
    /// Starts a call as soon as the server takes one more, with its only message if it has just one.
    pub async fn start(
        link: &Arc<Link>,
        path: &'static str,
        delivery: Delivery,
        only: Option<Bytes>,
    ) -> Result<Call, Failure> {
        let place = match link.0.places.try_acquire() {
            Ok(place) => Some(place),
            // Closed or all taken: an error here means that the connection has ended, which the start tells.
            Err(_) => link.0.places.acquire().await.ok(),
        };
        let mut streams = link.0.lock();
        let number = streams.start(path, delivery)?;
        if let Some(place) = place {
            place.forget();
        }
        let sent = only.map_or(Ok(()), |message| streams.send(number, message, true));
        drop(streams);
        let call = Call { link: link.clone(), number };
        sent.map(|()| call)
    }

    pub fn send(&self, bytes: Bytes) -> Result<(), Failure> {
        self.link.0.lock().send(self.number, bytes, false)
    }

    pub async fn message(&self) -> Result<Option<Bytes>, Failure> {
        poll_fn(|context| self.link.0.lock().poll_message(self.number, context)).await
    }

    pub fn is_drained(&self) -> bool {
        self.link.0.lock().is_drained(self.number)
    }

    /// What came, and how many bytes were counted, when the call has ended well.
    pub async fn whole(mut self) -> Result<(BytesMut, u64), Failure> {
        poll_fn(|context| {
            let mut streams = self.link.0.lock();
            let whole = streams.poll_whole(self.number, context);
            if whole.is_ready() {
                streams.forget(self.number);
                drop(streams);
                self.number = 0;
            }
            whole
        })
        .await
    }
}

struct Task {
    shared: Arc<Shared>,
    socket: TcpStream,
    reader: Reader,
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    written: usize,
}

/// However the task ends, with its runtime too, nobody goes on waiting for it.
impl Drop for Task {
    fn drop(&mut self) {
        self.shared.lock().fail(Failure::Transport("the connection is not served any more".to_owned()));
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        let served = task.write(context).and_then(|()| task.read(context));
        if let Err(error) = served {
            task.shared.lock().fail(Failure::Transport(error.to_string()));
            return Poll::Ready(());
        }
        let mut streams = task.shared.lock();
        if streams.has_failed() || streams.is_abandoned {
            // The last words are written if the socket takes them at once.
            if !streams.has_failed() {
                frame::put_go_away(&mut streams.out, frame::NO_ERROR);
            }
            drop(streams);
            let _ = task.write(context);
            return Poll::Ready(());
        }
        if !streams.task.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            streams.task = Some(context.waker().clone());
        }
        // With something left that the socket does not take, it is the socket that wakes the task.
        let has_more = !streams.out.is_empty() && task.output.is_empty();
        streams.is_asleep = !has_more;
        if has_more {
            // The callers that were just woken come first, and what they ask goes out with it.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Task {
    /// Writes all there is, or as much as the socket takes.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
                std::mem::swap(&mut self.output, &mut self.shared.lock().out);
                if self.output.is_empty() {
                    return Ok(());
                }
            }
            match Pin::new(&mut self.socket).poll_write(context, &self.output[self.written..]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => self.written += written,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Reads until nothing is left, or until there is something to be written.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
            let Poll::Ready(read) = Pin::new(&mut self.socket).poll_read(context, &mut buffer) else { return Ok(()) };
            read?;
            let bytes = buffer.filled().len();
            if bytes == 0 {
                return Err(io::Error::other("the server closed the connection"));
            }
            self.filled += bytes;
            let mut streams = self.shared.lock();
            let used = match self.reader.read(&mut streams, &self.input[..self.filled]) {
                Ok(used) => used,
                Err(broken) => {
                    frame::put_go_away(&mut streams.out, broken.code);
                    streams.fail(Failure::Transport(broken.text.to_owned()));
                    return Ok(());
                }
            };
            let has_output = !streams.out.is_empty();
            drop(streams);
            self.input.copy_within(used..self.filled, 0);
            self.filled -= used;
            // While the socket takes nothing, all is read: else both sides could wait for each other.
            if has_output && self.output.is_empty() {
                return Ok(());
            }
        }
    }
}
