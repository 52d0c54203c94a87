//! Is this member well? Asked by etcd's clients at `/health`, by Kubernetes at `/livez` and `/readyz`,
//! by gRPC load balancers through `grpc.health.v1`.
//!
//! *Alive* means that the replica still answers; it needs no quorum, so that nobody restarts
//! members because another one is down. *Ready* means that a linearizable read gets through. Paths,
//! names of checks and shapes of answers are etcd's, so that its probes work as they are.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body as HttpBody;
use axum::extract::{Path, RawQuery};
use axum::routing::get;
use http::{Response, StatusCode};
use serde::Serialize;
use tenure_machine::{Alarm, AlarmKind, level};
use tenure_replica::{Consistency, Status};

use super::plain_text;
use crate::alarms;
use crate::member::Member;

/// What health is judged by.
pub trait Vitals: Send + Sync + 'static {
    fn status(&self) -> Status;

    /// Reads something, and gives the alarms that are raised; or says why it could not.
    fn read(
        &self,
        consistency: Consistency,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<AlarmKind>, String>> + Send + '_>>;
}

impl Vitals for Member {
    fn status(&self) -> Status {
        Member::status(self)
    }

    fn read(
        &self,
        consistency: Consistency,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<AlarmKind>, String>> + Send + '_>> {
        Box::pin(async move {
            let view = self.view(consistency).await.map_err(|failure| failure.to_string())?.value;
            let status = Member::status(self);
            // A member whose state differs is out of service by itself; the others go on.
            let is_of_another = |alarm: &Alarm| {
                let is_named = view.level() >= level::COMPARE && alarm.member != 0 && alarm.member != status.member;
                alarm.kind == AlarmKind::Corrupt && is_named
            };
            let alarms = view.alarms().into_iter().filter(|alarm| !is_of_another(alarm));
            Ok(alarms.map(|alarm| alarm.kind).collect())
        })
    }
}

pub struct Health {
    vitals: Box<dyn Vitals>,
    /// A read that takes longer has failed.
    timeout: Duration,
    stopping: AtomicBool,
}

/// In the order in which they are reported: what explains the others comes first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Running,
    SerializableRead,
    DataCorruption,
    Space,
    Leader,
    LinearizableRead,
    NonLearner,
}

/// How long a probe waits for the leader. Kubernetes gives a probe one second by default.
const PROBE_PATIENCE: Duration = Duration::from_millis(500);

const LIVE: &[Check] = &[Check::SerializableRead];
const READY: &[Check] = &[
    Check::Running,
    Check::SerializableRead,
    Check::DataCorruption,
    Check::Space,
    Check::Leader,
    Check::LinearizableRead,
    Check::NonLearner,
];

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Running => "running",
            Check::SerializableRead => "serializable_read",
            Check::DataCorruption => "data_corruption",
            Check::Space => "space",
            Check::Leader => "leader",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }
}

impl Health {
    pub fn new(vitals: impl Vitals, timeout: Duration) -> Arc<Health> {
        Arc::new(Health { vitals: Box::new(vitals), timeout, stopping: AtomicBool::new(false) })
    }

    /// From now on this member is not ready: it has been told to stop.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Ready as far as can be told without asking anybody; what `grpc.health.v1` reports.
    pub fn looks_ready(&self) -> bool {
        !self.stopping.load(Relaxed) && self.vitals.status().leader != 0
    }

    pub(super) fn routes(self: &Arc<Health>) -> Router {
        let (health, live, live_one, ready, ready_one) =
            (self.clone(), self.clone(), self.clone(), self.clone(), self.clone());
        Router::new()
            .route("/health", get(async move |RawQuery(query)| health.health(&Query::new(query)).await))
            .route("/livez", get(async move |RawQuery(query)| live.report(LIVE, &Query::new(query)).await))
            .route("/livez/{check}", get(async move |Path(name): Path<String>| live_one.report_one(LIVE, &name).await))
            .route("/readyz", get(async move |RawQuery(query)| ready.report(READY, &Query::new(query)).await))
            .route(
                "/readyz/{check}",
                get(async move |Path(name): Path<String>| ready_one.report_one(READY, &name).await),
            )
    }

    /// etcd's older check of everything at once.
    async fn health(&self, query: &Query) -> Response<HttpBody> {
        #[derive(Serialize)]
        struct Answer {
            health: &'static str,
            reason: String,
        }
        let reason = self.illness(query).await;
        let (status, health) = match &reason {
            None => (StatusCode::OK, "true"),
            Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "false"),
        };
        let answer = Answer { health, reason: reason.unwrap_or_default() };
        plain_text(status, serde_json::to_vec(&answer).unwrap_or_default())
    }

    async fn illness(&self, query: &Query) -> Option<String> {
        let serializable = query.value("serializable") == Some("true");
        match self.read(Consistency::Serializable).await {
            Err(error) => return Some(format!("RANGE ERROR:{error}")),
            Ok(alarms) => {
                let mut names = alarms.into_iter().map(alarms::name);
                if let Some(name) = names.find(|name| !query.values("exclude").any(|excluded| excluded == *name)) {
                    return Some(format!("ALARM {name}"));
                }
            }
        }
        if serializable {
            return None;
        }
        if self.vitals.status().leader == 0 {
            return Some("RAFT NO LEADER".to_owned());
        }
        self.read(Consistency::Linearizable).await.err().map(|error| format!("RANGE ERROR:{error}"))
    }

    async fn report(&self, checks: &[Check], query: &Query) -> Response<HttpBody> {
        let included = |check: &&Check| !query.values("exclude").any(|name| name == check.name());
        let (mut report, mut well, mut degraded) = (String::new(), true, String::new());
        for check in checks.iter().filter(included) {
            match self.check(*check).await {
                Ok(Fitness::Well) => report.push_str(&format!("[+]{} ok\n", check.name())),
                Ok(Fitness::Degraded(reason)) => {
                    report.push_str(&format!("[!]{} degraded: {reason}\n", check.name()));
                    degraded.push_str(&format!("degraded: {reason}\n"));
                }
                Err(reason) => {
                    well = false;
                    report.push_str(&format!("[-]{} failed: {reason}\n", check.name()));
                }
            }
        }
        match well {
            false => plain_text(StatusCode::SERVICE_UNAVAILABLE, report),
            true if query.value("verbose").is_some() => plain_text(StatusCode::OK, report + "ok\n"),
            true => plain_text(StatusCode::OK, degraded + "ok\n"),
        }
    }

    async fn report_one(&self, checks: &[Check], name: &str) -> Response<HttpBody> {
        match checks.iter().find(|check| check.name() == name) {
            Some(check) => self.report(&[*check], &Query::default()).await,
            None => {
                let names: Vec<_> = checks.iter().map(|check| check.name()).collect();
                plain_text(StatusCode::NOT_FOUND, format!("no such check; there are: {}\n", names.join(", ")))
            }
        }
    }

    async fn check(&self, check: Check) -> Result<Fitness, String> {
        let fails_if =
            |condition: bool, reason: &str| if condition { Err(reason.to_owned()) } else { Ok(Fitness::Well) };
        match check {
            Check::Running => fails_if(self.stopping.load(Relaxed), "the member is stopping"),
            Check::SerializableRead => self.read(Consistency::Serializable).await.map(|_| Fitness::Well),
            Check::DataCorruption => {
                let alarms = self.read(Consistency::Serializable).await?;
                fails_if(alarms.contains(&AlarmKind::Corrupt), "alarm activated: CORRUPT")
            }
            // Every member is as full as this one, and unlocks and renewals must find their way: it stays ready.
            Check::Space => Ok(match self.read(Consistency::Serializable).await?.contains(&AlarmKind::NoSpace) {
                true => Fitness::Degraded(format!("alarm NOSPACE: {}", alarms::meaning(AlarmKind::NoSpace))),
                false => Fitness::Well,
            }),
            Check::Leader => fails_if(
                self.vitals.status().leader == 0,
                "no leader: too few members are up or in touch with each other",
            ),
            // Without a leader nobody answers: the probe need not wait to learn that.
            Check::LinearizableRead if self.vitals.status().leader == 0 => Err("no leader".to_owned()),
            Check::LinearizableRead => {
                let patience = self.timeout.min(PROBE_PATIENCE);
                self.read_within(Consistency::Linearizable, patience).await.map(|_| Fitness::Well)
            }
            Check::NonLearner => fails_if(self.vitals.status().learner, "the local node is a learner"),
        }
    }

    async fn read(&self, consistency: Consistency) -> Result<Vec<AlarmKind>, String> {
        self.read_within(consistency, self.timeout).await
    }

    async fn read_within(&self, consistency: Consistency, patience: Duration) -> Result<Vec<AlarmKind>, String> {
        let timed_out = |_| Err(format!("no answer within {patience:?}"));
        tokio::time::timeout(patience, self.vitals.read(consistency)).await.unwrap_or_else(timed_out)
    }
}

/// How a check that did not fail turned out.
enum Fitness {
    Well,
    /// The member serves, but not everything.
    Degraded(String),
}

/// A query string's parts. Probes use plain words only: nothing is decoded.
#[derive(Default)]
struct Query(String);

impl Query {
    fn new(query: Option<String>) -> Query {
        Query(query.unwrap_or_default())
    }

    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.0.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
        pairs.filter(move |(key, _)| *key == name).map(|(_, value)| value)
    }

    fn value<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.values(name).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use http_body_util::BodyExt;
    use tonic::codegen::Service;

    #[derive(Clone)]
    struct Patient {
        status: Status,
        alarms: Vec<AlarmKind>,
        has_quorum: bool,
        hangs: bool,
        hangs_without_leader: bool,
    }

    impl Default for Patient {
        fn default() -> Patient {
            let status = Status { leader: 1, member: 1, ..Default::default() };
            Patient { status, alarms: Vec::new(), has_quorum: true, hangs: false, hangs_without_leader: false }
        }
    }

    impl Vitals for Patient {
        fn status(&self) -> Status {
            self.status.clone()
        }

        fn read(
            &self,
            consistency: Consistency,
        ) -> Pin<Box<dyn Future<Output = Result<Vec<AlarmKind>, String>> + Send + '_>> {
            Box::pin(async move {
                if self.hangs || (self.hangs_without_leader && consistency == Consistency::Linearizable) {
                    std::future::pending::<()>().await;
                }
                match consistency {
                    Consistency::Linearizable if !self.has_quorum => Err("timed out".to_owned()),
                    _ => Ok(self.alarms.clone()),
                }
            })
        }
    }

    async fn ask(health: &Arc<Health>, path: &str) -> (u16, String) {
        let request = Request::get(path).body(HttpBody::empty()).unwrap();
        let response = health.routes().call(request).await.unwrap();
        let status = response.status().as_u16();
        (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    fn health(patient: Patient) -> Arc<Health> {
        Health::new(patient, Duration::from_millis(20))
    }

    #[tokio::test]
    async fn a_well_member_is_well_everywhere() {
        let health = health(Patient::default());
        assert_eq!(ask(&health, "/health").await, (200, r#"{"health":"true","reason":""}"#.to_owned()));
        assert_eq!(ask(&health, "/livez").await, (200, "ok\n".to_owned()));
        assert_eq!(ask(&health, "/readyz").await, (200, "ok\n".to_owned()));
        assert_eq!(ask(&health, "/livez?verbose").await, (200, "[+]serializable_read ok\nok\n".to_owned()));
        assert!(ask(&health, "/readyz?verbose").await.1.contains("[+]linearizable_read ok\n"));
        assert_eq!(ask(&health, "/readyz/leader").await.0, 200);
        assert_eq!(ask(&health, "/readyz/bogus").await.0, 404);
    }

    #[tokio::test]
    async fn without_a_quorum_it_lives_but_is_not_ready() {
        let status = Status { leader: 0, ..Default::default() };
        let health = health(Patient { status, has_quorum: false, ..Default::default() });
        assert_eq!(ask(&health, "/livez").await.0, 200);
        let (status, report) = ask(&health, "/readyz").await;
        assert_eq!(status, 503);
        assert!(report.contains("[+]serializable_read ok\n"), "{report}");
        assert!(report.contains("[-]leader failed: no leader"), "{report}");
        assert!(report.contains("[-]linearizable_read failed: no leader\n"), "{report}");
        assert_eq!(ask(&health, "/health").await, (503, r#"{"health":"false","reason":"RAFT NO LEADER"}"#.to_owned()));
        assert_eq!(ask(&health, "/health?serializable=true").await.0, 200);
        assert!(!health.looks_ready());
    }

    /// The clock of the test goes on by itself: what is waited for is what the clock says.
    #[tokio::test(start_paused = true)]
    async fn a_probe_is_answered_before_it_gives_up() {
        let began = tokio::time::Instant::now();
        let headless = Patient { status: Status::default(), hangs_without_leader: true, ..Default::default() };
        assert_eq!(ask(&Health::new(headless, Duration::from_secs(7)), "/readyz").await.0, 503);
        assert_eq!(began.elapsed(), Duration::ZERO, "nothing is waited for");
        let cut_off = Patient { hangs_without_leader: true, ..Default::default() };
        let (status, report) = ask(&Health::new(cut_off, Duration::from_secs(7)), "/readyz").await;
        assert!(report.contains("[-]linearizable_read failed: no answer within 500ms\n"), "{report}");
        assert_eq!((status, began.elapsed()), (503, Duration::from_millis(500)));
    }

    #[tokio::test]
    async fn a_replica_that_hangs_is_not_alive() {
        let health = health(Patient { hangs: true, ..Default::default() });
        assert_eq!(
            ask(&health, "/livez").await,
            (503, "[-]serializable_read failed: no answer within 20ms\n".to_owned())
        );
    }

    #[tokio::test]
    async fn alarms_are_reported_unless_they_are_excluded() {
        let health = health(Patient { alarms: vec![AlarmKind::NoSpace], ..Default::default() });
        assert_eq!(ask(&health, "/health").await, (503, r#"{"health":"false","reason":"ALARM NOSPACE"}"#.to_owned()));
        assert_eq!(ask(&health, "/health?exclude=NOSPACE").await.0, 200);
        let (status, text) = ask(&health, "/readyz").await;
        assert_eq!(status, 200, "a full store still unlocks and renews");
        assert!(text.starts_with("degraded: alarm NOSPACE: "), "{text}");
        assert!(ask(&health, "/readyz?verbose").await.1.contains("[!]space degraded: alarm NOSPACE: "));
    }

    #[tokio::test]
    async fn a_member_that_stops_is_not_ready() {
        let health = health(Patient::default());
        health.stop();
        assert_eq!(ask(&health, "/readyz").await.0, 503);
        assert_eq!(ask(&health, "/readyz?exclude=running").await.0, 200);
        assert!(!health.looks_ready());
    }
}
