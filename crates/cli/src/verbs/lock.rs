//! `tenure lock`: takes a lock and holds it until it is let go.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_client::{Client, LockError};

use super::asking::{Asking, show_waiting, warn_of_short_ttl};
use super::holding::{BUSY, FAREWELL, LOST, LetGo};
use crate::output::{Format, Record};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure lock deploy/prod               prints the token, holds until Ctrl-C or Ctrl-D
  sleep 60 | tenure lock maintenance    for as long as its input is open
  tenure lock -s config -o json";

const EXIT_CODES: &str = "\
Exit codes: 0 let go, 75 busy, 122 the lock was lost meanwhile, 128+N signal N ended the wait, 1 anything else.
To run a command under a lock, and have it ended if the lock is lost, use `tenure exec`.";

/// Take a lock and hold it
#[derive(Args)]
#[command(before_help = EXAMPLE, after_help = EXIT_CODES)]
pub struct Lock {
    #[command(flatten)]
    asking: Asking,
}

impl Lock {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let code = self.hold(&client, format).await;
        let _ = tokio::time::timeout(FAREWELL, client.settled()).await;
        code
    }

    async fn hold(&self, client: &Client, format: Format) -> anyhow::Result<ExitCode> {
        let mut let_go = LetGo::listen()?;
        let acquired = tokio::select! {
            acquired = self.asking.request(client).acquire() => acquired,
            code = let_go.signalled() => return Ok(ExitCode::from(code)),
            () = show_waiting(client, &self.asking.name) => unreachable!("it tells until it is dropped"),
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error @ (LockError::Busy { .. } | LockError::Timeout { .. })) => {
                crate::report(&error.into());
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
        Record { sentence: guard.token().to_string(), json }.print(format)?;
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
