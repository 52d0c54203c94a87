//! The body of a replica: turns at stepping it, its log's thread, and nothing that decides.
//!
//! Whoever brings an input takes a turn: it steps the replica once with everything that is waiting,
//! and hands on what came out, to the log and to the mailboxes of the network runtimes. One thread
//! at a time; one that finds the replica taken goes on with its own work, because the one that has
//! it looks at the queue again before it leaves. So a request is stepped where it was decoded and
//! its commit is stepped where it was synced: two wake-ups of sleeping threads less on the way of a
//! write, and all of them on the way of a read, than with a thread that owns the replica.
//!
//! The log's thread takes everything that is waiting, writes it as one batch with one sync, and
//! brings the news. While one sync runs the next batch gathers: group commit without a timer.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tenure_machine::MemberId;
use tenure_replica::{Boot, Input, Now, Output, Persist, Replica, Status};
use tenure_storage::{OsDisk, Store};
use tokio::sync::{mpsc, oneshot, watch};

use crate::calls::{Mail, Mailbox};
use crate::log::{Durable, LogThread, LogTurn, LogWork, SharedLog};
use crate::member::Member;
use crate::peer::outbox::{Outbox, SnapshotOrder, Touched};
use crate::steps::StepTimes;

/// Inputs taken into one step at most, so that answers are never far from their requests.
const STEP_LIMIT: usize = 4096;
/// Another step costs the log's thread less than to wake the replica's own, and what comes out of it goes into the batch
/// that is written next; but those who wait for that batch must not wait for long.
const TURNS_IN_A_ROW: usize = 8;

/// A member that runs. Dropping it does not stop it; [`Driver::stop`] does.
pub struct Driver {
    turns: Turns,
    status: Arc<Mutex<Status>>,
    leader: watch::Receiver<MemberId>,
    step_times: Arc<StepTimes>,
    boot: u64,
    calls_drawn: Arc<AtomicU64>,
    mailboxes: Vec<Option<mpsc::UnboundedReceiver<Mail>>>,
    threads: Vec<JoinHandle<()>>,
    ended: Option<oneshot::Receiver<Ending>>,
}

/// Why a member stopped by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Something is broken that it must not go on with.
    Fault(String),
    /// It belongs to the cluster no more.
    Removed,
    /// Others know it with another data directory; in their words.
    Stranger(String),
}

impl Driver {
    /// Boots the replica and starts its threads. `runtimes` network runtimes will each attach once. What it has
    /// for its peers goes into the outbox.
    pub(crate) fn start(
        config: tenure_replica::Config,
        boot: Boot,
        store: Store<OsDisk>,
        runtimes: usize,
        outbox: Outbox,
    ) -> Result<Driver, tenure_replica::BootError> {
        let clock = Clock::start();
        let process_boot = config.boot;
        let replica = Replica::boot(config, boot, clock.now())?;
        let status = Arc::new(Mutex::new(replica.status()));
        let (mail_senders, mail_receivers): (Vec<_>, Vec<_>) =
            (0..runtimes).map(|_| mpsc::unbounded_channel()).map(|(sender, receiver)| (sender, Some(receiver))).unzip();
        let (end, ended) = oneshot::channel();
        let (leader_sender, leader) = watch::channel(lock(&status).leader);
        let step_times = Arc::<StepTimes>::default();
        let (log_sender, log_receiver) = channel();
        let owner = Owner {
            replica,
            batch: Vec::new(),
            outputs: Vec::new(),
            persists: Vec::new(),
            messages: Vec::new(),
            touched: Touched::default(),
            is_removed: false,
            outbox: outbox.clone(),
            log: log_sender.clone(),
            mail: mail_senders.into_iter().map(|sender| (sender, Mail::default())).collect(),
            status: status.clone(),
            told_leader: *leader.borrow(),
            leader: leader_sender,
            step_times: step_times.clone(),
            end: Some(end),
        };
        let log = Arc::new(SharedLog::new(store));
        let turns = Turns(Arc::new(Shared {
            clock,
            log: log.clone(),
            outbox,
            waiting: Mutex::default(),
            depth: AtomicUsize::new(0),
            owner: Mutex::new(owner),
            ended: AtomicBool::new(false),
            wake_ms: AtomicU64::new(0),
            planned_ms: AtomicU64::new(0),
            timekeeper: Mutex::new(None),
        }));
        let log =
            LogThread { log, work: log_receiver, sender: log_sender, turns: turns.clone(), snapshot_writer: None };
        let timekeeper = turns.clone();
        let threads = vec![
            start_thread("tenure-replica", move || timekeeper.keep_time()),
            start_thread("tenure-log", move || log.run()),
        ];
        Ok(Driver {
            turns,
            status,
            leader,
            step_times,
            boot: process_boot,
            calls_drawn: Arc::default(),
            mailboxes: mail_receivers,
            threads,
            ended: Some(ended),
        })
    }

    /// A handle for one network runtime, and the task that must run there for it.
    pub(crate) fn attach(
        &mut self,
        runtime: usize,
        writes: Writes,
    ) -> (Member, impl Future<Output = ()> + Send + use<>) {
        let receiver = self.mailboxes[runtime].take().expect("each runtime attaches once");
        let mailbox = Mailbox::new(runtime as u8, self.turns.clone(), writes);
        let member = Member {
            mailbox: mailbox.clone(),
            status: self.status.clone(),
            boot: self.boot,
            calls_drawn: self.calls_drawn.clone(),
        };
        (member, mailbox.distribute(receiver))
    }

    /// Who leads, 0 = unknown: told as soon as it changes.
    pub(crate) fn leader(&self) -> watch::Receiver<MemberId> {
        self.leader.clone()
    }

    pub(crate) fn step_times(&self) -> Arc<StepTimes> {
        self.step_times.clone()
    }

    /// Resolves with the reason if the member had to stop by itself. To be asked for once.
    pub fn ended(&mut self) -> oneshot::Receiver<Ending> {
        self.ended.take().expect("asked for once")
    }

    /// Stops the member; what was acknowledged is durable already. Calls still waiting are told that it stops.
    pub fn stop(self) {
        self.turns.end(None);
        // The log's thread ends with its queue; only then is the data directory free again.
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name.into()).spawn(run).expect("the system can start a thread")
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

/// The queue into the replica, and the right to step it, which one thread has at a time.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Shared>);

struct Shared {
    clock: Clock,
    log: Arc<SharedLog>,
    outbox: Outbox,
    waiting: Mutex<Vec<Input>>,
    /// Of `waiting`, to be read without its lock.
    depth: AtomicUsize,
    owner: Mutex<Owner>,
    ended: AtomicBool,
    /// When the replica wants to be stepped though nothing has come.
    wake_ms: AtomicU64,
    /// When the timekeeper will look at that again.
    planned_ms: AtomicU64,
    timekeeper: Mutex<Option<Thread>>,
}

/// Who writes the log for a thread that takes a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    ByLogThread,
    /// The thread itself, if that is quick: then it costs less than to wake another one up, twice. Not for
    /// threads that must go on when a disk hangs.
    Itself,
}

/// What is left after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// Inputs came meanwhile, and nobody else will take them.
    Inputs,
}

impl Turns {
    /// Puts an input into the queue; whoever brings it must take a turn soon. False = the replica is gone.
    pub(crate) fn bring(&self, input: Input) -> bool {
        if self.0.ended.load(Ordering::Acquire) {
            return false;
        }
        let mut waiting = lock(&self.0.waiting);
        waiting.push(input);
        self.0.depth.store(waiting.len(), Ordering::Relaxed);
        true
    }

    /// As [`Turns::bring`], with all of these, in order; leaves none.
    pub(crate) fn bring_all(&self, inputs: &mut Vec<Input>) -> bool {
        if self.0.ended.load(Ordering::Acquire) {
            inputs.clear();
            return false;
        }
        let mut waiting = lock(&self.0.waiting);
        if waiting.is_empty() {
            std::mem::swap(&mut *waiting, inputs);
        } else {
            waiting.append(inputs);
        }
        self.0.depth.store(waiting.len(), Ordering::Relaxed);
        true
    }

    /// Inputs that wait.
    pub(crate) fn depth(&self) -> usize {
        self.0.depth.load(Ordering::Relaxed)
    }

    /// Steps the replica with everything that waits, unless another thread is doing so: that one
    /// will find, when it has finished, what was brought meanwhile.
    pub(crate) fn take(&self, writes: Writes) -> Left {
        let shared = &*self.0;
        let mut owner = match shared.owner.try_lock() {
            Ok(owner) => owner,
            Err(TryLockError::WouldBlock) => return Left::Nothing,
            Err(TryLockError::Poisoned(_)) => panic!("a panic within the replica"),
        };
        if shared.ended.load(Ordering::Acquire) {
            return Left::Nothing;
        }
        if let Err(ending) = owner.step(shared) {
            drop(owner);
            self.end(Some(ending));
            return Left::Nothing;
        }
        let wake_ms = owner.replica.wake_ms();
        shared.wake_ms.store(wake_ms, Ordering::SeqCst);
        // The log is reserved before the replica is given away, so that it is written in order.
        let here = owner.hand_on(&shared.log, writes);
        let is_removed = owner.is_removed;
        let touched = std::mem::take(&mut owner.touched);
        drop(owner);
        // Before anything is written here, so that others write it at the same time.
        touched.flush();
        if wake_ms < shared.planned_ms.load(Ordering::SeqCst) {
            self.wake_timekeeper();
        }
        if let Some((mut log, persists)) = here {
            match log.persist(persists) {
                Ok(durable) => self.report(durable),
                Err(fault) => {
                    drop(log);
                    self.end(Some(Ending::Fault(fault.to_string())));
                    return Left::Nothing;
                }
            }
            drop(log);
            if !is_removed {
                // What has become durable is applied and answered without a detour.
                return self.take(Writes::ByLogThread);
            }
        }
        if is_removed {
            self.end(Some(Ending::Removed));
            return Left::Nothing;
        }
        if lock(&shared.waiting).is_empty() { Left::Nothing } else { Left::Inputs }
    }

    /// Turns for a thread with other things to do: what is left after a few goes to the replica's own thread.
    pub(crate) fn take_a_few(&self) {
        for _ in 0..TURNS_IN_A_ROW {
            if self.take(Writes::ByLogThread) == Left::Nothing {
                return;
            }
        }
        self.wake_timekeeper();
    }

    /// Tells the replica what is durable. Only then do the messages leave that say so to others: an answer to
    /// them must not come before it.
    pub(crate) fn report(&self, durable: Durable) {
        self.bring(durable.report);
        self.0.outbox.send(durable.messages);
    }

    /// Ends the member: nobody is answered any more.
    pub(crate) fn end(&self, ending: Option<Ending>) {
        let mut owner = lock(&self.0.owner);
        self.0.ended.store(true, Ordering::Release);
        if let (Some(ending), Some(end)) = (ending, owner.end.take()) {
            let _ = end.send(ending);
        }
        let _ = owner.log.send(LogWork::Stop);
        owner.mail.clear();
        drop(owner);
        self.wake_timekeeper();
    }

    fn wake_timekeeper(&self) {
        if let Some(thread) = &*lock(&self.0.timekeeper) {
            thread.unpark();
        }
    }

    /// Steps the replica whenever it is time and nobody else has done so.
    fn keep_time(&self) {
        let shared = &*self.0;
        *lock(&shared.timekeeper) = Some(thread::current());
        while !shared.ended.load(Ordering::Acquire) {
            if self.take(Writes::ByLogThread) == Left::Inputs {
                continue;
            }
            let now_ms = shared.clock.now().monotonic_ms;
            // If another thread is at it right now, it need not be asked again at once.
            let until_ms = shared.wake_ms.load(Ordering::SeqCst).max(now_ms + 1);
            shared.planned_ms.store(until_ms, Ordering::SeqCst);
            // Whoever asked for an earlier time before it saw this plan has not woken this thread.
            if shared.wake_ms.load(Ordering::SeqCst) >= until_ms || until_ms == now_ms + 1 {
                thread::park_timeout(Duration::from_millis(until_ms - now_ms));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is locked")
}

/// The replica with what it is stepped with.
struct Owner {
    replica: Replica,
    batch: Vec<Input>,
    outputs: Vec<Output>,
    persists: Vec<Persist>,
    messages: Vec<(MemberId, Bytes)>,
    /// The queues of peers that the last step has put something into.
    touched: Touched,
    /// The member ends once all that came out before is done.
    is_removed: bool,
    outbox: Outbox,
    log: Sender<LogWork>,
    mail: Vec<(mpsc::UnboundedSender<Mail>, Mail)>,
    status: Arc<Mutex<Status>>,
    /// What `leader` says.
    told_leader: MemberId,
    leader: watch::Sender<MemberId>,
    step_times: Arc<StepTimes>,
    end: Option<oneshot::Sender<Ending>>,
}

impl Owner {
    /// Fails with the reason for which the member must stop.
    fn step(&mut self, shared: &Shared) -> Result<(), Ending> {
        {
            let mut waiting = lock(&shared.waiting);
            if waiting.len() <= STEP_LIMIT {
                std::mem::swap(&mut self.batch, &mut waiting);
            } else {
                self.batch.extend(waiting.drain(..STEP_LIMIT));
            }
            shared.depth.store(waiting.len(), Ordering::Relaxed);
        }
        let began = Instant::now();
        self.replica.step(shared.clock.now(), self.batch.drain(..), &mut self.outputs);
        self.step_times.record(began.elapsed());
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            self.perform(output)?;
        }
        self.outputs = outputs;
        self.deliver();
        Ok(())
    }

    fn perform(&mut self, output: Output) -> Result<(), Ending> {
        match output {
            Output::Persist(persist) => self.persists.push(persist),
            Output::SaveSnapshot(save) => self.hand_to_log(LogWork::SaveSnapshot(save)),
            Output::Answer { call, answer } => {
                if let Some((_, mail)) = self.mail.get_mut(Mailbox::runtime_of(call)) {
                    mail.add(call, answer);
                }
            }
            Output::Queued { call, ahead } => {
                if let Some((_, mail)) = self.mail.get_mut(Mailbox::runtime_of(call)) {
                    mail.queued.push((call, ahead));
                }
            }
            Output::Session { stream, notice } => {
                if let Some((_, mail)) = self.mail.get_mut(Mailbox::runtime_of(stream)) {
                    mail.sessions.push((stream, notice));
                }
            }
            Output::LockNotice { stream, notice } => {
                if let Some((_, mail)) = self.mail.get_mut(Mailbox::runtime_of(stream)) {
                    mail.lock_notices.push((stream, notice));
                }
            }
            Output::Notice { stream, notice } => {
                if let Some((_, mail)) = self.mail.get_mut(Mailbox::runtime_of(stream)) {
                    mail.notices.push((stream, notice));
                }
            }
            Output::HashState { index, view } => self.hand_to_log(LogWork::HashState { index, view }),
            Output::Send { to, message } => self.messages.push((to, message)),
            Output::SendSnapshot { to, index, message } => {
                self.outbox.send_snapshot(SnapshotOrder { to, index, message })
            }
            Output::Members(members) => self.outbox.set_members(members),
            Output::SnapshotRefused { index } => self.hand_to_log(LogWork::DiscardSnapshot { index }),
            Output::Removed => self.is_removed = true,
            Output::Fatal(reason) => return Err(Ending::Fault(reason)),
        }
        Ok(())
    }

    /// Gives what is to be persisted to the log's thread, or, with the log, to the caller.
    fn hand_on<'a>(&mut self, log: &'a SharedLog, writes: Writes) -> Option<(LogTurn<'a>, Vec<Persist>)> {
        if self.persists.is_empty() {
            return None;
        }
        let persists = std::mem::take(&mut self.persists);
        if writes == Writes::Itself
            && let Some(turn) = log.if_quick(&persists)
        {
            return Some((turn, persists));
        }
        log.hand_over(persists.len());
        self.hand_to_log(LogWork::Persist(persists));
        None
    }

    fn hand_to_log(&mut self, work: LogWork) {
        // If the log's thread is gone it has ended the member.
        let _ = self.log.send(work);
    }

    fn deliver(&mut self) {
        let status = self.replica.status();
        if status.leader != self.told_leader {
            self.told_leader = status.leader;
            self.leader.send_replace(status.leader);
        }
        *lock(&self.status) = status;
        if !self.messages.is_empty() {
            self.touched = self.outbox.put(self.messages.drain(..));
        }
        for (sender, mail) in &mut self.mail {
            if !mail.is_empty() {
                let _ = sender.send(std::mem::take(mail));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{self, Beginning, Found};

    #[tokio::test]
    async fn a_member_of_several_asks_the_others_for_their_votes() {
        let directory = tempfile::tempdir().unwrap();
        let config = crate::config::Config { data_dir: directory.path().join("data"), ..Default::default() };
        let cluster = ["n1", "n2", "n3"].map(|name| (name.to_owned(), "127.0.0.1:1".to_owned()));
        let Ok(Found::Empty(blank)) = data::open(&config) else { panic!("it is new") };
        let data = data::begin(*blank, Beginning::of_cluster("n1", &cluster)).unwrap();
        let own = data.identity.member_id;
        let replica = tenure_replica::Config { member: own, ..Default::default() };
        let (outbox, _orders) = Outbox::new(own, 1 << 20);
        let driver = Driver::start(replica, data.boot, data.store, 0, outbox.clone()).unwrap();
        let mut members = outbox.watch_members();
        let members = members.wait_for(|members| members.len() == 3).await.unwrap().clone();
        for member in members.iter().filter(|member| member.id != own) {
            let queue = outbox.queue(member.id).unwrap();
            while queue.take_batch().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        tokio::task::spawn_blocking(move || driver.stop()).await.unwrap();
        // The directory is free again.
        assert!(matches!(data::open(&config), Ok(Found::Existing(_))));
    }
}
