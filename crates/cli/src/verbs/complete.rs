//! `tenure complete`: names that the shell offers while one is typed. The scripts of `tenure completion` call it.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::output;
use crate::settings::{Global, Session};

/// Who presses Tab does not wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Print names that begin with a text, one a line; nothing if the server cannot be asked
#[derive(Args)]
#[command(before_help = "Example:\n  tenure complete locks deploy/", hide = true)]
pub struct Complete {
    /// What is to be named
    #[arg(value_enum)]
    kind: Kind,
    /// How the names begin
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Locks,
    Members,
}

impl Complete {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let names = self.names(&global).await.unwrap_or_default();
        output::print(&names.into_iter().map(|name| name + "\n").collect::<String>())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn names(&self, global: &Global) -> anyhow::Result<Vec<String>> {
        let Session { client, .. } = global.session_within(ANSWER_WITHIN).await?;
        let mut names: Vec<String> = match self.kind {
            Kind::Locks => client.locks(&self.prefix).await?.locks.into_iter().map(|lock| lock.name).collect(),
            Kind::Members => client.known_members().await?.members.into_iter().map(|member| member.name).collect(),
        };
        names.retain(|name| name.starts_with(&self.prefix) && !name.contains(char::is_control));
        names.sort();
        Ok(names)
    }
}
