//! One stream: what has come on it, what is to go out on it, and how much either side may still send.

use std::hash::Hasher;
use std::task::{Context, Waker};

use bytes::{Bytes, BytesMut};

use super::Failure;
use super::frame::{self, Broken};

pub const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// What becomes of the bytes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The caller takes one message after the other.
    Pieces,
    /// The caller takes all at the end.
    Whole,
    /// They are counted and dropped.
    Count,
}

/// What the server may send, on a stream or the connection.
pub struct Window {
    left: i64,
    /// Used up here, and not yet given back.
    spare: u32,
    half: u32,
}

impl Window {
    pub fn new(bytes: u32) -> Window {
        Window { left: i64::from(bytes), spare: 0, half: bytes / 2 }
    }

    pub fn take(&mut self, bytes: usize) -> Result<(), Broken> {
        self.left -= bytes as i64;
        match self.left >= 0 {
            true => Ok(()),
            false => Err(Broken { code: frame::FLOW_CONTROL_ERROR, text: "more was sent than the window allows" }),
        }
    }

    /// Half a window at a time, so that one small frame gives back room for many.
    pub fn give_back(&mut self, bytes: usize, stream: u32, out: &mut Vec<u8>) {
        self.spare += bytes as u32;
        if self.spare >= self.half {
            frame::put_window_update(out, stream, self.spare);
            self.left += i64::from(std::mem::take(&mut self.spare));
        }
    }
}

pub struct Stream {
    pub delivery: Delivery,
    pub received: BytesMut,
    pub counted: u64,
    /// Of what was received: not yet looked at by the caller, who has the window only then given back.
    pub unseen: usize,
    pub window: Window,
    pub has_head: bool,
    pub end: Option<Result<(), Failure>>,
    pub waker: Option<Waker>,
    /// What may be sent; less than nothing after the server has made all windows smaller.
    pub send_window: i64,
    pub unsent: Bytes,
    /// The stream ends with the last of what is unsent.
    pub ends: bool,
    pub is_blocked: bool,
    pub has_sent_end: bool,
    pub has_received_end: bool,
    pub holds_place: bool,
}

impl Stream {
    pub fn new(delivery: Delivery, send_window: i64) -> Stream {
        Stream {
            delivery,
            received: BytesMut::new(),
            counted: 0,
            unseen: 0,
            window: Window::new(STREAM_WINDOW_BYTES),
            has_head: false,
            end: None,
            waker: None,
            send_window,
            unsent: Bytes::new(),
            ends: false,
            is_blocked: false,
            has_sent_end: false,
            has_received_end: false,
            holds_place: true,
        }
    }

    /// The first outcome counts.
    pub fn finish(&mut self, outcome: Result<(), Failure>) {
        if self.end.is_none() {
            self.end = Some(outcome);
            self.wake();
        }
    }

    pub fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub fn is_closed(&self) -> bool {
        self.has_sent_end && self.has_received_end
    }

    pub fn sleep(&mut self, context: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
    }
}

/// In place from the second time on.
pub fn joined(rest: Bytes, piece: &[u8]) -> Bytes {
    let mut joined = rest.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    joined.extend_from_slice(piece);
    joined.freeze()
}

/// Streams have odd numbers that only grow: their bits need no mixing but a spread to the top ones.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
