//! `tenure alarm`: what members have raised an alarm about.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use tenure_client::{Alarm as Raised, AlarmKind, Client, Member};

use crate::follow::Follow;
use crate::output::{Column, Format, Listing, Record, column};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure alarm list
  tenure alarm disarm                   once the cause is gone";

/// List and disarm alarms
///
/// NOSPACE: the store is full; only deletes, revokes and unlocks work until keys are deleted and history is compacted,
/// or the quota is raised. CORRUPT: a member's data differs from the others'.
#[derive(Args)]
#[command(before_help = EXAMPLE, subcommand_required = true, arg_required_else_help = true)]
pub struct Alarm {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    Disarm(Disarm),
}

/// List alarms
#[derive(Args)]
#[command(before_help = "Example:\n  tenure alarm list -o json")]
struct List {
    #[command(flatten)]
    follow: Follow,
}

/// End alarms, once their cause is gone
///
/// The alarm comes back if the cause is still there.
#[derive(Args)]
#[command(before_help = "Examples:\n  tenure alarm disarm\n  tenure alarm disarm nospace")]
struct Disarm {
    /// Which alarms [default: all]
    #[arg(value_enum, ignore_case = true)]
    kind: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The store is full
    Nospace,
    /// A member's data differs
    Corrupt,
}

const COLUMNS: &[Column] = &[column("ALARM"), column("MEMBER"), column("ID"), column("WHAT TO DO")];

impl Alarm {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        match self.action {
            Action::List(List { follow }) => follow.show(format, || list(&client)).await?,
            Action::Disarm(Disarm { kind }) => disarm(&client, kind, format).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(client: &Client) -> anyhow::Result<Listing> {
    let alarms = client.alarms().await?;
    let members = members(client).await;
    let mut listing = Listing::new("alarms", COLUMNS);
    for alarm in &alarms {
        let cells = vec![
            name(alarm.kind).to_owned(),
            member_name(alarm, &members),
            format!("{:x}", alarm.member),
            advice(alarm.kind).to_owned(),
        ];
        listing.row(cells, document(alarm, &members));
    }
    Ok(listing)
}

async fn disarm(client: &Client, kind: Option<Kind>, format: Format) -> anyhow::Result<()> {
    let is_meant = |alarm: &Raised| match kind {
        None => true,
        Some(Kind::Nospace) => alarm.kind == AlarmKind::NoSpace,
        Some(Kind::Corrupt) => alarm.kind == AlarmKind::Corrupt,
    };
    let alarms: Vec<Raised> = client.alarms().await?.into_iter().filter(is_meant).collect();
    let members = members(client).await;
    for alarm in &alarms {
        client.disarm(*alarm).await?;
    }
    let words: Vec<String> =
        alarms.iter().map(|alarm| format!("{} of {}", name(alarm.kind), member_name(alarm, &members))).collect();
    let sentence = match words.is_empty() {
        true => "no alarm is raised".to_owned(),
        false => format!("disarmed {}", words.join(", ")),
    };
    let disarmed: Vec<Value> = alarms.iter().map(|alarm| document(alarm, &members)).collect();
    Ok(Record { sentence, json: json!({ "disarmed": disarmed }) }.print(format)?)
}

/// For their names only: an alarm is shown without them, too.
async fn members(client: &Client) -> Vec<Member> {
    client.known_members().await.map_or(Vec::new(), |known| known.members)
}

fn member_name(alarm: &Raised, members: &[Member]) -> String {
    let named = members.iter().find(|member| member.id == alarm.member && !member.name.is_empty());
    named.map_or_else(|| format!("{:x}", alarm.member), |member| member.name.clone())
}

fn document(alarm: &Raised, members: &[Member]) -> Value {
    json!({
        "alarm": name(alarm.kind),
        "member": member_name(alarm, members),
        "id": format!("{:x}", alarm.member),
        "advice": advice(alarm.kind),
    })
}

fn name(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::NoSpace => "NOSPACE",
        AlarmKind::Corrupt => "CORRUPT",
    }
}

fn advice(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::NoSpace => "delete keys and compact, or raise --quota; then tenure alarm disarm",
        AlarmKind::Corrupt => "remove the member, and let it join again with an empty directory",
    }
}
