//! The terminal as a keyboard: keys arrive at once and are not shown.

use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Ctrl-D, where lines are not put together.
pub const END_OF_INPUT: u8 = 4;
const ESCAPE: u8 = 0x1b;
/// The bytes of one key come together. What comes later than this after an escape is a key of its own.
const TOGETHER: Duration = Duration::from_millis(100);

/// Single-key mode of the terminal. Dropping it, or a panic, restores the previous mode.
pub struct Keyboard {
    before: Arc<Termios>,
}

impl Keyboard {
    /// `None` if standard input is not a terminal, or another process group has it.
    pub fn take() -> Option<Keyboard> {
        let input = io::stdin();
        if !input.is_terminal() || tcgetpgrp(&input).ok()? != getpgrp() {
            return None;
        }
        let keyboard = Keyboard { before: Arc::new(tcgetattr(&input).ok()?) };
        keyboard.single_keys();
        // A panic may end the process without anything being dropped.
        let (before, report) = (keyboard.before.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            restore(&before);
            report(panic);
        }));
        Some(keyboard)
    }

    /// Sets the mode. Called again after a stop, because the shell has set its own meanwhile.
    pub fn single_keys(&self) {
        let mut modes = (*self.before).clone();
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

fn restore(before: &Termios) {
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}

/// Keys of standard input as they are pressed. Those that send an escape sequence (arrows, Delete, F1) are left out.
/// The thread that reads them ends with the process.
pub fn keys() -> UnboundedReceiver<u8> {
    let (tell, told) = unbounded_channel();
    std::thread::spawn(move || {
        let (mut decoder, mut last) = (Decoder::default(), Instant::now());
        for byte in io::stdin().lock().bytes().map_while(Result::ok) {
            let now = Instant::now();
            if now.duration_since(last) > TOGETHER {
                decoder = Decoder::default();
            }
            last = now;
            if decoder.key(byte).is_some_and(|key| tell.send(key).is_err()) {
                return;
            }
        }
    });
    told
}

/// Tells keys from the bytes of escape sequences (ECMA-48).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Decoder {
    #[default]
    Ground,
    /// After an escape.
    Escape,
    /// After `ESC [`: parameters and intermediates up to a final byte. `true` right after the bracket.
    Control(bool),
    /// One more byte belongs to the sequence.
    Last,
}

impl Decoder {
    /// The key that this byte is; `None` if it is part of a longer sequence or of a character beyond ASCII.
    pub fn key(&mut self, byte: u8) -> Option<u8> {
        let (next, key) = match (*self, byte) {
            (_, ESCAPE) => (Decoder::Escape, None),
            (Decoder::Ground, 0x80..) => (Decoder::Ground, None),
            (Decoder::Ground, key) => (Decoder::Ground, Some(key)),
            (Decoder::Escape, b'[') => (Decoder::Control(true), None),
            (Decoder::Escape, b'O' | b'N') => (Decoder::Last, None),
            // Alt with a key.
            (Decoder::Escape, _) => (Decoder::Ground, None),
            // The function keys of the Linux console: `ESC [ [ A`.
            (Decoder::Control(true), b'[') => (Decoder::Last, None),
            (Decoder::Control(_), 0x40..=0x7e) => (Decoder::Ground, None),
            (Decoder::Control(_), _) => (Decoder::Control(false), None),
            (Decoder::Last, _) => (Decoder::Ground, None),
        };
        *self = next;
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &str) -> String {
        let mut decoder = Decoder::default();
        bytes.bytes().filter_map(|byte| decoder.key(byte)).map(char::from).collect()
    }

    #[test]
    fn escape_sequences_are_not_keys() {
        assert_eq!(keys("1p2q"), "1p2q");
        for sequence in
            ["\x1b[3~", "\x1b[A", "\x1bOB", "\x1b[15~", "\x1b[1;5C", "\x1b[[A", "\x1b3", "\x1b[<0;12;3M", "é"]
        {
            assert_eq!(keys(&format!("1{sequence}2")), "12", "{sequence:?}");
        }
        assert_eq!(keys("\x1b\x1b[3~2"), "2", "an escape begins anew");
    }
}
