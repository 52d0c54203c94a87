//! How a call is made. Whether it is made again is decided by [`Retry`], which is pure; here is found out what a failure
//! means for the call, and which server is asked next.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::etcdserverpb::StatusRequest;
use tenure_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::time::Instant;
use tonic::{Response, Status};

use crate::connection::Connection;
use crate::connections::Connections;
use crate::diagnose;
use crate::error::{Error, Meaning, read_status};
use crate::retry::{Failure, Next, Retry};
use crate::timed_channel::TimedChannel;

const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(1);
/// With less time left, another member is not asked any more.
const LEAST_ATTEMPT: Duration = Duration::from_millis(20);

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

/// What came of one attempt.
enum Outcome<Reply> {
    Answered(Result<Response<Reply>, Status>),
    /// The time of the attempt is over.
    Late,
    /// The server says nothing any more.
    Silent,
}

/// What one failed attempt means for the call.
enum Verdict {
    /// It did not leave this machine, or nobody has looked at it.
    Unsent(Error),
    Passing(Error),
    Final(Error),
}

impl Verdict {
    fn failure(&self) -> Failure {
        match self {
            Verdict::Unsent(_) => Failure::Unsent,
            Verdict::Passing(error) if error.outcome_is_unknown() => Failure::InDoubt,
            Verdict::Passing(_) => Failure::NotDone,
            Verdict::Final(_) => Failure::Verdict,
        }
    }
}

impl Connections {
    /// Makes a call, at as many servers and as often as its kind and its time allow.
    pub async fn call<Reply, Called>(
        &self,
        kind: Kind,
        call: impl FnMut(TimedChannel) -> Called,
    ) -> Result<Reply, Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        self.call_until(kind, Instant::now() + self.settings().timeout, call).await
    }

    /// As [`Connections::call`], with a time of its own.
    pub async fn call_until<Reply, Called>(
        &self,
        kind: Kind,
        give_up: Instant,
        mut call: impl FnMut(TimedChannel) -> Called,
    ) -> Result<Reply, Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        let call = |connection: &Connection, ends: Instant| {
            let timeout = (!kind.unlimited).then(|| ends.saturating_duration_since(Instant::now()));
            call(TimedChannel::new(connection.channel.clone(), timeout))
        };
        Ok(self.repeat(kind, give_up, call).await?.1)
    }

    /// Opens a stream, and tells over which connection. The stream may last for as long as it likes.
    pub async fn call_somewhere<Reply, Called>(
        &self,
        kind: Kind,
        mut call: impl FnMut(TimedChannel) -> Called,
    ) -> Result<(Arc<Connection>, Reply), Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        let call = |connection: &Connection, _| call(TimedChannel::new(connection.channel.clone(), None));
        self.repeat(kind, Instant::now() + self.settings().timeout, call).await
    }

    async fn repeat<Reply, Called>(
        &self,
        kind: Kind,
        give_up: Instant,
        mut call: impl FnMut(&Connection, Instant) -> Called,
    ) -> Result<(Arc<Connection>, Reply), Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        let started = Instant::now();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut retry = Retry::new(kind.idempotent, 0, ms(give_up.saturating_duration_since(started)));
        loop {
            let (error, failure) = match self.connection(give_up).await {
                Ok(connection) => {
                    let ends_ms = retry.attempt_ends_ms(ms(started.elapsed()), self.has_others());
                    let ends = started + Duration::from_millis(ends_ms);
                    let outcome = self.attempt(&connection, kind, ends, call(&connection, ends)).await;
                    let verdict = match outcome {
                        Outcome::Answered(Ok(reply)) => return Ok((connection, reply.into_inner())),
                        Outcome::Answered(Err(status)) => judge(&connection, kind, started, &status),
                        Outcome::Late => self.judge_lateness(&connection, kind, started, give_up).await,
                        Outcome::Silent => Verdict::Passing(silence(&connection, kind, started.elapsed(), SILENT)),
                    };
                    let failure = verdict.failure();
                    (self.draw_conclusions(&connection, verdict), failure)
                }
                Err(attempts) => (Error::Unreachable { attempts }, Failure::Unreachable),
            };
            match retry.next(ms(started.elapsed()), failure, self.has_reached_any()) {
                Next::Fail => return Err(error),
                Next::Retry { pause_ms } => tokio::time::sleep(Duration::from_millis(pause_ms)).await,
            }
        }
    }

    async fn attempt<Reply>(
        &self,
        connection: &Arc<Connection>,
        kind: Kind,
        ends: Instant,
        call: impl Future<Output = Result<Response<Reply>, Status>>,
    ) -> Outcome<Reply> {
        let mut call = pin!(call);
        if kind.unlimited {
            return tokio::select! {
                answer = call => Outcome::Answered(answer),
                () = connection.fallen_silent() => Outcome::Silent,
            };
        }
        match tokio::time::timeout_at(ends, connection.listen(&mut call)).await {
            Ok(Some(answer)) => Outcome::Answered(answer),
            Ok(None) if kind.idempotent => Outcome::Silent,
            // Others go elsewhere from now on. What was sent cannot be sent again, but may still be answered.
            Ok(None) => {
                self.leave(connection);
                tokio::time::timeout_at(ends, call).await.map_or(Outcome::Silent, Outcome::Answered)
            }
            Err(_) => Outcome::Late,
        }
    }

    /// Turns away from a server that is of no use now, and gives the error.
    fn draw_conclusions(&self, connection: &Arc<Connection>, verdict: Verdict) -> Error {
        match verdict {
            Verdict::Final(error) => error,
            Verdict::Unsent(error) => {
                self.forget(connection);
                error
            }
            Verdict::Passing(error) => {
                self.leave(connection);
                error
            }
        }
    }

    /// What a broken stream means: Ok if it may go on elsewhere.
    pub fn judge_stream(&self, connection: &Arc<Connection>, kind: Kind, status: &Status) -> Result<Error, Error> {
        match judge(connection, kind, Instant::now(), status) {
            Verdict::Final(error) => Err(error),
            verdict => Ok(self.draw_conclusions(connection, verdict)),
        }
    }

    /// A stream on which the server says nothing any more.
    pub fn judge_silence(&self, connection: &Arc<Connection>, kind: Kind, waited: Duration) -> Error {
        self.leave(connection);
        silence(connection, kind, waited, SILENT)
    }

    async fn judge_lateness(
        &self,
        connection: &Arc<Connection>,
        kind: Kind,
        started: Instant,
        give_up: Instant,
    ) -> Verdict {
        // To ask why takes time that another member could answer in.
        if kind.idempotent && self.has_others() && Instant::now() + LEAST_ATTEMPT < give_up {
            return Verdict::Passing(silence(connection, kind, started.elapsed(), LATE));
        }
        Verdict::Final(explain_lateness(connection, kind, started).await)
    }
}

fn judge(connection: &Connection, kind: Kind, started: Instant, status: &Status) -> Verdict {
    let endpoint = connection.address.text.clone();
    let (call, unknown) = (kind.name, !kind.idempotent);
    if diagnose::is_unsent(status) {
        let cause = diagnose::innermost(status);
        return Verdict::Unsent(Error::Lost { endpoint, call, cause, unknown: false });
    }
    if diagnose::is_transport(status) {
        let cause = diagnose::innermost(status);
        return Verdict::Passing(Error::Lost { endpoint, call, cause, unknown });
    }
    connection.heard();
    match read_status(&endpoint, call, started.elapsed(), status, unknown) {
        Meaning::Final(error) => Verdict::Final(error),
        Meaning::Passing(error) => Verdict::Passing(error),
    }
}

/// A call got no answer in time: asks the member how it is, to say why.
async fn explain_lateness(connection: &Connection, kind: Kind, started: Instant) -> Error {
    let waited = started.elapsed();
    let mut maintenance = MaintenanceClient::new(connection.channel.clone());
    match tokio::time::timeout(DIAGNOSIS_TIMEOUT, maintenance.status(StatusRequest {})).await {
        Ok(Ok(status)) if status.get_ref().leader == 0 => {
            Error::NoLeader { endpoint: connection.address.text.clone(), unknown: !kind.idempotent }
        }
        Ok(Ok(_)) => silence(connection, kind, waited, BUSY),
        Ok(Err(status)) => {
            let cause = diagnose::innermost(&status);
            silence(connection, kind, waited, &format!("the member cannot even tell its status ({cause})"))
        }
        Err(_) => silence(connection, kind, waited, SILENT),
    }
}

const BUSY: &str = "the member is alive and knows its leader, so it is overloaded or a disk is slow";
const LATE: &str = "another member is asked";
const SILENT: &str = "the member is connected but silent: it hangs, is stopped, or the network drops packets";

fn silence(connection: &Connection, kind: Kind, waited: Duration, reason: &str) -> Error {
    Error::Timeout {
        endpoint: connection.address.text.clone(),
        call: kind.name,
        waited,
        reason: reason.to_owned(),
        unknown: !kind.idempotent,
    }
}
