//! Calls that wait for the replica, and the way its answers reach them.
//!
//! Every network runtime has a mailbox of its own, and a distributor task that serves it. What the
//! tasks of the runtime bring, the distributor takes to the replica in one turn; all answers of a
//! step for one runtime come back at once, and the distributor wakes the waiting futures: at most
//! one wake across threads for a whole batch, however many calls it answers.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
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
    Answer { call: CallId, answer: Answer },
    Queued { call: CallId, ahead: usize },
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
    sessions: Vec<SessionBox>,
    /// Those of them that nobody uses.
    free_sessions: Vec<usize>,
    session_of: HashMap<StreamId, usize>,
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
}

/// What has come for a session and was not read yet. It is taken all at once.
#[derive(Default)]
struct SessionBox {
    mail: VecDeque<SessionMail>,
    reader: Option<Waker>,
    is_used: bool,
    /// The last call of the sessions that have used it: the next one counts on, so that none of its calls is taken for
    /// one of theirs.
    last_call: u32,
}

impl SessionBox {
    fn put(&mut self, mail: SessionMail) {
        if self.is_used {
            self.mail.push_back(mail);
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
    }
}

/// Marks the calls of sessions: their answers go to the session's box, without a slot for each.
const OF_SESSION: u64 = 1 << 55;
/// As many sessions as a call can name.
const SESSIONS: usize = 1 << 23;
const GENERATIONS: u32 = 1 << 23;

impl Mailbox {
    pub(crate) fn new(runtime: u8, turns: Turns, writes: Writes) -> Mailbox {
        Mailbox { runtime, turns, writes, waiting: Arc::default() }
    }

    /// Brings an input to the replica. The distributor takes the turn for it when the tasks that are
    /// ready now have run, so that what they bring goes along. False = the replica is gone.
    pub(crate) fn bring(&self, input: Input) -> bool {
        let is_there = self.turns.bring(input);
        self.ask_for_turn();
        is_there
    }

    /// As [`Mailbox::bring`], with all of these; leaves none.
    pub(crate) fn bring_all(&self, inputs: &mut Vec<Input>) -> bool {
        let is_there = self.turns.bring_all(inputs);
        self.ask_for_turn();
        is_there
    }

    fn ask_for_turn(&self) {
        let mut waiting = self.lock();
        if !std::mem::replace(&mut waiting.brought, true)
            && let Some(distributor) = &waiting.distributor
        {
            distributor.wake_by_ref();
        }
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
        waiting.generation = (waiting.generation + 1) % GENERATIONS;
        let generation = waiting.generation;
        let slot = waiting.calls.insert(Slot { generation, state });
        u64::from(self.runtime) << 56 | u64::from(generation) << 32 | slot as u64
    }

    /// None = there are as many as can be.
    pub(crate) fn open_session(&self) -> Option<OpenSession> {
        let mut waiting = self.lock();
        waiting.next_stream += 1;
        let stream = u64::from(self.runtime) << 56 | waiting.next_stream;
        let session = match waiting.free_sessions.pop() {
            Some(session) => session,
            None if waiting.sessions.len() == SESSIONS => return None,
            None => {
                waiting.sessions.push(SessionBox::default());
                waiting.sessions.len() - 1
            }
        };
        let last_call = waiting.sessions[session].last_call;
        waiting.sessions[session].is_used = true;
        waiting.session_of.insert(stream, session);
        drop(waiting);
        let first = u64::from(self.runtime) << 56 | OF_SESSION | (session as u64) << 32;
        let (brought, heard) = Default::default();
        Some(OpenSession { mailbox: self.clone(), stream, session, first, last_call, brought, heard })
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
        waiting.sessions.iter_mut().filter_map(|session| session.reader.take()).for_each(Waker::wake);
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
            if has_granted {
                waiting.deliver_along(&mut mail.answers);
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
            if let Some(session) = self.session_of.get(&stream) {
                self.sessions[*session].put(SessionMail::Notice(notice));
            }
        }
        for (stream, notice) in lock_notices {
            if let Some(session) = self.session_of.get(&stream) {
                self.sessions[*session].put(SessionMail::LockWatch(notice));
            }
        }
        for (stream, notice) in notices {
            if let Some(sender) = self.streams.get(&stream) {
                // A stream that was dropped meanwhile says so to the replica itself.
                let _ = sender.send(notice);
            }
        }
    }

    /// A session that was woken reads all that there is: what else has come for it goes along, and need not be sent
    /// by itself.
    fn deliver_along(&mut self, answers: &mut Vec<(CallId, Answer)>) {
        let is_woken = |(call, _): &mut (CallId, Answer)| {
            session_of(*call).is_some_and(|session| !self.sessions[session].mail.is_empty())
        };
        let along: Vec<_> = answers.extract_if(.., is_woken).collect();
        for (call, answer) in along {
            self.fill(call, answer);
        }
    }

    fn fill(&mut self, call: CallId, answer: Answer) {
        if let Some(session) = session_of(call) {
            return self.sessions[session].put(SessionMail::Answer { call, answer });
        }
        let (slot, generation) = slot_of(call);
        if let Some(found) = self.calls.get_mut(slot)
            && found.generation == generation
        {
            let before = std::mem::replace(&mut found.state, SlotState::Answered(Box::new(answer)));
            if let SlotState::Waiting(Some(waker)) = before {
                waker.wake();
            }
        }
    }

    /// Only sessions are told that they wait.
    fn note_queued(&mut self, call: CallId, ahead: usize) {
        if let Some(session) = session_of(call) {
            self.sessions[session].put(SessionMail::Queued { call, ahead });
        }
    }
}

fn slot_of(call: CallId) -> (usize, u32) {
    ((call & 0xffff_ffff) as usize, (call >> 32) as u32 % GENERATIONS)
}

fn session_of(call: CallId) -> Option<usize> {
    (call & OF_SESSION != 0).then_some((call >> 32) as usize % SESSIONS)
}

/// The mailbox of one session's stream.
pub(crate) struct OpenSession {
    mailbox: Mailbox,
    pub(crate) stream: StreamId,
    session: usize,
    /// What all its calls have in common.
    first: CallId,
    last_call: u32,
    /// For the replica, gathered.
    brought: Vec<Input>,
    /// Taken out of the box, to be read.
    heard: VecDeque<SessionMail>,
}

impl OpenSession {
    /// A call whose answer comes as mail, unless nobody wants it any more by then.
    pub(crate) fn open_call(&mut self) -> CallId {
        self.last_call = self.last_call.wrapping_add(1);
        self.first | u64::from(self.last_call)
    }

    /// To be brought along with others; see [`OpenSession::bring_gathered`].
    pub(crate) fn gather(&mut self, input: Input) {
        self.brought.push(input);
    }

    /// False = the replica is gone.
    pub(crate) fn bring_gathered(&mut self) -> bool {
        self.brought.is_empty() || self.mailbox.bring_all(&mut self.brought)
    }

    pub(crate) fn bring(&mut self, input: Input) -> bool {
        self.gather(input);
        self.bring_gathered()
    }

    /// None = the replica is gone.
    pub(crate) async fn next(&mut self) -> Option<SessionMail> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<SessionMail>> {
        if self.heard.is_empty() {
            let mut waiting = self.mailbox.lock();
            let is_closed = waiting.closed;
            let session = &mut waiting.sessions[self.session];
            if session.mail.is_empty() {
                match &session.reader {
                    _ if is_closed => return Poll::Ready(None),
                    Some(known) if known.will_wake(context.waker()) => {}
                    _ => session.reader = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
            std::mem::swap(&mut self.heard, &mut session.mail);
        }
        Poll::Ready(self.heard.pop_front())
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.bring_gathered();
        let mut waiting = self.mailbox.lock();
        waiting.session_of.remove(&self.stream);
        waiting.free_sessions.push(self.session);
        // With all that nobody will read.
        waiting.sessions[self.session] = SessionBox { last_call: self.last_call, ..SessionBox::default() };
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
            SlotState::Answered(_) => {}
        }
        let slot = waiting.calls.remove(slot);
        drop(waiting);
        self.done = true;
        match slot.state {
            SlotState::Answered(answer) => Poll::Ready(Some(*answer)),
            SlotState::Waiting(_) => Poll::Ready(None),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{self, Beginning, Found};
    use crate::driver::Driver;
    use crate::peer::outbox::Outbox;
    use tenure_replica::Failure;

    fn mailbox(directory: &std::path::Path) -> (Driver, Mailbox) {
        let config = crate::config::Config { data_dir: directory.join("data"), ..Default::default() };
        let cluster = ["n1", "n2"].map(|name| (name.to_owned(), "127.0.0.1:1".to_owned()));
        let Ok(Found::Empty(blank)) = data::open(&config) else { panic!("it is new") };
        let data = data::begin(*blank, Beginning::of_cluster("n1", &cluster)).unwrap();
        let member = data.identity.member_id;
        let replica = tenure_replica::Config { member, ..Default::default() };
        let (outbox, _) = Outbox::new(member, 1 << 20);
        let mut driver = Driver::start(replica, data.boot, data.store, 1, outbox).unwrap();
        let mailbox = driver.attach(0, Writes::ByLogThread).0.mailbox;
        (driver, mailbox)
    }

    fn answer() -> Answer {
        Answer { revision: 1, term: 1, result: Err(Failure::Stopping) }
    }

    async fn heard(session: &mut OpenSession) -> Vec<CallId> {
        let mut calls = Vec::new();
        poll_fn(|context| {
            while let Poll::Ready(Some(SessionMail::Answer { call, .. })) = session.poll_next(context) {
                calls.push(call);
            }
            Poll::Ready(())
        })
        .await;
        calls
    }

    #[tokio::test]
    async fn answers_reach_their_session_in_order_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let (driver, mailbox) = mailbox(directory.path());
        let mut sessions = [mailbox.open_session().unwrap(), mailbox.open_session().unwrap()];
        let calls: Vec<CallId> = (0..6).map(|number: usize| sessions[number % 2].open_call()).collect();
        for call in calls.iter().rev() {
            mailbox.lock().fill(*call, answer());
        }
        assert_eq!(heard(&mut sessions[0]).await, [calls[4], calls[2], calls[0]]);
        assert_eq!(heard(&mut sessions[1]).await, [calls[5], calls[3], calls[1]]);
        assert!(heard(&mut sessions[0]).await.is_empty());
        tokio::task::spawn_blocking(move || driver.stop()).await.unwrap();
    }

    #[tokio::test]
    async fn what_else_has_come_for_a_session_goes_along_with_its_grants() {
        let directory = tempfile::tempdir().unwrap();
        let (driver, mailbox) = mailbox(directory.path());
        let [mut granted, mut other] = [mailbox.open_session().unwrap(), mailbox.open_session().unwrap()];
        let [grant, along, later] = [granted.open_call(), granted.open_call(), other.open_call()];
        let unary = mailbox.open_call();
        let mut answers = vec![(later, answer()), (along, answer()), (unary.call, answer())];
        {
            let mut waiting = mailbox.lock();
            waiting.fill(grant, answer());
            waiting.deliver_along(&mut answers);
        }
        assert_eq!(heard(&mut granted).await, [grant, along]);
        assert_eq!(answers.iter().map(|(call, _)| *call).collect::<Vec<_>>(), [later, unary.call]);
        drop((unary, granted, other));
        tokio::task::spawn_blocking(move || driver.stop()).await.unwrap();
    }

    /// What was under way when a session ended is answered late, and its successor in the same box must not take that
    /// for an answer to a call of its own.
    #[tokio::test]
    async fn no_call_of_a_session_is_named_like_one_of_its_predecessors() {
        let directory = tempfile::tempdir().unwrap();
        let (driver, mailbox) = mailbox(directory.path());
        let mut first = mailbox.open_session().unwrap();
        let late: Vec<CallId> = (0..3).map(|_| first.open_call()).collect();
        drop(first);
        mailbox.lock().fill(late[0], answer());
        let mut second = mailbox.open_session().unwrap();
        let calls: Vec<CallId> = (0..3).map(|_| second.open_call()).collect();
        assert_eq!(session_of(late[0]), session_of(calls[0]), "they share a box");
        assert!(late.iter().all(|call| !calls.contains(call)));
        mailbox.lock().fill(late[1], answer());
        mailbox.lock().fill(calls[0], answer());
        assert_eq!(heard(&mut second).await, [late[1], calls[0]], "what came while nobody read is gone");
        tokio::task::spawn_blocking(move || driver.stop()).await.unwrap();
    }

    #[test]
    fn calls_with_and_without_a_session_are_told_apart() {
        let of_session = 7 << 56 | OF_SESSION | 5 << 32 | 9;
        assert_eq!((Mailbox::runtime_of(of_session), session_of(of_session)), (7, Some(5)));
        let plain = 7 << 56 | u64::from(GENERATIONS - 1) << 32 | 9;
        assert_eq!((Mailbox::runtime_of(plain), session_of(plain), slot_of(plain)), (7, None, (9, GENERATIONS - 1)));
    }
}
