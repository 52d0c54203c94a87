//! Logs of a member: text for a terminal, JSON lines for everything else. Always on stderr.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::color_on_stderr;

/// Starts logging. `filter` is a level, or levels by module as in `info,tenure_server::services=debug`.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let filter = parse(filter)
        .with_context(|| format!("{filter:?} is no log level: it is one of off, error, warn, info, debug, trace"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match io::stderr().is_terminal() {
        true => builder.with_ansi(color_on_stderr()).with_target(false).finish().try_init(),
        false => builder.json().flatten_event(true).finish().try_init(),
    };
    started.context("cannot start logging")
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
