//! What the verbs that serve have in common: options they refuse, signals they end by, values they check.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use tenure_server::units::{parse_duration, parse_size};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::notify;
use crate::output::Format;

const INTERRUPTED: i32 = 130;

// The options of client verbs mean nothing here: defined so that they are not offered. Of the types that
// they have elsewhere, because a global option is read before its verb is known.
#[derive(Args)]
pub struct ClientOptions {
    #[arg(long = "endpoints", id = "endpoints", hide = true)]
    _endpoints: Option<String>,
    #[arg(long = "output", short = 'o', id = "output", hide = true)]
    _output: Option<Format>,
    #[arg(long = "timeout", id = "timeout", hide = true, value_parser = parse_duration)]
    _timeout: Option<Duration>,
}

/// Options of client verbs that were typed here are a mistake; in the environment they may well be
/// meant for the next command.
pub fn refuse_client_options(verb: &str, instead: &str, matches: &ArgMatches) -> anyhow::Result<()> {
    for option in ["endpoints", "output", "timeout"] {
        if matches.value_source(option) == Some(ValueSource::CommandLine) {
            bail!("--{option} is for client verbs: where {verb} listens is said with {instead}");
        }
    }
    Ok(())
}

pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub fn receive() -> Option<Signals> {
        let signals = || io::Result::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?));
        let (interrupt, terminate) = signals().ok()?;
        Some(Signals { interrupt, terminate })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Resolves with the first SIGINT or SIGTERM; the second one ends the process at once.
pub async fn shutdown(signals: Option<Signals>) {
    let Some(mut signals) = signals else {
        tracing::error!("signals cannot be received: only being killed ends it");
        return std::future::pending().await;
    };
    signals.next().await;
    tracing::info!("stopping; a second signal does not wait for calls under way");
    notify::tell("STOPPING=1");
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(INTERRUPTED);
    });
}

pub fn checked_address(text: &str) -> Result<String, String> {
    let hint = "expected ADDRESS:PORT, for example 127.0.0.1:2379 or [::1]:2379";
    match SocketAddr::from_str(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(impossible_port(text).unwrap_or_else(|| hint.to_owned())),
    }
}

/// Says so if an address ends with a number that is too large for a port.
pub fn impossible_port(address: &str) -> Option<String> {
    let (_, port) = address.rsplit_once(':')?;
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_possible = port.parse::<u16>().is_ok();
    (is_number && !is_possible).then(|| format!("the port {port} is not between 1 and 65535"))
}

pub fn checked_size(text: &str) -> Result<String, String> {
    parse_size(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}
