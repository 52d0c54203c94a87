//! Logs of a member: text for a terminal, JSON lines for everything else. Always on stderr.
//!
//! Logging never ends a server. A line that cannot be written (its reader is gone, the disk is full) is dropped and
//! counted, and the next line that gets through is preceded by how many are missing.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::color_on_stderr;

/// Starts logging. `filter` is a level, or levels by module as in `info,tenure_server::services=debug`.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let filter = parse(filter).with_context(|| {
        format!("invalid log level {filter:?}: use off, error, warn, info, debug or trace, or levels by module")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines { output: io::stderr() });
    let started = match io::stderr().is_terminal() {
        true => builder.with_ansi(color_on_stderr()).with_target(false).finish().try_init(),
        false => builder.json().flatten_event(true).finish().try_init(),
    };
    started.context("cannot start logging")
}

/// The level that is asked for without a flag: `TENURE_LOG` is the older name of `TENURE_LOG_LEVEL`, which clap reads.
pub fn level_in_environment() -> Option<String> {
    std::env::var("TENURE_LOG").ok().filter(|level| !level.is_empty())
}

/// Lines that could not be written since the last one that was.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Takes whole lines, and never fails. `tracing` would report a failure by `eprintln!`, which panics if stderr is closed.
struct Lines<Output> {
    output: Output,
}

impl<Output: Write> Write for Lines<Output> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        let mut written = Ok(());
        if dropped > 0 {
            written = writeln!(
                self.output,
                "{{\"level\":\"WARN\",\"message\":\"{dropped} log lines could not be written\"}}"
            );
        }
        if written.and_then(|()| self.output.write_all(line)).is_err() {
            DROPPED.fetch_add(dropped + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parse(filter: &str) -> Option<EnvFilter> {
    // The library takes a bare word that is no level for the name of a module, and logs nothing else.
    let is_level = |part: &str| part.contains('=') || (!part.is_empty() && part.parse::<LevelFilter>().is_ok());
    if !filter.split(',').all(|part| is_level(part.trim())) {
        return None;
    }
    EnvFilter::builder().parse(filter).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses as many writes as told, then takes all.
    struct Failing<'a> {
        failures: u32,
        taken: &'a mut Vec<u8>,
    }

    impl Write for Failing<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.failures > 0 {
                self.failures -= 1;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.taken.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_told_later() {
        let mut taken = Vec::new();
        let mut lines = Lines { output: Failing { failures: 2, taken: &mut taken } };
        for line in ["first\n", "second\n", "third\n", "fourth\n"] {
            lines.write_all(line.as_bytes()).unwrap();
        }
        let taken = String::from_utf8(taken).unwrap();
        assert!(taken.contains("2 log lines could not be written\"}\nthird\nfourth\n"), "{taken}");
    }

    #[test]
    fn levels_read_and_misspelled_ones_do_not() {
        for filter in ["info", "WARN", "off", "info,tenure_server=debug", "tenure_server::services=trace"] {
            assert!(parse(filter).is_some(), "{filter}");
        }
        for filter in ["", "inof", "info,tenure_server", "tenure_server=loud"] {
            assert!(parse(filter).is_none(), "{filter}");
        }
    }
}
