//! `tenure elect`: stands in an election and leads until it is let go, or follows who leads.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_client::{CampaignRequest, Client, Leader, LockError, Lost};

use super::asking::{parse_name, parse_ttl, show_waiting, warn_of_short_ttl};
use super::holding::{BUSY, FAREWELL, LOST, LetGo};
use crate::bytes_text::{printable, to_json};
use crate::output::{Format, Record};
use crate::settings::{Global, Session};
use tenure_server::units::parse_duration;

const EXAMPLE: &str = "\
Examples:
  tenure elect scheduler node-1         waits to be elected, leads until Ctrl-C or Ctrl-D
  tenure elect -n scheduler node-1      ends with 75 if somebody else leads
  tenure elect --observe scheduler      every leader from now on";

const EXIT_CODES: &str = "\
Exit codes: 0 resigned, 75 somebody else leads, 122 the leadership may be lost, 128+N signal N ended the wait,
1 anything else.";

/// Stand in an election, or follow it
///
/// etcd's candidates and Tenure's stand in the same elections. An election is a lock: `tenure why NAME` shows who
/// leads, who waits, and who has led.
#[derive(Args)]
#[command(before_help = EXAMPLE, after_help = EXIT_CODES)]
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
    /// Do not wait if somebody leads
    #[arg(short = 'n', long, conflicts_with_all = ["wait", "observe"])]
    no_wait: bool,
    /// Wait at most so long, as in 30s or 5m [default: as long as it takes]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "observe")]
    wait: Option<Duration>,
    /// Who leads, for others to read [default: host and process]
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    holder: Option<String>,
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
            describe(&observer.next().await?).print(format)?;
        }
    }

    async fn lead(&self, client: &Client, format: Format) -> anyhow::Result<ExitCode> {
        let mut let_go = LetGo::listen()?;
        let value = self.value.clone().unwrap_or_default();
        let elected = tokio::select! {
            elected = self.campaign(client, &value).lead() => elected,
            code = let_go.signalled() => return Ok(ExitCode::from(code)),
            () = show_waiting(client, &self.name) => unreachable!("it tells until it is dropped"),
        };
        let leadership = match elected {
            Ok(leadership) => leadership,
            Err(error @ (LockError::Busy { .. } | LockError::Timeout { .. })) => {
                crate::report(&error.into());
                return Ok(ExitCode::from(BUSY));
            }
            Err(error) => return Err(error.into()),
        };
        warn_of_short_ttl(leadership.is_failover_safe(), self.ttl);
        let json = json!({
            "election": self.name,
            "value": value,
            "token": leadership.token(),
            "lease": format!("{:x}", leadership.lease()),
            "holder": leadership.holder(),
        });
        Record { sentence: format!("elected, token {}", leadership.token()), json }.print(format)?;
        tokio::select! {
            () = let_go.wait() => {}
            lost = leadership.cancelled() => return Ok(self.lost(&lost)),
        }
        match leadership.resign().await {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(LockError::Lost(lost)) => Ok(self.lost(&lost)),
            Err(error) => Err(error.into()),
        }
    }

    fn campaign(&self, client: &Client, value: &str) -> CampaignRequest {
        let mut campaign = client.campaign(&self.name, value.to_owned()).ttl(self.ttl);
        if self.no_wait {
            campaign = campaign.try_once();
        }
        if let Some(wait) = self.wait {
            campaign = campaign.wait(wait);
        }
        if let Some(holder) = &self.holder {
            campaign = campaign.holder(holder);
        }
        campaign
    }

    fn lost(&self, lost: &Lost) -> ExitCode {
        crate::report(&anyhow::anyhow!("the leadership of {} is lost: {}", self.name, lost.cause));
        ExitCode::from(LOST)
    }
}

fn describe(leader: &Leader) -> Record {
    let json = json!({
        "value": to_json(&leader.value),
        "token": leader.token,
        "holder": leader.holder,
        "lease": format!("{:x}", leader.lease),
        "revision": leader.revision,
    });
    Record { sentence: printable(&leader.value), json }
}
