//! Holding something until the user lets go: standard input ends, or a signal comes.

use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use rustix::fs::{FileType, fstat};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use tenure_client::Client;
use tokio::sync::oneshot;

use super::exec::signals::{self, Signals};

/// Exit codes of `exec`, `lock` and `elect`.
pub const BUSY: u8 = 75;
pub const LOST: u8 = 122;

/// How long the end may take to give back what is held.
const FAREWELL: Duration = Duration::from_secs(5);

/// Much less where the cluster did not answer: what is left over ends with its lease.
const SHORT_FAREWELL: Duration = Duration::from_millis(500);

pub fn farewell(is_answered: bool) -> Duration {
    if is_answered { FAREWELL } else { SHORT_FAREWELL }
}

/// Gives back what was dropped (places in queues, leases), for as long as that makes sense.
pub async fn settle(client: &Client, is_answered: bool) {
    let _ = tokio::time::timeout(farewell(is_answered), client.settled()).await;
}

pub struct LetGo {
    /// `None` where the end of the input says nothing.
    input: Option<oneshot::Receiver<()>>,
    signals: Signals,
}

impl LetGo {
    pub fn listen() -> anyhow::Result<LetGo> {
        let input = is_input_open().then(|| {
            let (tell, input) = oneshot::channel();
            // A read from a terminal cannot be cancelled; the thread ends with the process.
            std::thread::spawn(move || {
                let mut buffer = [0; 1024];
                while io::stdin().lock().read(&mut buffer).is_ok_and(|length| length > 0) {}
                let _ = tell.send(());
            });
            input
        });
        Ok(LetGo { input, signals: Signals::listen(signals::ENDING)? })
    }

    /// Whether the end of the input lets go.
    pub fn hears_input(&self) -> bool {
        self.input.is_some()
    }

    /// A signal that says so ends a wait; the end of the input does not.
    pub async fn signalled(&mut self) -> u8 {
        signals::exit_code(self.signals.next().await.as_raw())
    }

    pub async fn wait(&mut self) {
        let input_ends = async {
            match &mut self.input {
                Some(input) => drop(input.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = input_ends => {}
            _ = self.signals.next() => {}
        }
    }
}

/// Whether the input ends when someone ends it. /dev/null, which scripts in the background and cron give us, and
/// files end by themselves; a terminal that another process group has would stop us for reading it.
fn is_input_open() -> bool {
    let input = io::stdin();
    if input.is_terminal() {
        return tcgetpgrp(&input).is_ok_and(|group| group == getpgrp());
    }
    let kind = fstat(&input).map(|status| FileType::from_raw_mode(status.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}
