//! `tenure lock`: takes a lock and holds it until it is let go.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_client::{Client, LockError};

use super::asking::{Asking, warn_of_short_ttl};
use super::holding::{BUSY, LOST, LetGo, settle};
use crate::bytes_text::printable;
use crate::output::{Format, Record};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure lock deploy/prod               prints the token, holds until Ctrl-C or Ctrl-D
  sleep 60 | tenure lock maintenance    for as long as its input is open
  tenure lock nightly & … kill $!       in a script: holds until it is signalled
  tenure lock -s config -o json";

const EXIT_CODES: &str = "\
Exit codes: 0 let go, 75 busy or a deadlock, 122 the lock was lost meanwhile, 128+N signal N ended the wait, 1 anything else.
To run a command under a lock, and have it ended if the lock is lost, use `tenure exec`.";

/// Take a lock and hold it
///
/// It is held until a signal comes, or until standard input ends if that is a terminal or a pipe.
#[derive(Args)]
#[command(before_help = EXAMPLE, after_help = EXIT_CODES)]
pub struct Lock {
    #[command(flatten)]
    asking: Asking,
}

impl Lock {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let mut is_answered = true;
        let code = self.hold(&client, format, &mut is_answered).await;
        settle(&client, is_answered).await;
        code
    }

    async fn hold(&self, client: &Client, format: Format, is_answered: &mut bool) -> anyhow::Result<ExitCode> {
        let mut let_go = LetGo::listen()?;
        let acquired = tokio::select! {
            acquired = self.asking.acquire(|| self.asking.request(client)) => acquired,
            code = let_go.signalled() => return Ok(ExitCode::from(code)),
            () = self.asking.show_waiting(client) => unreachable!("it tells until it is dropped"),
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error) if error.is_busy() => {
                *is_answered = !error.is_unanswered();
                crate::report(&self.asking.explain(client, error).await);
                return Ok(ExitCode::from(BUSY));
            }
            Err(error) => return Err(error.into()),
        };
        warn_of_short_ttl(guard.is_failover_safe(), self.asking.ttl);
        let mut json = json!({
            "lock": guard.name(),
            "names": guard.names(),
            "token": guard.token(),
            "slot": guard.slot(),
            "lease": format!("{:x}", guard.lease()),
            "holder": guard.holder(),
        });
        let signature = guard.signature();
        if !signature.is_empty() {
            json["signature"] = signature.into();
        }
        let sentence = match io::stdout().is_terminal() {
            true => {
                let end = if let_go.hears_input() { "Ctrl-C or Ctrl-D releases it" } else { "a signal releases it" };
                format!("holding {}, token {}; {end}", printable(guard.name().as_bytes()), guard.token())
            }
            false => guard.token().to_string(),
        };
        Record { sentence, json }.print(format)?;
        tokio::select! {
            () = let_go.wait() => {}
            lost = guard.lost() => {
                crate::report(&lost.into());
                return Ok(ExitCode::from(LOST));
            }
        }
        match guard.release().await {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(LockError::Lost(lost)) => {
                crate::report(&lost.into());
                Ok(ExitCode::from(LOST))
            }
            Err(error) => Err(error.into()),
        }
    }
}
