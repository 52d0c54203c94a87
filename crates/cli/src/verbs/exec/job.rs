//! Stopping together with the command, as Ctrl-Z asks for, where a shell is there that can continue us.

use std::fs;

use rustix::process::{
    Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_current_process_group, kill_process,
};

/// Whether our process group is a job of a shell: a process outside of it, in the same session, is the parent of
/// one of ours and can continue us. Otherwise a stop would be for ever (POSIX calls such a group orphaned).
pub fn is_of_shell() -> bool {
    let (group, session) = (getpgrp(), getsid(None).ok());
    let mut parent = getppid();
    while let Some(id) = parent {
        if getsid(Some(id)).ok() != session {
            return false;
        }
        if getpgid(Some(id)).ok() != Some(group) {
            return true;
        }
        parent = parent_of(id);
    }
    false
}

/// Stops our whole group, as the terminal would have if it were ours.
pub fn stop_group() {
    let _ = kill_current_process_group(Signal::STOP);
}

pub fn stop_self() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// `None` where /proc does not tell.
fn parent_of(id: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).ok()?;
    // The name of the program stands in parentheses and may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    Pid::from_raw(fields.split(' ').nth(1)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found() {
        assert_eq!(parent_of(getpid()), getppid());
    }
}
