//! Calls that wait for the replica, and the way its answers reach them.
//!
//! Every network runtime has a mailbox of its own, and a distributor task that serves it. What the
//! tasks of the runtime bring, the distributor takes to the replica in one turn; all answers of a
//! step for one runtime come back at once, and the distributor wakes the waiting futures: at most
//! one wake across threads for a whole batch, however many calls it answers.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use slab::Slab;
use tenure_replica::{Answer, Answered, CallId, Input, LockNotice, Notice, SessionNotice, StreamId};
use tokio::sync::mpsc;

use crate::driver::{Ending, Left, Turns, Writes};

/// What one step of the replica has for one runtime.
#[derive(Default)]
pub(crate) struct Mail {
    /// Delivered first: while the holder of a lock does not know of it, everybody behind it waits, too.
    grants: Vec<(CallId, Answer)>,
    answers: Vec<(CallId, Answer)>,
    pub(crate) queued: Vec<(CallId, usize)>,
    pub(crate) notices: Vec<(StreamId, Notice)>,
    pub(crate) sessions: Vec<(StreamId, SessionNotice)>,
    pub(crate) lock_notices: Vec<(StreamId, LockNotice)>,
}

/// Mail that has come for a runtime.
struct Incoming {
    mail: mpsc::UnboundedReceiver<Mail>,
    /// To be delivered at the next turn, before anything newer.
    kept: Option<Mail>,
}

/// What the stream of a session, or of watches on locks, hears of the replica.
pub(crate) enum SessionMail {
    Answer { number: u64, answer: Answer },
    Queued { number: u64, ahead: usize },
    Notice(SessionNotice),
    LockWatch(LockNotice),
}

impl Mail {
    pub(crate) fn add(&mut self, call: CallId, answer: Answer) {
        match answer.result {
            Ok(Answered::Lock(_)) => self.grants.push((call, answer)),
            _ => self.answers.push((call, answer)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Mail { grants, answers, queued, notices, sessions, lock_notices } = self;
        let is_quiet = notices.is_empty() && sessions.is_empty() && lock_notices.is_empty();
        grants.is_empty() && answers.is_empty() && queued.is_empty() && is_quiet
    }
}

/// Where the calls and watch streams of one runtime wait. Only its own threads and tasks take the
/// lock, so it is never contended.
#[derive(Clone)]
pub(crate) struct Mailbox {
    runtime: u8,
    turns: Turns,
    writes: Writes,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    calls: Slab<Slot>,
    /// Told apart by this when a slot is used again.
    generation: u32,
    streams: HashMap<StreamId, mpsc::UnboundedSender<Notice>>,
    sessions: HashMap<StreamId, mpsc::UnboundedSender<SessionMail>>,
    next_stream: u64,
    closed: bool,
    /// Something was brought to the replica from here since the last turn.
    brought: bool,
    distributor: Option<Waker>,
}

struct Slot {
    generation: u32,
    state: SlotState,
}

enum SlotState {
    Waiting(Option<Waker>),
    Answered(Box<Answer>),
    /// A numbered request of a session: its answer goes to the session's stream.
    Session {
        number: u64,
        stream: mpsc::UnboundedSender<SessionMail>,
    },
}

impl Mailbox {
    pub(crate) fn new(runtime: u8, turns: Turns, writes: Writes) -> Mailbox {
        Mailbox { runtime, turns, writes, waiting: Arc::default() }
    }

    /// Brings an input to the replica. The distributor takes the turn for it when the tasks that are
    /// ready now have run, so that what they bring goes along. False = the replica is gone.
    pub(crate) fn bring(&self, input: Input) -> bool {
        if !self.turns.bring(input) {
            return false;
        }
        let mut waiting = self.lock();
        if !std::mem::replace(&mut waiting.brought, true)
            && let Some(distributor) = &waiting.distributor
        {
            distributor.wake_by_ref();
        }
        true
    }

    /// Inputs that wait for the replica, from everywhere.
    pub(crate) fn depth(&self) -> usize {
        self.turns.depth()
    }

    /// Ends the member.
    pub(crate) fn end(&self, ending: Ending) {
        self.turns.end(Some(ending));
    }

    /// The runtime to whose mailbox this call's or stream's mail goes.
    pub(crate) fn runtime_of(id: u64) -> usize {
        (id >> 56) as usize
    }

    pub(crate) fn open_call(&self) -> OpenCall {
        let call = self.open_slot(SlotState::Waiting(None));
        OpenCall { mailbox: self.clone(), call, done: false }
    }

    fn open_slot(&self, state: SlotState) -> CallId {
        let mut waiting = self.lock();
        waiting.generation = (waiting.generation + 1) & 0x00ff_ffff;
        let generation = waiting.generation;
        let slot = waiting.calls.insert(Slot { generation, state });
        u64::from(self.runtime) << 56 | u64::from(generation) << 32 | slot as u64
    }

    pub(crate) fn open_session(&self) -> OpenSession {
        let (sender, mail) = mpsc::unbounded_channel();
        let mut waiting = self.lock();
        waiting.next_stream += 1;
        let stream = u64::from(self.runtime) << 56 | waiting.next_stream;
        if !waiting.closed {
            waiting.sessions.insert(stream, sender.clone());
        }
        drop(waiting);
        OpenSession { mailbox: self.clone(), stream, sender, mail }
    }

    /// Nobody waits for this call's answer any more.
    fn drop_call(&self, call: CallId) {
        let (slot, generation) = slot_of(call);
        let mut waiting = self.lock();
        if waiting.calls.get(slot).is_some_and(|found| found.generation == generation) {
            waiting.calls.remove(slot);
        }
    }

    pub(crate) fn open_stream(&self) -> (StreamId, mpsc::UnboundedReceiver<Notice>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut waiting = self.lock();
        waiting.next_stream += 1;
        let stream = u64::from(self.runtime) << 56 | waiting.next_stream;
        if !waiting.closed {
            waiting.streams.insert(stream, sender);
        }
        (stream, receiver)
    }

    pub(crate) fn close_stream(&self, stream: StreamId) {
        self.lock().streams.remove(&stream);
    }

    /// Runs on the mailbox's own runtime until the replica is gone.
    pub(crate) async fn distribute(self, mail: mpsc::UnboundedReceiver<Mail>) {
        let mut incoming = Incoming { mail, kept: None };
        std::future::poll_fn(|context| self.poll_distribute(&mut incoming, context)).await;
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.streams.clear();
        waiting.sessions.clear();
        waiting.calls.retain(|_, slot| !matches!(slot.state, SlotState::Session { .. }));
        for (_, slot) in &mut waiting.calls {
            if let SlotState::Waiting(Some(waker)) = &mut slot.state {
                waker.wake_by_ref();
            }
        }
    }

    fn poll_distribute(&self, incoming: &mut Incoming, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut waiting = self.lock();
            match &mut waiting.distributor {
                Some(known) if known.will_wake(context.waker()) => {}
                distributor => *distributor = Some(context.waker().clone()),
            }
            if let Some(mail) = incoming.kept.take() {
                waiting.deliver(mail);
            }
            if std::mem::take(&mut waiting.brought) {
                drop(waiting);
                if self.turns.take(self.writes) == Left::Inputs {
                    // After the other tasks of this runtime had theirs.
                    self.lock().brought = true;
                    context.waker().wake_by_ref();
                }
            }
        }
        loop {
            let mut mail = match incoming.mail.poll_recv(context) {
                Poll::Ready(Some(mail)) => mail,
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            };
            let mut waiting = self.lock();
            let grants = std::mem::take(&mut mail.grants);
            let has_granted = !grants.is_empty();
            for (call, answer) in grants {
                waiting.fill(call, answer);
            }
            // The tasks that were granted something run before those that hear the rest: one turn of the
            // runtime, in which the grant is on its way already.
            if has_granted && !mail.is_empty() {
                incoming.kept = Some(mail);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            waiting.deliver(mail);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no panic while the mailbox is locked")
    }
}

impl Waiting {
    /// The grants have been taken out of it and delivered before.
    fn deliver(&mut self, mail: Mail) {
        let Mail { grants: _, answers, queued, notices, sessions, lock_notices } = mail;
        for (call, answer) in answers {
            self.fill(call, answer);
        }
        for (call, ahead) in queued {
            self.note_queued(call, ahead);
        }
        for (stream, notice) in sessions {
            if let Some(sender) = self.sessions.get(&stream) {
                let _ = sender.send(SessionMail::Notice(notice));
            }
        }
        for (stream, notice) in lock_notices {
            if let Some(sender) = self.sessions.get(&stream) {
                let _ = sender.send(SessionMail::LockWatch(notice));
            }
        }
        for (stream, notice) in notices {
            if let Some(sender) = self.streams.get(&stream) {
                // A stream that was dropped meanwhile says so to the replica itself.
                let _ = sender.send(notice);
            }
        }
    }

    fn fill(&mut self, call: CallId, answer: Answer) {
        let (slot, generation) = slot_of(call);
        if let Some(found) = self.calls.get_mut(slot)
            && found.generation == generation
        {
            if let SlotState::Session { number, stream } = &found.state {
                let _ = stream.send(SessionMail::Answer { number: *number, answer });
                self.calls.remove(slot);
                return;
            }
            let before = std::mem::replace(&mut found.state, SlotState::Answered(Box::new(answer)));
            if let SlotState::Waiting(Some(waker)) = before {
                waker.wake();
            }
        }
    }

    /// Only sessions are told that they wait.
    fn note_queued(&mut self, call: CallId, ahead: usize) {
        let (slot, generation) = slot_of(call);
        if let Some(found) = self.calls.get(slot)
            && found.generation == generation
            && let SlotState::Session { number, stream } = &found.state
        {
            let _ = stream.send(SessionMail::Queued { number: *number, ahead });
        }
    }
}

fn slot_of(call: CallId) -> (usize, u32) {
    ((call & 0xffff_ffff) as usize, (call >> 32) as u32 & 0x00ff_ffff)
}

/// The mailbox of one session's stream.
pub(crate) struct OpenSession {
    mailbox: Mailbox,
    pub(crate) stream: StreamId,
    sender: mpsc::UnboundedSender<SessionMail>,
    mail: mpsc::UnboundedReceiver<SessionMail>,
}

impl OpenSession {
    /// A call whose answer comes as mail under this number.
    pub(crate) fn open_call(&self, number: u64) -> CallId {
        self.mailbox.open_slot(SlotState::Session { number, stream: self.sender.clone() })
    }

    pub(crate) fn drop_call(&self, call: CallId) {
        self.mailbox.drop_call(call);
    }

    /// False = the replica is gone.
    pub(crate) fn bring(&self, input: Input) -> bool {
        self.mailbox.bring(input)
    }

    /// The session keeps a sender itself, so that it is the caller who notices when the replica is gone.
    pub(crate) async fn next(&mut self) -> Option<SessionMail> {
        self.mail.recv().await
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<SessionMail>> {
        self.mail.poll_recv(context)
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.mailbox.lock().sessions.remove(&self.stream);
    }
}

/// A call under way; resolves to its answer, or to None if the replica is gone.
pub(crate) struct OpenCall {
    mailbox: Mailbox,
    pub(crate) call: CallId,
    done: bool,
}

impl OpenCall {
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }
}

impl Future for OpenCall {
    type Output = Option<Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let (slot, _) = slot_of(self.call);
        let mut waiting = self.mailbox.lock();
        let closed = waiting.closed;
        let state = &mut waiting.calls[slot].state;
        match state {
            SlotState::Waiting(_) if closed => {}
            SlotState::Waiting(waker) => {
                match waker {
                    Some(known) if known.will_wake(context.waker()) => {}
                    _ => *waker = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
            SlotState::Answered(_) | SlotState::Session { .. } => {}
        }
        let slot = waiting.calls.remove(slot);
        drop(waiting);
        self.done = true;
        match slot.state {
            SlotState::Answered(answer) => Poll::Ready(Some(*answer)),
            SlotState::Waiting(_) | SlotState::Session { .. } => Poll::Ready(None),
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if !self.done {
            let (slot, _) = slot_of(self.call);
            self.mailbox.lock().calls.remove(slot);
        }
    }
}
