//! Calls that wait for the replica, and the way its answers reach them.
//!
//! Every network runtime has a mailbox of its own. The replica's thread puts all answers of a step
//! for one runtime into it at once, and a distributor task there wakes the waiting futures: one
//! wake across threads for a whole batch, however many calls it answers.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use slab::Slab;
use tenure_replica::{Answer, CallId, Notice, StreamId};
use tokio::sync::mpsc;

/// What one step of the replica has for one runtime.
#[derive(Default)]
pub(crate) struct Mail {
    pub(crate) answers: Vec<(CallId, Answer)>,
    pub(crate) notices: Vec<(StreamId, Notice)>,
}

impl Mail {
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.notices.is_empty()
    }
}

/// Where the calls and watch streams of one runtime wait. Only its own threads and tasks take the
/// lock, so it is never contended.
#[derive(Clone)]
pub(crate) struct Mailbox {
    runtime: u8,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    calls: Slab<Slot>,
    /// Told apart by this when a slot is used again.
    generation: u32,
    streams: HashMap<StreamId, mpsc::UnboundedSender<Notice>>,
    next_stream: u64,
    closed: bool,
}

struct Slot {
    generation: u32,
    state: SlotState,
}

enum SlotState {
    Waiting(Option<Waker>),
    Answered(Box<Answer>),
}

impl Mailbox {
    pub(crate) fn new(runtime: u8) -> Mailbox {
        Mailbox { runtime, waiting: Arc::default() }
    }

    /// The runtime to whose mailbox this call's or stream's mail goes.
    pub(crate) fn runtime_of(id: u64) -> usize {
        (id >> 56) as usize
    }

    pub(crate) fn open_call(&self) -> OpenCall {
        let mut waiting = self.lock();
        waiting.generation = (waiting.generation + 1) & 0x00ff_ffff;
        let generation = waiting.generation;
        let slot = waiting.calls.insert(Slot { generation, state: SlotState::Waiting(None) });
        let call = u64::from(self.runtime) << 56 | u64::from(generation) << 32 | slot as u64;
        OpenCall { mailbox: self.clone(), call, done: false }
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
    pub(crate) async fn distribute(self, mut mail: mpsc::UnboundedReceiver<Mail>) {
        while let Some(Mail { answers, notices }) = mail.recv().await {
            let mut waiting = self.lock();
            for (call, answer) in answers {
                waiting.fill(call, answer);
            }
            for (stream, notice) in notices {
                if let Some(sender) = waiting.streams.get(&stream) {
                    // A stream that was dropped meanwhile says so to the replica itself.
                    let _ = sender.send(notice);
                }
            }
        }
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.streams.clear();
        for (_, slot) in &mut waiting.calls {
            if let SlotState::Waiting(Some(waker)) = &mut slot.state {
                waker.wake_by_ref();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no panic while the mailbox is locked")
    }
}

impl Waiting {
    fn fill(&mut self, call: CallId, answer: Answer) {
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
}

fn slot_of(call: CallId) -> (usize, u32) {
    ((call & 0xffff_ffff) as usize, (call >> 32) as u32 & 0x00ff_ffff)
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
