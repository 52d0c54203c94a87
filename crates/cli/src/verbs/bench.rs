//! `tenure bench`: load on this or any other etcd-compatible server, and comparisons.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_bench::{Limit, Plan, Server, Workload};

use crate::output::{self, Format};
use crate::progress::Progress;
use crate::settings::Global;
use tenure_server::units::{parse_duration, parse_size};

const EXAMPLE: &str = "\
Examples:
  tenure bench put                                        5 s of puts on 127.0.0.1:2379
  tenure bench lock --clients 16 --pid $(pgrep -xn tenure)
  tenure bench put get lock --rounds 3 --compare tenure=127.0.0.1:2379@101 --compare etcd=127.0.0.1:22379@102";

/// Put a server under load and measure
///
/// Every run is bounded by time or by a number of operations. All keys are written beneath
/// `bench/`, and stay there: `tenure del --prefix bench/` removes them. Not for a cluster that
/// others work with.
#[derive(Args)]
#[command(before_help = EXAMPLE, after_help = workloads_text())]
pub struct Bench {
    /// What the clients do, one workload after the other
    #[arg(required = true, value_name = "WORKLOAD")]
    workloads: Vec<Workload>,
    /// Clients at work at the same time
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Connections that they share
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Threads of this load client
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// How long each run is measured [default: 5]
    #[arg(long, conflicts_with = "requests", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Measure so many operations instead of a time
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// How long each run warms up before it is measured
    #[arg(long, default_value = "1s", value_parser = parse_duration, value_name = "TIME")]
    warm_up: Duration,
    /// Size of the values, as in 256 or 4KiB
    #[arg(long, default_value = "256", value_parser = parse_bytes, value_name = "SIZE")]
    value_size: u64,
    /// Keys that puts and gets are spread over; keys that fill writes and range reads
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Gets may be answered by any member on its own
    #[arg(long)]
    serializable: bool,
    /// In watch: how many puts the writer may be ahead of the slowest watcher; in session: cycles in flight
    #[arg(long, default_value_t = 16)]
    depth: usize,
    /// Leases that renewals and expiry hold at once
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    leases: u64,
    /// Their time to live, in whole seconds
    #[arg(long, default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    ttl: Duration,
    /// In expiry: how many of the leases have a key [default: all]
    #[arg(long, value_name = "KEYS")]
    leased_keys: Option<u64>,
    /// In expiry and phases: puts in a second
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..), value_name = "PUTS")]
    rate: u64,
    /// The server's processes: report the CPU time of an operation and the memory in use
    #[arg(long, value_name = "PID,…", value_delimiter = ',', conflicts_with = "compare")]
    pid: Vec<u32>,
    /// A server to compare, given several times; replaces --endpoints
    #[arg(long, value_name = "NAME=ENDPOINT,…[@PID,…]", conflicts_with = "endpoints")]
    compare: Vec<Server>,
    /// The server to compare the others with [default: the last named]
    #[arg(long, value_name = "NAME", requires = "compare")]
    baseline: Option<String>,
    /// How often to go through the servers, taking turns [default: 3 with --compare, otherwise 1]
    #[arg(long)]
    rounds: Option<usize>,
}

impl Bench {
    pub fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let format = global.format()?;
        let plan = self.plan(global)?;
        let progress = Progress::new();
        let report = tenure_bench::run(&plan, &|text| progress.show(text))?;
        drop(progress);
        match format {
            Format::Table | Format::Wide => output::print(&report.table())?,
            Format::Json => output::print(&output::pretty(&json!({ "rows": report.rows() })))?,
            Format::Jsonl => {
                for row in report.rows() {
                    output::print(&format!("{}\n", json!(row)))?;
                }
            }
        }
        match report.failures() {
            0 => Ok(ExitCode::SUCCESS),
            failures => anyhow::bail!("{failures} operations failed"),
        }
    }

    fn plan(self, global: &Global) -> anyhow::Result<Plan> {
        let comparing = !self.compare.is_empty();
        let servers = match comparing {
            true => self.compare,
            false => {
                let endpoints = global.endpoints()?.split(',').map(|endpoint| endpoint.trim().to_owned()).collect();
                vec![Server { name: "server".to_owned(), endpoints, pids: self.pid }]
            }
        };
        Ok(Plan {
            workloads: self.workloads,
            servers,
            baseline: self.baseline,
            clients: self.clients,
            connections: self.connections,
            threads: self.threads,
            limit: match (self.seconds, self.requests) {
                (_, Some(requests)) => Limit::Operations(requests),
                (seconds, None) => Limit::Time(seconds.unwrap_or(Duration::from_secs(5))),
            },
            warm_up: self.warm_up,
            rounds: self.rounds.unwrap_or(if comparing { 3 } else { 1 }),
            value_bytes: usize::try_from(self.value_size)?,
            keys: self.keys,
            serializable: self.serializable,
            depth: self.depth,
            leases: self.leases,
            ttl: self.ttl,
            leased_keys: self.leased_keys,
            rate: self.rate,
        })
    }
}

/// A bare number is what the flag's name says: seconds.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Ok(_) => Err("a run takes some time".to_owned()),
        Err(_) => parse_duration(text).map_err(|error| error.to_string()),
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    text.parse().or_else(|_| parse_size(text)).map_err(|error| error.to_string())
}

fn workloads_text() -> String {
    let lines = Workload::ALL.map(|workload| format!("  {:<10} {}", workload.name(), workload.describe()));
    format!("Workloads:\n{}", lines.join("\n"))
}
