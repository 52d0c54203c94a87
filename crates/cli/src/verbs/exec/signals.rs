//! Signals that reach us: while we wait they end the wait, while the command runs they are its.

use std::future::poll_fn;
use std::task::Poll;

use anyhow::Context;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

const NAMES: &[(&str, Signal)] = &[
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("TERM", Signal::TERM),
    ("KILL", Signal::KILL),
];

/// Signals that end a process by default.
pub const ENDING: &[Signal] = &[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// What is the command's business alone.
pub const PASSED_ON: &[Signal] = &[Signal::USR1, Signal::USR2];

pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens from now on, instead of being ended by them.
    pub fn listen(signals: &[Signal]) -> anyhow::Result<Signals> {
        let mut listening = Signals(Vec::new());
        listening.also(signals)?;
        Ok(listening)
    }

    pub fn also(&mut self, signals: &[Signal]) -> anyhow::Result<()> {
        for signal in signals {
            let kind = SignalKind::from_raw(signal.as_raw());
            self.0.push((*signal, unix::signal(kind).context("cannot listen for signals")?));
        }
        Ok(())
    }

    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, arriving) in &mut self.0 {
                if arriving.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// A signal by name, with or without SIG, or by number.
pub fn parse_signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMES.iter().find(|(known, signal)| *known == name || signal.as_raw().to_string() == name);
    let known = || NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    named.map(|(_, signal)| *signal).ok_or_else(|| format!("it is one of {}", known()))
}

/// The exit code that a shell gives to a process that the signal ended.
pub fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_or_numbered() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(text), Ok(Signal::TERM), "{text}");
        }
        assert!(parse_signal("SIGNAL").unwrap_err().contains("HUP, INT"));
        assert_eq!(exit_code(15), 143);
    }
}
