//! Children that do not outlive us, however we end.
//!
//! They are started through this binary itself, which asks the system to be killed when we die before it
//! becomes what was asked for.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::output::note;
use rustix::process::getppid;

/// The hidden verb under which this binary binds itself to its parent and goes on with another verb.
const VERB: &str = "__bound";

/// This very binary, even if its file has been replaced.
pub fn itself() -> io::Result<Command> {
    match cfg!(target_os = "linux") {
        true => Ok(Command::new("/proc/self/exe")),
        false => Ok(Command::new(std::env::current_exe()?)),
    }
}

/// This very binary with these arguments, bound to our life. Must be started on a thread that lives as long
/// as we do: the child is bound to it.
pub fn itself_bound(arguments: &[OsString]) -> io::Result<Command> {
    let mut command = itself()?;
    command.arg0("tenure").arg(VERB).arg(std::process::id().to_string()).args(arguments);
    Ok(command)
}

/// Called by the child: it is killed when its parent dies, or told that this has happened already.
pub fn bind_to(parent: &OsString) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The parent may have died before that.
    let alive = getppid().map(|id| id.as_raw_nonzero().to_string());
    match alive.as_deref().map(OsString::from).as_ref() == Some(parent) {
        true => Ok(()),
        false => Err(io::Error::other("its parent is gone")),
    }
}

/// Runs what this binary does under its hidden verb; None if another one is asked for.
pub fn hidden_main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != VERB {
        return None;
    }
    let error = match arguments.next().map(|parent| bind_to(&parent).and_then(|()| itself())) {
        Some(Ok(mut itself)) => itself.arg0("tenure").args(arguments).exec(),
        Some(Err(error)) => error,
        None => io::Error::other("it is not said who its parent is"),
    };
    note(format_args!("error: cannot start: {error}"));
    Some(ExitCode::FAILURE)
}
