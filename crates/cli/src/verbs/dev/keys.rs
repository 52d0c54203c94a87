//! What a person can tell the members: keys on a terminal, else the same as lines.

use std::io::{self, BufRead, IsTerminal, Read};
use std::sync::Arc;

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What Ctrl-D is where lines are not put together.
const END_OF_INPUT: u8 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Kill that member, or start it again.
    Toggle(usize),
    /// Stop that member where it stands, or let it go on.
    Pause(usize),
    Status,
    Help,
    Quit,
    Unknown(char),
}

/// Puts keys together to orders.
#[derive(Default)]
struct Reader {
    pausing: bool,
}

impl Reader {
    fn key(&mut self, key: u8) -> Option<Order> {
        let pausing = std::mem::take(&mut self.pausing);
        let order = match key {
            b'1'..=b'9' if pausing => Order::Pause(usize::from(key - b'1')),
            b'1'..=b'9' => Order::Toggle(usize::from(key - b'1')),
            b'p' => {
                self.pausing = true;
                return None;
            }
            b's' => Order::Status,
            b'?' | b'h' => Order::Help,
            b'q' | END_OF_INPUT => Order::Quit,
            b' ' => {
                self.pausing = pausing;
                return None;
            }
            b'\r' | b'\n' => return None,
            other => Order::Unknown(char::from(other)),
        };
        Some(order)
    }

    fn line(line: &str) -> Vec<Order> {
        let mut reader = Reader::default();
        line.trim().bytes().filter_map(|key| reader.key(key)).collect()
    }
}

/// Orders as they come. The end of the input is none: who runs without a terminal may have none at all.
pub fn orders(from_terminal: bool) -> UnboundedReceiver<Order> {
    let (tell, told) = unbounded_channel();
    std::thread::spawn(move || {
        if !from_terminal {
            let lines = io::stdin().lock().lines().map_while(Result::ok);
            return lines.flat_map(|line| Reader::line(&line)).all(|order| tell.send(order).is_ok());
        }
        let mut reader = Reader::default();
        let keys = io::stdin().lock().bytes().map_while(Result::ok);
        keys.filter_map(|key| reader.key(key)).all(|order| tell.send(order).is_ok())
    });
    told
}

/// The terminal with keys that arrive at once and are not shown, until it is dropped or we panic.
pub struct Keyboard {
    before: Arc<Termios>,
}

impl Keyboard {
    /// None if standard input is no terminal, or not ours to read.
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

    /// Once more after having been stopped: the shell has its own idea of the terminal.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_make_orders() {
        let expected = [Order::Toggle(0), Order::Pause(1), Order::Toggle(2), Order::Status, Order::Help, Order::Quit];
        assert_eq!(Reader::line("1p23s?q"), expected);
        assert_eq!(Reader::line(" p 2 "), [Order::Pause(1)]);
        assert_eq!(Reader::line("x0"), [Order::Unknown('x'), Order::Unknown('0')]);
        assert_eq!(Reader::line("p"), [], "a line that says too little says nothing");
    }
}
