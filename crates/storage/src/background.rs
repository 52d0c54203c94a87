//! Work that must not hold up the log: writing zeroes ahead, removing what is no longer needed.
//!
//! Jobs end before the directory's lock is released: dropping this cancels and waits.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::Disk;
use crate::segment::Next;

/// How many rests it sleeps before it looks again whether it is behind.
const RESTS_WHEN_NOT_BEHIND: u32 = 8;

#[derive(Debug)]
pub(crate) struct Background<D: Disk> {
    disk: D,
    jobs: Arc<Jobs>,
}

#[derive(Debug, Default)]
pub(crate) struct Jobs {
    state: Mutex<State>,
    ended: Condvar,
    hurry: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    cancelled: bool,
    /// Somebody waits for the jobs.
    hurried: bool,
}

impl<D: Disk> Background<D> {
    pub(crate) fn new(disk: D) -> Self {
        Self { disk, jobs: Arc::default() }
    }

    pub(crate) fn start(&self, work: impl FnOnce(&Jobs) + Send + 'static) -> io::Result<()> {
        self.jobs.lock().running += 1;
        // Dropped when the work ends, by a panic too, or if it never begins.
        let running = Running(Arc::clone(&self.jobs));
        self.disk.background(Box::new(move || work(&running.0)))
    }

    /// Waits until nothing runs.
    pub(crate) fn wait(&self) {
        let mut state = self.jobs.lock();
        state.hurried = true;
        self.jobs.hurry.notify_all();
        while state.running > 0 {
            state = self.jobs.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.hurried = false;
    }
}

impl<D: Disk> Drop for Background<D> {
    fn drop(&mut self) {
        self.jobs.lock().cancelled = true;
        self.wait();
    }
}

impl Jobs {
    /// Rests once, and then for as long as the work is not behind and nobody waits for it. Says how to go on.
    pub(crate) fn next(&self, rest: Duration, is_behind: impl Fn() -> bool) -> Next {
        let mut state = self.lock();
        let mut pause = rest;
        loop {
            if state.cancelled {
                return Next::Cancelled;
            }
            if rest.is_zero() || state.hurried {
                return Next::InHaste;
            }
            let is_left = |state: &mut State| !state.hurried && !state.cancelled;
            let rested = self.hurry.wait_timeout_while(state, pause, is_left);
            state = rested.unwrap_or_else(PoisonError::into_inner).0;
            if is_left(&mut state) && is_behind() {
                return Next::AtEase;
            }
            // To look costs a waking, and that is much beside a quiet log.
            pause = rest * RESTS_WHEN_NOT_BEHIND;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Running(Arc<Jobs>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsDisk;

    #[test]
    fn nobody_waits_for_work_that_rests() {
        let background = Background::new(OsDisk::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let hour = Duration::from_secs(3600);
        let work = move |jobs: &Jobs| sender.send(jobs.next(hour, || false)).expect("somebody listens");
        background.start(work).unwrap();
        background.wait();
        assert_eq!(receiver.recv().unwrap(), Next::InHaste);
    }
}
