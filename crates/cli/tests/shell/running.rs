//! A command that runs while the test goes on.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::until;

/// Killed when dropped.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub fn start(command: Command) -> Running {
        Running::start_with(command, Stdio::piped())
    }

    pub fn start_without_input(command: Command) -> Running {
        Running::start_with(command, Stdio::null())
    }

    fn start_with(mut command: Command, input: Stdio) -> Running {
        let mut child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { input: child.stdin.take(), child, lines }
    }

    pub fn line(&mut self) -> String {
        self.lines.next().expect("it says something").unwrap()
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Without the end of a line.
    pub fn press(&mut self, keys: &str) {
        self.input.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code once its input has ended.
    pub fn let_go(&mut self) -> Option<i32> {
        self.input = None;
        self.code()
    }

    pub fn code(&mut self) -> Option<i32> {
        let mut ended = None;
        until("it ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap().code()
    }

    pub fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
