//! The terminal, lent to the command: a process group that is not in the foreground cannot read it.
//!
//! To lend it is one call, because we are in the foreground. Afterwards we are not, and a process that is
//! in the background and takes the terminal is stopped for it; so a helper that joins the command's
//! group, while that still exists, gives it back.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use crate::output::note;
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The hidden verb under which this binary gives the terminal back.
pub const VERB: &str = "__exec-terminal";

pub struct Lent {
    command_group: Pid,
}

impl Lent {
    /// None if standard input is no terminal, or not ours to lend.
    pub fn to(command_group: Pid) -> Option<Lent> {
        let input = io::stdin();
        if !input.is_terminal() || tcgetpgrp(&input).ok()? != getpgrp() {
            return None;
        }
        tcsetpgrp(&input, command_group).ok()?;
        Some(Lent { command_group })
    }

    /// Must be called before the command is reaped: its group has to exist.
    pub fn give_back(self, mut itself: Command) {
        let helper = itself
            .arg(VERB)
            .arg(getpgrp().as_raw_nonzero().to_string())
            .process_group(self.command_group.as_raw_nonzero().get())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if let Err(error) = helper {
            note(format_args!("cannot take the terminal back: {error}"));
        }
    }
}

/// What the helper's process does.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let group = arguments.first().and_then(|text| text.to_str()?.parse().ok()).and_then(Pid::from_raw);
    match group.map(|group| tcsetpgrp(io::stdin(), group)) {
        Some(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
