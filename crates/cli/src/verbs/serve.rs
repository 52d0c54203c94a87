//! `tenure serve`: runs a member.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use tenure_server::config::{Config, TENURE_VERSION, Unsaid};
use tenure_server::data::DataError;
use tenure_server::run::{RunError, run_announced};
use tenure_server::units::parse_duration;
use tenure_storage::{Fault, OpenError};
use toml::{Table, Value};

use super::serving::{ClientOptions, Signals, checked_address, checked_size, shutdown};
use crate::output::note;
use crate::settings::Global;
use crate::{logging, notify};

const EXAMPLE: &str = "\
Examples:
  tenure serve                          one member on 127.0.0.1:2379, data in ./tenure-data
  tenure serve --data-dir /var/lib/tenure --listen 127.0.0.1:22379 --peer-listen 127.0.0.1:22380
  tenure serve --name n1 --listen 10.0.0.1:2379 --peer-listen 10.0.0.1:2380 --insecure \\
    --cluster n1=10.0.0.1:2380,n2=10.0.0.2:2380,n3=10.0.0.3:2380
  tenure serve --name n4 --join 10.0.0.1:2380 --listen 10.0.0.4:2379 --peer-listen 10.0.0.4:2380 --insecure
  tenure serve --data-dir DIR           a member that starts again knows its name, its addresses and the others
  tenure serve --config tenure.toml     the file's keys are named like the flags";

/// Run a member
///
/// Every flag can also be given in the environment or as a key of the TOML file (--config). Limits
/// of what clients may ask are set in the table `[limits]` of the file.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Serve {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    tuning: Tuning,
    /// error, warn, info, debug or trace; or levels by module, as in info,tenure_server=debug
    #[arg(long, env = "TENURE_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
    #[command(flatten)]
    _client_options: ClientOptions,
}

#[derive(Args)]
struct Flags {
    /// Name of this member [default: default]
    #[arg(long, env = "TENURE_NAME")]
    name: Option<String>,
    /// Where it keeps its data [default: tenure-data]
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where clients connect: gRPC, JSON, metrics [default: 127.0.0.1:2379, or where the others know it]
    #[arg(long, env = "TENURE_LISTEN", value_name = "ADDRESS", value_parser = checked_address)]
    listen: Option<String>,
    /// Where other members connect [default: 127.0.0.1:2380, or where they know it]
    #[arg(long, env = "TENURE_PEER_LISTEN", value_name = "ADDRESS", value_parser = checked_address)]
    peer_listen: Option<String>,
    /// Where clients find it, if not at --listen
    #[arg(long, env = "TENURE_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Where other members find it, if not at --peer-listen
    #[arg(long, env = "TENURE_PEER_ADVERTISE", value_name = "HOST:PORT")]
    peer_advertise: Option<String>,
    /// The members of a new cluster, this one among them
    #[arg(long, env = "TENURE_CLUSTER", value_name = "NAME=HOST:PORT,…")]
    cluster: Option<String>,
    /// A member of a running cluster to be added to
    #[arg(long, env = "TENURE_JOIN", value_name = "HOST:PORT")]
    join: Option<String>,
    /// Stay a learner when joining: reads and watches, no vote
    #[arg(long, env = "TENURE_LEARNER", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    learner: Option<bool>,
    /// Listen beyond this machine without TLS
    #[arg(long, env = "TENURE_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    insecure: Option<bool>,
}

#[derive(Args)]
#[command(next_help_heading = "Tuning")]
struct Tuning {
    /// Pages whose scripts may call this member: https://host[:port], or * for any
    #[arg(long, env = "TENURE_WEB_ORIGINS", value_name = "ORIGIN,…", value_delimiter = ',')]
    web_origins: Option<Vec<String>>,
    /// The unit in which raft counts time [default: 10ms]
    #[arg(long, env = "TENURE_TICK", value_name = "TIME", value_parser = checked_duration)]
    tick: Option<String>,
    /// How often a leader lets the others hear from it [default: 50ms]
    #[arg(long, env = "TENURE_HEARTBEAT", value_name = "TIME", value_parser = checked_duration)]
    heartbeat: Option<String>,
    /// The least time without a leader before a member stands for election [default: 500ms]
    #[arg(long, env = "TENURE_ELECTION_MIN", value_name = "TIME", value_parser = checked_duration)]
    election_min: Option<String>,
    /// The longest such time [default: 1s]
    #[arg(long, env = "TENURE_ELECTION_MAX", value_name = "TIME", value_parser = checked_duration)]
    election_max: Option<String>,
    /// After how long a call is told that it timed out [default: 7s]
    #[arg(long, env = "TENURE_CALL_TIMEOUT", value_name = "TIME", value_parser = checked_duration)]
    call_timeout: Option<String>,
    /// No snapshot before the log has grown by this much [default: 64MiB]
    #[arg(long, env = "TENURE_SNAPSHOT_FLOOR", value_name = "SIZE", value_parser = checked_size)]
    snapshot_floor: Option<String>,
    /// Older history is compacted; 0s keeps it [default: 1h]
    #[arg(long, env = "TENURE_HISTORY_AGE", value_name = "TIME", value_parser = checked_duration)]
    history_age: Option<String>,
    /// History beyond this size is compacted; 0B keeps it [default: 1GiB]
    #[arg(long, env = "TENURE_HISTORY_SIZE", value_name = "SIZE", value_parser = checked_size)]
    history_size: Option<String>,
    /// Beyond this size the store takes no more; 0B = no quota [default: 8GiB]
    #[arg(long, env = "TENURE_QUOTA", value_name = "SIZE", value_parser = checked_size)]
    quota: Option<String>,
    /// How often the members' states are compared; 0s = never [default: 1m]
    #[arg(long, env = "TENURE_COMPARE_INTERVAL", value_name = "TIME", value_parser = checked_duration)]
    compare_interval: Option<String>,
    /// Take part in no later feature level than this: a way back to an earlier release stays open
    #[arg(long, env = "TENURE_MAX_LEVEL", value_name = "N")]
    max_level: Option<u32>,
    /// Refuse deletes of keys that are places of locks
    #[arg(long, env = "TENURE_PROTECT_PLACES", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    protect_places: Option<bool>,
    /// How often an idle watch is told the revision, if it asked for it [default: 10m]
    #[arg(long, env = "TENURE_WATCH_PROGRESS_INTERVAL", value_name = "TIME", value_parser = checked_duration)]
    watch_progress_interval: Option<String>,
    /// How often a silent connection is pinged [default: 30s]
    #[arg(long, env = "TENURE_KEEPALIVE_INTERVAL", value_name = "TIME", value_parser = checked_duration)]
    keepalive_interval: Option<String>,
    /// How long it may take to answer the ping [default: 10s]
    #[arg(long, env = "TENURE_KEEPALIVE_TIMEOUT", value_name = "TIME", value_parser = checked_duration)]
    keepalive_timeout: Option<String>,
    /// How long calls may still run when the member is told to stop [default: 5s]
    #[arg(long, env = "TENURE_DRAIN", value_name = "TIME", value_parser = checked_duration)]
    drain: Option<String>,
    /// Threads that serve connections; 0 = as many as there are processors, 8 at most [default: 0]
    #[arg(long, env = "TENURE_NETWORK_THREADS", value_name = "N")]
    network_threads: Option<u32>,
    /// Sign grants with the key in this file, which the storages that verify them have, too
    #[arg(long, env = "TENURE_SIGNING_KEY", value_name = "FILE")]
    signing_key: Option<String>,
}

impl Serve {
    pub fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        refuse_huge_pages();
        let mut settings = global.file()?.member;
        let source = Source { file: global.config.clone(), keys: settings.clone() };
        let file_level = settings.remove("log-level");
        let file_level = file_level
            .as_ref()
            .map(|level| level.as_str().context("expected a text, for example \"info\""))
            .transpose();
        let file_level = file_level.map_err(|error| source.name("log-level", &error.to_string()))?.map(str::to_owned);
        let level = self.log_level.clone().or_else(logging::level_in_environment).or(file_level);
        logging::start(level.as_deref().unwrap_or("info"))?;
        self.override_settings(&mut settings)?;
        let is_unsaid = |keys: [&str; 2]| !keys.into_iter().any(|key| settings.contains_key(key));
        let unsaid = Unsaid {
            client: is_unsaid(["listen", "advertise"]),
            peer: is_unsaid(["peer-listen", "peer-advertise"]) && !settings.contains_key("cluster"),
        };
        let config: Config = settings.try_into().map_err(|error| source.explain(&error))?;
        let config = Config { unsaid, ..config };
        let greeting = Greeting::of(&config);
        // Received from the moment the member answers; before that, a signal just ends it.
        let signals = Cell::new(None);
        let answers = |_| signals.set(Signals::receive());
        let ready = |address| greeting.show(address);
        let served = run_announced(config, answers, ready, async { shutdown(signals.take()).await });
        match served {
            // A removal is asked for, so it is not a failure: a supervisor that restarts failed services lets it go.
            Err(removed @ RunError::Removed) => {
                tracing::warn!("{removed}; to come back it joins with an empty one (--join)");
            }
            Err(RunError::Config(error)) => return Err(source.name_all(&error.to_string())),
            served => served.map_err(advise)?,
        }
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }

    /// Flags and the environment come before the file.
    fn override_settings(&self, settings: &mut Table) -> anyhow::Result<()> {
        let Flags { name, data_dir, listen, peer_listen, advertise, peer_advertise, cluster, join, learner, insecure } =
            &self.flags;
        let data_dir = data_dir.as_ref().map(|path| path.to_str().context("--data-dir is no text")).transpose()?;
        let data_dir = data_dir.map(str::to_owned);
        let tuning = &self.tuning;
        let texts = [
            ("name", name),
            ("data-dir", &data_dir),
            ("listen", listen),
            ("peer-listen", peer_listen),
            ("advertise", advertise),
            ("peer-advertise", peer_advertise),
            ("cluster", cluster),
            ("join", join),
            ("tick", &tuning.tick),
            ("heartbeat", &tuning.heartbeat),
            ("election-min", &tuning.election_min),
            ("election-max", &tuning.election_max),
            ("call-timeout", &tuning.call_timeout),
            ("snapshot-floor", &tuning.snapshot_floor),
            ("history-age", &tuning.history_age),
            ("history-size", &tuning.history_size),
            ("quota", &tuning.quota),
            ("compare-interval", &tuning.compare_interval),
            ("watch-progress-interval", &tuning.watch_progress_interval),
            ("keepalive-interval", &tuning.keepalive_interval),
            ("keepalive-timeout", &tuning.keepalive_timeout),
            ("drain", &tuning.drain),
            ("signing-key", &tuning.signing_key),
        ];
        for (key, value) in texts {
            if let Some(value) = value {
                settings.insert(key.to_owned(), Value::String(value.clone()));
            }
        }
        let flags = [("learner", learner), ("insecure", insecure), ("protect-places", &tuning.protect_places)];
        for (key, value) in flags {
            if let Some(value) = value {
                settings.insert(key.to_owned(), Value::Boolean(*value));
            }
        }
        if let Some(origins) = &tuning.web_origins {
            settings.insert("web-origins".to_owned(), origins.clone().into());
        }
        if let Some(level) = tuning.max_level {
            settings.insert("max-level".to_owned(), Value::Integer(level.into()));
        }
        if let Some(threads) = tuning.network_threads {
            settings.insert("network-threads".to_owned(), Value::Integer(i64::from(threads)));
        }
        Ok(())
    }
}

/// The file that settings come from, and the keys that it sets.
struct Source {
    file: Option<PathBuf>,
    keys: Table,
}

impl Source {
    /// An error that says which setting it is about, and where that is written.
    fn explain(&self, error: &toml::de::Error) -> anyhow::Error {
        // The path of keys is in no other form: the message, then "in `limits.pending-resets`".
        let text = error.to_string();
        let path = text.lines().find_map(|line| line.trim().strip_prefix("in `")?.strip_suffix('`'));
        match path {
            Some(path) => self.name(path, error.message()),
            None => self.name_all(error.message()),
        }
    }

    fn name(&self, path: &str, message: &str) -> anyhow::Error {
        let message = match message {
            "invalid socket address syntax" => "expected ADDRESS:PORT, for example 127.0.0.1:2379",
            message => message,
        };
        let mut keys = path.split('.');
        let first = keys.next().and_then(|key| self.keys.get(key));
        let value = keys.fold(first, |value, key| value?.as_table()?.get(key));
        match (&self.file, value) {
            (Some(file), Some(value)) => anyhow!("{}: {path} = {value}: {message}", file.display()),
            _ => anyhow!("--{path}: {message}"),
        }
    }

    /// For a message that names its key itself: adds the file, if that key is set there.
    fn name_all(&self, message: &str) -> anyhow::Error {
        let is_word = |word: &str| message.split(|c: char| !(c.is_alphanumeric() || c == '-')).any(|part| part == word);
        let nested = self.keys.values().filter_map(Value::as_table).flat_map(|table| table.keys());
        let is_in_file = self.keys.keys().chain(nested).any(|key| is_word(key) || is_word(&format!("--{key}")));
        match &self.file {
            Some(file) if is_in_file => anyhow!("{}: {message}", file.display()),
            _ => anyhow!("{message}"),
        }
    }
}

/// What a newcomer should know once the member answers.
struct Greeting {
    /// None: it was not given; a member that starts again has one.
    name: Option<String>,
    data_dir: PathBuf,
    advertise: Option<String>,
}

impl Greeting {
    fn of(config: &Config) -> Greeting {
        let name = Some(config.name.clone()).filter(|name| *name != Config::default().name);
        Greeting { name, data_dir: config.data_dir.clone(), advertise: config.advertise.clone() }
    }

    fn show(&self, address: SocketAddr) {
        notify::tell("READY=1");
        let data = self.data_dir.display();
        if !io::stderr().is_terminal() {
            tracing::info!(version = TENURE_VERSION, name = self.name.as_deref(), %address, %data, "ready");
            return;
        }
        let endpoint = self.advertise.clone().unwrap_or_else(|| address.to_string());
        let flag = match endpoint == crate::settings::DEFAULT_ENDPOINT {
            true => String::new(),
            false => format!(" --endpoints {endpoint}"),
        };
        let member = self.name.as_ref().map_or(String::new(), |name| format!(", member {name}"));
        note(format_args!("tenure {TENURE_VERSION}{member}"));
        note(format_args!("  clients  {endpoint}  (gRPC as etcd v3, JSON at /v3/, metrics at /metrics)"));
        note(format_args!("  data     {data}"));
        note(format_args!("  try      tenure{flag} put greeting hello"));
        note(format_args!("  stop     Ctrl-C"));
    }
}

/// A batch's vectors come and go, and whenever the allocator gives them fresh memory the kernel would clear two megabytes
/// for the few pages that are used: an eighth of the server's time under sessions, and the tail of everybody's latency
/// (`bench/README.md`). A kernel that refuses this only takes longer.
fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Adds what to do, where the error itself cannot know our flags.
fn advise(error: RunError) -> anyhow::Error {
    let advice = match &error {
        RunError::Data(DataError::Open(OpenError::InUse { .. })) => {
            ": stop the member that runs there, or choose another directory with --data-dir"
        }
        RunError::Data(DataError::Open(OpenError::NoPermission { .. })) => {
            ": let this user write there, or choose another directory with --data-dir"
        }
        RunError::Data(DataError::Open(OpenError::NotADirectory { .. } | OpenError::Fault(Fault::Io { .. }))) => {
            ": choose another path with --data-dir"
        }
        _ => "",
    };
    anyhow!("{error}{advice}")
}

fn checked_duration(text: &str) -> Result<String, String> {
    parse_duration(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        serve: Serve,
    }

    fn config(arguments: &[&str], file: &str) -> Config {
        let serve = Command::parse_from(std::iter::once(&"serve").chain(arguments)).serve;
        let mut settings: Table = toml::from_str(file).unwrap();
        serve.override_settings(&mut settings).unwrap();
        settings.try_into().unwrap()
    }

    #[test]
    fn without_anything_all_is_as_the_member_has_it() {
        assert_eq!(config(&[], ""), Config::default());
    }

    #[test]
    fn flags_come_before_the_file() {
        let file = "name = \"file\"\ntick = \"20ms\"\n[limits]\npending-resets = 7\n";
        let config = config(&["--name", "flag", "--quota", "1GiB", "--insecure", "--web-origins", "a,b"], file);
        assert_eq!(config.name, "flag");
        assert_eq!(config.tick.as_millis(), 20);
        assert_eq!(config.quota, 1 << 30);
        assert_eq!(config.limits.pending_resets, 7);
        assert_eq!(config.web_origins, ["a", "b"]);
        assert!(config.insecure);
    }

    #[test]
    fn every_setting_of_a_member_has_a_flag() {
        let Value::Table(settings) = Value::try_from(Config::default()).unwrap() else { panic!("it is a table") };
        let command = <Command as clap::CommandFactory>::command();
        let flags: Vec<&str> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
        for key in settings.keys().filter(|key| *key != "limits") {
            assert!(flags.contains(&key.as_str()), "--{key} is missing");
        }
    }
}
