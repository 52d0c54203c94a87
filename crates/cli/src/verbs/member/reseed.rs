//! `tenure member reseed`: the leader's state for a member whose own differs.

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::json;
use tenure_client::{Client, Error, Member as Listed};

use super::{name_of, pick};
use crate::output::{Format, Record};

/// Replace a member's state with the leader's
///
/// For a member that the alarm CORRUPT names: its state differs from that of the others, so it serves nothing. Its log,
/// its vote and its identity stay. The alarm is cleared when the states have been compared again.
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member reseed n3")]
pub struct Reseed {
    #[arg(value_name = "NAME|ID")]
    member: String,
}

impl Reseed {
    pub async fn run(self, client: &Client, format: Format) -> anyhow::Result<()> {
        let members: Vec<Listed> = client.known_members().await?.members;
        let member = pick(&members, &self.member)?;
        let name = name_of(&member);
        if member.client_addresses.is_empty() {
            bail!("{name} has no known client address: it has not started");
        }
        let index = client.at(&member.client_addresses.join(","))?.reseed().await.map_err(|error| match &error {
            Error::Refused { message, .. } if message.contains("this member leads") => {
                anyhow!("{name} leads the cluster, and a leader takes its state from no other member: run `tenure member transfer` first")
            }
            _ => error.into(),
        })?;
        let sentence = format!("{name} has the leader's state, up to log index {index}");
        Ok(Record { sentence, json: json!({ "name": member.name, "applied_index": index }) }.print(format)?)
    }
}
