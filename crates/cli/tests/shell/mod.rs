//! Runs `tenure` the way somebody at a shell does, and keeps what it said.
#![allow(dead_code)]

mod running;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

pub use running::Running;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::place::Place;
use crate::support::{self, PATIENCE, until};

pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Standard output of a success.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }

    /// Standard error of a failure with this code, which must not have written data.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "", "a failure writes no data");
        self.stderr
    }

    /// A failure whose one sentence says all of this.
    #[track_caller]
    pub fn failed_for(self, code: i32, reasons: &[&str]) {
        let said = self.failed(code);
        let error = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{said}"));
        for reason in reasons {
            assert!(error.to_lowercase().contains(&reason.to_lowercase()), "{reason} is not in: {error}");
        }
    }
}

/// Verbs that go to the server of the place.
impl Place {
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = support::tenure();
        command.args(["--endpoints", &self.server.address]).args(arguments);
        command
    }

    pub fn tenure(&self, arguments: &[&str]) -> Said {
        self.reading(arguments, "")
    }

    /// With this on standard input.
    pub fn reading(&self, arguments: &[&str], input: &str) -> Said {
        run(self.command(arguments), input)
    }

    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.tenure(&[arguments, &["-o", "json"]].concat()).ok()).unwrap()
    }

    /// A verb that goes on, or holds something until its input is closed.
    pub fn running(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments))
    }

    /// With /dev/null as its input, as cron and scripts in the background have it.
    pub fn running_without_input(&self, arguments: &[&str]) -> Running {
        Running::start_without_input(self.command(arguments))
    }

    pub fn until_waiters(&self, name: &str, waiters: usize) {
        until("the queue is as expected", || self.json(&["why", name])["waiters"].as_array().unwrap().len() == waiters);
    }
}

pub fn tenure(arguments: &[&str]) -> Said {
    tenure_reading(arguments, "")
}

/// With this on standard input.
pub fn tenure_reading(arguments: &[&str], input: &str) -> Said {
    let mut command = support::tenure();
    command.args(arguments);
    run(command, input)
}

pub fn run(mut command: Command, input: &str) -> Said {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A verb that reads nothing may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let id = Pid::from_child(&child);
    let (ended, waiting) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        // No client verb of these tests takes nearly as long.
        if waiting.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process(id, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    Said {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
