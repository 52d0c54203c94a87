//! The services' only door to the replica: async calls that become its inputs.
//!
//! A service decodes, validates and authorizes; then it calls one of these and awaits the answer.
//! Dropping the future of a call tells the replica that nobody waits for it any more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tenure_machine::{
    self as machine, BusyReply, Command, Keys, LeaseId, Leave, Lock, LockReply, MemberId, RangeQuery, RangeReply,
    Reply, Revision, View,
};
use tenure_replica::{
    Answer, Answered, CallId, Consistency, Failure, Input, LeaseStatus, MemberChange, Notice, Read, Status, StreamId,
    WatchId, WatchRequest,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::calls::{Mailbox, OpenCall, OpenSession};
use crate::driver::Ending;
use crate::peer::Host;

/// Inputs that wait for the replica; beyond this, requests that can be refused are.
const QUEUE_LIMIT: usize = 100_000;

tokio::task_local! {
    /// When the time that a caller has given itself is almost up. Once it is, the caller knows nothing but that: why, it
    /// can only be told before.
    pub(crate) static ALMOST_UP: Instant;
}

/// A cheap handle on the member that this process runs, for use on one network runtime.
#[derive(Clone)]
pub struct Member {
    pub(crate) mailbox: Mailbox,
    pub(crate) status: Arc<Mutex<Status>>,
    /// Drawn when the process starts; with a number behind it, it names a call for good.
    pub(crate) boot: u64,
    pub(crate) calls_drawn: Arc<AtomicU64>,
}

/// A value with what a response header says about the moment it was read.
#[derive(Debug, Clone)]
pub struct At<T> {
    pub value: T,
    pub revision: Revision,
    pub term: u64,
}

/// A range is answered within the step if it is short, else by a view to read elsewhere.
pub enum RangeAnswer {
    Ready(RangeReply),
    /// The caller runs `view.range(&query)` off the network threads.
    Long(Box<View>, RangeQuery),
}

/// What became of a Lock.
#[derive(Debug)]
pub enum Locked {
    Held(LockReply),
    /// It was not to wait, and somebody is in the way.
    Busy(BusyReply),
}

impl Member {
    /// Replicates a command and gives its reply.
    pub async fn submit(&self, command: Command) -> Result<At<Reply>, Failure> {
        // What gives back room must pass when everything else is shed.
        let frees = matches!(
            command,
            Command::Delete(_) | Command::LeaseRevoke { .. } | Command::Leave(_) | Command::Unlock(_)
        );
        let answer = self.call(frees, |call| Input::Propose { call, command }).await?;
        answer.map(|answered| match answered {
            Answered::Reply(reply) => reply,
            other => unexpected(other),
        })
    }

    pub async fn range(&self, query: RangeQuery, consistency: Consistency) -> Result<At<RangeAnswer>, Failure> {
        let again = match query.keys {
            Keys::One(_) => None,
            Keys::Span { .. } => Some(query.clone()),
        };
        let read = Read::Range(query);
        let answer = self.call(false, |call| Input::Read { call, read, consistency }).await?;
        answer.map(|answered| match (answered, again) {
            (Answered::Range(reply), _) => RangeAnswer::Ready(reply),
            (Answered::View(view), Some(query)) => RangeAnswer::Long(view, query),
            (other, _) => unexpected(other),
        })
    }

    pub async fn view(&self, consistency: Consistency) -> Result<At<View>, Failure> {
        let answer = self.call(false, |call| Input::Read { call, read: Read::View, consistency }).await?;
        answer.map(|answered| match answered {
            Answered::View(view) => *view,
            other => unexpected(other),
        })
    }

    /// The renewed lease's TTL; None = there is no such lease.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<At<Option<u64>>, Failure> {
        let answer = self.call(true, |call| Input::KeepAlive { call, lease, epoch: 0 }).await?;
        answer.map(|answered| match answered {
            Answered::KeptAlive { ttl_ms } => ttl_ms,
            other => unexpected(other),
        })
    }

    pub async fn lease_time_to_live(&self, lease: LeaseId) -> Result<At<Option<LeaseStatus>>, Failure> {
        let read = Read::LeaseTimeToLive(lease);
        let consistency = Consistency::Linearizable;
        let answer = self.call(false, |call| Input::Read { call, read, consistency }).await?;
        answer.map(|answered| match answered {
            Answered::LeaseTimeToLive(status) => status,
            other => unexpected(other),
        })
    }

    /// What is left of each of these leases.
    pub async fn lease_times(&self, leases: Vec<LeaseId>) -> Result<At<Vec<Option<LeaseStatus>>>, Failure> {
        let read = Read::LeaseTimes(leases);
        let consistency = Consistency::Linearizable;
        let answer = self.call(false, |call| Input::Read { call, read, consistency }).await?;
        answer.map(|answered| match answered {
            Answered::LeaseTimes(times) => times,
            other => unexpected(other),
        })
    }

    /// Waits until the lock is granted, unless it was asked for without waiting. Dropping the future leaves
    /// the queue.
    pub async fn lock(&self, lock: Box<Lock>) -> Result<At<Locked>, Failure> {
        let answer = self.call_or_leave(false, lock.leaves(), |call| Input::Lock { call, lock }).await?;
        answer.map(|answered| match answered {
            Answered::Lock(reply) => Locked::Held(reply),
            Answered::Reply(Reply::Busy(busy)) => Locked::Busy(busy),
            other => unexpected(other),
        })
    }

    /// Gives the members as they are once the change is committed.
    pub async fn change_members(&self, change: MemberChange) -> Result<At<Vec<machine::Member>>, Failure> {
        let answer = self.call(true, |call| Input::ChangeMembers { call, change }).await?;
        answer.map(|answered| match answered {
            Answered::Members(members) => members,
            other => unexpected(other),
        })
    }

    /// Hands leadership to this member, or to whoever is fit for it. Returns when somebody else leads.
    pub async fn transfer_leader(&self, to: Option<MemberId>) -> Result<(), Failure> {
        let answer = self.call(true, |call| Input::TransferLeader { call, to }).await?;
        answer.map(drop).map(drop)
    }

    /// Takes the leader's state in the place of this member's own; gives the index that it goes up to.
    pub async fn reseed(&self) -> Result<u64, Failure> {
        let answer = self.call(true, |call| Input::Reseed { call }).await?;
        let index = answer.map(|answered| match answered {
            Answered::Reseeded { index } => index,
            other => unexpected(other),
        })?;
        Ok(index.value)
    }

    /// More waits for the replica than it should: what can be refused is.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.mailbox.depth() > QUEUE_LIMIT
    }

    pub(crate) fn open_session(&self) -> Result<OpenSession, Failure> {
        self.mailbox.open_session().ok_or(Failure::Overloaded)
    }

    pub fn watch_stream(&self) -> WatchStream {
        let (stream, notices) = self.mailbox.open_stream();
        WatchStream { mailbox: self.mailbox.clone(), stream, notices }
    }

    /// As of the replica's last step; never waits.
    pub fn status(&self) -> Status {
        self.status.lock().expect("no panic while the status is locked").clone()
    }

    /// A positive number that nobody else draws: a lease id.
    pub fn draw_lease_id(&self) -> LeaseId {
        (random_u64() >> 1).max(1) as LeaseId
    }

    /// Names one Lock call, see [`tenure_machine::Lock::call`].
    pub fn draw_call(&self) -> u128 {
        u128::from(self.boot) << 64 | u128::from(self.calls_drawn.fetch_add(1, Ordering::Relaxed))
    }

    async fn call(&self, always: bool, input: impl FnOnce(CallId) -> Input) -> Result<AnswerOf, Failure> {
        self.call_or_leave(always, Vec::new(), input).await
    }

    async fn call_or_leave(
        &self,
        always: bool,
        leaves: Vec<Leave>,
        input: impl FnOnce(CallId) -> Input,
    ) -> Result<AnswerOf, Failure> {
        if !always && self.is_overloaded() {
            return Err(Failure::Overloaded);
        }
        let open = self.mailbox.open_call();
        if !self.mailbox.bring(input(open.call)) {
            return Err(Failure::Stopping);
        }
        let mut pending = Pending { open, mailbox: &self.mailbox, leaves };
        let answer = match ALMOST_UP.try_with(|almost_up| *almost_up) {
            Ok(almost_up) => tokio::select! {
                answer = &mut pending.open => answer,
                () = tokio::time::sleep_until(almost_up) => {
                    self.mailbox.bring(Input::Hurry { call: pending.open.call });
                    (&mut pending.open).await
                }
            },
            Err(_) => (&mut pending.open).await,
        };
        answer.map(AnswerOf).ok_or(Failure::Stopping)
    }
}

impl Host for Member {
    fn deliver(&self, input: Input) {
        // If the replica is gone, so is whoever could have been told.
        let _ = self.mailbox.bring(input);
    }

    fn deliver_all(&self, inputs: &mut Vec<Input>) {
        let _ = self.mailbox.bring_all(inputs);
    }

    fn status(&self) -> Status {
        Member::status(self)
    }

    async fn members(&self) -> Result<Vec<machine::Member>, Failure> {
        Ok(self.view(Consistency::Linearizable).await?.value.members())
    }

    async fn change_members(&self, change: MemberChange) -> Result<Vec<machine::Member>, Failure> {
        Ok(Member::change_members(self, change).await?.value)
    }

    fn stop_as_stranger(&self, text: String) {
        self.mailbox.end(Ending::Stranger(text));
    }
}

struct AnswerOf(Answer);

impl AnswerOf {
    fn map<T>(self, value: impl FnOnce(Answered) -> T) -> Result<At<T>, Failure> {
        let Answer { revision, term, result } = self.0;
        Ok(At { value: value(result?), revision, term })
    }
}

/// The replica answers each kind of input with its own kind of answer.
fn unexpected<T>(answered: Answered) -> T {
    unreachable!("the replica answered another question: {answered:?}")
}

/// Tells the replica when the caller went away before the answer came.
struct Pending<'a> {
    open: OpenCall,
    mailbox: &'a Mailbox,
    /// Of a Lock call: how to give up what it may have been granted without anybody seeing it. Empty for others.
    leaves: Vec<Leave>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.open.is_done() {
            let call = self.open.call;
            self.mailbox.bring(match std::mem::take(&mut self.leaves) {
                leaves if leaves.is_empty() => Input::Cancel { call },
                leaves => Input::CancelLock { call, leaves },
            });
        }
    }
}

/// The watches of one client stream. Dropping it ends them.
pub struct WatchStream {
    mailbox: Mailbox,
    stream: StreamId,
    notices: mpsc::UnboundedReceiver<Notice>,
}

impl WatchStream {
    pub fn create(&self, watch: WatchId, keys: Keys, start: Option<Revision>) {
        self.send(WatchRequest::Create { watch, keys, start });
    }

    pub fn cancel(&self, watch: WatchId) {
        self.send(WatchRequest::Cancel { watch });
    }

    /// After everything of a [`Notice::Behind`] was delivered.
    pub fn resume(&self, watch: WatchId, from: Revision) {
        self.send(WatchRequest::Resume { watch, from });
    }

    /// Gives back what [`Notice::Commits`] charged; may be called once for several notices.
    pub fn drained(&self, bytes: usize) {
        self.send(WatchRequest::Drained { bytes });
    }

    pub fn request_progress(&self) {
        self.send(WatchRequest::Progress);
    }

    /// None = the member stops.
    pub async fn next(&mut self) -> Option<Notice> {
        self.notices.recv().await
    }

    fn send(&self, request: WatchRequest) {
        self.mailbox.bring(Input::Watch { stream: self.stream, request });
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.mailbox.close_stream(self.stream);
        self.send(WatchRequest::Close);
    }
}

pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    u64::from_ne_bytes(bytes)
}
