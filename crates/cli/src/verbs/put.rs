//! `tenure put`: writes a key.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use super::lease::parse_lease;
use super::pairs;
use crate::bytes_text::printable;
use crate::output::{Record, note};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure put greeting hello
  tenure put config < config.json       the value comes from standard input
  tenure put --lease 70c9a1f3 here yes  the key ends with the lease";

/// Write a key
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Put {
    key: OsString,
    /// The value; read from standard input if it is missing or `-`. An empty one is given as ""
    #[arg(allow_hyphen_values = true)]
    value: Option<OsString>,
    /// The lease that the key ends with
    #[arg(long, value_name = "ID", value_parser = parse_lease, conflicts_with = "keep_lease")]
    lease: Option<i64>,
    /// Show what was there before
    #[arg(long)]
    previous: bool,
    /// Change only the lease; the key must exist
    #[arg(long, conflicts_with = "value")]
    keep_value: bool,
    /// Change only the value; the key must exist
    #[arg(long)]
    keep_lease: bool,
}

impl Put {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let value = match &self.value {
            Some(value) if value != "-" => value.clone().into_vec(),
            _ if self.keep_value => Vec::new(),
            Some(_) => read_value(false)?,
            None => match read_value(true)? {
                // `tenure put KEY` in a script whose input is /dev/null would store nothing, unnoticed.
                value if value.is_empty() => bail!(
                    "the value is missing: standard input is empty. `tenure put {} \"\"` stores an empty value",
                    printable(self.key.as_encoded_bytes())
                ),
                value => value,
            },
        };
        let written = client.put(self.request(value)).await?;
        let mut json = json!({ "revision": written.header.revision });
        if self.previous {
            json["previous"] = written.previous.as_ref().map(pairs::json).into();
        }
        if let (Some(previous), false) = (&written.previous, format.is_json()) {
            pairs::listing(std::slice::from_ref(previous)).print(format)?;
        }
        Record { sentence: format!("OK, revision {}", written.header.revision), json }.print(format)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The same within a transaction, where no value can come from elsewhere.
    pub fn complete_request(&self) -> Result<tenure_client::Put, String> {
        match &self.value {
            Some(value) => Ok(self.request(value.clone().into_vec())),
            None if self.keep_value => Ok(self.request(Vec::new())),
            None => Err("the value is missing".to_owned()),
        }
    }

    fn request(&self, value: Vec<u8>) -> tenure_client::Put {
        let mut put = tenure_client::Put::new(self.key.clone().into_vec(), value).lease(self.lease.unwrap_or(0));
        if self.previous {
            put = put.previous();
        }
        if self.keep_value {
            put = put.keep_value();
        }
        if self.keep_lease {
            put = put.keep_lease();
        }
        put
    }
}

fn read_value(unasked: bool) -> anyhow::Result<Vec<u8>> {
    if unasked && io::stdin().is_terminal() {
        note(format_args!("reading the value from the terminal; end it with Ctrl-D"));
    }
    let mut value = Vec::new();
    io::stdin().lock().read_to_end(&mut value).context("cannot read the value from standard input")?;
    Ok(value)
}
