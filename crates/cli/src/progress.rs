//! A line on the terminal that says how far long work has got. Without a terminal nothing is shown.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

const AT_MOST_EVERY: Duration = Duration::from_millis(100);

/// Writes over itself on stderr; removed when dropped.
pub struct Progress {
    on_terminal: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Instant>,
    width: usize,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { on_terminal: io::stderr().is_terminal(), state: Mutex::default() }
    }

    /// Shows how far the work got, unless that was shown just now.
    pub fn update(&self, text: impl FnOnce() -> String) {
        let last = self.state.lock().unwrap_or_else(PoisonError::into_inner).last;
        if self.on_terminal && last.is_none_or(|last| last.elapsed() >= AT_MOST_EVERY) {
            self.show(&text());
        }
    }

    /// Shows a step of the work.
    pub fn show(&self, text: &str) {
        if !self.on_terminal {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let width = text.chars().count();
        let blanks = " ".repeat(state.width.saturating_sub(width));
        let _ = write!(io::stderr(), "\r{text}{blanks}");
        *state = State { last: Some(Instant::now()), width };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.width > 0 {
            let _ = write!(io::stderr(), "\r{}\r", " ".repeat(state.width));
        }
    }
}

/// A number of bytes as people read it.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
