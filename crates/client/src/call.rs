//! How a call is made, and when it may be made again.
//!
//! What a failure allows:
//! - It never reached a server: any call may be made again, over another connection.
//! - A member says that it did nothing, because it knows of no leader: the same.
//! - The connection broke, or the member fell silent: only a call that changes nothing may be repeated.
//! - The server gave its verdict: that is the answer.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::etcdserverpb::StatusRequest;
use tenure_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::connection::Connection;
use crate::connections::Connections;
use crate::diagnose;
use crate::error::{Error, Meaning, read_status};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(1);

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

impl Connections {
    /// Makes a call, at as many servers and as often as its kind and its time allow.
    pub async fn call<Reply, Called>(&self, kind: Kind, call: impl FnMut(Channel) -> Called) -> Result<Reply, Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        Ok(self.call_somewhere(kind, call).await?.1)
    }

    /// As [`Connections::call`], and tells over which connection it was answered.
    pub async fn call_somewhere<Reply, Called>(
        &self,
        kind: Kind,
        mut call: impl FnMut(Channel) -> Called,
    ) -> Result<(Arc<Connection>, Reply), Error>
    where
        Called: Future<Output = Result<Response<Reply>, Status>>,
    {
        let started = Instant::now();
        let give_up = started + self.settings().timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.connection(give_up).await {
                Ok(connection) => {
                    let called = call(connection.channel.clone());
                    let outcome = self.attempt(&connection, kind, give_up, called).await;
                    let verdict = match outcome {
                        Outcome::Answered(Ok(reply)) => return Ok((connection, reply.into_inner())),
                        Outcome::Answered(Err(status)) => judge(&connection, kind, started, &status),
                        Outcome::Late => self.judge_lateness(&connection, kind, started, give_up).await,
                        Outcome::Silent => Verdict::Passing(silence(&connection, kind, started.elapsed(), SILENT)),
                    };
                    let (error, may_repeat) = self.draw_conclusions(&connection, kind, verdict);
                    if !may_repeat {
                        return Err(error);
                    }
                    error
                }
                Err(attempts) => {
                    let error = Error::Unreachable { attempts };
                    // Who has never reached anybody has probably been given the wrong address.
                    if !self.has_reached_any() {
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

    async fn attempt<Reply>(
        &self,
        connection: &Arc<Connection>,
        kind: Kind,
        give_up: Instant,
        call: impl Future<Output = Result<Response<Reply>, Status>>,
    ) -> Outcome<Reply> {
        let mut call = pin!(call);
        if kind.unlimited {
            return tokio::select! {
                answer = call => Outcome::Answered(answer),
                () = connection.fallen_silent() => Outcome::Silent,
            };
        }
        let listening = tokio::time::timeout_at(self.attempt_deadline(kind, give_up), connection.listen(&mut call));
        match listening.await {
            Ok(Some(answer)) => Outcome::Answered(answer),
            Ok(None) if kind.idempotent => Outcome::Silent,
            // Others go elsewhere from now on. What was sent cannot be sent again, but may still be answered.
            Ok(None) => {
                self.leave(connection);
                tokio::time::timeout_at(give_up, call).await.map_or(Outcome::Silent, Outcome::Answered)
            }
            Err(_) => Outcome::Late,
        }
    }

    /// A member that hangs must not use up the time that another one could answer in.
    fn attempt_deadline(&self, kind: Kind, give_up: Instant) -> Instant {
        match kind.idempotent && self.has_others() {
            true => Instant::now() + give_up.saturating_duration_since(Instant::now()) / 2,
            false => give_up,
        }
    }

    /// Turns away from a server that is of no use now; and tells whether the call may be made again.
    fn draw_conclusions(&self, connection: &Arc<Connection>, kind: Kind, verdict: Verdict) -> (Error, bool) {
        match verdict {
            Verdict::Final(error) => (error, false),
            Verdict::Unsent(error) => {
                self.forget(connection);
                (error, true)
            }
            Verdict::Passing(error) => {
                self.leave(connection);
                let may_repeat = kind.idempotent || !error.outcome_is_unknown();
                (error, may_repeat)
            }
        }
    }

    /// What a broken stream means: Ok if it may go on elsewhere.
    pub fn judge_stream(&self, connection: &Arc<Connection>, kind: Kind, status: &Status) -> Result<Error, Error> {
        match judge(connection, kind, Instant::now(), status) {
            Verdict::Final(error) => Err(error),
            verdict => Ok(self.draw_conclusions(connection, kind, verdict).0),
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
        if kind.idempotent && self.has_others() && Instant::now() + FIRST_PAUSE < give_up {
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
