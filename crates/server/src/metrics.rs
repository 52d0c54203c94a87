//! What the member counts, and how `/metrics` tells it.
//!
//! Each network runtime has counters of its own, so that counting never makes two processors fight
//! over a cache line; they are added up when somebody asks. Labels name rpcs, codes and limits, all
//! known beforehand: never a lock, a key or a client, which would let clients grow our memory.

pub mod sessions;
pub mod text;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use prost_reflect::DescriptorPool;
use tenure_replica::Status;
use tonic::Code;

use self::sessions::SessionCounters;
use self::text::Form;
use crate::alarms;
use crate::limits::Limits;

/// In the order of the codes' numbers.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Upper bounds in microseconds; what is slower falls into one more bucket.
const LATENCIES_US: [u64; 16] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

/// Every rpc that is counted by name. Number 0 stands for all others.
#[derive(Debug)]
pub struct Rpcs {
    rpcs: Vec<Rpc>,
    by_path: HashMap<String, usize>,
}

#[derive(Debug)]
struct Rpc {
    /// `package.Service/Method`.
    name: String,
    /// A stream lasts as long as its client likes: its duration says nothing.
    unary: bool,
    open_ended: bool,
}

/// Unary, but they wait for their turn.
const WAITING: [&str; 5] = [
    "v3lockpb.Lock/Lock",
    "v3electionpb.Election/Campaign",
    "tenure.v1.LockService/Lock",
    "tenure.v1.LockService/Campaign",
    "tenure.v1.LockService/Barrier",
];

impl Rpcs {
    pub fn new(pool: &DescriptorPool) -> Rpcs {
        let mut rpcs = vec![Rpc { name: "other".to_owned(), unary: false, open_ended: false }];
        let mut by_path = HashMap::new();
        for method in pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()) {
            let name = format!("{}/{}", method.parent_service().full_name(), method.name());
            by_path.insert(format!("/{name}"), rpcs.len());
            let unary = !method.is_client_streaming() && !method.is_server_streaming();
            rpcs.push(Rpc { unary, open_ended: !unary || WAITING.contains(&name.as_str()), name });
        }
        Rpcs { rpcs, by_path }
    }

    /// The rpc with this path, as HTTP/2 names it.
    pub fn find(&self, path: &str) -> usize {
        self.by_path.get(path).copied().unwrap_or(0)
    }

    /// Does it last until its client, or somebody else, lets it end?
    pub fn is_open_ended(&self, rpc: usize) -> bool {
        self.rpcs[rpc].open_ended
    }
}

/// The counters of one network runtime.
#[derive(Debug)]
pub struct Counters {
    rpcs: Vec<RpcCounters>,
    sessions: SessionCounters,
    pub connections_accepted: AtomicU64,
    pub connections_open: AtomicI64,
}

#[derive(Debug, Default)]
struct RpcCounters {
    unary: bool,
    in_flight: AtomicI64,
    codes: [AtomicU64; CODES.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    latencies: [AtomicU64; LATENCIES_US.len() + 1],
    latency_sum_us: AtomicU64,
}

impl Counters {
    pub fn new(rpcs: &Rpcs) -> Counters {
        let counters = rpcs.rpcs.iter().map(|rpc| RpcCounters { unary: rpc.unary, ..Default::default() });
        Counters {
            rpcs: counters.collect(),
            sessions: SessionCounters::default(),
            connections_accepted: 0.into(),
            connections_open: 0.into(),
        }
    }

    pub fn received(&self, rpc: usize, bytes: usize) {
        self.rpcs[rpc].received_bytes.fetch_add(bytes as u64, Relaxed);
    }
}

/// Set when a stream has told its client all that there was to tell. A client that goes then has not cancelled it,
/// even if it does not wait for the status.
#[derive(Debug, Clone, Default)]
pub struct Concluded(Arc<AtomicBool>);

impl Concluded {
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// One rpc under way. It counts once: when its status is known, or as cancelled when it is dropped.
#[derive(Debug)]
pub struct Call {
    counters: Arc<Counters>,
    rpc: usize,
    started: Instant,
    ended: bool,
}

impl Call {
    pub fn start(counters: Arc<Counters>, rpc: usize) -> Call {
        counters.rpcs[rpc].in_flight.fetch_add(1, Relaxed);
        Call { counters, rpc, started: Instant::now(), ended: false }
    }

    pub fn sent(&self, bytes: usize) {
        self.counters.rpcs[self.rpc].sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let counters = &self.counters.rpcs[self.rpc];
        counters.in_flight.fetch_sub(1, Relaxed);
        counters.codes[code as usize].fetch_add(1, Relaxed);
        if counters.unary {
            let latency_us = self.started.elapsed().as_micros() as u64;
            let bucket = LATENCIES_US.partition_point(|bound| *bound < latency_us);
            counters.latencies[bucket].fetch_add(1, Relaxed);
            counters.latency_sum_us.fetch_add(latency_us, Relaxed);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

/// Everything that `/metrics` shows.
pub struct Metrics {
    registry: Registry,
    runtimes: Vec<Arc<Counters>>,
    rpcs: Arc<Rpcs>,
    refused: Arc<AtomicU64>,
    peers: Arc<Counters>,
}

impl Metrics {
    pub fn new(pool: &DescriptorPool, runtimes: usize) -> Metrics {
        let rpcs = Arc::new(Rpcs::new(pool));
        let runtimes: Vec<_> = (0..runtimes).map(|_| Arc::new(Counters::new(&rpcs))).collect();
        let refused = Arc::new(AtomicU64::new(0));
        let mut registry = Registry::with_prefix("tenure");
        registry.register_collector(Box::new(Network {
            rpcs: rpcs.clone(),
            runtimes: runtimes.clone(),
            refused: refused.clone(),
        }));
        registry.register_collector(Box::new(Process { started: SystemTime::now() }));
        let peers = Arc::new(Counters::new(&rpcs));
        Metrics { registry, runtimes, rpcs, refused, peers }
    }

    pub fn with_replica(mut self, status: impl Fn() -> Status + Send + Sync + 'static) -> Metrics {
        self.registry.register_collector(Box::new(Replica { status: Box::new(status) }));
        self
    }

    pub fn with_limits(mut self, limits: &Limits) -> Metrics {
        self.registry.register_collector(Box::new(LimitValues(limits.clone())));
        self
    }

    /// Whatever else has something to tell: the driver, the log, the peers.
    pub fn with_collector(mut self, collector: Box<dyn Collector>) -> Metrics {
        self.registry.register_collector(collector);
        self
    }

    pub fn rpcs(&self) -> &Arc<Rpcs> {
        &self.rpcs
    }

    pub fn runtime(&self, index: usize) -> &Arc<Counters> {
        &self.runtimes[index]
    }

    /// Of the peers' runtime, which has no clients.
    pub fn peers(&self) -> &Arc<Counters> {
        &self.peers
    }

    /// Connections turned away because their address has too many already.
    pub fn connections_refused(&self) -> &Arc<AtomicU64> {
        &self.refused
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.render_in(Form::Prometheus)
    }

    pub fn render_in(&self, form: Form) -> String {
        let mut open_metrics = String::with_capacity(16 * 1024);
        // Writing to a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut open_metrics, &self.registry);
        match form {
            Form::Prometheus => text::to_prometheus(&open_metrics),
            Form::OpenMetrics => open_metrics,
        }
    }
}

#[derive(Debug)]
struct Network {
    rpcs: Arc<Rpcs>,
    runtimes: Vec<Arc<Counters>>,
    refused: Arc<AtomicU64>,
}

impl Network {
    /// The rpcs that were called at all, with all runtimes' counters of each.
    fn called(&self) -> Vec<(&str, Vec<&RpcCounters>)> {
        let of_rpc = |index: usize| self.runtimes.iter().map(|counters| &counters.rpcs[index]).collect::<Vec<_>>();
        let rpcs = self.rpcs.rpcs.iter().enumerate().map(|(index, rpc)| (rpc.name.as_str(), of_rpc(index)));
        rpcs.filter(|(_, counters)| {
            sum(counters, |c| &c.in_flight, AtomicI64::load) != 0
                || (0..CODES.len()).any(|code| total(counters, |c| &c.codes[code]) != 0)
        })
        .collect()
    }
}

fn sum<A, N: std::iter::Sum>(
    counters: &[&RpcCounters],
    field: impl Fn(&RpcCounters) -> &A,
    load: impl Fn(&A, std::sync::atomic::Ordering) -> N,
) -> N {
    counters.iter().map(|counters| load(field(counters), Relaxed)).sum()
}

fn total(counters: &[&RpcCounters], field: impl Fn(&RpcCounters) -> &AtomicU64) -> u64 {
    sum(counters, field, AtomicU64::load)
}

impl Collector for Network {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let called = self.called();

        let mut family = encoder.encode_descriptor("rpc_requests", "Finished rpcs", None, MetricType::Counter)?;
        for (rpc, counters) in &called {
            for (code, name) in CODES.iter().enumerate() {
                let count = total(counters, |c| &c.codes[code]);
                if count > 0 {
                    let labels = [("rpc", *rpc), ("code", *name)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let mut family =
            encoder.encode_descriptor("rpc_in_flight", "Rpcs and streams under way", None, MetricType::Gauge)?;
        for (rpc, counters) in &called {
            let count = sum(counters, |c| &c.in_flight, AtomicI64::load);
            ConstGauge::new(count).encode(family.encode_family(&[("rpc", *rpc)])?)?;
        }
        let mut family =
            encoder.encode_descriptor("rpc_received_bytes", "Bytes of requests", None, MetricType::Counter)?;
        for (rpc, counters) in &called {
            let bytes = total(counters, |c| &c.received_bytes);
            ConstCounter::new(bytes).encode(family.encode_family(&[("rpc", *rpc)])?)?;
        }
        let mut family =
            encoder.encode_descriptor("rpc_sent_bytes", "Bytes of responses", None, MetricType::Counter)?;
        for (rpc, counters) in &called {
            let bytes = total(counters, |c| &c.sent_bytes);
            ConstCounter::new(bytes).encode(family.encode_family(&[("rpc", *rpc)])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "rpc_latency_seconds",
            "From a unary rpc's headers to its last byte",
            None,
            MetricType::Histogram,
        )?;
        for (rpc, counters) in called.iter().filter(|(_, counters)| counters[0].unary) {
            let counts = |bucket: usize| total(counters, |c| &c.latencies[bucket]);
            let bounds = LATENCIES_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::MAX]);
            let buckets: Vec<_> = bounds.enumerate().map(|(bucket, bound)| (bound, counts(bucket))).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let seconds = total(counters, |c| &c.latency_sum_us) as f64 / 1e6;
            family
                .encode_family(&[("rpc", *rpc)])?
                .encode_histogram::<[(&str, &str); 0]>(seconds, count, &buckets, None)?;
        }

        sessions::encode(&self.runtimes, &mut encoder)?;
        let open: i64 = self.runtimes.iter().map(|counters| counters.connections_open.load(Relaxed)).sum();
        let accepted: u64 = self.runtimes.iter().map(|counters| counters.connections_accepted.load(Relaxed)).sum();
        gauge(&mut encoder, "connections_open", "Client connections", open)?;
        counter(&mut encoder, "connections_accepted", "Client connections since the start", accepted)?;
        let help = "Connections turned away because their address had too many";
        counter(&mut encoder, "connections_refused", help, self.refused.load(Relaxed))
    }
}

struct Replica {
    status: Box<dyn Fn() -> Status + Send + Sync>,
}

impl fmt::Debug for Replica {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Replica")
    }
}

impl Collector for Replica {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let status = (self.status)();
        let leads = status.leader != 0 && status.leader == status.member;
        let gauges = [
            ("has_leader", "1 if this member knows a leader", u64::from(status.leader != 0)),
            ("is_leader", "1 if this member leads", leads.into()),
            ("is_learner", "1 if this member has no vote", status.learner.into()),
            ("term", "Raft term", status.term),
            ("last_index", "Last entry in the log", status.last_index),
            ("commit_index", "Last entry known to be committed", status.commit_index),
            ("applied_index", "Last entry applied", status.applied_index),
            ("snapshot_index", "Last entry within the newest snapshot", status.snapshot_index),
            ("revision", "Revision of the store", status.revision as u64),
            ("compacted_revision", "History is kept after this revision", status.compacted_revision.max(0) as u64),
            ("data_bytes", "Size of the data with its history", status.bytes),
            ("live_bytes", "Size of the data without its history", status.bytes_live),
            ("leases", "Leases", status.leases),
            ("watches", "Watches at this member", status.watches),
            ("waiting_locks", "Lock calls waiting at this member", status.waiting_locks),
        ];
        for (name, help, value) in gauges {
            gauge(&mut encoder, &format!("replica_{name}"), help, i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        let mut family = encoder.encode_descriptor("alarms", "Alarms that are raised", None, MetricType::Gauge)?;
        for kind in alarms::KINDS {
            let raised = status.alarms.iter().filter(|alarm| alarm.kind == kind).count();
            ConstGauge::new(raised as i64).encode(family.encode_family(&[("kind", alarms::name(kind))])?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct LimitValues(Limits);

impl Collector for LimitValues {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let limits = &self.0;
        let values = [
            ("request-bytes", limits.request_bytes as u64),
            ("transaction-operations", limits.transaction_operations as u64),
            ("streams-per-connection", limits.streams_per_connection.into()),
            ("header-list-bytes", limits.header_list_bytes.into()),
            ("pending-resets", limits.pending_resets as u64),
            ("connections-per-address", limits.connections_per_address as u64),
            ("leases-per-client", limits.leases_per_client as u64),
            ("watch-buffer-bytes", limits.watch_buffer_bytes as u64),
            ("inflight-bytes", limits.inflight_bytes),
        ];
        let mut family = encoder.encode_descriptor("limit", "Limits in force", None, MetricType::Gauge)?;
        for (name, value) in values {
            ConstGauge::new(value as i64).encode(family.encode_family(&[("limit", name)])?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Process {
    started: SystemTime,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        let help = "Processor time, user and system";
        let descriptor = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(seconds).encode(descriptor)?;
        if let Some(bytes) = resident_bytes() {
            gauge(&mut encoder, "process_resident_bytes", "Memory in use", bytes)?;
        }
        let since_epoch = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let help = "When the member started";
        gauge(&mut encoder, "process_start_seconds", help, since_epoch.as_secs() as i64)
    }
}

/// As the kernel tells it; None where there is no such kernel.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

pub(crate) fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: i64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

pub(crate) fn counter(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_machine::{Alarm, AlarmKind};

    fn metrics() -> Metrics {
        let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
        let alarms = vec![Alarm { member: 1, kind: AlarmKind::NoSpace }];
        let status = move || Status {
            leader: 1,
            member: 1,
            applied_index: 7,
            compacted_revision: -1,
            alarms: alarms.clone(),
            ..Default::default()
        };
        Metrics::new(&pool, 2).with_replica(status).with_limits(&Limits::default())
    }

    #[test]
    fn calls_of_all_runtimes_are_added_up() {
        let metrics = metrics();
        let put = metrics.rpcs().find("/etcdserverpb.KV/Put");
        for runtime in [0, 1] {
            let mut call = Call::start(metrics.runtime(runtime).clone(), put);
            metrics.runtime(runtime).received(put, 10);
            call.sent(20);
            call.end(Code::Ok);
        }
        let text = metrics.render();
        for line in [
            r#"tenure_rpc_requests_total{rpc="etcdserverpb.KV/Put",code="OK"} 2"#,
            r#"tenure_rpc_received_bytes_total{rpc="etcdserverpb.KV/Put"} 20"#,
            r#"tenure_rpc_sent_bytes_total{rpc="etcdserverpb.KV/Put"} 40"#,
            r#"tenure_rpc_in_flight{rpc="etcdserverpb.KV/Put"} 0"#,
            r#"tenure_rpc_latency_seconds_count{rpc="etcdserverpb.KV/Put"} 2"#,
            "tenure_replica_has_leader 1",
            "tenure_replica_applied_index 7",
            r#"tenure_limit{limit="request-bytes"} 1572864"#,
            "tenure_connections_open 0",
            "tenure_replica_compacted_revision 0",
            r#"tenure_alarms{kind="NOSPACE"} 1"#,
            r#"tenure_alarms{kind="CORRUPT"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("KV/Range"), "what was never called is not listed");
        assert!(text.contains("tenure_process_cpu_seconds_total"));
    }

    #[test]
    fn a_call_that_is_dropped_counts_as_cancelled_and_as_nothing_else() {
        let metrics = metrics();
        let watch = metrics.rpcs().find("/etcdserverpb.Watch/Watch");
        let call = Call::start(metrics.runtime(0).clone(), watch);
        assert!(metrics.render().contains(r#"tenure_rpc_in_flight{rpc="etcdserverpb.Watch/Watch"} 1"#));
        drop(call);
        let text = metrics.render();
        assert!(text.contains(r#"tenure_rpc_requests_total{rpc="etcdserverpb.Watch/Watch",code="Canceled"} 1"#));
        assert!(!text.contains(r#"tenure_rpc_latency_seconds_count{rpc="etcdserverpb.Watch/Watch"}"#));
    }

    #[test]
    fn every_rpc_that_waits_is_one_of_ours() {
        for name in WAITING {
            let metrics = metrics();
            let rpc = metrics.rpcs().find(&format!("/{name}"));
            assert!(rpc != 0 && metrics.rpcs().is_open_ended(rpc), "{name}");
        }
    }

    #[test]
    fn what_is_not_ours_is_counted_as_other() {
        assert_eq!(metrics().rpcs().find("/made.Up/Thing"), 0);
    }
}
