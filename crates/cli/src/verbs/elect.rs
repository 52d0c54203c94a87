//! `tenure elect`: stands in an election and leads until it is let go, or follows who leads.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_client::{Client, KeyValue};

use super::asking::{parse_name, parse_ttl};
use super::holding::{FAREWELL, LOST, LetGo};
use crate::bytes_text::{printable, to_json};
use crate::output::{Format, Record};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure elect scheduler node-1         waits to be elected, leads until Ctrl-C or Ctrl-D
  tenure elect --observe scheduler      every leader from now on";

/// Stand in an election, or follow it
///
/// Elections are etcd's: its clients and Tenure's stand in the same one. Ends with 122 if the
/// leadership may have been lost.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Elect {
    /// The election's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// What the leader is known by
    #[arg(value_name = "VALUE", required_unless_present = "observe", conflicts_with = "observe")]
    value: Option<String>,
    /// Show every leader from now on
    #[arg(long)]
    observe: bool,
    /// How long the server keeps the leadership if it hears nothing from here
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ttl, conflicts_with = "observe")]
    ttl: Duration,
}

impl Elect {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        if self.observe {
            return self.observe(&client, format).await;
        }
        let code = self.lead(&client, format).await;
        let _ = tokio::time::timeout(FAREWELL, client.settled()).await;
        code
    }

    async fn observe(&self, client: &Client, format: Format) -> anyhow::Result<ExitCode> {
        let mut observer = client.observe(self.name.clone());
        loop {
            leader(&observer.next().await?).print(format)?;
        }
    }

    async fn lead(&self, client: &Client, format: Format) -> anyhow::Result<ExitCode> {
        let mut let_go = LetGo::listen()?;
        let session = client.session().ttl(self.ttl).open().await?;
        let value = self.value.clone().unwrap_or_default();
        let candidacy = tokio::select! {
            candidacy = client.campaign(self.name.clone(), session.lease(), value.clone()) => candidacy?,
            code = let_go.signalled() => return Ok(ExitCode::from(code)),
            cause = session.lost() => anyhow::bail!("the candidacy for {} is void: {cause}", self.name),
        };
        let json = json!({
            "election": self.name,
            "value": value,
            "token": candidacy.token(),
            "lease": format!("{:x}", session.lease()),
        });
        Record { sentence: format!("elected, token {}", candidacy.token()), json }.print(format)?;
        tokio::select! {
            () = let_go.wait() => {}
            cause = session.lost() => {
                crate::report(&anyhow::anyhow!("the leadership of {} is lost: {cause}", self.name));
                return Ok(ExitCode::from(LOST));
            }
        }
        client.resign(&candidacy).await?;
        session.close().await?;
        Ok(ExitCode::SUCCESS)
    }
}

fn leader(pair: &KeyValue) -> Record {
    let json = json!({
        "value": to_json(&pair.value),
        "token": pair.create_revision,
        "lease": format!("{:x}", pair.lease),
        "revision": pair.mod_revision,
    });
    Record { sentence: printable(&pair.value), json }
}
