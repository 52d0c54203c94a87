//! Ends the command if the process that guards it cannot: because it was killed, or stopped.
//!
//! A small process of its own that reads from a pipe which group to end and until when it may live.
//! Each line of a later deadline is a renewal that the server has confirmed. If the deadline passes,
//! or the pipe ends without the word that all is done, the whole group is killed.

use std::io::{self, BufRead, Write};
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process_group};
use tenure_client::Deadline;
use tenure_client::clock::{Alarm, now_ms};

/// The hidden verb under which this binary is a watchdog.
pub const VERB: &str = "__exec-watchdog";
const DONE: &str = "done";

pub struct Watchdog {
    words: Option<ChildStdin>,
}

impl Watchdog {
    /// In a group of its own, so that what is sent to us or to the command does not reach it.
    pub fn start(mut itself: Command) -> io::Result<Watchdog> {
        use std::os::unix::process::CommandExt;
        let mut child = itself
            .arg(VERB)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Watchdog { words: child.stdin.take() })
    }

    /// The group may live until then.
    pub fn guard(&mut self, group: Pid, deadline: Deadline) {
        self.say(&format!("{} {}\n", group.as_raw_nonzero(), deadline.as_ms()));
    }

    /// The command has ended; so does the watchdog, by itself.
    pub fn done(mut self) {
        self.say(&format!("{DONE}\n"));
    }

    /// A watchdog that is gone is not missed as long as we live.
    fn say(&mut self, words: &str) {
        if let Some(pipe) = &mut self.words {
            let _ = pipe.write_all(words.as_bytes()).and_then(|()| pipe.flush());
        }
    }
}

/// What the watchdog's process does.
pub fn main() -> ExitCode {
    let Ok(alarm) = Alarm::new() else { return ExitCode::FAILURE };
    let alarm = Arc::new(alarm);
    let (deadline_ms, group) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    let reader = {
        let (alarm, deadline_ms, group) = (alarm.clone(), deadline_ms.clone(), group.clone());
        move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                if line == DONE {
                    std::process::exit(0);
                }
                let mut words = line.split(' ').map(|word| word.parse::<u64>());
                if let (Some(Ok(id)), Some(Ok(at_ms))) = (words.next(), words.next()) {
                    group.store(id, Ordering::SeqCst);
                    deadline_ms.store(at_ms, Ordering::SeqCst);
                    alarm.set(Some(at_ms));
                }
            }
            deadline_ms.store(0, Ordering::SeqCst);
            alarm.set(Some(0));
        }
    };
    std::thread::spawn(reader);
    while now_ms() < deadline_ms.load(Ordering::SeqCst) {
        alarm.wait();
    }
    if let Some(group) = i32::try_from(group.load(Ordering::SeqCst)).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}
