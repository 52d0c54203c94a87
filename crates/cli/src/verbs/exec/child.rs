//! The command as a child: in a process group of its own, bound to our life.
//!
//! It is started through this binary itself, which asks the system to be killed when we die, stops
//! until the watchdog knows of it, and then becomes the command: there is no moment at which the
//! command runs unguarded.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, waitid};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::signals;
use crate::output::note;
use crate::verbs::bound::{bind_to, itself};

/// The hidden verb under which this binary becomes the command.
pub const VERB: &str = "__exec-child";

/// As timeout(1) has them.
const CANNOT: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What has happened to the command.
pub enum Change {
    Stopped,
    Ended,
}

pub struct Running {
    child: Child,
    pub group: Pid,
}

impl Running {
    /// Starts it up to the point where [`Running::go`] lets it become the command. Must be called on
    /// a thread that lives as long as we do: the child is bound to it.
    pub fn start(command: &[OsString], environment: &[(&str, String)]) -> io::Result<Running> {
        let mut shim = itself()?;
        shim.arg(VERB).arg(std::process::id().to_string()).args(command);
        shim.envs(environment.iter().map(|(name, value)| (name, value)));
        let child = shim.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(group), stopped), Err(rustix::io::Errno::INTR)) {}
        Ok(Running { child, group })
    }

    pub fn go(&self) {
        let _ = waitid(WaitId::Pid(self.group), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        self.signal(Signal::CONT);
    }

    /// Tells when it has ended, and with a terminal, also when it was stopped. It stays a zombie until
    /// [`Running::reap`], so that its number, and that of its group, is not given to another process.
    pub fn changes(&self, has_terminal: bool) -> UnboundedReceiver<Change> {
        let (tell, told) = unbounded_channel();
        let id = self.group;
        std::thread::spawn(move || {
            let stopped = if has_terminal { WaitIdOptions::STOPPED } else { WaitIdOptions::empty() };
            loop {
                match waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | stopped) {
                    Err(rustix::io::Errno::INTR) => {}
                    Ok(Some(status)) if status.stopped() => {
                        let _ = waitid(WaitId::Pid(id), WaitIdOptions::STOPPED);
                        let _ = tell.send(Change::Stopped);
                    }
                    _ => break,
                }
            }
            let _ = tell.send(Change::Ended);
        });
        told
    }

    /// Signals the whole group. Processes that have ended already do not matter.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    pub fn reap(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// The command's own code, or what a shell makes of the signal that ended it.
pub fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => signals::exit_code(signal),
        (None, None) => CANNOT,
    }
}

/// What the child's process does: becomes the command, or says why not.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [parent, program, arguments @ ..] = arguments else { return ExitCode::from(CANNOT) };
    if let Err(error) = bind_to(parent) {
        note(format_args!("tenure: cannot bind the command to this process: {error}"));
        return ExitCode::from(CANNOT);
    }
    if let Err(error) = kill_process(getpid(), Signal::STOP) {
        note(format_args!("tenure: cannot wait for the watchdog: {error}"));
        return ExitCode::from(CANNOT);
    }
    let error = Command::new(program).args(arguments).exec();
    note(format_args!("tenure: cannot run {}: {error}", program.display()));
    ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
}
