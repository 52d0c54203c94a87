//! The body of a replica: its thread, its log's thread, and nothing that decides.
//!
//! The replica's thread takes everything that is waiting, steps the replica once, and hands on what
//! came out: to the log, to the mailboxes of the network runtimes. The log's thread takes everything
//! that is waiting, writes it as one batch with one sync, and reports back. While one sync runs the
//! next batch gathers: group commit without a timer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_replica::{Boot, Input, Now, Output, Replica, Status};
use tenure_storage::{OsDisk, Store};
use tokio::sync::{mpsc, oneshot};

use crate::calls::{Mail, Mailbox};
use crate::log::{Failure, LogThread, LogWork};
use crate::member::{Inputs, Member};

/// Inputs taken into one step at most, so that answers are never far from their requests.
const STEP_LIMIT: usize = 4096;

/// A member that runs. Dropping it does not stop it; [`Driver::stop`] does.
pub struct Driver {
    inputs: Inputs,
    status: Arc<Mutex<Status>>,
    boot: u64,
    calls_drawn: Arc<AtomicU64>,
    mailboxes: Vec<Option<mpsc::UnboundedReceiver<Mail>>>,
    stop: Sender<()>,
    replica_thread: Option<JoinHandle<()>>,
    failed: Option<oneshot::Receiver<String>>,
}

impl Driver {
    /// Boots the replica and starts its threads. `runtimes` network runtimes will each attach once.
    pub fn start(
        config: tenure_replica::Config,
        boot: Boot,
        store: Store<OsDisk>,
        runtimes: usize,
    ) -> Result<Driver, tenure_replica::BootError> {
        let clock = Clock::start();
        let process_boot = config.boot;
        let replica = Replica::boot(config, boot, clock.now())?;
        let (input_sender, input_receiver) = channel();
        let inputs = Inputs { sender: input_sender, depth: Arc::new(AtomicUsize::new(0)) };
        let status = Arc::new(Mutex::new(replica.status()));
        let (mail_senders, mail_receivers): (Vec<_>, Vec<_>) =
            (0..runtimes).map(|_| mpsc::unbounded_channel()).map(|(sender, receiver)| (sender, Some(receiver))).unzip();
        let (stop, stopped) = channel();
        let (fail, failed) = oneshot::channel();
        let (log_sender, log_receiver) = channel();
        let failure = Failure::default();
        let log = LogThread {
            store,
            work: log_receiver,
            sender: log_sender.clone(),
            inputs: inputs.clone(),
            failure: failure.clone(),
            snapshot_writer: None,
        };
        let log_thread = thread::Builder::new().name("tenure-log".into()).spawn(move || log.run());
        let log_thread = log_thread.expect("the system can start a thread");
        let mut owner = Owner {
            replica,
            clock,
            inputs: input_receiver,
            depth: inputs.depth.clone(),
            stopped,
            log: log_sender,
            log_thread: Some(log_thread),
            failure,
            mail: mail_senders.into_iter().map(|sender| (sender, Mail::default())).collect(),
            status: status.clone(),
            fail: Some(fail),
        };
        let replica_thread = thread::Builder::new().name("tenure-replica".into()).spawn(move || owner.run());
        Ok(Driver {
            inputs,
            status,
            boot: process_boot,
            calls_drawn: Arc::default(),
            mailboxes: mail_receivers,
            stop,
            replica_thread: Some(replica_thread.expect("the system can start a thread")),
            failed: Some(failed),
        })
    }

    /// A handle for one network runtime, and the task that must run there for it.
    pub fn attach(&mut self, runtime: usize) -> (Member, impl Future<Output = ()> + Send + use<>) {
        let receiver = self.mailboxes[runtime].take().expect("each runtime attaches once");
        let mailbox = Mailbox::new(runtime as u8);
        let member = Member {
            inputs: self.inputs.clone(),
            mailbox: mailbox.clone(),
            status: self.status.clone(),
            boot: self.boot,
            calls_drawn: self.calls_drawn.clone(),
        };
        (member, mailbox.distribute(receiver))
    }

    /// Resolves with the reason if the member had to stop by itself. To be asked for once.
    pub fn failed(&mut self) -> oneshot::Receiver<String> {
        self.failed.take().expect("asked for once")
    }

    /// Stops the member; what was acknowledged is durable already. Calls still waiting are told that it stops.
    pub fn stop(mut self) {
        let _ = self.stop.send(());
        // Any input wakes the thread up.
        self.inputs.send(Input::Cancel { call: u64::MAX });
        if let Some(thread) = self.replica_thread.take() {
            let _ = thread.join();
        }
    }
}

struct Clock {
    start: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { monotonic_ms: self.start.elapsed().as_millis() as u64, wall_ms: wall.as_millis() as u64 }
    }
}

/// The replica's thread.
struct Owner {
    replica: Replica,
    clock: Clock,
    inputs: Receiver<Input>,
    depth: Arc<AtomicUsize>,
    stopped: Receiver<()>,
    log: Sender<LogWork>,
    log_thread: Option<JoinHandle<()>>,
    failure: Failure,
    mail: Vec<(mpsc::UnboundedSender<Mail>, Mail)>,
    status: Arc<Mutex<Status>>,
    fail: Option<oneshot::Sender<String>>,
}

impl Owner {
    fn run(&mut self) {
        let mut batch = Vec::with_capacity(STEP_LIMIT);
        let mut outputs = Vec::new();
        loop {
            let wait = self.replica.wake_ms().saturating_sub(self.clock.now().monotonic_ms);
            match self.inputs.recv_timeout(Duration::from_millis(wait)) {
                Ok(input) => batch.push(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while batch.len() < STEP_LIMIT
                && let Ok(input) = self.inputs.try_recv()
            {
                batch.push(input);
            }
            self.depth.fetch_sub(batch.len(), Ordering::Relaxed);
            if self.stopped.try_recv().is_ok() || self.has_failed() {
                break;
            }
            self.replica.step(self.clock.now(), batch.drain(..), &mut outputs);
            for output in outputs.drain(..) {
                self.perform(output);
            }
            self.deliver();
        }
        // The log's thread ends with its queue; only then is the data directory free again.
        let _ = self.log.send(LogWork::Stop);
        if let Some(thread) = self.log_thread.take() {
            let _ = thread.join();
        }
        self.mail.clear();
    }

    fn has_failed(&mut self) -> bool {
        let Some(reason) = self.failure.take() else { return false };
        if let Some(fail) = self.fail.take() {
            let _ = fail.send(reason);
        }
        true
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Persist(persist) => self.hand_to_log(LogWork::Persist(persist)),
            Output::SaveSnapshot(save) => self.hand_to_log(LogWork::SaveSnapshot(save)),
            Output::Answer { call, answer } => {
                if let Some((_, mail)) = self.mail.get_mut(Mailbox::runtime_of(call)) {
                    mail.answers.push((call, answer));
                }
            }
            Output::Notice { stream, notice } => {
                if let Some((_, mail)) = self.mail.get_mut(Mailbox::runtime_of(stream)) {
                    mail.notices.push((stream, notice));
                }
            }
            // A cluster of one has no peers.
            Output::Send { .. } => {}
            Output::Fatal(reason) => self.failure.leave(reason),
        }
    }

    fn hand_to_log(&mut self, work: LogWork) {
        // If the log's thread is gone it has left the reason, and woken this one to find it.
        let _ = self.log.send(work);
    }

    fn deliver(&mut self) {
        *self.status.lock().expect("no panic while the status is locked") = self.replica.status();
        for (sender, mail) in &mut self.mail {
            if !mail.is_empty() {
                let _ = sender.send(std::mem::take(mail));
            }
        }
    }
}
