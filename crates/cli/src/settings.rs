//! Where a setting comes from: a flag, else the environment, else the TOML file.
//!
//! One file serves all sides: its top level holds the settings of `tenure serve`, named like the
//! flags, the table `[datastore]` those of `tenure datastore`, and `[client]` those of the client's verbs:
//!
//! ```toml
//! name = "n1"
//! data-dir = "/var/lib/tenure"
//!
//! [client]
//! endpoints = ["10.0.0.1:2379", "10.0.0.2:2379"]
//! output = "json"
//! timeout = "10s"
//! discovery = false
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use serde::Deserialize;
use tenure_client::{Client, Settings};

use crate::output::Format;
use tenure_server::units::parse_duration;

pub const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
const HEADING: &str = "Options of every verb";
const CLIENT_KEYS: [&str; 4] = ["endpoints", "output", "timeout", "discovery"];

/// Flags that stand before or after any verb.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// Servers to talk to, tried in this order [default: 127.0.0.1:2379]
    #[arg(long, global = true, env = "TENURE_ENDPOINTS", value_name = "HOST:PORT,…", help_heading = HEADING)]
    pub endpoints: Option<String>,
    /// Talk to these endpoints only, and do not look for the other members
    #[arg(long, global = true, env = "TENURE_NO_DISCOVERY", value_parser = clap::builder::FalseyValueParser::new(), help_heading = HEADING)]
    pub no_discovery: bool,
    /// How results are written [default: table]
    #[arg(short, long, global = true, env = "TENURE_OUTPUT", value_enum, hide_possible_values = false, help_heading = HEADING)]
    pub output: Option<Format>,
    /// How long a call may take, as in 500ms or 10s [default: 5s]
    #[arg(long, global = true, env = "TENURE_TIMEOUT", value_parser = parse_duration, value_name = "TIME", help_heading = HEADING)]
    pub timeout: Option<Duration>,
    /// TOML file with settings that neither flags nor the environment give; the client's are in its table [client]
    #[arg(long, global = true, env = "TENURE_CONFIG", value_name = "FILE", help_heading = HEADING)]
    pub config: Option<PathBuf>,
}

/// What the TOML file says.
#[derive(Debug, Default)]
pub struct SettingsFile {
    client: ClientTable,
    /// The settings of a data store.
    pub datastore: toml::Table,
    /// All that is in no other table: the settings of a member.
    pub member: toml::Table,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientTable {
    endpoints: Option<Vec<String>>,
    output: Option<Format>,
    timeout: Option<String>,
    discovery: Option<bool>,
}

/// A client and how to write what it finds: what every client verb starts with.
pub struct Session {
    pub client: Client,
    pub format: Format,
}

impl Global {
    pub fn file(&self) -> anyhow::Result<SettingsFile> {
        self.config.as_deref().map_or_else(|| Ok(SettingsFile::default()), SettingsFile::read)
    }

    pub fn format(&self) -> anyhow::Result<Format> {
        Ok(self.output.or(self.file()?.client.output).unwrap_or_default())
    }

    pub fn endpoints(&self) -> anyhow::Result<String> {
        let file = self.file()?.client.endpoints.map(|list| list.join(","));
        Ok(self.endpoints.clone().or(file).unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()))
    }

    fn client_settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        settings.discover = !self.no_discovery && self.file()?.client.discovery.unwrap_or(settings.discover);
        if let Some(timeout) = self.given_timeout()? {
            settings.timeout = timeout;
            settings.connect_timeout = settings.connect_timeout.min(timeout);
        }
        Ok(settings)
    }

    pub async fn session(&self) -> anyhow::Result<Session> {
        let client = Client::connect_with(&self.endpoints()?, self.client_settings()?).await?;
        Ok(Session { client, format: self.format()? })
    }

    /// The time that a call may take, if a flag, the environment or the file says so.
    pub fn given_timeout(&self) -> anyhow::Result<Option<Duration>> {
        let file = self.file()?.client.timeout.map(|text| parse_duration(&text)).transpose()?;
        Ok(self.timeout.or(file))
    }

    /// As [`Global::session`], for verbs that must not wait long for a member that does not answer.
    pub async fn session_within(&self, timeout: Duration) -> anyhow::Result<Session> {
        let timeout = self.given_timeout()?.unwrap_or(timeout);
        Global { timeout: Some(timeout), ..self.clone() }.session().await
    }
}

impl SettingsFile {
    fn read(path: &Path) -> anyhow::Result<SettingsFile> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        SettingsFile::parse(&text).with_context(|| format!("{} cannot be used", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<SettingsFile> {
        let mut member: toml::Table = toml::from_str(text)?;
        let client = match member.remove("client") {
            Some(table) => table.try_into().map_err(|error| anyhow!("in [client]: {error}"))?,
            None => ClientTable::default(),
        };
        // At the top level they would have no effect.
        if let Some(misplaced) = CLIENT_KEYS.iter().find(|key| member.contains_key(**key)) {
            anyhow::bail!("{misplaced} is a setting of the client: put it beneath [client]");
        }
        let datastore = match member.remove("datastore") {
            Some(table) => table.try_into().map_err(|error| anyhow!("in [datastore]: {error}"))?,
            None => toml::Table::default(),
        };
        Ok(SettingsFile { client, datastore, member })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_fills_what_flags_leave_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tenure.toml");
        let text = "name = \"n1\"\n[client]\nendpoints = [\"a:1\", \"b:2\"]\noutput = \"json\"\ntimeout = \"500ms\"\ndiscovery = false\n";
        std::fs::write(&path, text).unwrap();
        let file_only = Global { config: Some(path), ..Global::default() };
        assert_eq!(file_only.endpoints().unwrap(), "a:1,b:2");
        assert_eq!(file_only.format().unwrap(), Format::Json);
        assert_eq!(file_only.client_settings().unwrap().timeout, Duration::from_millis(500));
        assert!(!file_only.client_settings().unwrap().discover);
        assert!(Global::default().client_settings().unwrap().discover);
        assert!(!Global { no_discovery: true, ..Global::default() }.client_settings().unwrap().discover);
        let flags = Global { endpoints: Some("c:3".into()), output: Some(Format::Wide), ..file_only };
        assert_eq!(flags.endpoints().unwrap(), "c:3");
        assert_eq!(flags.format().unwrap(), Format::Wide);
        assert_eq!(flags.file().unwrap().member["name"].as_str(), Some("n1"));
    }

    #[test]
    fn misspelled_settings_are_refused() {
        let error = SettingsFile::parse("[client]\nendpoint = \"a:1\"").unwrap_err();
        assert!(format!("{error:#}").contains("endpoint"), "{error:#}");
        let error = SettingsFile::parse("endpoints = [\"a:1\"]").unwrap_err();
        assert!(format!("{error:#}").contains("beneath [client]"), "{error:#}");
    }
}
