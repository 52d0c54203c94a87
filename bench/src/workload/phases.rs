//! Puts at a steady rate while somebody else does things to the cluster, and says so on standard input: every line there
//! names what happens from then on, and the end of it ends the run.
//!
//! A client that gets no answer goes on at the next endpoint. Every put writes a key of its own, so that in the end it
//! is known whether anything that was acknowledged is lost.

use std::collections::HashSet;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use bytes::Bytes;
use tenure_api::etcdserverpb::{RangeRequest, RangeResponse};
use tokio::task::JoinSet;

use super::expiry::due;
use super::{key_value, prefix_end, value};
use crate::Progress;
use crate::drive::{bounded, runtime};
use crate::meter::{Measurement, Meter};
use crate::plan::{Plan, Server};
use crate::wire::{Connection, Failure};

/// A put that is not answered within this time is given up, and another one sent elsewhere.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(5);
/// Nobody takes a client's puts for so long: the cluster is gone, and the run has failed.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Nobody calls anything shorter an outage.
const OUTAGE: Duration = Duration::from_millis(100);
/// Keys that are looked for at a time in the end.
const PAGE: i64 = 10_000;

pub fn run(plan: &Plan, server: &Server, progress: Progress<'_>) -> anyhow::Result<Vec<Measurement>> {
    ensure!(plan.servers.len() == 1 && plan.rounds == 1, "phases are of one server, and pass once");
    let story = Arc::new(Story::new());
    let run = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let threads = plan.threads.min(plan.clients);
    let clients = std::thread::scope(|scope| {
        let thread = |thread: usize| {
            let (story, prefix) = (story.clone(), format!("bench/phases/{run:x}/"));
            scope.spawn(move || put_all(plan, server, thread, threads, &prefix, &story))
        };
        let handles: Vec<_> = (0..threads).map(thread).collect();
        tell(&story, std::io::stdin().lock(), |name| progress(&format!("{name} on {}", server.name)));
        let joined = handles.into_iter().map(|handle| handle.join().expect("load threads do not panic"));
        joined.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let clients: Vec<Client> = clients.into_iter().flatten().collect();
    progress(&format!("looking for all that {} has acknowledged", server.name));
    let lost = runtime()?.block_on(lost(server, &clients))?;
    Ok(story.measurements(server, &clients, lost))
}

/// Begins a phase with every line.
fn tell(story: &Story, lines: impl BufRead, told: impl Fn(&str)) {
    for name in lines.lines().map_while(Result::ok) {
        told(&name);
        story.begin(name);
    }
    story.end();
}

struct Phase {
    name: String,
    began: Instant,
    ended: Option<Instant>,
    /// Until the first put that was sent in this phase was acknowledged.
    first_answer: Option<Duration>,
}

/// What happened when, as far as it is known.
struct Story {
    started: Instant,
    phases: Mutex<Vec<Phase>>,
    over: AtomicBool,
}

impl Story {
    fn new() -> Story {
        Story { started: Instant::now(), phases: Mutex::default(), over: AtomicBool::new(false) }
    }

    fn begin(&self, name: String) {
        let (began, mut phases) = (Instant::now(), self.phases());
        if let Some(last) = phases.last_mut() {
            last.ended = Some(began);
        }
        phases.push(Phase { name, began, ended: None, first_answer: None });
    }

    fn end(&self) {
        if let Some(last) = self.phases().last_mut() {
            last.ended = Some(Instant::now());
        }
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The number of the present phase; None before the first.
    fn now(&self) -> Option<usize> {
        self.phases().len().checked_sub(1)
    }

    /// A put that was sent in that phase is acknowledged.
    fn answered(&self, phase: usize) {
        let phase = &mut self.phases()[phase];
        let began = phase.began;
        phase.first_answer.get_or_insert_with(|| began.elapsed());
    }

    fn phases(&self) -> MutexGuard<'_, Vec<Phase>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for each name, in the order in which they came up.
    fn measurements(&self, server: &Server, clients: &[Client], lost: u64) -> Vec<Measurement> {
        let phases = self.phases();
        let mut names: Vec<&str> = Vec::new();
        for phase in phases.iter().filter(|phase| !phase.name.is_empty()) {
            if !names.contains(&phase.name.as_str()) {
                names.push(&phase.name);
            }
        }
        let acknowledged: usize = clients.iter().map(|client| client.acknowledged.len()).sum();
        let mut measurements: Vec<Measurement> = names
            .into_iter()
            .map(|name| {
                let mut meter = Meter::default();
                let of_name = || phases.iter().enumerate().filter(|(_, phase)| phase.name == name);
                for (number, _) in of_name() {
                    let seen = clients.iter().filter_map(|client| client.seen.get(number));
                    seen.for_each(|seen| meter.merge(seen.clone()));
                }
                let elapsed = of_name().filter_map(|(_, phase)| Some(phase.ended? - phase.began)).sum();
                let first_answers = of_name().map(|(_, phase)| phase.first_answer).collect();
                let note = describe(first_answers);
                let (label, server) = (format!("put: {name}"), server.name.clone());
                Measurement { label, server, meter, elapsed, cpu: None, resident_bytes: None, note }
            })
            .collect();
        if let Some(last) = measurements.last_mut() {
            let note = last.note.take().map_or_else(String::new, |note| format!("{note}; "));
            last.note = Some(format!("{note}of all {acknowledged} acknowledged puts {lost} are lost"));
            if lost > 0 {
                last.meter.fail(format!("{lost} acknowledged puts are lost"));
            }
        }
        measurements
    }
}

/// How long it took until somebody was answered, each time; None if that was always soon.
fn describe(first_answers: Vec<Option<Duration>>) -> Option<String> {
    let times = first_answers.len();
    let mut answered: Vec<Duration> = first_answers.into_iter().flatten().collect();
    answered.sort();
    let text = |time: &Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
    let never = times - answered.len();
    if never == 0 && answered.last().is_some_and(|longest| *longest < OUTAGE) {
        return None;
    }
    let none = if never > 0 { format!(", {never} times not at all") } else { String::new() };
    Some(match answered.as_slice() {
        [] => "no put of this time was acknowledged".to_owned(),
        [only] => format!("the first put was acknowledged after {}{none}", text(only)),
        [.., longest] => {
            let rank = |share: f64| text(&answered[(answered.len() as f64 * share).ceil() as usize - 1]);
            let (median, most) = (rank(0.5), rank(0.9));
            let longest = text(longest);
            format!(
                "{times} times; the first put was acknowledged after {median} (median), {most} (90 %), {longest} at most{none}"
            )
        }
    })
}

/// One client, with a connection of its own.
struct Client {
    number: u64,
    prefix: String,
    value: Bytes,
    endpoints: Vec<String>,
    /// Which of them is asked.
    place: usize,
    connection: Option<Connection>,
    sent: u64,
    acknowledged: Vec<u64>,
    /// By the number of the phase in which the puts were due.
    seen: Vec<Meter>,
}

fn put_all(
    plan: &Plan,
    server: &Server,
    thread: usize,
    threads: usize,
    prefix: &str,
    story: &Arc<Story>,
) -> anyhow::Result<Vec<Client>> {
    let value: Bytes = value(plan.value_bytes, 1).into();
    runtime()?.block_on(async {
        let mut putting = JoinSet::new();
        for number in (thread..plan.clients).step_by(threads) {
            let client = Client {
                number: number as u64,
                prefix: format!("{prefix}{number:05}/"),
                value: value.clone(),
                endpoints: server.endpoints.clone(),
                place: number % server.endpoints.len(),
                connection: None,
                sent: 0,
                acknowledged: Vec::new(),
                seen: Vec::new(),
            };
            putting.spawn(client.put_at_rate(plan.clients as u64, plan.rate, story.clone()));
        }
        Ok(putting.join_all().await)
    })
}

impl Client {
    /// Latency counts from when a put was due: one that had to wait has waited for the cluster.
    async fn put_at_rate(mut self, clients: u64, rate: u64, story: Arc<Story>) -> Client {
        for turn in 0.. {
            let due = story.started + due(turn * clients + self.number, rate);
            let is_free = Instant::now() < due;
            tokio::time::sleep_until(due.into()).await;
            // Being woken late is this client's own doing.
            let began = if is_free { Instant::now() } else { due };
            if story.is_over() {
                break;
            }
            let phase = story.now();
            let outcome = tokio::time::timeout(STALLED_AFTER, self.put_somewhere(&story)).await;
            let Some(phase) = phase else { continue };
            self.seen.resize_with(self.seen.len().max(phase + 1), Meter::default);
            match outcome {
                Ok(true) => self.seen[phase].record(Ok(began.elapsed())),
                Ok(false) => break,
                Err(_) => {
                    self.seen[phase].fail(format!("nobody took a put for {STALLED_AFTER:?}"));
                    break;
                }
            }
        }
        self
    }

    /// Tries until a put is acknowledged; false if the run ends before.
    async fn put_somewhere(&mut self, story: &Story) -> bool {
        loop {
            let phase = story.now();
            if let Ok(Ok(number)) = tokio::time::timeout(PATIENCE, self.put()).await {
                self.acknowledged.push(number);
                phase.into_iter().for_each(|phase| story.answered(phase));
                return true;
            }
            self.connection = None;
            self.place = (self.place + 1) % self.endpoints.len();
            if story.is_over() {
                return false;
            }
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
        }
    }

    async fn put(&mut self) -> Result<u64, Failure> {
        let connection = match self.connection.clone() {
            Some(connection) => connection,
            None => self.connection.insert(Connection::open(&self.endpoints[self.place]).await?).clone(),
        };
        let number = self.sent;
        // Whatever becomes of it, this key is not written again.
        self.sent += 1;
        let request = key_value::put(&self.prefix, number, self.value.clone());
        connection.call(&connection.method("/etcdserverpb.KV/Put"), request).await?;
        Ok(number)
    }
}

/// How many of the acknowledged keys are not there.
async fn lost(server: &Server, clients: &[Client]) -> anyhow::Result<u64> {
    let mut connection = None;
    for endpoint in &server.endpoints {
        if connection.is_none() {
            connection = Connection::open(endpoint).await.ok();
        }
    }
    let Some(connection) = connection else { anyhow::bail!("{}: no endpoint can be reached any more", server.name) };
    let mut lost = 0;
    for client in clients {
        let found = bounded(keys(&connection, &client.prefix)).await?;
        let written = |number: &&u64| found.contains(&key_value::key(&client.prefix, **number));
        lost += (client.acknowledged.len() - client.acknowledged.iter().filter(written).count()) as u64;
    }
    Ok(lost)
}

async fn keys(connection: &Connection, prefix: &str) -> Result<HashSet<Bytes>, Failure> {
    let mut found = HashSet::new();
    let mut key = Bytes::copy_from_slice(prefix.as_bytes());
    loop {
        let request = RangeRequest {
            key,
            range_end: prefix_end(prefix).into(),
            limit: PAGE,
            keys_only: true,
            ..RangeRequest::default()
        };
        let page: RangeResponse = connection.ask("/etcdserverpb.KV/Range", &request).await?;
        let last = page.kvs.last().map(|pair| pair.key.clone());
        found.extend(page.kvs.into_iter().map(|pair| pair.key));
        match last.filter(|_| page.more) {
            // The next key there can be.
            Some(last) => key = [&last[..], &[0]].concat().into(),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(seen: Vec<Meter>) -> Client {
        Client {
            number: 0,
            prefix: String::new(),
            value: Bytes::new(),
            endpoints: Vec::new(),
            place: 0,
            connection: None,
            sent: 0,
            acknowledged: vec![0, 1, 2],
            seen,
        }
    }

    fn meter(millis: &[u64]) -> Meter {
        let mut meter = Meter::default();
        millis.iter().for_each(|millis| meter.record(Ok(Duration::from_millis(*millis))));
        meter
    }

    #[test]
    fn phases_of_one_name_add_up_and_what_is_lost_fails_the_run() {
        let story = Story::new();
        tell(&story, &b"calm\nkilled\ncalm\nkilled\n"[..], |_| {});
        assert!(story.is_over());
        let clients = [client(vec![meter(&[1]), meter(&[900]), meter(&[2, 3])])];
        let server: Server = "s=a:1".parse().unwrap();
        let measurements = story.measurements(&server, &clients, 0);
        let counts: Vec<(&str, u64)> =
            measurements.iter().map(|one| (one.label.as_str(), one.meter.latencies.count())).collect();
        assert_eq!(counts, [("put: calm", 3), ("put: killed", 1)]);
        assert!(measurements[1].note.as_ref().unwrap().contains("of all 3 acknowledged puts 0 are lost"));
        assert_eq!(measurements[1].meter.failures, 0);
        assert_eq!(story.measurements(&server, &clients, 2)[1].meter.failures, 1);
    }

    #[test]
    fn only_the_first_answer_of_a_phase_counts() {
        let story = Story::new();
        assert_eq!(story.now(), None);
        story.begin("a".to_owned());
        story.answered(0);
        let first = story.phases()[0].first_answer;
        story.answered(0);
        assert!(first.is_some() && story.phases()[0].first_answer == first);
        story.begin("b".to_owned());
        assert_eq!((story.now(), story.phases()[1].first_answer), (Some(1), None));
    }

    #[test]
    fn outages_are_told_by_median_and_longest() {
        let answered = (1..=20).map(|number| Some(Duration::from_millis(number * 10))).collect();
        assert_eq!(
            describe(answered).unwrap(),
            "20 times; the first put was acknowledged after 100 ms (median), 180 ms (90 %), 200 ms at most"
        );
        let never = vec![Some(Duration::from_millis(5)), None];
        assert_eq!(describe(never).unwrap(), "the first put was acknowledged after 5 ms, 1 times not at all");
        assert_eq!(describe(vec![None]).unwrap(), "no put of this time was acknowledged");
        assert_eq!(describe(vec![Some(Duration::from_millis(5))]), None);
    }
}
