//! `--watch`: a listing that is shown again whenever it has changed.
//!
//! On a terminal it is redrawn in place, as often as asked for, until `q` is pressed; into a pipe or file it is
//! written again only when it differs, so that nothing repeats.

use std::future::Future;
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::keyboard::{self, END_OF_INPUT, Keyboard};
use crate::output::{self, Format, Listing, note};
use crate::verbs::signals::{self, Signals};
use tenure_server::units::parse_duration;

const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J\x1b[3J";

#[derive(Debug, Clone, Args)]
pub struct Follow {
    /// Show it again and again, every second or as often as given; q ends it
    #[arg(long, value_name = "EVERY", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = parse_duration)]
    watch: Option<Duration>,
}

impl Follow {
    /// Shows the listing once, or until it is ended. Failures while following are told and outlived.
    pub async fn show<Listed>(&self, format: Format, mut list: impl FnMut() -> Listed) -> anyhow::Result<()>
    where
        Listed: Future<Output = anyhow::Result<Listing>>,
    {
        let Some(every) = self.watch else { return Ok(list().await?.print(format)?) };
        let redraw = io::stdout().is_terminal() && !format.is_json();
        let mut end = if redraw { End::listen()? } else { None };
        tokio::select! {
            followed = follow(every, redraw, format, list) => followed,
            () = End::come(&mut end) => Ok(()),
        }
    }
}

async fn follow<Listed>(
    every: Duration,
    redraw: bool,
    format: Format,
    mut list: impl FnMut() -> Listed,
) -> anyhow::Result<()>
where
    Listed: Future<Output = anyhow::Result<Listing>>,
{
    let (mut shown, mut failure) = (String::new(), String::new());
    let mut listing = Some(list().await?);
    loop {
        if let Some(text) = listing.take().map(|listing: Listing| listing.render(format))
            && text != shown
        {
            output::print(&if redraw { format!("{CLEAR_SCREEN}{text}") } else { text.clone() })?;
            shown = text;
        }
        tokio::time::sleep(every).await;
        match list().await {
            Ok(next) => {
                listing = Some(next);
                failure.clear();
            }
            Err(error) => {
                let text = format!("{error:#}");
                if text != failure {
                    note(&text);
                    failure = text;
                }
            }
        }
    }
}

/// The end of a listing on a terminal: a key, or a signal, after which the terminal has to be as it was.
struct End {
    keyboard: Keyboard,
    keys: UnboundedReceiver<u8>,
    signals: Signals,
}

impl End {
    fn listen() -> anyhow::Result<Option<End>> {
        let Some(keyboard) = Keyboard::take() else { return Ok(None) };
        let mut signals = Signals::listen(signals::ENDING)?;
        signals.also(&[Signal::CONT])?;
        Ok(Some(End { keyboard, keys: keyboard::keys(), signals }))
    }

    async fn come(end: &mut Option<End>) {
        let Some(End { keyboard, keys, signals }) = end else { return std::future::pending().await };
        loop {
            tokio::select! {
                key = keys.recv() => match key {
                    Some(b'q' | END_OF_INPUT) => return,
                    Some(_) => {}
                    None => return std::future::pending().await,
                },
                signal = signals.next() => match signal {
                    Signal::CONT => keyboard.single_keys(),
                    signal => {
                        *end = None;
                        std::process::exit(signals::exit_code(signal.as_raw()).into());
                    }
                },
            }
        }
    }
}
