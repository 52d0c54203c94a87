//! `tenure exec`: a command that runs only while a lock is held.
//!
//! The promise: before the server can give the lock to somebody else, the command and its whole
//! process group have been told to end and, after the grace, killed. Three things see to it: this
//! process while it lives, the system if it dies ([`child`]), and a watchdog if it is stopped
//! ([`watchdog`]).

mod child;
pub mod signals;
mod terminal;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::Signal;
use tenure_client::{CancelAt, Client, LockError, LockGuard};

use super::asking::{Asking, short, show_waiting, warn_of_short_ttl};
use super::bound::itself;
use super::holding::{BUSY, FAREWELL, LOST};
use crate::output::note;
use crate::settings::{Global, Session};
use child::Running;
use signals::{Signals, parse_signal};
use tenure_server::units::{format_duration, parse_duration};
use terminal::Lent;
use watchdog::Watchdog;

const EXAMPLE: &str = "\
Examples:
  tenure exec deploy/prod -- ./deploy.sh
  tenure exec -n nightly -- make backup           ends with 75 if somebody else is at it
  tenure exec -w 5m migrate/db -- sh -c 'psql < migration.sql'
  tenure exec --slots 3 download -- curl -O https://example.org/file";

const EXIT_CODES: &str = "\
Exit codes:
  the command's own, 128+N if signal N ended it
  75   the lock was busy (-E sets another)
  122  the lock was lost, and the command was ended before anybody else could get it
  125  tenure itself failed   126  the command cannot be run   127  there is no such command

The command sees TENURE_LOCK (the name), TENURE_TOKEN (the fencing token, to be handed to every storage
that the lock protects), TENURE_LEASE, and TENURE_SIGNATURE if the cluster signs its grants: good for one
TTL, for storages that verify it.";

const FAILED: u8 = 125;
/// What is lost is most often so because nobody hears us.
const SHORT_FAREWELL: Duration = Duration::from_millis(500);

fn farewell(code: Option<u8>) -> Duration {
    if code == Some(LOST) { SHORT_FAREWELL } else { FAREWELL }
}

/// Run a command while holding a lock
///
/// Waits for its turn, runs the command without a shell, and gives the lock back when it ends. If
/// the server cannot be reached for too long, the command is sent TERM and, after the grace, KILL:
/// before the lock can be given to somebody else.
#[derive(Args)]
#[command(before_help = EXAMPLE, after_help = EXIT_CODES)]
pub struct Exec {
    #[command(flatten)]
    asking: Asking,
    /// How long the command has to end before it is killed; at most a third of the TTL [default: a sixth]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// What tells the command to end
    #[arg(long, value_name = "NAME", default_value = "TERM", value_parser = parse_signal)]
    signal: Signal,
    /// Exit code if the lock is busy
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = BUSY)]
    busy_code: u8,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs what this binary does under its hidden verbs; None if none of them is asked for.
pub fn hidden_main() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.split_first() {
        Some((verb, rest)) if verb == child::VERB => Some(child::main(rest)),
        Some((verb, _)) if verb == watchdog::VERB => Some(watchdog::main()),
        Some((verb, rest)) if verb == terminal::VERB => Some(terminal::main(rest)),
        _ => None,
    }
}

impl Exec {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let code = self.execute(global).await.unwrap_or_else(|error| {
            crate::report(&error);
            FAILED
        });
        Ok(ExitCode::from(code))
    }

    async fn execute(self, global: Global) -> anyhow::Result<u8> {
        let grace = self.grace()?;
        let mut signals = Signals::listen(signals::ENDING)?;
        let Session { client, .. } = global.session().await?;
        let code = self.hold(&client, grace, &mut signals).await;
        // Places in queues and leases that were given up; what cannot be told in time ends by itself.
        let _ = tokio::time::timeout(farewell(code.as_ref().ok().copied()), client.settled()).await;
        code
    }

    fn grace(&self) -> anyhow::Result<Duration> {
        let (ttl, grace) = (self.asking.ttl, self.grace.unwrap_or(self.asking.ttl / 6));
        if grace > ttl / 3 {
            let (grace, ttl, most) = (format_duration(grace), format_duration(ttl), format_duration(ttl / 3));
            anyhow::bail!(
                "a grace of {grace} is more than a third of the TTL of {ttl}: at most {most} can be kept to; raise --ttl or lower --grace"
            );
        }
        Ok(grace)
    }

    async fn hold(&self, client: &Client, grace: Duration, signals: &mut Signals) -> anyhow::Result<u8> {
        let request = self.asking.request(client).cancel_at(CancelAt::Before(grace));
        let acquired = tokio::select! {
            acquired = request.acquire() => acquired,
            signal = signals.next() => return Ok(signals::exit_code(signal.as_raw())),
            () = show_waiting(client, &self.asking.name) => unreachable!("it tells until it is dropped"),
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error @ (LockError::Busy { .. } | LockError::Timeout { .. })) => {
                crate::report(&error.into());
                return Ok(self.busy_code);
            }
            Err(error) => return Err(error.into()),
        };
        warn_of_short_ttl(guard.is_failover_safe(), self.asking.ttl);
        let ended = self.supervise(&guard, grace, signals).await;
        let farewell = farewell(ended.as_ref().ok().copied());
        let released = tokio::time::timeout(farewell, guard.release()).await;
        match (ended?, released) {
            (code, Ok(Ok(()))) => Ok(code),
            (LOST, _) => Ok(LOST),
            (_, Ok(Err(LockError::Lost(lost)))) => {
                crate::report(&lost.into());
                Ok(LOST)
            }
            (code, Ok(Err(error))) => {
                note(format_args!(
                    "the lock ends with its lease, within {}: {error}",
                    format_duration(self.asking.ttl)
                ));
                Ok(code)
            }
            (code, Err(_)) => Ok(code),
        }
    }

    /// Runs the command to its end, which comes in time.
    async fn supervise(&self, guard: &LockGuard, grace: Duration, signals: &mut Signals) -> anyhow::Result<u8> {
        signals.also(signals::PASSED_ON)?;
        let environment = [
            ("TENURE_LOCK", guard.name().to_owned()),
            ("TENURE_TOKEN", guard.token().to_string()),
            ("TENURE_LEASE", format!("{:x}", guard.lease())),
            // Empty where none is given: one that was inherited says nothing of this lock.
            ("TENURE_SIGNATURE", guard.signature()),
        ];
        let mut watchdog = itself().and_then(Watchdog::start).context("cannot start the watchdog")?;
        let running = Running::start(&self.command, &environment).context("cannot start the command")?;
        let mut deadline = guard.deadline();
        watchdog.guard(running.group, deadline);

        let terminal = Lent::to(running.group);
        running.go();
        let mut ended = running.ended(terminal.is_some());
        let (mut cancelled, mut killed, mut warned) = (None, false, false);
        let mut grace_over = std::pin::pin!(tokio::time::sleep(Duration::MAX));
        loop {
            tokio::select! {
                biased;
                lost = guard.lost(), if !killed => {
                    running.signal(Signal::KILL);
                    killed = true;
                    cancelled.get_or_insert(lost);
                }
                lost = guard.cancelled(), if cancelled.is_none() => {
                    running.signal(self.signal);
                    // Who is stopped must go on to hear it.
                    running.signal(Signal::CONT);
                    cancelled = Some(lost);
                    grace_over.set(tokio::time::sleep(grace));
                }
                () = &mut grace_over, if !killed => {
                    running.signal(Signal::KILL);
                    killed = true;
                }
                _ = &mut ended => break,
                () = guard.warned(), if !warned && cancelled.is_none() => {
                    warned = true;
                    note(format_args!(
                        "no word from the server: the command will be ended in {} unless it is heard again",
                        short(guard.deadline().remaining().saturating_sub(grace)),
                    ));
                }
                signal = signals.next() => running.signal(signal),
                later = guard.renewed_after(deadline) => {
                    (deadline, warned) = (later, false);
                    watchdog.guard(running.group, deadline);
                }
            }
        }
        let lost = cancelled.or_else(|| guard.check().err());
        if lost.is_some() && !killed {
            // The command has ended; whoever it left behind must not outlive the lock.
            running.signal(Signal::KILL);
        }
        if let Some(lent) = terminal {
            lent.give_back(itself()?);
        }
        let status = running.reap().context("cannot learn how the command ended")?;
        watchdog.done();
        match lost {
            None => Ok(child::code_of(status)),
            Some(lost) => {
                crate::report(&lost.into());
                Ok(LOST)
            }
        }
    }
}
