//! How a call finds a server, and when it may be tried again.
//!
//! All calls go to one endpoint for as long as it answers, then to the next. What a failure allows:
//! - The connection could not be made: nothing was sent, so any call may try the next endpoint.
//! - It broke, or this member cannot answer: only a call that changes nothing may be repeated.
//! - The server gave its verdict: that is the answer.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure_api::etcdserverpb::StatusRequest;
use tenure_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::Settings;
use crate::diagnose;
use crate::diagnose::Cause;
use crate::endpoint::Address;
use crate::error::{Attempt, Error, Meaning, read_status};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(1);
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known about a call before it is made.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Named in errors.
    pub name: &'static str,
    /// Repeating it changes nothing.
    pub idempotent: bool,
    /// It may take as long as it takes: it waits for its turn, or is a stream.
    pub unlimited: bool,
}

impl Kind {
    pub fn read(name: &'static str) -> Kind {
        Kind { name, idempotent: true, unlimited: false }
    }

    pub fn write(name: &'static str) -> Kind {
        Kind { name, idempotent: false, unlimited: false }
    }

    pub fn waiting(name: &'static str) -> Kind {
        Kind { name, idempotent: false, unlimited: true }
    }
}

pub struct Connections {
    endpoints: Vec<RwLock<Arc<Endpoint>>>,
    current: AtomicUsize,
    settings: Settings,
}

pub struct Endpoint {
    pub address: Address,
    pub channel: Channel,
    /// It has answered a call at least once: it is a server of ours.
    answered: AtomicBool,
}

/// What one failed attempt means for the call.
enum Verdict {
    Unsent(Cause),
    Passing(Error),
    Final(Error),
}

impl Connections {
    pub fn new(addresses: Vec<Address>, settings: Settings) -> Connections {
        let open = |address| RwLock::new(Arc::new(Endpoint::open(address, settings)));
        Connections { endpoints: addresses.into_iter().map(open).collect(), current: AtomicUsize::new(0), settings }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.endpoints().map(|endpoint| endpoint.address.text.clone()).collect()
    }

    fn endpoints(&self) -> impl Iterator<Item = Arc<Endpoint>> {
        self.endpoints.iter().map(read)
    }

    pub fn each(&self) -> Vec<(String, Connections)> {
        let single = |endpoint: Arc<Endpoint>| Connections {
            endpoints: vec![RwLock::new(endpoint)],
            current: AtomicUsize::new(0),
            settings: self.settings,
        };
        self.endpoints().map(|endpoint| (endpoint.address.text.clone(), single(endpoint))).collect()
    }

    /// Connections of their own to the same endpoints, made on the runtime that is entered.
    pub fn anew(&self) -> Connections {
        let addresses = self.endpoints().map(|endpoint| endpoint.address.clone()).collect();
        Connections::new(addresses, self.settings)
    }

    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The endpoint that calls go to at present.
    pub fn current(&self) -> Arc<Endpoint> {
        read(&self.endpoints[self.current.load(Ordering::Relaxed)])
    }

    /// Turns to the next endpoint, unless somebody has already.
    pub fn leave(&self, endpoint: &Arc<Endpoint>) {
        let Some(index) = self.endpoints().position(|other| Arc::ptr_eq(&other, endpoint)) else { return };
        let next = (index + 1) % self.endpoints.len();
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// As [`Connections::leave`], and whoever comes back there gets a new connection: this one may be
    /// dead without knowing it. Must be called on the runtime that the connections live on.
    pub fn abandon(&self, endpoint: &Arc<Endpoint>) {
        self.leave(endpoint);
        for slot in &self.endpoints {
            let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
            // Many may find out at the same time; the first of them is enough.
            if Arc::ptr_eq(&slot, endpoint) {
                *slot = Arc::new(Endpoint::open(endpoint.address.clone(), self.settings));
            }
        }
    }

    /// Makes a call, at as many endpoints and as often as its kind and its time allow.
    pub async fn call<Reply, Called>(&self, kind: Kind, call: impl FnMut(Channel) -> Called) -> Result<Reply, Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        Ok(self.call_somewhere(kind, call).await?.1)
    }

    /// As [`Connections::call`], and tells which endpoint answered.
    pub async fn call_somewhere<Reply, Called>(
        &self,
        kind: Kind,
        mut call: impl FnMut(Channel) -> Called,
    ) -> Result<(Arc<Endpoint>, Reply), Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        let started = Instant::now();
        let give_up = started + self.settings.timeout;
        let deadline = (!kind.unlimited).then_some(give_up);
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut pause = FIRST_PAUSE;
        loop {
            let endpoint = self.current();
            let outcome = bounded(self.attempt_deadline(kind, deadline), call(endpoint.channel.clone())).await;
            let may_repeat = kind.idempotent && Instant::now() + pause < give_up;
            let verdict = match outcome {
                Some(Ok(reply)) => {
                    endpoint.answered.store(true, Ordering::Relaxed);
                    return Ok((endpoint, reply.into_inner()));
                }
                Some(Err(status)) => self.judge(&endpoint, kind, started, &status).await,
                // To ask why takes time that another member could answer in.
                None if may_repeat && self.endpoints.len() > 1 => {
                    Verdict::Passing(silence(&endpoint, kind, started.elapsed(), SILENT))
                }
                None => Verdict::Final(self.explain_silence(&endpoint, kind, started).await),
            };
            let error = match verdict {
                Verdict::Final(error) => return Err(error),
                Verdict::Unsent(cause) => {
                    self.leave(&endpoint);
                    attempts.push(Attempt { endpoint: endpoint.address.text.clone(), cause });
                    if attempts.len() < self.endpoints.len() {
                        continue;
                    }
                    let error = Error::Unreachable { attempts: std::mem::take(&mut attempts) };
                    // Who has never reached anybody has probably been given the wrong address.
                    if !self.endpoints().any(|endpoint| endpoint.answered.load(Ordering::Relaxed)) {
                        return Err(error);
                    }
                    error
                }
                Verdict::Passing(error) => {
                    self.leave(&endpoint);
                    attempts.clear();
                    if !may_repeat {
                        return Err(error);
                    }
                    error
                }
            };
            if Instant::now() + pause >= give_up {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What a broken stream means; turns to the next endpoint if that may help.
    pub async fn judge_stream(&self, endpoint: &Arc<Endpoint>, kind: Kind, status: &Status) -> Result<Error, Error> {
        match self.judge(endpoint, kind, Instant::now(), status).await {
            Verdict::Final(error) => Err(error),
            Verdict::Passing(error) => {
                self.leave(endpoint);
                Ok(error)
            }
            Verdict::Unsent(cause) => {
                self.leave(endpoint);
                Ok(Error::Unreachable { attempts: vec![Attempt { endpoint: endpoint.address.text.clone(), cause }] })
            }
        }
    }

    /// A member that hangs must not use up the time that another one could answer in.
    fn attempt_deadline(&self, kind: Kind, deadline: Option<Instant>) -> Option<Instant> {
        let deadline = deadline?;
        match kind.idempotent && self.endpoints.len() > 1 {
            true => Some(Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2),
            false => Some(deadline),
        }
    }

    async fn judge(&self, endpoint: &Endpoint, kind: Kind, started: Instant, status: &Status) -> Verdict {
        let address = &endpoint.address.text;
        if let Some(cause) = diagnose::connect_failure(status) {
            return Verdict::Unsent(cause);
        }
        if diagnose::is_transport(status) {
            // A server that never answered a call and breaks this one may not be a server of ours at all.
            if !endpoint.answered.load(Ordering::Relaxed)
                && let Some(cause @ (Cause::Tls | Cause::NotHttp2(_))) =
                    diagnose::probe(address, DIAGNOSIS_TIMEOUT).await
            {
                return Verdict::Unsent(cause);
            }
            let cause = diagnose::innermost(status);
            let endpoint = address.clone();
            return Verdict::Passing(Error::Lost { endpoint, call: kind.name, cause, unknown: !kind.idempotent });
        }
        endpoint.answered.store(true, Ordering::Relaxed);
        match read_status(address, kind.name, started.elapsed(), status, !kind.idempotent) {
            Meaning::Final(error) => Verdict::Final(error),
            Meaning::Passing(error) => Verdict::Passing(error),
        }
    }

    /// A call got no answer in time: asks the member how it is, to say why.
    async fn explain_silence(&self, endpoint: &Endpoint, kind: Kind, started: Instant) -> Error {
        let waited = started.elapsed();
        let mut maintenance = MaintenanceClient::new(endpoint.channel.clone());
        match tokio::time::timeout(DIAGNOSIS_TIMEOUT, maintenance.status(StatusRequest {})).await {
            Ok(Ok(status)) if status.get_ref().leader == 0 => {
                Error::NoLeader { endpoint: endpoint.address.text.clone(), unknown: !kind.idempotent }
            }
            Ok(Ok(_)) => silence(endpoint, kind, waited, BUSY),
            Ok(Err(status)) => {
                let cause = diagnose::innermost(&status);
                silence(endpoint, kind, waited, &format!("the member cannot even tell its status ({cause})"))
            }
            Err(_) => silence(endpoint, kind, waited, SILENT),
        }
    }
}

impl Endpoint {
    fn open(address: Address, settings: Settings) -> Endpoint {
        let channel = Channel::builder(address.uri.clone())
            .connect_timeout(settings.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .connect_lazy();
        Endpoint { address, channel, answered: AtomicBool::new(false) }
    }
}

fn read(slot: &RwLock<Arc<Endpoint>>) -> Arc<Endpoint> {
    slot.read().unwrap_or_else(PoisonError::into_inner).clone()
}

const BUSY: &str = "the member is alive and knows its leader, so it is overloaded or a disk is slow";
const SILENT: &str = "the member is connected but silent: it hangs, is stopped, or the network drops packets";

fn silence(endpoint: &Endpoint, kind: Kind, waited: Duration, reason: &str) -> Error {
    Error::Timeout {
        endpoint: endpoint.address.text.clone(),
        call: kind.name,
        waited,
        reason: reason.to_owned(),
        unknown: !kind.idempotent,
    }
}

async fn bounded<Answer>(deadline: Option<Instant>, work: impl Future<Output = Answer>) -> Option<Answer> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}
