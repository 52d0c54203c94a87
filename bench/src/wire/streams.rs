//! The streams of one connection: who waits for what, and how much each side may still send.
//!
//! Callers put frames into [`Streams::out`] and wake the task of the connection, which runs after
//! the callers that were ready and writes what all of them have put there at once. What it reads
//! goes to the streams, and each caller is woken when there is something for it: one of a unary
//! call only at the end.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::Semaphore;

use super::frame::{self, Broken};
use super::hpack::Encoder;
use super::stream::{Delivery, NumberHasher, Stream, Window, joined};
use super::{Failure, cut_off, has_message, take_message};

pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
pub const DEFAULT_WINDOW_BYTES: u32 = 65_535;
const MOST_WINDOW_BYTES: i64 = (1 << 31) - 1;
const MOST_STREAM_NUMBER: u32 = (1 << 31) - 1;
/// As good as no limit.
const MOST_STREAMS: usize = 1 << 30;

pub struct Streams {
    /// Frames that the task has yet to write.
    pub out: Vec<u8>,
    /// The task, and whether it has to be woken to see what is put there.
    pub task: Option<Waker>,
    pub is_asleep: bool,
    /// Nobody is left who could make a call.
    pub is_abandoned: bool,
    pub encoder: Encoder,
    open: HashMap<u32, Stream, BuildHasherDefault<NumberHasher>>,
    next: u32,
    window: Window,
    send_window: i64,
    first_send_window: i64,
    pub most_payload: usize,
    /// Streams with something unsent.
    blocked: Vec<u32>,
    /// Room for streams that the server would take; none before it has said how many those are.
    places: Arc<Semaphore>,
    most_streams: usize,
    /// How many places are taken that the server does not give any more.
    overdrawn: usize,
    /// No call can start any more.
    closing: Option<Failure>,
    /// Nothing can come any more.
    failure: Option<Failure>,
}

impl Streams {
    pub fn new(authority: &str) -> Streams {
        Streams {
            out: Vec::new(),
            task: None,
            is_asleep: false,
            is_abandoned: false,
            encoder: Encoder::new(authority),
            open: HashMap::default(),
            next: 1,
            window: Window::new(CONNECTION_WINDOW_BYTES),
            send_window: i64::from(DEFAULT_WINDOW_BYTES),
            first_send_window: i64::from(DEFAULT_WINDOW_BYTES),
            most_payload: frame::DEFAULT_PAYLOAD_BYTES,
            blocked: Vec::new(),
            places: Arc::new(Semaphore::new(0)),
            most_streams: 0,
            overdrawn: 0,
            closing: None,
            failure: None,
        }
    }

    pub fn places(&self) -> Arc<Semaphore> {
        self.places.clone()
    }

    pub fn wake_task(&mut self) {
        if std::mem::take(&mut self.is_asleep)
            && let Some(task) = &self.task
        {
            task.wake_by_ref();
        }
    }

    // What callers do.

    /// Starts a call. The caller has a place.
    pub fn start(&mut self, path: &'static str, delivery: Delivery) -> Result<u32, Failure> {
        if let Some(closing) = &self.closing {
            return Err(closing.clone());
        }
        if self.next > MOST_STREAM_NUMBER {
            return Err(Failure::Transport("the connection has had all the streams it can have".to_owned()));
        }
        let number = self.next;
        self.next += 2;
        let head = self.out.len();
        frame::put_head(&mut self.out, 0, frame::HEADERS, frame::END_HEADERS, number);
        self.encoder.encode(path, &mut self.out);
        // The length was not known before. It is far below what any server takes.
        let length = (self.out.len() - head - frame::HEAD_BYTES) as u16;
        self.out[head + 1..head + 3].copy_from_slice(&length.to_be_bytes());
        self.open.insert(number, Stream::new(delivery, self.first_send_window));
        self.wake_task();
        Ok(number)
    }

    /// Sends the bytes, now or when the server takes them.
    pub fn send(&mut self, number: u32, bytes: Bytes, ends: bool) -> Result<(), Failure> {
        let closed = || Failure::Transport("the stream is closed".to_owned());
        let stream = self.open.get_mut(&number).ok_or_else(closed)?;
        match &stream.end {
            Some(Err(failure)) => return Err(failure.clone()),
            _ if stream.has_sent_end => return Err(closed()),
            _ => {}
        }
        stream.unsent = match stream.unsent.is_empty() {
            true => bytes,
            false => joined(std::mem::take(&mut stream.unsent), &bytes),
        };
        stream.ends = ends;
        self.pump(number);
        self.wake_task();
        Ok(())
    }

    /// The next message of a stream; None at its good end.
    pub fn poll_message(&mut self, number: u32, context: &Context<'_>) -> Poll<Result<Option<Bytes>, Failure>> {
        let Some(stream) = self.open.get_mut(&number) else { return Poll::Ready(Ok(None)) };
        let unseen = std::mem::take(&mut stream.unseen);
        if unseen > 0 {
            self.window.give_back(unseen, 0, &mut self.out);
            if !stream.has_received_end {
                stream.window.give_back(unseen, number, &mut self.out);
            }
        }
        let next = match take_message(&mut stream.received) {
            Ok(None) => match &stream.end {
                Some(Ok(())) if !stream.received.is_empty() => Poll::Ready(Err(cut_off())),
                Some(end) => Poll::Ready(end.clone().map(|()| None)),
                None => {
                    stream.sleep(context);
                    Poll::Pending
                }
            },
            message => Poll::Ready(message),
        };
        if !self.out.is_empty() {
            self.wake_task();
        }
        next
    }

    /// Whether the next message has yet to come.
    pub fn is_drained(&self, number: u32) -> bool {
        !self.open.get(&number).is_some_and(|stream| has_message(&stream.received))
    }

    /// All that came, and how many bytes were counted, once the call has ended well.
    pub fn poll_whole(&mut self, number: u32, context: &Context<'_>) -> Poll<Result<(BytesMut, u64), Failure>> {
        let Some(stream) = self.open.get_mut(&number) else {
            return Poll::Ready(Err(Failure::Transport("the stream is closed".to_owned())));
        };
        match stream.end.take() {
            Some(Ok(())) => Poll::Ready(Ok((std::mem::take(&mut stream.received), stream.counted))),
            Some(Err(failure)) => Poll::Ready(Err(failure)),
            None => {
                stream.sleep(context);
                Poll::Pending
            }
        }
    }

    /// The caller is not interested any more.
    pub fn forget(&mut self, number: u32) {
        let Some(mut stream) = self.open.remove(&number) else { return };
        self.window.give_back(stream.unseen, 0, &mut self.out);
        if stream.is_blocked {
            self.blocked.retain(|blocked| *blocked != number);
        }
        if !stream.is_closed() && self.failure.is_none() {
            frame::put_reset(&mut self.out, number, frame::CANCEL);
        }
        if std::mem::take(&mut stream.holds_place) {
            self.free_place();
        }
        if !self.out.is_empty() {
            self.wake_task();
        }
    }

    /// Sends of a stream what both windows allow.
    fn pump(&mut self, number: u32) {
        let Some(stream) = self.open.get_mut(&number) else { return };
        while !stream.has_sent_end && (stream.ends || !stream.unsent.is_empty()) {
            let allowed = stream.send_window.min(self.send_window).clamp(0, self.most_payload as i64) as usize;
            let length = stream.unsent.len().min(allowed);
            let is_last = length == stream.unsent.len();
            if length == 0 && !is_last {
                break;
            }
            let flags = if is_last && stream.ends { frame::END_STREAM } else { 0 };
            frame::put_head(&mut self.out, length, frame::DATA, flags, number);
            self.out.extend_from_slice(&stream.unsent[..length]);
            stream.unsent.advance(length);
            stream.send_window -= length as i64;
            self.send_window -= length as i64;
            stream.has_sent_end = is_last && stream.ends;
        }
        if !stream.unsent.is_empty() && !std::mem::replace(&mut stream.is_blocked, true) {
            self.blocked.push(number);
        }
        self.close(number);
    }

    /// Sends of all streams what the windows allow.
    fn pump_all(&mut self) {
        for number in std::mem::take(&mut self.blocked) {
            if let Some(stream) = self.open.get_mut(&number) {
                stream.is_blocked = false;
                self.pump(number);
            }
        }
    }

    /// Gives the place of a stream back that has ended in both directions.
    fn close(&mut self, number: u32) {
        if let Some(stream) = self.open.get_mut(&number)
            && stream.is_closed()
            && std::mem::take(&mut stream.holds_place)
        {
            self.free_place();
        }
    }

    fn free_place(&mut self) {
        match self.overdrawn {
            0 => self.places.add_permits(1),
            _ => self.overdrawn -= 1,
        }
    }

    // What the server says.

    /// A stream that is not there any more, or has ended, is none; one that never was breaks the rules.
    pub fn stream(&mut self, number: u32) -> Result<Option<&mut Stream>, Broken> {
        if number.is_multiple_of(2) || number >= self.next {
            return Err(frame::protocol("a frame is for a stream that was never opened"));
        }
        Ok(self.open.get_mut(&number).filter(|stream| !stream.has_received_end))
    }

    /// Takes what a frame of data carries. What it is padded with counts too.
    pub fn data(&mut self, number: u32, payload_bytes: usize, content: &[u8]) -> Result<(), Broken> {
        self.window.take(payload_bytes)?;
        self.stream(number)?;
        let Some(stream) = self.open.get_mut(&number).filter(|stream| !stream.has_received_end) else {
            self.window.give_back(payload_bytes, 0, &mut self.out);
            return Ok(());
        };
        stream.window.take(payload_bytes)?;
        let mut seen = payload_bytes;
        match stream.delivery {
            Delivery::Pieces => {
                seen -= content.len();
                stream.unseen += content.len();
                stream.received.extend_from_slice(content);
                stream.wake();
            }
            Delivery::Whole => stream.received.extend_from_slice(content),
            Delivery::Count => stream.counted += content.len() as u64,
        }
        self.window.give_back(seen, 0, &mut self.out);
        stream.window.give_back(seen, number, &mut self.out);
        Ok(())
    }

    /// The server sends no more on a stream.
    pub fn received_end(&mut self, number: u32) {
        if let Some(stream) = self.open.get_mut(&number) {
            stream.has_received_end = true;
            // Whoever waits for more would wait forever.
            stream.finish(Err(Failure::Transport("the answer has no status".to_owned())));
        }
        self.close(number);
    }

    /// The stream is over in both directions.
    pub fn reset(&mut self, number: u32, failure: Failure) {
        if let Some(stream) = self.open.get_mut(&number) {
            (stream.has_sent_end, stream.has_received_end) = (true, true);
            stream.unsent.clear();
            stream.finish(Err(failure));
        }
        self.close(number);
    }

    /// What the server sends on a stream makes no sense: it is over, the others are not.
    pub fn refuse(&mut self, number: u32, text: &str) {
        frame::put_reset(&mut self.out, number, frame::PROTOCOL_ERROR);
        self.reset(number, Failure::Transport(text.to_owned()));
    }

    pub fn set_most_streams(&mut self, most: u32) {
        let most = (most as usize).min(MOST_STREAMS);
        if most > self.most_streams {
            let more = most - self.most_streams;
            let paid = more.min(self.overdrawn);
            self.overdrawn -= paid;
            self.places.add_permits(more - paid);
        } else {
            let fewer = self.most_streams - most;
            self.overdrawn += fewer - self.places.forget_permits(fewer);
        }
        self.most_streams = most;
    }

    pub fn set_first_send_window(&mut self, bytes: u32) -> Result<(), Broken> {
        let too_large = Broken { code: frame::FLOW_CONTROL_ERROR, text: "a window is larger than any may be" };
        let change = i64::from(bytes) - self.first_send_window;
        self.first_send_window = i64::from(bytes);
        for stream in self.open.values_mut() {
            stream.send_window += change;
        }
        let most = self.open.values().map(|stream| stream.send_window).max().unwrap_or_default();
        if most.max(self.first_send_window) > MOST_WINDOW_BYTES {
            return Err(too_large);
        }
        self.pump_all();
        Ok(())
    }

    pub fn widen(&mut self, number: u32, bytes: u32) -> Result<(), Broken> {
        if bytes == 0 {
            return Err(frame::protocol("a window is made larger by nothing"));
        }
        let window = match number {
            0 => &mut self.send_window,
            _ => {
                self.stream(number)?;
                // Also of a stream on which the server says no more: it may still listen.
                let Some(stream) = self.open.get_mut(&number) else { return Ok(()) };
                &mut stream.send_window
            }
        };
        *window += i64::from(bytes);
        if *window > MOST_WINDOW_BYTES {
            return Err(Broken { code: frame::FLOW_CONTROL_ERROR, text: "a window is larger than any may be" });
        }
        match number {
            0 => self.pump_all(),
            _ => self.pump(number),
        }
        Ok(())
    }

    /// No call starts any more, and those behind the last one that the server will answer end.
    pub fn go_away(&mut self, last: u32, failure: Failure) {
        self.closing.get_or_insert(failure.clone());
        self.places.close();
        let unheard: Vec<u32> = self.open.keys().copied().filter(|number| *number > last).collect();
        for number in unheard {
            self.reset(number, failure.clone());
        }
    }

    /// The connection is over.
    pub fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            // If the server has said why it goes, that is the reason, and not that it went.
            let failure = self.closing.clone().unwrap_or(failure);
            self.go_away(0, failure.clone());
            self.failure = Some(failure);
        }
    }

    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    #[cfg(test)]
    pub fn open_streams(&self) -> usize {
        self.open.len()
    }
}
