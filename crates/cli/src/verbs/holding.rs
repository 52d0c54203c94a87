//! Holding something until the user lets go: standard input ends, or a signal comes.

use std::io::Read;
use std::time::Duration;

use tokio::sync::oneshot;

use super::exec::signals::{self, Signals};

/// Exit codes of `exec`, `lock` and `elect`.
pub const BUSY: u8 = 75;
pub const LOST: u8 = 122;

/// How long the end may take to give back what is held.
pub const FAREWELL: Duration = Duration::from_secs(5);

pub struct LetGo {
    input: oneshot::Receiver<()>,
    signals: Signals,
}

impl LetGo {
    pub fn listen() -> anyhow::Result<LetGo> {
        let (tell, input) = oneshot::channel();
        // A read from a terminal cannot be cancelled; the thread ends with the process.
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while std::io::stdin().lock().read(&mut buffer).is_ok_and(|length| length > 0) {}
            let _ = tell.send(());
        });
        Ok(LetGo { input, signals: Signals::listen(signals::ENDING)? })
    }

    /// A signal that says so ends a wait; the end of the input does not.
    pub async fn signalled(&mut self) -> u8 {
        signals::exit_code(self.signals.next().await.as_raw())
    }

    pub async fn wait(&mut self) {
        tokio::select! {
            _ = &mut self.input => {}
            _ = self.signals.next() => {}
        }
    }
}
