//! `tenure exec`: a command that runs only while a lock is held.
//!
//! The promise: before the server can give the lock to another holder, the command and its whole
//! process group have been told to end and, after the grace, killed. Three things see to it: this
//! process while it lives, the system if it dies ([`child`]), and a watchdog if it is stopped
//! ([`watchdog`]).

mod child;
mod job;
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

use super::asking::{Asking, new_owner, short, warn_of_short_ttl};
use super::bound::itself;
use super::holding::{BUSY, LOST, farewell, settle};
use crate::output::note;
use crate::settings::{Global, Session};
use child::{Change, Running};
use signals::{Signals, parse_signal};
use tenure_server::units::{format_duration, parse_duration};
use terminal::Lent;
use watchdog::Watchdog;

const EXAMPLE: &str = "\
Examples:
  tenure exec deploy/prod -- ./deploy.sh
  tenure exec -n nightly -- make backup           ends with 75 if the lock is held
  tenure exec -w 5m migrate/db -- sh -c 'psql < migration.sql'
  tenure exec --slots 3 download -- curl -O https://example.org/file";

const EXIT_CODES: &str = "\
Exit codes:
  the command's own, 128+N if signal N ended it
  75   the lock was busy, or waiting for it would have been a deadlock (-E sets another)
  122  the lock was lost, and the command was ended before another holder could get it
  125  tenure itself failed   126  the command cannot be run   127  there is no such command

The command sees
  TENURE_LOCK       name of the lock
  TENURE_TOKEN      fencing token, for every storage that the lock protects
  TENURE_SIGNATURE  signed grant, if the cluster signs; good for one TTL
  TENURE_LEASE      lease that the lock is held with
  TENURE_SLOT       which of the --slots it has
  TENURE_ENDPOINTS  servers, for `tenure` within the command
  TENURE_OWNER      flow of work that the command belongs to

A `tenure exec` within the command has the same owner. If it asks for a lock
that the command runs under, it is refused as a deadlock and does not hang.
Give commands that run in parallel their own: TENURE_OWNER= tenure exec …

Ctrl-Z stops the command and tenure together. While stopped, the lock is not
renewed: after the TTL the command is killed and the lock is lost.";

const FAILED: u8 = 125;
/// So that a command which stops itself again and again does not keep a processor busy.
const RESUME_AFTER: Duration = Duration::from_millis(100);
/// How long a command has to prepare for being stopped, as editors do.
const STOP_AFTER: Duration = Duration::from_millis(100);
/// Run a command while holding a lock
///
/// Waits for its turn, runs the command without a shell, and gives the lock back when it ends. If
/// the server cannot be reached for too long, the command is sent TERM and, after the grace, KILL:
/// before the lock can be given to another holder.
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

/// What a `tenure` within the command takes over.
struct Inherited {
    owner: String,
    endpoints: String,
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
        let owner = self.asking.owner.clone().unwrap_or_else(new_owner);
        let inherited = Inherited { owner, endpoints: global.endpoints()? };
        let mut is_answered = true;
        let code = self.hold(&client, grace, &mut signals, &inherited, &mut is_answered).await;
        settle(&client, is_answered).await;
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

    async fn hold(
        &self,
        client: &Client,
        grace: Duration,
        signals: &mut Signals,
        inherited: &Inherited,
        is_answered: &mut bool,
    ) -> anyhow::Result<u8> {
        let request = || self.asking.request(client).owner(&inherited.owner).cancel_at(CancelAt::Before(grace));
        let acquired = tokio::select! {
            acquired = self.asking.acquire(request) => acquired,
            signal = signals.next() => return Ok(signals::exit_code(signal.as_raw())),
            () = self.asking.show_waiting(client) => unreachable!("it tells until it is dropped"),
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error) if error.is_busy() => {
                *is_answered = !error.is_unanswered();
                crate::report(&self.asking.explain(client, error).await);
                return Ok(self.busy_code);
            }
            Err(error) => return Err(error.into()),
        };
        warn_of_short_ttl(guard.is_failover_safe(), self.asking.ttl);
        let ended = self.supervise(&guard, grace, signals, inherited).await;
        // A lock is usually lost because the server cannot be reached, so giving it back will hardly succeed.
        *is_answered = !matches!(ended, Ok(LOST));
        let released = tokio::time::timeout(farewell(*is_answered), guard.release()).await;
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
    async fn supervise(
        &self,
        guard: &LockGuard,
        grace: Duration,
        signals: &mut Signals,
        inherited: &Inherited,
    ) -> anyhow::Result<u8> {
        signals.also(signals::PASSED_ON)?;
        signals.also(&[Signal::TSTP, Signal::CONT])?;
        let slot = if self.asking.has_slots() { guard.slot().to_string() } else { String::new() };
        let environment = [
            ("TENURE_LOCK", guard.name().to_owned()),
            ("TENURE_TOKEN", guard.token().to_string()),
            ("TENURE_LEASE", format!("{:x}", guard.lease())),
            ("TENURE_OWNER", inherited.owner.clone()),
            ("TENURE_ENDPOINTS", inherited.endpoints.clone()),
            // Empty where there is none: what was inherited says nothing of this lock.
            ("TENURE_SLOT", slot),
            ("TENURE_SIGNATURE", guard.signature()),
        ];
        let mut watchdog = itself().and_then(Watchdog::start).context("cannot start the watchdog")?;
        let running = Running::start(&self.command, &environment).context("cannot start the command")?;
        let mut deadline = guard.deadline();
        watchdog.guard(running.group, deadline);

        let mut terminal = Lent::to(running.group);
        running.go();
        let is_interactive = terminal.is_some();
        let mut changes = running.changes(is_interactive);
        let mut is_stopped = false;
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
                change = changes.recv() => match change {
                    Some(Change::Ended) | None => break,
                    Some(Change::Stopped) if is_stopped => {}
                    Some(Change::Stopped) if cancelled.is_none() && job::is_of_shell() => {
                        if let Some(lent) = terminal.take() {
                            lent.give_back(itself()?);
                        }
                        is_stopped = true;
                        job::stop_group();
                    }
                    // No shell is there to continue it.
                    Some(Change::Stopped) => {
                        tokio::time::sleep(RESUME_AFTER).await;
                        running.signal(Signal::CONT);
                    }
                },
                () = guard.warned(), if !warned && cancelled.is_none() => {
                    warned = true;
                    note(format_args!(
                        "no word from the server: the command will be ended in {} unless it is heard again",
                        short(guard.deadline().remaining().saturating_sub(grace)),
                    ));
                }
                signal = signals.next() => match signal {
                    Signal::CONT if is_stopped => {
                        is_stopped = false;
                        // What was lost meanwhile is noticed before the command does anything.
                        if guard.check().is_ok() {
                            terminal = Lent::to(running.group);
                            running.signal(Signal::CONT);
                        }
                    }
                    // Back in the foreground after `bg`.
                    Signal::CONT if is_interactive && terminal.is_none() => terminal = Lent::to(running.group),
                    Signal::CONT => {}
                    // We cannot renew while we are stopped, so the command must not run either.
                    Signal::TSTP if job::is_of_shell() => {
                        running.signal(Signal::TSTP);
                        tokio::time::sleep(STOP_AFTER).await;
                        running.signal(Signal::STOP);
                        is_stopped = true;
                        job::stop_self();
                    }
                    Signal::TSTP => {}
                    signal => running.signal(signal),
                },
                later = guard.renewed_after(deadline) => {
                    (deadline, warned) = (later, false);
                    watchdog.guard(running.group, deadline);
                }
            }
        }
        let lost = cancelled.or_else(|| guard.check().err());
        if lost.is_some() && !killed {
            // The command has ended; processes that it left behind must not outlive the lock.
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
