//! `tenure member level`: what all members have agreed that commands mean, and how far it may rise.

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tenure_client::{Client, Error, FeatureLevel, Member as Listed};

use super::name_of;
use crate::output::{Column, Format, Listing, Record, column, number};

const EXAMPLE: &str = "\
Examples:
  tenure member level
  tenure member level pin 1             the level rises no further until it is released
  tenure member level release";

/// Show the cluster's feature level, hold it, or let it rise
///
/// The leader raises the level when every member supports the next one. From then on earlier releases cannot go on with
/// the data. Hold the level before an upgrade to keep the way back open.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Level {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    Pin(Pin),
    Release(Release),
}

/// Let the level rise no further than N
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member level pin 1")]
struct Pin {
    #[arg(value_name = "N")]
    level: u32,
}

/// Let the level rise as far as all members support
#[derive(Args)]
#[command(before_help = "Example:\n  tenure member level release")]
struct Release {}

const COLUMNS: &[Column] = &[column("NAME"), column("RELEASE"), number("LEVEL"), number("SUPPORTS"), number("PIN")];

impl Level {
    pub async fn run(self, client: &Client, format: Format) -> anyhow::Result<()> {
        match self.action {
            None => show(client, format).await,
            Some(Action::Pin(Pin { level })) => pin(client, Some(level), format).await,
            Some(Action::Release(Release {})) => pin(client, None, format).await,
        }
    }
}

async fn show(client: &Client, format: Format) -> anyhow::Result<()> {
    let members = client.known_members().await?.members;
    let mut told = Vec::new();
    for member in &members {
        let level = match member.client_addresses.is_empty() {
            true => Err("it has not started".to_owned()),
            false => ask(client, member).await,
        };
        told.push((member, level));
    }
    let known = told.iter().filter_map(|(_, level)| level.as_ref().ok());
    let Some(newest) = known.max_by_key(|level| level.level).cloned() else {
        bail!("no member says what it supports: releases before 0.2.0 have no feature level");
    };
    let mut listing = Listing::new("members", COLUMNS).about("level", newest.level.to_string());
    for (member, level) in &told {
        let (cells, json) = row(member, level);
        listing.row(cells, json);
    }
    Ok(listing.print(format)?)
}

async fn ask(client: &Client, member: &Listed) -> Result<FeatureLevel, String> {
    let at = client.at(&member.client_addresses.join(",")).map_err(|error| error.to_string())?;
    at.level().await.map_err(|error| match error {
        Error::Unknown { .. } => "a release before 0.2.0".to_owned(),
        other => other.to_string(),
    })
}

fn row(member: &Listed, level: &Result<FeatureLevel, String>) -> (Vec<String>, serde_json::Value) {
    let name = name_of(member);
    match level {
        Ok(level) => {
            let pin = level.pin.map_or("-".to_owned(), |pin| pin.to_string());
            let cells = vec![name, level.release.clone(), level.level.to_string(), level.highest.to_string(), pin];
            let json = json!({
                "name": member.name, "release": level.release, "level": level.level, "supports": level.highest,
                "pin": level.pin, "is_corrupt": level.is_corrupt,
            });
            (cells, json)
        }
        Err(reason) => {
            let cells = [name.as_str(), reason, "-", "-", "-"].map(str::to_owned).to_vec();
            (cells, json!({ "name": member.name, "error": reason }))
        }
    }
}

async fn pin(client: &Client, level: Option<u32>, format: Format) -> anyhow::Result<()> {
    let told = client.pin_level(level).await.map_err(|error| match &error {
        Error::Refused { message, .. } if message.contains("too low") => {
            anyhow!(
                "the cluster is at feature level 0, where a pin is not known: start members with --max-level instead"
            )
        }
        _ => error.into(),
    })?;
    let sentence = match told.pin {
        Some(pin) => format!("the cluster is at feature level {}, pinned at {pin}", told.level),
        None => format!("the cluster is at feature level {}, not pinned", told.level),
    };
    Ok(Record { sentence, json: json!({ "level": told.level, "pin": told.pin }) }.print(format)?)
}
