//! `tenure unlock`: gives a lock back from outside, by its token.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_client::Error;

use super::asking::parse_name;
use crate::output::Record;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure unlock deploy/prod --token 12
  tenure unlock deploy/prod --token 12 --force    as an operator: recorded as such";

/// Give a lock back by its token
///
/// The token names the tenure that is meant (`tenure locks` shows it), so that nobody else is hit by
/// mistake. A lock that is free already stays so, and the exit code is 1. A holder notices that its
/// lock is gone, but not at once: only a storage that checks tokens stops its late writes.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Unlock {
    /// The lock's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// Of the holder that is meant
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    token: i64,
    /// End somebody else's tenure, as an operator
    #[arg(long)]
    force: bool,
}

impl Unlock {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let Unlock { name, token, force } = self;
        let mut json = json!({ "lock": name, "token": token, "released": true, "forced": force });
        let sentence = match force {
            true => {
                let released =
                    client.force_release(&name, token).await.map_err(|error| not_meant(error, &name, token))?;
                let holder = released.map(|holder| holder.id);
                json["holder"] = holder.as_deref().into();
                let holder = holder.filter(|id| !id.is_empty()).unwrap_or_else(|| "its holder".to_owned());
                format!("took {name} from {holder}")
            }
            false => match client.unlock(&name, token).await.map_err(|error| not_meant(error, &name, token))? {
                true => format!("released {name}"),
                false => anyhow::bail!("{name} is free already: nothing has changed"),
            },
        };
        Record { sentence, json }.print(format)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The server says no more than that it is somebody else.
fn not_meant(error: Error, name: &str, token: i64) -> anyhow::Error {
    match error {
        Error::NotTheHolder => anyhow::anyhow!(
            "{name} is not held with token {token}: nothing has changed; `tenure why {name}` tells who holds it"
        ),
        error => error.into(),
    }
}
