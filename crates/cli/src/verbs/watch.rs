//! `tenure watch`: shows changes as they happen.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tenure_client::{Event, EventKind};

use super::pairs;
use crate::bytes_text::{printable, to_json};
use crate::output::{self, Format, note};
use crate::selection::Selection;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure watch --prefix app/            every change beneath app/, from now on
  tenure watch greeting --revision 1    all that history still has, then what comes
  tenure watch greeting --count 1       wait for one change, then end";

/// Show changes of keys as they happen
///
/// Survives lost connections and goes on at another endpoint, leaving nothing out and repeating
/// nothing. Ends with an error if the history it needs was compacted.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Watch {
    #[command(flatten)]
    selection: Selection,
    /// Begin with the changes of this revision
    #[arg(long, default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(i64).range(0..))]
    revision: i64,
    /// Show also what was there before
    #[arg(long)]
    previous: bool,
    /// Only deletions
    #[arg(long, conflicts_with = "no_deletes")]
    no_puts: bool,
    /// Only puts
    #[arg(long)]
    no_deletes: bool,
    /// End after so many changes
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Watch {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let mut watch = tenure_client::Watch::keys(self.selection.keys())
            .start(self.revision)
            .when_interrupted(|error| note(format_args!("{error}; looking for another connection")));
        if self.previous {
            watch = watch.previous();
        }
        if self.no_puts {
            watch = watch.without_puts();
        }
        if self.no_deletes {
            watch = watch.without_deletes();
        }
        let mut watcher = client.watch(watch).await?;
        note(format_args!("watching from revision {} on; end with Ctrl-C", watcher.next_revision()));
        let mut left = self.count.unwrap_or(u64::MAX);
        loop {
            let mut text = String::new();
            for event in watcher.next().await?.events.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                text.push_str(&render(event, format, self.previous));
                left -= 1;
            }
            output::print(&text)?;
            if left == 0 {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

fn render(event: &Event, format: Format, previous: bool) -> String {
    match format {
        Format::Json => output::pretty(&json(event, previous)),
        Format::Jsonl => format!("{}\n", json(event, previous)),
        Format::Table | Format::Wide => line(event, previous),
    }
}

fn line(event: &Event, previous: bool) -> String {
    let revision = event.pair.mod_revision;
    let key = printable(&event.pair.key);
    let before = match (&event.previous, previous) {
        (Some(pair), true) => format!("  (before: {})", printable(&pair.value)),
        _ => String::new(),
    };
    match event.kind {
        EventKind::Put => format!("{revision}  PUT     {key}  {}{before}\n", printable(&event.pair.value)),
        EventKind::Delete => format!("{revision}  DELETE  {key}{before}\n"),
    }
}

fn json(event: &Event, previous: bool) -> Value {
    let mut json = match event.kind {
        EventKind::Put => {
            json!({ "event": "put", "revision": event.pair.mod_revision, "pair": pairs::json(&event.pair) })
        }
        EventKind::Delete => {
            let key = to_json(&event.pair.key);
            json!({ "event": "delete", "revision": event.pair.mod_revision, "pair": { "key": key } })
        }
    };
    if previous {
        json["previous"] = event.previous.as_ref().map(pairs::json).into();
    }
    json
}
