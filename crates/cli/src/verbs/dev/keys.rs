//! What a person can tell the members: keys on a terminal, else the same as lines.

use std::io::{self, BufRead};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::keyboard::{self, END_OF_INPUT};

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

/// Orders as they come. The end of the input is not one: without a terminal there may be no input at all.
pub fn orders(from_terminal: bool) -> UnboundedReceiver<Order> {
    let (tell, told) = unbounded_channel();
    match from_terminal {
        true => drop(tokio::spawn(read_keys(tell))),
        false => drop(std::thread::spawn(move || {
            let lines = io::stdin().lock().lines().map_while(Result::ok);
            lines.flat_map(|line| Reader::line(&line)).all(|order| tell.send(order).is_ok())
        })),
    }
    told
}

async fn read_keys(tell: UnboundedSender<Order>) {
    let (mut reader, mut keys) = (Reader::default(), keyboard::keys());
    while let Some(key) = keys.recv().await {
        if reader.key(key).is_some_and(|order| tell.send(order).is_err()) {
            return;
        }
    }
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
