//! `tenure datastore`: runs a store that refuses stale holders.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Deserialize;
use tenure_fence::datastore::{self, Config, QUOTA_BYTES, RunError, Signing};
use tenure_fence::{Equal, OpenError, read_keyring};
use tenure_server::config::TENURE_VERSION;
use tenure_server::units::parse_size;

use super::serving::{ClientOptions, Signals, checked_address, checked_size, shutdown};
use crate::output::note;
use crate::settings::Global;
use crate::{logging, notify};

const EXAMPLE: &str = "\
Examples:
  tenure datastore                      a store on 127.0.0.1:8000, data in ./tenure-datastore
  curl -s localhost:8000/write \\
    -d '{\"clientID\":\"ci-7\",\"fencingToken\":{\"key\":\"deploy\",\"value\":12},\"data\":\"v2\"}'
  curl -s 'localhost:8000/read?key=deploy'
  tenure datastore --signing-key signing.key --cluster ID     takes signed tokens only";

const DEFAULT_LISTEN: &str = "127.0.0.1:8000";
const DEFAULT_DATA_DIR: &str = "tenure-datastore";
const MAX_CLUSTER_BYTES: usize = tenure_fence::MAX_CLUSTER_BYTES;

/// Run a small store that refuses writes of stale lock holders
///
/// POST /write takes {clientID, fencingToken: {key, value, signature}, data}; a token below the highest one
/// seen for its key is answered 409 with the highest. GET /read?key=… gives the last data of a key, GET
/// /keys?after=…&limit=… lists them. Every flag can also be given in the environment or as a key of the table
/// `[datastore]` of the TOML file (--config).
///
/// A signing key is a file that only its owner can read, with 32 bytes or more in base64:
/// (umask 077; head -c 32 /dev/urandom | base64 > signing.key). While keys are being changed it has one on each line.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Datastore {
    #[command(flatten)]
    flags: Flags,
    /// error, warn, info, debug or trace
    #[arg(long, env = "TENURE_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
    #[command(flatten)]
    _client_options: ClientOptions,
}

#[derive(Args, Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Flags {
    /// Where clients connect [default: 127.0.0.1:8000]
    #[arg(long, env = "TENURE_DATASTORE_LISTEN", value_name = "ADDRESS", value_parser = checked_address)]
    listen: Option<String>,
    /// Where it keeps its data [default: tenure-datastore]
    #[arg(long, env = "TENURE_DATASTORE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// What a token equal to the highest gets: allow, identical (the same data only), refuse [default: allow]
    #[arg(long, env = "TENURE_DATASTORE_EQUAL", value_name = "POLICY", value_parser = checked_equal)]
    equal: Option<String>,
    /// Take only tokens signed with a key of this file
    #[arg(long, env = "TENURE_DATASTORE_SIGNING_KEY", value_name = "FILE")]
    signing_key: Option<PathBuf>,
    /// The cluster whose tokens are taken, as `tenure status -o json` names it; needed with --signing-key
    #[arg(long, env = "TENURE_DATASTORE_CLUSTER", value_name = "ID")]
    cluster: Option<String>,
    /// Beyond this size the store takes no more [default: 256MiB]
    #[arg(long, env = "TENURE_DATASTORE_QUOTA", value_name = "SIZE", value_parser = checked_size)]
    quota: Option<String>,
    /// Listen beyond this machine without TLS
    #[arg(long, env = "TENURE_DATASTORE_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    insecure: Option<bool>,
}

impl Datastore {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let level = self.log_level.or_else(logging::level_in_environment);
        logging::start(level.as_deref().unwrap_or("info"))?;
        let file: Flags = global.file()?.datastore.try_into().map_err(|error| anyhow!("in [datastore]: {error}"))?;
        let config = self.flags.over(file).config()?;
        let (data_dir, signed) = (config.data_dir.clone(), config.signing.is_some());
        // Received from the moment it is said to be ready; before that, a signal just ends it.
        let signals = Cell::new(None);
        let ready = |address| {
            signals.set(Signals::receive());
            greet(address, &data_dir, signed);
        };
        datastore::run(config, ready, async { shutdown(signals.take()).await }).await.map_err(advise)?;
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }
}

impl Flags {
    /// What is not said here is as the file has it.
    fn over(self, file: Flags) -> Flags {
        Flags {
            listen: self.listen.or(file.listen),
            data_dir: self.data_dir.or(file.data_dir),
            equal: self.equal.or(file.equal),
            signing_key: self.signing_key.or(file.signing_key),
            cluster: self.cluster.or(file.cluster),
            quota: self.quota.or(file.quota),
            insecure: self.insecure.or(file.insecure),
        }
    }

    fn config(self) -> anyhow::Result<Config> {
        let listen = self.listen.as_deref().unwrap_or(DEFAULT_LISTEN);
        let listen: SocketAddr = listen.parse().with_context(|| format!("{listen:?} is no address to listen on"))?;
        if !listen.ip().to_canonical().is_loopback() && !self.insecure.unwrap_or(false) {
            bail!(
                "{listen} can be reached from other machines, in plain text: listen on 127.0.0.1, or accept it with --insecure"
            );
        }
        let signing = match (&self.signing_key, self.cluster) {
            (Some(path), Some(cluster)) if (1..=MAX_CLUSTER_BYTES).contains(&cluster.len()) => {
                Some(Signing { keyring: read_keyring(path)?, cluster })
            }
            (Some(_), Some(_)) => bail!("--cluster has from 1 to {MAX_CLUSTER_BYTES} bytes"),
            (Some(_), None) => bail!("--signing-key needs --cluster: a token is signed for one cluster"),
            (None, Some(_)) => bail!("--cluster needs --signing-key: without it no token says where it is from"),
            (None, None) => None,
        };
        Ok(Config {
            listen,
            data_dir: self.data_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR)),
            equal: self.equal.as_deref().map(str::parse).transpose()?.unwrap_or(Equal::Allow),
            quota_bytes: self.quota.as_deref().map(parse_size).transpose()?.unwrap_or(QUOTA_BYTES),
            signing,
        })
    }
}

/// What a newcomer should know once the store answers.
fn greet(address: SocketAddr, data_dir: &Path, signed: bool) {
    notify::tell("READY=1");
    let data = data_dir.display();
    if !io::stderr().is_terminal() {
        tracing::info!(version = TENURE_VERSION, %address, %data, signed, "ready");
        return;
    }
    note(format_args!("tenure {TENURE_VERSION}, data store"));
    note(format_args!("  writes   POST http://{address}/write{}", if signed { "  (signed tokens only)" } else { "" }));
    note(format_args!("  reads    GET http://{address}/read?key=KEY, GET http://{address}/keys"));
    note(format_args!("  data     {data}"));
    note(format_args!("  stop     Ctrl-C"));
}

/// Adds what to do, where the error itself cannot know our flags.
fn advise(error: RunError) -> anyhow::Error {
    let advice = match &error {
        RunError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
            ": choose another port with --listen"
        }
        RunError::Open(OpenError::InUse { .. }) => {
            ": stop the data store that runs there, or choose another directory with --data-dir"
        }
        RunError::Open(OpenError::Unusable { .. } | OpenError::OtherKind { .. }) => {
            ": choose another directory with --data-dir"
        }
        _ => "",
    };
    anyhow!("{error}{advice}")
}

fn checked_equal(text: &str) -> Result<String, String> {
    text.parse::<Equal>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Flags {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn flags_come_before_the_file_and_the_rest_is_as_it_should_be() {
        let config = flags("equal = \"refuse\"").over(flags("equal = \"allow\"\nquota = \"1MiB\"")).config().unwrap();
        assert_eq!((config.equal, config.quota_bytes), (Equal::Refuse, 1 << 20));
        assert_eq!((config.listen.to_string().as_str(), config.signing.is_none()), (DEFAULT_LISTEN, true));
        assert!(toml::from_str::<Flags>("equals = \"refuse\"").is_err());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, reason) in [
            ("listen = \"0.0.0.0:8000\"", "--insecure"),
            ("listen = \"localhost\"", "localhost"),
            ("equal = \"sometimes\"", "sometimes"),
            ("cluster = \"c1\"", "--signing-key"),
            ("signing-key = \"k\"", "--cluster"),
            ("signing-key = \"no-such-file\"\ncluster = \"c1\"", "no-such-file"),
            ("signing-key = \"k\"\ncluster = \"\"", "--cluster"),
        ] {
            let error = flags(text).config().err().unwrap_or_else(|| panic!("{text}"));
            assert!(format!("{error:#}").contains(reason), "{text}: {error:#}");
        }
    }
}
