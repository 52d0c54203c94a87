//! `tenure elect`: stands in an election and leads until it is let go, or follows who leads.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_client::{CampaignRequest, Client, Leader, LockError, Lost};

use super::asking::{default_holder, parse_name, parse_ttl, show_waiting, warn_of_short_ttl, within};
use super::holding::{BUSY, LOST, LetGo, settle};
use crate::bytes_text::{printable, to_json};
use crate::output::{Format, Record};
use crate::settings::{Global, Session};
use tenure_server::units::parse_duration;

const EXAMPLE: &str = "\
Examples:
  tenure elect scheduler node-1         waits to be elected, leads until Ctrl-C or Ctrl-D
  tenure elect scheduler node-1 & … kill $!       in a script: leads until it is signalled
  tenure elect -n scheduler node-1      ends with 75 if another candidate leads
  tenure elect --observe scheduler      every leader from now on";

const EXIT_CODES: &str = "\
Exit codes: 0 resigned, 75 another candidate leads, 122 the leadership may be lost, 128+N signal N ended the wait,
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
    /// Do not wait if another candidate leads
    #[arg(short = 'n', long, conflicts_with_all = ["wait", "observe"])]
    no_wait: bool,
    /// Wait at most so long, as in 30s or 5m [default: as long as it takes]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "observe")]
    wait: Option<Duration>,
    /// Who leads, for others to read [default: USER@HOST:PROCESS]
    #[arg(long, env = "TENURE_HOLDER", value_name = "TEXT")]
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
        let mut is_answered = true;
        let code = self.lead(&client, format, &mut is_answered).await;
        settle(&client, is_answered).await;
        code
    }

    async fn observe(&self, client: &Client, format: Format) -> anyhow::Result<ExitCode> {
        let mut observer = client.observe(self.name.clone());
        loop {
            describe(&observer.next().await?).print(format)?;
        }
    }

    async fn lead(&self, client: &Client, format: Format, is_answered: &mut bool) -> anyhow::Result<ExitCode> {
        let mut let_go = LetGo::listen()?;
        let value = self.value.clone().unwrap_or_default();
        let elected = tokio::select! {
            elected = within(self.wait, &self.name, || self.campaign(client, &value).lead()) => elected,
            code = let_go.signalled() => return Ok(ExitCode::from(code)),
            () = show_waiting(client, &self.name, None) => unreachable!("it tells until it is dropped"),
        };
        let leadership = match elected {
            Ok(leadership) => leadership,
            Err(error) if error.is_busy() => {
                *is_answered = !error.is_unanswered();
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
        campaign.holder(self.holder.clone().unwrap_or_else(default_holder))
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
