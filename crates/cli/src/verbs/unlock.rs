//! `tenure unlock`: gives a lock back from outside, by its token.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_client::{Client, Error};

use super::asking::parse_name;
use super::lease::parse_lease;
use super::people;
use crate::output::Record;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure unlock deploy/prod --token 12 --lease 70c9a1f3     the holder's own lease
  tenure unlock deploy/prod --token 12 --force              as an operator: recorded as such";

/// Give a lock back by its token
///
/// The token names the tenure that is meant (`tenure locks` shows it), so that no later holder is hit by mistake. The
/// lease shows that it is your own: a command under `tenure exec` has it in TENURE_LEASE. The tenure of another
/// holder is ended only by --force. A lock that is free already stays so, and the exit code is 1. A holder
/// notices that its lock is gone, but not at once: only a storage that checks tokens stops its late writes.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Unlock {
    /// The lock's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// Token of the tenure that ends
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    token: i64,
    /// Lease of the tenure that ends: shows that it is your own
    #[arg(long, env = "TENURE_LEASE", value_name = "ID", value_parser = parse_lease)]
    lease: Option<i64>,
    /// End the tenure of another holder, as an operator
    #[arg(long)]
    force: bool,
}

impl Unlock {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let Unlock { name, token, lease, force } = self;
        if !force {
            check_own(&client, &name, token, lease).await?;
        }
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

/// Refuses to end a tenure unless its lease was given.
async fn check_own(client: &Client, name: &str, token: i64, lease: Option<i64>) -> anyhow::Result<()> {
    let holders = client.describe_lock(name).await?.holders;
    match holders.iter().find(|holder| holder.token == token) {
        Some(holder) if lease != Some(holder.lease.id) => anyhow::bail!(
            "{} holds {name} with token {token}, and nothing shows that this is you: give its lease with --lease. \
             Use --force to end it anyway.",
            people::name(holder),
        ),
        // Unlocking a token that is not held says so.
        _ => Ok(()),
    }
}

/// Names the lock and the token, which the server's answer does not.
fn not_meant(error: Error, name: &str, token: i64) -> anyhow::Error {
    match error {
        Error::NotTheHolder => anyhow::anyhow!(
            "{name} is not held with token {token}: nothing has changed; `tenure why {name}` tells who holds it"
        ),
        error => error.into(),
    }
}
