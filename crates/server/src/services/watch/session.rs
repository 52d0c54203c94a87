//! One client's stream of watches, from its first request to its end.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{pending, ready};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_api::etcdserverpb::watch_request::RequestUnion;
use tenure_api::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse};
use tenure_machine::{Commit, Keys, Refusal, Revision, View};
use tenure_replica::{Notice, WatchId};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tonic::{Status, Streaming};

use super::super::leader::LeaderLoss;
use super::super::produced::Emitter;
use super::super::watching::Watched;
use super::super::{Shared, convert, errors, large};
use super::fragment::fragments;
use super::interest::{Batch, History, Interest};
use crate::member::WatchStream;

/// The id in what concerns no single watch.
const NO_ID: i64 = -1;
/// What was passed on is reported in lumps of so many bytes, and whenever there is nothing else to do.
const DRAINED_LUMP: usize = 64 * 1024;
/// More events than this at once are selected and converted on a blocking thread.
const MANY_EVENTS: usize = 2000;

pub async fn run(
    shared: Arc<Shared>,
    requests: Streaming<WatchRequest>,
    address: Option<SocketAddr>,
    leader_loss: LeaderLoss,
    emitter: Emitter<Result<WatchResponse, Status>>,
) {
    let mut session = Session {
        stream: shared.member.watch_stream(),
        shared,
        requests: Some(requests),
        address,
        leader_loss,
        emitter,
        watches: BTreeMap::new(),
        ids: HashMap::new(),
        next_watch: 0,
        next_id: 0,
        opening: VecDeque::new(),
        reading: None,
        behind: VecDeque::new(),
        turn: None,
        drained: 0,
        progress_wanted: false,
        ticker: None,
    };
    // Ends with an error or with its reader, never of its own accord.
    let Err(status) = session.live().await;
    session.emitter.emit(Err(status)).await;
}

struct Session {
    shared: Arc<Shared>,
    stream: WatchStream,
    /// None = the client has sent all it will send.
    requests: Option<Streaming<WatchRequest>>,
    /// Where the client is.
    address: Option<SocketAddr>,
    leader_loss: LeaderLoss,
    emitter: Emitter<Result<WatchResponse, Status>>,

    /// By our own numbers, which are never used twice: what is on its way for a watch that was
    /// cancelled cannot be taken for another that has its id now.
    watches: BTreeMap<WatchId, Watch>,
    /// The client's ids of them.
    ids: HashMap<i64, WatchId>,
    next_watch: WatchId,
    next_id: i64,
    /// What is to be said in the order of the requests, from the first that the hub has yet to confirm.
    opening: VecDeque<Opening>,

    /// History being read for one watch, on a blocking thread.
    reading: Option<Reading>,
    /// Others that have to read, and from where.
    behind: VecDeque<(WatchId, Revision)>,
    /// The one that was told to go on and has not got its view yet.
    turn: Option<WatchId>,

    /// Bytes passed on and not yet reported.
    drained: usize,
    /// The client has asked how far its watches are.
    progress_wanted: bool,
    /// Set once a watch wants to be told when nothing happens.
    ticker: Option<Interval>,
}

struct Watch {
    id: i64,
    interest: Arc<Interest>,
    /// The first revision that it wants to see.
    start: Revision,
    fragment: bool,
    /// The hub has confirmed it.
    opened: bool,
    /// It reads history.
    behind: bool,
    progress_notify: bool,
    /// Nothing was sent since the last tick.
    idle: bool,
    /// It is to be told the revision.
    progress_due: bool,
    _watched: Option<Watched>,
}

enum Opening {
    Watch { watch: WatchId, id: i64 },
    Refused { reason: &'static str },
    Cancelled { id: i64 },
}

struct Reading {
    watch: WatchId,
    term: u64,
    job: JoinHandle<Result<History, Refusal>>,
}

/// All that can happen to a session. Handed from one function to the next and never kept.
enum Happened {
    Notice(Option<Notice>),
    Request(Result<Option<WatchRequest>, Status>),
    Read(Option<Result<History, Refusal>>),
    Tick,
    NoLeader,
    Idle,
}

enum Never {}

impl Session {
    async fn live(&mut self) -> Result<Never, Status> {
        loop {
            self.give_turn();
            match self.happened().await {
                Happened::Notice(Some(notice)) => self.noticed(notice).await?,
                Happened::Notice(None) => return Err(errors::STOPPED.into()),
                Happened::Request(Ok(Some(request))) => self.requested(request).await,
                // The client has nothing more to ask, but still listens.
                Happened::Request(Ok(None)) => self.requests = None,
                Happened::Request(Err(status)) => return Err(errors::unread(&status).unwrap_or(status)),
                Happened::Read(Some(history)) => self.read(history).await,
                Happened::Read(None) => return Err(errors::STOPPED.into()),
                Happened::Tick => self.tick(),
                Happened::NoLeader => return Err(errors::NO_LEADER.into()),
                Happened::Idle => self.report_drained(),
            }
        }
    }

    async fn happened(&mut self) -> Happened {
        let Session { stream, requests, reading, ticker, leader_loss, drained, .. } = self;
        // In this order: news first, and what can wait last.
        tokio::select! {
            biased;
            notice = stream.next() => Happened::Notice(notice),
            request = next_request(requests) => Happened::Request(request),
            history = next_history(reading) => Happened::Read(history),
            () = next_tick(ticker) => Happened::Tick,
            () = leader_loss.happened() => Happened::NoLeader,
            () = ready(()), if *drained > 0 => Happened::Idle,
        }
    }

    async fn requested(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create).await,
            Some(RequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => {
                self.progress_wanted = true;
                self.stream.request_progress();
            }
            // etcd ignores what it does not know.
            None => {}
        }
    }

    async fn create(&mut self, mut request: WatchCreateRequest) {
        if request.key.is_empty() {
            request.key = Bytes::from_static(b"\0");
        }
        let keys = convert::keys(request.key.clone(), request.range_end.clone());
        let is_empty = matches!(&keys, Keys::Span { from, to: Some(to) } if from >= to);
        let id = match request.watch_id {
            _ if request.start_revision < 0 => Err(errors::COMPACTED.1),
            _ if is_empty => Err(errors::WATCH_RANGE_EMPTY),
            0 => Ok(self.draw_id()),
            id if self.ids.contains_key(&id) => Err(errors::WATCH_DUPLICATE_ID),
            id => Ok(id),
        };
        let id = match id {
            Ok(id) => id,
            Err(reason) => return self.say_in_order(Opening::Refused { reason }).await,
        };
        if request.progress_notify && self.ticker.is_none() {
            self.ticker = Some(ticker(self.shared.config.watch_progress_interval));
        }
        let watch = self.next_watch;
        self.next_watch += 1;
        self.ids.insert(id, watch);
        self.watches.insert(
            watch,
            Watch {
                id,
                interest: Arc::new(Interest::new(keys.clone(), &request)),
                start: request.start_revision,
                fragment: request.fragment,
                opened: false,
                behind: false,
                progress_notify: request.progress_notify,
                idle: true,
                progress_due: false,
                _watched: Watched::from(self.address, &self.shared.process_wide),
            },
        );
        self.opening.push_back(Opening::Watch { watch, id });
        self.stream.create(watch, keys, Some(request.start_revision).filter(|start| *start > 0));
    }

    /// From 0 on, past those that the client chose itself.
    fn draw_id(&mut self) -> i64 {
        while self.ids.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// Of what is not there, not a word is said.
    async fn cancel(&mut self, id: i64) {
        let Some(watch) = self.ids.get(&id).copied() else { return };
        self.forget(watch);
        self.stream.cancel(watch);
        self.say_in_order(Opening::Cancelled { id }).await;
    }

    fn forget(&mut self, watch: WatchId) -> Option<Watch> {
        let found = self.watches.remove(&watch)?;
        self.ids.remove(&found.id);
        if self.turn == Some(watch) {
            self.turn = None;
        }
        Some(found)
    }

    /// Answers come in the order of the requests, and the hub's confirmations take their time.
    async fn say_in_order(&mut self, opening: Opening) {
        self.opening.push_back(opening);
        self.say_openings().await;
    }

    async fn say_openings(&mut self) {
        while let Some(opening) = self.opening.pop_front() {
            let response = match opening {
                Opening::Watch { .. } => return self.opening.push_front(opening),
                Opening::Refused { reason } => WatchResponse {
                    watch_id: NO_ID,
                    created: true,
                    canceled: true,
                    cancel_reason: reason.to_owned(),
                    ..WatchResponse::default()
                },
                Opening::Cancelled { id } => WatchResponse { watch_id: id, canceled: true, ..WatchResponse::default() },
            };
            self.say(WatchResponse { header: self.shared.header_now(), ..response }).await;
        }
    }

    async fn noticed(&mut self, notice: Notice) -> Result<(), Status> {
        match notice {
            Notice::Created { watch, revision, term } => {
                self.created(watch, self.shared.header_at(revision, term)).await
            }
            Notice::Commits { watch, commits, bytes, term, .. } => {
                self.changed(watch, commits, term).await?;
                self.drained += bytes;
                if self.drained >= DRAINED_LUMP {
                    self.report_drained();
                }
            }
            Notice::Behind { watch, from, view, term } => self.fell_behind(watch, from, view, term),
            Notice::Compacted { watch, compacted, term, .. } => self.compacted(watch, compacted, term).await,
            Notice::Progress { revision, term } => self.progressed(revision, term).await,
        }
        Ok(())
    }

    async fn created(&mut self, watch: WatchId, header: Option<ResponseHeader>) {
        if let Some(Opening::Watch { watch: first, id }) = self.opening.front()
            && *first == watch
        {
            let response = WatchResponse { header, watch_id: *id, created: true, ..WatchResponse::default() };
            self.opening.pop_front();
            self.say(response).await;
        }
        if let Some(found) = self.watches.get_mut(&watch) {
            found.opened = true;
        }
        self.say_openings().await;
    }

    /// The watch keeps up, and these commits concern it.
    async fn changed(&mut self, watch: WatchId, commits: Vec<Commit>, term: u64) -> Result<(), Status> {
        let Some(found) = self.watches.get(&watch) else { return Ok(()) };
        let interest = found.interest.clone();
        let events: usize = commits.iter().map(|commit| commit.events.len()).sum();
        if events > MANY_EVENTS {
            let batches = tokio::task::spawn_blocking(move || batches(&interest, &commits).collect::<Vec<_>>()).await;
            for batch in batches.map_err(|_| Status::from(errors::STOPPED))? {
                self.say_batch(watch, batch, None, term).await;
            }
            return Ok(());
        }
        for batch in batches(&interest, &commits) {
            self.say_batch(watch, batch, None, term).await;
        }
        Ok(())
    }

    fn fell_behind(&mut self, watch: WatchId, from: Revision, view: Box<View>, term: u64) {
        if self.turn == Some(watch) {
            self.turn = None;
        }
        let Some(found) = self.watches.get_mut(&watch) else { return large::drop_elsewhere(view) };
        found.behind = true;
        if self.reading.is_some() {
            // It will be its turn; a view is not kept for that long.
            self.behind.push_back((watch, from));
            return large::drop_elsewhere(view);
        }
        let interest = found.interest.clone();
        let job = tokio::task::spawn_blocking(move || interest.read(&view, from));
        self.reading = Some(Reading { watch, term, job });
    }

    async fn read(&mut self, history: Result<History, Refusal>) {
        let Some(Reading { watch, term, .. }) = self.reading.take() else { return };
        if !self.watches.contains_key(&watch) {
            return;
        }
        let history = match history {
            Ok(history) => history,
            Err(Refusal::Compacted { compacted, .. }) => {
                self.stream.cancel(watch);
                return self.compacted(watch, compacted, term).await;
            }
            Err(refusal) => {
                tracing::error!(%refusal, "history cannot be read");
                return;
            }
        };
        let (whole, next, revision) = (history.is_whole(), history.next, history.revision);
        if let Some(batch) = history.batch {
            self.say_batch(watch, batch, Some(revision).filter(|_| whole), term).await;
        }
        if !whole {
            return self.behind.push_back((watch, next));
        }
        if let Some(found) = self.watches.get_mut(&watch) {
            found.behind = false;
        }
        self.stream.resume(watch, next);
        if self.progress_wanted {
            self.stream.request_progress();
        }
    }

    /// Lets the next of those behind read on. It asks for a view of its own.
    fn give_turn(&mut self) {
        while self.reading.is_none() && self.turn.is_none() {
            let Some((watch, from)) = self.behind.pop_front() else { return };
            if self.watches.contains_key(&watch) {
                self.stream.resume(watch, from);
                self.turn = Some(watch);
            }
        }
    }

    async fn compacted(&mut self, watch: WatchId, compacted: Revision, term: u64) {
        let Some(found) = self.forget(watch) else { return };
        let response = WatchResponse {
            // etcd names no revision here.
            header: self.shared.header_at(0, term),
            watch_id: found.id,
            canceled: true,
            compact_revision: compacted,
            ..WatchResponse::default()
        };
        self.say(response).await;
    }

    /// A watch that has had nothing to tell for a whole interval is told how far the store is.
    fn tick(&mut self) {
        let mut due = false;
        for watch in self.watches.values_mut().filter(|watch| watch.progress_notify) {
            watch.progress_due |= watch.idle;
            due |= watch.progress_due;
            watch.idle = true;
        }
        if due {
            self.stream.request_progress();
        }
    }

    async fn progressed(&mut self, revision: Revision, term: u64) {
        let header = self.shared.header_at(revision, term);
        // A watch that starts later must not be told: its client would go on from here.
        let knows = |watch: &Watch| watch.opened && !watch.behind && watch.start <= revision + 1;
        let mut ids = Vec::new();
        for watch in self.watches.values_mut().filter(|watch| watch.progress_due && knows(watch)) {
            watch.progress_due = false;
            ids.push(watch.id);
        }
        if self.progress_wanted && !self.watches.values().any(|watch| watch.behind) {
            self.progress_wanted = false;
            if self.watches.values().filter(|watch| watch.opened).all(knows) {
                ids.push(NO_ID);
            }
        }
        for watch_id in ids {
            self.say(WatchResponse { header, watch_id, ..WatchResponse::default() }).await;
        }
    }

    /// `revision`: the store's, if this batch is up to date with it.
    async fn say_batch(&mut self, watch: WatchId, batch: Batch, revision: Option<Revision>, term: u64) {
        let Some(found) = self.watches.get_mut(&watch) else { return };
        (found.idle, found.progress_due) = (false, false);
        let fragment = found.fragment;
        let response = WatchResponse {
            header: self.shared.header_at(revision.unwrap_or(batch.revision), term),
            watch_id: found.id,
            events: batch.events,
            ..WatchResponse::default()
        };
        if !fragment {
            return self.say(response).await;
        }
        for piece in fragments(response, self.shared.config.limits.message_bytes()) {
            self.say(piece).await;
        }
    }

    async fn say(&mut self, response: WatchResponse) {
        self.emitter.emit(Ok(response)).await;
    }

    fn report_drained(&mut self) {
        self.stream.drained(std::mem::take(&mut self.drained));
    }
}

fn batches(interest: &Interest, commits: &[Commit]) -> impl Iterator<Item = Batch> {
    let mut commits = commits.iter().peekable();
    std::iter::from_fn(move || interest.next_batch(&mut commits))
}

async fn next_request(requests: &mut Option<Streaming<WatchRequest>>) -> Result<Option<WatchRequest>, Status> {
    match requests {
        Some(requests) => requests.message().await,
        None => pending().await,
    }
}

/// None = the runtime is going down.
async fn next_history(reading: &mut Option<Reading>) -> Option<Result<History, Refusal>> {
    match reading {
        Some(Reading { job, .. }) => job.await.ok(),
        None => pending().await,
    }
}

async fn next_tick(ticker: &mut Option<Interval>) {
    match ticker {
        Some(ticker) => drop(ticker.tick().await),
        None => pending().await,
    }
}

/// A little off for each stream, so that clients that came at once are not all told at once.
fn ticker(interval: Duration) -> Interval {
    let jitter = RandomState::new().hash_one(0) as u32 as f64 / f64::from(u32::MAX);
    let interval = interval.mul_f64(1.0 + jitter / 10.0);
    let mut ticker = interval_at(Instant::now() + interval, interval);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}
