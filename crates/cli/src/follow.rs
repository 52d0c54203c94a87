//! `--watch`: a listing that is shown again whenever it has changed.
//!
//! On a terminal it is redrawn in place, as often as asked for; into a pipe or file it is written
//! again only when it differs, so that nothing repeats.

use std::future::Future;
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;

use crate::output::{self, Format, Listing, note};
use tenure_server::units::parse_duration;

const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J\x1b[3J";

#[derive(Debug, Clone, Args)]
pub struct Follow {
    /// Show it again and again, every second or as often as given
    #[arg(long, value_name = "EVERY", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = parse_duration)]
    watch: Option<Duration>,
}

impl Follow {
    /// Shows the listing once, or until interrupted. Failures while following are told and outlived.
    pub async fn show<Listed>(&self, format: Format, mut list: impl FnMut() -> Listed) -> anyhow::Result<()>
    where
        Listed: Future<Output = anyhow::Result<Listing>>,
    {
        let listing = list().await?;
        let Some(every) = self.watch else { return Ok(listing.print(format)?) };
        let redraw = io::stdout().is_terminal() && !format.is_json();
        let (mut shown, mut failure) = (String::new(), String::new());
        let mut listing = Some(listing);
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
                        note(format_args!("{text}"));
                        failure = text;
                    }
                }
            }
        }
    }
}
